"""What owners, callers and names may not do: act as the schema's owner, read past row security, take another's name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest
from tests.support.asking import RULED, ruled
from tests.support.gateways import FOR_ALL, OwnedDatabase, building
from tests.support.interleave import Connect, Connection, run_plan
from tests.support.manual_clock import ManualClock
from tests.support.postgres import Unmade, cutting_proxy
from tests.support.racing import Race, meanwhile, open_race, outcome, scoped_race
from tests.support.use_cases import keyed, listed, once, open_gateway, patch, put, result_of

from fencepost.server.fence.caller import EVERY_ACCESS, Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.identity import api_keys as verifying
from fencepost.server.identity.api_keys import Announcements, ApiKeys
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.ops.doctor import examine
from fencepost.server.ops.doctor_tables import FUNCTIONS, TABLES
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import plan_protect, plan_unprotect, protect, unprotect
from fencepost.server.postgres import api_keys
from fencepost.server.postgres.api_keys import NewKey
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.listen import Listener
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE

# What a table's owner does to the table must not run in the name of the schema's owner, whichever client writes.

EVIL = """
CREATE TYPE public.ct AS (x text);
CREATE FUNCTION public.evil(public.ct) RETURNS {type} LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN {value}; END $$;
CREATE TABLE public.seen (who name);
GRANT INSERT ON public.seen TO PUBLIC;
CREATE CAST (public.ct AS {type}) WITH FUNCTION public.evil(public.ct) AS IMPLICIT;
"""


@pytest.fixture
async def owned(postgres: PostgresServer, template: str) -> AsyncIterator[OwnedDatabase]:
    async with building(postgres, template) as owned:
        yield owned


async def seen_as(owned: OwnedDatabase) -> set[str]:
    """In whose names the owner's code has run."""
    return {row[0] for row in await owned.root.fetch("SELECT DISTINCT who::text FROM public.seen")}


async def tried(connection: Connection, sql: str, token: int = 90) -> str:
    """Run SQL under a token; "ok" or the SQLSTATE."""
    try:
        await connection.execute(f"BEGIN; SET LOCAL fencepost.token = '{token}'; {sql}; COMMIT")
    except asyncpg.PostgresError as error:
        await connection.execute("ROLLBACK")
        return error.sqlstate or "?"
    return "ok"


async def evil_owner(owned: OwnedDatabase, type_: str, value: str) -> Connection:
    """Connect as the owner of a protected table, who has made a type with a cast to this one."""
    app = await owned.login(owned.app)
    await app.execute("CREATE TABLE public.t (id text PRIMARY KEY, n int)")
    await protect(owned.root, "t")
    await app.execute("INSERT INTO t (id, last_fence_token) VALUES ('a', 10)")
    await app.execute(EVIL.format(type=type_, value=value))
    return app


RETYPED_MARK = (
    "DROP TRIGGER zzz_fencepost_ins ON t; DROP TRIGGER zzz_fencepost_upd ON t;"
    "ALTER TABLE t DROP CONSTRAINT fencepost_mark; ALTER TABLE t ALTER last_fence_token DROP DEFAULT;"
    "ALTER TABLE t ALTER last_fence_token TYPE public.ct USING ROW(last_fence_token)::public.ct"
)


async def test_a_column_that_gets_a_type_of_its_owners_is_not_read_in_our_name(owned: OwnedDatabase) -> None:
    app = await evil_owner(owned, "bigint", "77")
    await app.execute(RETYPED_MARK)
    fresh = await owned.login(owned.app)
    for statement in ("INSERT INTO t VALUES ('b', 1, ROW('91'))", "DELETE FROM t"):
        assert await tried(fresh, statement) == "FP000", statement
    await unprotect(owned.root, "t")
    assert await seen_as(owned) <= {owned.app}, "in no other name than the owner's"


async def test_unprotect_reads_no_column_that_has_changed_since_it_looked(owned: OwnedDatabase) -> None:
    app = await evil_owner(owned, "bigint", "77")
    plan = await plan_unprotect(owned.root, "t")
    await app.execute(RETYPED_MARK)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await run_plan(owned.root, plan)
    assert refused.value.sqlstate == "FP000"
    assert await seen_as(owned) <= {owned.app}


async def test_a_domain_over_a_type_of_postgresqls_is_read(owned: OwnedDatabase) -> None:
    app = await owned.login(owned.app)
    await app.execute(
        "CREATE DOMAIN public.name AS varchar(9); CREATE DOMAIN public.nick AS public.name CHECK (value <> '');"
        "CREATE TABLE public.t (id public.nick PRIMARY KEY, n int)"
    )
    await protect(owned.root, "t")
    for token, statement in enumerate(("INSERT INTO t VALUES ('a', 1)", "UPDATE t SET n = 2", "DELETE FROM t"), 90):
        assert await tried(app, statement, token) == "ok", statement
    assert await owned.root.fetchval("SELECT resource FROM fencepost.marks") == "t/a"


