"""Values of every supported type, written and read back: as columns, and as keys where `protect` takes the type."""

import asyncio
import json
import math
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.in_process import in_process

from fencepost.storage.protecting.protect import protect

MOODS = ["sad", "ok", 'it\'s "odd", {yes}', "ünï"]

# PostgreSQL's text has no NUL and no lone surrogates.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
INT4, INT8 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
NUMERICS = st.decimals(allow_nan=False, allow_infinity=False, places=12).map(lambda d: format(d, "f")) | st.integers(
    -(10**60), 10**60
).map(str)
DAYS = st.dates().map(str) | st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "99999-12-31"])
INSTANTS = st.datetimes(timezones=st.just(UTC)).map(lambda at: at.isoformat()) | st.sampled_from(
    ["infinity", "-infinity", "0044-03-15T00:00:00+00:00 BC"]
)
LOCALS = st.datetimes().map(lambda at: at.isoformat()) | st.sampled_from(["infinity", "-infinity"])
BYTES = st.binary(max_size=20).map(lambda raw: "\\x" + raw.hex())
INTERVALS = st.builds(
    lambda months, days, micros: f"{months} mon {days} days {micros / 1e6:.6f} secs",
    st.integers(-1000, 1000), st.integers(-10_000, 10_000), st.integers(-(10**12), 10**12),
)  # fmt: skip

TYPES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "text": ("text", TEXTS),
    "varchar": ("varchar(20)", TEXTS),
    "bool": ("boolean", st.booleans()),
    "int2": ("smallint", st.integers(-(2**15), 2**15 - 1)),
    "int4": ("int", INT4),
    "int8": ("bigint", INT8),
    "numeric": ("numeric", NUMERICS),
    "float8": ("double precision", FLOATS | st.sampled_from(["Infinity", "-Infinity", "NaN"])),
    "float4": ("real", st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "uuid": ("uuid", st.uuids().map(str)),
    "date": ("date", DAYS),
    "timestamptz": ("timestamptz", INSTANTS),
    "timestamp": ("timestamp", LOCALS),
    "time": ("time", st.times().map(str)),
    "interval": ("interval", INTERVALS),
    "bytea": ("bytea", BYTES),
    "json": ("json", JSON),
    "jsonb": ("jsonb", JSON),
    "mood": ("public.mood", st.sampled_from(MOODS)),
    "ints": ("int[]", st.lists(st.none() | INT4, max_size=4)),
    "texts": ("text[]", st.lists(st.none() | TEXTS, max_size=4)),
    "grid": (
        "int[]",
        st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(INT4, min_size=n, max_size=n), min_size=1, max_size=3)),
    ),
    "moods": ("public.mood[]", st.lists(st.none() | st.sampled_from(MOODS), max_size=4)),
    "place": ("public.place", st.fixed_dictionaries({"street": st.none() | TEXTS, "number": st.none() | INT4})),
}
AS_TEXT = {"text", "varchar", "uuid", "mood", "bytea"}
SAME = AS_TEXT | {"bool", "int2", "int4", "int8", "ints", "texts", "grid", "moods", "json", "place"}
KEYS = (
    "text", "varchar", "bool", "int2", "int4", "int8", "numeric", "uuid", "date", "timestamptz", "timestamp", "bytea",
    "mood",
)  # fmt: skip

MANY = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
FEWER = settings(MANY, max_examples=12)


