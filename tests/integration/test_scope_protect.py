"""`protect --scope`, doctor and status on tables of a scope: what is refused and why, and what is found amiss."""

import asyncio

import pytest
from click.testing import CliRunner, Result
from tests.scenarios.scopes import entered, scoped_race
from tests.support.interleave import Connect, Connection
from tests.support.racing import Race
from tests.support.racing import owner as connected

from fencepost.cli.main import main
from fencepost.storage.protecting.protect import ProtectError, protect

pytestmark = pytest.mark.versions

TABLES = """
CREATE TYPE mood AS ENUM ('fair', 'foul');
CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL, note text, ratio float8 NOT NULL DEFAULT 0,
  twice int GENERATED ALWAYS AS (id * 2) STORED NOT NULL,
  mood mood NOT NULL DEFAULT 'fair', place varchar(9) NOT NULL DEFAULT 'fair');
CREATE TABLE notes (account_id bigint, no int, name text NOT NULL DEFAULT '', PRIMARY KEY (account_id, no));
CREATE TABLE account (id int PRIMARY KEY)"""


async def command(*arguments: str, database: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connected(connect)
    await connection.execute(TABLES)
    return connection


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ("account", "a scope is a name, a slash and columns in braces"),
        ("ac count/{id}", "letters, digits"),
        ("a/{id},{id}", "a column is named twice"),
        ("account/{id}", "the scope's name account is that of a table"),
        ("acc/{nothing}", "nothing is no column of items"),
        ("acc/{note}", "note can be null: ALTER TABLE … ALTER COLUMN note SET NOT NULL"),
        ("acc/{ratio}", "ratio is of type double precision, whose equal values have several texts"),
        ("acc/{twice}", "twice is generated"),
        ("acc/{mood}", "mood is of the enum public.mood: renaming one of its values"),
    ],
)
async def test_a_scope_that_cannot_be_is_refused_with_its_reason(owner: Connection, wanted: str, reason: str) -> None:
    with pytest.raises(ProtectError) as refused:
        await protect(owner, "items", scope=wanted)
    assert reason in str(refused.value)
    assert await owner.fetchval("SELECT count(*) FROM fencepost.protected") == 0


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