async def test_the_columns_of_the_key_keep_their_types(owned: OwnedDatabase) -> None:
    app = await evil_owner(owned, "text", "'x'")
    plan = await plan_unprotect(owned.root, "t")
    assert await tried(app, "ALTER TABLE t ALTER id TYPE public.ct USING ROW(id)::public.ct") == "0A000"
    await app.execute("ALTER TABLE t RENAME id TO was; ALTER TABLE t ADD id public.ct DEFAULT ROW('q')")
    fresh = await owned.login(owned.app)
    assert await tried(fresh, "INSERT INTO t (was, last_fence_token) VALUES ('b', 91)") == "ok"
    assert await tried(fresh, "DELETE FROM t WHERE was = 'a'") == "ok"
    await run_plan(owned.root, plan)
    marks = await owned.root.fetch("SELECT resource FROM fencepost.marks ORDER BY 1")
    assert [mark[0] for mark in marks] == ["t/a", "t/b"]
    assert await seen_as(owned) <= {owned.app}, "in no other name than the owner's"


async def test_the_columns_of_a_scope_keep_their_types(owned: OwnedDatabase) -> None:
    app = await owned.login(owned.app)
    await app.execute("CREATE TABLE public.t (id int PRIMARY KEY, a text NOT NULL)")
    await protect(owned.root, "t", scope="acc/{a}")
    await app.execute(EVIL.format(type="text", value="'x'"))
    await app.execute("DROP TRIGGER zzz_fencepost_scope_upd ON t")
    retype = "ALTER TABLE t ALTER a TYPE public.ct USING ROW(a)::public.ct"
    assert await tried(app, retype) == "0A000"
    await app.execute("ALTER TABLE t RENAME a TO was; ALTER TABLE t ADD a public.ct NOT NULL DEFAULT ROW('q')")
    fresh = await owned.login(owned.app)
    assert await tried(fresh, "INSERT INTO t VALUES (1, 'b', ROW('c'))") == "ok"
    assert await owned.root.fetchval("SELECT resource FROM fencepost.marks") == "acc/b"
    assert await seen_as(owned) == set()


async def test_protect_is_not_led_astray_by_operators_in_public(owned: OwnedDatabase) -> None:
    """Of types for which pg_catalog has no operator of their own, an operator in public would be the better match."""
    app = await owned.login(owned.app)
    await app.execute("CREATE TABLE public.seen (who name); GRANT INSERT ON public.seen TO PUBLIC")
    for number, (left, right) in enumerate((("regclass", "regclass"), ("varchar", "varchar"), ("varchar", "text"))):
        for operator in ("=", "<>", "<"):
            await app.execute(
                f"CREATE FUNCTION public.evil_{number}_{'elg'['=<'.find(operator)]}({left}, {right}) RETURNS boolean"
                " LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN true; END $$"
            )
            await app.execute(
                f"CREATE OPERATOR public.{operator} (leftarg = {left}, rightarg = {right},"
                f" function = public.evil_{number}_{'elg'['=<'.find(operator)]})"
            )
    await owned.root.execute(
        "SET search_path = public; CREATE TABLE t (id varchar(9) PRIMARY KEY, a varchar(9) NOT NULL)"
    )
    await protect(owned.root, "t")
    await owned.root.execute("INSERT INTO t VALUES ('a', 'b', 10), ('c', 'b', 10)")
    assert await tried(owned.root, "DELETE FROM t WHERE id OPERATOR(pg_catalog.=) 'c'") == "ok"
    await protect(owned.root, "t")
    await meanwhile(owned.root, "t", "INSERT INTO t VALUES ('c', 'b', 0)")
    assert await owned.root.fetchval("SELECT min(last_fence_token) FROM t WHERE starts_with(id, 'c')") == 90
    await protect(owned.root, "t", scope="acc/{a}")
    await protect(owned.root, "t", scope="")
    await protect(owned.root, "t", source="builtin")
    await unprotect(owned.root, "t")
    assert await seen_as(owned) == set()


async def test_a_table_that_changes_between_look_and_lock_is_not_protected(owned: OwnedDatabase) -> None:
    app = await owned.login(owned.app)
    await app.execute(EVIL.format(type="text", value="'x'"))
    for change in (
        "ALTER TABLE t ALTER id TYPE public.ct USING ROW(id)::public.ct",
        "ALTER TABLE t RENAME TO was; CREATE VIEW public.t AS SELECT * FROM was",
        "ALTER TABLE t ADD last_fence_token numeric",
        "ALTER TABLE t ADD last_fence_token bigint, ADD CONSTRAINT fencepost_mark CHECK (n > 0)",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, n)",
        "DROP TABLE t",
    ):
        await app.execute("DROP TABLE IF EXISTS public.was CASCADE; CREATE TABLE public.t (id text PRIMARY KEY, n int)")
        plans = [await plan_protect(owned.root, "t")]
        plans.append(await plan_protect(owned.root, "t", scope="acc/{id}"))
        await app.execute(change)
        for plan in plans:
            with pytest.raises(asyncpg.PostgresError) as refused:
                await run_plan(owned.root, plan)
            assert "changed at the same moment" in str(refused.value) or "does not exist" in str(refused.value)
        await app.execute("DROP VIEW IF EXISTS t" if "VIEW" in change else "DROP TABLE IF EXISTS t")
    assert await seen_as(owned) <= {owned.app}


