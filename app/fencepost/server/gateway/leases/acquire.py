"""Acquiring locks, with claims in the same transaction: once granted, the holder before is fenced (R7, R9)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE, LOCK_HELD, UNKNOWN_TABLE, UNPROTECTED_TABLE
from fencepost.server.fence.problems import Problem, bad_request, out_of_scope
from fencepost.server.fence.token import BUILTIN, Token
from fencepost.server.gateway.blockers import with_blocker
from fencepost.server.gateway.claims.lease_claims import RefusedClaim, claim_all, resolve
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases.acquire_problems import (
    forbidden_lock,
    lock_held,
    mismatch,
    nothing_held,
    problem_of,
    withdrawn,
)
from fencepost.server.gateway.leases.sealing import binding_of, names_of_writes
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.refusals import RETRY_AFTER, no_such_source, unavailable
from fencepost.server.gateway.roles import acting
from fencepost.server.locks.leases import Leases, Overtaken, TakeResult
from fencepost.server.locks.source import SourceError
from fencepost.server.observe.events import LeaseAsked
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import RefusedError, StorageError, UnavailableError
from fencepost.server.postgres.leases import Acquired, LeaseId, LockRequest, Withdrawn
from fencepost.server.postgres.query import QueryError
from fencepost.server.quota import UNKNOWN

_OVERTAKEN: Final = (
    "What the lease was to claim is claimed under other locks all the time: each time a younger token was there first."
)


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease, as its holder gets it."""

    source: str
    lease: Acquired
    locks: tuple[str, ...]
    claims: Sequence[Done]
    waited_ms: int
    sealed: Sequence[str] = ()
    """The lease's tokens with their seals; none where the gateway has no keys."""

    @property
    def lease_id(self) -> LeaseId:
        if self.lease.lease_id is None:
            raise RuntimeError("a grant has a lease")
        return LeaseId(self.source, self.lease.lease_id)


async def acquire_lease(
    gateway: Gateway,
    wanted: LockRequest,
    gone: "asyncio.Future[None]",
    waits_as: str = UNKNOWN,
    may_ask_again: Callable[[], bool] = lambda: True,
) -> Granted | Problem:
    """Acquire all locks and claim all claims, or nothing.

    `gone`: the client has hung up, or its credential is good no longer. It waits no longer, and what it is granted is
    given back, unless it chose the secret: with that it can ask again, on another connection, and may have done so
    already; or withdraw (held.py). Once `gone` is done, `may_ask_again` says whether the caller is let in for that.
    `waits_as`: whose place among those who wait it takes (quota.py).
    """
    wanted = replace(wanted, caller=gateway.caller)
    if wanted.claims and "write" not in gateway.caller.access:
        return out_of_scope(gateway.caller, "write")
    if not wanted.wait_ms:
        return await _acquire_in_time(gateway, wanted, gone, may_ask_again)
    with gateway.waiters.place(waits_as) as full:
        if full is None:
            return await _acquire_in_time(gateway, wanted, gone, may_ask_again)
    refused = unavailable(UnavailableError(f"no more requests may wait for locks at this gateway: there are {full}"))
    gateway.emit(LeaseAsked("acquire", refused.name, wanted.names, None, wanted.owner))
    return refused


async def _acquire_in_time(
    gateway: Gateway, wanted: LockRequest, gone: "asyncio.Future[None]", may_ask_again: Callable[[], bool]
) -> Granted | Problem:
    """Acquire while the caller's credential lasts, again if the catalog was outdated; and report what came of it."""
    arrived = asyncio.get_running_loop().time()
    if gateway.caller.ends is not None:
        wanted = replace(wanted, wait_ms=int(gateway.caller.within(wanted.wait_ms / 1000, arrived) * 1000))
    forbidden = forbidden_lock(gateway.caller, wanted.names)
    outcome, doubtful = await _acquire_by_catalog(gateway, wanted, gone) if forbidden is None else (forbidden, False)
    if doubtful:
        try:
            await gateway.catalog.loaded_after(arrived)
        except UnavailableError as error:
            outcome = problem_of(error, wanted.source, chosen=wanted.chosen)
        else:
            waited_ms = int((asyncio.get_running_loop().time() - arrived) * 1000)
            again = replace(wanted, wait_ms=max(wanted.wait_ms - waited_ms, 0))
            outcome, _ = await _acquire_by_catalog(gateway, again, gone)
    if isinstance(outcome, Problem):
        if outcome.type is LOCK_HELD and gone.done():  # it may be free: nobody was left to ask for
            outcome = nothing_held()
        outcome = await with_blocker(gateway, None, outcome)
        gateway.emit(LeaseAsked("acquire", outcome.name, wanted.names, None, wanted.owner))
        gateway.report_if_forbidden(outcome)
        return outcome
    lease = outcome.lease
    tokens = len(lease.tokens) + bool(wanted.claims) if lease.verdict == "granted" else 0
    waited = outcome.waited_ms / 1000
    asked = LeaseAsked("acquire", lease.verdict, wanted.names, str(outcome.lease_id), wanted.owner, waited, tokens)
    gateway.emit(asked)
    if not gone.done():
        return outcome
    return await _release_for_nobody(gateway, wanted, outcome, can_be_used=wanted.chosen and may_ask_again())


