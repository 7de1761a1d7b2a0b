"""The next row of a table that no request has taken: found, locked, claimed and counted in one transaction.

Requests that ask the same (table, filters, order, caller) at the same time share that transaction (gateway/takers.py).

1. It finds and locks rows as the caller, passing by what another transaction has locked or a lease holds; acquires the
   lock of each, named as the row is; and claims the rows with the tokens of the grants. It waits for nobody: what is
   busy is passed by, and the next rows are looked for.
2. A row of a worker that died is passed by for as long as its lease lives; then the row is found again, under a higher
   token. What the dead one still sends is refused by the row's mark.
3. How often a row was taken is known from its mark (acquire.sql): it is counted in the grant's own transaction.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fencepost.server.fence.caller import ASKING, EVERYBODY, UNKNOWN, Caller, likes
from fencepost.server.fence.problem_types import (
    DATABASE_UNAVAILABLE,
    UNKNOWN_TABLE,
    WRONG_TOKEN_SOURCE,
)
from fencepost.server.fence.problems import Problem, bad_request, out_of_scope
from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.token import BUILTIN, EXTERNAL
from fencepost.server.gateway import leases
from fencepost.server.gateway.attempt import claim_row, claim_rows, put_aside
from fencepost.server.gateway.claims import binding_of, names_of_writes
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done, Doubt
from fencepost.server.gateway.plan import not_with_queue, require_protected
from fencepost.server.gateway.refusals import RETRY_AFTER, unavailable, with_blocker
from fencepost.server.gateway.takers import Found, LineForRows, Sought, TakenRow, Taker, first_of
from fencepost.server.gateway.use_cases import problem_of, until_certain
from fencepost.server.locks.builtin import OVERTAKEN
from fencepost.server.locks.leases import Overtaken
from fencepost.server.observe.events import LeaseAsked, RowPutAside
from fencepost.server.postgres import leases as statements
from fencepost.server.postgres import next_rows, reading
from fencepost.server.postgres.connection import RowWrite, Session, Statement
from fencepost.server.postgres.database import as_caller, in_transaction, run_write, savepoint, users_code
from fencepost.server.postgres.errors import RefusedError, StorageError, UnavailableError
from fencepost.server.postgres.leases import Granted, LockRequest, Mismatch, Withdrawn
from fencepost.server.postgres.next_rows import Look, NextRow
from fencepost.server.postgres.query import Filter, OrderTerm, Query
from fencepost.server.postgres.tables import ProtectedTable, Table

LONGEST_LOCK: Final = 512
"""Bytes of a lock's name, and so of that of a row that can be taken."""


@dataclass(frozen=True, slots=True)
class Next:
    """What a request asks for: `limit` rows, at most, of a table."""

    table: str
    where: tuple[Filter, ...] = ()
    order: tuple[OrderTerm, ...] = ()
    limit: int = 1


# One look: a transaction, in which rows are found, granted and claimed.

UNFIT: Final = frozenset({"22", "23"})
"""Classes of SQLSTATEs of a value that a column cannot have."""
_OF_ALL: Final = frozenset({"25", "40", "42", "53", "55", "57", "58", "XX"})
"""Classes of SQLSTATEs that say nothing of a row."""
PRIVILEGE: Final = "42501"
"""The SQLSTATE of a policy that refuses a row, too."""
_ON_EXHAUSTED: Final = "`protect --on-exhausted` says how rows are put aside."
NOTED_EVERY: Final = 86_400.0
"""Seconds between two notes of a question for `doctor`."""
MOST_NOTED: Final = 1000
"""Questions of which a process knows that it has noted them."""
ROUNDS: Final = 10
"""How often one look passes by what was busy, or put aside, and looks for the next rows."""


