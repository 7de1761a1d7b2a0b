"""Leases: acquired with claims, renewed, released and looked at; and elections, which are locks.

An acquire is one story: what it claims is found among the tables, the source is asked for the locks, the claims are
made in the transaction of the grant (built-in source) or in one of their own (lock services), and the tokens are
sealed. From the grant on no older holder can write to what is claimed (R7, R9). All of it, or nothing is held.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import unquote

from fencepost.server.fence.caller import ASKING, EVERYBODY, Caller
from fencepost.server.fence.problem_types import (
    DATABASE_UNAVAILABLE,
    LEASE_LOST,
    LOCK_FORBIDDEN,
    LOCK_HELD,
    OUTCOME_UNKNOWN,
    SOURCE_UNAVAILABLE,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
    WRONG_TOKEN_SOURCE,
)
from fencepost.server.fence.problems import Problem, bad_request, out_of_scope
from fencepost.server.fence.resource import Scope, parse_resource
from fencepost.server.fence.seal import Binding
from fencepost.server.fence.token import BUILTIN, EXTERNAL, Token, shown_mark
from fencepost.server.gateway.attempt import claim_row
from fencepost.server.gateway.claims import binding_of, claimable, names_of_writes, refuse_scope, require_storable
from fencepost.server.gateway.election import PREFIX, Election, Key, Subscription, election_of, lock_of
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Doubt, Why
from fencepost.server.gateway.plan import require_protected
from fencepost.server.gateway.refusals import (
    RETRY_AFTER,
    acting,
    no_such_source,
    source_problem,
    unavailable,
    with_blocker,
)
from fencepost.server.gateway.use_cases import problem_of, until_certain
from fencepost.server.gateway.write import enter, refused_scope
from fencepost.server.locks.leases import Leases, Overtaken
from fencepost.server.locks.source import SourceError
from fencepost.server.observe.events import LeaseAsked, LeaseVerb
from fencepost.server.postgres import reading
from fencepost.server.postgres.connection import Key as RowKey
from fencepost.server.postgres.connection import RowWrite, Session
from fencepost.server.postgres.database import as_caller, users_code
from fencepost.server.postgres.errors import RefusedError, StorageError, UnavailableError
from fencepost.server.postgres.leases import (
    EndedBy,
    Granted,
    Held,
    LeaseId,
    LeaseRow,
    LockRequest,
    LockRow,
    Mismatch,
    Withdrawn,
    hash_secret,
)
from fencepost.server.postgres.marks import in_key_order, read_resource
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import issued_by
from fencepost.server.postgres.scopes import marks as scope_marks
from fencepost.server.postgres.scopes import scopes_typed
from fencepost.server.postgres.tables import Catalog, ProtectedTable, Table

T = TypeVar("T")

_OVERTAKEN: Final = (
    "What the lease was to claim is claimed under other locks all the time: each time a younger token was there first."
)
_ONE_SECRET: Final = frozenset({"leases_secret_hash_key", "source_leases_secret_hash_key"})


async def acquire_lease(
    gateway: Gateway,
    wanted: LockRequest,
    gone: "asyncio.Future[None]",
    may_ask_again: Callable[[], bool] = lambda: True,
) -> Granted | Problem:
    """Acquire all locks and claim all claims, or nothing.

    `gone`: the client has hung up, or its credential is good no longer. It waits no longer, and what it is granted is
    given back, unless it chose the secret: with that it can ask again, on another connection, and may have done so
    already; or `withdraw` it. Once `gone` is done, `may_ask_again` says whether the caller is let in for that.
    """
    wanted = replace(wanted, caller=gateway.caller)
    if wanted.claims and "write" not in gateway.caller.access:
        return out_of_scope(gateway.caller, "write")
    with gateway.waiters.place(ASKING.get()) if wanted.wait_ms else nullcontext() as full:
        if full is not None:
            too_many = f"no more requests may wait for locks at this gateway: there are {full}"
            outcome: Granted | Problem = unavailable(UnavailableError(too_many))
        else:
            outcome = await _in_time(gateway, wanted, gone)
        if isinstance(outcome, Problem):
            if outcome.type is LOCK_HELD and gone.done():  # it may be free: nobody was left to ask for
                outcome = nothing_held()
            outcome = await with_blocker(gateway, None, outcome)
            gateway.emit(LeaseAsked("acquire", outcome.name, wanted.names, None, wanted.owner))
            gateway.report_if_forbidden(outcome)
            return outcome
        lease, waited = outcome.lease, outcome.waited_ms / 1000
        tokens = len(lease.tokens) + bool(wanted.claims) if outcome.verdict == "granted" else 0
        gateway.emit(LeaseAsked("acquire", outcome.verdict, wanted.names, lease.id, wanted.owner, waited, tokens))
        if not gone.done():
            return outcome
        return await release_for_nobody(gateway, wanted, outcome, can_be_used=wanted.chosen and may_ask_again())


async def _in_time(gateway: Gateway, wanted: LockRequest, gone: "asyncio.Future[None]") -> Granted | Problem:
    """Acquire while the caller's credential lasts; once more where the picture of the tables was outdated."""
    if (forbidden := forbidden_lock(gateway.caller, wanted.names)) is not None:
        return forbidden
    arrived = asyncio.get_running_loop().time()
    if gateway.caller.ends is not None:
        wanted = replace(wanted, wait_ms=int(gateway.caller.within(wanted.wait_ms / 1000, arrived) * 1000))

    async def once_more() -> tuple[Granted | Problem, Sequence[Doubt]]:
        waited_ms = int((asyncio.get_running_loop().time() - arrived) * 1000)
        return await _once(gateway, replace(wanted, wait_ms=max(wanted.wait_ms - waited_ms, 0)), gone)

    outcome, doubts = await _once(gateway, wanted, gone)
    return await until_certain(gateway, outcome, doubts, once_more) if doubts else outcome


