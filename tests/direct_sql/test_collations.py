"""Text keys whatever their collation: one name for one key, and one order in which everybody takes rows."""

import json
from urllib.parse import quote as percent

import asyncpg
import pytest
from tests.support.in_process import in_process
from tests.support.interleave import Connect, Connection, start
from tests.support.racing import Race, open_race, outcome, owner

from fencepost.storage.protecting.protect import ProtectError, protect
from fencepost.storage.statements.asking import ask_elements, in_key_order

pytestmark = pytest.mark.versions

KEYS = ["a", "B", "Z", "ä", "Ö", "10", "9", "a b", "-x", "%2F", "x/y", "x,y", "é", "e\u0301", "ß", "ss"]
ICU = {
    "numeric": "en-u-kn-true",
    "upper first": "und-u-kf-upper",
    "punctuation ignored": "und-u-ka-shifted",
}


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


async def close(race: Race) -> None:
    for connection in (race.a, race.b, race.c, race.observer):
        await connection.close()


async def test_every_verb_judges_a_key_of_any_collation(connect: Connect, database: str) -> None:
    db = await owner(connect)
    for number, collation in enumerate(await collations(db)):
        name = f"words{number}"
        race = await collated(connect, database, f"text COLLATE {collation}", name=name)
        for key in KEYS:
            token = 100
            literal = key.replace("'", "''")
            assert await race.insert(race.a, key, token), (collation, key)
            assert await race.update(race.a, key, token - 1, n=1) is None
            assert await race.direct(race.a, f"UPDATE {name} SET n = 2 WHERE k0 = '{literal}'", token - 1) == "FP409"
            assert await race.update(race.a, key, token + 1, n=1)
            assert await race.direct(race.a, f"UPDATE {name} SET n = 2 WHERE k0 = '{literal}'", token + 2) == "ok"
            assert await race.direct(race.a, f"DELETE FROM {name} WHERE k0 = '{literal}'", token + 1) == "FP409"
            assert await race.delete(race.a, key, token + 1) is None
            assert await race.delete(race.a, key, token + 3)
            assert await race.recorded(key) == (token + 3, True), (collation, key)
            assert await race.direct(race.a, f"INSERT INTO {name} VALUES ('{literal}')", token + 2) == "FP409"
            assert await race.direct(race.a, f"INSERT INTO {name} VALUES ('{literal}')", token + 4) == "ok"
        names = await race.observer.fetchval(
            "SELECT count(*) FROM fencepost.marks WHERE starts_with(resource, $1)", f"{name}/"
        )
        assert names == len(KEYS), f"{collation}: a key, a name"
        await close(race)


async def test_columns_of_different_collations_meet_in_one_name(connect: Connect, database: str) -> None:
    db = await owner(connect)
    some = await collations(db)
    race = await collated(connect, database, *(f"text COLLATE {each}" for each in some))
    key = tuple(f"{n}/ä,%" for n, _ in enumerate(some))
    assert await race.insert(race.a, key, 30)
    assert await race.update(race.a, key, 31, n=1)
    assert await race.direct(race.a, "UPDATE words SET n = 2", 31) == "FP409"
    assert await race.direct(race.a, "UPDATE words SET n = 2", 32) == "ok"
    assert await race.delete(race.a, key, 31) is None
    assert await race.delete(race.a, key, 33)
    assert await race.recorded(key) == (33, True)
    assert await race.claim_absent(race.a, key, 34) is None
    encoded = [part.replace("%", "%25").replace("/", "%2F").replace(",", "%2C") for part in key]
    assert await race.observer.fetchval("SELECT resource FROM fencepost.marks") == "words/" + ",".join(encoded)


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
        await close(race)
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


async def test_a_domain_has_the_collation_of_its_type(connect: Connect, database: str) -> None:
    db = await owner(connect)
    best = (await collations(db))[-1]
    await db.execute(f"CREATE DOMAIN public.word AS text COLLATE {best} CHECK (VALUE <> '')")
    race = await collated(connect, database, "public.word")
    await race.observer.executemany("INSERT INTO words VALUES ($1, 0, 5)", [(key,) for key in KEYS])
    locked = [row[0] for row in await race.observer.fetch("SELECT k0 FROM words ORDER BY k0")]
    keys = [(key,) for key in KEYS]
    assert [keys[n][0] for n, _ in await in_key_order(race.a, race.table, keys)] == locked


async def test_the_gateway_reads_and_writes_keys_of_any_collation(connect: Connect, database: str) -> None:
    db = await owner(connect)
    some = await collations(db)
    key = f"a text COLLATE {some[-1]}, b varchar COLLATE {some[1]}"
    await db.execute(f"CREATE TABLE public.words ({key}, n int DEFAULT 0, PRIMARY KEY (a, b))")
    await protect(db, "words")
    async with in_process(database) as client:
        for key in KEYS:
            path = f"/v1/data/words/{percent(key, safe='')},x"
            steps = (
                ("POST", "/v1/data/words", 30, {"a": key, "b": "x"}, 201),
                ("PATCH", path, 30, {"n": 1}, 409),
                ("PATCH", path, 31, {"n": 1}, 200),
                ("PUT", path, 32, {"n": 2}, 200),
                ("DELETE", path, 31, None, 409),
                ("DELETE", path, 33, None, 204),
                ("PUT", path, 33, {"n": 2}, 409),
                ("PUT", path, 34, {"n": 2}, 201),
            )
            for method, where, token, body, status in steps:
                answer = await client.request(method, where, json=body, headers={"X-Fence-Token": str(token)})
                assert answer.status_code == status, (key, method, token, answer.text)
        answer = await client.patch("/v1/data/words?b=eq.x", json={"n": 3}, headers={"X-Fence-Token": "40"})
        assert answer.status_code in (200, 204), answer.text
        body = {"resource": f"words/{KEYS[1]},x"}
        answer = await client.post("/v1/claims", json=body, headers={"X-Fence-Token": "41"})
        assert (answer.status_code, answer.json()["mark"]) == (200, "41"), answer.text
        rows = (await client.get("/v1/data/words?select=a&order=a")).json()
        assert [row["a"] for row in rows] == [row[0] for row in await db.fetch("SELECT a FROM words ORDER BY a")]


async def test_a_nondeterministic_collation_is_in_the_way(connect: Connect, database: str) -> None:
    """'a' and 'A' would be one row and two resources."""
    db = await owner(connect)
    make = "CREATE COLLATION public.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    if not await has_icu(db):
        with pytest.raises(asyncpg.PostgresError, match="ICU is not supported"):
            await db.execute(make)
        return
    await db.execute(make)
    await db.execute("CREATE TABLE public.words (k text COLLATE public.ci PRIMARY KEY)")
    with pytest.raises(ProtectError, match="its key column k has a nondeterministic collation: equal keys would"):
        await protect(db, "words")
    await db.execute("CREATE TABLE public.two (id int, k text COLLATE public.ci, PRIMARY KEY (id, k))")
    with pytest.raises(ProtectError, match="nondeterministic"):
        await protect(db, "two")
    # Elsewhere it is in no table's way.
    race = await open_race(
        connect, database, ddl="CREATE TABLE t (id text PRIMARY KEY, k text COLLATE public.ci UNIQUE)", name="t"
    )
    assert await race.insert(race.a, "1", 30, k="a")
    assert await race.direct(race.a, "UPDATE t SET k = 'A'", 29) == "FP409"
    assert await race.direct(race.a, "INSERT INTO t VALUES ('2', 'A')", 31) == "23505"
