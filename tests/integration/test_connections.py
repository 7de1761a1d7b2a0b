"""Connections of the gateway: lost, behind a pooler, given back with what a request left, at the start; and health."""

import asyncio
import dataclasses
import logging
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from tests.integration.test_lease_claims import ask as ask_as
from tests.integration.test_lease_claims import asking
from tests.support.gateways import Gateway as GatewayProcess
from tests.support.gateways import in_process, launch, serving_process, workers
from tests.support.interleave import Connect, Connection, blocks_another_session, connection_to
from tests.support.manual_clock import UNHURRIED, ManualClock, settled
from tests.support.postgres import Unmade, cutting_proxy, pooled
from tests.support.racing import NEW, Race, open_race, protected_table
from tests.support.servers import command
from tests.support.use_cases import delete, keyed, listed, matching, once, open_gateway, patch, post, put, result_of

from fencepost.cli.migrate import GRANTS
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.read import ReadMany, ReadOne
from fencepost.server.gateway.use_cases import claim, read_many, read_one
from fencepost.server.ops.demo import LEASES_BEGIN, load
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.connection import Limits, Session
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import OutcomeUnknownError, RefusedError, SessionError, UnavailableError
from fencepost.server.postgres.query import Condition, Field, Query, Selected
from fencepost.server.startup import StartupError, UnreachableError, within
from fencepost.server.times import ConnectionTimes, HealthTimes, Times
from fencepost.testing import Link, partitioned
from fencepost.testing.servers.processes import PATIENCE, descendants, eventually, wait_until

# Connections of the gateway that cannot be had, come back broken, or have become read-only; the pool.


async def test_a_connection_that_breaks_while_it_is_given_back_changes_no_answer(database: str) -> None:
    opened = await Database.open(database, Limits(pool_size=1))
    try:
        for _ in range(3):
            async with opened.connection() as connection:
                # The server's FIN arrives in the turn of the event loop after this block.
                asyncio.get_running_loop().call_soon(connection.terminate)
            await asyncio.sleep(0)
        async with opened.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await opened.close()


LIMIT = 5


@pytest.fixture
async def limited(connect: Connect, database: str) -> AsyncIterator[str]:
    """Give the URL for a role that may have LIMIT connections."""
    owner = await connect()
    await owner.execute(f"CREATE ROLE gate LOGIN PASSWORD 'gate' CONNECTION LIMIT {LIMIT}")
    for grant in ("GRANT USAGE ON SCHEMA fencepost TO {role}", *GRANTS):
        await owner.execute(grant.format(role="gate"))
    host = database.partition("@")[2]
    yield f"postgresql://gate:gate@{host}"
    await owner.execute("DROP OWNED BY gate; DROP ROLE gate")


async def test_with_fewer_connections_than_it_may_have_the_gateway_answers_everybody(limited: str) -> None:
    reports: list[str] = []
    opened = await Database.open(limited, Limits(pool_size=10, batch_pool_size=1), report=reports.append)

    async def ask() -> int:
        async with opened.connection() as connection:
            found: int = await connection.fetchval("SELECT pg_backend_pid()")
            return found

    try:
        pids = await asyncio.gather(*(ask() for _ in range(200)))
        # One more is for batches, one for leases; one that was just closed counts until its backend has ended.
        assert 0 < len(set(pids)) <= LIMIT - 2
        assert len(reports) == 1, reports
        assert "no connection left" in reports[0]
    finally:
        await opened.close()


async def test_doctor_finds_that_there_is_no_room_for_what_a_gateway_may_open(limited: str) -> None:
    pools = ("--pool-size", "1", "--batch-pool-size", "1", "--lease-pool-size", "2")
    fits = await command("doctor", *pools, database=limited)
    assert "ok       connections: a gateway of 1 workers may open 5 connections" in fits.output, fits.output
    found = await command("doctor", database=limited)
    assert "WARNING  connections: a gateway of 1 workers may open 22 connections" in found.output, found.output
    assert f"PostgreSQL has {LIMIT} for this role" in found.output


@pytest.fixture
async def demo(connect: Connect, database: str) -> Connection:
    """Give a connection that is never read-only to a database with the demo table."""
    await load(database)
    connection = await connect()
    await connection.execute("SET default_transaction_read_only = off")
    return connection


READ_ONLY = "default_transaction_read_only"
NO_TRIGGERS = "session_replication_role"