def fitting(found: Table | None, name: str) -> ProtectedTable | Problem:
    """Give a table whose rows can be taken, or say why they cannot."""
    if found is None:
        return Problem(UNKNOWN_TABLE, f"next: there is no table {name}.")
    table = require_protected(found)
    if isinstance(table, Problem):
        return table
    fence = table.fence
    if fence.queue is not None:
        return not_with_queue(fence, "the claim of the next row")
    if fence.scope is not None:
        return bad_request(
            f"next: the rows of {fence.name} have the mark of their scope, {fence.scope.template}, and no locks of"
            " their own"
        )
    if fence.source not in (EXTERNAL, BUILTIN):
        return Problem(
            WRONG_TOKEN_SOURCE,
            f"next: {fence.name} takes tokens of {fence.source}, and the next row is granted with those of {BUILTIN}.",
            hint=f"`fencepost protect {fence.name} --source {BUILTIN}` has it take these.",
        )
    return table


@dataclass(slots=True)
class _Looking:
    """The looks for one line, as its caller."""

    gateway: Gateway
    line: LineForRows

    async def run(self) -> None:
        """Look until nobody stands in line any more."""
        line = self.line
        ASKING.set(UNKNOWN)  # it is for all of them
        try:
            await self._look_on()
        finally:
            del self.gateway.next_rows.lines[line.question]  # before anything is awaited: who comes now has another
            line.fail(RuntimeError("the line for the next row has failed"))
        if line.watched > -math.inf:
            with suppress(StorageError):  # it counts for a few seconds only
                await self._note(lambda session: next_rows.unwatch(session, line.id))

    async def _look_on(self) -> None:
        line, clock = self.line, self.gateway.times.clock
        while present := line.remaining():
            if self.gateway.next_rows.stopping:
                line.fail(UnavailableError("this gateway is stopping"))
                return
            line.woken.clear()
            looking = first_of(present)
            try:
                table = self._table()
                await self._watch(table)
                served = await self._look(table, looking)
            except Exception as error:  # noqa: BLE001 - those that stand in line get it
                passing = isinstance(error, UnavailableError)
                for taker in present:
                    if not (passing and taker.deadline > clock.monotonic()) and not taker.answer.done():
                        taker.answer.set_exception(error)
            else:
                await self._answer(looking, served)
                await self._note_question(table)
                if served.more:
                    continue
                for taker in present:  # nothing is left for those behind either
                    if taker.deadline <= clock.monotonic() and not taker.answer.done():
                        taker.answer.set_result([])
            if line.remaining():
                await line.sleep()

    def _table(self) -> ProtectedTable:
        question = self.line.question
        found = fitting(self.gateway.catalog.current.find(question.table), question.table)
        if isinstance(found, Problem):
            raise leases.RefusedClaim(found)
        self.line.oid = found.oid
        return found

    async def _watch(self, table: ProtectedTable) -> None:
        """Note that somebody waits, so that who writes to the table says so; before the look, which would miss what is
        committed in between.
        """
        now, line = self.gateway.times.clock.monotonic(), self.line
        waits = any(each.deadline > now for each in line.standing)
        if table.fence.work and waits and now >= line.watched + self.gateway.times.queue.beat_every:
            await self._note(lambda session: next_rows.watch(session, table.oid, line.id))
            line.watched = now

    async def _note_question(self, table: ProtectedTable) -> None:
        """Note for `doctor` how rows are asked for, once a day in this process."""
        question, noted, now = self.line.question, self.gateway.next_rows.noted, self.gateway.times.clock.monotonic()
        asked = table.kept(next_rows.shape, question.where, question.order)
        if asked is None or now < noted.get((table.oid, asked), -math.inf) + NOTED_EVERY:
            return
        if len(noted) >= MOST_NOTED:
            noted.clear()
        noted[table.oid, asked] = now
        with suppress(StorageError):  # then another process notes it, or this one tomorrow
            await self._note(lambda session: next_rows.note_question(session, table.oid, asked))

    async def _note(self, statement: Callable[[Session], Awaitable[None]]) -> None:
        await run_write(self.gateway.database.for_leases, statement, repeatable=True)

    async def _look(self, table: ProtectedTable, looking: Sequence[Taker]) -> Found:
        """Find, grant and claim; again where a younger token got ahead, and row by row where one was refused. Raises
        Overtaken, too, and RefusedClaim.
        """
        careful = False

        async def once(session: Session) -> Found:
            began = self.gateway.times.clock.monotonic()
            transaction = _Transaction(session, self.gateway, self.line.question, table, looking, began, careful)
            return await in_transaction(session, transaction.run)

        for _ in range(OVERTAKEN - 1):
            try:
                return await run_write(self.gateway.database.for_grants, once)
            except Overtaken:
                pass
            except (RefusedError, leases.RefusedClaim) as error:
                if careful or not _is_of_a_row(error):
                    raise
                careful = True
        return await run_write(self.gateway.database.for_grants, once)

    async def _answer(self, looking: Sequence[Taker], served: Found) -> None:
        """Answer those for whom something was found; release what was granted to those who have gone meanwhile."""
        for name, attempts in served.aside:
            self.gateway.emit(RowPutAside(self.line.question.table, name, attempts))
        for number, taker in enumerate(looking):
            answer = served.problems.get(number) or served.rows[number]
            if answer and not taker.answer.done():
                taker.answer.set_result(answer)
            elif not isinstance(answer, Problem):
                for each in answer:
                    await leases.release_for_nobody(self.gateway, each.wanted, each.granted, can_be_used=taker.is_kept)


