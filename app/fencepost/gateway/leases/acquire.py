"""Acquiring locks, with claims in the same transaction: once granted, the holder before is fenced (R7, R9)."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from fencepost.fencing.access_problem_types import LOCK_FORBIDDEN
from fencepost.fencing.caller import EVERYBODY, Caller
from fencepost.fencing.problem_types import (
    DATABASE_UNAVAILABLE,
    LOCK_HELD,
    OUTCOME_UNKNOWN,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
)
from fencepost.fencing.problems import Problem, bad_request, out_of_scope
from fencepost.fencing.resource import Resource
from fencepost.fencing.token import BUILTIN, Token
from fencepost.gateway.blockers import with_blocker
from fencepost.gateway.claims.lease_claims import RefusedClaim, claim_all, resolve
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.leases.sealing import binding_of, names_of_writes
from fencepost.gateway.outcomes import Done
from fencepost.gateway.refusals import RETRY_AFTER, no_such_source, problem_of_refused, source_problem, unavailable
from fencepost.gateway.roles import acting
from fencepost.locks.leases import AcquireResult, Leases, Overtaken
from fencepost.locks.source import SourceError
from fencepost.observe.events import LeaseAsked
from fencepost.quota import UNKNOWN
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import OutcomeUnknownError, RefusedError, StorageError, UnavailableError
from fencepost.storage.leases.builtin import Acquired, LeaseId, LockRequest
from fencepost.storage.statements.query import QueryError

_ONE_SECRET: Final = frozenset({"leases_secret_hash_key", "source_leases_secret_hash_key"})
_OVERTAKEN: Final = (
    "What the lease was to claim is claimed under other locks all the time: each time a younger token was there first."
)


@dataclass(frozen=True, slots=True)
class Acquire:
    """POST /v1/leases. `chosen`: the secret is the client's own, who can ask with it again."""

    locks: tuple[str, ...]
    secret: str
    chosen: bool
    owner: str
    ttl_ms: int
    wait_ms: int
    tokens: int
    claims: tuple[tuple[str, Resource], ...]
    keep_place: bool
    owner_given: bool = True
    source: str = BUILTIN
    writes: tuple[str, ...] = ()
    """What the tokens may be used for, beside what locks and claims name, where they are sealed."""
    caller: str = UNKNOWN


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
        """What the lease is called."""
        if self.lease.lease_id is None:
            raise RuntimeError("a grant has a lease")
        return LeaseId(self.source, self.lease.lease_id)


def hash_secret(secret: str, caller: Caller = EVERYBODY) -> bytes:
    """Hash a lease's secret for storing. It has 128 random bits or more, so it needs neither salt nor stretching.

    The caller's name is a part of it: for another caller the same secret is another one, which no lease has. Neither
    text has a NUL byte.
    """
    text = f"{caller.name}\0{secret}" if caller.name else secret
    return hashlib.sha256(text.encode()).digest()


def forbidden_lock(caller: Caller, names: Sequence[str]) -> Problem | None:
    """Refuse locks that are not for this caller."""
    name = next((name for name in names if not caller.may_lock(name)), None)
    if name is None:
        return None
    return Problem(
        LOCK_FORBIDDEN,
        f"The lock {name!r:.120} is not for {caller.name}.",
        hint=f"The caller's token or key has these patterns: {', '.join(caller.locks or ()) or 'none'}.",
        extra={"lock": name},
    )


async def acquire(gateway: Gateway, request: Acquire, gone: "asyncio.Future[None]") -> Granted | Problem:
    """Acquire all locks and claim all claims, or nothing. `gone`: the client has hung up, and waits no longer."""
    if request.claims and "write" not in gateway.caller.access:
        return out_of_scope(gateway.caller, "write")
    if not request.wait_ms:
        return await _acquire(gateway, request, gone)
    with gateway.waiters.place(request.caller) as full:
        if full is None:
            return await _acquire(gateway, request, gone)
    refused = unavailable(UnavailableError(f"no more requests may wait for locks at this gateway: there are {full}"))
    gateway.emit(LeaseAsked("acquire", refused.name, request.locks, None, request.owner))
    return refused


