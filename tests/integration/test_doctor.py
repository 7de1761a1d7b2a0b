"""`fencepost doctor`: it finds each thing that can be amiss, and shows how to mend it; and the gateway's own role."""

import pytest
from tests.support.interleave import Connect, Connection
from tests.support.racing import owner as connected
from tests.support.servers import command, complaints

from fencepost.server.ops.protect import protect

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, v text);
CREATE TABLE parts (a int PRIMARY KEY) PARTITION BY RANGE (a);
CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (1) TO (10);
"""


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connected(connect)
    await connection.execute(TABLES)
    for table in ("t", "parts"):
        await protect(connection, table)
    return connection


async def test_a_sound_database_is_ok(owner: Connection, database: str) -> None:
    await owner.execute("CREATE RULE gone AS ON UPDATE TO t DO ALSO NOTHING; DROP RULE gone ON t")
    found = await command("doctor", database=database)
    assert found.exit_code == 0
    assert all(line.startswith("ok ") for line in found.output.splitlines()), found.output
    assert found.output.count("parts, t: column, check, triggers and functions are in place") == 1
    assert found.output.count("in place") == 1, "a line for all tables"


MENDED = [
    ("ALTER TABLE t DISABLE TRIGGER ALL", "ERROR", "zzz_fencepost_insmark"),
    ("ALTER TABLE t ENABLE REPLICA TRIGGER zzz_fencepost_del", "ERROR", "zzz_fencepost_del"),
    ("DROP TRIGGER zzz_fencepost_trunc ON t", "ERROR", "zzz_fencepost_trunc"),
    ("ALTER TABLE t DROP CONSTRAINT fencepost_mark", "ERROR", "the check fencepost_mark is gone"),
    ("ALTER TABLE t DROP CONSTRAINT fencepost_mark; ALTER TABLE t ADD CONSTRAINT fencepost_mark"
     " CHECK (last_fence_token >= 0) NOT VALID", "WARNING", "was not validated"),
    ("ALTER EVENT TRIGGER fencepost_partitions DISABLE; CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (10)"
     " TO (20); ALTER EVENT TRIGGER fencepost_partitions ENABLE", "WARNING", "part_2"),
    ("DO $$ BEGIN EXECUTE (SELECT format('DROP FUNCTION fencepost.%1$I_name, fencepost.%1$I_key', functions)"
     " FROM fencepost.protected WHERE name = 't'); END $$; ALTER TABLE t ALTER COLUMN id TYPE bigint", "ERROR",
     "a column of the primary key has another type now"),
    ("ALTER TABLE t DROP COLUMN id CASCADE; ALTER TABLE t ADD id int PRIMARY KEY", "ERROR", "are missing"),
    ("ALTER TABLE t RENAME COLUMN id TO key", "ERROR", "the primary key has changed"),
    ("ALTER TABLE t RENAME TO renamed", "ERROR", "the table is called renamed now"),
]  # fmt: skip
"""What `protect` mends. The names of t change at the end."""
AMISS = [
    ("ALTER TABLE t DROP COLUMN last_fence_token CASCADE", "ERROR", "fencepost protect t --above N`"),
    ("ALTER TABLE t ALTER COLUMN last_fence_token DROP NOT NULL", "ERROR", "last_fence_token is bigint"),
    ("DROP EVENT TRIGGER fencepost_partitions", "WARNING", "attached to protected tables are not followed"),
    ("ALTER EVENT TRIGGER fencepost_dropped DISABLE", "WARNING", "attached to protected tables are not"),
    ("DROP TABLE t CASCADE", "WARNING", "the table was dropped"),
    ("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER zzzz BEFORE"
     " UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()", "WARNING", "could change what it judged: zzzz"),
    ("CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING", "WARNING", "rewrite rules"),
    ("ALTER TABLE t SET UNLOGGED", "ERROR", "the table is unlogged"),
    ("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database());"
     " END $$", "ERROR", "fires no triggers"),
    ("CREATE TABLE fencepost.mine (a int)", "WARNING", "the schema fencepost holds tables that are not its own (mine)"),
    ("ALTER TABLE t DROP COLUMN id CASCADE; ALTER TABLE t ADD id int GENERATED ALWAYS AS (1) STORED PRIMARY KEY",
     "ERROR", "a column of the primary key is generated (id)"),
]  # fmt: skip


async def test_doctor_finds_what_is_amiss_and_protect_mends_it(owner: Connection, database: str) -> None:
    registered = "SELECT c.relname FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation"
    for harm, level, said in MENDED:
        await owner.execute(harm)
        await is_reported(database, level, said)
        for name in await owner.fetch(registered):
            mended = await command("protect", name[0], database=database)
            assert mended.exit_code == 0, (harm, mended.output)
        assert await complaints(database) == [], harm


async def is_reported(database: str, level: str, said: str) -> None:
    lines = await complaints(database)
    assert any(line.startswith(level) and said in line for line in lines), lines
    assert any(line.startswith("ERROR") for line in lines) == (level == "ERROR"), lines


@pytest.mark.parametrize(("harm", "level", "said"), AMISS, ids=[each[0][:50] for each in AMISS])
async def test_doctor_finds_what_protect_does_not_mend(
    owner: Connection, database: str, harm: str, level: str, said: str
) -> None:
    await owner.execute(harm)
    await is_reported(database, level, said)


async def test_a_label_of_a_key_that_was_renamed(owner: Connection, database: str) -> None:
    await owner.execute(
        "CREATE TYPE kind AS ENUM ('a,b', 'c'); CREATE TABLE kinds (n int, kind kind NOT NULL, PRIMARY KEY (n, kind))"
    )
    await protect(owner, "kinds")
    rows = "INSERT INTO kinds VALUES (1, 'a,b'), (2, 'c'); DELETE FROM kinds"
    await owner.execute(f"BEGIN; SET LOCAL fencepost.token = '50'; {rows}; COMMIT")
    assert await complaints(database) == []
    await owner.execute("ALTER TYPE kind RENAME VALUE 'c' TO 'd'")
    await is_reported(database, "ERROR", "kinds: 1 marks are kept under 'c', which is no label of the enum")
    await owner.execute("ALTER TYPE kind RENAME VALUE 'd' TO 'c'")
    assert await complaints(database) == []


async def test_names_that_were_swapped_are_mended_as_it_says(owner: Connection, database: str) -> None:
    await owner.execute("ALTER TABLE t RENAME TO x; ALTER TABLE parts RENAME TO t; ALTER TABLE x RENAME TO parts")
    await is_reported(database, "ERROR", "run `fencepost unprotect parts` and `fencepost unprotect t`, and then")
    for verb in ("unprotect", "protect"):
        for table in ("t", "parts"):
            assert (await command(verb, table, database=database)).exit_code == 0, (verb, table)
    assert await complaints(database) == []


async def test_what_is_amiss_in_several_tables_is_one_line_with_what_mends_each(
    owner: Connection, database: str
) -> None:
    for table in ("t", "parts"):
        await owner.execute(f"ALTER TABLE {table} DROP CONSTRAINT fencepost_mark")
    said = "parts, t: the check fencepost_mark is gone: run `fencepost protect parts`, `fencepost protect t`"
    assert f"ERROR    {said}" in await complaints(database)


BY_HAND = "UPDATE fencepost.protected SET source ="


@pytest.fixture
async def db(connect: Connect) -> Connection:
    """Give the owner's connection; t is of the built-in source, which has issued 50 tokens, e of an external one."""
    connection = await connected(connect)
    for name, source in (("t", "builtin"), ("e", "external")):
        await connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        await protect(connection, name, source=source)
        await connection.execute("SELECT setval('fencepost.tokens', 50)")
        await connection.execute(f"INSERT INTO {name} (id, last_fence_token) VALUES (1, 50)")
    await connection.execute(
        "UPDATE e SET last_fence_token = 9000; CREATE TABLE s (id int PRIMARY KEY, size int NOT NULL)"
    )
    await protect(connection, "s", source="builtin", scope="size/{size}")
    return connection


