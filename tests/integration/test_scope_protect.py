"""`protect --scope`, doctor and status on tables of a scope: what is refused and why, and what is found amiss."""

import asyncio

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.scenarios.scopes import entered, mark, scoped_race
from tests.support.in_process import in_process
from tests.support.interleave import Connect, Connection
from tests.support.racing import Race, outcome
from tests.support.racing import owner as connected

from fencepost.cli.main import main
from fencepost.storage.protecting.protect import ProtectError, protect
from fencepost.storage.protecting.table import HIGHEST_MARK
from fencepost.storage.upkeep.reset import reset

pytestmark = pytest.mark.versions

SCOPE = "account/{account_id}"
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


async def test_a_name_that_is_too_long_for_a_mark_is_refused_with_its_reason(owner: Connection) -> None:
    await owner.execute("CREATE TABLE long (id int PRIMARY KEY, a text NOT NULL)")
    await protect(owner, "long", scope="acc/{a}")
    insert = "SELECT set_config('fencepost.token', '5', false); INSERT INTO long VALUES (1, repeat('ab/', {}))"
    with pytest.raises(asyncpg.PostgresError) as refused:
        await owner.execute(insert.format(600))
    assert (refused.value.sqlstate, "3004 bytes" in str(refused.value)) == ("FP400", True)
    await owner.execute(insert.format(500))


async def test_several_columns_make_a_scope(owner: Connection) -> None:
    await protect(owner, "items", scope="place/{place},{account_id}")
    insert = "SELECT set_config('fencepost.token', '{}', false); INSERT INTO items (id, account_id) VALUES ({}, 42)"
    await owner.execute(insert.format(5, 1))
    assert await owner.fetchval("SELECT resource FROM fencepost.marks") == "place/fair,42"
    assert await outcome(owner.execute(insert.format(4, 2))) == "FP409"


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


async def test_doctor_does_not_mind_a_later_trigger_and_status_counts_scopes(connect: Connect, database: str) -> None:
    race = await scoped_race(connect, database, "strict")
    await race.observer.execute(
        "CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER zzzz BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION later()"
    )
    await entered(race, race.a, 50, "account/42", "account/7")
    found = await command("doctor", database=database)
    assert "zzzz" not in found.output, found.output
    status = (await command("status", database=database)).output
    line = next(line for line in status.splitlines() if line.startswith("items"))
    assert line.split()[1:4] == ["strict", "external", SCOPE]
    assert line.split()[5] == "2", line


async def test_doctor_compares_the_marks_of_scopes_with_the_sequence(connect: Connect, database: str) -> None:
    """A sequence that was restored from a backup older than the marks."""
    race = await scoped_race(connect, database, "strict", "builtin")
    assert await entered(race, race.a, 900, "account/42") == {"account/42": None}
    assert (await command("doctor", database=database)).exit_code == 0
    await race.observer.execute("SELECT setval('fencepost.tokens', 100)")
    found = await command("doctor", database=database)
    assert found.exit_code == 1
    assert "account/…: it has the mark 900" in found.output, found.output
    await race.observer.execute("SELECT fencepost.issue_beyond(900)")
    assert (await command("doctor", database=database)).exit_code == 0


async def test_a_gateway_of_its_own_role_writes_what_row_security_lets_it(connect: Connect, database: str) -> None:
    race = await scoped_race(connect, database, "strict")
    login = database.replace(database.partition("://")[2].partition("@")[0], "scope_gate:secret")
    await race.observer.execute("CREATE ROLE scope_gate LOGIN PASSWORD 'secret'")
    try:
        await race.observer.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON items, notes TO scope_gate")
        assert (await command("migrate", "--gateway-role", "scope_gate", database=database)).exit_code == 0
        await race.observer.execute(
            "ALTER TABLE items ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON items USING (account_id = 42)"
        )
        async with in_process(login) as http:

            async def status(method: str, path: str, body: object, token: int) -> int:
                answer = await http.request(method, f"/v1/{path}", json=body, headers={"X-Fence-Token": str(token)})
                return answer.status_code

            assert await status("PATCH", "data/items/1", {"n": 1}, 50) == 200
            assert await status("PATCH", "data/items/1", {"n": 1}, 49) == 409
            assert await status("PUT", "data/notes/42,1", {}, 51) == 201
            assert await status("DELETE", "data/items?id=eq.2", None, 52) == 204
            assert await status("POST", "claims", {"resource": "account/42"}, 53) == 200
            # Item 3 is of account 7: out of sight, and its scope's mark stays where it is.
            assert await status("PATCH", "data/items/3", {"n": 1}, 54) == 404
            assert await status("DELETE", "data/items/3", None, 54) == 404
            assert await status("PUT", "data/items/3", {"account_id": 42}, 54) == 404
            assert await status("POST", "data/items", {"id": 9, "account_id": 7}, 54) == 403
        assert (await mark(race), await mark(race, "account/7")) == (53, None)
    finally:
        await race.observer.execute("DROP OWNED BY scope_gate; DROP ROLE scope_gate")


@pytest.mark.parametrize(
    ("harm", "printed", "mend"),
    [
        (
            f"SELECT fencepost.raise_mark('acc/7', {HIGHEST_MARK + 1}, 'strict', true)",
            f"acc/7 has the mark {HIGHEST_MARK + 1}",
            "first protect the table as it is (--source external --max-token 9223372036854775807), then fencepost fence"
            " reset 'acc/7' --to N",
        ),
        (
            f"INSERT INTO fencepost.floors (name, floor) VALUES ('acc', {HIGHEST_MARK + 1})",
            f"The floor of acc has the mark {HIGHEST_MARK + 1}",
            "run this again: fencepost fence reset acc --to N",
        ),
    ],
    ids=["scope", "floor"],
)
async def test_a_scope_s_mark_with_too_little_above_it_is_in_the_way(
    owner: Connection, harm: str, printed: str, mend: str
) -> None:
    await owner.execute(harm)
    with pytest.raises(ProtectError) as refused:
        await protect(owner, "items", scope="acc/{account_id}", source="builtin")
    assert printed in refused.value.reasons[0]
    assert mend in refused.value.reasons[1]
    assert await owner.fetchval("SELECT count(*) FROM fencepost.protected") == 0
    if printed.startswith("acc/7"):  # what the message advises helps
        await protect(owner, "items", scope="acc/{account_id}", max_token=2**63 - 1)
    await reset(owner, "acc/7" if printed.startswith("acc/7") else "acc", 5, "INC-7")
    assert await protect(owner, "items", scope="acc/{account_id}", source="builtin") == "items"
