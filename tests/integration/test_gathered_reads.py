"""Reads that share a statement: the answers of reads alone, callers, connections, and what is left out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest
from tests.support.asking import NOTHING, READER, WEB, acting
from tests.support.interleave import Connect
from tests.support.manual_clock import ManualClock
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race, owner
from tests.support.use_cases import keyed, open_gateway, patch

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.group_commit import GroupCommit
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.read import ReadOne, read_queues
from fencepost.server.gateway.use_cases import read_one
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.connection import Key
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.pool import Limiter, most_of, waiting_quota
from fencepost.server.postgres.query import Field, Select, Selected
from fencepost.server.postgres.reading import MOST_JSON, UNREAD, KeyedReads, keyed_reads
from fencepost.server.postgres.tables import ProtectedTable
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# A gateway, rows, and the statements that reads share: they can be stopped, and made to fail.

run = KeyedReads.run


TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN short AS varchar(5);
CREATE TABLE numbers (id integer PRIMARY KEY, t text);
CREATE TABLE pairs (a bigint, b text, v jsonb, PRIMARY KEY (a, b));
CREATE TABLE ids (id uuid PRIMARY KEY, f double precision, at timestamptz, d date, tags text[]);
CREATE TABLE days (day date PRIMARY KEY, m mood, s short);
CREATE TABLE moods (m mood PRIMARY KEY, n numeric(8, 2));
CREATE TABLE "Odd ""a"" b" ("the key" varchar(9) PRIMARY KEY, "a b" bytea, c char(4));
CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
INSERT INTO numbers VALUES (7, 'seven'), (-1, NULL);
INSERT INTO pairs VALUES (1, 'x', '{"a": [1, 2]}'), (1, 'y,z', 'null'), (9223372036854775807, '', NULL);
INSERT INTO ids VALUES ('00000000-0000-0000-0000-00000000000a', 'NaN', '2026-01-01', 'infinity', '{a,NULL}');
INSERT INTO days VALUES ('2026-01-31', 'glad', 'abc');
INSERT INTO moods VALUES ('sad', 1.5);
INSERT INTO "Odd ""a"" b" VALUES ('k', '\\x00ff', 'ab');
INSERT INTO parts VALUES (3, 1), (13, 2);
"""


@dataclass
class Statements:
    """The statements that gathered reads are, each with its keys; they can be stopped, before or after PostgreSQL."""

    keys: list[list[Key]] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    stop: str = ""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    fails: type[asyncpg.PostgresError] | None = None
    """How PostgreSQL refuses them."""
    sizes: list[list[int | None]] = field(default_factory=list)
    """How many characters of each row they sent; None: it goes alone, or is not there."""

    async def run(self, reads: KeyedReads, connection: Any, keys: Sequence[Key]) -> Any:
        self.keys.append(list(keys))
        stop, self.stop = self.stop, ""
        if stop == "before":
            self.stopped.set()
            await self.go.wait()
        if self.fails:
            raise RefusedError(self.fails("refused"))
        answer = await run(reads, connection, keys)
        self.sizes.append([None if each in (None, UNREAD) else len(each.json) for each in answer or ()])
        if stop == "after":
            self.stopped.set()
            await self.go.wait()
        return answer


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Statements:
    statements = Statements()

    async def recorded(reads: KeyedReads, connection: Any, keys: Sequence[Key]) -> Any:
        return await statements.run(reads, connection, keys)

    monkeypatch.setattr(KeyedReads, "run", recorded)
    return statements


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade)
    for number in range(20):
        await race.insert(race.a, f"k{number}", 30 + number, n=number)
    return race


@pytest.fixture
async def gateway(race: Race) -> AsyncIterator[Gateway]:
    async with open_gateway(race.dsn, pool_size=4) as gateway:
        yield gateway
        assert gateway.database.waiting.count == 0
        await gateway.reads.close()


def reading(gateway: Gateway, *keys: str, table: str = "orders", select: Select = None) -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(read_one(gateway, ReadOne(table, tuple(key.split(",")), select))) for key in keys]


async def gathered(sent: Statements, gateway: Gateway, *keys: str) -> list[asyncio.Task[Outcome]]:
    """Ask for k0, and for these keys while that read is under way: they are one statement. Give all reads."""
    sent.stop = "before"
    tasks = reading(gateway, "k0")
    await sent.stopped.wait()
    tasks += reading(gateway, *keys)
    await asyncio.sleep(0)
    sent.go.set()
    return tasks