def _is_of_a_row(error: RefusedError | leases.RefusedClaim) -> bool:
    """Whether another row may be taken: a constraint, a policy or a trigger refuses this one, or it is too large."""
    if isinstance(error, leases.RefusedClaim):
        return True
    return not error.of_an_old_query_plan and (error.sqlstate == PRIVILEGE or error.sqlstate[:2] not in _OF_ALL)


def _statement(
    table: ProtectedTable,
    where: tuple[Filter, ...],
    order: tuple[OrderTerm, ...],
    caller: Caller,
) -> Statement[Look]:
    return next_rows.next_rows(table, where, order, likes(caller.locks), as_role=caller.role is not None)


@dataclass(slots=True)
class _Transaction:
    """One look, on its connection."""

    session: Session
    gateway: Gateway
    question: Sought
    table: ProtectedTable
    looking: Sequence[Taker]
    began: float
    """When the look began: no grant is earlier."""
    careful: bool
    """Whether rows are granted one by one, and one that is refused, or too much for its taker, is undone."""

    async def run(self) -> Found:
        served = Found([[] for _ in self.looking])
        await self._find_again(served)
        question, passed_by = self.question, list[str]()
        asking = replace(question.caller, name="", claims="")  # one statement for all who have its role and patterns
        statement = self.table.kept(_statement, question.where, question.order, asking)
        all_seen = False
        for _ in range(ROUNDS):
            if len(served.refused) >= ROUNDS or not (wanting := served.wanted(self.looking)):
                break
            async with self._as_caller():
                rows = await next_rows.find(self.session, statement, Look(len(wanting), passed_by))
            if all_seen := not rows:
                break
            passed_by += [row.name for row in rows]
            await self._grant_found(list(zip(rows, wanting, strict=False)), served)
        is_served = bool(served.aside or served.problems or any(served.rows))
        if served.refused and not is_served:
            raise served.refused[0]
        # Where all that it met was busy, those that wait look again later, and the others are answered.
        served.more = is_served and not all_seen
        return served

    async def _grant_found(self, rows: Sequence[tuple[NextRow, int]], served: Found) -> None:
        if not self.careful:
            await self._grant(dict(rows), served)
            return
        for row, number in rows:
            if number in served.full:
                continue
            try:
                async with savepoint(self.session):
                    await self._grant({row: number}, served)
            except RefusedError as error:
                if not _is_of_a_row(error):
                    raise
                error.args = (f"{row.name[:60]} cannot be taken: {error}",)
                served.refused.append(error)
            except leases.RefusedClaim as refused:
                problem = refused.problem
                if not problem.detail.startswith(row.name):
                    problem = replace(problem, detail=f"{row.name[:60]} cannot be taken: {problem.detail}")
                if number not in served.full:
                    served.refused.append(leases.RefusedClaim(problem))

    async def _find_again(self, served: Found) -> None:
        """Find what requests with secrets of their own were granted already; no grant under one of these begins before
        this transaction is over.
        """
        by_hash: dict[bytes, int] = {}
        for number, taker in enumerate(self.looking):
            if taker.wanted.chosen and by_hash.setdefault(taker.wanted.secret_hash, number) != number:
                served.problems[number] = _under_way()
        if not by_hash:
            return
        again: dict[NextRow, int] = {}
        found = await statements.taken_by(self.session, list(by_hash))
        for number, has in zip(by_hash.values(), found, strict=True):
            if has.busy:
                served.problems[number] = _under_way()
            elif has.withdrawn:
                served.problems[number] = leases.withdrawn()
            elif has.names is not None and has.attempt is not None and self._is_of_table(has.names[0]):
                again[NextRow(has.names[0], 0)] = number
            elif has.names is not None:
                served.problems[number] = leases.mismatch()
        await self._grant(again, served, repeated=True)

    def _is_of_table(self, name: str) -> bool:
        return parse_resource(name).table == self.table.fence.prefix

    async def _grant(self, rows: Mapping[NextRow, int], served: Found, *, repeated: bool = False) -> None:
        """Acquire the locks of rows, each for one of those who look, and claim the rows."""
        pairs = sorted(((row, number, self.looking[number].request(row)) for row, number in rows.items()), key=_by_name)
        if not pairs:
            return
        for row, _, _ in pairs:
            if len(row.name.encode()) > LONGEST_LOCK:
                raise leases.RefusedClaim(bad_request("next: a lock has a name of 512 bytes at most"))
        read = self._now()
        tries = await statements.try_each(
            self.session, [wanted for _, _, wanted in pairs], [row.mark for row, _, _ in pairs]
        )
        granted: list[tuple[int, LockRequest, Granted]] = []
        for (_, number, wanted), outcome in zip(pairs, tries, strict=True):
            if isinstance(outcome, Withdrawn):
                served.problems[number] = leases.withdrawn()
            elif isinstance(outcome, Mismatch):
                served.problems[number] = leases.mismatch() if repeated else _under_way()
            elif isinstance(outcome, Granted):
                if repeated and outcome.verdict == "granted":
                    raise Overtaken  # it was over just now: the row may be no longer what was asked for
                if wanted.owner_given and outcome.lease.owner != wanted.owner:
                    served.problems[number] = leases.mismatch()  # two who use one secret are not one who asks twice
                else:
                    granted.append((number, wanted, outcome))
        if self.table.fence.max_attempts is not None and not repeated:
            granted = await self._put_aside(granted, self.table.fence.max_attempts, served)
        claimed = await self._claim(granted, repeated=repeated)
        for (number, wanted, outcome), claim in zip(granted, claimed, strict=True):
            lease, size = outcome.lease, sum(len(row.encode()) for row in claim.rows)
            if served.rows[number] and served.bytes[number] + size > self.gateway.max_answer_bytes:
                served.full.add(number)
                raise leases.RefusedClaim(leases.too_large(self.gateway.max_answer_bytes))
            served.bytes[number] += size
            if self._now() - read > self.gateway.times.queue.late_share * lease.ttl_ms / 1000 and not repeated:
                begun, read_then = await statements.begin_now(self.session, lease.lease_id), self._now()
                lease = replace(lease, granted_at=begun[0], expires_at=begun[1])
            else:
                read_then = read
            late_ms = math.ceil((self._now() - read_then) * 1000)
            lease = replace(lease, remaining_ms=max(lease.remaining_ms - late_ms, 0))
            waited_ms = int((self.began - self.looking[number].arrived) * 1000)
            made = replace(outcome, lease=lease, claims=[claim], waited_ms=waited_ms)
            served.rows[number].append(TakenRow(wanted, made))

    async def _put_aside(
        self, granted: Sequence[tuple[int, LockRequest, Granted]], most: int, served: Found
    ) -> list[tuple[int, LockRequest, Granted]]:
        """Put rows aside that were taken too often, under the tokens of their grants, which end with that; give the
        other grants.
        """
        left: list[tuple[int, LockRequest, Granted]] = []
        for each in granted:
            _, wanted, outcome = each
            attempt, token = outcome.lease.attempt, outcome.claim_token
            if attempt is None or token is None or attempt <= most:
                left.append(each)
                continue
            write = RowWrite(parse_resource(wanted.names[0]).key, token)
            try:
                async with self._as_caller():
                    done = await put_aside(self.session, self.table, write)
            except RefusedError as error:
                if error.sqlstate[:2] not in UNFIT:
                    raise
                done = problem_of(error, self.table)[0]
            if isinstance(done, Problem):
                why = f"{wanted.names[0]} was taken too often, and could not be put aside: {done.detail}"
                raise leases.RefusedClaim(replace(done, detail=why, hint=_ON_EXHAUSTED))
            await statements.put_aside(self.session, outcome.lease.lease_id)
            served.aside.append((wanted.names[0], attempt - 1))
        return left

    async def _claim(self, granted: Sequence[tuple[int, LockRequest, Granted]], *, repeated: bool) -> list[Done]:
        """Claim the rows with the tokens of the grants; read them, where that was done before."""
        if not granted:
            return []
        table, most_bytes = self.table, self.gateway.max_answer_bytes
        writes = [
            RowWrite(parse_resource(wanted.names[0]).key, outcome.claim_token)
            for _, wanted, outcome in granted
            if outcome.claim_token is not None
        ]
        async with self._as_caller():
            if repeated:
                again = partial(leases.reread, self.session, table)
                return [await again(write.key, write.token, BUILTIN, most_bytes) for write in writes]
            if self.careful:  # a row may have more bytes alone
                outcomes = [await claim_row(self.session, table, write, most_bytes) for write in writes]
            else:
                outcomes = await claim_rows(self.session, table, writes, most_bytes)
            return [
                outcome
                if isinstance(outcome, Done)
                else await leases.roll_back(self.session, outcome, table, write.token, BUILTIN)
                for write, outcome in zip(writes, outcomes, strict=True)
            ]

    @asynccontextmanager
    async def _as_caller(self) -> AsyncIterator[None]:
        """Act as the caller, whose code runs; what that does to the session is undone."""
        caller, runs = self.question.caller, self.table.runs_code or self.table.reads_run_code
        async with (
            as_caller(self.session, caller),
            users_code(self.session, caller, runs=runs, local=True),
        ):
            yield

    def _now(self) -> float:
        return self.gateway.times.clock.monotonic()