@pytest.mark.versions
async def test_where_nothing_is_given_to_everybody_plain_roles_write_with_their_tokens(owned: OwnedDatabase) -> None:
    """`ALTER DEFAULT PRIVILEGES … REVOKE EXECUTE … FROM PUBLIC`: what runs in the writers' names is granted by name."""
    app = await owned.login(owned.app)
    await owned.root.execute("DROP SCHEMA fencepost CASCADE")
    await owned.root.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
    await upgrade(owned.url)
    await owned.root.execute(
        "CREATE TYPE public.mood AS ENUM ('fair'); CREATE TABLE public.t (id mood, d date, t timestamp, z timestamptz,"
        " x numeric, b bytea, n int, PRIMARY KEY (id, d, t, z, x, b));"
        f" CREATE TABLE public.i (id int PRIMARY KEY, n int); GRANT ALL ON t, i TO {owned.app}"
    )
    keyed = "INSERT INTO t VALUES ('fair', '2026-01-01', '2026-01-01', '2026-01-01Z', 1.5, '\\x00')"
    for source, token in (("external", 90), ("builtin", 90)):
        await protect(owned.root, "t", source=source)
        await protect(owned.root, "i", scope="acc/{id}", source=source)
        await owned.root.execute("SELECT setval('fencepost.tokens', greatest(fencepost.issued(), 1000))")
        for number, statement in enumerate(
            (keyed, "UPDATE t SET n = 2", "DELETE FROM t", "INSERT INTO i VALUES (1)", "DELETE FROM i")
        ):
            said = token + number + (100 if source == "builtin" else 0)
            await app.execute(f"BEGIN; SET LOCAL fencepost.token = '{said}'; {statement}; COMMIT")
        assert await tried(app, "INSERT INTO i VALUES (1)") == "FP409", token
        assert await tried(app, keyed.replace("fair", "fair")) == "FP409", token
        await app.execute("INSERT INTO t SELECT 'fair', '2027-01-01', '2026-01-01', '2026-01-01Z', 1, '', 1, 500; ")
        for refused in ("UPDATE t SET n = 3", "DELETE FROM t"):
            with pytest.raises(asyncpg.PostgresError) as error:
                await app.execute(refused)
            assert error.value.sqlstate == "FP428", refused
        await app.execute("BEGIN; SET LOCAL fencepost.token = '600'; DELETE FROM t; COMMIT")
        await owned.root.execute("DELETE FROM fencepost.marks")
    findings = await examine((*TABLES, *FUNCTIONS), owned.root)
    assert [each for each in findings if each.level == "error"] == []


# PUT and PATCH of a row that a policy keeps the gateway from changing: a refusal that stays, and not a 503.
# The row is seen and not written: 404. Where the policy of INSERT refuses the new row too, that is the answer.


@pytest.fixture(params=["rows", "scope"])
async def race(request: pytest.FixtureRequest, connect: Connect, unmade: Unmade) -> Race:
    """Give items that have their marks themselves, or share that of their account."""
    race = await scoped_race(connect, unmade, "strict")
    if request.param == "rows":
        await protect(race.observer, "items", scope="")
    return race


@pytest.fixture
async def gateway(race: Race) -> AsyncIterator[Gateway]:
    """Give a gateway whose role does not see item 1, may not change item 2, and stores no item whose n is 9."""
    policies = (
        f"GRANT SELECT, UPDATE, INSERT ON items TO {RULED}; ALTER TABLE items ENABLE ROW LEVEL SECURITY;"
        " CREATE POLICY sees ON items FOR SELECT USING (id <> 1);"
        " CREATE POLICY writes ON items FOR UPDATE USING (id <> 2);"
        " CREATE POLICY makes ON items FOR INSERT WITH CHECK (n <> 9)"
    )
    async with ruled(race.observer, race.dsn, policies) as url, open_gateway(url) as opened:
        yield opened


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize(
    ("item", "n", "status", "code"), [(1, 5, 403, "42501"), (2, 5, 404, "FP006"), (2, 9, 403, "42501")]
)
async def test_a_put_that_a_policy_refuses_is_answered_for_good(
    race: Race, gateway: Gateway, item: int, n: int, status: int, code: str, *, with_key: bool
) -> None:
    request = keyed(str(item), 40, table="items", account_id=42, n=n)
    answer = await put(gateway, replace(request, idempotency_key=once() if with_key else None))
    assert isinstance(answer, Problem)
    assert (answer.type.status, answer.name, answer.type.retryable) == (status, code, False)
    raised = "SELECT count(*) FROM fencepost.marks WHERE last_fence_token = 40"
    assert await race.observer.fetchval(raised) == 0


@pytest.mark.parametrize("array", [False, True])
async def test_a_patch_that_a_policy_refuses_finds_no_row(race: Race, gateway: Gateway, *, array: bool) -> None:
    one, row = keyed("2", 40, table="items", n=5), {"id": 2, "n": 5}
    answer = await patch(gateway, listed(40, row, table="items") if array else one)
    assert isinstance(answer, Problem)
    assert answer.name == "FP006", answer.detail
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks WHERE last_fence_token = 40") == 0