def shown(outcome: Outcome) -> tuple[list[str], int | None] | str:
    return outcome.name if isinstance(outcome, Problem) else (list(outcome.rows), outcome.mark)


async def shown_of(tasks: Sequence[asyncio.Task[Outcome]]) -> list[tuple[list[str], int | None] | str]:
    return [shown(each) for each in await asyncio.gather(*tasks)]


async def alone(gateway: Gateway, request: ReadOne, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    with monkeypatch.context() as patched:
        patched.setattr("fencepost.server.gateway.read._queues", lambda _gateway, _table, _select: None)
        gateway.catalog.current.tables[request.table].plans.clear()
        outcome = await read_one(gateway, request)
        gateway.catalog.current.tables[request.table].plans.clear()
    return outcome


# Reads of several callers that share a statement: roles, and row security.


async def test_roles_share_no_statement_and_have_their_own_rights(
    connect: Connect, unmade: Unmade, sent: Statements
) -> None:
    race = await open_race(connect, unmade)
    for number in range(3):
        await race.insert(race.a, f"k{number}", 30, n=number)
    granted = f"""
    GRANT SELECT ON orders TO {WEB}; GRANT SELECT (order_id, n, last_fence_token) ON orders TO {READER}"""
    async with acting(race.observer, race.dsn, granted, pool_size=4) as stage:
        of = {role: stage.of(role) for role in (WEB, READER, NOTHING)}
        narrow = (Selected(Field("n")),)
        sent.stop = "before"
        first = reading(of[WEB], "k0")
        await sent.stopped.wait()
        tasks = reading(of[WEB], "k1", "k2") + reading(of[READER], "k1", "k2", select=narrow)
        tasks += reading(of[READER], "k1", "k2") + reading(of[NOTHING], "k1", "k2")
        await asyncio.sleep(0)
        sent.go.set()
        found = await asyncio.gather(*tasks)
        await asyncio.gather(*first)
        codes = [each.name if isinstance(each, Problem) else "" for each in found]
        assert codes == ["", "", "", "", "42501", "42501", "42501", "42501"]
        await stage.gateway.reads.close()
        await stage.assert_own_name()


SECURED = """
ALTER TABLE {0} ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON {0} USING (order_id = NULLIF(current_setting('request.jwt.claims', true), '')::json ->> 'sub')"""
SWAPPED = f"""
CREATE TABLE later (LIKE orders INCLUDING ALL); INSERT INTO later SELECT * FROM orders; {SECURED.format("later")};
GRANT SELECT ON later TO {WEB}; ALTER TABLE orders RENAME TO earlier; ALTER TABLE later RENAME TO orders"""


@pytest.mark.parametrize("made", [SECURED.format("orders"), SWAPPED], ids=["enabled", "by another table"])
async def test_row_security_that_came_without_a_notification_is_judged_with_the_claims(
    connect: Connect, unmade: Unmade, sent: Statements, made: str
) -> None:
    """None of these fails a request: the catalog learns of it by and by."""
    race = await open_race(connect, unmade)
    for number in range(3):
        await race.insert(race.a, f"k{number}", 30, n=number)
    async with acting(race.observer, race.dsn, f"GRANT SELECT ON orders TO {WEB}", pool_size=4) as stage:
        await shown_of(reading(stage.of(WEB), "k1"))
        await race.observer.execute(made)
        mine = stage.of(WEB, claims='{"sub": "k1"}')
        found = await shown_of(reading(mine, "k1", "k2"))
        assert [isinstance(found[0], tuple), found[1]] == [True, "FP006"]
        assert len(sent.keys) > 1, "they were sent together at first"
        await stage.gateway.reads.close()


async def test_what_may_look_at_the_caller_goes_alone(connect: Connect, database: str) -> None:
    observer = await owner(connect, TABLES)
    await observer.execute(
        "CREATE VIEW seen AS SELECT * FROM numbers; ALTER TABLE pairs ENABLE ROW LEVEL SECURITY;"
        " CREATE TYPE point2 AS (x int, y int); CREATE TABLE points (id int PRIMARY KEY, p point2);"
        " CREATE TABLE bare (id int PRIMARY KEY)"
    )
    for table in ("numbers", "pairs", "points", "parts"):
        await protect(observer, table)
    async with open_gateway(database) as gateway:
        tables = gateway.catalog.current.tables
        assert read_queues(tables["bare"], None, MOST_JSON) is None, "it may have heirs"
        assert read_queues(tables["parts"], None, MOST_JSON) is None, "a statement locks all partitions"
        assert read_queues(tables["seen"], None, MOST_JSON) is None
        assert read_queues(tables["pairs"], None, MOST_JSON) is None
        points = read_queues(tables["points"], None, MOST_JSON)
        assert points is not None
        assert points.of(gateway.caller, ("1",)) is not None
        with_role = replace(gateway.caller, name="c", role=WEB)
        assert points.of(with_role, ("1",)) is None
        numbers = read_queues(tables["numbers"], None, MOST_JSON)
        assert numbers is not None
        assert numbers.of(with_role, ("1",)) is not numbers.of(gateway.caller, ("1",))


# Reads that share a statement share connections: whose they are, and how long they have them.


async def test_a_slow_statement_keeps_no_later_read_waiting(race: Race, sent: Statements) -> None:
    clock = ManualClock()
    async with open_gateway(race.dsn, pool_size=4, times=Times(clock=clock)) as gateway:
        sent.stop = "before"
        slow = reading(gateway, "k0")
        await sent.stopped.wait()
        await clock.advance(TIMES.batches.slow * 1.5)
        later = reading(gateway, "k1")
        overtook, _ = await asyncio.wait(later, timeout=PATIENCE)
        sent.go.set()
        assert overtook
        assert await shown_of(later) == [(['{"order_id":"k1","status":"new","n":1}'], 31)]
        await shown_of(slow)
        await gateway.reads.close()


async def test_a_connection_that_breaks_under_them_is_no_answer(race: Race, gateway: Gateway, sent: Statements) -> None:
    await shown_of(reading(gateway, "k0"))
    sent.stop = "before"
    tasks = reading(gateway, "k1")
    await sent.stopped.wait()
    tasks += reading(gateway, "k2", "k3")
    await race.observer.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencepost'"
    )
    sent.go.set()
    found = await shown_of(tasks)
    assert found[1:] == [([f'{{"order_id":"k{n}","status":"new","n":{n}}}'], 30 + n) for n in (2, 3)]


