"""R6: one mark per key value, whatever its type, its text, the session's settings, and the names of things."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Key, Race, open_race, outcome, protected_table
from tests.support.use_cases import (
    answer_after,
    delete,
    keyed,
    listed,
    matching,
    open_gateway,
    patch,
    post,
    put,
    result_of,
)

from fencepost.server.fence.resource import Resource
from fencepost.server.fence.token import Token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.use_cases import claim
from fencepost.server.gateway.write import Write
from fencepost.server.ops.protect import protect, unprotect
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.marks import KeyState, ask
from fencepost.server.postgres.query import Condition, Field
from fencepost.server.postgres.tables import ProtectedTable

SPELLINGS = [
    ("numeric", "1.0", "1.00", "1"),
    ("numeric", "100", "1e2", "100"),
    ("numeric", "-0.50", "-0.5", "-0.5"),
    ("integer", "7", "007", "7"),
    ("date", "2024-02-01", "February 1, 2024", "2024-02-01"),
    ("timestamp", "2024-02-01 03:04:05", "2024-02-01T03:04:05.000", "2024-02-01 03:04:05"),
    ("timestamptz", "2024-02-01 03:04:05+00", "2024-02-01 12:04:05+09", "2024-02-01 03:04:05+00"),
    ("bytea", "\\x00ff", "\\000\\377", "\\x00ff"),
    ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}",
     "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("boolean", "t", "yes", "true"),
    ("char(3)", "a", "a  ", "a"),
    ("text", "a/b,c;d%e", "a/b,c;d%e", "a%2Fb%2Cc%3Bd%25e"),
]  # fmt: skip


async def tables(connect: Connect, database: str) -> list[Race]:
    """Give a table for each type of SPELLINGS, k0 and on. They share one race's connections."""
    first = await open_race(connect, database)
    races = []
    for number, (type_, *_) in enumerate(SPELLINGS):
        await first.observer.execute(f"CREATE TABLE k{number} (id {type_} PRIMARY KEY)")
        await protect(first.observer, f"k{number}")
        races.append(replace(first, table=await protected_table(first.observer, f"k{number}")))
    return races


async def test_two_spellings_of_a_key_are_one_resource(connect: Connect, database: str) -> None:
    for race, (_, one, other, key) in zip(await tables(connect, database), SPELLINGS, strict=True):
        resource = f"{race.fence.name}/{key}"
        assert (await race.standing(one)).resource == (await race.standing(other)).resource == resource
        assert await race.insert_one(race.a, one, 30), key
        assert await race.update(race.a, other, 31), key
        assert await race.delete(race.a, other, 34), key
        marks = await race.observer.fetch("SELECT resource, last_fence_token FROM fencepost.marks WHERE row_absent")
        assert [tuple(mark) for mark in marks] == [(resource, 34)], key
        assert await outcome(race.insert_one(race.a, other, 33)) == "FP409", key
        await race.observer.execute("DELETE FROM fencepost.marks")


async def test_composite_keys_that_read_alike_are_two_resources(connect: Connect, unmade: Unmade) -> None:
    race = await open_race(connect, unmade, ddl="CREATE TABLE k (a text, b text, PRIMARY KEY (b, a))", name="k")
    keys: list[Key] = [("x,y", "z"), ("x", "y,z"), ("x/y", "z"), ("x%2Cy", "z"), ("", "")]
    for number, key in enumerate(keys):
        assert await race.insert(race.a, key, 30 + number)
        assert await race.delete(race.a, key, 50 + number)
    assert [await race.recorded(key) for key in keys] == [(50 + number, True) for number in range(len(keys))]


@pytest.fixture
async def parts(connect: Connect, unmade: Unmade) -> Race:
    """A partitioned table."""
    ddl = """
        CREATE TABLE parts (region text, id int, status text DEFAULT 'new', PRIMARY KEY (region, id))
          PARTITION BY LIST (region);
        CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
        CREATE TABLE parts_rest PARTITION OF parts DEFAULT"""
    return await open_race(connect, unmade, ddl=ddl, name="parts")


