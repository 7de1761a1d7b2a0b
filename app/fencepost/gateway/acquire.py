"""Acquiring locks, with claims in the same transaction: once granted, whoever held them before is fenced (R7, R9)."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from fencepost.fencing.problem_types import (
    DATABASE_UNAVAILABLE,
    LOCK_HELD,
    OUTCOME_UNKNOWN,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
    WRONG_TOKEN_SOURCE,
)
from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.resource import Resource
from fencepost.fencing.token import Token
from fencepost.gateway.claim import claim_on
from fencepost.gateway.core import RETRY_AFTER, Done, Gateway, require_fence, require_key, unavailable
from fencepost.gateway.refusals import problem_of_refused
from fencepost.gateway.scoped import ScopedWrite, claim_the_scope, scope_named, table_or_scope
from fencepost.locks.postgres import Attempted, Overtaken
from fencepost.observe.events import LeaseAsked
from fencepost.storage import reading
from fencepost.storage.catalog import Fence, Table
from fencepost.storage.engine import Connection
from fencepost.storage.errors import OutcomeUnknownError, RefusedError, StorageError, UnavailableError, translated
from fencepost.storage.leases import Acquired, Wanted
from fencepost.storage.marks import in_key_order, known
from fencepost.storage.query import QueryError
from fencepost.storage.scope_marks import marks as scope_marks
from fencepost.storage.scoped import scopes_typed


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


@dataclass(frozen=True, slots=True)
class Granted:
    """A lease, as its holder hears of it."""

    lease: Acquired
    locks: tuple[str, ...]
    claims: Sequence[Done]
    waited_ms: int


Claimed = tuple[Table, Fence, tuple[str, ...]]


class _RefusedClaim(Exception):  # noqa: N818 - it is not an error; it rolls a grant back
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def hashed(secret: str) -> bytes:
    """Hash a lease's secret for storing. It has 128 random bits or more, so it needs neither salt nor stretching."""
    return hashlib.sha256(secret.encode()).digest()


async def acquire(gateway: Gateway, request: Acquire, gone: "asyncio.Future[None]") -> Granted | Problem:
    """Acquire all locks and claim all claims, or nothing. `gone`: the client has hung up, and waits no longer."""
    arrived = asyncio.get_running_loop().time()
    outcome, doubtful = await _attempt(gateway, request, gone)
    if doubtful:
        try:
            await gateway.catalog.begun_after(arrived)
        except UnavailableError as error:
            outcome = _problem_of(error, request)
        else:
            waited_ms = int((asyncio.get_running_loop().time() - arrived) * 1000)
            again = replace(request, wait_ms=max(request.wait_ms - waited_ms, 0))
            outcome, _ = await _attempt(gateway, again, gone)
    if isinstance(outcome, Problem):
        gateway.emit(LeaseAsked("acquire", outcome.name, request.locks, None, request.owner))
        return outcome
    lease = outcome.lease
    tokens = len(lease.tokens) + bool(request.claims) if lease.verdict == "granted" else 0
    gateway.emit(
        LeaseAsked(
            "acquire",
            lease.verdict,
            request.locks,
            lease.lease_id,
            request.owner,
            outcome.waited_ms / 1000,
            tokens,
        )
    )
    if gone.done() and not request.chosen and lease.lease_id is not None:
        # Nobody has heard the secret, so nobody can ever use the lease.
        try:
            await gateway.locks.release(lease.lease_id, hashed(request.secret))
        except StorageError as error:
            return _problem_of(error, request)  # which nobody reads; the lease's time will run out
    return outcome