def with_few(gateway: Gateway, at_once: int, *, wait: float = 5.0, most_waiting: int = 1000) -> Gateway:
    database = gateway.database
    database.waiting = waiting_quota(most_waiting)
    database.reads = Limiter(at_once, most_of(at_once), wait, "connection for a read", database.waiting)
    return replace(gateway, reads=GroupCommit(database, wait_at_most=wait, reads=True))


async def test_a_caller_takes_no_more_places_than_its_own(gateway: Gateway, sent: Statements) -> None:
    few = with_few(gateway, 2, most_waiting=4)
    sent.stop = "before"
    tasks = [asyncio.create_task(read_one(few, ReadOne("orders", (f"k{n}",), caller="a"))) for n in range(4)]
    await sent.stopped.wait()
    tasks.append(asyncio.create_task(read_one(few, ReadOne("orders", ("k9",), caller="b"))))
    refused = await tasks[3]
    assert isinstance(refused, Problem)
    assert (refused.name, "3 of a already" in refused.detail) == ("FP010", True)
    sent.go.set()
    assert [isinstance(each, Done) for each in await asyncio.gather(*tasks)] == [True, True, True, False, True]
    await few.reads.close()


async def test_when_all_places_are_taken_those_that_have_them_are_served(gateway: Gateway) -> None:
    """A statement that waits for a connection takes no place: those that it is for have theirs."""
    few = with_few(gateway, 1, most_waiting=8)
    async with few.read_connection("c", runs_code=False):
        tasks = [
            asyncio.create_task(read_one(few, ReadOne("orders", (f"k{n}",), caller="ab"[n % 2]))) for n in range(8)
        ]

        async def all_there() -> bool:
            return few.database.waiting.count == 8

        await eventually(all_there, what="eight reads that wait")
    assert all(isinstance(each, Done) for each in await asyncio.gather(*tasks))
    await few.reads.close()


async def test_a_read_that_waits_too_long_for_a_connection_is_refused(gateway: Gateway) -> None:
    few = with_few(gateway, 1, wait=0.2)
    async with few.read_connection("c", runs_code=False):
        found = await shown_of(reading(few, "k0"))
    assert found == ["FP010"]
    await few.reads.close()


