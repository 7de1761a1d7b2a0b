"""`migrate --owner ROLE`: the schema fencepost has an owner of its own; what it has already changes hands."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from tests.support.gateways import ORDERS, OwnedDatabase, building, next_version

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
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
