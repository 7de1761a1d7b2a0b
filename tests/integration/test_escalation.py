"""What a table's owner does to the table must not run in the name of the schema's owner, whichever client writes."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.gateways import OwnedDatabase, building
from tests.support.interleave import Connection

from fencepost.server.ops.checks import ProtectError
from fencepost.server.ops.doctor_tables import examine_functions, examine_tables
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import apply, plan_protect, plan_unprotect, protect, unprotect

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


CHANGES = {
    "the mark's type": (
        "bigint", "77", "DROP TRIGGER zzz_fencepost_ins ON t; DROP TRIGGER zzz_fencepost_upd ON t;"
        "ALTER TABLE t DROP CONSTRAINT fencepost_mark; ALTER TABLE t ALTER last_fence_token DROP DEFAULT;"
        "ALTER TABLE t ALTER last_fence_token TYPE public.ct USING ROW(last_fence_token)::public.ct",
        "INSERT INTO t VALUES ('b', 1, ROW('91'))", "DELETE FROM t"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
async def test_a_column_that_gets_a_type_of_its_owners_is_not_read_in_our_name(
    owned: OwnedDatabase, change: str
) -> None:
    type_, value, alter, insert, delete = CHANGES[change]
    app = await owned.login(owned.app)
    await app.execute("CREATE TABLE public.t (id text PRIMARY KEY, n int)")
    await protect(owned.root, "t")
    await app.execute("INSERT INTO t (id, last_fence_token) VALUES ('a', 10)")
    await app.execute(EVIL.format(type=type_, value=value))
    await app.execute(alter)
    fresh = await owned.login(owned.app)
    for statement in (insert, delete):
        assert await tried(fresh, statement) == "FP000", statement
    await unprotect(owned.root, "t")
    assert await seen_as(owned) <= {owned.app}, "in no other name than the owner's"


@pytest.mark.parametrize("change", CHANGES)
async def test_unprotect_reads_no_column_that_has_changed_since_it_looked(owned: OwnedDatabase, change: str) -> None:
    type_, value, alter, *_ = CHANGES[change]
    app = await owned.login(owned.app)
    await app.execute("CREATE TABLE public.t (id text PRIMARY KEY, n int)")
    await protect(owned.root, "t")
    await app.execute("INSERT INTO t (id, last_fence_token) VALUES ('a', 10)")
    await app.execute(EVIL.format(type=type_, value=value))
    plan = await plan_unprotect(owned.root, "t")
    await app.execute(alter)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await apply(owned.root, plan)
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
    app = await owned.login(owned.app)
    await app.execute("CREATE TABLE public.t (id text PRIMARY KEY, n int)")
    await protect(owned.root, "t")
    await app.execute("INSERT INTO t (id, last_fence_token) VALUES ('a', 10)")
    await app.execute(EVIL.format(type="text", value="'x'"))
    plan = await plan_unprotect(owned.root, "t")
    assert await tried(app, "ALTER TABLE t ALTER id TYPE public.ct USING ROW(id)::public.ct") == "0A000"
    await app.execute("ALTER TABLE t RENAME id TO was; ALTER TABLE t ADD id public.ct DEFAULT ROW('q')")
    fresh = await owned.login(owned.app)
    assert await tried(fresh, "INSERT INTO t (was, last_fence_token) VALUES ('b', 91)") == "ok"
    assert await tried(fresh, "DELETE FROM t WHERE was = 'a'") == "ok"
    await apply(owned.root, plan)
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
    await unprotect(owned.root, "t")
    await owned.root.execute("INSERT INTO t VALUES ('c', 'b', 0)")
    await protect(owned.root, "t")
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
        "DROP TABLE t",
    ):
        await app.execute("DROP TABLE IF EXISTS public.was CASCADE; CREATE TABLE public.t (id text PRIMARY KEY, n int)")
        plans = [await plan_protect(owned.root, "t", None, None)]
        plans.append(await plan_protect(owned.root, "t", None, None, scope="acc/{id}"))
        await app.execute(change)
        for plan in plans:
            with pytest.raises((ProtectError, asyncpg.PostgresError)) as refused:
                await apply(owned.root, plan)
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
    findings = [*await examine_tables(owned.root), *await examine_functions(owned.root)]
    assert [each for each in findings if each.level == "error"] == []