@pytest.mark.parametrize(
    ("setting", "on", "off"),
    [
        pytest.param(
            READ_ONLY,
            "ALTER DATABASE {name} SET {setting} = on",
            "ALTER DATABASE {name} SET {setting} = off",
            id="explicitly off",
        ),
        pytest.param(READ_ONLY, "ALTER SYSTEM SET {setting} = on", "ALTER SYSTEM RESET {setting}", id="server"),
        pytest.param(
            NO_TRIGGERS,
            "ALTER DATABASE {name} SET {setting} = replica",
            "ALTER DATABASE {name} RESET {setting}",
            id="no triggers",
        ),
        pytest.param(
            NO_TRIGGERS,
            "ALTER SYSTEM SET {setting} = replica",
            "ALTER SYSTEM RESET {setting}",
            id="no triggers in the server",
        ),
    ],
)
async def test_a_database_that_takes_no_fenced_writes_is_not_ready_and_writes_go_on_when_it_is_lifted(
    setting: str, on: str, off: str, demo: Connection, database: str
) -> None:
    name: str = await demo.fetchval("SELECT quote_ident(current_database())")
    on, off = (each.format(name=name, setting=setting) for each in (on, off))
    tokens = iter(range(100, 10_000))
    async with in_process(database, pool_timeout=10) as client:

        async def write(key: bool = False) -> tuple[int, str]:
            headers = {"X-Fence-Token": str(token := next(tokens))} | (
                {"Idempotency-Key": f'"k{token}"'} if key else {}
            )
            answer = await client.patch("/v1/data/orders/order-123", json={"status": "paid"}, headers=headers)
            body = "" if answer.is_success else f"{answer.json()['code']} {answer.json()['detail']}"
            return answer.status_code, body

        async def ready() -> tuple[int, str]:
            answer = await client.get("/readyz")
            return answer.status_code, answer.text

        assert {await write() for _ in range(5)} == {(200, "")}
        await apply(demo, on)
        try:

            async def not_ready() -> bool:
                status, text = await ready()
                return status == 503 and setting in text

            await eventually(not_ready, what="/readyz says why")
            answers = await asyncio.gather(*(write(key) for key in (False, True) for _ in range(20)))
            assert {status for status, _ in answers} == {503}
            assert all("FP010" in body and f"{setting} is " in body for _, body in answers), answers
            assert (await client.get("/v1/data/orders/order-123")).status_code == 200
            lease = await client.post("/v1/leases", json={"lock": "a", "owner": "b", "ttl_ms": 1000})
            assert (lease.status_code, lease.json()["code"]) == (503, "FP010"), lease.text
        finally:
            await apply(demo, off)

        async def writes() -> bool:
            return (await write())[0] == 200

        await eventually(writes, what="a write is accepted")
        assert {await write() for _ in range(30)} == {(200, "")}
        assert {status for status, _ in await asyncio.gather(*(write(key=True) for _ in range(30)))} <= {200, 409}
        assert (await ready())[0] == 200


async def apply(connection: Connection, statement: str) -> None:
    await connection.execute(statement)
    await connection.execute("SELECT pg_reload_conf()")


async def test_a_statement_that_is_refused_as_read_only_by_itself_stops_no_other_write(
    demo: Connection, database: str
) -> None:
    await demo.execute(
        """CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE EXCEPTION 'elsewhere' USING ERRCODE = '25006'; END $$;
           CREATE TRIGGER refuse BEFORE UPDATE ON public.orders FOR EACH ROW WHEN (new.note = 'no')
           EXECUTE FUNCTION public.refuse()"""
    )
    async with in_process(database) as client:
        refused = await client.patch("/v1/data/orders/order-123", json={"note": "no"}, headers={"X-Fence-Token": "50"})
        assert (refused.status_code, refused.json()["code"]) == (503, "FP010")
        assert "elsewhere" in refused.json()["detail"]
        other = await client.patch("/v1/data/orders/order-124", json={"note": "y"}, headers={"X-Fence-Token": "50"})
        assert other.status_code == 200, other.text


async def test_an_exhausted_pool_reports_it_in_time(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1, pool_timeout=0.2))
    try:
        async with pool.connection():
            with pytest.raises(UnavailableError, match=r"no connection to PostgreSQL within 0\.2 s"):
                async with pool.connection():
                    pass
        async with pool.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await pool.close()


async def test_errors_of_reads_are_mapped_on_each_way_to_a_connection(database: str) -> None:
    """Callers know StorageError only; with all connections lent, a question about the database gets a new one."""
    opened = await Database.open(database, Limits(pool_size=1))
    try:
        for lend in (opened.connection, opened.spare):
            with pytest.raises(RefusedError, match="division by zero"):
                async with lend() as connection:
                    await connection.execute("SELECT 1 / 0")
        async with opened.connection():
            with pytest.raises(RefusedError, match="division by zero"):
                async with opened.spare() as connection:
                    await connection.execute("SELECT 1 / 0")
    finally:
        await opened.close()