SEQUENCE = "ALTER SEQUENCE fencepost.tokens"


TOKENS_AMISS = [
    (f"{SEQUENCE} CACHE 20", "hand out old ones later", f"{SEQUENCE} CACHE 1"),
    (f"{SEQUENCE} CYCLE", "begin again at its end", f"{SEQUENCE} NO CYCLE"),
    (f"{SEQUENCE} INCREMENT BY 5", "in steps of 5", f"{SEQUENCE} INCREMENT BY 1"),
    (f"{SEQUENCE} AS integer", "ends at 2147483647", f"{SEQUENCE} AS bigint NO MAXVALUE"),
    (f"{SEQUENCE} MAXVALUE 99", "ends at 99", f"{SEQUENCE} AS bigint NO MAXVALUE"),
    ("REVOKE SELECT ON fencepost.tokens FROM PUBLIC", "a role that writes directly may not read it",
        "GRANT SELECT ON fencepost.tokens TO PUBLIC"),
    ("SELECT setval('fencepost.tokens', 49)", "it has the mark 50, and the newest token is 49", "issue_beyond(50)"),
    ("SELECT fencepost.raise_mark('t/9', 77, 'strict', true)", "it has the mark 77, and the newest token is 50",
        "issue_beyond(77)"),
    ("SELECT fencepost.prune('t', 88)", "it has the mark 88, and the newest token is 77", "issue_beyond(88)"),
    ("SELECT fencepost.raise_mark('size/1', 99, 'strict', true)",
        "size/…: it has the mark 99, and the newest token is 88", "issue_beyond(99)"),
    (f"{BY_HAND} 'builtin' WHERE name = 'e'", "its functions (del, insmark, upd) do not ask", "fencepost protect e"),
    (f"{BY_HAND} 'external' WHERE name = 't'", "its functions (del, insmark, upd) ask", "fencepost protect t"),
]  # fmt: skip


async def test_doctor_finds_what_is_amiss_and_its_advice_mends_it(db: Connection, database: str) -> None:
    sound = await command("doctor", database=database)
    assert sound.exit_code == 0, sound.output
    assert "tokens: the built-in source has issued 50" in sound.output
    for harm, message, mend in TOKENS_AMISS:
        await db.execute(harm)
        lines = await complaints(database)
        assert any(line.startswith("ERROR") and message in line and mend in line for line in lines), (harm, lines)
        if mend.startswith("fencepost protect"):
            await protect(db, mend.rsplit(maxsplit=1)[-1])
        else:
            await db.execute(f"SELECT fencepost.{mend}" if mend.startswith("issue") else mend)
        if "'e'" in harm:  # its marks are those of another source
            assert "SELECT fencepost.issue_beyond(9000)" in "\n".join(await complaints(database))
            await db.execute("SELECT fencepost.issue_beyond(9000)")
        assert not [line for line in await complaints(database) if line.startswith("ERROR")], harm


async def test_doctor_finds_that_the_sequence_is_gone(db: Connection, database: str) -> None:
    await db.execute("DROP SEQUENCE fencepost.tokens CASCADE")
    await is_reported(database, "ERROR", "the sequence fencepost.tokens is gone")