# Tables are renamed, replaced and swapped while nothing protects them: each keeps its marks and its floor (R6).

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, account_id int NOT NULL DEFAULT 1, lowest int, own int)"


@pytest.fixture
async def plain(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade, "strict")
    await race.observer.execute("SET search_path = public")
    return race


async def made(race: Race, table: str, *, scope: str | None = None) -> None:
    await race.observer.execute(TABLE.format(table))
    await protect(race.observer, table, scope=scope)


async def row_mark(race: Race, table: str) -> int:
    mark: int = await race.observer.fetchval(f"SELECT last_fence_token FROM {table} WHERE id = 1")
    return mark


async def deleted_under(race: Race, table: str, token: int, key: int = 1) -> None:
    assert await race.direct(race.a, f"INSERT INTO {table} (id) VALUES ({key})", token - 1) == "ok"
    assert await race.direct(race.a, f"DELETE FROM {table} WHERE id = {key}", token) == "ok"


async def refuse_up_to(race: Race, mark: int, *tables: str) -> None:
    """Key 1, which has no row in any of the tables, takes tokens above its mark only."""
    for table in tables:
        insert = f"INSERT INTO {table} (id) VALUES (1)"
        answers = [await race.direct(race.a, insert, token) for token in (mark - 10, mark, mark + 1)]
        assert answers == ["FP409", "FP409", "ok"], table


async def test_a_floor_does_nothing_to_the_rows_of_another_table_of_its_name(plain: Race) -> None:
    """Its own table left a scope, was renamed, and is gone."""
    await made(plain, "fl", scope="account/{account_id}")
    assert await plain.direct(plain.a, "INSERT INTO fl (id) VALUES (1)", 20) == "ok"
    await unprotect(plain.observer, "fl")
    await plain.observer.execute("ALTER TABLE fl RENAME TO fl_old")
    await made(plain, "fl")
    assert await plain.direct(plain.a, "INSERT INTO fl (id) VALUES (1)", 100) == "ok"
    await plain.observer.execute("DROP TABLE fl_old")
    await protect(plain.observer, "fl")
    assert await row_mark(plain, "fl") == 100
    await plain.observer.execute("ALTER TABLE fl DISABLE TRIGGER USER")
    await protect(plain.observer, "fl")
    assert await row_mark(plain, "fl") == 100


async def renamed_and_replaced(race: Race) -> None:
    """Key 1 of the table a was deleted under 50; the table is b by now, and another one is a."""
    await made(race, "a")
    await deleted_under(race, "a", 50)
    await unprotect(race.observer, "a")
    await race.observer.execute("ALTER TABLE a RENAME TO b")


async def test_a_table_that_takes_a_name_leaves_its_marks_to_the_table_that_had_it(plain: Race) -> None:
    await renamed_and_replaced(plain)
    await made(plain, "a")
    await protect(plain.observer, "b")
    await refuse_up_to(plain, 50, "b", "a")


async def test_also_if_it_was_renamed_while_protected_and_is_unprotected(plain: Race) -> None:
    await renamed_and_replaced(plain)
    await made(plain, "c")
    await deleted_under(plain, "c", 30)
    await plain.observer.execute("ALTER TABLE c RENAME TO a")
    await unprotect(plain.observer, "a")
    await protect(plain.observer, "b")
    await protect(plain.observer, "a")
    await refuse_up_to(plain, 50, "b", "a")


async def test_tables_that_have_swapped_their_names_both_keep_their_marks(plain: Race) -> None:
    for table, token in (("a", 50), ("b", 70)):
        await made(plain, table)
        await deleted_under(plain, table, token)
        await unprotect(plain.observer, table)
    await plain.observer.execute("ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b")
    await protect(plain.observer, "a")
    await protect(plain.observer, "b")
    await refuse_up_to(plain, 70, "a")
    assert await plain.direct(plain.a, "INSERT INTO b (id) VALUES (1)", 50) == "FP409"


async def test_tables_that_have_moved_on_in_a_circle_all_keep_their_marks(plain: Race) -> None:
    for key, table in enumerate(("a", "b", "c")):
        await made(plain, table)
        await deleted_under(plain, table, 50, key)
        await unprotect(plain.observer, table)
    await plain.observer.execute(
        "ALTER TABLE a RENAME TO x; ALTER TABLE c RENAME TO a; ALTER TABLE b RENAME TO c; ALTER TABLE x RENAME TO b"
    )
    for table in ("a", "b", "c"):
        await protect(plain.observer, table)
    for key, table in enumerate(("b", "c", "a")):
        assert await plain.direct(plain.a, f"INSERT INTO {table} (id) VALUES ({key})", 50) == "FP409", table


async def test_marks_stay_with_a_name_that_another_table_has_by_now(plain: Race) -> None:
    """They follow the table that was renamed, and fence the one in its place as well."""
    await renamed_and_replaced(plain)
    await plain.observer.execute(TABLE.format("a"))
    await protect(plain.observer, "b")
    await protect(plain.observer, "a")
    await refuse_up_to(plain, 50, "b", "a")