async def test_others_get_the_connection_between_two_statements(race: Race, sent: Statements) -> None:
    """Else reads of rows that never end would have the only connection for ever."""
    async with open_gateway(race.dsn, pool_size=1) as gateway:
        sent.stop = "before"
        tasks = reading(gateway, "k0")
        await sent.stopped.wait()
        tasks += reading(gateway, "k1")
        async with AsyncExitStack() as stack:
            other = gateway.read_connection("other", runs_code=False)
            lent = asyncio.create_task(stack.enter_async_context(other))

            async def waiting() -> bool:
                return gateway.database.waiting.count == 3

            await eventually(waiting, what="a list read that waits, beside two reads of rows")
            sent.go.set()
            await lent
            assert sent.keys == [[("k0",)]]
        await asyncio.gather(*tasks)
        assert sent.keys == [[("k0",)], [("k1",)]]
        await gateway.reads.close()


async def test_slow_reads_of_one_caller_leave_connections_to_others(race: Race, gateway: Gateway) -> None:
    await race.observer.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    await protect(race.observer, "other")
    await gateway.catalog.reload()
    transaction = await race.begin(race.observer)
    await race.observer.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    selects = [(Selected(Field("n"), alias=f"a{n}"),) for n in range(12)]
    slow = [asyncio.create_task(read_one(gateway, ReadOne("orders", ("k1",), each, "evil"))) for each in selects]

    async def all_of_its_own() -> bool:
        return not gateway.database.reads.has_room("evil")

    await eventually(all_of_its_own, what="as many connections as one caller may have")
    async with asyncio.timeout(PATIENCE):
        (found,) = await asyncio.gather(read_one(gateway, ReadOne("other", ("1",), None, "good")))
    assert isinstance(found, Done)
    assert not any(each.done() for each in slow)
    await transaction.rollback()
    assert all(isinstance(each, Done) for each in await asyncio.gather(*slow))


# What could keep others waiting is read alone: rows that are large, or become large, and what fails.


async def test_large_rows_are_read_alone_and_keep_no_one_waiting(
    race: Race, gateway: Gateway, sent: Statements
) -> None:
    await race.observer.execute("ALTER TABLE orders ALTER status SET STORAGE EXTERNAL")
    await race.direct(race.observer, "UPDATE orders SET status = repeat('x', 200000) WHERE order_id = 'k1'", 91)
    tasks = await gathered(sent, gateway, "k1", "k2")
    found = await shown_of(tasks)
    assert [len(each[0][0]) for each in found if isinstance(each, tuple)] == [38, 200035, 38]
    assert sent.keys[1] == [("k1",), ("k2",)], "they had come together"
    refused = await shown_of(reading(replace(gateway, max_answer_bytes=1000), "k1", "k2"))
    assert refused == ["FP016", (['{"order_id":"k2","status":"new","n":2}'], 32)]


NUMBERS = "array_fill(1e100000, ARRAY[30])"
BOMBS = {
    "text that is compressed": "SELECT 1; UPDATE orders SET status = repeat(chr(1), 600000)",
    "text that is escaped": "ALTER TABLE orders ALTER status SET STORAGE EXTERNAL;"
    " UPDATE orders SET status = repeat(chr(1), 8000)",
    "a number": "ALTER TABLE orders ADD x numeric; UPDATE orders SET x = 1e100000",
    "numbers in jsonb": f"ALTER TABLE orders ADD x jsonb; UPDATE orders SET x = to_jsonb({NUMBERS})",
}
"""What makes such a row."""


@pytest.mark.parametrize("made", BOMBS.values(), ids=BOMBS)
async def test_what_is_small_as_stored_and_large_as_json_comes_from_no_statement_of_many(
    race: Race, gateway: Gateway, sent: Statements, made: str
) -> None:
    *others, update = made.split("; ")
    await race.observer.execute(
        "ALTER TABLE orders ALTER status SET STORAGE EXTERNAL" if "8000" in made else "SELECT 1"
    )
    for each in others:
        await race.observer.execute(each)
    assert await race.direct(race.observer, f"{update} WHERE order_id = 'k1'", 91) == "ok"
    stored = await race.observer.fetchval("SELECT pg_column_size(o.*) FROM orders o WHERE order_id = 'k1'")
    await gateway.catalog.reload()
    tasks = await gathered(sent, gateway, "k1", "k2", "k1")
    found = await shown_of(tasks)
    large = [len(each[0][0]) for each in found if isinstance(each, tuple)]
    assert (large[0] == large[2], large[1] == large[3]) == (True, True)
    assert large[0] < 100
    assert large[1] > MOST_JSON
    assert stored < 9000
    assert sent.sizes[1] == [None, None, large[2]], "PostgreSQL has sent the small one only"