def _by_name(pair: tuple[NextRow, int, LockRequest]) -> bytes:
    return pair[0].name.encode()


def _under_way() -> Problem:
    return Problem(
        DATABASE_UNAVAILABLE,
        "Another request with this X-Lease-Secret is under way.",
        hint="Ask again: what it was granted is found then.",
        retry_after=RETRY_AFTER,
    )


# The use case.


async def take_next(
    gateway: Gateway,
    wanted: LockRequest,
    asked: Next,
    gone: "asyncio.Future[None]",
    may_ask_again: Callable[[], bool] = lambda: True,
) -> list[TakenRow] | Problem:
    """Take the next rows of a table, `limit` at most: none where there is none, or none comes within `wait_ms`. `gone`,
    `may_ask_again`: see `acquire_lease`.
    """
    wanted = replace(wanted, caller=gateway.caller)
    if "write" not in gateway.caller.access:
        return out_of_scope(gateway.caller, "write")
    with gateway.waiters.place(ASKING.get()) if wanted.wait_ms else nullcontext() as full:
        if full is not None:
            too_many = f"no more requests may wait for locks at this gateway: there are {full}"
            outcome: list[TakenRow] | Problem = unavailable(UnavailableError(too_many))
        else:
            outcome = await _in_time(gateway, wanted, asked, gone, may_ask_again)
    if isinstance(outcome, Problem):
        outcome = await with_blocker(gateway, None, outcome)
        gateway.emit(LeaseAsked("acquire", outcome.name, (), None, wanted.owner))
        gateway.report_if_forbidden(outcome)
        return outcome
    for taken in outcome:
        granted, lease = taken.granted, taken.granted.lease
        tokens = len(lease.tokens) + 1 if granted.verdict == "granted" else 0
        waited = granted.waited_ms / 1000
        gateway.emit(LeaseAsked("acquire", granted.verdict, lease.names, lease.id, wanted.owner, waited, tokens))
    if not gone.done():
        return outcome
    kept = wanted.chosen and may_ask_again()
    left = [await leases.release_for_nobody(gateway, each.wanted, each.granted, can_be_used=kept) for each in outcome]
    return next((each for each in left if isinstance(each, Problem)), outcome)


