"""What can be done with a lease once it is there: renew, mint, release, look; and the list of locks.

A lease that is lost, or unknown, or another client's is one answer: 410. A holder that gets it must stop.
"""

import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fencepost.fencing.problem_types import LEASE_LOST, OUTCOME_UNKNOWN
from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.leases.acquire import hash_secret
from fencepost.gateway.refusals import RETRY_AFTER, no_such_source, problem_of_refused, source_problem, unavailable
from fencepost.locks.leases import Leases
from fencepost.locks.source import SourceError
from fencepost.observe.events import LeaseAsked, LeaseVerb
from fencepost.storage.errors import OutcomeUnknownError, RefusedError, StorageError, UnavailableError
from fencepost.storage.leases.builtin import Lease, LeaseId, LockState

T = TypeVar("T")


async def renew(gateway: Gateway, lease_id: LeaseId, secret: str, ttl_ms: int | None) -> Lease | Problem:
    """Keep a lease alive, from now on for ttl_ms, or for as long as before."""
    return await _use_lease(
        gateway, "renew", lease_id, lambda locks: locks.renew(lease_id.number, hash_secret(secret), ttl_ms)
    )


async def mint(gateway: Gateway, lease_id: LeaseId, secret: str, count: int) -> Lease | Problem:
    """Draw more tokens under a lease."""
    return await _use_lease(
        gateway, "mint", lease_id, lambda locks: locks.mint(lease_id.number, hash_secret(secret), count)
    )


async def release(gateway: Gateway, lease_id: LeaseId, secret: str) -> Problem | None:
    """Give the locks back. Harmless when the lease is over already."""
    locks = gateway.locks_of(lease_id.source)
    if locks is None:  # no such source, no such lease
        return None
    over = await _map_errors(lambda: locks.release(lease_id.number, hash_secret(secret)), lease_id.source)
    if isinstance(over, Problem):
        return over
    gateway.emit(LeaseAsked("release", "done" if over else LEASE_LOST.code or "", (), str(lease_id)))
    if over:
        return None
    return Problem(
        LEASE_LOST,
        f"Lease {lease_id} is held, and X-Lease-Secret is not that of its holder.",
        extra={"lease_id": str(lease_id)},
    )


async def inspect(gateway: Gateway, lease_id: LeaseId) -> Lease | Problem:
    """Look at a live lease."""
    locks = gateway.locks_of(lease_id.source)
    if locks is None:
        return _unknown_lease(lease_id)
    lease = await _map_errors(lambda: locks.inspect(lease_id.number), lease_id.source)
    return await _explain_loss(gateway, lease_id) if lease is None else lease


async def locks(
    gateway: Gateway, source: str, name: str | None, after: str | None, limit: int
) -> list[LockState] | Problem:
    """List the locks of a source that are held or waited for."""
    found = gateway.locks_of(source)
    if found is None:
        return no_such_source(gateway, source, "query")
    return await _map_errors(lambda: found.states(name, after, limit), source)


async def _use_lease(
    gateway: Gateway,
    verb: LeaseVerb,
    lease_id: LeaseId,
    ask: Callable[[Leases], Awaitable[Lease | None]],
) -> Lease | Problem:
    locks = gateway.locks_of(lease_id.source)
    if locks is None:
        return _unknown_lease(lease_id)
    found = await _map_errors(lambda: ask(locks), lease_id.source)
    answer = await _explain_loss(gateway, lease_id) if found is None else found
    if isinstance(answer, Problem):
        gateway.emit(LeaseAsked(verb, answer.name, (), str(lease_id)))
    else:
        gateway.emit(LeaseAsked(verb, "done", answer.names, str(lease_id), answer.owner, tokens=len(answer.minted)))
    return answer


async def _map_errors(ask: Callable[[], Awaitable[T]], source: str) -> T | Problem:
    try:
        return await ask()
    except OutcomeUnknownError as error:
        hint = "Repeat the request: renewing and releasing twice is harmless, and tokens that got lost are never used."
        detail = f"It is not known whether this was done: {error}"
        return Problem(OUTCOME_UNKNOWN, detail, hint=hint, retry_after=RETRY_AFTER)
    except UnavailableError as error:
        return unavailable(error)
    except RefusedError as error:
        return problem_of_refused(error)
    except SourceError as error:
        return source_problem(error, source)


def _unknown_lease(lease_id: LeaseId) -> Problem:
    return Problem(
        LEASE_LOST,
        f"Lease {lease_id} is unknown, or X-Lease-Secret is not its own.",
        extra={"lease_id": str(lease_id)},
    )


async def _explain_loss(gateway: Gateway, lease_id: LeaseId) -> Problem:
    """Say what is known of a lease that is not held, or not with this secret."""
    extra: dict[str, object] = {"lease_id": str(lease_id)}
    try:
        locks = gateway.locks_of(lease_id.source)
        lost = None if locks is None else await locks.find_ended(lease_id.number)
    except StorageError as error:  # it is lost all the same; what became of it is only an explanation
        return Problem(LEASE_LOST, f"Lease {lease_id} is not held.", details=f"{error}", extra=extra)
    if lost is None:
        return _unknown_lease(lease_id)
    names = ", ".join(lost.names)
    what = "was released" if lost.released else "expired"
    extra |= {"lock": lost.names[0] if len(lost.names) == 1 else None, "locks": list(lost.names)}
    extra |= {"owner": lost.owner, "ended_at": lost.ended_at}
    detail = f"Lease {lease_id} of {names} {what} at {lost.ended_at}."
    if lost.superseded_by is not None:
        successor = json.loads(lost.superseded_by)
        extra["superseded_by"] = successor
        detail += f" {successor['holder']} has held {', '.join(successor['locks'])} since {successor['granted_at']}."
    return Problem(LEASE_LOST, detail, extra=extra)