STATEMENTS = ("execute", "fetch", "fetchrow", "fetchval", "fetchmany", "ask")


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("transaction", [False, True])
async def test_a_break_under_a_write_is_unknown_and_under_a_question_only_in_a_transaction(
    database: str, name: str, transaction: bool
) -> None:
    pool = await Database.open(database, Limits())
    question = name == "ask" and not transaction
    arguments = ("SELECT pg_sleep(60 + $1)", [[1]]) if name == "fetchmany" else ("SELECT pg_sleep(60)",)

    async def broken(lent: AbstractAsyncContextManager[Session]) -> None:
        async with lent as session:
            if transaction:
                await session.transaction().start()
            asyncio.get_running_loop().call_soon(session.terminate)
            await getattr(session, name)(*arguments)

    try:
        with pytest.raises(UnavailableError if question else OutcomeUnknownError):
            await broken(pool.for_writing())
        with pytest.raises(UnavailableError):
            await broken(pool.connection())
    finally:
        await pool.close()


async def test_a_connection_that_ends_as_it_is_handed_over_is_replaced(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1))

    async def used(lent: AbstractAsyncContextManager[Connection]) -> int:
        async with lent as connection:
            found: int = await connection.fetchval("SELECT 1")
            return found

    try:
        for lend in (pool.for_writing, pool.batch_connection, pool.connection):
            async with lend() as first:
                waits = asyncio.create_task(used(lend()))
                await settled()
            first.terminate()  # its next caller has not run yet
            assert await waits == 1
    finally:
        await pool.close()


async def test_more_than_may_wait_for_a_connection_are_refused_at_once(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1, pool_timeout=30, most_waiting=1))
    try:
        async with pool.connection():
            waiting = asyncio.create_task(ask(pool))
            await asyncio.sleep(0)  # it runs up to where it waits
            with pytest.raises(UnavailableError, match="FENCEPOST_MAX_WAITING"):
                await ask(pool)
            line = asyncio.create_task(ask(pool, patient=True))  # of a batch, which has a share of its own
            await settled()
            assert not line.done()
        assert (await waiting, await line) == (1, 1)
    finally:
        await pool.close()


async def ask(pool: Database, *, patient: bool = False) -> int:
    async with pool.connection(patient=patient) as connection:
        found: int = await connection.fetchval("SELECT 1")
        return found


# PgBouncer before PostgreSQL: it drops what a client asks for at connect, and in two modes it shares sessions out.

KEPT = {
    "synchronous_commit": "on", "transaction_isolation": "read committed", "statement_timeout": "30s",
    "lock_timeout": "10s", "idle_in_transaction_session_timeout": "30s", "client_min_messages": "warning",
    "DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "TimeZone": "UTC", "extra_float_digits": "1", "jit": "off",
    "bytea_output": "hex", "fencepost.token": "",
}  # fmt: skip


@pytest.mark.parametrize("through", ["directly", "PgBouncer", "PgBouncer that drops in silence"])
async def test_what_the_rules_stand_on_is_in_force_everywhere(through: str, connect: Connect, database: str) -> None:
    connection = await connect()
    name = await connection.fetchval("SELECT quote_ident(current_database())")
    # What the database gives to sessions that do not set them.
    weak = (
        "synchronous_commit = off", "default_transaction_isolation = 'repeatable read'", "statement_timeout = '1h'",
        "lock_timeout = 0", "idle_in_transaction_session_timeout = 0", "client_min_messages = error",
        "DateStyle = 'German'", "IntervalStyle = 'sql_standard'", "TimeZone = 'Asia/Tokyo'", "extra_float_digits = 0",
        "jit = on", "bytea_output = 'escape'", 'fencepost.token = "7"',
    )  # fmt: skip
    for setting in weak:
        await connection.execute(f"ALTER DATABASE {name} SET {setting}")
    if through == "directly":
        await every_session_has_it(database)
        return
    async with pooled(database, "session", ignored="silence" in through) as url:
        await every_session_has_it(url)


async def every_session_has_it(url: str) -> None:
    opened = await Database.open(url, Limits())
    try:
        for _ in range(2):  # the second time as it came back
            async with opened.for_writing() as connection:
                assert {name: await connection.fetchval(f"SHOW {name}") for name in KEPT} == KEPT
            async with opened.batch_connection() as connection:
                found = {name: await connection.fetchval(f"SHOW {name}") for name in KEPT}
                assert found == KEPT | {"lock_timeout": "10ms"}
        async with opened.connection() as connection:
            await connection.execute("BEGIN")  # left open: such a connection is not lent again
        async with opened.connection() as connection:
            assert {name: await connection.fetchval(f"SHOW {name}") for name in KEPT} == KEPT
    finally:
        await opened.close()


