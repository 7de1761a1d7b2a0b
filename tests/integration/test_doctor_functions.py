"""`fencepost doctor` on what stands behind a table's triggers: partitions' copies, functions, owners, privileges; and
that nothing is left behind when a table changes sides.
"""

import asyncio

import asyncpg
import pytest
from click.testing import CliRunner, Result
from tests.support.in_process import in_process
from tests.support.interleave import Connect, Connection

from fencepost.cli.main import main
from fencepost.storage.inspecting.functions import FOR_ALL, FOR_NOBODY, NOT_FOR_ALL
from fencepost.storage.protecting.protect import protect, unprotect

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE moods (at timestamptz, m mood, n numeric, PRIMARY KEY (at, m, n));
CREATE TABLE scoped (id int PRIMARY KEY, account_id int NOT NULL);
CREATE TABLE parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (1) TO (10) PARTITION BY RANGE (a);
CREATE TABLE part_1a PARTITION OF part_1 FOR VALUES FROM (1) TO (5);
CREATE TABLE scoped_parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE scoped_part_1 PARTITION OF scoped_parts FOR VALUES FROM (1) TO (10);
"""

PROTECTED = {
    "t": "",
    "moods": "",
    "scoped": "--scope account/{account_id}",
    "parts": "--source builtin",
    "scoped_parts": "--scope a/{a} --rule epoch",
}


async def command(*arguments: str, database: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", database])


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute("SET search_path = public")
    await connection.execute(TABLES)
    await protect(connection, "t")
    await protect(connection, "moods", rule="epoch")
    await protect(connection, "parts", source="builtin")
    await protect(connection, "scoped", scope="account/{account_id}")
    await protect(connection, "scoped_parts", scope="a/{a}", rule="epoch")
    return connection


async def stem(connection: Connection, table: str) -> str:
    found: str = await connection.fetchval("SELECT functions FROM fencepost.protected WHERE name = $1", table)
    return found


async def said(database: str) -> list[str]:
    """What doctor has to say that is not ok."""
    found = await command("doctor", database=database)
    lines = [line for line in found.output.splitlines() if not line.startswith("ok ")]
    assert found.exit_code == (1 if any(line.startswith("ERROR") for line in lines) else 0), found.output
    return lines


async def mended(owner: Connection, database: str, *tables: str) -> None:
    for table in tables:
        await protect(owner, table)
    assert await said(database) == []


PARTITIONS = [
    ("ALTER TABLE part_1a DISABLE TRIGGER zzz_fencepost_upd", "parts", "part_1a", "(zzz_fencepost_upd)"),
    ("ALTER TABLE part_1 DISABLE TRIGGER zzz_fencepost_insmark", "parts", "part_1", "(zzz_fencepost_insmark)"),
    ("ALTER TABLE part_1a ENABLE REPLICA TRIGGER zzz_fencepost_del", "parts", "part_1a", "(zzz_fencepost_del)"),
    (
        "ALTER TABLE part_1a DISABLE TRIGGER ALL",
        "parts",
        "part_1a",
        "(zzz_fencepost_del, zzz_fencepost_ins, zzz_fencepost_insmark, zzz_fencepost_upd)",
    ),
    ("ALTER TABLE scoped_part_1 DISABLE TRIGGER zzz_fencepost_scope", "scoped_parts", "scoped_part_1", "_scope)"),
]


@pytest.mark.parametrize(("harm", "table", "partition", "triggers"), PARTITIONS)
async def test_a_trigger_that_does_not_fire_on_one_partition(
    owner: Connection, database: str, harm: str, table: str, partition: str, triggers: str
) -> None:
    assert await said(database) == []
    await owner.execute(harm)
    line = next(line for line in await said(database) if f" {partition} " in line)
    assert line.startswith(f"ERROR    {table}: on its partition {partition} triggers are missing, disabled or not")
    assert triggers in line
    path = f"/v1/data/{table}/3"
    async with in_process(database) as http:
        refused = await http.delete(path, headers={"X-Fence-Token": "5"})
        assert (refused.status_code, refused.json()["code"]) == (403, "FP005"), "no write goes where no mark would stay"
        await mended(owner, database, table)
        assert (await http.delete(path, headers={"X-Fence-Token": "5"})).json()["code"] != "FP005"


async def test_partitions_that_come_unseen_have_the_row_triggers_and_lack_that_of_truncate(
    owner: Connection, database: str
) -> None:
    await owner.execute("ALTER EVENT TRIGGER fencepost_partitions DISABLE")
    await owner.execute(
        "CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);"
        "CREATE TABLE part_3 (LIKE parts INCLUDING ALL);"
        "ALTER TABLE parts ATTACH PARTITION part_3 FOR VALUES FROM (20) TO (30);"
        "CREATE TABLE scoped_part_2 PARTITION OF scoped_parts FOR VALUES FROM (10) TO (20)"
    )
    lines = await said(database)
    assert [line for line in lines if line.startswith("ERROR")] == []
    assert any("parts: partitions that TRUNCATE could empty (part_2, part_3)" in line for line in lines), lines
    assert any("scoped_parts: partitions that TRUNCATE could empty (scoped_part_2)" in line for line in lines)
    for statement in ("INSERT INTO part_2 VALUES (11)", "INSERT INTO part_3 VALUES (21)"):
        with pytest.raises(asyncpg.PostgresError, match="needs a fence token"):
            await owner.execute(statement)
    await owner.execute("TRUNCATE part_2")
    await owner.execute("ALTER EVENT TRIGGER fencepost_partitions ENABLE")
    await mended(owner, database, "parts", "scoped_parts")
    with pytest.raises(asyncpg.PostgresError, match="TRUNCATE would forget its marks"):
        await owner.execute("TRUNCATE part_2")


async def test_a_disabled_truncate_trigger_of_a_partition(owner: Connection, database: str) -> None:
    await owner.execute("ALTER TABLE part_1a DISABLE TRIGGER zzz_fencepost_trunc")
    assert any("partitions that TRUNCATE could empty (part_1a)" in line for line in await said(database))
    await mended(owner, database, "parts")


LOOKALIKES = [
    ("BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION nothing()", "t", "upd"),
    ("AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()", "t", "insmark"),
    ("BEFORE TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION nothing()", "t", "trunc"),
    ("AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION {own}()", "t", "upd"),
    ("BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION {other}()", "t", "upd"),
    ("BEFORE UPDATE OF v ON t FOR EACH ROW EXECUTE FUNCTION {own}()", "t", "upd"),
    ("BEFORE UPDATE ON t FOR EACH ROW WHEN (NEW.id > 5) EXECUTE FUNCTION {own}()", "t", "upd"),
    ("BEFORE INSERT OR UPDATE OR DELETE ON scoped FOR EACH ROW EXECUTE FUNCTION nothing()", "scoped", "scope"),
]


@pytest.mark.parametrize(("clause", "table", "part"), LOOKALIKES)
async def test_a_trigger_that_only_has_the_fences_name(
    owner: Connection, database: str, clause: str, table: str, part: str
) -> None:
    await owner.execute(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END'"
    )
    own = f'fencepost."{await stem(owner, table)}_{part}"'
    clause = clause.format(own=own, other=own.replace("_upd", "_ins"))
    await owner.execute(f"DROP TRIGGER zzz_fencepost_{part} ON {table}; CREATE TRIGGER zzz_fencepost_{part} {clause}")
    lines = await said(database)
    assert any(
        line.startswith(f"ERROR    {table}: triggers have the fence's names and are others (zzz_fencepost_{part})")
        for line in lines
    ), lines
    await owner.execute(f"DROP TRIGGER zzz_fencepost_{part} ON {table}")
    await mended(owner, database, table)


@pytest.mark.parametrize(
    ("table", "parts"),
    [
        ("t", ("upd", "ins", "insmark", "del", "delete")),
        ("moods", ("upd", "ins", "insmark", "del", "delete")),
        ("parts", ("upd", "ins", "insmark", "del", "delete")),
        ("scoped", ("scope",)),
    ],
)
async def test_functions_that_an_older_version_made(
    owner: Connection, database: str, table: str, parts: tuple[str, ...]
) -> None:
    for part in parts:
        name = f"{await stem(owner, table)}_{part}"
        made = await owner.fetchval(
            "SELECT pg_get_functiondef(f.oid) FROM pg_proc f WHERE f.proname = $1 AND f.prokind = 'f'", name
        )
        # What it does is the same; its text is not.
        await owner.execute(made.replace("BEGIN", "BEGIN\n  NULL;", 1))
        (line,) = await said(database)
        assert line == (
            f"WARNING  {table}: its functions ({part}) were made by an older version, or changed by hand: run"
            f" `fencepost protect {table}` again"
        )
        await protect(owner, table)
        assert await said(database) == []


async def test_functions_of_somebody_else(owner: Connection, database: str) -> None:
    await owner.execute("CREATE ROLE somebody")
    try:
        await owner.execute(
            f'ALTER FUNCTION fencepost."{await stem(owner, "t")}_insmark"() OWNER TO somebody;'
            "ALTER FUNCTION fencepost.raise_mark(text, bigint, text, boolean) OWNER TO somebody;"
            "ALTER TABLE fencepost.floors OWNER TO somebody"
        )
        (line,) = await said(database)
        assert line.startswith("ERROR    owner: the schema fencepost belongs to postgres, and not all that is in it")
        for each in ("floors of somebody", "fencepost.raise_mark(text,bigint,text,boolean) of somebody", "_insmark"):
            assert each in line
        assert (await command("migrate", database=database)).exit_code == 0
        assert await said(database) == []
    finally:
        await owner.execute("DROP OWNED BY somebody CASCADE; DROP ROLE somebody")


async def test_what_everybody_may_execute_and_must_not(owner: Connection, database: str) -> None:
    for called in (
        "fencepost.raise_mark(text, bigint, text, boolean)",
        "fencepost.raise_generation(text, bigint)",
        "fencepost.prune(text, bigint)",
        f'fencepost."{await stem(owner, "t")}_upd"()',
        f'fencepost."{await stem(owner, "t")}_insmark"()',
        f'fencepost."{await stem(owner, "scoped")}_scope"()',
    ):
        await owner.execute(f"GRANT EXECUTE ON FUNCTION {called} TO PUBLIC")
        (line,) = await said(database)
        assert line.startswith("ERROR    privileges: everybody may execute fencepost.")
        await owner.execute(line.partition(": REVOKE ")[1][2:] + line.partition(": REVOKE ")[2])
        assert await said(database) == []


async def test_what_default_privileges_gave_to_a_role(owner: Connection, database: str) -> None:
    await owner.execute("CREATE ROLE default_app")
    try:
        await owner.execute("GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO default_app")
        assert await said(database) == []
        glass = "ok       break-glass: besides the schema's owner and superusers these may break the glass: default_app"
        assert glass in (await command("doctor", database=database)).output.splitlines()
        # As ALTER DEFAULT PRIVILEGES … GRANT EXECUTE ON FUNCTIONS TO default_app does when they are made.
        await owner.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencepost TO default_app")
        lines = await said(database)
        assert len(lines) == 1
        assert lines[0].startswith("ERROR    privileges: default_app may execute what only triggers should: REVOKE")
        for name in FOR_NOBODY:
            assert f"fencepost.{name}(" in lines[0]
        await owner.execute(lines[0].partition(": REVOKE")[1].removeprefix(": ") + lines[0].partition(": REVOKE")[2])
        assert await said(database) == []
    finally:
        await owner.execute("DROP OWNED BY default_app; DROP ROLE default_app")


async def test_a_function_that_lost_its_search_path(owner: Connection, database: str) -> None:
    await owner.execute("ALTER FUNCTION fencepost.raise_mark(text, bigint, text, boolean) RESET search_path")
    (line,) = await said(database)
    assert "in their owner's name and under the caller's search_path: fencepost.raise_mark(" in line


async def test_the_lists_of_who_may_execute_name_functions_that_there_are(owner: Connection) -> None:
    rows = await owner.fetch(
        "SELECT f.proname::text, f.prosecdef FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace"
    )
    assert {row[0] for row in rows if row[1]} >= FOR_ALL | FOR_NOBODY
    assert {row[0] for row in rows} >= NOT_FOR_ALL


async def left_behind(connection: Connection) -> list[str]:
    rows = await connection.fetch(
        """SELECT 'function ' || f.proname FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace
              AND f.proname ~ '_[0-9a-f]{10}_'
           UNION ALL SELECT 'trigger ' || t.tgname FROM pg_trigger t WHERE starts_with(t.tgname, 'zzz_fencepost_')
           UNION ALL SELECT 'protected ' || p.name FROM fencepost.protected p"""
    )
    return [row[0] for row in rows]


async def test_nothing_is_left_of_a_table_that_changed_sides_and_names(owner: Connection, database: str) -> None:
    """By rows, by a scope, by another, renamed, by rows: each time what stood for the side before is gone."""
    rows = {"upd", "ins", "insmark", "del", "delete", "name"}
    name = "t"
    await owner.execute("ALTER TABLE t ADD COLUMN account_id int NOT NULL DEFAULT 1")
    for number, (scope, parts) in enumerate(
        (
            ("account/{account_id}", {"scope", "of"}),
            ("", rows),
            ("account/{account_id}", {"scope", "of"}),
            ("id/{id}", {"scope", "of"}),
            ("id/{id}", {"scope", "of"}),
            ("", rows),
        )
    ):
        if number:
            await owner.execute(f"ALTER TABLE {name} RENAME TO t{number}")
            name = f"t{number}"
        await protect(owner, name, scope=scope)
        functions = {
            row[0] for row in await owner.fetch("SELECT proname FROM pg_proc WHERE proname ~ '^t[0-9]*_[0-9a-f]{10}_'")
        }
        start = await stem(owner, name)
        assert functions == {f"{start}_{part}" for part in parts}, (number, scope)
        assert await said(database) == []
    for table in (name, "moods", "parts", "scoped", "scoped_parts"):
        await unprotect(owner, table)
    assert await left_behind(owner) == []


@pytest.mark.parametrize("how", ["protect", "unprotect, protect"])
async def test_a_scoped_table_that_was_renamed_takes_its_marks_along(owner: Connection, how: str) -> None:
    await owner.execute(
        "BEGIN; SET LOCAL fencepost.token = '50'; INSERT INTO scoped VALUES (1, 7); COMMIT;"
        "ALTER TABLE scoped RENAME TO renamed"
    )
    if how == "protect":
        await protect(owner, "renamed", scope="")
    else:
        await unprotect(owner, "renamed")
        await protect(owner, "renamed")
    with pytest.raises(asyncpg.PostgresError, match="stale token 49"):
        await owner.execute("UPDATE renamed SET account_id = 8, last_fence_token = -49 WHERE id = 1")
    with pytest.raises(asyncpg.PostgresError, match="stale token 49"):
        await owner.execute("INSERT INTO renamed (id, account_id, last_fence_token) VALUES (2, 7, 49)")
    await owner.execute("UPDATE renamed SET account_id = 8, last_fence_token = -51 WHERE id = 1")


@pytest.mark.parametrize("how", ["protect", "unprotect, protect"])
async def test_a_table_that_was_renamed_takes_the_marks_of_deleted_rows_along(owner: Connection, how: str) -> None:
    await owner.execute(
        "INSERT INTO t (id, last_fence_token) VALUES (1, 40), (2, 40);"
        "BEGIN; SET LOCAL fencepost.token = '50'; DELETE FROM t WHERE id = 1; COMMIT;"
        "UPDATE fencepost.floors SET floor = 30 WHERE name = 't';"
        "ALTER TABLE t RENAME TO renamed"
    )
    if how != "protect":
        await unprotect(owner, "renamed")
    await protect(owner, "renamed")
    for statement, mark in (
        ("INSERT INTO renamed (id, last_fence_token) VALUES (1, 49)", 50),
        ("INSERT INTO renamed (id, last_fence_token) VALUES (9, 29)", 30),
        ("UPDATE renamed SET last_fence_token = -39 WHERE id = 2", 40),
    ):
        with pytest.raises(asyncpg.PostgresError, match=f"its mark is {mark}"):
            await owner.execute(statement)


@pytest.mark.parametrize("table", ["t", "scoped"])
async def test_tables_that_inherit_have_no_fence(owner: Connection, database: str, table: str) -> None:
    await owner.execute(f"CREATE TABLE heir () INHERITS ({table})")
    assert any("tables inherit from it (heir)" in line for line in await said(database))
    await owner.execute("DROP TABLE heir")
    assert await said(database) == []
