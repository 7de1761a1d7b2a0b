"""`migrate --owner ROLE`: the schema fencepost has an owner of its own; what it has already changes hands."""

from pathlib import Path

import asyncpg
import pytest
from tests.support.house import ORDERS, House
from tests.support.next_version import next_version

from fencepost.storage.protecting.protect import protect
from fencepost.storage.schema.migrate import upgrade
from fencepost.storage.schema.revisions import newest
from fencepost.storage.upkeep.generations import raise_generation


@pytest.mark.versions
async def test_everything_belongs_to_the_owner_who_cannot_log_in(house: House) -> None:
    for _again in range(2):
        made = await house.command("migrate", "--owner", house.owner)
        assert (made.exit_code, made.output) == (0, f"the schema fencepost is at revision {newest()}\n")
        assert await house.foreign() == []
    assert await house.root.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = $1", house.owner) is False
    assert (await house.command("doctor")).exit_code == 0


async def test_a_schema_of_another_role_changes_hands_with_all_that_is_in_it(house: House) -> None:
    await house.root.execute(ORDERS)
    await upgrade(house.url)
    await protect(house.root, "orders")
    await house.root.execute("INSERT INTO public.orders (id, last_fence_token) VALUES (1, 10)")
    assert (await house.command("migrate", "--owner", house.owner)).exit_code == 0
    assert await house.foreign() == []
    with pytest.raises(asyncpg.PostgresError, match="stale token 9"):
        await house.root.execute("SET fencepost.token = '9'; UPDATE public.orders SET v = 'x'")
    await house.root.execute("SET fencepost.token = '11'; UPDATE public.orders SET v = 'x'")


async def test_a_later_migrate_keeps_the_owner_and_gives_him_what_is_new(house: House, tmp_path: Path) -> None:
    await upgrade(house.url, owner=house.owner)
    assert await house.foreign() == []
    made = "CREATE FUNCTION fencepost.future() RETURNS integer LANGUAGE sql RETURN 1"
    with next_version(tmp_path, newest(), ["CREATE TABLE fencepost.future (id integer PRIMARY KEY)", made], {}):
        await upgrade(house.url)
        assert await house.root.fetchval("SELECT fencepost.future()") == 1
        assert await house.foreign() == []
        await house.root.execute("ALTER TABLE fencepost.floors OWNER TO CURRENT_USER")
        assert await house.foreign() != []
        assert (await house.command("migrate")).exit_code == 0
        assert await house.foreign() == [], "what strayed comes back"


async def test_what_belongs_to_others_is_left_to_them_unless_all_shall_change_hands(house: House) -> None:
    made = await house.command("migrate", "--owner", house.owner, role=house.admin)
    assert made.exit_code == 0, made.output
    await house.root.execute("ALTER TABLE fencepost.floors OWNER TO CURRENT_USER")
    assert (await house.command("migrate", role=house.admin)).exit_code == 0
    assert [each.partition(" of ")[0] for each in await house.foreign()] == ["floors", "floors", "_floors"]
    answer = await house.command("migrate", "--owner", house.owner, role=house.admin)
    assert (answer.exit_code, "must be owner of table floors" in answer.output) == (1, True), answer.output


async def test_a_table_that_came_into_the_schema_by_itself_is_left_alone(house: House) -> None:
    await upgrade(house.url)
    await house.root.execute("CREATE TABLE fencepost.theirs (id int)")
    await upgrade(house.url, owner=house.owner)
    assert {each.partition(" of ")[0] for each in await house.foreign()} == {"theirs", "_theirs"}


@pytest.mark.versions
async def test_a_role_that_may_make_roles_needs_no_superuser(house: House) -> None:
    """The whole of it: migrate, protect, change, migrate again, unprotect, by an administrator who is none."""
    made = await house.command("migrate", "--owner", house.owner, "--gateway-role", house.app, role=house.admin)
    assert made.exit_code == 0, made.output
    assert await house.foreign() == []
    await house.root.execute(f"GRANT CREATE ON SCHEMA public TO {house.admin}")
    admin = await house.login(house.admin)
    await admin.execute(ORDERS)
    for arguments in (
        ("protect", "orders"),
        ("protect", "orders", "--rule", "epoch"),
        ("protect", "orders", "--source", "builtin"),
        ("protect", "orders", "--scope", "account/{id}"),
        ("migrate",),
        ("protect", "orders", "--no-scope"),
    ):
        done = await house.command(*arguments, role=house.admin)
        assert done.exit_code == 0, (arguments, done.output)
        assert await house.foreign() == [], arguments
    assert await raise_generation(admin, "test") > 0
    doctor = await house.command("doctor", role=house.admin)
    assert doctor.exit_code == 0, doctor.output
    assert (await house.command("unprotect", "orders", role=house.admin)).exit_code == 0


async def test_who_may_not_make_the_role_is_refused_with_the_reason(house: House) -> None:
    await house.root.execute(f"GRANT CREATE ON DATABASE owned_{house.number} TO {house.app}")
    refused = await house.command("migrate", "--owner", house.owner, role=house.app)
    assert refused.exit_code == 1
    assert f"there is no role {house.owner}, and {house.app} may not create one" in refused.output
    assert f'CREATE ROLE "{house.owner}" NOLOGIN' in refused.output
    assert await house.root.fetchval("SELECT to_regnamespace('fencepost') IS NULL"), "nothing was begun"


async def test_who_may_not_act_as_the_role_is_refused_with_the_reason(house: House) -> None:
    await house.root.execute(
        f'CREATE ROLE "{house.owner}"; GRANT CREATE ON DATABASE owned_{house.number} TO {house.app}'
    )
    refused = await house.command("migrate", "--owner", house.owner, role=house.app)
    assert (refused.exit_code, "is not a member of the role" in refused.output) == (1, True), refused.output
    assert (await house.command("migrate", "--owner", house.owner)).exit_code == 0
    again = await house.command("migrate", role=house.app)
    assert (again.exit_code, "which the schema fencepost belongs to" in again.output) == (1, True), again.output
    assert await house.foreign() == []


async def test_a_blank_name_is_no_owner(house: House) -> None:
    assert (await house.command("migrate", "--owner", " ")).exit_code == 2
    assert await house.root.fetchval("SELECT to_regnamespace('fencepost') IS NULL")


@pytest.mark.parametrize("at_first", [True, False])
async def test_the_printed_sql_does_the_same(house: House, at_first: bool) -> None:
    printed = await house.command("migrate", "--owner", house.owner, "--gateway-role", house.app, "--sql")
    assert printed.exit_code == 0
    await house.root.execute(printed.output)
    assert await house.root.fetchval("SELECT current_user = session_user"), "the script acts as the owner only inside"
    assert await house.foreign() == []
    if not at_first:
        assert (await house.command("migrate")).exit_code == 0
    assert (await house.command("doctor")).exit_code == 0