@pytest.mark.parametrize(("mode", "options"), [("transaction", ""), ("statement", "server_round_robin = 1\n")])
async def test_a_pooler_that_shares_sessions_is_refused_at_the_start(mode: str, options: str, database: str) -> None:
    await load(database)
    async with pooled(database, mode, ignored=True, options=options) as url:
        with pytest.raises(StartupError, match="connection pooler in transaction or statement mode"):
            async with in_process(url):
                pass
        for arguments in (["doctor"], ["status"], ["migrate"], ["protect", "orders"]):
            result = await command(*arguments, database=url)
            assert result.exit_code == 1, (arguments, result.output)
            assert "connection pooler in transaction or statement mode" in result.output, (arguments, result.output)
            assert len(result.output.strip().splitlines()) == 1, result.output


@pytest.mark.parametrize("at_once", [1, 8])
async def test_a_pool_whose_connections_share_a_session_is_not_opened(at_once: int, database: str) -> None:
    """As a pooler does that was in session mode when the gateway looked, and is reloaded with another one."""
    async with pooled(database, "transaction", ignored=True) as url:
        # Have the pooler open so many sessions, and leave them idle.
        connections = [await asyncpg.connect(url, statement_cache_size=0) for _ in range(at_once)]
        for connection in connections:
            await connection.execute("BEGIN; SELECT 1")
        for connection in connections:
            await connection.execute("COMMIT")
        for connection in connections:
            await connection.close()
        with pytest.raises(SessionError, match="transaction or statement mode"):
            await opened_twice(url)


async def opened_twice(url: str) -> None:
    for _ in range(2):
        opened = await Database.open(url, Limits())
        try:
            async with opened.connection() as one, opened.connection() as other:
                await one.fetchval("SELECT 1")
                await other.fetchval("SELECT 1")
        finally:
            await opened.close()


# What users' code does to a session ends with the request: the next one finds the session as it was made.

HIGH = "4000000000000000000"
LEFT = {
    "fencepost.token": HIGH, "fencepost.break_glass": "why", "search_path": "elsewhere", "TimeZone": "Asia/Tokyo",
    "DateStyle": "German", "IntervalStyle": "iso_8601", "bytea_output": "escape", "app.tenant": "42",
    "request.jwt.claims": "{}", "statement_timeout": "1d", "lock_timeout": "1d",
    "default_transaction_isolation": "serializable", "default_transaction_read_only": "on", "synchronous_commit": "off",
    "row_security": "off", "client_encoding": "LATIN1",
}  # fmt: skip
MEDDLE = f"""
CREATE SEQUENCE public.met;
CREATE FUNCTION public.meddle(x anyelement) RETURNS anyelement LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  {" ".join(f"PERFORM pg_catalog.set_config('{name}', '{value}', false);" for name, value in LEFT.items())}
  PERFORM pg_catalog.pg_advisory_lock(7);
  IF pg_catalog.to_regclass('pg_temp.mine') IS NULL THEN CREATE TEMPORARY TABLE mine (n int); END IF;
  PERFORM pg_catalog.nextval('public.met');
  LISTEN gossip;
  RETURN x;
END $$;
CREATE FUNCTION public.calm(x text) RETURNS text LANGUAGE plpgsql STABLE AS 'BEGIN RETURN public.meddle(x); END';
CREATE FUNCTION public.meddling() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM public.meddle(1), set_config('session_replication_role', 'replica', false),
  set_config('standard_conforming_strings', 'off', false); RETURN NULL; END $$;"""
AFTER = """
CREATE TRIGGER meddle AFTER INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION public.meddling();"""
STATE = """
SELECT array(SELECT s.name || '=' || s.setting FROM pg_catalog.pg_settings s ORDER BY s.name)
       || array(SELECT n || '=' || pg_catalog.current_setting(n, true) FROM unnest($1::text[]) AS n
                 WHERE pg_catalog.current_setting(n, true) <> '')
       || array(SELECT c FROM pg_catalog.pg_listening_channels() AS c) || CURRENT_USER::text || SESSION_USER::text
       || pg_catalog.to_regclass('pg_temp.mine')::text
       || (SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks l
            WHERE l.locktype = 'advisory' AND l.pid = pg_catalog.pg_backend_pid())::text"""

Way = Callable[[Gateway], Awaitable[object]]