async def test_a_locked_table_is_waited_for_once(race: Race, sent: Statements) -> None:
    async with open_gateway(race.dsn, pool_size=4, lock_timeout=0.3) as gateway:
        transaction = await race.begin(race.observer)
        await race.observer.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        tasks = await gathered(sent, gateway, "k1", "k2", "k3", "k4")
        found = await asyncio.gather(*tasks)
        await transaction.rollback()
    assert {each.name if isinstance(each, Problem) else None for each in found} == {"55P03"}
    assert len(sent.keys) == 2, "it is not asked again in halves"


@pytest.mark.parametrize("error", [asyncpg.QueryCanceledError, asyncpg.DivisionByZeroError])
async def test_what_fails_for_many_is_asked_for_by_each_alone(
    gateway: Gateway, sent: Statements, error: type[asyncpg.PostgresError]
) -> None:
    """Not in halves: the statement's time limit would pass for each of them."""
    sent.fails = error
    tasks = await gathered(sent, gateway, "k1", "k2", "k3")
    expected = [([f'{{"order_id":"k{n}","status":"new","n":{n}}}'], 30 + n) for n in range(4)]
    assert await shown_of(tasks) == expected
    assert [len(keys) for keys in sent.keys] == [1, 3]


async def test_each_row_is_found_by_its_index(connect: Connect, database: str) -> None:
    """Whatever PostgreSQL thinks of the number of keys: a plan that reads the whole table would wait for all of it."""
    observer = await owner(
        connect,
        "CREATE TABLE many (id bigint PRIMARY KEY, t text);"
        " INSERT INTO many SELECT n, 't' FROM generate_series(1, 50000) n; ANALYZE many",
    )
    await protect(observer, "many")
    async with open_gateway(database) as gateway:
        table = gateway.catalog.current.tables["many"]
        assert isinstance(table, ProtectedTable)
        sql = keyed_reads(table, None, table.visible).statement.sql
        for mode in ("force_generic_plan", "force_custom_plan"):
            await observer.execute(f"SET plan_cache_mode = {mode}")
            await observer.execute(f"PREPARE p AS {sql}")
            keys = ",".join(str(n) for n in range(1, 257))
            plan = [row[0] for row in await observer.fetch(f"EXPLAIN EXECUTE p('{{{keys}}}')")]
            await observer.execute("DEALLOCATE p")
            assert any("Index Scan using many_pkey" in line for line in plan), plan
            assert not any("Seq Scan" in line for line in plan), plan


async def test_an_answer_has_its_bound_in_company_too(gateway: Gateway) -> None:
    few = replace(gateway, max_answer_bytes=37)
    assert await shown_of(reading(few, "k1", "k2")) == ["FP016", "FP016"]
    gateway.catalog.current.tables["orders"].plans.clear()
    assert [isinstance(each, tuple) for each in await shown_of(reading(replace(few, max_answer_bytes=38), "k1"))] == [
        True
    ]


async def test_a_document_of_some_size_is_read_alone(race: Race, gateway: Gateway, sent: Statements) -> None:
    """How long it is as text, PostgreSQL would have to find out: 1e100000 has a few bytes."""
    await race.observer.execute("ALTER TABLE orders ADD x jsonb")
    for key, most in (("k1", 90), ("k2", 3)):
        document = f"(SELECT jsonb_agg(i) FROM generate_series(1, {most}) i)"
        update = f"UPDATE orders SET x = {document} WHERE order_id = '{key}'"
        assert await race.direct(race.observer, update, 91) == "ok"
    await gateway.catalog.reload()
    found = await shown_of(reading(gateway, "k1", "k2"))
    assert all(isinstance(each, tuple) for each in found)
    sizes = [size for each in sent.sizes for size in each]
    assert [size is None for size in sizes] == [True, False]


# Reads that share a statement: each sees what it would have seen alone.


async def test_reads_that_come_meanwhile_are_one_statement(gateway: Gateway, sent: Statements) -> None:
    first, *others = await gathered(sent, gateway, "k3", "k1", "k2", "nowhere", "k1")
    expected = [([f'{{"order_id":"k{n}","status":"new","n":{n}}}'], 30 + n) for n in (3, 1, 2)]
    assert await shown_of(others) == [*expected, "FP006", expected[1]]
    assert isinstance(await first, Done)
    assert sent.keys == [[("k0",)], [("k1",), ("k1",), ("k2",), ("k3",), ("nowhere",)]]