async def test_a_put_that_meets_its_own_key_late_is_no_duplicate(parts: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """In two rounds the row is there only while it is asked for; then it is made anew where the PUT would create it."""
    key, rounds = ("eu", "1"), 0

    async def there(connection: Connection, table: ProtectedTable, keys: Sequence[tuple[str, ...]]) -> list[KeyState]:
        nonlocal rounds
        rounds += 1
        if rounds <= 2:
            await parts.insert(parts.a, key, 30 + 2 * rounds)
        states = await ask(connection, table, keys)
        if rounds <= 2:
            await parts.delete(parts.a, key, 31 + 2 * rounds)
        if rounds == 3:
            await parts.insert(parts.a, key, 40)
        return states

    monkeypatch.setattr("fencepost.server.postgres.marks.ask", there)
    async with open_gateway(parts.dsn) as gateway:
        # The key is spelled in two ways: no batch decides that.
        assert result_of(await put(gateway, keyed(key, 50, table="parts", id="01", status="put"))) == "ok"
    assert rounds == 3
    assert await parts.live_mark(key) == 50


async def test_multi_row_writes_of_a_partitioned_table_are_judged_once_locked(parts: Race) -> None:
    for region in ("eu", "us"):
        await parts.insert(parts.a, (region, "1"), 30, status="new")
    async with open_gateway(parts.dsn) as gateway:
        for verb, token in ((patch, 40), (delete, 50)):
            newer = parts.update(parts.a, ("us", "1"), token + 5)
            new = (Condition(Field("status"), "eq", "new"),)
            write = matching(new, token, "parts", status="new")
            answer = await answer_after(parts, gateway, newer, request=verb(gateway, write))
            assert result_of(answer) == "FP001", token


NAMES = [
    "token", "before", "k1", "k0", "r", "b", "i", "x", "w", "hit", "json", "mark", "what", "value", "n", "resource",
    "ordinality", "old", "new", 'quo"ted', "spa ce", "$fn$", "a=b", "a/b", "per%cent", "back\\slash",
    "apo'strophe", "user", "select", "Größe", "k" * 63,
]  # fmt: skip


async def test_a_table_whose_columns_are_called_like_ours_is_fenced(connect: Connect, database: str) -> None:
    """The name is that of the table, of its key and, doubled, of a column."""
    race = await open_race(connect, database)
    for name in NAMES:
        quoted, column = '"' + name.replace('"', '""') + '"', f"_{name}"[:50]
        quoted_column = '"' + column.replace('"', '""') + '"'
        ddl = f"CREATE TABLE {quoted} ({quoted} text PRIMARY KEY, {quoted_column} text, x text, mark text, status text)"
        if name in ("x", "mark"):
            ddl = ddl.replace(f" {name} text,", "")
        await race.observer.execute(ddl)
        await protect(race.observer, name)
    async with open_gateway(database) as gateway:
        for name in NAMES:
            await every_verb_is_judged(gateway, name)
    for name in NAMES:
        named = replace(race, table=await protected_table(race.observer, name))
        assert await named.row("k") is not None, name
        # All that reads the rows with their names: what leaves marks, takes them up, and meets them.
        await unprotect(race.observer, name)
        for source in ("external", "builtin"):
            await protect(race.observer, name, source=source)
            assert await named.live_mark("k") == 36, name


async def every_verb_is_judged(gateway: Gateway, name: str) -> None:
    column = f"_{name}"[:50]
    row = {name: "k", column: "v", "status": "new"}

    def some(token: int, **changes: str) -> Write:
        values = {column: "w"} | changes
        return keyed("k", token, name, **values)

    made = listed(30, row, table=name)
    assert result_of(await post(gateway, made)) == "created", name
    assert result_of(await patch(gateway, some(29))) == "FP001", name
    assert result_of(await patch(gateway, some(31))) == "ok", name
    answer = await put(gateway, some(32, status="new"))
    assert result_of(answer) == "ok", answer
    assert json.loads(getattr(answer, "rows", ["{}"])[0])[column] == "w", name
    assert result_of(await claim(gateway, Claim(Resource(name, ("k",)), Token(33)))) == "ok", name
    new = (Condition(Field(column), "eq", "w"),)
    many = matching(new, 34, name, status="y")
    assert result_of(await patch(gateway, many)) == "ok", name
    assert result_of(await delete(gateway, matching(new, 33, name))) == "FP001", name
    assert result_of(await delete(gateway, some(34))) == "FP002", name
    await delete(gateway, matching(new, 35, name))
    assert result_of(await put(gateway, some(32))) == "FP001", name
    assert result_of(await put(gateway, some(36))) == "created", name