async def lines(gateway: Gateway) -> None:
    await patch(gateway, keyed("k", 40, n=1))
    assert result_of(await post(gateway, listed(34, {"order_id": "gone"}, table="plain"))) == "FP001"


WRITES: dict[str, Way] = {
    "PATCH": lambda gateway: patch(gateway, keyed("k", 40, n=1)),
    "PUT": lambda gateway: put(gateway, keyed("new", 40, n=1)),
    "POST": lambda gateway: post(gateway, listed(40, {"order_id": "new"})),
    "POST of several": lambda gateway: post(gateway, listed(40, {"order_id": "a"}, {"order_id": "b"})),
    "DELETE": lambda gateway: delete(gateway, keyed("k", 40)),
    "with a key": lambda gateway: patch(gateway, replace(keyed("k", 40, n=1), idempotency_key=once())),
    "PATCH by filter": lambda gateway: patch(gateway, matching(NEW, 40, n=1)),
    "DELETE by filter": lambda gateway: delete(gateway, matching(NEW, 40)),
    "PATCH of an array": lambda gateway: patch(gateway, listed(40, {"order_id": "k", "n": 1})),
    "claim": lambda gateway: claim(gateway, Claim(parse_resource("orders/k"), Token(40))),
    "lease": lambda gateway: ask_as(gateway, asking("l", secret="s" * 32, claims=("orders/k",))),
    "atomic": lambda gateway: atomically(gateway, lines),
}
TYPED = "ALTER TABLE orders ALTER status DROP DEFAULT, ALTER status TYPE public.{0} USING status::public.{0}"


async def one_line(gateway: Gateway) -> None:
    raise Undone(await patch(gateway, keyed("k", 40, n=1)))


FAILING: dict[str, Way] = {**WRITES, "atomic": lambda gateway: atomically(gateway, one_line)}


async def states(database: Database) -> list[Any]:
    """Read what the sessions of all pools have in force: each pool has one connection."""
    found = []
    for lend in (database.connection, database.batch_connection, database.for_leases):
        async with lend() as connection:
            found.append(await connection.fetchval(STATE, list(LEFT)))
    return found


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    """Give a row k of orders, and another protected table, of which a row was deleted under token 35."""
    race = await open_race(connect, unmade)
    await race.insert(race.a, "k", 30)
    await race.observer.execute(MEDDLE + "CREATE TABLE plain (order_id text PRIMARY KEY)")
    await protect(race.observer, "plain")
    await race.observer.execute(
        "BEGIN; SET LOCAL fencepost.token = '35'; INSERT INTO plain VALUES ('gone'); DELETE FROM plain; COMMIT"
    )
    await race.observer.execute("SELECT fencepost.issue_beyond($1)", LEASES_BEGIN)
    return race