async def _attempt(gateway: Gateway, request: Acquire, gone: "asyncio.Future[None]") -> tuple[Granted | Problem, bool]:
    """Try once; the bool says that an outdated catalog may be why it failed."""
    claimed = _resolve(gateway, request)
    if isinstance(claimed, Problem):
        return claimed, claimed.type in (UNKNOWN_TABLE, UNPROTECTED_TABLE)
    wanted = Wanted(
        request.locks,
        hashed(request.secret),
        request.owner,
        request.ttl_ms,
        request.tokens,
        tuple(text for text, _ in request.claims),
        request.wait_ms,
        request.keep_place,
        request.chosen,
    )

    async def claim(connection: Connection, token: Token, repeated: bool) -> list[Done]:
        return await _claim_all(connection, claimed, token, repeated=repeated)

    try:
        attempted = await gateway.locks.acquire(wanted, claim if claimed else None, gone)
    except _RefusedClaim as refused:
        return refused.problem, False
    except QueryError as error:
        return bad_request(f"claim: {error}"), False
    except Overtaken:
        return Problem(DATABASE_UNAVAILABLE, _OVERTAKEN, retry_after=RETRY_AFTER), False
    except StorageError as error:
        return _problem_of(error, request), isinstance(error, RefusedError) and error.may_be_outdated and bool(claimed)
    return _granted_or_held(attempted, request), False


_OVERTAKEN = (
    "What the lease was to claim is claimed under other locks all the time: each time a younger token was there first."
)


def _granted_or_held(attempted: Attempted, request: Acquire) -> Granted | Problem:
    acquired = attempted.acquired
    match acquired.verdict:
        case "repeated" if request.owner_given and acquired.owner != request.owner:
            return _mismatch()  # two who use one secret are not one who asks twice
        case "granted" | "repeated":
            claims = attempted.claims if isinstance(attempted.claims, list) else []
            return Granted(acquired, tuple(sorted(request.locks, key=str.encode)), claims, attempted.waited_ms)
        case "held" | "queued":
            return held(acquired)
        case "mismatch":
            return _mismatch()


def _mismatch() -> Problem:
    return bad_request(
        "X-Lease-Secret: this secret is that of a live lease of other locks or claims, or of another owner",
        "Choose a new secret for every lease; repeat one only to repeat the same request.",
    )


def held(acquired: Acquired) -> Problem:
    """Say who is in the way."""
    if acquired.lease_id is None and not acquired.waiting:
        detail = f"{acquired.lock} is being granted to somebody else at this moment."
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
            "lease_id": None if acquired.lease_id is None else str(acquired.lease_id),
            "held_since": acquired.granted_at,
            "held_until": acquired.expires_at,
            "waiting": acquired.waiting,
        },
    )


def _resolve(gateway: Gateway, request: Acquire) -> list[Claimed] | Problem:
    """Find the tables of all claims."""
    claimed = []
    for text, resource in request.claims:
        table = table_or_scope(gateway.catalog.current, resource.table)
        if table is None:
            return Problem(UNKNOWN_TABLE, f"claim: {text}: there is no table {resource.table}.")
        fence = require_fence(table)
        if isinstance(fence, Problem):
            return fence
        scope = scope_named(fence, resource)
        if isinstance(scope, Problem):
            return scope
        try:
            if scope is None:
                require_key(table, resource.key)
        except QueryError as error:
            return bad_request(f"claim: {text}: {error}")
        if scope is None and fence.scope is not None:
            return claim_the_scope(table, resource.key, fence.scope)
        claimed.append((table, fence, resource.key))
    return claimed


async def _claim_all(connection: Connection, claimed: Sequence[Claimed], token: Token, *, repeated: bool) -> list[Done]:
    """Claim by table and typed key, as everybody takes rows (R6), each resource once; answer in the order asked for."""
    one = _reread if repeated else _claim
    done = await _claim_scopes(connection, claimed, token, repeated=repeated)
    by_table: dict[str, list[int]] = {}
    for number, (table, _, _) in enumerate(claimed):
        if number in done:
            continue
        by_table.setdefault(table.name, []).append(number)
    for name in sorted(by_table):
        numbers = by_table[name]
        table, fence, _ = claimed[numbers[0]]
        if len(numbers) == 1:
            order = [(0, "")]
        else:
            with translated(writing=False):
                order = await in_key_order(connection, table, fence, [claimed[number][2] for number in numbers])
        known_as: dict[str, Done] = {}
        for position, resource in order:
            if resource not in known_as:
                known_as[resource] = await one(connection, table, fence, claimed[numbers[position]][2], token)
            done[numbers[position]] = known_as[resource]
    return [done[number] for number in range(len(claimed))]


