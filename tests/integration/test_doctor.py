"""`fencepost doctor`: it finds each thing that can be amiss, and shows how to mend it; and the gateway's own role."""

import json

import asyncpg
import httpx
import pytest
from tests.support.asking import code
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection
from tests.support.racing import meanwhile
from tests.support.racing import owner as connected
from tests.support.servers import command, complaints

from fencepost.server.ops.doctor_tables import FOR_ALL, FOR_TRIGGERS_ONLY, NOT_FOR_ALL
from fencepost.server.ops.protect import protect


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connected(
        connect,
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE parts (a int PRIMARY KEY) PARTITION BY RANGE (a);"
        "CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (1) TO (10)",
    )
    await protect(connection, "t", work=True, max_attempts=2, on_exhausted={"v": "failed"})
    await protect(connection, "parts", work=True)
    return connection


async def test_a_sound_database_is_ok(owner: Connection, database: str) -> None:
    await owner.execute("CREATE RULE gone AS ON UPDATE TO t DO ALSO NOTHING; DROP RULE gone ON t")
    found = await command("doctor", database=database)
    assert found.exit_code == 0
    assert all(line.startswith("ok ") for line in found.output.splitlines()), found.output
    assert found.output.count("parts, t: column, check, triggers and functions are in place") == 1
    assert found.output.count("in place") == 1, "a line for all tables"


AMISS = [
    ("ALTER TABLE t DROP COLUMN last_fence_token CASCADE", "ERROR", "fencepost protect t --above N`"),
    ("ALTER TABLE t ALTER COLUMN last_fence_token DROP NOT NULL", "ERROR", "last_fence_token is bigint"),
    ("DROP EVENT TRIGGER fencepost_partitions", "WARNING", "attached to protected tables are not followed"),
    ("ALTER EVENT TRIGGER fencepost_dropped DISABLE", "WARNING", "attached to protected tables are not"),
    ("DROP TABLE t CASCADE", "WARNING", "the table was dropped"),
    ("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER zzzz BEFORE"
     " UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()", "WARNING", "could change what it judged: zzzz"),
    ("UPDATE fencepost.protected SET triggers_see_own_row = true; CREATE TRIGGER each_time BEFORE UPDATE ON t"
     " EXECUTE FUNCTION suppress_redundant_updates_trigger()", "WARNING", "deferrable, are each_time"),
    ("ALTER TABLE t DROP COLUMN v", "WARNING", "--on-exhausted sets columns that are gone (v)"),
    ("CREATE RULE r AS ON DELETE TO t DO INSTEAD NOTHING", "WARNING", "rewrite rules"),
    ("ALTER TABLE t SET UNLOGGED", "ERROR", "the table is unlogged"),
    ("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET session_replication_role = replica', current_database());"
     " END $$", "ERROR", "fires no triggers"),
    ("CREATE TABLE fencepost.mine (a int)", "WARNING", "the schema fencepost holds tables that are not its own (mine)"),
    ("ALTER TABLE t DROP COLUMN id CASCADE; ALTER TABLE t ADD id int GENERATED ALWAYS AS (1) STORED PRIMARY KEY",
     "ERROR", "a column of the primary key is generated (id)"),
    ("DROP SEQUENCE fencepost.tokens CASCADE", "ERROR", "the sequence fencepost.tokens is gone"),
    ("ALTER FUNCTION fencepost.raise_mark(text, bigint, text, boolean) RESET search_path", "ERROR",
     "in their owner's name and under the caller's search_path: fencepost.raise_mark("),
    ("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$",
     "WARNING", "sets synchronous_commit=off: direct SQL there"),
]  # fmt: skip


