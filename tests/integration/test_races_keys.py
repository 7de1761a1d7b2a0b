"""R6: one mark per key value, whatever its type, its text, the session's settings, and the names of things."""

import json
from collections.abc import Sequence

import pytest
from tests.support.interleave import Connect
from tests.support.racing import Key, Race, gateway_pid, keyed, open_gateway, open_race, outcome, result_of

from fencepost.fencing.resource import Resource
from fencepost.fencing.token import Rule, Token
from fencepost.gateway.claims.claim import Claim
from fencepost.gateway.use_cases import claim, delete, delete_many, insert, patch, patch_many, put
from fencepost.gateway.writes.insert import Insert
from fencepost.gateway.writes.keyed import KeyedWrite
from fencepost.gateway.writes.matching import FilteredWrite
from fencepost.gateway.writes.requests import Body
from fencepost.storage.connections.connection import Connection
from fencepost.storage.protecting.protect import protect
from fencepost.storage.statements.asking import KeyState, ask
from fencepost.storage.statements.query import Condition, Field
from fencepost.storage.tables.catalog import ProtectedTable

SPELLINGS = [
    ("numeric", "1.0", "1.00", "k/1"),
    ("numeric", "100", "1e2", "k/100"),
    ("numeric", "-0.50", "-0.5", "k/-0.5"),
    ("integer", "7", "007", "k/7"),
    ("date", "2024-02-01", "February 1, 2024", "k/2024-02-01"),
    ("timestamp", "2024-02-01 03:04:05", "2024-02-01T03:04:05.000", "k/2024-02-01 03:04:05"),
    ("timestamptz", "2024-02-01 03:04:05+00", "2024-02-01 12:04:05+09", "k/2024-02-01 03:04:05+00"),
    ("bytea", "\\x00ff", "\\000\\377", "k/\\x00ff"),
    ("uuid", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{a0eebc999c0b4ef8bb6d6bb9bd380a11}",
     "k/a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("boolean", "t", "yes", "k/true"),
    ("char(3)", "a", "a  ", "k/a"),
    ("text", "a/b,c;d%e", "a/b,c;d%e", "k/a%2Fb%2Cc%3Bd%25e"),
]  # fmt: skip
SETTINGS = (
    "SET DateStyle = 'German'; SET TimeZone = 'Asia/Tokyo'; SET bytea_output = 'escape'; SET extra_float_digits = -5;"
    " SET IntervalStyle = 'iso_8601'; SET standard_conforming_strings = off; SET lc_messages = 'C'"
)


@pytest.mark.parametrize(("type_", "one", "other", "resource"), SPELLINGS, ids=[f"{s[0]}-{s[1]}" for s in SPELLINGS])
async def test_two_spellings_of_a_key_are_one_resource(
    type_: str, one: str, other: str, resource: str, connect: Connect, database: str
) -> None:
    race = await open_race(connect, database, ddl=f"CREATE TABLE k (id {type_} PRIMARY KEY)", name="k")
    assert (await race.standing(one)).resource == (await race.standing(other)).resource == resource
    assert await race.insert_one(race.a, one, 30)
    assert await race.update(race.a, other, 31)
    assert await race.delete(race.a, other, 34)
    assert await race.recorded(one) == (34, True)
    marks = await race.observer.fetch("SELECT resource, last_fence_token FROM fencepost.marks")
    assert [tuple(mark) for mark in marks] == [(resource, 34)]
    assert await outcome(race.insert_one(race.a, other, 33)) == "FP409"


@pytest.mark.parametrize(
    ("type_", "value"), [(s[0], s[1]) for s in SPELLINGS], ids=[f"{s[0]}-{s[1]}" for s in SPELLINGS]
)
async def test_a_session_with_other_settings_leaves_the_same_mark(
    type_: str, value: str, connect: Connect, database: str
) -> None:
    """Both delete the same stored value, which each session writes as another text."""
    race = await open_race(connect, database, ddl=f"CREATE TABLE k (id {type_} PRIMARY KEY)", name="k")
    await race.b.execute(SETTINGS)
    for session, token in ((race.a, 30), (race.b, 40)):
        await race.insert_one(race.a, value, token)
        if token == 30:
            await race.observer.execute("CREATE TABLE kept AS SELECT id FROM k")
        assert await race.direct(session, "DELETE FROM public.k", token + 5) == "ok", token
        assert await race.direct(session, "INSERT INTO public.k SELECT id FROM public.kept", token + 4) == "FP409", (
            token
        )
    assert await race.observer.fetchval("SELECT count(*) FROM fencepost.marks") == 1
    assert await race.recorded(value) == (45, True)


async def test_composite_keys_that_read_alike_are_two_resources(connect: Connect, database: str) -> None:
    race = await open_race(connect, database, ddl="CREATE TABLE k (a text, b text, PRIMARY KEY (b, a))", name="k")
    keys: list[Key] = [("x,y", "z"), ("x", "y,z"), ("x/y", "z"), ("x%2Cy", "z"), ("", "")]
    for number, key in enumerate(keys):
        assert await race.insert(race.a, key, 30 + number)
        assert await race.delete(race.a, key, 50 + number)
    assert [await race.recorded(key) for key in keys] == [(50 + number, True) for number in range(len(keys))]


@pytest.fixture(params=["strict", "epoch"])
async def parts(request: pytest.FixtureRequest, connect: Connect, database: str) -> Race:
    """A partitioned table."""
    rule: Rule = request.param
    ddl = """
        CREATE TABLE parts (region text, id int, status text DEFAULT 'new', PRIMARY KEY (region, id))
          PARTITION BY LIST (region);
        CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
        CREATE TABLE parts_rest PARTITION OF parts DEFAULT"""
    return await open_race(connect, database, rule, ddl=ddl, name="parts")


async def test_an_insert_into_a_partition_shares_the_parents_marks(parts: Race) -> None:
    await parts.insert(parts.a, ("eu", "1"), 30)
    await parts.delete(parts.a, ("eu", "1"), 34)
    assert await parts.direct(parts.a, "INSERT INTO public.parts_eu VALUES ('eu', 1)", 33) == "FP409"
    assert await parts.direct(parts.a, "INSERT INTO public.parts_eu VALUES ('eu', 1)", 35) == "ok"
    assert await parts.recorded(("eu", "1")) == (35, False)
    assert await parts.direct(parts.a, "UPDATE public.parts_eu SET status = 'x'", 34) == "FP409"
    assert await parts.direct(parts.a, "DELETE FROM public.parts_eu") == "FP428"


async def test_a_row_of_a_partitioned_table_cannot_move_to_another_partition(parts: Race) -> None:
    await parts.insert(parts.a, ("eu", "1"), 30)
    assert await parts.direct(parts.a, "UPDATE public.parts SET region = 'us'", 31) == "FP400"


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

    monkeypatch.setattr("fencepost.storage.statements.asking.ask", there)
    async with open_gateway(parts.dsn) as gateway:
        # The key is spelled in two ways: no batch decides that.
        assert result_of(await put(gateway, keyed(key, 50, table="parts", id="01", status="put"))) == "ok"
    assert rounds == 3
    assert await parts.live_mark(key) == 50


@pytest.mark.parametrize("table", ["parts", "parts_eu", "parts_rest"])
async def test_no_partition_can_be_truncated(parts: Race, table: str) -> None:
    assert await parts.direct(parts.a, f"TRUNCATE public.{table}", 99) == "FP428"


async def test_a_delete_and_an_insert_race_in_a_partitioned_table(parts: Race) -> None:
    for id_, token, accepted in (("1", 33, False), ("2", 34, not parts.strict), ("3", 35, True)):
        await parts.insert(parts.a, ("eu", id_), 30)
        holder = await parts.begin(parts.a)
        await parts.delete(parts.a, ("eu", id_), 34)
        waiter = await parts.waits(parts.b, outcome(parts.insert(parts.b, ("eu", id_), token)))
        await holder.commit()
        answer = await waiter
        assert isinstance(answer, list) if accepted else answer == "FP409", (id_, token)


async def test_multi_row_writes_of_a_partitioned_table_are_judged_once_locked(parts: Race) -> None:
    for region in ("eu", "us"):
        await parts.insert(parts.a, (region, "1"), 30, status="new")
    async with open_gateway(parts.dsn) as gateway:
        for verb, token in ((patch_many, 40), (delete_many, 50)):
            holder = await parts.begin(parts.a)
            await parts.update(parts.a, ("us", "1"), token + 5)
            new = (Condition(Field("status"), "eq", "new"),)
            request = FilteredWrite("parts", new, Token(token), Body('{"status":"new"}', ("status",), {}))
            waiter = await parts.waits_at(await gateway_pid(gateway), verb(gateway, request))
            await holder.commit()
            assert result_of(await waiter) == "FP001", token


NAMES = [
    "token", "before", "k1", "k0", "r", "b", "i", "x", "w", "hit", "json", "mark", "what", "value", "n", "resource",
    "ordinality", "old", "new", 'quo"ted', "spa ce", "$fn$", "a=b", "a/b", "per%cent", "back\\slash",
    "apo'strophe", "user", "select", "Größe", "k" * 63,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rule", ["strict", "epoch"])
async def test_a_table_whose_columns_are_called_like_ours_is_fenced(
    name: str, rule: Rule, connect: Connect, database: str
) -> None:
    """The name is that of the table, of its key and, doubled, of a column."""
    quoted, column = '"' + name.replace('"', '""') + '"', f"_{name}"[:50]
    quoted_column = '"' + column.replace('"', '""') + '"'
    ddl = f"CREATE TABLE {quoted} ({quoted} text PRIMARY KEY, {quoted_column} text, x text, mark text, status text)"
    if name in ("x", "mark"):
        ddl = ddl.replace(f" {name} text,", "")
    race = await open_race(connect, database, rule, ddl=ddl, name=name)
    row = {name: "k", column: "v", "status": "new"}

    def some(token: int, **changes: str) -> KeyedWrite:
        values = {column: "w"} | changes
        return KeyedWrite(name, ("k",), Token(token), body=Body(json.dumps(values), tuple(values), {}))

    async with open_gateway(database) as gateway:
        post = Insert(name, Token(30), Body(json.dumps([row]), tuple(row), {}), 1)
        assert result_of(await insert(gateway, post)) == "created"
        assert result_of(await patch(gateway, some(29))) == "FP001"
        assert result_of(await patch(gateway, some(31))) == "ok"
        answer = await put(gateway, some(32, status="new"))
        assert result_of(answer) == "ok", answer
        assert json.loads(getattr(answer, "rows", ["{}"])[0])[column] == "w"
        assert result_of(await claim(gateway, Claim(Resource(name, ("k",)), Token(33)))) == "ok"
        new = (Condition(Field(column), "eq", "w"),)
        many = FilteredWrite(name, new, Token(34), Body(json.dumps({"status": "y"}), ("status",), {}))
        assert result_of(await patch_many(gateway, many)) == "ok"
        assert result_of(await delete_many(gateway, FilteredWrite(name, new, Token(33)))) == ("FP001")
        assert result_of(await delete(gateway, some(34))) == ("FP002" if rule == "strict" else "ok")
        await delete_many(gateway, FilteredWrite(name, new, Token(35)))
        assert result_of(await put(gateway, some(32))) == "FP001"
        assert result_of(await put(gateway, some(36))) == "created"
    assert await race.row("k") is not None
    await protect(race.observer, name)
    assert await race.live_mark("k") == 36