async def test_the_floor_of_a_table_that_was_renamed_follows_it_past_another_one(plain: Race) -> None:
    """The mark that its row had before the scope stands for nothing."""
    await made(plain, "fl")
    assert await plain.direct(plain.a, "INSERT INTO fl (id) VALUES (1)", 10) == "ok"
    await protect(plain.observer, "fl", scope="account/{account_id}")
    assert await plain.direct(plain.a, "UPDATE fl SET own = 1", 20) == "ok"
    await unprotect(plain.observer, "fl")
    await plain.observer.execute("ALTER TABLE fl RENAME TO fl_old")
    await made(plain, "fl")
    await unprotect(plain.observer, "fl")
    await plain.observer.execute("DROP TABLE fl; ALTER TABLE fl_old RENAME TO older")
    await protect(plain.observer, "older")
    assert await plain.direct(plain.a, "UPDATE older SET own = 1", 15) == "FP409"
    assert await plain.direct(plain.a, "INSERT INTO older (id) VALUES (2)", 15) == "FP409"
    assert await plain.direct(plain.a, "UPDATE older SET own = 1", 21) == "ok"


async def test_a_table_that_left_its_marks_under_a_name_keeps_them_when_the_name_is_left_again(plain: Race) -> None:
    """One is protected under the name and called otherwise; the other was called so, and unprotected."""
    await made(plain, "c")
    await plain.observer.execute("ALTER TABLE c RENAME TO d")
    await made(plain, "x")
    await deleted_under(plain, "x", 50)
    await plain.observer.execute("ALTER TABLE x RENAME TO c")
    await unprotect(plain.observer, "c")
    await plain.observer.execute("ALTER TABLE c RENAME TO z")
    await protect(plain.observer, "d")
    await protect(plain.observer, "z")
    await refuse_up_to(plain, 50, "z")


async def test_of_two_floors_the_higher_counts(plain: Race) -> None:
    for table, floor in (("a", 50), ("b", 70)):
        await made(plain, table)
        await plain.observer.execute(f"SELECT fencepost.prune('{table}', {floor})")
        await unprotect(plain.observer, table)
    await plain.observer.execute("ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b")
    for table in ("a", "b"):
        await protect(plain.observer, table)
        assert await plain.direct(plain.a, f"INSERT INTO {table} (id) VALUES (1)", 70) == "FP409", table
        assert await plain.direct(plain.a, f"INSERT INTO {table} (id) VALUES (1)", 71) == "ok", table


# Resources are named after their rows' keys: PostgreSQL keeps the key as it is, `protect` sees when it was changed.

OTHER_TYPES = {
    "fewer digits": ("numeric", "1.25", "ALTER k TYPE numeric(10,1)", "1.25"),
    "a time of day": ("date", "'2024-01-01'", "ALTER k TYPE timestamp", "'2024-01-01'"),
    "no time of day": ("timestamp", "'2024-01-01 10:00'", "ALTER k TYPE date", "'2024-01-01 10:00'"),
    "a number": ("text", "'007'", "ALTER k TYPE int USING k::int", "'007'"),
    "a uuid": (
        "text", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "ALTER k TYPE uuid USING k::uuid",
        "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"),
    "a bool": ("text", "'yes'", "ALTER k TYPE bool USING k::bool", "'yes'"),
    "padded": ("varchar(9)", "'a '", "ALTER k TYPE char(9)", "'a '"),
    "shorter": ("varchar(9)", "'ab  '", "ALTER k TYPE varchar(3)", "'ab  '"),
}  # fmt: skip


async def deleted(race: Race, kind: str, key: str, table: str = "t") -> None:
    await race.observer.execute(f"CREATE TABLE {table} (k {kind} PRIMARY KEY, n int)")
    await protect(race.observer, table)
    assert await race.direct(race.a, f"INSERT INTO {table} (k) VALUES ({key})", 49) == "ok"
    assert await race.direct(race.a, f"DELETE FROM {table}", 50) == "ok"


async def test_a_protected_key_keeps_its_type(plain: Race) -> None:
    for number, (kind, key, retype, _) in enumerate(OTHER_TYPES.values()):
        table = f"t{number}"
        await deleted(plain, kind, key, table)
        for change in (retype, 'ALTER k TYPE text COLLATE "C"'):
            assert await outcome(plain.observer.execute(f"ALTER TABLE {table} {change}")) == "0A000", change
        assert await outcome(plain.observer.execute(f"ALTER TABLE {table} DROP COLUMN k")) == "2BP01", kind
        assert await plain.direct(plain.a, f"INSERT INTO {table} (k) VALUES ({key})", 40) == "FP409", kind
        assert await plain.direct(plain.a, f"INSERT INTO {table} (k) VALUES ({key})", 51) == "ok", kind


