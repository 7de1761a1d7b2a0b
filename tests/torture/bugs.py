"""What a planted bug is: the product with one safety line broken, and the bounded run that has to find it.

The settings of the runs come first, then the bugs. A line that is to be broken and is not there (any more) is an
AssertionError: the bug would change nothing, and prove nothing.
"""

import asyncio
import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import psycopg

from fencepost.client import Client, Lease
from fencepost.client.clock import SystemClock
from fencepost.client.errors import ApiError, LeaseLost, StaleToken
from fencepost.client.http import KEY_HEADER, Answer, Call, Exchange, new_key
from fencepost.server.gateway import alone, attempt, group_commit, leases, next_rows, read
from fencepost.server.gateway.attempt import Batched, _Batches
from fencepost.server.gateway.claims import ClaimOfRow
from fencepost.server.postgres import connection as session
from fencepost.server.postgres import keyed as statements
from fencepost.server.postgres import many, marks
from fencepost.server.postgres import next_rows as rows_statement
from fencepost.server.postgres.connection import Connection as BugsConnection
from fencepost.server.postgres.connection import FencedRow, RowWrite, WriteStatement, compiled
from fencepost.server.postgres.database_identity import Origin
from fencepost.server.postgres.marks import KeyState
from fencepost.server.postgres.tables import ProtectedTable
from fencepost.testing.checker import Model
from fencepost.testing.servers.postgres import Connection
from fencepost.testing.servers.processes import eventually
from fencepost.testing.torture import Config, stages
from fencepost.testing.torture.stages import OwnPrimary


@dataclass(frozen=True)
class Setting:
    """A configuration of a run, which bugs share: so do they share the runs that show the product without them.

    It ends after `operations`. own_servers: it starts a PostgreSQL, which faults can restart; else it has a database
    of the session's. around: what is done around the run in the process of the test.
    """

    name: str
    workload: str
    operations: int = 1500
    faults: str = "none"
    resources: int = 2
    gateways: int = 1
    loaders: int = 1
    tasks: int = 16
    holders: int = 0
    own_servers: bool = False
    around: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def words(self) -> str:
        """Say it in a table: the workload, and its faults."""
        return f"`{self.workload}`" + ("" if self.faults == "none" else f" with `{self.faults.replace(',', '`, `')}`")


@dataclass(frozen=True)
class Line:
    """`old` becomes `new` in an SQL function of the schema fencepost."""

    function: str
    old: str
    new: str


@dataclass(frozen=True)
class Planted:
    """One bug. `model`: of the checker, which has to find it. Where several lines of defence stand, all are broken.

    gateway, worker: change the modules of a gateway's, or of a worker's process before it starts. harness: what is
    done around the run in the process of the test.
    """

    name: str
    model: Model
    setting: Setting
    lines: tuple[Line, ...] = ()
    statements: tuple[str, ...] = ()
    gateway: Callable[[], None] | None = None
    worker: Callable[[], None] | None = None
    harness: Callable[[], AbstractContextManager[object]] = nullcontext


def config(setting: Setting, out: Path, seed: int, database_url: str | None, bug: str = "none") -> Config:
    return Config(
        out=out,
        seed=seed,
        workload=setting.workload,
        faults=setting.faults,
        operations=setting.operations,
        minutes=2.0,
        database_url=None if setting.own_servers else database_url,
        gateways=setting.gateways,
        loaders=setting.loaders,
        tasks=setting.tasks,
        holders=setting.holders,
        resources=setting.resources,
        gateway_command=(sys.executable, "-m", "tests.torture.mutated", bug, "fencepost"),
        worker_command=(sys.executable, "-m", "tests.torture.mutated", bug, "fencepost.testing.torture.worker"),
    )


def plant(connection: psycopg.Connection, planted: Planted) -> None:
    """Break the database, in the connection's transaction."""
    for statement in planted.statements:
        connection.execute(statement.encode())
    for line in planted.lines:
        found = connection.execute("SELECT pg_get_functiondef(%s::text::regprocedure)", (line.function,)).fetchone()
        assert found is not None
        connection.execute(replaced(found[0], line.old, line.new, line.function).encode())


def replaced(text: str, old: str, new: str, where: str) -> str:
    """Replace, and see to it that there was something to replace."""
    assert old in text, f"{where} has no {old!r}"
    return text.replace(old, new)