@pytest.mark.parametrize(
    ("ddl", "way"),
    [
        *(pytest.param(AFTER.format("orders"), way, id=name) for name, way in WRITES.items()),
        pytest.param(
            "CREATE TABLE items (of text REFERENCES orders ON DELETE CASCADE); INSERT INTO items VALUES ('k');"
            + AFTER.format("items"),
            WRITES["DELETE"],
            id="a trigger of a table that a foreign key reaches",
        ),
        pytest.param(
            "CREATE TABLE log (n int);"
            " CREATE RULE also AS ON DELETE TO orders DO ALSO INSERT INTO log VALUES (meddle(1))",
            WRITES["DELETE"],
            id="a rule",
        ),
        pytest.param("ALTER TABLE orders ALTER status SET DEFAULT meddle('new'::text)", WRITES["POST"], id="a default"),
        pytest.param(
            "ALTER TABLE orders ALTER status SET DEFAULT calm('new')",
            WRITES["POST"],
            id="a default whose function says that it is STABLE",
        ),
        pytest.param(
            "ALTER TABLE orders ALTER status SET DEFAULT set_config('app.tenant', 'new', false)",
            WRITES["POST"],
            id="a default of PostgreSQL's own functions",
        ),
        pytest.param("ALTER TABLE orders ADD CHECK (meddle(n) = n)", WRITES["PATCH"], id="a check"),
        pytest.param(
            "CREATE DOMAIN state AS text CHECK (calm(VALUE) IS NOT NULL);" + TYPED.format("state"),
            lambda gateway: patch(gateway, keyed("k", 40, status="paid")),
            id="a domain",
        ),
        pytest.param(
            "CREATE DOMAIN state AS text CHECK (calm(VALUE) IS NOT NULL);" + TYPED.format("state"),
            lambda gateway: read_one(gateway, ReadOne("orders", ("k",), (Selected(Field("status"), None, "state"),))),
            id="a domain in a cast",
        ),
        pytest.param(
            "CREATE TYPE mood AS ENUM ('new'); CREATE FUNCTION as_json(m mood) RETURNS json LANGUAGE sql"
            " RETURN to_json(calm(textin(enum_out(m)))); CREATE CAST (mood AS json) WITH FUNCTION as_json(mood);"
            + TYPED.format("mood"),
            lambda gateway: read_one(gateway, ReadOne("orders", ("k",))),
            id="a cast",
        ),
        pytest.param(
            "CREATE DOMAIN state AS text CHECK (meddle(VALUE) IS NOT NULL);"
            " ALTER TABLE orders ALTER status SET DEFAULT ('new'::state)::text",
            WRITES["POST"],
            id="a domain that only an expression knows",
        ),
        pytest.param(
            "CREATE DOMAIN state AS text CHECK (meddle(VALUE) IS NOT NULL); ALTER TABLE orders ADD a state[]",
            lambda gateway: read_many(
                gateway, ReadMany("orders", Query(filters=(Condition(Field("a"), "eq", "{q}"),)))
            ),
            id="an array of a domain in a filter",
        ),
        pytest.param(
            "CREATE VIEW seen AS SELECT n, pg_try_advisory_lock(n), meddle(1) FROM orders",
            lambda gateway: read_many(gateway, ReadMany("seen", Query())),
            id="a lock of a view",
        ),
        pytest.param(
            "CREATE DOMAIN state AS text CHECK (meddle(VALUE) IS NOT NULL);"
            " CREATE VIEW seen AS SELECT (status::state)::text AS status FROM orders",
            lambda gateway: read_many(gateway, ReadMany("seen", Query())),
            id="a domain of a view",
        ),
        pytest.param(
            "CREATE VIEW inner_view AS SELECT meddle(n) AS n FROM orders; CREATE VIEW seen AS SELECT n FROM inner_view",
            lambda gateway: read_many(gateway, ReadMany("seen", Query())),
            id="a view",
        ),
    ],
)
async def test_the_next_request_finds_the_session_as_it_was_made(race: Race, ddl: str, way: Way) -> None:
    async with connection_to(race.dsn) as owner:
        await owner.execute(ddl)
    async with open_gateway(race.dsn, batch_pool_size=1, lease_pool_size=1) as gateway:
        before = await states(gateway.database)
        assert not isinstance(answer := await way(gateway), Problem), answer
        assert "set_config" in ddl or await race.observer.fetchval("SELECT is_called FROM met"), "the code did not run"
        assert await states(gateway.database) == before
        assert result_of(await post(gateway, listed(34, {"order_id": "gone"}, table="plain"))) == "FP001"


@pytest.mark.parametrize("way", ["PATCH", "lease", "atomic"])
async def test_a_request_that_fails_in_users_code_leaves_no_lock_of_its_session(race: Race, way: str) -> None:
    """The rollback takes settings back, and no lock of a session."""
    await race.observer.execute(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_advisory_lock(7); RAISE 'no'; END$$;" + AFTER.format("orders").replace("meddling", "fail")
    )
    async with open_gateway(race.dsn, batch_pool_size=1) as gateway:
        assert isinstance(await FAILING[way](gateway), Problem)
        for lend in (gateway.database.connection, gateway.database.for_leases):
            async with lend() as connection:
                held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
                assert await connection.fetchval(held) == 0


async def test_a_session_without_its_prepared_statements_fails_no_request(race: Race) -> None:
    await race.observer.execute(
        "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DEALLOCATE ALL; RETURN NULL; END';"
        + AFTER.format("orders").replace("meddling", "forget")
    )
    async with open_gateway(race.dsn) as gateway:
        for token in (40, 41, 42):
            assert result_of(await patch(gateway, keyed("k", token, n=token))) == "ok"