async def test_a_key_of_another_type_is_fenced_up_to_the_highest_mark(plain: Race) -> None:
    for number, name in enumerate(OTHER_TYPES):
        table = f"t{number}"
        kind, key, retype, then = OTHER_TYPES[name]
        await deleted(plain, kind, key, table)
        await meanwhile(plain.observer, table, f"ALTER TABLE {table} {retype}")
        for token, answer in ((40, "FP409"), (50, "FP409"), (51, "ok")):
            assert await plain.direct(plain.a, f"INSERT INTO {table} (k) VALUES ({then})", token) == answer, name


WIDER = {
    "integers": ("int", "7", "bigint"),
    "a longer text": ("varchar(9)", "'ab'", "varchar(20)"),
    "any text": ("varchar(9)", "'ab'", "text"),
}


async def test_a_key_whose_values_have_the_same_texts_in_a_wider_type_keeps_its_marks(plain: Race) -> None:
    for number, name in enumerate(WIDER):
        table = f"t{number}"
        kind, key, wider = WIDER[name]
        await deleted(plain, kind, key, table)
        await meanwhile(plain.observer, table, f"ALTER TABLE {table} ALTER k TYPE {wider}, ALTER k SET NOT NULL")
        assert await plain.direct(plain.a, f"INSERT INTO {table} (k) VALUES ({key})", 50) == "FP409", name
        other = "8" if kind == "int" else "'cd'"
        assert await plain.direct(plain.a, f"INSERT INTO {table} (k) VALUES ({other})", 10) == "ok", (
            "no floor has risen"
        )


async def pair(race: Race) -> None:
    await race.observer.execute("CREATE TABLE t (a int, b int, n int, PRIMARY KEY (a, b))")
    await protect(race.observer, "t")
    assert await race.direct(race.a, "INSERT INTO t VALUES (1, 2)", 49) == "ok"
    assert await race.direct(race.a, "DELETE FROM t", 50) == "ok"


TURNED = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b, a)"


async def test_a_key_in_another_order_is_fenced_up_to_the_highest_mark(plain: Race) -> None:
    await pair(plain)
    await plain.observer.execute(TURNED)
    assert await plain.direct(plain.a, "INSERT INTO t VALUES (1, 2)", 40) == "FP409", "as it was named"
    async with open_gateway(plain.dsn) as gateway:
        for key in (("1", "2"), ("2", "1")):
            assert result_of(await put(gateway, keyed(key, 40, "t"))) == "FP005"
    await protect(plain.observer, "t")
    assert await plain.direct(plain.a, "INSERT INTO t VALUES (1, 2)", 40) == "FP409"
    assert await plain.direct(plain.a, "INSERT INTO t VALUES (2, 1)", 50) == "FP409"
    assert await plain.direct(plain.a, "INSERT INTO t VALUES (1, 2)", 51) == "ok"


async def test_also_if_it_was_turned_while_nothing_protected_it(plain: Race) -> None:
    await pair(plain)
    await meanwhile(plain.observer, "t", TURNED)
    assert await plain.direct(plain.a, "INSERT INTO t VALUES (1, 2)", 40) == "FP409"
    assert await plain.direct(plain.a, "INSERT INTO t VALUES (1, 2)", 51) == "ok"


async def test_another_column_of_the_key_s_name_is_another_key(plain: Race) -> None:
    await deleted(plain, "int", "7")
    await meanwhile(
        plain.observer,
        "t",
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t RENAME k TO was; ALTER TABLE t RENAME n TO k;"
        "ALTER TABLE t ALTER was DROP NOT NULL, ADD PRIMARY KEY (k)",
    )
    assert await plain.direct(plain.a, "INSERT INTO t (k) VALUES (8)", 40) == "FP409"


async def test_a_renamed_key_keeps_its_marks(plain: Race) -> None:
    await deleted(plain, "int", "7")
    await plain.observer.execute("ALTER TABLE t RENAME k TO id")
    async with open_gateway(plain.dsn) as gateway:
        assert result_of(await put(gateway, keyed("7", 40, "t"))) == "FP005"
    await protect(plain.observer, "t")
    await meanwhile(plain.observer, "t", "ALTER TABLE t RENAME id TO no")
    assert await plain.direct(plain.a, "INSERT INTO t (no) VALUES (7)", 50) == "FP409"
    assert await plain.direct(plain.a, "INSERT INTO t (no) VALUES (8)", 10) == "ok", "no floor has risen"


async def test_rows_that_were_deleted_and_made_again_meanwhile_have_the_highest_mark(plain: Race) -> None:
    """Their marks were under names of the old type, so it is not known which was whose."""
    await deleted(plain, "date", "'2024-01-01'")
    assert await plain.direct(plain.a, "INSERT INTO t VALUES ('2024-01-02', 1), ('2024-01-03', 1)", 60) == "ok"
    await unprotect(plain.observer, "t")
    await plain.observer.execute("DELETE FROM t WHERE k = '2024-01-02'; INSERT INTO t VALUES ('2024-01-02')")
    await plain.observer.execute("ALTER TABLE t ALTER k TYPE timestamp")
    await protect(plain.observer, "t")
    assert await plain.direct(plain.a, "UPDATE t SET n = 2 WHERE k = '2024-01-02'", 55) == "FP409"
    assert await plain.direct(plain.a, "UPDATE t SET n = 2 WHERE k = '2024-01-02'", 61) == "ok"


