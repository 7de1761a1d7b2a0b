"""Dumps that are restored, and keys under other collations."""

import asyncio
import itertools
import json
import os
import subprocess
from collections.abc import AsyncIterator

import pytest
from tests.direct_sql.test_logical_replication import write
from tests.support.interleave import Connect, Connection, connection_to, start
from tests.support.postgres import empty_database
from tests.support.racing import Race, open_race, outcome, owner

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import ProtectError, protect
from fencepost.server.postgres.marks import ask_elements, in_key_order
from fencepost.testing.servers.processes import PATIENCE

# pg_dump and its restore: what is restored is protected as before, and remembers what was refused.

pytestmark = pytest.mark.versions

_numbers = itertools.count(1)


def dump_and_restore(server: PostgresServer, source: str, target: str, *options: str) -> None:
    command = (
        f'set -o pipefail; pg_dump {" ".join(options)} "{source}" | psql "{target}" -qX -v ON_ERROR_STOP=1 -o /dev/null'
    )
    path = f"{server.bin_dir}:{os.environ['PATH']}"
    subprocess.run(["bash", "-c", command], check=True, env=os.environ | {"PATH": path}, timeout=2 * PATIENCE)


@pytest.fixture
async def target(postgres: PostgresServer) -> AsyncIterator[str]:
    """Give the URL of an empty database."""
    async with empty_database(postgres, f"restored_{next(_numbers)}") as url:
        yield url


@pytest.mark.parametrize("options", [("--inserts",), ("--no-owner", "--no-privileges")])
async def test_what_is_restored_from_a_dump_refuses_what_was_refused(
    connect: Connect, database: str, postgres: PostgresServer, target: str, options: tuple[str, ...]
) -> None:
    owner = await connect()
    tables = """
        CREATE TYPE colour AS ENUM ('red', 'green');
        CREATE TABLE orders (order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new');
        CREATE TABLE hues (hue colour PRIMARY KEY, n int);
        CREATE TABLE items (id int PRIMARY KEY, account_id int NOT NULL, label text);
        CREATE TABLE issued (id text PRIMARY KEY, n int NOT NULL DEFAULT 0);
        CREATE TABLE parts (region text, id int, n int, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
        CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
    """
    await owner.execute(tables)
    for table, scope in (("orders", None), ("hues", None), ("items", "account/{account_id}"), ("parts", None)):
        await protect(owner, table, scope=scope)
    await protect(owner, "issued", source="builtin")
    token = await owner.fetchval("SELECT nextval('fencepost.tokens')")
    for number, statement in (
        (36, "INSERT INTO orders VALUES ('row'), ('gone')"),
        (40, "UPDATE orders SET status = 'paid' WHERE order_id = 'row'"),
        (41, "DELETE FROM orders WHERE order_id = 'gone'"), (42, "INSERT INTO items VALUES (1, 7, 'a')"),
        (43, "INSERT INTO hues VALUES ('red', 1)"), (44, "INSERT INTO parts VALUES ('eu', 1, 1)"),
        (token, "INSERT INTO issued VALUES ('a')"),
    ):  # fmt: skip
        assert await write(owner, number, statement) == "", statement
    await asyncio.to_thread(dump_and_restore, postgres, database, target, *options)

    async with connection_to(target) as restored:
        for number, statement, refusal in (
            (None, "UPDATE orders SET status = 'x'", "FP428"), (39, "UPDATE orders SET status = 'x'", "FP409"),
            (40, "DELETE FROM orders", "FP409"), (41, "INSERT INTO orders VALUES ('gone')", "FP409"),
            (41, "UPDATE items SET label = 'x'", "FP409"), (43, "UPDATE hues SET n = 2", "FP409"),
            (44, "UPDATE parts SET n = 2", "FP409"), (45, "TRUNCATE parts_eu", "FP428"),
            (token, "UPDATE issued SET n = 1", "FP409"), (token + 1, "UPDATE issued SET n = 1", "FP018"),
            (50, "UPDATE orders SET status = 'new'", ""), (50, "UPDATE items SET label = 'new'", ""),
        ):  # fmt: skip
            assert await write(restored, number, statement) == refusal, statement
        assert await restored.fetchval("SELECT nextval('fencepost.tokens')") == token + 1


# Text keys whatever their collation: one name for one key, and one order in which everybody takes rows.

KEYS = ["a", "B", "Z", "ä", "Ö", "10", "9", "a b", "-x", "%2F", "x/y", "x,y", "é", "e\u0301", "ß", "ss"]
ICU = {"numeric": "en-u-kn-true", "upper first": "und-u-kf-upper", "punctuation ignored": "und-u-ka-shifted"}