def swap(owner: object, name: str, broken: Any) -> Any:
    """Put `broken` in the place of what a module or a class calls so; returns what was there.

    AssertionError when there is nothing of that name (any more).
    """
    assert hasattr(owner, name), f"{owner} has no {name}"
    was = getattr(owner, name)
    setattr(owner, name, broken)
    return was


async def _nothing(*_: object, **__: object) -> None:
    """Stand in for a step that is left out."""


# The runs that bugs share.

_MORE_TOKENS: Final = 200
"""nextval logs 32 ahead: a standby has to be further behind to give tokens again."""


@contextmanager
def _lagging_standby() -> Iterator[None]:
    """Let commits not wait for the standby, and let it be some grants behind when it is promoted.

    Acknowledged grants are lost then, as in any failover to an asynchronous standby. A generation that is raised makes
    up for that: no token comes again.
    """
    fail_over = OwnPrimary.fail_over

    async def drawn(connection: Connection) -> int:
        return int(await connection.fetchval("SELECT last_value FROM fencepost.tokens"))

    async def until_many_more_are_drawn(connection: Connection) -> None:
        before = await drawn(connection)

        async def enough() -> bool:
            return await drawn(connection) > before + _MORE_TOKENS

        await eventually(enough, what="more grants")

    async def cut_off(standby: Connection) -> None:
        await standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        await standby.execute("SELECT pg_reload_conf()")

        async def alone() -> bool:
            return not await standby.fetchval("SELECT count(*) FROM pg_stat_wal_receiver")

        await eventually(alone, what="the standby cut off")

    def lagging(of: OwnPrimary) -> tuple[str, int]:
        assert of._standby is not None  # noqa: SLF001 - the lag is no fault of the product's harness
        asyncio.run(stages._on(of._standby.url, cut_off))  # noqa: SLF001
        asyncio.run(stages._on(of.url, until_many_more_are_drawn))  # noqa: SLF001
        return fail_over(of)

    with (
        mock.patch.object(stages, "make_synchronous", _nothing),
        mock.patch.object(OwnPrimary, "fail_over", lagging),
    ):
        yield


ROWS: Final = Setting("rows", "register", operations=1200)
SCOPES: Final = Setting("scopes", "register", operations=800, faults="delay-database")
LOCKS: Final = Setting("locks", "mutex", operations=6000, resources=1, gateways=2, loaders=2, tasks=4)
"""One lock, two processes of clients, two gateways: two sessions often meet at its row."""
KEYS: Final = Setting("keys", "idempotent", operations=600)
KEYS_AT_ONCE: Final = Setting("keys at once", "idempotent", operations=2500, faults="delay-database", gateways=2)
"""Answers of PostgreSQL that come late leave time between the steps of a write."""
LOST_ANSWERS: Final = Setting("lost answers", "register", operations=800, faults="cut-after-commit")
CLIENTS: Final = Setting(
    "clients", "client", operations=1800, faults="partition-client", resources=2, gateways=2, tasks=8
)
CLIENTS_ANSWERS: Final = Setting("answers to clients", "client", operations=1500, faults="cut-client", tasks=8)
CLIENT_SETS: Final = Setting("sets of clients", "client-set", operations=300)
JOBS: Final = Setting("jobs", "jobs", operations=4000)
JOBS_LATE: Final = Setting("jobs of two gateways", "jobs", operations=6000, faults="delay-database", gateways=2)
CRASHES: Final = Setting("crashes", "register", operations=2000, faults="restart-immediate", own_servers=True)
GENERATIONS: Final = Setting("generations", "register", operations=2000, faults="failover", own_servers=True)
FAILOVERS: Final = Setting(
    "failovers", "mutex", operations=5000, faults="failover", resources=1, own_servers=True, around=_lagging_standby
)


# All planted bugs: what is broken, and which model of the checker has to find it in which run.

# Bugs of the SQL that judges tokens and keeps marks (migrations/schema, ops/protecting).

JUDGE_DELETE: Final = "fencepost.judge_delete(text, text, bigint, text, xid)"
DELETE_BODY: Final = "fencepost.delete_body(fencepost.protected, boolean)"
JUDGE_INSERT: Final = "fencepost.judge_insert(text, text, bigint, text)"
JUDGE_UPDATE: Final = "fencepost.judge_update(text, text, text, bigint, bigint, boolean, xid)"
RAISE_MARK: Final = "fencepost.raise_mark(text, bigint, text, boolean)"
ENTER_EACH: Final = "fencepost.enter_each(text, text[], bigint[], oid, text)"

