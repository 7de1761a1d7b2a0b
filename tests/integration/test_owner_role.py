"""`migrate --owner ROLE`: the schema fencepost has an owner of its own; what it has already changes hands."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.gateways import ORDERS, OwnedDatabase, building, in_process, next_version
from tests.support.interleave import Connection

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import ProtectError, protect, unprotect
from fencepost.server.ops.schema import newest
from fencepost.server.postgres.upkeep import raise_generation


@pytest.fixture
async def owned(postgres: PostgresServer) -> AsyncIterator[OwnedDatabase]:
    async with building(postgres) as owned:
        yield owned


@pytest.mark.versions
async def test_everything_belongs_to_the_owner_who_cannot_log_in(owned: OwnedDatabase) -> None:
    for _again in range(2):
        made = await owned.command("migrate", "--owner", owned.owner)
        assert (made.exit_code, made.output) == (0, f"the schema fencepost is at revision {newest()}\n")
        assert await owned.foreign() == []
    assert await owned.root.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = $1", owned.owner) is False
    assert (await owned.command("doctor")).exit_code == 0


async def test_a_schema_of_another_role_changes_hands_with_all_that_is_in_it(owned: OwnedDatabase) -> None:
    await owned.root.execute(ORDERS)
    await upgrade(owned.url)
    await protect(owned.root, "orders")
    await owned.root.execute("INSERT INTO public.orders (id, last_fence_token) VALUES (1, 10)")
    assert (await owned.command("migrate", "--owner", owned.owner)).exit_code == 0
    assert await owned.foreign() == []
    with pytest.raises(asyncpg.PostgresError, match="stale token 9"):
        await owned.root.execute("SET fencepost.token = '9'; UPDATE public.orders SET v = 'x'")
    await owned.root.execute("SET fencepost.token = '11'; UPDATE public.orders SET v = 'x'")


async def test_a_later_migrate_keeps_the_owner_and_gives_him_what_is_new(owned: OwnedDatabase, tmp_path: Path) -> None:
    await upgrade(owned.url, owner=owned.owner)
    assert await owned.foreign() == []
    made = "CREATE FUNCTION fencepost.future() RETURNS integer LANGUAGE sql RETURN 1"
    with next_version(tmp_path, newest(), ["CREATE TABLE fencepost.future (id integer PRIMARY KEY)", made], {}):
        await upgrade(owned.url)
        assert await owned.root.fetchval("SELECT fencepost.future()") == 1
        assert await owned.foreign() == []
        await owned.root.execute("ALTER TABLE fencepost.floors OWNER TO CURRENT_USER")
        assert await owned.foreign() != []
        assert (await owned.command("migrate")).exit_code == 0
        assert await owned.foreign() == [], "what strayed comes back"


async def test_what_belongs_to_others_is_left_to_them_unless_all_shall_change_hands(owned: OwnedDatabase) -> None:
    made = await owned.command("migrate", "--owner", owned.owner, role=owned.admin)
    assert made.exit_code == 0, made.output
    await owned.root.execute("ALTER TABLE fencepost.floors OWNER TO CURRENT_USER")
    assert (await owned.command("migrate", role=owned.admin)).exit_code == 0
    assert [each.partition(" of ")[0] for each in await owned.foreign()] == ["floors", "floors", "_floors"]
    answer = await owned.command("migrate", "--owner", owned.owner, role=owned.admin)
    assert (answer.exit_code, "must be owner of table floors" in answer.output) == (1, True), answer.output


async def test_a_table_that_came_into_the_schema_by_itself_is_left_alone(owned: OwnedDatabase) -> None:
    await upgrade(owned.url)
    await owned.root.execute("CREATE TABLE fencepost.theirs (id int)")
    await upgrade(owned.url, owner=owned.owner)
    assert {each.partition(" of ")[0] for each in await owned.foreign()} == {"theirs", "_theirs"}


@pytest.mark.versions
async def test_a_role_that_may_make_roles_needs_no_superuser(owned: OwnedDatabase) -> None:
    """The whole of it: migrate, protect, change, migrate again, unprotect, by an administrator who is none."""
    made = await owned.command("migrate", "--owner", owned.owner, "--gateway-role", owned.app, role=owned.admin)
    assert made.exit_code == 0, made.output
    assert await owned.foreign() == []
    await owned.root.execute(f"GRANT CREATE ON SCHEMA public TO {owned.admin}")
    admin = await owned.login(owned.admin)
    await admin.execute(ORDERS)
    for arguments in (
        ("protect", "orders"),
        ("protect", "orders", "--rule", "epoch"),
        ("protect", "orders", "--source", "builtin"),
        ("protect", "orders", "--scope", "account/{id}"),
        ("migrate",),
        ("protect", "orders", "--no-scope"),
    ):
        done = await owned.command(*arguments, role=owned.admin)
        assert done.exit_code == 0, (arguments, done.output)
        assert await owned.foreign() == [], arguments
    assert await raise_generation(admin, "test") > 0
    doctor = await owned.command("doctor", role=owned.admin)
    assert doctor.exit_code == 0, doctor.output
    assert (await owned.command("unprotect", "orders", role=owned.admin)).exit_code == 0


async def test_who_may_not_make_the_role_is_refused_with_the_reason(owned: OwnedDatabase) -> None:
    await owned.root.execute(f"GRANT CREATE ON DATABASE owned_{owned.number} TO {owned.app}")
    refused = await owned.command("migrate", "--owner", owned.owner, role=owned.app)
    assert refused.exit_code == 1
    assert f"there is no role {owned.owner}, and {owned.app} may not create one" in refused.output
    assert f'CREATE ROLE "{owned.owner}" NOLOGIN' in refused.output
    assert await owned.root.fetchval("SELECT to_regnamespace('fencepost') IS NULL"), "nothing was begun"


async def test_who_may_not_act_as_the_role_is_refused_with_the_reason(owned: OwnedDatabase) -> None:
    await owned.root.execute(
        f'CREATE ROLE "{owned.owner}"; GRANT CREATE ON DATABASE owned_{owned.number} TO {owned.app}'
    )
    refused = await owned.command("migrate", "--owner", owned.owner, role=owned.app)
    assert (refused.exit_code, "is not a member of the role" in refused.output) == (1, True), refused.output
    assert (await owned.command("migrate", "--owner", owned.owner)).exit_code == 0
    again = await owned.command("migrate", role=owned.app)
    assert (again.exit_code, "which the schema fencepost belongs to" in again.output) == (1, True), again.output
    assert await owned.foreign() == []


async def test_a_blank_name_is_no_owner(owned: OwnedDatabase) -> None:
    assert (await owned.command("migrate", "--owner", " ")).exit_code == 2
    assert await owned.root.fetchval("SELECT to_regnamespace('fencepost') IS NULL")


@pytest.mark.parametrize("at_first", [True, False])
async def test_the_printed_sql_does_the_same(owned: OwnedDatabase, at_first: bool) -> None:
    printed = await owned.command("migrate", "--owner", owned.owner, "--gateway-role", owned.app, "--sql")
    assert printed.exit_code == 0
    await owned.root.execute(printed.output)
    assert await owned.root.fetchval("SELECT current_user = session_user"), "the script acts as the owner only inside"
    assert await owned.foreign() == []
    if not at_first:
        assert (await owned.command("migrate")).exit_code == 0
    assert (await owned.command("doctor")).exit_code == 0


# The owner of tables cannot touch marks, nor what the schema's owner has.


@pytest.fixture
async def migrated(postgres: PostgresServer, template: str) -> AsyncIterator[OwnedDatabase]:
    async with building(postgres, template) as owned:
        yield owned


@pytest.fixture
async def fenced(migrated: OwnedDatabase) -> tuple[OwnedDatabase, Connection]:
    """Give a migrated database with an owner, where the table orders of `app` was protected by a superuser; and `app`'s
    connection.
    """
    made = await migrated.command("migrate", "--owner", migrated.owner)
    assert made.exit_code == 0, made.output
    app = await migrated.login(migrated.app)
    await app.execute(ORDERS)
    await protect(migrated.root, "orders")
    await app.execute("INSERT INTO public.orders (id, last_fence_token) VALUES (1, 10), (2, 10)")
    await app.execute("BEGIN; SET LOCAL fencepost.token = '20'; DELETE FROM public.orders WHERE id = 2; COMMIT")
    return migrated, app


async def test_a_tables_owner_touches_nothing_of_ours(fenced: tuple[OwnedDatabase, Connection]) -> None:
    owned, app = fenced
    before = await owned.root.fetch("SELECT * FROM fencepost.marks ORDER BY 1")
    may_not = [
        "DELETE FROM fencepost.marks",
        "UPDATE fencepost.marks SET last_fence_token = 1",
        "INSERT INTO fencepost.marks VALUES ('orders/1', 1, '1', true)",
        "TRUNCATE fencepost.marks",
        "SELECT FROM fencepost.marks",
        "UPDATE fencepost.floors SET floor = 0",
        "DELETE FROM fencepost.floors",
        "DELETE FROM fencepost.protected",
        "UPDATE fencepost.protected SET rule = 'epoch'",
        "DELETE FROM fencepost.break_glass_log",
        "INSERT INTO fencepost.break_glass_log (name, verb, resource, reason) VALUES ('a', 'b', 'c', 'd')",
        "ALTER TABLE fencepost.break_glass_log DISABLE TRIGGER ALL",
        "UPDATE fencepost.generations SET reason = 'x'",
        "INSERT INTO fencepost.generations VALUES (9, gen_random_uuid(), 1, 1, 1, 1, NULL, now(), 'x', 'x')",
        "UPDATE fencepost.leases SET secret_hash = NULL",
        "DELETE FROM fencepost.idempotency",
        "SELECT FROM fencepost.api_keys",
        "UPDATE fencepost.api_keys SET revoked_at = NULL",
        "SELECT fencepost.api_keys_of('{a}')",
        "ALTER TABLE fencepost.marks ADD COLUMN mine int",
        "DROP TABLE fencepost.marks CASCADE",
        "ALTER SEQUENCE fencepost.tokens RESTART",
        "SELECT nextval('fencepost.tokens')",
        "SELECT setval('fencepost.tokens', 1)",
        "SELECT fencepost.raise_mark('orders/1', 9223372036854775807, 'strict', true)",
        "SELECT fencepost.prune('orders', 99)",
        "SELECT fencepost.raise_generation('mine')",
        "SELECT fencepost.issue_beyond(5)",
        "CREATE OR REPLACE FUNCTION fencepost.token_from_setting(tab text) RETURNS bigint LANGUAGE sql AS"
        " 'SELECT 99::bigint'",
        "CREATE OR REPLACE FUNCTION fencepost.is_own_write(writer xid) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
        "CREATE FUNCTION fencepost.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE fencepost.mine ()",
        "DROP SCHEMA fencepost CASCADE",
        "ALTER SCHEMA fencepost RENAME TO other",
        "SET session_replication_role = replica",
    ]  # fmt: skip
    for statement in may_not:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute(statement)
    assert await owned.root.fetch("SELECT * FROM fencepost.marks ORDER BY 1") == before


async def test_a_tables_owner_cannot_change_its_trigger_functions(fenced: tuple[OwnedDatabase, Connection]) -> None:
    owned, app = fenced
    functions = await owned.root.fetch(
        "SELECT f.oid::regprocedure::text AS called, f.prorettype = 'trigger'::regtype AS of_trigger, f.proname"
        "  FROM pg_proc f, fencepost.protected p WHERE starts_with(f.proname, p.functions)"
    )
    assert len(functions) == 7
    for function in functions:
        called = function["called"]
        for statement in (
            f"ALTER FUNCTION {called} SECURITY INVOKER",
            f"ALTER FUNCTION {called} SET search_path = public",
            f"ALTER FUNCTION {called} OWNER TO {owned.app}",
            f"DROP FUNCTION {called} CASCADE",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await app.execute(statement)
        if function["of_trigger"]:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await app.execute(
                    f"CREATE OR REPLACE FUNCTION {called} RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
                )
    with pytest.raises(asyncpg.PostgresError, match="stale token 19"):
        await app.execute("INSERT INTO public.orders (id, last_fence_token) VALUES (2, 19)")


async def test_three_roles_do_all_that_one_did(fenced: tuple[OwnedDatabase, Connection]) -> None:
    """The schema's, the tables', the gateway's: none of them a superuser's, and every request is answered."""
    owned, app = fenced
    gate = owned.admin  # logs in, and is no member of the others
    assert (await owned.command("migrate", "--gateway-role", gate)).exit_code == 0
    await app.execute("CREATE TABLE public.items (id int PRIMARY KEY, account_id int NOT NULL)")
    await protect(owned.root, "items", source="builtin", scope="account/{account_id}")
    await app.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON public.orders, public.items TO {gate}")
    async with in_process(owned.url_of(gate)) as http:

        async def ask(method: str, path: str, body: object, status: int, **headers: str) -> Any:
            answer = await http.request(
                method, path, json=body, headers={name.replace("_", "-"): value for name, value in headers.items()}
            )
            assert answer.status_code == status, (method, path, answer.text)
            return answer.json() if answer.content else None

        lease = await ask("POST", "/v1/leases", {"lock": "account/7", "owner": "me", "ttl_ms": 30000, "tokens": 3}, 201)
        mine = {"X_Lease_Secret": lease["secret"]}
        first, second, third = lease["tokens"]
        await ask("POST", "/v1/data/items", {"id": 1, "account_id": 7}, 201, X_Fence_Token=first, Idempotency_Key="a")
        await ask("POST", "/v1/data/items", {"id": 1, "account_id": 7}, 201, X_Fence_Token=first, Idempotency_Key="a")
        await ask("POST", "/v1/claims", {"resource": "account/7"}, 200, X_Fence_Token=second)
        await ask("DELETE", "/v1/data/items?account_id=eq.7", None, 204, X_Fence_Token=third)
        await ask("PUT", "/v1/data/items/2", {"account_id": 7}, 409, X_Fence_Token=first)
        (minted,) = (await ask("POST", f"/v1/leases/{lease['lease_id']}/tokens", {"count": 1}, 200, **mine))["tokens"]
        await ask("PUT", "/v1/data/items/2", {"account_id": 7}, 201, X_Fence_Token=minted)
        await ask("POST", f"/v1/leases/{lease['lease_id']}/renew", {}, 200, **mine)
        assert len(await ask("GET", "/v1/locks", None, 200)) == 1
        await ask("DELETE", f"/v1/leases/{lease['lease_id']}", None, 204, **mine)
        await ask("PUT", "/v1/data/orders/2", {"v": "x"}, 409, X_Fence_Token="20")
        await ask("PUT", "/v1/data/orders/2", {"v": "x"}, 201, X_Fence_Token="21")
        await ask("PATCH", "/v1/data/orders?id=gt.0", {"v": "y"}, 204, X_Fence_Token="22")
        await ask("DELETE", "/v1/data/orders/2", None, 204, X_Fence_Token="23")
        assert (await ask("GET", "/v1/fences?resource=orders/2", None, 200))["mark"] == "23"
        await ask("GET", "/readyz", None, 200)
    assert await owned.foreign() == []
    direct = await owned.login(gate)
    for statement in ("DELETE FROM fencepost.marks", "UPDATE fencepost.floors SET floor = 0"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await direct.execute(statement)
    doctor = await owned.command("doctor", role=gate)
    assert doctor.exit_code == 0, doctor.output


async def test_doctor_names_whose_marks_are(fenced: tuple[OwnedDatabase, Connection]) -> None:
    owned, _app = fenced
    message = f"ok       owner: the schema fencepost and all in it belongs to {owned.owner}"
    assert message in (await owned.command("doctor")).output.splitlines()
    await owned.root.execute(f'GRANT "{owned.owner}" TO {owned.app}')
    lines = (await owned.command("doctor")).output.splitlines()
    assert f"{message}, as whom the owners of these tables may act too: orders (`migrate --owner` parts them)" in lines


async def test_a_tables_owner_cannot_protect_without_the_schemas_role(fenced: tuple[OwnedDatabase, Connection]) -> None:
    owned, app = fenced
    await app.execute("CREATE TABLE public.more (id int PRIMARY KEY)")
    await owned.root.execute(f"GRANT SELECT ON fencepost.protected, fencepost.alembic_version TO {owned.app}")
    with pytest.raises(ProtectError, match=f"belongs to {owned.owner}, and {owned.app} may not act as that role"):
        await protect(app, "more")
    with pytest.raises(ProtectError, match=f"{owned.app} may not act as both"):
        await unprotect(app, "orders")
    await owned.root.execute(f'GRANT "{owned.owner}" TO {owned.app}')
    await protect(app, "more")
    await unprotect(app, "orders")
    assert await owned.foreign() == []


async def test_functions_that_a_superuser_made_before_the_owner(fenced: tuple[OwnedDatabase, Connection]) -> None:
    owned, app = fenced
    stem = await owned.root.fetchval("SELECT functions FROM fencepost.protected")
    await owned.root.execute(f'ALTER FUNCTION fencepost."{stem}_upd" OWNER TO CURRENT_USER')
    await owned.root.execute(f'GRANT "{owned.owner}" TO {owned.app}')
    for work in (protect, unprotect):
        with pytest.raises(ProtectError, match=r"its functions belong to postgres|may not act as both"):
            await work(app, "orders")
    assert (await owned.command("migrate")).exit_code == 0
    await protect(app, "orders")
    await unprotect(app, "orders")


async def test_only_members_of_the_owner_break_the_glass(fenced: tuple[OwnedDatabase, Connection]) -> None:
    owned, app = fenced
    breaking = "BEGIN; SET LOCAL fencepost.break_glass = 'INC-1: test'; UPDATE public.orders SET v = 'x'; COMMIT"
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="may not break the glass"):
        await app.execute(breaking)
    await app.execute("ROLLBACK")
    await owned.root.execute(f'GRANT "{owned.owner}" TO {owned.app}')
    await app.execute(breaking)
    assert await owned.root.fetchval("SELECT login FROM fencepost.break_glass_log") == owned.app


async def test_the_functions_of_a_superuser_are_no_door_for_a_types_owner(migrated: OwnedDatabase) -> None:
    """The triggers run in their functions' owner's name; a cast that the key's enum gained would run there too."""
    app = await migrated.login(migrated.app)
    await app.execute(
        "CREATE TYPE public.size AS ENUM ('s', 'l'); CREATE TABLE public.shirts (size public.size PRIMARY KEY, n int);"
        "CREATE FUNCTION public.shown(public.size) RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
        f" EXECUTE 'ALTER ROLE {migrated.app} SUPERUSER'; RETURN 'x'; END $$;"
        "CREATE CAST (public.size AS text) WITH FUNCTION public.shown(public.size)"
    )
    await protect(migrated.root, "shirts")
    for token, statement in ((101, "INSERT INTO public.shirts VALUES ('s', 1)"), (102, "DELETE FROM public.shirts")):
        await app.execute(f"BEGIN; SET LOCAL fencepost.token = '{token}'; {statement}; COMMIT")
    marks = await migrated.root.fetch("SELECT resource FROM fencepost.marks ORDER BY 1")
    assert [row[0] for row in marks] == ["shirts/s"]
    assert await migrated.root.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = $1", migrated.app) is False