async def _in_time(
    gateway: Gateway,
    wanted: LockRequest,
    asked: Next,
    gone: "asyncio.Future[None]",
    may_ask_again: Callable[[], bool],
) -> list[TakenRow] | Problem:
    """Take while the caller's credential lasts; once more where the picture of the table was outdated."""
    arrived = asyncio.get_running_loop().time()
    if gateway.caller.ends is not None:
        wanted = replace(wanted, wait_ms=int(gateway.caller.within(wanted.wait_ms / 1000, arrived) * 1000))
    began = gateway.times.clock.monotonic()

    async def once_more() -> tuple[list[TakenRow] | Problem, Sequence[Doubt]]:
        work = _take(gateway, wanted, asked, began, gone, may_ask_again)
        return await leases.tried(gateway, wanted, [asked.table], work)

    outcome, doubts = await once_more()
    return await until_certain(gateway, outcome, doubts, once_more) if doubts else outcome


async def _take(
    gateway: Gateway,
    wanted: LockRequest,
    asked: Next,
    arrived: float,
    gone: "asyncio.Future[None]",
    may_ask_again: Callable[[], bool],
) -> list[TakenRow] | Problem:
    """Read what is asked for, stand in line, seal the tokens."""
    table = fitting(gateway.catalog.current.find(asked.table), asked.table)
    if isinstance(table, Problem):
        return table
    table.kept(_check, asked.where, asked.order)
    writes = await names_of_writes(gateway, wanted.writes) if wanted.writes else ()
    if isinstance(writes, Problem):
        return writes
    question = Sought(asked.table, asked.where, asked.order, writes, _asking(gateway.caller))
    answer: asyncio.Future[list[TakenRow] | Problem] = asyncio.get_running_loop().create_future()
    taker = Taker(replace(wanted, writes=writes), asked.limit, arrived, arrived + wanted.wait_ms / 1000, answer)
    try:
        await _stand_in_line(gateway.of(question.caller), question, taker, gone)
    finally:
        taker.is_kept = wanted.chosen and may_ask_again()
    if answer.cancelled():
        return leases.nothing_held()
    outcome = answer.result()
    return outcome if isinstance(outcome, Problem) else [await _sealed(gateway, taken) for taken in outcome]