class Client:
    """A gateway and a token that rises."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.token = 0

    async def write(self, method: str, path: str, body: object) -> httpx.Response:
        self.token += 1
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"X-Fence-Token": str(self.token), "Content-Type": "application/json"}
        return await self.http.request(method, path, content=content, headers=headers)


@asynccontextmanager
async def serving(database: str, tables: dict[str, str], *rows: str) -> AsyncIterator[Client]:
    connection = await asyncpg.connect(database)
    await connection.execute("SET search_path = public")
    labels = ", ".join("'" + mood.replace("'", "''") + "'" for mood in MOODS)
    await connection.execute(f"CREATE TYPE mood AS ENUM ({labels}); CREATE TYPE place AS (street text, number int)")
    for table, columns in tables.items():
        await connection.execute(f"CREATE TABLE {table} ({columns})")
    for row in rows:
        await connection.execute(row)
    for table in tables:
        await protect(connection, table)
    await connection.close()
    async with in_process(database) as http:
        yield Client(http)


async def test_values_that_are_written_are_the_values_that_are_read(database: str) -> None:
    columns = ", ".join(f'"{name}" {sql}' for name, (sql, _) in TYPES.items())
    tables = {"things": f"id int PRIMARY KEY, {columns}"}
    async with serving(database, tables, "INSERT INTO things VALUES (1)") as things:

        @MANY
        @given(values=st.fixed_dictionaries({name: strategy for name, (_, strategy) in TYPES.items()}))
        async def written_and_read(values: dict[str, Any]) -> None:
            first = await things.write("PATCH", "/v1/data/things/1", values)
            assert first.status_code == 200, first.text
            seen = json.loads(first.content, parse_float=Decimal)
            for name, value in values.items():
                assert means(name, value, seen[name]), (name, value, seen[name])
            read = await things.http.get("/v1/data/things/1")
            assert json.loads(read.content, parse_float=Decimal) == seen
            # What was read can be put back, and is the same then.
            again = await things.write("PATCH", "/v1/data/things/1", read.content)
            assert again.content == read.content
            nothing = await things.write("PATCH", "/v1/data/things/1", dict.fromkeys(values))
            assert nothing.json() == {"id": 1, **dict.fromkeys(values)}

        await run_async(written_and_read)


async def test_a_key_value_finds_its_row_and_has_one_name(database: str) -> None:
    tables = {f"by_{name}": f"key {TYPES[name][0]} PRIMARY KEY, n int" for name in KEYS}
    async with serving(database, tables) as client:
        for name in KEYS:
            await keyed_by(client, name)


async def keyed_by(client: Client, name: str) -> None:
    """Write rows with keys of one type, each under all names that it can have."""

    @FEWER
    @given(value=TYPES[name][1])
    async def keyed(value: Any) -> None:
        text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
        if text in ("", ".", ".."):
            return
        path = f"/v1/data/by_{name}/{quote(text, safe='')}"
        made = await client.write("PUT", path, {"key": value, "n": 1})
        assert made.status_code in (200, 201), made.text
        assert means(name, value, json.loads(made.content, parse_float=Decimal)["key"])
        assert (await client.http.get(path)).content == made.content
        stale = await client.http.patch(path, json={}, headers={"X-Fence-Token": str(client.token)})
        assert stale.status_code == 409, stale.text
        resource = stale.json()["resource"]
        claim = await client.write("POST", "/v1/claims", {"resource": resource})
        assert claim.status_code == 200
        assert (claim.json()["resource"], claim.json()["row"]) == (resource, made.json())
        # The text in its name is another spelling of the key at most.
        assert (await client.http.get(f"/v1/data/{resource_path(resource)}")).content == made.content
        assert (await client.write("DELETE", path, {})).status_code == 204
        fence = (await client.http.get("/v1/fences", params={"resource": resource})).json()
        assert (fence["mark"], fence["row_exists"], fence["resource"]) == (str(client.token), False, resource)

    await run_async(keyed)


def resource_path(resource: str) -> str:
    """A resource name as a path: percent-encode what a URL cannot hold, and nothing twice."""
    return quote(resource, safe="/%,")


def means(name: str, sent: Any, seen: Any) -> bool:
    """Return whether an answer means what was sent: an oracle for each family of types."""
    if name == "numeric":
        return Decimal(sent) == Decimal(str(seen))
    if name in ("float8", "float4"):
        if isinstance(sent, str):
            return bool(seen == sent)
        width = "f" if name == "float4" else "d"
        return struct.pack(width, float(seen)) == struct.pack(width, sent) or (sent == 0 and float(seen) == 0)
    if name in SAME and name != "json":
        return bool(seen == sent) if name != "varchar" else seen == sent[:20]
    if name in ("json", "jsonb"):
        return same_json(sent, seen)
    return seen is not None


def same_json(sent: Any, seen: Any) -> bool:
    if isinstance(sent, dict):
        return isinstance(seen, dict) and sent.keys() == seen.keys() and all(same_json(sent[k], seen[k]) for k in sent)
    if isinstance(sent, list):
        return isinstance(seen, list) and len(sent) == len(seen) and all(map(same_json, sent, seen))
    if isinstance(sent, float):
        return isinstance(seen, Decimal | int) and math.isclose(float(seen), sent, rel_tol=1e-15, abs_tol=5e-324)
    return bool(sent == seen)


async def run_async(test: Any) -> None:
    """Run a Hypothesis test whose body is a coroutine in the loop that the gateway lives in."""
    loop = asyncio.get_running_loop()
    inner = test.hypothesis.inner_test
    test.hypothesis.inner_test = lambda **given_: asyncio.run_coroutine_threadsafe(inner(**given_), loop).result(30)
    await asyncio.to_thread(test)