NO_TRIGGER: Final = Line(
    JUDGE_UPDATE, "IF verdict <> 'accepted'", "IF token IS NOT NULL THEN RETURN token; ELSIF verdict <> 'accepted'"
)
"""An UPDATE's trigger is a second line of defence behind the gateway's statement. With this it lets all tokens pass."""
_ACCEPTS: Final = (
    "CREATE OR REPLACE FUNCTION fencepost.accepts(rule text, mark bigint, token bigint) RETURNS boolean LANGUAGE sql"
    " IMMUTABLE PARALLEL SAFE RETURN {}"
)

OF_MARKS: Final = [
    Planted("`<=` for `<` in fencepost.accepts", "register", ROWS, statements=(_ACCEPTS.format("mark <= token"),)),
    Planted("DELETE leaves no mark", "register", ROWS, (
        Line(JUDGE_DELETE, "INSERT INTO fencepost.marks AS k", "RETURN given; INSERT INTO fencepost.marks AS k"),
    )),
    Planted("DELETE leaves the mark that the row had, and not its own token", "register", ROWS, (
        Line(JUDGE_DELETE, "VALUES (p_resource, token,", "VALUES (p_resource, greatest(old_mark, 1),"),
    )),
    Planted("INSERT does not ask for the mark that outlived the row", "register", ROWS, (
        Line(JUDGE_INSERT, "IF mark IS NULL THEN", "IF true THEN"),
    )),
    Planted("marks of deleted rows are forgotten, and no floor is raised", "register", ROWS, (
        Line(RAISE_MARK, "INSERT INTO fencepost.marks AS k",
             "DELETE FROM fencepost.marks k WHERE k.row_absent AND k.ctid IN (SELECT m.ctid FROM fencepost.marks m"
             " WHERE m.row_absent AND m.changed_at < clock_timestamp() - interval '20 ms' FOR UPDATE SKIP LOCKED);"
             " INSERT INTO fencepost.marks AS k"),
    )),
    Planted("a scope is entered, and its mark is not raised", "register", ROWS, (
        Line(ENTER_EACH, "SET last_fence_token = x.token,", "SET last_fence_token = k.last_fence_token,"),
    )),
]  # fmt: skip


# Bugs of the gateway's statements, and of what it makes of their answers (postgres/statements, gateway).

_ANY: Final = "<> 0 AND 0 <"
"""Stands where the mark is compared with the token, and is always true."""


@contextlib.contextmanager
def _comparing(operator: str) -> Any:
    """Let statements that are made meanwhile compare the mark so."""
    comparison = swap(marks, "comparison", lambda _rule: operator)
    try:
        yield
    finally:
        swap(marks, "comparison", comparison)


def _unconditional(verb: str, operator: str = _ANY) -> None:
    def broken(*arguments: Any, **options: Any) -> WriteStatement:
        with _comparing(operator):
            return made(*arguments, **options)

    made: Callable[..., WriteStatement] = swap(statements, verb, broken)


def _check_then_write() -> None:
    tables: dict[int, ProtectedTable] = {}

    def unconditional(table: ProtectedTable, *arguments: Any, **options: Any) -> WriteStatement:
        with _comparing(_ANY):
            made: WriteStatement = update(table, *arguments, **options)
        tables[id(made.statement)] = table
        return made

    async def checked(
        statement: WriteStatement, connection: BugsConnection, batch: Sequence[RowWrite]
    ) -> list[FencedRow | None]:
        table = tables.get(id(statement.statement))
        if table is None or table.fence.scope is not None:
            return await run(statement, connection, batch)
        standing = await marks.ask(connection, table, [write.key for write in batch])
        passing = [
            number
            for number, (write, state) in enumerate(zip(batch, standing, strict=True))
            if state.live is not None and state.live < write.token
        ]
        answers: list[FencedRow | None] = [None] * len(batch)
        written = await run(statement, connection, [batch[number] for number in passing]) if passing else []
        for number, answer in zip(passing, written, strict=True):
            answers[number] = answer
        return answers

    update = swap(statements, "update", unconditional)
    run: Callable[..., Awaitable[list[FencedRow | None]]] = swap(WriteStatement, "run", checked)


