"""`fencepost doctor` on the functions behind a table's triggers: versions, owners, privileges, settings.

There are tables of each kind: by rows, with a scope, of the built-in source, partitioned.
"""

import pytest
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner as connected
from tests.support.servers import command, complaints

from fencepost.server.ops.doctor_tables import FOR_ALL, FOR_TRIGGERS_ONLY, NOT_FOR_ALL
from fencepost.server.ops.protect import protect

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


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connected(connect)
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


async def mended(owner: Connection, database: str, *tables: str) -> None:
    for table in tables:
        await protect(owner, table)
    assert await complaints(database) == []


async def test_functions_that_an_older_version_made(owner: Connection, database: str) -> None:
    by_rows = ("upd", "ins", "insmark", "del", "delete")
    for table, parts in (("t", by_rows), ("moods", by_rows), ("parts", by_rows), ("scoped", ("scope",))):
        for part in parts:
            name = f"{await stem(owner, table)}_{part}"
            made = await owner.fetchval(
                "SELECT pg_get_functiondef(f.oid) FROM pg_proc f WHERE f.proname = $1 AND f.prokind = 'f'", name
            )
            # What it does is the same; its text is not.
            await owner.execute(made.replace("BEGIN", "BEGIN\n  NULL;", 1))
            (line,) = await complaints(database)
            assert line == (
                f"WARNING  {table}: its functions ({part}) were made by an older version, or changed by hand: run"
                f" `fencepost protect {table}` again"
            )
            await protect(owner, table)
        assert await complaints(database) == []


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
        (line,) = await complaints(database)
        assert line.startswith("ERROR    privileges: everybody may execute fencepost."), called
        await owner.execute(line.partition(": REVOKE ")[1][2:] + line.partition(": REVOKE ")[2])
        assert await complaints(database) == [], called


async def test_what_other_roles_own_or_may_do(owner: Connection, database: str) -> None:
    await owner.execute("CREATE ROLE somebody")
    try:
        await owner.execute("GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO somebody")
        assert await complaints(database) == []
        glass = "ok       break-glass: besides the schema's owner and superusers these may break the glass: somebody"
        assert glass in (await command("doctor", database=database)).output.splitlines()
        await owner.execute("ALTER TABLE fencepost.floors OWNER TO somebody")
        (line,) = await complaints(database)
        assert line.startswith("ERROR    owner: the schema fencepost belongs to postgres, and not all that is in it")
        assert "floors of somebody" in line
        assert (await command("migrate", database=database)).exit_code == 0
        assert await complaints(database) == []
    finally:
        await owner.execute("DROP OWNED BY somebody CASCADE; DROP ROLE somebody")


async def test_a_function_that_lost_its_search_path(owner: Connection, database: str) -> None:
    await owner.execute("ALTER FUNCTION fencepost.raise_mark(text, bigint, text, boolean) RESET search_path")
    (line,) = await complaints(database)
    assert "in their owner's name and under the caller's search_path: fencepost.raise_mark(" in line


async def test_the_lists_of_who_may_execute_name_functions_that_there_are(owner: Connection) -> None:
    rows = await owner.fetch(
        "SELECT f.proname::text, f.prosecdef FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace"
    )
    assert {row[0] for row in rows if row[1]} >= FOR_ALL | FOR_TRIGGERS_ONLY
    assert {row[0] for row in rows} >= NOT_FOR_ALL


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


async def test_a_trigger_that_only_has_the_fences_name(owner: Connection, database: str) -> None:
    await owner.execute(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END'"
    )
    for clause, table, part in LOOKALIKES:
        own = f'fencepost."{await stem(owner, table)}_{part}"'
        made = clause.format(own=own, other=own.replace("_upd", "_ins"))
        drop = f"DROP TRIGGER zzz_fencepost_{part} ON {table}"
        await owner.execute(f"{drop}; CREATE TRIGGER zzz_fencepost_{part} {made}")
        lines = await complaints(database)
        said = f"ERROR    {table}: triggers have the fence's names and are others (zzz_fencepost_{part})"
        assert any(line.startswith(said) for line in lines), lines
        await owner.execute(drop)
        await mended(owner, database, table)


async def test_tables_that_inherit_have_no_fence(owner: Connection, database: str) -> None:
    for table in ("t", "scoped"):
        await owner.execute(f"CREATE TABLE heir () INHERITS ({table})")
        assert any("tables inherit from it (heir)" in line for line in await complaints(database)), table
        await owner.execute("DROP TABLE heir")
    assert await complaints(database) == []