async def _acquire(gateway: Gateway, request: Acquire, gone: "asyncio.Future[None]") -> Granted | Problem:
    arrived = asyncio.get_running_loop().time()
    if gateway.caller.ends is not None:
        request = replace(request, wait_ms=int(gateway.caller.within(request.wait_ms / 1000, arrived) * 1000))
    forbidden = forbidden_lock(gateway.caller, request.locks)
    outcome, doubtful = await _attempt(gateway, request, gone) if forbidden is None else (forbidden, False)
    if doubtful:
        try:
            await gateway.catalog.loaded_after(arrived)
        except UnavailableError as error:
            outcome = _problem_of(error, request)
        else:
            waited_ms = int((asyncio.get_running_loop().time() - arrived) * 1000)
            again = replace(request, wait_ms=max(request.wait_ms - waited_ms, 0))
            outcome, _ = await _attempt(gateway, again, gone)
    if isinstance(outcome, Problem):
        outcome = await with_blocker(gateway, None, outcome)
        gateway.emit(LeaseAsked("acquire", outcome.name, request.locks, None, request.owner))
        gateway.report_if_forbidden(outcome)
        return outcome
    lease = outcome.lease
    tokens = len(lease.tokens) + bool(request.claims) if lease.verdict == "granted" else 0
    gateway.emit(
        LeaseAsked(
            "acquire",
            lease.verdict,
            request.locks,
            str(outcome.lease_id),
            request.owner,
            outcome.waited_ms / 1000,
            tokens,
        )
    )
    if gone.done() and not request.chosen and lease.lease_id is not None:
        # No client got the secret, so none can ever use the lease.
        locks = gateway.locks_of(request.source)
        try:
            if locks is not None:
                await locks.release(lease.lease_id, hash_secret(request.secret, gateway.caller))
        except (StorageError, SourceError) as error:
            return _problem_of(error, request)  # which no client reads; the lease's time will run out
    return outcome


async def _attempt(gateway: Gateway, request: Acquire, gone: "asyncio.Future[None]") -> tuple[Granted | Problem, bool]:
    """Try once; True: an outdated catalog may be why it failed."""
    on_tables = bool(request.claims or request.writes)
    trying = _try(gateway, request, gone)
    try:
        outcome = await (acting(gateway, trying) if on_tables else trying)
    except RefusedClaim as refused:
        return refused.problem, False
    except QueryError as error:
        return bad_request(f"claim: {error}"), False
    except Overtaken:
        return Problem(DATABASE_UNAVAILABLE, _OVERTAKEN, retry_after=RETRY_AFTER), False
    except SourceError as error:
        return _problem_of(error, request), False
    except StorageError as error:
        return _problem_of(error, request), isinstance(error, RefusedError) and error.may_be_outdated and on_tables
    return outcome, isinstance(outcome, Problem) and outcome.type in (UNKNOWN_TABLE, UNPROTECTED_TABLE)


async def _try(gateway: Gateway, request: Acquire, gone: "asyncio.Future[None]") -> Granted | Problem:
    """Read what the tokens are for, acquire, and seal them. Nothing is read after the grant: it could fail then."""
    locks = _locks_for(gateway, request)
    if isinstance(locks, Problem):
        return locks
    writes = await names_of_writes(gateway, request.writes)
    if isinstance(writes, Problem):
        return writes
    claimed = resolve(gateway.catalog.current, request.claims, request.source)
    if isinstance(claimed, Problem):
        return claimed
    texts = tuple(text for text, _ in request.claims)
    binding = None
    if gateway.seals.keys is not None:
        binding = await binding_of(gateway, request.source, request.locks, texts, writes)
    wanted = LockRequest(
        request.locks,
        hash_secret(request.secret, gateway.caller),
        request.owner,
        request.ttl_ms,
        request.tokens,
        texts,
        request.wait_ms,
        request.keep_place,
        request.chosen,
        writes,
    )

    async def claim(connection: Connection, token: Token, repeated: bool) -> list[Done]:
        return await claim_all(connection, gateway, claimed, token, repeated=repeated, source=request.source)

    attempted = await locks.acquire(wanted, claim if claimed else None, gone)
    granted = _grant_or_problem(attempted, request)
    if isinstance(granted, Problem) or binding is None:
        return granted
    sealed = gateway.seals.seal(granted.lease.tokens, replace(binding, lease=str(granted.lease_id)))
    return replace(granted, sealed=sealed)