def _zero_rows_is_stale() -> None:
    async def broken(_connection: BugsConnection, table: ProtectedTable, keys: Sequence[Any]) -> list[KeyState]:
        return [KeyState(f"{table.fence.name}/{key[0]}", 2**62, None) for key in keys]

    swap(marks, "ask", broken)


def _question_is_remembered() -> None:
    """Each key's first answer is used for a second: as if the snapshot were that of an older transaction."""
    known: dict[Any, tuple[float, KeyState]] = {}

    async def broken(connection: BugsConnection, table: ProtectedTable, keys: Sequence[Any]) -> list[KeyState]:
        fresh = await ask(connection, table, keys)
        now = time.monotonic()
        for key, state in zip(keys, fresh, strict=True):
            if known.get((table.oid, key), (0.0, state))[0] < now - 1:
                known[table.oid, key] = now, state
        return [known[table.oid, key][1] for key in keys]

    ask = swap(marks, "ask", broken)


def _the_array_is_judged_by_its_first_row() -> None:
    line, first = "SELECT FROM hit WHERE", "SELECT FROM (TABLE hit LIMIT 1) AS hit WHERE"

    def compiled_broken(text: str, *arguments: Any) -> Any:
        return compiled(replaced(text, line, first, "the statement of arrays"), *arguments)

    def broken(*arguments: Any) -> Any:
        swap(many, "compiled", compiled_broken)
        try:
            return by_array(*arguments)
        finally:
            swap(many, "compiled", compiled)

    by_array = swap(many, "by_array", broken)


def _claim_is_rolled_back() -> None:
    async def broken(operation: ClaimOfRow, connection: BugsConnection) -> Any:
        transaction = connection.transaction()
        await transaction.start()
        try:
            return await write(operation, connection)
        finally:
            await transaction.rollback()

    write = swap(ClaimOfRow, "write", broken)


def _reads_are_remembered() -> None:
    known: dict[Any, tuple[float, Any]] = {}

    async def broken(gateway: Any, request: Any, table: Any) -> Any:
        kept = known.get((request.table, request.key))
        if kept is None or kept[0] < time.monotonic() - 0.05:
            kept = known[request.table, request.key] = time.monotonic(), await read_one(gateway, request, table)
        return dataclasses.replace(kept[1])

    read_one = swap(read, "read_one", broken)


OF_STATEMENTS: Final = [
    Planted("UPDATE does not compare the token", "register", ROWS, (NO_TRIGGER,),
            gateway=lambda: _unconditional("update")),
    Planted("an UPDATE passes with a token that equals the mark", "register", ROWS, (
        Line(JUDGE_UPDATE, "fencepost.verdict(rule,", "fencepost.verdict('epoch',"),
        Line(JUDGE_UPDATE, "nullif(nullif(new_mark, old_mark), 0)", "nullif(new_mark, 0)"),
    ), gateway=lambda: _unconditional("update", "<=")),
    Planted("check, then write", "register", ROWS, (NO_TRIGGER,), gateway=_check_then_write),
    Planted("DELETE does not compare the token", "register", ROWS, (
        Line(JUDGE_DELETE, "IF verdict <> 'accepted'",
             "IF given IS NOT NULL THEN token := given; ELSIF verdict <> 'accepted'"),
        Line(DELETE_BODY, "AND r.last_fence_token OPERATOR(", "AND 0 OPERATOR("),
    ), gateway=lambda: _unconditional("delete")),
    Planted("a write that reaches no row is answered as stale", "register", ROWS, gateway=_zero_rows_is_stale),
    Planted("why a write reached no row is asked of an old snapshot", "register", SCOPES,
            gateway=_question_is_remembered),
    Planted("an array is judged by its first row alone", "register", ROWS, (NO_TRIGGER,),
            gateway=_the_array_is_judged_by_its_first_row),
    Planted("a claim is not committed", "register", ROWS, gateway=_claim_is_rolled_back),
    Planted("a claim of a key without a row raises no mark", "register", ROWS,
            gateway=lambda: swap(attempt, "claim_absent", _nothing)),
    Planted("reads are served from what was read before", "register", ROWS, gateway=_reads_are_remembered),
]  # fmt: skip


