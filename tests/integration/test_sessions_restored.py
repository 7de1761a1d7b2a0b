"""What users' code does to a session ends with the request: the next one finds the session as it was made."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from tests.integration.test_lease_claims import ask, asking
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import NEW, Race, open_race, protected_table
from tests.support.use_cases import delete, keyed, listed, matching, once, open_gateway, patch, post, put, result_of

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.read import ReadMany, ReadOne
from fencepost.server.gateway.use_cases import claim, read_many, read_one
from fencepost.server.ops.demo import LEASES_BEGIN
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.query import Condition, Field, Query, Selected

HIGH = "4000000000000000000"
LEFT = {
    "fencepost.token": HIGH,
    "fencepost.break_glass": "why",
    "search_path": "elsewhere",
    "TimeZone": "Asia/Tokyo",
    "DateStyle": "German",
    "IntervalStyle": "iso_8601",
    "bytea_output": "escape",
    "app.tenant": "42",
    "request.jwt.claims": "{}",
    "statement_timeout": "1d",
    "lock_timeout": "1d",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "synchronous_commit": "off",
    "row_security": "off",
    "client_encoding": "LATIN1",
}
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
    "lease": lambda gateway: ask(gateway, asking("l", secret="s" * 32, claims=("orders/k",))),
    "atomic": lambda gateway: atomically(gateway, lines),
}
TYPED = "ALTER TABLE orders ALTER status DROP DEFAULT, ALTER status TYPE public.{0} USING status::public.{0}"


async def one_line(gateway: Gateway) -> None:
    raise Undone(await patch(gateway, keyed("k", 40, n=1)))


FAILING: dict[str, Way] = {**WRITES, "atomic": lambda gateway: atomically(gateway, one_line)}
CASES: dict[str, tuple[str, Way]] = {
    **{name: (AFTER.format("orders"), way) for name, way in WRITES.items()},
    "a trigger of a table that a foreign key reaches": (
        "CREATE TABLE items (of text REFERENCES orders ON DELETE CASCADE); INSERT INTO items VALUES ('k');"
        + AFTER.format("items"),
        WRITES["DELETE"],
    ),
    "a rule": (
        "CREATE TABLE log (n int); CREATE RULE also AS ON DELETE TO orders DO ALSO INSERT INTO log VALUES (meddle(1))",
        WRITES["DELETE"],
    ),
    "a default": ("ALTER TABLE orders ALTER status SET DEFAULT meddle('new'::text)", WRITES["POST"]),
    "a default whose function says that it is STABLE": (
        "ALTER TABLE orders ALTER status SET DEFAULT calm('new')",
        WRITES["POST"],
    ),
    "a default of PostgreSQL's own functions": (
        "ALTER TABLE orders ALTER status SET DEFAULT set_config('app.tenant', 'new', false)",
        WRITES["POST"],
    ),
    "a check": ("ALTER TABLE orders ADD CHECK (meddle(n) = n)", WRITES["PATCH"]),
    "a domain": (
        "CREATE DOMAIN state AS text CHECK (calm(VALUE) IS NOT NULL);" + TYPED.format("state"),
        lambda gateway: patch(gateway, keyed("k", 40, status="paid")),
    ),
    "a domain in a cast": (
        "CREATE DOMAIN state AS text CHECK (calm(VALUE) IS NOT NULL);" + TYPED.format("state"),
        lambda gateway: read_one(gateway, ReadOne("orders", ("k",), (Selected(Field("status"), None, "state"),))),
    ),
    "a cast": (
        "CREATE TYPE mood AS ENUM ('new'); CREATE FUNCTION as_json(m mood) RETURNS json LANGUAGE sql"
        " RETURN to_json(calm(textin(enum_out(m)))); CREATE CAST (mood AS json) WITH FUNCTION as_json(mood);"
        + TYPED.format("mood"),
        lambda gateway: read_one(gateway, ReadOne("orders", ("k",))),
    ),
    "a domain that only an expression knows": (
        "CREATE DOMAIN state AS text CHECK (meddle(VALUE) IS NOT NULL);"
        " ALTER TABLE orders ALTER status SET DEFAULT ('new'::state)::text",
        WRITES["POST"],
    ),
    "an array of a domain in a filter": (
        "CREATE DOMAIN state AS text CHECK (meddle(VALUE) IS NOT NULL); ALTER TABLE orders ADD a state[]",
        lambda gateway: read_many(gateway, ReadMany("orders", Query(filters=(Condition(Field("a"), "eq", "{q}"),)))),
    ),
    "a lock of a view": (
        "CREATE VIEW seen AS SELECT n, pg_try_advisory_lock(n), meddle(1) FROM orders",
        lambda gateway: read_many(gateway, ReadMany("seen", Query())),
    ),
    "a domain of a view": (
        "CREATE DOMAIN state AS text CHECK (meddle(VALUE) IS NOT NULL);"
        " CREATE VIEW seen AS SELECT (status::state)::text AS status FROM orders",
        lambda gateway: read_many(gateway, ReadMany("seen", Query())),
    ),
    "a view": (
        "CREATE VIEW inner_view AS SELECT meddle(n) AS n FROM orders; CREATE VIEW seen AS SELECT n FROM inner_view",
        lambda gateway: read_many(gateway, ReadMany("seen", Query())),
    ),
}


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


@pytest.mark.parametrize("case", CASES)
async def test_the_next_request_finds_the_session_as_it_was_made(race: Race, case: str) -> None:
    ddl, way = CASES[case]
    owner = await asyncpg.connect(race.dsn)
    await owner.execute(ddl)
    await owner.close()  # the code ran in its session, too
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


BODIES = {
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


async def test_a_trigger_that_only_sets_columns_costs_nothing(race: Race) -> None:
    for runs_code, bodies in BODIES.items():
        for body in bodies:
            await race.observer.execute(
                f"CREATE OR REPLACE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $fn${body}$fn$;"
                " CREATE OR REPLACE TRIGGER stamp BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION stamp()"
            )
            table = await protected_table(race.observer, "orders")
            assert (table.runs_code, table.shares_transactions) == (runs_code, False), body