def _check(table: ProtectedTable, where: tuple[Filter, ...], order: tuple[OrderTerm, ...]) -> None:
    """Raise QueryError for what the table does not have."""
    reading.check(table, Query(filters=where, order=order))


async def _stand_in_line(gateway: Gateway, question: Sought, taker: Taker, gone: "asyncio.Future[None]") -> None:
    """Wait until the taker is answered, or `gone` is done: then its answer is cancelled."""
    room = gateway.next_rows
    if room.stopping:
        raise UnavailableError("this gateway is stopping")
    with room.places.place(ASKING.get()) as full:
        if full is not None:
            raise UnavailableError(f"requests stand in line for rows, and no more are taken in: there are {full}")
        line = room.stand(question, taker, lambda line: _Looking(gateway, line).run())
        try:
            await asyncio.wait((taker.answer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not taker.answer.done():
                line.leave(taker)


def _asking(caller: Caller) -> Caller:
    """Give what of a caller counts for the rows that it is given: those who are the same in that stand in one line."""
    if caller.role is None:
        return EVERYBODY if caller.locks is None else Caller("", locks=caller.locks)
    return Caller(caller.name, role=caller.role, claims=caller.claims, locks=caller.locks)


async def _sealed(gateway: Gateway, taken: TakenRow) -> TakenRow:
    """Seal the tokens. The name of the row is the one that PostgreSQL gives it, so that nothing is asked."""
    if gateway.seals.keys is None:
        return taken
    lease = taken.granted.lease
    binding = await binding_of(gateway, BUILTIN, lease.names, (), lease.writes, lease.id)
    return replace(taken, granted=replace(taken.granted, lease=leases.sealed(gateway, lease, binding)))