# Bugs of group commit, and of when a write is answered (postgres/batches, gateway/writes).


def _answer_before_commit() -> None:
    async def broken(queue: Any, connection: BugsConnection, _behind: Any, batch: Sequence[Any]) -> None:
        async with connection.transaction():
            answers = await queue.run(connection, [waiting.write for waiting in batch])
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)
            await asyncio.sleep(0.01)  # as long as a flush to a disk takes

    swap(group_commit, "_run_batch", broken)


def _answers_are_shifted() -> None:
    async def broken(queue: Any, connection: BugsConnection, behind: Any, batch: Sequence[Any]) -> None:
        answers = await queue.run(connection, [waiting.write for waiting in batch])
        behind.require_replicated()
        for waiting, answer in zip(batch, [*answers[1:], *answers[:1]], strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)

    swap(group_commit, "_run_batch", broken)


def _neighbours_share_a_scope() -> None:
    """And a neighbour that has entered it in this transaction lets others pass as its own."""

    def broken(write: Batched) -> Any:
        if write.once is not None:
            yield ("key", write.once.key)

    swap(attempt, "_clashes", broken)


OF_ANSWERS: Final = [
    Planted("answer before commit", "register", ROWS, gateway=_answer_before_commit),
    Planted("a batch's answers are shifted by one", "register", ROWS, gateway=_answers_are_shifted),
    Planted("neighbours in a batch share a scope", "register", SCOPES, (
        Line(ENTER_EACH, "AND fencepost.is_own_write(k.xmin)) THEN\n        verdict := 'busy';",
             "AND fencepost.is_own_write(k.xmin)) THEN\n        verdict := 'entered';"),
    ), gateway=_neighbours_share_a_scope),
]  # fmt: skip


# Bugs of Idempotency-Keys, and of writes whose outcome is unknown (R15, R16).

BEGIN: Final = "fencepost.idem_begin(text, text, bytea)"
BEGIN_EACH: Final = "fencepost.idem_begin_each(text, text[], bytea[])"
RECORD: Final = "fencepost.idem_record(text, text, bytea, json, text, text)"
RECORD_EACH: Final = "fencepost.idem_record_each(text[], text[], bytea[], json[], text[], text[])"
_TWO_RECORDS: Final = "ALTER TABLE fencepost.idempotency DROP CONSTRAINT idempotency_pkey"
"""The primary key of the records is the last line of defence: the second write of a key would be undone by it."""


def _records_are_written_after_the_commit() -> None:
    async def broken(batches: _Batches, connection: BugsConnection, batch: Sequence[Any]) -> Any:
        answers = await run(batches, connection, batch)
        await record(connection, batch, range(len(batch)), answers)
        return answers

    record = swap(attempt, "_record", _nothing)
    run = swap(_Batches, "run", broken)


OF_KEYS: Final = [
    Planted("an Idempotency-Key is recorded after the commit", "set", KEYS_AT_ONCE, statements=(_TWO_RECORDS,),
            gateway=_records_are_written_after_the_commit),
    Planted("an Idempotency-Key's lock is not tried", "set", KEYS_AT_ONCE, (
        Line(BEGIN, "IF NOT pg_try_advisory_xact_lock", "IF false AND NOT pg_try_advisory_xact_lock"),
        Line(BEGIN_EACH, "SELECT pg_try_advisory_xact_lock(", "SELECT true OR pg_try_advisory_xact_lock("),
    ), statements=(_TWO_RECORDS,)),
    Planted("any request is answered with what its Idempotency-Key was answered", "once", KEYS, (
        Line(BEGIN, "IF r.payload_hash <> p_hash", "IF false"),
        Line(BEGIN_EACH, "WHEN i.payload_hash <> u.hash THEN", "WHEN false THEN"),
    )),
    Planted("writes with an Idempotency-Key are not recorded", "set", KEYS, (
        Line(RECORD, "THEN 'applied' END", "THEN 'applied' END WHERE false"),
        Line(RECORD_EACH, "AS u(caller, key, hash, outcome, rows, owner)",
             "AS u(caller, key, hash, outcome, rows, owner) WHERE false"),
    )),
    # Neither is the old backend ended, nor are key and mark looked at.
    Planted("a write whose outcome is unknown is repeated without a look", "register", LOST_ANSWERS,
            gateway=lambda: swap(alone, "_settle", _nothing)),
]  # fmt: skip