async def test_a_trigger_that_only_sets_columns_costs_nothing(race: Race) -> None:
    bodies_of_triggers = {
        False: (
            "BEGIN NEW.status := now(); RETURN NEW; END",
            "begin -- keep it\n new.status = clock_timestamp();\n return new;\nend;",
            "BEGIN IF NEW.n IS DISTINCT FROM OLD.n THEN NEW.\"status\" := 'it''s'; END IF; RETURN NEW; END",
        ),
        True: (
            "BEGIN SET app.x = '1'; RETURN NEW; END",
            "BEGIN PERFORM set_config('a.b', 'c', false); RETURN NEW; END",
            "BEGIN NEW.status := calm(NEW.status); RETURN NEW; END",
            'BEGIN NEW.status := "calm"(1); RETURN NEW; END',
            "BEGIN NEW.status := public.now(); RETURN NEW; END",
            "BEGIN NEW.n := NEW.n OPERATOR(public.+) 1; RETURN NEW; END",
            "BEGIN -- it's\n SET a.b = 1; -- it's\n RETURN NEW; END",
            "BEGIN /* ' */ SET a.b = 1; /* ' */ RETURN NEW; END",
            "BEGIN NEW.status := '--'; SET a.b = 1; RETURN NEW; END",
            "BEGIN NEW.status := E'\\''; SET a.b = ' '; RETURN NEW; END",
            "BEGIN NEW.status := $x$ ' $x$; RESET ALL; NEW.status := $x$ ' $x$; RETURN NEW; END",
            "BEGIN UPDATE plain SET order_id = 1; RETURN NEW; END",
        ),
    }
    for runs_code, bodies in bodies_of_triggers.items():
        for body in bodies:
            await race.observer.execute(
                f"CREATE OR REPLACE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $fn${body}$fn$;"
                " CREATE OR REPLACE TRIGGER stamp BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION stamp()"
            )
            table = await protected_table(race.observer, "orders")
            assert (table.runs_code, table.shares_transactions) == (runs_code, not runs_code), body


# A start in which PostgreSQL cannot be reached, or a connection breaks: the gateway tries again for as long as
# `--start-timeout` says (startup.py).

SOON = dataclasses.replace(UNHURRIED, connections=ConnectionTimes(start_pause=0.01))
HANDSHAKE, SETTLING = 300, 700
"""Bytes of a connection, both ways, after which it breaks: while it opens, and once its session is asked for."""


@pytest.mark.parametrize("left", [HANDSHAKE, SETTLING])
async def test_whichever_connection_of_the_start_breaks_the_gateway_starts(database: str, left: int) -> None:
    for victim in range(5):  # two of the look at the database, and the first of each of three pools
        breaks = iter([None] * victim + [left])
        proxied = cutting_proxy(database, partial(next, breaks, None))
        async with proxied as (proxy, url), in_process(url, SOON) as client:
            assert proxy.cuts == 1, victim
            assert (await client.get("/readyz")).status_code == 200, victim


async def test_without_a_start_timeout_it_tries_once(database: str) -> None:
    async with cutting_proxy(database, lambda: HANDSHAKE) as (proxy, url):
        with pytest.raises(StartupError, match="cannot connect to PostgreSQL"):
            async with in_process(url, SOON, start_timeout=0):
                pass
    assert proxy.cuts == 1


async def test_it_tries_until_the_time_is_over_and_logs_each_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, reasons = ManualClock(), iter(["one", "one", "two"] + ["three"] * 100)

    async def start() -> None:
        raise UnreachableError(next(reasons))

    with caplog.at_level(logging.WARNING, "fencepost"):
        trying = asyncio.create_task(within(3, start, Times(clock=clock)))
        await clock.advance(2.9)
        assert not trying.done()
        await clock.advance(0.2)
        with pytest.raises(UnreachableError, match="three"):
            await trying
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == ["one", "two", "three"]


def tries_again(errors: Path) -> bool:
    return "trying again for" in errors.read_text()


@workers
@pytest.mark.parametrize("before", [True, False], ids=["before a worker", "in a worker"])
async def test_serve_waits_for_postgresql_and_can_be_stopped_meanwhile(
    database: str, short_dir: Path, workers: str, *, before: bool
) -> None:
    """The parent looks over two connections first; then it is the workers that wait."""
    whole = iter([None, None])
    async with cutting_proxy(database, lambda: next(whole, HANDSHAKE)) as (proxy, url):
        for stop in (True, False):
            whole = iter([] if before else [None, None])
            errors = short_dir / f"stderr-{stop}"
            with launch("--port", "0", "--workers", workers, errors=errors, FENCEPOST_DATABASE_URL=url) as process:
                gateway = GatewayProcess(process, "", "", errors)
                try:
                    await asyncio.to_thread(wait_until, partial(tries_again, errors))
                    if not stop:
                        proxy.cutting = False
                        assert process.stdout is not None
                        assert "serves http://" in await asyncio.to_thread(process.stdout.readline)
                    process.terminate()
                    assert await gateway.ended() == 0, errors.read_text()
                finally:
                    process.kill()
            assert "Traceback" not in errors.read_text()


# What /readyz and /metrics answer while PostgreSQL hangs, and that they answer at once.

NEVER_GIVEN_UP = Times(health=HealthTimes(ask_for=3600))
"""Times of a gateway that answers in time though what it asked PostgreSQL is not answered for an hour."""