async def _once(
    gateway: Gateway, wanted: LockRequest, gone: "asyncio.Future[None]"
) -> tuple[Granted | Problem, Sequence[Doubt]]:
    """Acquire with the tables as they are known; and give what of that may be outdated, and why it failed."""
    of_tables = [unquote(each.partition("/")[0]) for each in (*wanted.claims, *wanted.writes)]
    return await tried(gateway, wanted, of_tables, _acquire(gateway, wanted, gone))


async def tried(
    gateway: Gateway, wanted: LockRequest, of_tables: Sequence[str], work: Coroutine[Any, Any, T | Problem]
) -> tuple[T | Problem, Sequence[Doubt]]:
    """Do what grants leases, once, as a caller who may act as its role; `of_tables`: whose pictures it uses, by name.
    Give the problem that an error is, and what of the pictures may be outdated.
    """
    catalog = gateway.catalog.current
    why: Why | None = None
    try:
        outcome = await (acting(gateway, work) if of_tables and gateway.caller.role is not None else work)
    except RefusedClaim as refused:
        outcome = refused.problem
    except Overtaken:
        outcome = Problem(DATABASE_UNAVAILABLE, _OVERTAKEN, retry_after=RETRY_AFTER)
    except Withdrawn:
        outcome = withdrawn()
    except (QueryError, StorageError, SourceError) as error:
        outcome, why = _problem_of(error, wanted.source, asked=wanted)
    else:
        if not isinstance(outcome, Problem):
            return outcome, ()
        why = "catalog" if outcome.type in (UNKNOWN_TABLE, UNPROTECTED_TABLE) else None
    if why is None:
        return outcome, ()
    names = dict.fromkeys(of_tables)
    found = [(name, table) for name in names for table in catalog.scopes.get(name) or (catalog.find(name),)]
    return outcome, [Doubt(each.name if each else name, each, why) for name, each in found] or [Doubt("", None, why)]


async def _acquire(gateway: Gateway, wanted: LockRequest, gone: "asyncio.Future[None]") -> Granted | Problem:
    """Read what is to be claimed, and what the tokens are for; ask for the locks, and claim; seal the tokens. Nothing
    is read after the grant: it could fail then.
    """
    locks = _leases_of(gateway, wanted.source)
    if locks is None:
        return no_such_source(gateway, wanted.source, "body")
    if wanted.source != BUILTIN and len(wanted.names) > 1:
        return bad_request(f"body: locks: {wanted.source} locks one name at a time; builtin takes several")
    writes = await names_of_writes(gateway, wanted.writes) if wanted.writes else ()
    if isinstance(writes, Problem):
        return writes
    claimed = _plan_claims(gateway.catalog.current, wanted.claims, wanted.source)
    if isinstance(claimed, Problem):
        return claimed
    binding = None
    if gateway.seals.keys is not None:
        binding = await binding_of(gateway, wanted.source, wanted.names, wanted.claims, writes)
    claim = partial(_claim_all, gateway, claimed, wanted.source) if claimed else None
    match await locks.take(replace(wanted, writes=writes), claim, gone):
        case Granted(lease=lease, verdict="repeated") if wanted.owner_given and lease.owner != wanted.owner:
            return mismatch()  # two who use one secret are not one who asks twice
        case Granted(lease=lease) as granted if binding is not None:
            return replace(granted, lease=sealed(gateway, lease, replace(binding, lease=lease.id)))
        case Granted() as granted:
            return granted
        case Held() as held:
            return _lock_held(held, wanted.source)
        case Mismatch():
            return mismatch()


