"""Leases: acquired, renewed, released and looked at; what their tokens are sealed for; elections, which are locks."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from fencepost.server.election import PREFIX, Election, Key, Subscription, election_of, lock_of
from fencepost.server.fence.caller import EVERYBODY, UNKNOWN, Caller
from fencepost.server.fence.problem_types import (
    DATABASE_UNAVAILABLE,
    LEASE_LOST,
    LOCK_FORBIDDEN,
    LOCK_HELD,
    OUTCOME_UNKNOWN,
    SOURCE_UNAVAILABLE,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
)
from fencepost.server.fence.problems import Problem, bad_request, out_of_scope
from fencepost.server.fence.resource import MalformedResourceError, Resource, decode_key, decode_segment, parse_resource
from fencepost.server.fence.seal import Binding
from fencepost.server.fence.token import BUILTIN, Token
from fencepost.server.gateway.claims import RefusedClaim, claim_all, claimable, resolve
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.plan import require_protected
from fencepost.server.gateway.refusals import (
    RETRY_AFTER,
    acting,
    no_such_source,
    problem_of_refused,
    source_problem,
    unavailable,
    with_blocker,
)
from fencepost.server.gateway.write import name_of_key
from fencepost.server.locks.leases import Leases, Overtaken, TakeResult
from fencepost.server.locks.source import SourceError
from fencepost.server.observe.events import LeaseAsked, LeaseVerb
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.errors import (
    OutcomeUnknownError,
    RefusedError,
    StorageError,
    UnavailableError,
)
from fencepost.server.postgres.leases import (
    Acquired,
    EndedBy,
    LeaseId,
    LeaseRow,
    LockRequest,
    LockRow,
    Withdrawn,
    hash_secret,
)
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import encode_name
from fencepost.server.postgres.scopes import scopes_typed
from fencepost.server.postgres.tables import Catalog, ProtectedTable

# What the tokens of a lease are sealed for: the resources that its locks are named after, that it claims, and that the
# request for it listed in `writes`.
#
# A resource has one name, in which PostgreSQL renders it: 07 and 7 are one key of an integer. Claims are bound by that
# name, however they were written; and so is what stands in `writes`, which is kept with the lease in that form. A
# lock's name is bound as it is, and as it is spelled where no more characters are encoded than must be. What it means
# as values of a key is not asked: the lock orders/07 is not for the row orders/7, whose lock another client may have.

MOST_BYTES: Final = 1024
"""Of the names of `writes` of one lease."""
ANY: Final = "*"
"""At the end of an entry of `writes`: all resources whose names begin so."""


async def names_of_writes(gateway: Gateway, writes: Sequence[str]) -> tuple[str, ...] | Problem:
    """Read `writes` of a request for a lease, and give each as it is kept. Raises StorageError, QueryError."""
    if writes and gateway.seals.keys is None:
        return bad_request(
            "body: writes: this gateway seals no tokens, and so they can be used for any resource",
            "An operator gives it keys: FENCEPOST_SEAL_KEYS_FILE. Until then, leave writes out.",
        )
    kept: set[str] = set()
    for text in writes:
        name = await (_prefix if text.endswith(ANY) else _resource)(gateway, text)
        if isinstance(name, Problem):
            return name
        kept.add(name)
    if sum(len(name.encode()) for name in kept) > MOST_BYTES:  # 1e100000 is a short text, and a long name
        return bad_request(f"body: writes: the names have more than {MOST_BYTES} bytes as the database spells them")
    return tuple(sorted(kept, key=str.encode))


async def binding_of(
    gateway: Gateway, source: str, locks: Sequence[str], claims: Sequence[str], writes: Sequence[str], lease: str = ""
) -> Binding:
    """Give what the tokens of a lease are bound to. `lease` is empty before it is granted. Raises StorageError."""
    names = {*locks, *map(_spelled, locks), *(each for each in writes if not each.endswith(ANY))}
    for claim in claims:
        names.add(await _name_of_claim(gateway, claim))
    prefixes = tuple(each.removesuffix(ANY) for each in writes if each.endswith(ANY))
    return Binding(source, lease, frozenset(names), prefixes)


def _spelled(lock: str) -> str:
    """Spell a lock's name as names of resources are: clients may encode more characters than need be."""
    try:
        resource = parse_resource(lock)
    except MalformedResourceError:
        return lock
    return f"{encode_name(resource.table)}/{_encoded(resource.key)}"


def _encoded(key: Sequence[str]) -> str:
    return ",".join(encode_name(value) for value in key)


async def _prefix(gateway: Gateway, text: str) -> str | Problem:
    """Read `table/*` or `table/start*`."""
    table, slash, start = text.removesuffix(ANY).partition("/")
    if not slash or not table:
        return bad_request(
            f"body: writes: {text}: a table (or a scope) and a slash stand before the {ANY}: orders/{ANY}"
        )
    try:
        found = _table_of(gateway.catalog.current, decode_segment(table.encode()), text)
        begin = _encoded(decode_key(start.encode()))
    except MalformedResourceError as error:
        return bad_request(f"body: writes: {error}")
    return found if isinstance(found, Problem) else f"{encode_name(found.prefix)}/{begin}{ANY}"