async def collations(db: Connection) -> list[str]:
    """What text can be collated by on this server, as SQL. The embedded one has no ICU."""
    found = ['"C"', '"POSIX"', '"default"']
    found += [
        f'"{row[0]}"'
        for row in await db.fetch(
            "SELECT collname FROM pg_collation WHERE collname IN ('de-x-icu', 'pg_c_utf8', 'ucs_basic')"
        )
    ]
    if await has_icu(db):
        await db.execute('CREATE SCHEMA "my coll"')
        for name, locale in ICU.items():
            await db.execute(f"""CREATE COLLATION "my coll"."{name}" (provider = icu, locale = '{locale}')""")
            found.append(f'"my coll"."{name}"')
    return found


async def has_icu(db: Connection) -> bool:
    return bool(await db.fetchval("SELECT EXISTS (SELECT FROM pg_collation WHERE collname = 'de-x-icu')"))


async def collated(connect: Connect, database: str, *columns: str, name: str = "words") -> Race:
    """A race whose table has a key of these columns, k0 and on."""
    keys = ", ".join(f"k{n} {column} NOT NULL" for n, column in enumerate(columns))
    names = ", ".join(f"k{n}" for n, _ in enumerate(columns))
    ddl = f"CREATE TABLE public.{name} ({keys}, n int NOT NULL DEFAULT 0, PRIMARY KEY ({names}))"
    return await open_race(connect, database, "strict", ddl=ddl, name=name)


async def test_a_table_with_a_nondeterministic_collation_in_its_key_or_scope_is_not_protected(connect: Connect) -> None:
    """'a' and 'A' would be one row, or one scope, and two resources."""
    db = await owner(connect)
    make = "CREATE COLLATION public.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    if not await has_icu(db):
        assert await outcome(db.execute(make)) == "0A000", "such collations are ICU's only"
        return
    await db.execute(f"{make}; CREATE TABLE public.words (id int, k text COLLATE public.ci, PRIMARY KEY (id, k))")
    await db.execute("CREATE TABLE public.scoped (id int PRIMARY KEY, k text COLLATE public.ci NOT NULL)")
    with pytest.raises(ProtectError, match="its key column k has a nondeterministic collation: equal keys would"):
        await protect(db, "words")
    with pytest.raises(ProtectError, match="the scope's column k has a nondeterministic collation: equal scopes"):
        await protect(db, "scoped", scope="of/{k}")


async def test_keys_are_claimed_in_the_order_in_which_rows_are_locked(connect: Connect, database: str) -> None:
    """By the column's collation: in another order, a lease's claims and a multi-row write deadlock."""
    db = await owner(connect)
    orders = set()
    for number, collation in enumerate(await collations(db)):
        types = (f"text COLLATE {collation}", f"varchar(9) COLLATE {collation}")
        name = f"words{number}"
        race = await collated(connect, database, *types, name=name)
        keys = [(first, second) for first in KEYS[:8] for second in ("b", "A", "ä")]
        await race.observer.executemany(f"INSERT INTO {name} VALUES ($1, $2, 0, 5)", keys)
        locked = await race.observer.fetch(f"SELECT k0, k1 FROM {name} AS r ORDER BY r.k0, r.k1 FOR UPDATE OF r")
        claimed = await in_key_order(race.a, race.table, keys)
        assert [keys[position] for position, _ in claimed] == [tuple(row) for row in locked], collation
        orders.add(tuple(position for position, _ in claimed))
        for connection in (race.a, race.b, race.c, race.observer):
            await connection.close()
    assert (len(orders) > 1) == await has_icu(db), "with ICU there is more than one order"


async def test_arrays_are_inserted_and_asked_about_in_the_order_in_which_rows_are_locked(
    connect: Connect, database: str
) -> None:
    collation = '"de-x-icu"' if await has_icu(await owner(connect)) else '"C"'
    race = await collated(connect, database, f"text COLLATE {collation}")
    words = await race.observer.fetch(f"SELECT k FROM (VALUES ('a'), ('B')) v(k) ORDER BY k COLLATE {collation}")
    first, last = (row["k"] for row in words)
    holder = await race.begin(race.a)
    await race.insert(race.a, first, 5)
    array: list[dict[str, object]] = [{"k0": last}, {"k0": first}]
    waiter = await race.waits(race.b, outcome(race.insert_rows(race.b, array, 6)))
    free = await start(race.observer, race.insert(race.c, last, 4), race.c.get_server_pid())
    assert free.done(), "it waits for the first, and has not inserted the last"
    await holder.commit()
    assert await waiter == "23505"
    asked = await ask_elements(race.b, race.table, json.dumps(array))
    assert [each.standing.resource for each in asked] == [f"words/{first}", f"words/{last}"]