# Bugs of leases and their tokens (migrations/schema/acquire.sql).

ACQUIRE: Final = "fencepost.acquire(text[], bytea, text, integer, integer, text[], uuid, uuid, integer, text[])"
RELEASE: Final = "fencepost.release(bigint, bytea, uuid)"
ACQUIRE_EACH: Final = "fencepost.acquire_each(text[], bytea[], text[], integer[], integer[], bigint[], text[])"
OF_BATCH: Final = Line(
    ACQUIRE_EACH, "WHERE k.name = p_names[i] FOR UPDATE SKIP LOCKED", "WHERE k.name = p_names[i]"
)  # fmt: skip
"""A batch of grants locks its lock rows before each of them does."""
ALL_ALONE: Final = Line(ACQUIRE_EACH, "LOOP\n", "LOOP\n    busy := true; RETURN NEXT; CONTINUE;\n")
EXTEND: Final = "fencepost.extend(bigint, bytea, integer, integer)"

_ONE: Final = "drawn := ARRAY[nextval('fencepost.tokens')];"
_MANY: Final = "drawn := ARRAY(SELECT nextval('fencepost.tokens') FROM generate_series(1, p_count + claiming::int));"

OF_LOCKS: Final = [
    Planted("tokens are drawn before the lock is taken", "mutex", LOCKS, (
        Line(ACQUIRE, _ONE, "NULL;"),
        Line(ACQUIRE, _MANY, "NULL;"),
        Line(ACQUIRE, "  FOREACH n IN ARRAY wanted LOOP",
             f"  {_MANY}\n  PERFORM pg_sleep(random() * 0.005);\n  FOREACH n IN ARRAY wanted LOOP"),
        ALL_ALONE,
    )),
    Planted("sessions keep tokens in reserve", "mutex", LOCKS,
            statements=("ALTER SEQUENCE fencepost.tokens CACHE 20",)),
    Planted("a grant does not lock the lock's row", "mutex", LOCKS, (
        Line(ACQUIRE, "WHERE k.name = n FOR UPDATE;", "WHERE k.name = n;"),
        Line(ACQUIRE, "ORDER BY x.lease_id FOR UPDATE;", "ORDER BY x.lease_id;"),
        OF_BATCH,
    )),
    Planted("a lease that has ended mints", "mutex", LOCKS, (
        Line(EXTEND, "AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()", ""),
        Line(ACQUIRE, "SET ended_at = clock_timestamp(), secret_hash = NULL\n      WHERE x.lease_id = ANY (before)",
             "SET ended_at = clock_timestamp()\n      WHERE x.lease_id = ANY (before)"),
    )),
    Planted("a grant does not wait for the end of the lease before it", "mutex", CLIENTS, (
        Line(ACQUIRE, "AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()\n      ORDER BY k.name",
             "AND false\n      ORDER BY k.name"),
    )),
    Planted("any secret releases a lease", "mutex", CLIENTS, (
        Line(RELEASE, "AND x.secret_hash = p_hash AND", "AND"),
    )),
    Planted("the end of a lease is judged by a clock that is half a second ahead", "mutex", CLIENTS, (
        Line(ACQUIRE, "x.expires_at > clock_timestamp()\n      ORDER BY k.name",
             "x.expires_at > clock_timestamp() + interval '0.5 s'\n      ORDER BY k.name"),
    )),
]  # fmt: skip


# Bugs of the next row (gateway/next_rows.py, migrations/schema/acquire.sql).

ATTEMPTS_OF: Final = "fencepost.attempts_of(text, bigint)"


def _a_take_claims_nothing() -> None:
    async def broken(session: Any, table: ProtectedTable, writes: Sequence[RowWrite], most_bytes: int) -> Any:
        return [await leases.reread(session, table, each.key, each.token, "builtin", most_bytes) for each in writes]

    swap(next_rows, "claim_rows", broken)


def _the_next_row_is_not_locked() -> None:
    def broken(text: str, *arguments: Any) -> Any:
        return compiled(replaced(text, " FOR NO KEY UPDATE OF r SKIP LOCKED", "", "the next rows"), *arguments)

    swap(rows_statement, "compiled", broken)