async def test_a_read_sees_what_was_acknowledged_before_it(race: Race, gateway: Gateway, sent: Statements) -> None:
    """Also of a row that a statement under way has read already, and when another gateway wrote it."""
    sent.stop = "after"
    old = reading(gateway, "k0")
    await sent.stopped.wait()
    async with open_gateway(race.dsn) as other:
        assert isinstance(await patch(other, keyed("k0", 90, n=7)), Done)
    new = reading(gateway, "k0")
    await asyncio.sleep(0)
    sent.go.set()
    assert await shown_of(old) == [(['{"order_id":"k0","status":"new","n":0}'], 30)]
    assert await shown_of(new) == [(['{"order_id":"k0","status":"new","n":7}'], 90)]


KEYS: dict[str, list[Key]] = {
    "numbers": [("7",), ("07",), ("-1",), ("8",), ("x",), ("99999999999",), ("",), ("7 ",)],
    "pairs": [("1", "x"), ("1", "y,z"), ("01", "x"), ("9223372036854775807", ""), ("9223372036854775808", "")],
    "ids": [("00000000-0000-0000-0000-00000000000a",), ("00000000-0000-0000-0000-00000000000A",), ("0",)],
    "days": [("2026-01-31",), ("31 Jan 2026",), ("yesterday",), ("no day",)],
    "moods": [("sad",), ("glad",), ("angry",)],
    'Odd "a" b': [("k",), ("k ",), ("kkkkkkkkkkkkk",), ("a\0b",)],
    "parts": [("3",), ("13",), ("4",), ("30",)],
}


@pytest.mark.versions
async def test_together_or_alone_the_answer_is_the_same(
    connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = await owner(connect, TABLES)
    for table in KEYS:
        await protect(observer, table)
    async with open_gateway(database, pool_size=4) as gateway:
        for table, keys in KEYS.items():
            expected = [shown(await alone(gateway, ReadOne(table, key), monkeypatch)) for key in keys]
            found = await asyncio.gather(*(read_one(gateway, ReadOne(table, key)) for key in keys))
            assert [shown(each) for each in found] == expected, table
            assert any(isinstance(each, tuple) for each in expected), table
        await gateway.reads.close()


@pytest.mark.parametrize(
    ("select", "gathers"),
    [
        (None, True),
        (("*",), True),
        ((Selected(Field("n")), Selected(Field("status"), alias="s")), True),
        ((Selected(Field("n")), Selected(Field("n"), alias="again")), False),
        ((Selected(Field("last_fence_token")),), True),
        ((Selected(Field("n"), cast="text"),), False),
    ],
)
async def test_selects(
    gateway: Gateway, sent: Statements, select: Select, *, gathers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shown(await alone(gateway, ReadOne("orders", ("k1",), select), monkeypatch))
    assert await shown_of(reading(gateway, "k1", select=select)) == [expected]
    assert bool(sent.keys) is gathers


async def test_a_table_that_has_changed_is_read_as_it_is_now(race: Race, gateway: Gateway) -> None:
    await shown_of(reading(gateway, "k0", "k1"))
    await race.observer.execute("ALTER TABLE orders ALTER n TYPE bigint, ADD extra text DEFAULT 'e'")
    found = await shown_of(reading(gateway, "k0", "k1", "k2"))
    assert all(isinstance(each, tuple) for each in found), found
    await race.observer.execute("ALTER TABLE orders DROP n")
    found = await shown_of(reading(gateway, "k0", "k1", "k2"))
    assert all(isinstance(each, tuple) and '"n"' not in each[0][0] for each in found), found


async def test_a_key_that_may_be_none_goes_alone(connect: Connect, database: str, sent: Statements) -> None:
    """In company it would fail for all, and each would be asked for again."""
    observer = await owner(connect, TABLES)
    keys = (("numbers", "x"), ("numbers", "07"), ("days", "2026-01-31"), ("ids", "0"))
    for table in ("numbers", "days", "ids"):
        await protect(observer, table)
    async with open_gateway(database) as gateway:
        for table, key in keys:
            await shown_of(reading(gateway, key, table=table))
            assert sent.keys == [], (table, key)