async def test_doctor_finds_what_is_amiss_and_protect_mends_it(owner: Connection, database: str) -> None:
    registered = "SELECT c.relname FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation"
    # What `protect` mends. The names of t change at the end.
    harms = [
        ("ALTER TABLE part_1 DISABLE TRIGGER zzz_fencepost_work; DROP TRIGGER zzz_fencepost_work ON parts", "WARNING",
         "zzz_fencepost_work is missing, disabled or another one on parts, part_1"),
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
    for harm, level, said in harms:
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


async def test_what_is_amiss_in_several_tables_is_a_line_with_what_mends_each(owner: Connection, database: str) -> None:
    for table in ("t", "parts"):
        await owner.execute(f"ALTER TABLE {table} DROP CONSTRAINT fencepost_mark")
    said = "parts, t: the check fencepost_mark is gone: run `fencepost protect parts`, `fencepost protect t`"
    assert f"ERROR    {said}" in await complaints(database)
    found = await command("doctor", "--json", database=database)
    gone = {"check": "mark-check-gone", "level": "error", "text": "the check fencepost_mark is gone"}
    assert [each for each in json.loads(found.output)["findings"] if each["level"] != "ok"] == [
        {**gone, "subject": name, "what_to_do": f"run `fencepost protect {name}`"} for name in ("parts", "t")
    ]
    assert found.exit_code == 1


INDEXES = [
    ("(created)", False),
    ("(created) WHERE v = 'new'", False),
    ("(pri DESC, created)", False),
    ("(pri, created) WHERE v = 'new'", False),
    ("(pri DESC, created) WHERE v = 'new' AND id > 1", False),
    ("(v, id, pri DESC, created)", False),
    ("(pri DESC, created, id) WHERE v = 'new'", True),
    ("(pri, created DESC) WHERE v = 'new'", True),
    ("(v, pri DESC, created)", True),
]  # fmt: skip


async def test_workers_that_no_index_gives_their_rows(owner: Connection, database: str) -> None:
    """Of a table with rows enough; what it advises is such an index."""
    await owner.execute(
        "ALTER TABLE t ADD pri int, ADD created int; SET session_replication_role = replica;"
        "INSERT INTO t (id, v) SELECT n, 'done' FROM generate_series(1, 20000) n; RESET session_replication_role;"
        "SELECT fencepost.note_question('t'::regclass, '{v}', '{pri DESC,created}'); ANALYZE t"
    )
    said = "WARNING  t: workers ask for its next row in the order pri DESC, created, and no index gives the rows so"
    advised = "CREATE INDEX CONCURRENTLY ON t (v, pri DESC, created)"
    for index, fits in INDEXES:
        await owner.execute(f"CREATE INDEX one ON t {index}")
        lines = await complaints(database)
        assert lines == [] if fits else lines[0].startswith(said) and lines[0].endswith(advised), (index, lines)
        await owner.execute("DROP INDEX one")
    await owner.execute(advised)
    assert await complaints(database) == []


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


async def test_doctor_finds_what_is_amiss_and_its_advice_mends_it(db: Connection, database: str) -> None:
    sound = await command("doctor", database=database)
    assert sound.exit_code == 0, sound.output
    assert "tokens: the built-in source has issued 50" in sound.output
    by_hand = "UPDATE fencepost.protected SET source ="
    tokens_amiss = [
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
        (f"{by_hand} 'builtin' WHERE name = 'e'", "its functions (del, insmark, upd) do not ask",
            "fencepost protect e"),
        (f"{by_hand} 'external' WHERE name = 't'", "its functions (del, insmark, upd) ask", "fencepost protect t"),
    ]  # fmt: skip
    for harm, message, mend in tokens_amiss:
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


# `fencepost doctor` on the functions behind a table's triggers: versions, owners, privileges, settings.
# There are tables of each kind: by rows, with a scope, of the built-in source, partitioned.

FUNCTION_TABLES = """
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
async def function_owner(connect: Connect) -> Connection:
    connection = await connected(connect, FUNCTION_TABLES)
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


async def test_functions_that_an_older_version_made(function_owner: Connection, database: str) -> None:
    by_rows = ("upd", "ins", "insmark", "del", "delete")
    for table, parts in (("t", by_rows), ("moods", by_rows), ("parts", by_rows), ("scoped", ("scope",))):
        for part in parts:
            name = f"{await stem(function_owner, table)}_{part}"
            made = await function_owner.fetchval(
                "SELECT pg_get_functiondef(f.oid) FROM pg_proc f WHERE f.proname = $1 AND f.prokind = 'f'", name
            )
            # What it does is the same; its text is not.
            await function_owner.execute(made.replace("BEGIN", "BEGIN\n  NULL;", 1))
            (line,) = await complaints(database)
            assert line == (
                f"WARNING  {table}: its functions ({part}) were made by an older version, or changed by hand: run"
                f" `fencepost protect {table}` again"
            )
            await protect(function_owner, table)
        assert await complaints(database) == []


async def test_what_everybody_may_execute_and_must_not(function_owner: Connection, database: str) -> None:
    for called in (
        "fencepost.raise_mark(text, bigint, text, boolean)",
        "fencepost.raise_generation(text, bigint)",
        "fencepost.prune(text, bigint)",
        f'fencepost."{await stem(function_owner, "t")}_upd"()',
        f'fencepost."{await stem(function_owner, "t")}_insmark"()',
        f'fencepost."{await stem(function_owner, "scoped")}_scope"()',
    ):
        await function_owner.execute(f"GRANT EXECUTE ON FUNCTION {called} TO PUBLIC")
        (line,) = await complaints(database)
        assert line.startswith("ERROR    privileges: everybody may execute fencepost."), called
        await function_owner.execute(line.partition(": REVOKE ")[1][2:] + line.partition(": REVOKE ")[2])
        assert await complaints(database) == [], called


async def test_what_other_roles_own_or_may_do(function_owner: Connection, database: str) -> None:
    await function_owner.execute("CREATE ROLE somebody")
    try:
        await function_owner.execute("GRANT EXECUTE ON FUNCTION fencepost.may_break_glass() TO somebody")
        assert await complaints(database) == []
        glass = "ok       break-glass: besides the schema's owner and superusers these may break the glass: somebody"
        assert glass in (await command("doctor", database=database)).output.splitlines()
        await function_owner.execute("ALTER TABLE fencepost.floors OWNER TO somebody")
        (line,) = await complaints(database)
        assert line.startswith("ERROR    owner: the schema fencepost belongs to postgres, and not all that is in it")
        assert "floors of somebody" in line
        assert (await command("migrate", database=database)).exit_code == 0
        assert await complaints(database) == []
    finally:
        await function_owner.execute("DROP OWNED BY somebody CASCADE; DROP ROLE somebody")


async def test_the_lists_of_who_may_execute_name_functions_that_there_are(function_owner: Connection) -> None:
    rows = await function_owner.fetch(
        "SELECT f.proname::text, f.prosecdef FROM pg_proc f WHERE f.pronamespace = 'fencepost'::regnamespace"
    )
    assert {row[0] for row in rows if row[1]} >= FOR_ALL | FOR_TRIGGERS_ONLY
    assert {row[0] for row in rows} >= NOT_FOR_ALL


async def test_a_trigger_that_only_has_the_fences_name(function_owner: Connection, database: str) -> None:
    await function_owner.execute(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END'"
    )
    lookalikes = [
        ("BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION nothing()", "t", "upd"),
        ("AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()", "t", "insmark"),
        ("BEFORE TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION nothing()", "t", "trunc"),
        ("AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION {own}()", "t", "upd"),
        ("BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION {other}()", "t", "upd"),
        ("BEFORE UPDATE OF v ON t FOR EACH ROW EXECUTE FUNCTION {own}()", "t", "upd"),
        ("BEFORE UPDATE ON t FOR EACH ROW WHEN (NEW.id > 5) EXECUTE FUNCTION {own}()", "t", "upd"),
        ("BEFORE INSERT OR UPDATE OR DELETE ON scoped FOR EACH ROW EXECUTE FUNCTION nothing()", "scoped", "scope"),
    ]
    for clause, table, part in lookalikes:
        own = f'fencepost."{await stem(function_owner, table)}_{part}"'
        made = clause.format(own=own, other=own.replace("_upd", "_ins"))
        drop = f"DROP TRIGGER zzz_fencepost_{part} ON {table}"
        await function_owner.execute(f"{drop}; CREATE TRIGGER zzz_fencepost_{part} {made}")
        lines = await complaints(database)
        said = f"ERROR    {table}: triggers have the fence's names and are others (zzz_fencepost_{part})"
        assert any(line.startswith(said) for line in lines), lines
        await function_owner.execute(drop)
        await mended(function_owner, database, table)


async def test_tables_that_inherit_have_no_fence(function_owner: Connection, database: str) -> None:
    for table in ("t", "scoped"):
        await function_owner.execute(f"CREATE TABLE heir () INHERITS ({table})")
        assert any("tables inherit from it (heir)" in line for line in await complaints(database)), table
        await function_owner.execute("DROP TABLE heir")
    assert await complaints(database) == []


# Ways past the fence that are no race: functions for everybody, protection that comes and goes.

ORDERS = "CREATE TABLE public.orders (id int PRIMARY KEY, n int NOT NULL DEFAULT 0)"


async def ask(client: httpx.AsyncClient, method: str, path: str, token: int, body: object = None) -> httpx.Response:
    return await client.request(method, f"/v1/data/{path}", headers={"X-Fence-Token": str(token)}, json=body)


async def test_no_other_role_can_attach_our_trigger_functions_to_a_table(connect: Connect) -> None:
    owner, stranger = await connect(), await connect()
    await owner.execute(ORDERS)
    await protect(owner, "orders")
    stem = await owner.fetchval("SELECT functions FROM fencepost.protected")
    await owner.execute("CREATE ROLE stranger; GRANT SELECT ON orders TO stranger")
    try:
        await stranger.execute(
            "SET SESSION AUTHORIZATION stranger; CREATE TEMP TABLE t (id int, last_fence_token bigint)"
        )
        for part in ("upd", "ins", "insmark", "del"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await stranger.execute(
                    f'CREATE TRIGGER t AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fencepost."{stem}_{part}"()'
                )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await stranger.execute("SELECT fencepost.raise_mark('orders/1', 9223372036854775807, 'strict', true)")
    finally:
        await stranger.close()
        await owner.execute("DROP OWNED BY stranger; DROP ROLE stranger")


async def test_taking_up_marks_lets_the_tables_own_triggers_find_their_names(connect: Connect) -> None:
    owner = await connect()
    await owner.execute(
        ORDERS + "; CREATE TABLE seen (id int);"
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NEW; END $$;"
        "CREATE TRIGGER f BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION f()"
    )
    await protect(owner, "orders")
    await owner.execute("INSERT INTO orders (id, last_fence_token) VALUES (1, 5)")
    await meanwhile(owner, "orders", "UPDATE orders SET last_fence_token = 0")
    assert await owner.fetchval("SELECT last_fence_token FROM orders") == 5


async def test_a_key_that_storing_would_cut_is_refused(connect: Connect, database: str) -> None:
    owner = await connect()
    await owner.execute("CREATE TABLE v (id varchar(3) PRIMARY KEY, n int)")
    await protect(owner, "v")
    async with in_process(database) as client:
        assert code(await ask(client, "PUT", "v/ab%20%20%20", 5, {"n": 1})) == (400, "FP016")
        claim = await client.post("/v1/claims", headers={"X-Fence-Token": "5"}, json={"resource": "v/ab   "})
        assert code(claim) == (400, "FP016")
        assert await owner.fetchval("SELECT count(*) FROM fencepost.marks") == 0
        assert (await ask(client, "PUT", "v/ab%20", 5, {"n": 1})).status_code == 201


async def test_one_locked_table_does_not_stop_the_others(connect: Connect, database: str) -> None:
    owner, holder = await connect(), await connect()
    await owner.execute(ORDERS + "; CREATE TABLE locked (id int PRIMARY KEY, n int DEFAULT 5)")
    await protect(owner, "orders")
    await owner.execute("INSERT INTO orders (id, last_fence_token) VALUES (1, 1)")
    await holder.execute("BEGIN; LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
    async with in_process(database, serve_unprotected=True) as client:  # starts although the table is locked
        assert (await client.get("/v1/data/unknown")).status_code == 404
        await owner.execute("ALTER TABLE orders ADD COLUMN extra int")
        assert (await ask(client, "PATCH", "orders/1", 5, {"extra": 3})).status_code == 200
        properties = (await client.get("/openapi.json")).json()["components"]["schemas"]["locked"]["properties"]
        assert set(properties) == {"id", "n"}
    await holder.execute("COMMIT")