def _locks_for(gateway: Gateway, request: Acquire) -> Leases | Problem:
    locks = gateway.locks_of(request.source)
    if locks is None:
        return no_such_source(gateway, request.source, "body")
    if request.source != BUILTIN and len(request.locks) > 1:
        return bad_request(f"body: locks: {request.source} locks one name at a time; builtin takes several")
    return locks


def _grant_or_problem(attempted: AcquireResult, request: Acquire) -> Granted | Problem:
    acquired = attempted.acquired
    match acquired.verdict:
        case "repeated" if request.owner_given and acquired.owner != request.owner:
            return _mismatch()  # two who use one secret are not one who asks twice
        case "granted" | "repeated":
            claims = attempted.claims if isinstance(attempted.claims, list) else []
            names = tuple(sorted(request.locks, key=str.encode))
            return Granted(request.source, acquired, names, claims, attempted.waited_ms)
        case "held" | "queued":
            return lock_held(acquired, request.source)
        case "mismatch":
            return _mismatch()


def _mismatch() -> Problem:
    return bad_request(
        "X-Lease-Secret: this secret is that of a live lease of other locks, claims or writes, or of another owner",
        "Choose a new secret for every lease; repeat one only to repeat the same request.",
    )


def lock_held(acquired: Acquired, source: str = BUILTIN) -> Problem:
    """Return who is in the way."""
    if source != BUILTIN:
        by = "another client" if acquired.owner is None else acquired.owner
        detail = f"{acquired.lock} is held by {by}, according to {source}."
    elif acquired.lease_id is None and not acquired.waiting:
        detail = f"{acquired.lock} is being granted to another client at this moment."
    elif acquired.lease_id is None:
        detail = f"{acquired.lock} is free, and {acquired.waiting} others have been waiting for it."
    else:
        detail = f"{acquired.owner} has held {acquired.lock} since {acquired.granted_at}."
    return Problem(
        LOCK_HELD,
        detail,
        hint="Wait with wait_ms, or try again after Retry-After.",
        retry_after=max(-(-(acquired.due_ms or 0) // 1000), 1),
        extra={
            "lock": acquired.lock,
            "holder": acquired.owner,
            "source": source,
            "lease_id": None if acquired.lease_id is None else str(acquired.lease_id),
            "held_since": acquired.granted_at,
            "held_until": acquired.expires_at,
            "waiting": acquired.waiting,
        },
    )


def _problem_of(error: StorageError | SourceError, request: Acquire) -> Problem:
    if isinstance(error, SourceError):
        return source_problem(error, request.source)
    if isinstance(error, RefusedError):
        if error.constraint in _ONE_SECRET:  # two requests at once, for different locks
            return _mismatch()
        return problem_of_refused(error)
    if isinstance(error, OutcomeUnknownError):
        return Problem(
            OUTCOME_UNKNOWN,
            f"It is not known whether the lease was granted: {error}",
            hint="Repeat the request with the same X-Lease-Secret: a lease that was granted is found again."
            if request.chosen
            else "Send an X-Lease-Secret of your own, and such a request can be repeated. If this one was granted, "
            "no client knows its secret: its time runs out.",
            retry_after=RETRY_AFTER,
        )
    if isinstance(error, UnavailableError):
        return unavailable(error)
    return Problem(DATABASE_UNAVAILABLE, f"{error}", retry_after=RETRY_AFTER)