async def _claim_scopes(
    connection: Connection, claimed: Sequence[Claimed], token: Token, *, repeated: bool
) -> dict[int, Done]:
    """Claim what are scopes among the claims, before all rows and sorted (R6); by their place among the claims."""
    done: dict[int, Done] = {}
    named: list[tuple[str, int, ScopedWrite]] = []
    for number, (table, fence, key) in enumerate(claimed):
        if (scoped := ScopedWrite.of(table, fence, token)) is not None:
            with translated(writing=False):
                names = await scopes_typed(connection, table, scoped.scope, [key])
            named.append((names[0], number, scoped))
    for name, number, scoped in sorted(named, key=lambda each: each[0].encode()):
        if repeated:
            with translated(writing=False):
                found = await scope_marks(connection, scoped.scope, [name])
            done[number] = Done([], max(found[0].mark, token), resource=name, scope=name)
        elif refused := await scoped.enter(connection, [name]):
            await _overtaken_or_refused(connection, scoped.refused(refused[0]), scoped.fence.name, token)
        else:
            done[number] = Done([], token, resource=name, scope=name)
    return done


async def _claim(connection: Connection, table: Table, fence: Fence, key: tuple[str, ...], token: Token) -> Done:
    outcome = await claim_on(connection, table, fence, key, token)
    if isinstance(outcome, Done):
        return outcome
    return await _overtaken_or_refused(connection, outcome, table.name, token)


async def _overtaken_or_refused(connection: Connection, outcome: Problem, name: str, token: Token) -> NoReturn:
    """Roll the grant back: a younger token was there first, or the claim is refused for good."""
    if outcome.type not in (STALE_TOKEN, SPENT_TOKEN):
        raise _RefusedClaim(outcome)
    with translated(writing=False):
        issued: int = await connection.fetchval("SELECT fencepost.issued()")
    if outcome.current_token is not None and outcome.current_token <= issued:
        raise Overtaken
    raise _RefusedClaim(
        Problem(
            WRONG_TOKEN_SOURCE,
            f"{outcome.resource} has the mark {outcome.current_token}, and token {token} was only drawn this moment: "
            f"another source hands out tokens for {name}.",
            hint=f"`fencepost protect {name} --source builtin` pins the table to leases and moves their tokens "
            "past its marks.",
            resource=outcome.resource,
            presented_token=token,
            current_token=outcome.current_token,
        )
    )


async def _reread(connection: Connection, table: Table, fence: Fence, key: tuple[str, ...], token: Token) -> Done:
    """Answer a repeated request: its claims hold already, so what is read now follows the fence."""
    with translated(writing=False):
        found = await known(connection, table, fence, key)
        row = await reading.row(connection, table, key, None)
    mark = max(found.live or 0, found.recorded or 0, token)
    return Done([row.json] if row else [], mark, resource=found.resource)


def _problem_of(error: StorageError, request: Acquire) -> Problem:
    if isinstance(error, RefusedError):
        if error.constraint == "leases_secret_hash_key":  # two requests at once, for different locks
            return _mismatch()
        return problem_of_refused(error)
    if isinstance(error, OutcomeUnknownError):
        return Problem(
            OUTCOME_UNKNOWN,
            f"It is not known whether the lease was granted: {error}",
            hint="Repeat the request with the same X-Lease-Secret: a lease that was granted is found again."
            if request.chosen
            else "Send an X-Lease-Secret of your own, and such a request can be repeated. If this one was granted, "
            "nobody knows its secret: its time runs out.",
            retry_after=RETRY_AFTER,
        )
    if isinstance(error, UnavailableError):
        return unavailable(error)
    return Problem(DATABASE_UNAVAILABLE, f"{error}", retry_after=RETRY_AFTER)