OF_JOBS: Final = [
    Planted("the take of a row does not claim it", "register", JOBS, gateway=_a_take_claims_nothing),
    Planted("attempts are counted anew when a worker has written", "mutex", JOBS, (
        Line(ATTEMPTS_OF, "p_mark = ANY (d.tokens)", "p_mark = d.tokens[1]"),
    )),
    Planted("the next row is found and not locked", "once", JOBS_LATE, gateway=_the_next_row_is_not_locked),
]  # fmt: skip


# Bugs of the Python client.

_STEP: Final = 5.0
"""Seconds by which the wall clock is set back, every second."""


def _trust_by_the_wall_clock() -> None:
    """And that is set back, again and again."""
    began = time.monotonic()

    def broken(_clock: SystemClock) -> float:
        now = time.monotonic()
        return time.time() - _STEP * int(now - began)  # noqa: TID251 - the line to break

    swap(SystemClock, "now", broken)


def _a_renewal_that_fails_counts() -> None:
    async def broken(lease: Lease) -> bool:
        started = lease._exchange.clock.now()  # noqa: SLF001
        with contextlib.suppress(ApiError):
            await lease._exchange.once(lease._upkeep("renew"))  # noqa: SLF001
        return lease.trust.record_renewal(started)

    swap(Lease, "renew", broken)


def _each_attempt_has_a_key_of_its_own() -> None:
    async def broken(exchange: Exchange, call: Call, most: float = math.inf) -> Answer:
        if KEY_HEADER in call.headers:
            call = call.under(new_key())
        answer: Answer = await once(exchange, call, most)
        return answer

    once = swap(Exchange, "once", broken)


def _a_stale_write_is_repeated_under_a_new_lease() -> None:
    async def broken(client: Client, table: str, key: Any, row: Mapping[str, Any], *, lease: Lease) -> Any:
        try:
            return await put(client, table, key, row, lease=lease)
        except (StaleToken, LeaseLost):
            async with client.lock(f"{table}/{key}", ttl=1, wait=1) as fresh:
                return await put(client, table, key, row, lease=fresh)

    put = swap(Client, "put", broken)


OF_CLIENTS: Final = [
    Planted("a lease is trusted by the wall clock", "mutex", CLIENTS, worker=_trust_by_the_wall_clock),
    Planted("a renewal that fails counts as one", "mutex", CLIENTS, worker=_a_renewal_that_fails_counts),
    Planted("each attempt of a write has an Idempotency-Key of its own", "set", CLIENTS_ANSWERS,
            worker=_each_attempt_has_a_key_of_its_own),
    Planted("a write that was refused as stale is repeated under a new lease", "set", CLIENT_SETS,
            worker=_a_stale_write_is_repeated_under_a_new_lease),
]  # fmt: skip


# Bugs that need a crash or a failover to show (R4, R19).


def _commits_do_not_wait_for_the_disk() -> None:
    for settings in (session.DURABLE, session.PINNED):
        assert isinstance(settings, dict)
        settings["synchronous_commit"] = "off"


@contextmanager
def _floors_are_raised_too_far() -> Iterator[None]:
    """Let a new generation's first tokens be below the floor of the table whose refusals as stale show no mark."""
    raise_generation = stages._raise  # noqa: SLF001 - the operator's part of a failover

    async def too_far(connection: Any) -> None:
        await raise_generation(connection)
        await connection.execute("UPDATE fencepost.floors SET floor = floor + 10000 WHERE name LIKE '%epoch'")

    with mock.patch.object(stages, "_raise", too_far):
        yield


OF_SERVERS: Final = [
    Planted("commits do not wait for the disk", "register", CRASHES, gateway=_commits_do_not_wait_for_the_disk),
    Planted("no generation is raised after a failover that has lost grants", "mutex", FAILOVERS,
            gateway=lambda: swap(Origin, "problem", lambda *_: None),
            harness=lambda: mock.patch.object(stages, "_raise", _nothing)),
    Planted("after a failover the first tokens of the new generation are refused, too", "register", GENERATIONS,
            harness=_floors_are_raised_too_far),
]  # fmt: skip


PLANTED: list[Planted] = [
    *OF_MARKS,
    *OF_STATEMENTS,
    *OF_ANSWERS,
    *OF_KEYS,
    *OF_LOCKS,
    *OF_JOBS,
    *OF_CLIENTS,
    *OF_SERVERS,
]