@pytest.fixture
async def server(short_dir: Path) -> AsyncIterator[PostgresServer]:
    """Run a PostgreSQL of the test's own, with the demo table."""
    with PostgresServer(bin_dir=embedded_bin_dir(), data_dir=short_dir / "data") as server:
        await upgrade(server.url)
        await load(server.url)
        yield server


@contextmanager
def hanging(data: Path) -> Iterator[None]:
    """Stop all of a server's processes until the block ends."""
    postmaster = int(next(data.rglob("postmaster.pid")).read_text().split()[0])
    stopped = [postmaster, *descendants(postmaster)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


async def answers_all_the_same(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        async with asyncio.timeout(PATIENCE):
            ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert re.match(r"no answer from PostgreSQL for \d+\.\d s", ready.json()["database"]), ready.text
        async with asyncio.timeout(PATIENCE):
            metrics = await client.get("/metrics")
        assert metrics.status_code == 200
        silence = re.search(r"^fencepost_database_silence_seconds (\S+)$", metrics.text, re.MULTILINE)
        assert silence, metrics.text
        assert float(silence[1]) > 1
        async with asyncio.timeout(PATIENCE):
            assert (await client.get("/healthz")).status_code == 200


async def ready_again(client: httpx.AsyncClient) -> None:
    async def ready() -> bool:
        found = await client.get("/readyz"), await client.get("/metrics")
        return found[0].status_code == 200 and "fencepost_database_silence_seconds 0.0" in found[1].text

    await eventually(ready, what="/readyz is 200, and there is no silence")


async def sessions(connection: asyncpg.Connection) -> int:
    """Count those of the gateway's pools."""
    found: int = await connection.fetchval(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'fencepost'"
    )
    return found


@pytest.mark.long("gateways that stop, and databases that hang")
async def test_health_is_answered_while_all_processes_of_postgresql_are_stopped(
    server: PostgresServer, short_dir: Path
) -> None:
    async with in_process(server.url, NEVER_GIVEN_UP) as client:
        await ready_again(client)
        with hanging(short_dir / "data"):
            writes = [
                asyncio.create_task(
                    client.patch("/v1/data/orders/order-123", json={"note": "x"}, headers={"X-Fence-Token": str(token)})
                )
                for token in range(50, 80)
            ]
            reads = [asyncio.create_task(client.get("/v1/data/orders")) for _ in range(20)]  # more than connections
            await answers_all_the_same(client)
        await ready_again(client)
        await asyncio.gather(*writes, *reads)


@pytest.mark.long("gateways that stop, and databases that hang")
async def test_a_gateway_without_a_free_connection_is_ready_and_reports_it(database: str) -> None:
    await load(database)
    async with connection_to(database) as owner, in_process(database, pool_size=1) as client:
        await ready_again(client)
        async with owner.transaction():
            await owner.execute("LOCK TABLE orders")
            waiting = asyncio.create_task(client.get("/v1/data/orders"))
            await blocks_another_session(owner, owner)
            ready = await client.get("/readyz")
            assert not waiting.done()
        assert ready.status_code == 200
        assert ready.json()["database"] == "reachable; all connections of this process are in use"
        assert (await waiting).status_code == 200

        async def closed() -> bool:
            return await sessions(owner) == 3  # one in each pool

        await eventually(closed, what="what was opened for the question is closed")
        await ready_again(client)


@pytest.mark.long("gateways that stop, and databases that hang")
async def test_health_is_answered_while_the_network_swallows_everything(database: str) -> None:
    await load(database)
    with Link.to(database) as link:
        async with in_process(link.url, NEVER_GIVEN_UP) as client:
            await ready_again(client)
            with partitioned(link, direction="to-client"):
                await answers_all_the_same(client)
                link.hang_up()
            await ready_again(client)


@pytest.mark.long("gateways that stop, and databases that hang")
@pytest.mark.realtime
async def test_a_gateway_that_is_asked_to_stop_meanwhile_ends_in_time(server: PostgresServer, short_dir: Path) -> None:
    (directory := short_dir / "gateway").mkdir()
    async with (
        serving_process(directory, "--database-url", server.url, "--shutdown-timeout", "1") as gateway,
        httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE) as client,
    ):
        headers = {"X-Fence-Token": "50"}
        with hanging(short_dir / "data"):
            write = asyncio.create_task(client.patch("/v1/data/orders/order-123", json={"note": "x"}, headers=headers))
            assert (await client.get("/readyz")).status_code == 503
            os.kill(gateway.process.pid, signal.SIGTERM)
            assert await gateway.ended(within=15) == 0, "statements may take 30 seconds, and were waited for"
            answer = await write
        assert (answer.status_code, answer.json()["code"]) == (503, "FP009")
