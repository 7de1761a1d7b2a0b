"""`protect --scope` and doctor on tables of a scope: what is refused and why, and what is found amiss. Marks go along
when a table leaves a scope or enters one, whatever it and its columns are called by then (R6, R8).
"""

import pytest
from tests.support.interleave import Connect, Connection
from tests.support.postgres import Unmade
from tests.support.racing import Race, entered, mark, scoped_race
from tests.support.racing import owner as connected
from tests.support.servers import command

from fencepost.server.ops.checks import ProtectError
from fencepost.server.ops.doctor_tables import examine_tables
from fencepost.server.ops.protect import apply, plan_protect, protect, unprotect

TABLES = """
CREATE TYPE mood AS ENUM ('fair', 'foul');
CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL, note text, ratio float8 NOT NULL DEFAULT 0,
  twice int GENERATED ALWAYS AS (id * 2) STORED NOT NULL,
  mood mood NOT NULL DEFAULT 'fair', place varchar(9) NOT NULL DEFAULT 'fair');
CREATE TABLE notes (account_id bigint, no int, name text NOT NULL DEFAULT '', PRIMARY KEY (account_id, no));
CREATE TABLE account (id int PRIMARY KEY)"""


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connected(connect)
    await connection.execute(TABLES)
    return connection


async def test_a_scope_that_cannot_be_is_refused_with_its_reason(owner: Connection) -> None:
    for wanted, reason in (
        ("account", "a scope is a name, a slash and columns in braces"),
        ("ac count/{id}", "letters, digits"),
        ("a/{id},{id}", "a column is named twice"),
        ("account/{id}", "the scope's name account is that of a table"),
        ("acc/{nothing}", "nothing is no column of items"),
        ("acc/{note}", "note can be null: ALTER TABLE … ALTER COLUMN note SET NOT NULL"),
        ("acc/{ratio}", "ratio is of type double precision, whose equal values have several texts"),
        ("acc/{twice}", "twice is generated"),
        ("acc/{mood}", "mood is of the enum public.mood: renaming one of its values"),
    ):
        with pytest.raises(ProtectError) as refused:
            await protect(owner, "items", scope=wanted)
        assert reason in str(refused.value), wanted
        assert await owner.fetchval("SELECT count(*) FROM fencepost.protected") == 0, wanted


async def test_tables_of_a_scope_agree_in_types_rule_and_source(owner: Connection) -> None:
    await protect(owner, "items", scope="acc/{account_id}")
    for scope, rule, source, reason in (
        ("acc/{account_id}", "epoch", None, "items has the same scope with the rule strict"),
        ("acc/{account_id}", None, "builtin", "unprotect the others, change this one, and protect them again"),
        ("acc/{name}", None, None, "items has the scope acc/{account_id}, of other types"),
        ("acc/{account_id},{no}", None, None, "another number of columns"),
    ):
        with pytest.raises(ProtectError) as refused:
            await protect(owner, "notes", scope=scope, rule=rule, source=source)  # type: ignore[arg-type]
        assert reason in str(refused.value), (scope, reason)
    await protect(owner, "notes", scope="acc/{account_id}")
    await owner.execute("ALTER TABLE account RENAME TO acc")
    with pytest.raises(ProtectError) as refused:
        await protect(owner, "acc")
    assert "its name is that of a scope" in str(refused.value)


async def test_two_tables_that_take_a_scope_at_once_agree_too(owner: Connection) -> None:
    plans = [await plan_protect(owner, "items", "epoch", None, scope="acc/{account_id}") for _ in "12"]
    await protect(owner, "notes", scope="acc/{account_id}")
    with pytest.raises(ProtectError, match="protected with this scope and another rule, source, seal or ceiling at"):
        await apply(owner, plans[0])
    await unprotect(owner, "notes")
    await owner.execute("ALTER TABLE account RENAME TO acc")
    await protect(owner, "acc")
    with pytest.raises(ProtectError, match="a table with the name of this scope was protected at"):
        await apply(owner, plans[1])


async def test_rows_that_have_left_a_scope_take_no_floor_above_the_ceiling(owner: Connection) -> None:
    await protect(owner, "items", scope="acc/{account_id}")
    await owner.execute("SELECT fencepost.enter('acc', '{acc/7}', 90)")
    await unprotect(owner, "items")
    with pytest.raises(ProtectError, match="The floor of items is 90, above 80, the highest token that the table is"):
        await protect(owner, "items", max_token=80)
    await protect(owner, "items", max_token=90)


AMISS = [
    ("ALTER TABLE items DISABLE TRIGGER zzz_fencepost_scope", "zzz_fencepost_scope"),
    ("DROP TRIGGER zzz_fencepost_scope_ins ON items", "zzz_fencepost_scope_ins"),
    ("DROP TRIGGER zzz_fencepost_scope_upd ON items", "zzz_fencepost_scope_upd"),
    ("ALTER TABLE items ALTER account_id DROP NOT NULL", "account_id"),
    ("ALTER TABLE items RENAME account_id TO account", "account_id"),
]