async def test_rows_that_have_kept_their_marks_keep_them(plain: Race) -> None:
    await deleted(plain, "date", "'2024-01-01'")
    assert await plain.direct(plain.a, "INSERT INTO t VALUES ('2024-01-02', 1)", 10) == "ok"
    assert await plain.direct(plain.a, "INSERT INTO t VALUES ('2024-01-03', 1)", 90) == "ok"
    await meanwhile(plain.observer, "t", "ALTER TABLE t ALTER k TYPE timestamp")
    assert await plain.direct(plain.a, "UPDATE t SET n = 2 WHERE k = '2024-01-02'", 11) == "ok"
    assert await plain.direct(plain.a, "INSERT INTO t VALUES ('2024-01-01')", 89) == "FP409"


async def test_in_one_transaction_a_key_gets_another_type(plain: Race) -> None:
    await deleted(plain, "date", "'2024-01-01'")
    async with plain.observer.transaction():
        await meanwhile(plain.observer, "t", "ALTER TABLE public.t ALTER k TYPE timestamp")
    assert await plain.direct(plain.a, "INSERT INTO t VALUES ('2024-01-01')", 40) == "FP409"


async def test_a_row_made_again_while_unprotected_rises_where_its_keys_text_changed(plain: Race) -> None:
    """Seen by the storm of DDL: the mark of the deleted key is not found under the new text, and the row has none."""
    for number, (kind, key, retype, _) in enumerate(OTHER_TYPES.values()):
        table = f"t{number}"
        await deleted(plain, kind, key, table)
        await meanwhile(plain.observer, table, f"INSERT INTO {table} (k) VALUES ({key}); ALTER TABLE {table} {retype}")
        assert await plain.direct(plain.a, f"UPDATE {table} SET n = 1", 40) == "FP409", kind
        assert await plain.direct(plain.a, f"UPDATE {table} SET n = 1", 51) == "ok", kind


# How the gateway looks API keys up: together, with one connection, by an announcement or without.


class Counting(ApiKeys):
    """Counts the connections that it is lent."""

    def __init__(self, database: Database) -> None:
        self.lent = 0

        def lend() -> Database:
            self.lent += 1
            return database

        super().__init__(lend)


@pytest.fixture
async def opened(database: str) -> AsyncIterator[Database]:
    opened = await Database.open(database, Limits(pool_size=2))
    yield opened
    await opened.close()


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    return await connect()


async def test_a_caller_is_as_the_key_says(opened: Database, owner: Connection) -> None:
    keys = ApiKeys(lambda: opened)
    key_id, key = await api_keys.create(owner, NewKey("postgres", ("read", "lock"), ("orders/*",), 3600, ""))
    now = asyncio.get_running_loop().time()
    caller = await keys.verify(key)
    assert isinstance(caller, Caller)
    assert (caller.name, caller.role, caller.access, caller.locks) == (
        f"key:{key_id}",
        "postgres",
        frozenset({"read", "lock"}),
        ("orders/*",),
    )
    assert caller.ends is not None
    assert now + 290 < caller.ends < now + 310, "a stream of an hour's key ends in five minutes, and is opened anew"
    rotated = await api_keys.rotate(owner, key_id, overlap=60, expires_in=None)
    old, new = await keys.verify(key), await keys.verify(rotated)
    assert isinstance(old, Caller)
    assert isinstance(new, Caller)
    assert old.name == new.name == caller.name, "leases stay its own"
    assert old.ends is not None
    assert old.ends < now + 120, "the old secret ends before the key does"
    _, unbounded = await api_keys.create(owner, FOR_ALL)
    found = await keys.verify(unbounded)
    assert isinstance(found, Caller)
    assert (found.access is EVERY_ACCESS, found.locks, found.role) == (True, None, None)
    assert found.ends is not None
    assert now + 290 < found.ends < now + 310, "and of a key without an end as well"


async def test_many_lookups_are_a_few_questions(opened: Database, owner: Connection) -> None:
    keys = Counting(opened)
    _, key = await api_keys.create(owner, FOR_ALL)
    wanted = [key, *(f"fp_{n}_{'0' * 48}" for n in range(200))] * 2
    found = await asyncio.gather(*(keys.verify(each) for each in wanted))
    assert keys.lent == 1, "all were wanted before the first question"
    assert [isinstance(each, Caller) for each in found] == ([True] + [False] * 200) * 2