def _leases_of(gateway: Gateway, source: str) -> Leases | None:
    """Find whose leases those of a source are; None: it is not configured here."""
    return gateway.locks if source == BUILTIN else gateway.sources.get(source)


def sealed(gateway: Gateway, lease: LeaseRow, binding: Binding) -> LeaseRow:
    """Seal the tokens of a lease."""
    return replace(lease, sealed=tuple(gateway.seals.seal(lease.tokens, binding)))


async def release_for_nobody(
    gateway: Gateway, wanted: LockRequest, granted: Granted, *, can_be_used: bool
) -> Granted | Problem:
    """Release what no client will use: none has the secret, or the client that has it is let in no more, or has
    withdrawn while the claims waited for a row.
    """
    locks = _leases_of(gateway, wanted.source)
    try:
        if can_be_used and not await gateway.locks.is_withdrawn(wanted.secret_hash):
            return granted
        if locks is not None:
            await locks.release(granted.lease.lease_id, wanted.secret_hash)
    except (StorageError, SourceError) as error:
        return _problem_of(error, wanted.source, asked=wanted)[0]  # the lease's time will run out
    return nothing_held()


# The claims of a lease: all of them, or the lease is not granted.


class RefusedClaim(Exception):  # noqa: N818 - it is not an error; it rolls a grant back
    """A claim was refused for good, and with it the lease."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ClaimTarget:
    """What a lease is to claim: the row with a key, or the scope with these values."""

    table: ProtectedTable
    key: RowKey
    scope: Scope | None = None
    sharing: Sequence[Table] = ()
    """The tables of the scope."""


def _plan_claims(catalog: Catalog, claims: Sequence[str], source: str) -> list[ClaimTarget] | Problem:
    """Find the tables of all claims, which take tokens of this source, or of any."""
    claimed = []
    for text in claims:
        resource = parse_resource(text)
        found = catalog.find_or_scope(resource.table)
        if found is None:
            return Problem(UNKNOWN_TABLE, f"claim: {text}: there is no table {resource.table}.")
        table = found if isinstance(found, ProtectedTable) else require_protected(found)
        if isinstance(table, Problem):
            return table
        fence = table.fence
        if fence.source not in (EXTERNAL, source):
            return Problem(
                WRONG_TOKEN_SOURCE,
                f"claim: {text}: {table.name} takes tokens of {fence.source}, and this lease is one of {source}.",
                hint=f'Acquire with "source": "{fence.source}".'
                if fence.queue is None
                else "The order of its writes is that of the queue: they need no lease.",
                resource=text,
            )
        if fence.scope is None and len(resource.key) == len(table.key):
            claimed.append(ClaimTarget(table, resource.key))
            continue
        try:
            scope = claimable(table, resource)
        except QueryError as error:
            return bad_request(f"claim: {text}: {error}")
        if isinstance(scope, Problem):
            return scope
        sharing = catalog.scopes[scope.prefix] if scope is not None else ()
        claimed.append(ClaimTarget(table, resource.key, scope, sharing))
    return claimed


async def _claim_all(
    gateway: Gateway,
    claimed: Sequence[ClaimTarget],
    source: str,
    connection: Session,
    token: Token,
    repeated: bool,
) -> list[Done]:
    """Claim by table and typed key, as everybody takes rows (R20): scopes first and sorted, then rows, each resource
    once; answer in the order asked for. What is read and raised on users' tables, is as the caller, in the grant's
    transaction, whose other statements are the gateway's. `repeated`: all is claimed already.
    """
    caller, most_bytes = gateway.caller, gateway.max_answer_bytes
    one, left = (reread if repeated else _claim), most_bytes

    def of_users(*tables: Table) -> AbstractAsyncContextManager[None]:
        runs = any(table.runs_code for table in tables)
        return users_code(connection, caller, runs=True, local=True) if runs else nullcontext()

    async with as_caller(connection, caller) if caller.role is not None else nullcontext():
        async with of_users(*(table for each in claimed for table in each.sharing)):
            done = await _claim_scopes(connection, caller, claimed, token, source, repeated=repeated)
        by_table: dict[str, list[int]] = {}
        for number, each in enumerate(claimed):
            if number not in done:
                by_table.setdefault(each.table.name, []).append(number)
        for _, numbers in sorted(by_table.items()):
            table, order = claimed[numbers[0]].table, [(0, "")]
            if len(numbers) > 1:
                order = await in_key_order(connection, table, [claimed[number].key for number in numbers])
            known_as: dict[str, Done] = {}
            for position, resource in order:
                if resource not in known_as:
                    key = claimed[numbers[position]].key
                    async with of_users(table):
                        known_as[resource] = await one(connection, table, key, token, source, most_bytes)
                done[numbers[position]] = known_as[resource]
                left -= sum(len(row.encode()) for row in known_as[resource].rows)
                if left < 0:
                    raise RefusedClaim(too_large(most_bytes))
    return [done[number] for number in range(len(claimed))]


async def _claim_scopes(
    connection: Session,
    caller: Caller,
    claimed: Sequence[ClaimTarget],
    token: Token,
    source: str,
    *,
    repeated: bool,
) -> dict[int, Done]:
    """Claim what are scopes among the claims, before all rows and sorted (R20); by their place among the claims."""
    done: dict[int, Done] = {}
    named: list[tuple[str, int, Scope]] = []
    for number, each in enumerate(claimed):
        if each.scope is not None:
            names = await scopes_typed(connection, each.table, each.scope, [each.key])
            if not repeated:
                await require_storable(connection, each.sharing, each.key)
            named.append((names[0], number, each.scope))
    for name, number, scope in sorted(named, key=lambda each: each[0].encode()):
        table = claimed[number].table
        if repeated:
            found = await scope_marks(connection, scope, [name])
            known = max(found[0].mark, token)
            mark = known if shown_mark(claimed[number].table.fence.rule, known) is not None else token
            done[number] = Done([], mark, resource=name, scope=name)
        elif refused := await enter(connection, table, scope, [name], token):
            problem = refused_scope(table, refused[0], token)
            await roll_back(connection, problem, table, token, source)
        else:
            done[number] = Done([], token, resource=name, scope=name)
        sharing = claimed[number].sharing
        if hidden := await refuse_scope(connection, caller, scope, sharing, name, writing=True):
            raise RefusedClaim(hidden)
    return done


async def _claim(
    connection: Session, table: ProtectedTable, key: RowKey, token: Token, source: str, most_bytes: int
) -> Done:
    outcome = await claim_row(connection, table, RowWrite(key, token), most_bytes)
    if isinstance(outcome, Done):
        return outcome
    return await roll_back(connection, outcome, table, token, source)


async def roll_back(
    connection: Session, outcome: Problem, table: ProtectedTable, token: Token, source: str
) -> NoReturn:
    """Roll the grant back: a younger token was there first, or the claim is refused for good."""
    if outcome.type not in (STALE_TOKEN, SPENT_TOKEN):
        raise RefusedClaim(outcome)
    issued: int = await connection.fetchval(f"SELECT {issued_by(source)}")
    if outcome.current_token is not None and outcome.current_token <= issued:
        raise Overtaken
    name = table.fence.name
    has = f"the mark {outcome.current_token}" if outcome.shows_mark else "a mark"
    raise RefusedClaim(
        Problem(
            WRONG_TOKEN_SOURCE,
            f"{outcome.resource} has {has}, and token {token} was only drawn this moment: "
            f"another source hands out tokens for {name}.",
            hint=f"`fencepost protect {name} --source {source}` pins the table to these leases.",
            resource=outcome.resource,
            presented_token=token,
            current_token=outcome.current_token,
            shows_mark=outcome.shows_mark,
        )
    )


async def reread(
    connection: Session, table: ProtectedTable, key: RowKey, token: Token, _source: str, most_bytes: int
) -> Done:
    """Answer a repeated request: its claims hold already, so what is read now follows the fence."""
    found = await read_resource(connection, table, key)
    try:
        row = await reading.row(connection, table, key, None, most_bytes)
    except reading.TooManyBytesError as error:
        raise RefusedClaim(too_large(most_bytes)) from error
    known = max(found.live or 0, found.recorded or 0, token)
    mark = known if shown_mark(table.fence.rule, known) is not None else token
    return Done([row.json] if row else [], mark, resource=found.resource)


def too_large(most_bytes: int) -> Problem:
    """Refuse an answer that is too large."""
    return bad_request(
        f"claim: The rows have more than {most_bytes} bytes.",
        "Claim fewer rows with a lease; FENCEPOST_MAX_ANSWER_BYTES.",
    )


# Why it was refused.


def forbidden_lock(caller: Caller, names: Sequence[str]) -> Problem | None:
    """Refuse locks that are not for this caller."""
    name = None if caller.locks is None else next((name for name in names if not caller.may_lock(name)), None)
    if name is None or caller.locks is None:
        return None
    return Problem(
        LOCK_FORBIDDEN,
        f"The lock {name!r:.120} is not for {caller.name}.",
        hint=f"The caller's token or key has these patterns: {', '.join(caller.locks) or 'none'}.",
        extra={"lock": name},
    )


def mismatch() -> Problem:
    """Refuse a secret that is taken."""
    return bad_request(
        "X-Lease-Secret: this secret is that of a live lease of other locks, claims or writes, or of another owner",
        "Choose a new secret for every lease; repeat one only to repeat the same request.",
    )


def _lock_held(held: Held, source: str) -> Problem:
    """Return who is in the way."""
    if source != BUILTIN:
        by = "another client" if held.owner is None else held.owner
        detail = f"{held.lock} is held by {by}, according to {source}."
    elif held.lease_id is None and not held.waiting:
        detail = f"{held.lock} is being granted to another client at this moment."
    elif held.lease_id is None:
        detail = f"{held.lock} is free, and {held.waiting} others have been waiting for it."
    else:
        detail = f"{held.owner} has held {held.lock} since {held.granted_at}."
    return Problem(
        LOCK_HELD,
        detail,
        hint="Wait with wait_ms, or try again after Retry-After.",
        retry_after=max(-(-(held.due_ms or 0) // 1000), 1),
        extra={
            "lock": held.lock,
            "holder": held.owner,
            "source": source,
            "lease_id": None if held.lease_id is None else str(held.lease_id),
            "held_since": held.granted_at,
            "held_until": held.expires_at,
            "waiting": held.waiting,
        },
    )


def nothing_held() -> Problem:
    """Say that nothing was granted, to a client that may still read."""
    return bad_request(
        "The client closed its half of the connection before the lock was granted: nothing is held.",
        "Close it after the answer.",
    )


def withdrawn() -> Problem:
    """Refuse a secret whose acquire was withdrawn."""
    return bad_request(
        "X-Lease-Secret: the acquire with this secret was withdrawn (DELETE /v1/leases): it is granted nothing.",
        "Choose a new secret for every lease.",
    )


def _problem_of(
    error: QueryError | StorageError | SourceError, source: str, asked: LockRequest | None = None
) -> tuple[Problem, Why | None]:
    """Give an error as a problem, and what of the gateway's may be outdated, so that another try may do. `asked`: what
    an acquire asked for; None: it was asked of a lease that is there.
    """
    if isinstance(error, SourceError):
        return source_problem(error, source), None
    if isinstance(error, QueryError):
        if asked is not None and not asked.names:
            return bad_request(f"next: {error}"), problem_of(error, None)[1]
        return bad_request(f"claim: {error}"), None
    if isinstance(error, RefusedError) and error.constraint in _ONE_SECRET:  # two requests at once, for different locks
        return mismatch(), None
    problem, why = problem_of(error, None)
    if problem.type is not OUTCOME_UNKNOWN:
        return problem, why
    what = "the lease was granted"
    if asked is None:
        what = "this was done"
        hint = "Repeat the request: renewing and releasing twice is harmless, and tokens that got lost are never used."
    elif asked.chosen:
        hint = "Repeat the request with the same X-Lease-Secret: a lease that was granted is found again."
    else:
        hint = (
            "Send an X-Lease-Secret of your own, and such a request can be repeated. If this one was granted, no client"
            " knows its secret: its time runs out."
        )
    return replace(problem, detail=f"It is not known whether {what}: {error}", hint=hint), None


# What can be done with a lease once it is there: renew, mint, release, look; and the list of locks.
#
# A lease that is lost, or unknown, or another client's is one answer: 410. A holder that gets it must stop.

_HOW_ENDED: Final[Mapping[EndedBy | None, str]] = {
    None: "expired",
    "holder": "was released",
    "operator": "was ended in its holder's place by an operator",
    "generation": "was ended by raising the generation",
    "service": "was lost at the lock service",
}


async def renew(gateway: Gateway, lease_id: LeaseId, secret: str, ttl_ms: int | None) -> LeaseRow | Problem:
    """Keep a lease alive, from now on for ttl_ms, or for as long as before."""
    hashed = hash_secret(secret, gateway.caller)
    return await _use_lease(gateway, "renew", lease_id, lambda locks: locks.renew(lease_id.number, hashed, ttl_ms))


async def mint(gateway: Gateway, lease_id: LeaseId, secret: str, count: int) -> LeaseRow | Problem:
    """Draw more tokens under a lease, and seal them."""
    hashed = hash_secret(secret, gateway.caller)
    lease = await _use_lease(gateway, "mint", lease_id, lambda locks: locks.mint(lease_id.number, hashed, count))
    if isinstance(lease, Problem) or gateway.seals.keys is None:
        return lease

    async def bind() -> Binding | Problem:
        work = binding_of(gateway, lease_id.source, lease.names, lease.claims, lease.writes, lease_id)
        return await (acting(gateway, work) if lease.claims else work)

    binding = await _answered(bind, lease_id.source)
    # Tokens that get no seal are never used.
    return binding if isinstance(binding, Problem) else sealed(gateway, lease, binding)


async def release(gateway: Gateway, lease_id: LeaseId, secret: str) -> Problem | None:
    """Give the locks back. Harmless when the lease is over already."""
    locks = _leases_of(gateway, lease_id.source)
    if locks is None:  # no such source, no such lease
        return None
    hashed = hash_secret(secret, gateway.caller)
    over = await _answered(lambda: locks.release(lease_id.number, hashed), lease_id.source)
    if isinstance(over, Problem):
        return over
    gateway.emit(LeaseAsked("release", "done" if over else LEASE_LOST.code or "", (), lease_id))
    if over:
        return None
    if gateway.caller.locks is not None and isinstance(await inspect(gateway, lease_id), Problem):
        return None  # a lease that the caller may not see is answered as one that is not there
    return Problem(
        LEASE_LOST,
        f"Lease {lease_id} is held, and X-Lease-Secret is not that of its holder.",
        extra={"lease_id": lease_id},
    )


async def withdraw(gateway: Gateway, secret: str) -> Problem | None:
    """Withdraw an acquire whose answer is not known: its lease is released, its place in a queue is free, and no
    request that is under way with the secret is granted anything any more.
    """
    hashed = hash_secret(secret, gateway.caller)
    found = await _answered(lambda: gateway.locks.withdraw(hashed), BUILTIN)
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
    if _leases_of(gateway, lease.source) is not None:
        return None
    detail = f"This gateway does not have the source {lease.source}, of which the secret has the lease {lease}."
    hint = (
        "No other lease is granted under the secret any more. Ask a gateway that has the source, to release this one."
    )
    return Problem(SOURCE_UNAVAILABLE, detail, hint=hint, retry_after=RETRY_AFTER, extra={"source": lease.source})


async def inspect(gateway: Gateway, lease_id: LeaseId) -> LeaseRow | Problem:
    """Look at a live lease."""
    locks = _leases_of(gateway, lease_id.source)
    if locks is None:
        return _unknown_lease(lease_id)
    lease = await _answered(lambda: locks.inspect(lease_id.number), lease_id.source)
    if isinstance(lease, LeaseRow) and forbidden_lock(gateway.caller, lease.names) is not None:
        return _unknown_lease(lease_id)
    return await _explain_loss(gateway, lease_id) if lease is None else lease


async def locks(
    gateway: Gateway, source: str, names: Sequence[str] | None, after: str | None, limit: int
) -> list[LockRow] | Problem:
    """List the locks of a source that are held or waited for, and that the caller may see: those of these names, or
    all.
    """
    if (forbidden := forbidden_lock(gateway.caller, names or ())) is not None:
        gateway.report_if_forbidden(forbidden)
        return forbidden
    found = _leases_of(gateway, source)
    if found is None:
        return no_such_source(gateway, source, "query")
    return await _answered(lambda: found.states(names, after, limit, gateway.caller.locks), source)


async def _use_lease(
    gateway: Gateway,
    verb: LeaseVerb,
    lease_id: LeaseId,
    ask: Callable[[Leases], Awaitable[LeaseRow | None]],
) -> LeaseRow | Problem:
    locks = _leases_of(gateway, lease_id.source)
    if locks is None:
        return _unknown_lease(lease_id)
    if gateway.caller.locks is not None:  # its patterns may be others than when it acquired the lease
        seen = await inspect(gateway, lease_id)
        if isinstance(seen, Problem):
            gateway.emit(LeaseAsked(verb, seen.name, (), lease_id))
            return seen
    found = await _answered(lambda: ask(locks), lease_id.source)
    answer = await _explain_loss(gateway, lease_id) if found is None else found
    if isinstance(answer, Problem):
        gateway.emit(LeaseAsked(verb, answer.name, (), lease_id))
    else:
        gateway.emit(LeaseAsked(verb, "done", answer.names, lease_id, answer.owner, tokens=len(answer.tokens)))
    return answer


async def _answered(ask: Callable[[], Awaitable[T]], source: str) -> T | Problem:
    try:
        return await ask()
    except (StorageError, SourceError) as error:
        return _problem_of(error, source)[0]


def _unknown_lease(lease_id: LeaseId) -> Problem:
    return Problem(
        LEASE_LOST,
        f"Lease {lease_id} is unknown, or X-Lease-Secret is not its own.",
        extra={"lease_id": lease_id},
    )


async def _explain_loss(gateway: Gateway, lease_id: LeaseId) -> Problem:
    """Return what is known of a lease that is not held, or not with this secret."""
    extra: dict[str, object] = {"lease_id": lease_id}
    try:
        locks = _leases_of(gateway, lease_id.source)
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


# Observing elections: who leads now, and every change of it.

PAGE = 1000


async def observe(gateway: Gateway, source: str, name: str) -> Election | Problem:
    """Show how an election stands."""
    return (await _look(gateway, [(source, name)]))[source, name]


async def _look(gateway: Gateway, asked: Sequence[Key]) -> Mapping[Key, Election | Problem]:
    """Look how elections stand: one question for all of a source."""
    found: dict[Key, Election | Problem] = {}
    for source in {source for source, _ in asked}:
        names = [name for of, name in asked if of == source]
        states = await locks(gateway, source, [lock_of(name) for name in names], None, len(names))
        if isinstance(states, Problem):
            found |= dict.fromkeys([(source, name) for name in names], states)
            continue
        found |= {(source, name): Election(name, source) for name in names}
        elections_found = (election_of(source, state) for state in states)
        found |= {(source, each.name): each for each in elections_found if each is not None}
    return found


async def elections(gateway: Gateway, source: str, after: str, limit: int) -> list[Election] | Problem:
    """List the elections of a source that have a leader, by name; only names after that one, at most so many."""
    led: list[Election] = []
    position = lock_of(after)
    while True:
        found = await locks(gateway, source, None, position, PAGE)
        if isinstance(found, Problem):
            return found
        for state in found:
            election = election_of(source, state)
            if election is None and not state.name.startswith(PREFIX):
                return led  # names come in order: those of elections are through
            if election is not None and election.leader is not None:
                led.append(election)
                if len(led) == limit:
                    return led
            position = state.name
        if len(found) < PAGE:
            return led


@asynccontextmanager
async def watch_election(
    gateway: Gateway, source: str, name: str, caller: str
) -> AsyncIterator[Subscription | Problem]:
    """Watch an election until the block ends. A Problem: the caller may not see it."""
    if (forbidden := forbidden_lock(gateway.caller, [lock_of(name)])) is not None:
        gateway.report_if_forbidden(forbidden)
        yield forbidden
        return
    everybody = gateway.of(EVERYBODY)  # one question is asked for all who watch, whatever each of them may see

    async def look(asked: Sequence[Key]) -> Mapping[Key, Election | Problem]:
        return await _look(everybody, asked)

    async with gateway.watches.subscribe((source, name), look, caller) as subscription:
        yield subscription