async def _resource(gateway: Gateway, text: str) -> str | Problem:
    try:
        resource = parse_resource(text)
    except MalformedResourceError as error:
        return bad_request(f"body: writes: {error}")
    found = _table_of(gateway.catalog.current, resource.table, text)
    if isinstance(found, Problem):
        return found
    try:
        return await _name(gateway, found.table, resource)
    except QueryError as error:
        return bad_request(f"body: writes: {text}: {error}")


@dataclass(frozen=True, slots=True)
class _Found:
    """A protected table, and what stands before the slash in the names of its resources."""

    table: ProtectedTable
    prefix: str


def _table_of(catalog: Catalog, name: str, text: str) -> _Found | Problem:
    found = catalog.find_or_scope(name)
    if found is None:
        return Problem(UNKNOWN_TABLE, f"body: writes: {text}: there is no table {name}.")
    table = require_protected(found)
    if isinstance(table, Problem):
        return table
    scope = table.fence.scope
    if scope is None:
        return _Found(table, table.fence.name)
    if scope.prefix == name:
        return _Found(table, name)
    return bad_request(
        f"body: writes: {text}: rows of {table.name} are fenced by their scope: name it instead, {scope.template}",
        f'"writes": ["{encode_name(scope.prefix)}/{ANY}"]',
    )


async def _name_of_claim(gateway: Gateway, text: str) -> str:
    """Give the one name of a claim; as it is, where it names nothing (any more)."""
    resource = parse_resource(text)
    found = _table_of(gateway.catalog.current, resource.table, text)
    if isinstance(found, Problem):
        return text
    try:
        name = await _name(gateway, found.table, resource)
    except QueryError:
        return text
    return text if isinstance(name, Problem) else name


async def _name(gateway: Gateway, table: ProtectedTable, resource: Resource) -> str | Problem:
    """Give the one name of a row, or of a scope. Raises QueryError, StorageError."""
    scope = claimable(table, resource)
    if isinstance(scope, Problem):
        return scope
    if scope is None:
        return await name_of_key(gateway, table, resource.key)
    async with gateway.connection(table) as connection:
        return (await scopes_typed(connection, table, scope, [resource.key]))[0]


# Why an acquire was refused.

_ONE_SECRET: Final = frozenset({"leases_secret_hash_key", "source_leases_secret_hash_key"})


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


def mismatch() -> Problem:
    """Refuse a secret that is taken."""
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


def problem_of(error: StorageError | SourceError, source: str, *, chosen: bool) -> Problem:
    """Return what an error of an acquire means to its client. `chosen`: it chose the secret, and can ask again."""
    if isinstance(error, SourceError):
        return source_problem(error, source)
    if isinstance(error, RefusedError):
        if error.constraint in _ONE_SECRET:  # two requests at once, for different locks
            return mismatch()
        return problem_of_refused(error)
    if isinstance(error, OutcomeUnknownError):
        return Problem(
            OUTCOME_UNKNOWN,
            f"It is not known whether the lease was granted: {error}",
            hint="Repeat the request with the same X-Lease-Secret: a lease that was granted is found again."
            if chosen
            else "Send an X-Lease-Secret of your own, and such a request can be repeated. If this one was granted, "
            "no client knows its secret: its time runs out.",
            retry_after=RETRY_AFTER,
        )
    if isinstance(error, UnavailableError):
        return unavailable(error)
    return Problem(DATABASE_UNAVAILABLE, f"{error}", retry_after=RETRY_AFTER)


# What can be done with a lease once it is there: renew, mint, release, look; and the list of locks.
#
# A lease that is lost, or unknown, or another client's is one answer: 410. A holder that gets it must stop.

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Minted:
    """A lease, and the tokens that were drawn under it. `sealed`: the same with seals, if the gateway has keys."""

    lease: LeaseRow
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


async def inspect(gateway: Gateway, lease_id: LeaseId) -> LeaseRow | Problem:
    """Look at a live lease."""
    locks = gateway.locks_of(lease_id.source)
    if locks is None:
        return _unknown_lease(lease_id)
    lease = await _map_errors(lambda: locks.inspect(lease_id.number), lease_id.source)
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
    found = gateway.locks_of(source)
    if found is None:
        return no_such_source(gateway, source, "query")
    return await _map_errors(lambda: found.states(names, after, limit, gateway.caller.locks), source)


async def _use_lease(
    gateway: Gateway,
    verb: LeaseVerb,
    lease_id: LeaseId,
    ask: Callable[[Leases], Awaitable[LeaseRow | None]],
) -> LeaseRow | Problem:
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


# Acquiring locks, with claims in the same transaction: once granted, the holder before is fenced (R7, R9).

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
    already; or `withdraw` it. Once `gone` is done, `may_ask_again` says whether the caller is let in for that.
    `waits_as`: whose place among those who wait it takes (postgres/pool.py).
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

    async def claim(connection: Session, token: Token, repeated: bool) -> list[Done]:
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