async def _release_for_nobody(
    gateway: Gateway, wanted: LockRequest, granted: Granted, *, can_be_used: bool
) -> Granted | Problem:
    """Release what no client will use: none has the secret, or the client that has it is let in no more, or has
    withdrawn while the claims waited for a row.
    """
    locks = gateway.locks_of(wanted.source)
    try:
        if can_be_used and not await gateway.locks.is_withdrawn(wanted.secret_hash):
            return granted
        if locks is not None:
            await locks.release(granted.lease_id.number, wanted.secret_hash)
    except (StorageError, SourceError) as error:
        return problem_of(error, wanted.source, chosen=wanted.chosen)  # the lease's time will run out
    return nothing_held()


async def _acquire_by_catalog(
    gateway: Gateway, wanted: LockRequest, gone: "asyncio.Future[None]"
) -> tuple[Granted | Problem, bool]:
    """Acquire with the catalog as it is loaded; True: that it is outdated may be why it failed."""
    on_tables = bool(wanted.claims or wanted.writes)
    sealing = _acquire_and_seal(gateway, wanted, gone)
    try:
        outcome = await (acting(gateway, sealing) if on_tables else sealing)
    except RefusedClaim as refused:
        return refused.problem, False
    except QueryError as error:
        return bad_request(f"claim: {error}"), False
    except (Overtaken, Withdrawn) as error:
        overtaken = Problem(DATABASE_UNAVAILABLE, _OVERTAKEN, retry_after=RETRY_AFTER)
        return overtaken if isinstance(error, Overtaken) else withdrawn(), False
    except SourceError as error:
        return problem_of(error, wanted.source, chosen=wanted.chosen), False
    except StorageError as error:
        outdated = isinstance(error, RefusedError) and error.may_be_outdated and on_tables
        return problem_of(error, wanted.source, chosen=wanted.chosen), outdated
    return outcome, isinstance(outcome, Problem) and outcome.type in (UNKNOWN_TABLE, UNPROTECTED_TABLE)


async def _acquire_and_seal(gateway: Gateway, wanted: LockRequest, gone: "asyncio.Future[None]") -> Granted | Problem:
    """Read what the tokens are for, acquire, and seal them. Nothing is read after the grant: it could fail then."""
    locks = _locks_for(gateway, wanted)
    if isinstance(locks, Problem):
        return locks
    writes = await names_of_writes(gateway, wanted.writes)
    if isinstance(writes, Problem):
        return writes
    claimed = resolve(gateway.catalog.current, wanted.claims, wanted.source)
    if isinstance(claimed, Problem):
        return claimed
    binding = None
    if gateway.seals.keys is not None:
        binding = await binding_of(gateway, wanted.source, wanted.names, wanted.claims, writes)
    wanted = replace(wanted, writes=writes)

    async def claim(connection: Connection, token: Token, repeated: bool) -> list[Done]:
        return await claim_all(connection, gateway, claimed, token, repeated=repeated, source=wanted.source)

    granted = _grant_or_problem(await locks.take(wanted, claim if claimed else None, gone), wanted)
    if isinstance(granted, Problem) or binding is None:
        return granted
    sealed = gateway.seals.seal(granted.lease.tokens, replace(binding, lease=str(granted.lease_id)))
    return replace(granted, sealed=sealed)


def _locks_for(gateway: Gateway, wanted: LockRequest) -> Leases | Problem:
    locks = gateway.locks_of(wanted.source)
    if locks is None:
        return no_such_source(gateway, wanted.source, "body")
    if wanted.source != BUILTIN and len(wanted.names) > 1:
        return bad_request(f"body: locks: {wanted.source} locks one name at a time; builtin takes several")
    return locks


def _grant_or_problem(taken: TakeResult, wanted: LockRequest) -> Granted | Problem:
    acquired = taken.acquired
    match acquired.verdict:
        case "repeated" if wanted.owner_given and acquired.owner != wanted.owner:
            return mismatch()  # two who use one secret are not one who asks twice
        case "granted" | "repeated":
            claims = taken.claims if isinstance(taken.claims, list) else []
            names = tuple(sorted(wanted.names, key=str.encode))
            return Granted(wanted.source, acquired, names, claims, taken.waited_ms)
        case "held" | "queued":
            return lock_held(acquired, wanted.source)
        case "mismatch":
            return mismatch()
