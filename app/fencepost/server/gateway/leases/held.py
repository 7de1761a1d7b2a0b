"""What can be done with a lease once it is there: renew, mint, release, look; and the list of locks.

A lease that is lost, or unknown, or another client's is one answer: 410. A holder that gets it must stop.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE, LEASE_LOST, OUTCOME_UNKNOWN, SOURCE_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.seal import Binding
from fencepost.server.fence.token import BUILTIN
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases.acquire_problems import forbidden_lock
from fencepost.server.gateway.leases.sealing import binding_of
from fencepost.server.gateway.refusals import (
    RETRY_AFTER,
    no_such_source,
    problem_of_refused,
    source_problem,
    unavailable,
)
from fencepost.server.gateway.roles import acting
from fencepost.server.locks.leases import Leases
from fencepost.server.locks.source import SourceError
from fencepost.server.observe.events import LeaseAsked, LeaseVerb
from fencepost.server.postgres.errors import OutcomeUnknownError, RefusedError, StorageError, UnavailableError
from fencepost.server.postgres.leases import EndedBy, Lease, LeaseId, LockState, hash_secret

T = TypeVar("T")

_HOW_ENDED: Final[Mapping[EndedBy | None, str]] = {
    None: "expired",
    "holder": "was released",
    "operator": "was ended in its holder's place by an operator",
    "generation": "was ended by raising the generation",
    "service": "was lost at the lock service",
}


async def renew(gateway: Gateway, lease_id: LeaseId, secret: str, ttl_ms: int | None) -> Lease | Problem:
    """Keep a lease alive, from now on for ttl_ms, or for as long as before."""
    hashed = hash_secret(secret, gateway.caller)
    return await _use_lease(gateway, "renew", lease_id, lambda locks: locks.renew(lease_id.number, hashed, ttl_ms))


@dataclass(frozen=True, slots=True)
class Minted:
    """A lease, and the tokens that were drawn under it. `sealed`: the same with seals, if the gateway has keys."""

    lease: Lease
    sealed: Sequence[str] = ()


async def mint(gateway: Gateway, lease_id: LeaseId, secret: str, count: int) -> Minted | Problem:
    """Draw more tokens under a lease."""
    hashed = hash_secret(secret, gateway.caller)
    lease = await _use_lease(gateway, "mint", lease_id, lambda locks: locks.mint(lease_id.number, hashed, count))
    if isinstance(lease, Problem) or gateway.seals.keys is None:
        return lease if isinstance(lease, Problem) else Minted(lease)

    async def bind() -> Binding | Problem:
        work = binding_of(gateway, lease_id.source, lease.names, lease.claims, lease.writes, str(lease_id))
        return await (acting(gateway, work) if lease.claims else work)

    binding = await _map_errors(bind, lease_id.source)
    # Tokens that get no seal are never used.
    return binding if isinstance(binding, Problem) else Minted(lease, gateway.seals.seal(lease.minted, binding))


async def release(gateway: Gateway, lease_id: LeaseId, secret: str) -> Problem | None:
    """Give the locks back. Harmless when the lease is over already."""
    locks = gateway.locks_of(lease_id.source)
    if locks is None:  # no such source, no such lease
        return None
    hashed = hash_secret(secret, gateway.caller)
    over = await _map_errors(lambda: locks.release(lease_id.number, hashed), lease_id.source)
    if isinstance(over, Problem):
        return over
    gateway.emit(LeaseAsked("release", "done" if over else LEASE_LOST.code or "", (), str(lease_id)))
    if over:
        return None
    if gateway.caller.locks is not None and isinstance(await inspect(gateway, lease_id), Problem):
        return None  # a lease that the caller may not see is answered as one that is not there
    return Problem(
        LEASE_LOST,
        f"Lease {lease_id} is held, and X-Lease-Secret is not that of its holder.",
        extra={"lease_id": str(lease_id)},
    )


async def withdraw(gateway: Gateway, secret: str) -> Problem | None:
    """Withdraw an acquire whose answer is not known: its lease is released, its place in a queue is free, and no
    request that is under way with the secret is granted anything any more.
    """
    hashed = hash_secret(secret, gateway.caller)
    found = await _map_errors(lambda: gateway.locks.withdraw(hashed), BUILTIN)
    if isinstance(found, Problem):
        return found
    for lease in found.leases:
        problem = _elsewhere(gateway, lease) or await release(gateway, lease, secret)
        if problem is not None:
            return problem
    problem = None
    if found.under_way:
        detail = "A request with this secret is under way, and may have been granted its lease already."
        hint = "Ask again: once it is over, its lease is found and released."
        problem = Problem(DATABASE_UNAVAILABLE, detail, hint=hint, retry_after=RETRY_AFTER)
    gateway.emit(LeaseAsked("withdraw", "done" if problem is None else problem.name))
    return problem


def _elsewhere(gateway: Gateway, lease: LeaseId) -> Problem | None:
    """Refuse to end a lease of a source that this gateway does not have."""
    if gateway.locks_of(lease.source) is not None:
        return None
    detail = f"This gateway does not have the source {lease.source}, of which the secret has the lease {lease}."
    hint = (
        "No other lease is granted under the secret any more. Ask a gateway that has the source, to release this one."
    )
    return Problem(SOURCE_UNAVAILABLE, detail, hint=hint, retry_after=RETRY_AFTER, extra={"source": lease.source})


async def inspect(gateway: Gateway, lease_id: LeaseId) -> Lease | Problem:
    """Look at a live lease."""
    locks = gateway.locks_of(lease_id.source)
    if locks is None:
        return _unknown_lease(lease_id)
    lease = await _map_errors(lambda: locks.inspect(lease_id.number), lease_id.source)
    if isinstance(lease, Lease) and forbidden_lock(gateway.caller, lease.names) is not None:
        return _unknown_lease(lease_id)
    return await _explain_loss(gateway, lease_id) if lease is None else lease


async def locks(
    gateway: Gateway, source: str, names: Sequence[str] | None, after: str | None, limit: int
) -> list[LockState] | Problem:
    """List the locks of a source that are held or waited for, and that the caller may see: those of these names, or
    all.
    """
    if (forbidden := forbidden_lock(gateway.caller, names or ())) is not None:
        gateway.report_if_forbidden(forbidden)
        return forbidden
    found = gateway.locks_of(source)
    if found is None:
        return no_such_source(gateway, source, "query")
    return await _map_errors(lambda: found.states(names, after, limit, gateway.caller.locks), source)


async def _use_lease(
    gateway: Gateway,
    verb: LeaseVerb,
    lease_id: LeaseId,
    ask: Callable[[Leases], Awaitable[Lease | None]],
) -> Lease | Problem:
    locks = gateway.locks_of(lease_id.source)
    if locks is None:
        return _unknown_lease(lease_id)
    if gateway.caller.locks is not None:  # its patterns may be others than when it acquired the lease
        seen = await inspect(gateway, lease_id)
        if isinstance(seen, Problem):
            gateway.emit(LeaseAsked(verb, seen.name, (), str(lease_id)))
            return seen
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
    """Return what is known of a lease that is not held, or not with this secret."""
    extra: dict[str, object] = {"lease_id": str(lease_id)}
    try:
        locks = gateway.locks_of(lease_id.source)
        lost = None if locks is None else await locks.find_ended(lease_id.number)
    except StorageError as error:  # it is lost all the same; what became of it is only an explanation
        return Problem(LEASE_LOST, f"Lease {lease_id} is not held.", details=f"{error}", extra=extra)
    if lost is None or forbidden_lock(gateway.caller, lost.names) is not None:
        return _unknown_lease(lease_id)
    names = ", ".join(lost.names)
    what = _HOW_ENDED[lost.ended_by]
    extra |= {"lock": lost.names[0] if len(lost.names) == 1 else None, "locks": list(lost.names)}
    extra |= {"owner": lost.owner, "ended_at": lost.ended_at}
    detail = f"Lease {lease_id} of {names} {what} at {lost.ended_at}."
    successor = None if lost.superseded_by is None else json.loads(lost.superseded_by)
    if successor is not None and forbidden_lock(gateway.caller, successor["locks"]) is None:
        extra["superseded_by"] = successor
        detail += f" {successor['holder']} has held {', '.join(successor['locks'])} since {successor['granted_at']}."
    return Problem(LEASE_LOST, detail, extra=extra)