async def test_a_lookup_that_is_given_up_is_there_for_others(opened: Database, owner: Connection) -> None:
    keys = Counting(opened)
    _, key = await api_keys.create(owner, FOR_ALL)
    first, second = (asyncio.create_task(keys.verify(key)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert isinstance(await second, Caller)
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_requests_that_have_all_connections_keep_no_key_out(opened: Database, owner: Connection) -> None:
    keys = ApiKeys(lambda: opened)
    _, key = await api_keys.create(owner, FOR_ALL)
    async with opened.connection(), opened.connection():
        assert opened.all_lent
        assert isinstance(await keys.verify(key), Caller)


async def test_a_database_that_cannot_be_asked_is_no_refusal(database: str, owner: Connection) -> None:
    opened = await Database.open(database, Limits(pool_size=1))
    _, key = await api_keys.create(owner, FOR_ALL)
    await opened.close()
    found = await ApiKeys(lambda: opened).verify(key)
    assert isinstance(found, Problem)
    assert (found.name, found.http_status, found.retry_after) == ("FP039", 503, 1)


async def test_a_fault_of_ours_is_raised_by_all_who_asked(
    opened: Database, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_asked: object) -> None:
        raise ValueError("a fault")

    keys = ApiKeys(lambda: opened)
    _, key = await api_keys.create(owner, FOR_ALL)
    monkeypatch.setattr(api_keys, "look_up", broken)
    found = await asyncio.gather(keys.verify(key), keys.verify(key), return_exceptions=True)
    assert [type(each) for each in found] == [ValueError, ValueError]


async def test_the_work_of_comparing_shows_nothing(
    opened: Database, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ApiKeys(lambda: opened)
    key_id, key = await api_keys.create(owner, FOR_ALL)
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(verifying, "compare_digest", compare)
    counts = []
    for presented in (key, f"fp_{key_id}_0", "fp_unknown_0"):
        compared.clear()
        await keys.verify(presented)
        assert all(len(one) == len(other) == 32 for one, other in compared), "hashes are compared, never secrets"
        counts.append(len(compared))
    assert counts == [2, 2, 2]


async def test_uses_are_noted_now_and_then(opened: Database, owner: Connection) -> None:
    keys = ApiKeys(lambda: opened)
    key_id, key = await api_keys.create(owner, FOR_ALL)
    other_id, _ = await api_keys.create(owner, FOR_ALL)
    await keys.verify(key)
    await keys.verify(f"fp_{other_id}_0")

    async def used() -> set[str]:
        return {each.id for each in await api_keys.list_keys(owner) if each.used_at}

    assert await used() == set()
    await keys.note_uses()
    assert await used() == {key_id}
    transaction = owner.transaction()
    await transaction.start()
    await owner.execute("SELECT FROM fencepost.api_keys FOR UPDATE")
    await keys.verify(key)
    await keys.note_uses()  # waits for no lock
    await transaction.rollback()


@asynccontextmanager
async def listening(listener: Listener) -> AsyncIterator[None]:
    task = asyncio.create_task(listener.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_change_of_keys_loads_no_tables(owner: Connection, database: str) -> None:
    """It is heard while tables are loaded, and they are not loaded once more because of it."""
    forgotten, loaded, woken, loading = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Queue[None]()

    async def reload() -> None:
        loading.put_nowait(None)
        await loaded.wait()

    listener = Listener(
        dsn=database,
        reload=reload,
        lost=pytest.fail,
        channels={"x": lambda _payload: woken.set()},
        connected=(),
        keys=Announcements(forgotten.set),
    )
    async with listening(listener):
        await asyncio.wait_for(loading.get(), PATIENCE)
        forgotten.clear()
        key_id, _ = await api_keys.create(owner, FOR_ALL)
        await api_keys.revoke(owner, key_id)
        await asyncio.wait_for(forgotten.wait(), PATIENCE)
        loaded.set()
        await owner.execute("NOTIFY x")
        await asyncio.wait_for(woken.wait(), PATIENCE)
        assert loading.empty()
        await owner.execute("NOTIFY fencepost, 'reload'")
        await asyncio.wait_for(loading.get(), PATIENCE)


async def test_a_key_is_not_kept_for_long_while_announcements_are_not_heard(
    opened: Database, owner: Connection, database: str
) -> None:
    """The connection that listens cannot be made again; the one that looks keys up can."""
    clock = ManualClock()
    keys = Counting(opened)
    authenticator = Authenticator([keys])
    announcements = Announcements(authenticator.forget, Times(clock=clock))
    heard, lost = asyncio.Event(), asyncio.Event()

    async def reload() -> None: ...

    async with cutting_proxy(database, lambda: None, 1) as (proxy, through):
        listener = Listener(
            dsn=through,
            reload=reload,
            lost=lambda _reason: lost.set(),
            channels={},
            connected=(heard.set,),
            keys=announcements,
        )
        async with listening(listener):
            await asyncio.wait_for(heard.wait(), PATIENCE)
            key_id, key = await api_keys.create(owner, FOR_ALL)
            header = f"Bearer {key}".encode()
            assert isinstance(await authenticator.identify(header), Caller)
            assert authenticator.known(header) is not None
            proxy.refusing = True
            proxy.cut_all()
            await asyncio.wait_for(lost.wait(), PATIENCE)
            assert authenticator.known(header) is None, "the loss itself has it forgotten"
            assert isinstance(await authenticator.identify(header), Caller)
            assert authenticator.known(header) is not None
            forgetting = asyncio.create_task(announcements.forget_while_unheard())
            await api_keys.revoke(owner, key_id)  # announced to nobody
            await clock.advance(TIMES.identity.unheard_for)
            assert authenticator.known(header) is None
            assert isinstance(await authenticator.identify(header), Problem)
            forgetting.cancel()