@pytest.mark.parametrize(("sql", "answered"), AMISS)
async def test_doctor_finds_it_the_gateway_refuses_it_and_protect_mends_it(
    connect: Connect, database: str, sql: str, answered: str
) -> None:
    race = await scoped_race(connect, database, "strict")
    assert (await command("doctor", database=database)).exit_code == 0
    await race.observer.execute(sql)
    found = await command("doctor", database=database)
    assert found.exit_code == 1
    assert any(line.startswith("ERROR") and answered in line for line in found.output.splitlines()), found.output
    if "TRIGGER" in sql:
        assert (await command("protect", "items", database=database)).exit_code == 0
        assert (await command("doctor", database=database)).exit_code == 0
        await scoped_and_judged(race)


async def scoped_and_judged(race: Race) -> None:
    await entered(race, race.a, 50, "account/42")
    assert await race.direct(race.a, "UPDATE items SET n = 1 WHERE id = 1", 49) == "FP409"


UPDATE = "UPDATE {} SET n = n + 1"


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await scoped_race(connect, unmade, "strict")
    await entered(race, race.a, 200, "account/42")
    return race


async def unprotected_and_renamed(race: Race) -> None:
    await unprotect(race.observer, "items")
    await race.observer.execute("ALTER TABLE items RENAME TO things")


async def test_a_table_that_was_renamed_while_unprotected_has_the_marks_of_its_scope(race: Race) -> None:
    await unprotected_and_renamed(race)
    await protect(race.observer, "things")
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 42)", 150) == "FP409", (
        "nor do deleted keys lose theirs"
    )
    assert await race.direct(race.a, UPDATE.format("things"), 201) == "ok"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 42)", 202) == "ok"
    # Done with: another table of the old name begins anew.
    await race.observer.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
    await race.observer.execute("INSERT INTO items VALUES (1, 1)")
    await protect(race.observer, "items")
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"


@pytest.mark.parametrize("scope", ["", "acc/{account_id}"])
async def test_another_table_that_took_the_name_does_not_take_the_marks(race: Race, scope: str) -> None:
    await unprotected_and_renamed(race)
    await race.observer.execute("CREATE TABLE items (id int PRIMARY KEY, n int); INSERT INTO items VALUES (1, 1)")
    await protect(race.observer, "items")
    assert await race.direct(race.a, UPDATE.format("items"), 5) == "ok"
    await protect(race.observer, "things", scope=scope)
    assert await race.direct(race.a, UPDATE.format("things"), 150) == "FP409"
    assert await race.direct(race.a, "INSERT INTO things VALUES (9, 43)", 150) == "FP409"


async def test_what_was_pruned_of_the_scope_goes_along(race: Race) -> None:
    assert await race.observer.fetchval("SELECT fencepost.prune('account', 210)") > 0
    await protect(race.observer, "items", scope="")
    assert await race.direct(race.a, UPDATE.format("items"), 205) == "FP409"
    assert await race.direct(race.a, UPDATE.format("items"), 211) == "ok"


async def test_what_is_written_to_the_column_meanwhile_is_of_no_account(race: Race) -> None:
    """It is left over from a protection by rows; in a scope it judges nothing."""
    await protect(race.observer, "items", scope="")
    await protect(race.observer, "items", scope="account/{account_id}")
    garbage = "UPDATE items SET last_fence_token = 9000000000000000000"
    assert await race.direct(race.a, garbage, 300) == "ok"
    await protect(race.observer, "items", scope="acc/{account_id}")
    assert await mark(race, "acc/42") is None
    assert await race.direct(race.a, UPDATE.format("items"), 300) == "FP409", "below the floor that it brought"
    assert await race.direct(race.a, garbage, 301) == "ok"
    await protect(race.observer, "items", scope="")
    assert await race.direct(race.a, UPDATE.format("items"), 301) == "FP409"
    assert await race.direct(race.a, UPDATE.format("items"), 302) == "ok"


async def test_columns_that_have_swapped_names_fence_every_scope_up_to_the_highest_mark(race: Race) -> None:
    """By now the template means another column: `protect` has no marks where they would belong."""
    await race.observer.execute("ALTER TABLE items ADD other int NOT NULL DEFAULT 7")
    for old, new in (("account_id", "was"), ("other", "account_id")):
        await race.observer.execute(f"ALTER TABLE items RENAME {old} TO {new}")
    broken = [each.text for each in await examine_tables(race.observer) if each.level == "error"]
    assert len(broken) == 1
    assert "columns of its scope account/{account_id} are others now: it is read from was" in broken[0]
    await protect(race.observer, "items")
    assert [each for each in await examine_tables(race.observer) if each.level == "error"] == []
    assert await race.direct(race.a, UPDATE.format("items"), 150) == "FP409"
    assert await race.direct(race.a, UPDATE.format("items"), 201) == "ok"
    assert await mark(race, "account/7") == 201
    await protect(race.observer, "items")
    assert await race.direct(race.a, "INSERT INTO items (id, was, account_id) VALUES (9, 1, 8)", 190) == "FP409"
