"""Keys of every type that `protect` takes, written and read back: a value finds its row, which has one name."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.in_process import in_process

from fencepost.storage.protecting.protect import protect

MOODS = ["sad", "ok", 'it\'s "odd", {yes}', "ünï"]

# PostgreSQL's text has no NUL and no lone surrogates.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
NUMERICS = st.decimals(allow_nan=False, allow_infinity=False, places=12).map(lambda d: format(d, "f")) | st.integers(
    -(10**60), 10**60
).map(str)
ENDS = st.sampled_from(["infinity", "-infinity"])
DAYS = st.dates().map(str) | ENDS | st.sampled_from(["0044-03-15 BC", "4713-01-01 BC", "99999-12-31"])
INSTANTS = st.datetimes(timezones=st.just(UTC)).map(lambda at: at.isoformat()) | ENDS

TYPES: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "varchar(20)": TEXTS,
    "boolean": st.booleans(),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "numeric": NUMERICS,
    "uuid": st.uuids().map(str),
    "date": DAYS,
    "timestamptz": INSTANTS,
    "timestamp": st.datetimes().map(lambda at: at.isoformat()) | ENDS,
    "bytea": st.binary(max_size=20).map(lambda raw: "\\x" + raw.hex()),
    "public.mood": st.sampled_from(MOODS),
}
FEWER = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


class Client:
    """A gateway and a token that rises."""

    def __init__(self, http: httpx.AsyncClient, token: int = 0) -> None:
        self.http = http
        self.token = token

    async def write(self, method: str, path: str, body: object) -> httpx.Response:
        self.token += 1
        return await self.http.request(method, path, json=body, headers={"X-Fence-Token": str(self.token)})


async def test_a_key_value_finds_its_row_and_has_one_name(database: str) -> None:
    owner = await asyncpg.connect(database)
    labels = ", ".join("'" + mood.replace("'", "''") + "'" for mood in MOODS)
    await owner.execute(f"CREATE TYPE public.mood AS ENUM ({labels})")
    for number, sql in enumerate(TYPES):
        await owner.execute(f"CREATE TABLE public.by_{number} (key {sql} PRIMARY KEY, n int)")
        await protect(owner, f"by_{number}")
    await owner.close()
    async with in_process(database) as http:
        for number, sql in enumerate(TYPES):
            await keyed_by(Client(http), number, sql)


async def keyed_by(client: Client, number: int, sql: str) -> None:
    """Write rows with keys of one type, each under all names that it can have."""

    async def keyed(value: Any) -> None:
        text = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
        if text in ("", ".", ".."):
            return
        path = f"/v1/data/by_{number}/{quote(text, safe='')}"
        made = await client.write("PUT", path, {"key": value, "n": 1})
        assert made.status_code in (200, 201), made.text
        seen = json.loads(made.content, parse_float=Decimal)["key"]
        assert means(sql, value, seen), (sql, value, seen)
        assert (await client.http.get(path)).content == made.content
        stale = await client.http.patch(path, json={}, headers={"X-Fence-Token": str(client.token)})
        assert stale.status_code == 409, stale.text
        resource = stale.json()["resource"]
        claim = await client.write("POST", "/v1/claims", {"resource": resource})
        assert (claim.status_code, claim.json()["resource"], claim.json()["row"]) == (200, resource, made.json())
        # The text in its name is another spelling of the key at most.
        assert (await client.http.get(f"/v1/data/{quote(resource, safe='/%,')}")).content == made.content
        assert (await client.write("DELETE", path, {})).status_code == 204
        fence = (await client.http.get("/v1/fences", params={"resource": resource})).json()
        assert (fence["mark"], fence["row_exists"], fence["resource"]) == (str(client.token), False, resource)

    # In a thread, so that it runs in the loop that the gateway lives in.
    loop = asyncio.get_running_loop()
    test = FEWER(given(TYPES[sql])(lambda value: asyncio.run_coroutine_threadsafe(keyed(value), loop).result(30)))
    await asyncio.to_thread(test)


def as_columns(types: Mapping[str, str]) -> str:
    """Write columns with their types."""
    return ", ".join(f"{name} {sql}" for name, sql in types.items())


def means(sql: str, sent: Any, seen: Any) -> bool:
    """Return whether an answer means what was sent."""
    if sql == "numeric":
        return Decimal(sent) == Decimal(str(seen))
    if sql in ("date", "timestamptz", "timestamp"):  # spelled otherwise; they are compared as names
        return seen is not None
    return bool(seen == (sent[:20] if sql == "varchar(20)" else sent))


async def test_json_null_is_kept_where_a_column_must_have_a_value(database: str) -> None:
    columns = "j jsonb NOT NULL, k json NOT NULL, d public.doc, e public.draft, n jsonb"
    owner = await asyncpg.connect(database)
    await owner.execute("CREATE DOMAIN public.doc AS jsonb NOT NULL; CREATE DOMAIN public.draft AS public.doc")
    await owner.execute(f"CREATE TABLE public.docs (id int PRIMARY KEY, {columns})")
    await owner.execute("INSERT INTO public.docs VALUES (1, 'null', 'null', 'null', 'null', 'null')")
    await protect(owner, "docs")
    async with in_process(database) as http:
        client, path = Client(http), "/v1/data/docs"
        row = (await http.get(f"{path}/1")).json()
        nothing = dict.fromkeys("jkden")
        for method, to, body in (
            ("PUT", f"{path}/1", row), ("PATCH", f"{path}/1", row), ("PATCH", f"{path}?id=eq.1", nothing),
            ("PATCH", path, [row]), ("PUT", f"{path}/2", row | {"id": 2}), ("POST", path, row | {"id": 3}),
            ("POST", path, [row | {"id": 4}, {"j": {"a": 1}} | row | {"id": 5, "j": {"j": None}}]),
        ):  # fmt: skip
            answer = await client.write(method, to, body)
            assert answer.status_code < 300, (method, to, answer.text)
        missing = await client.write("POST", f"{path}?columns=id,j,k,d,e,n", [row | {"id": 6}, {"id": 7, "j": 1}])
        assert (missing.status_code, missing.json()["code"]) == (400, "23502")
    found = await owner.fetch("SELECT j::text, k::text, d::text, e::text, n::text FROM public.docs ORDER BY id")
    await owner.close()
    assert [tuple(each) for each in found] == [("null",) * 4 + (None,)] * 4 + [
        ('{"j": null}', "null", "null", "null", None)
    ]


@pytest.mark.versions
async def test_what_a_type_cannot_read_is_400_and_names_the_column(database: str) -> None:
    """Types of extensions may call it an internal error."""
    owner = await asyncpg.connect(database)
    types = await owner.fetch("SELECT name FROM pg_available_extensions WHERE name IN ('hstore', 'ltree', 'vector')")
    columns = {"p": "tsquery", "x": "jsonpath"}
    for (name,) in types:
        await owner.execute(f"CREATE EXTENSION {name} SCHEMA public")
        columns |= {f"a{name}": f"public.{name}", f"b{name}": f"public.{name}[]"}
    await owner.execute(f"CREATE TABLE public.odd (id int PRIMARY KEY, t text, {as_columns(columns)})")
    await protect(owner, "odd")
    await owner.execute("INSERT INTO public.odd (id, t, last_fence_token) VALUES (1, 'a \" b', 1)")
    await owner.close()
    async with in_process(database) as http:
        client, path = Client(http, 10), "/v1/data/odd"
        for name, sql in columns.items():
            bad: list[object] = ['a " b', {"a": {"b": "c"}}]
            for value in [[each] for each in bad] if sql.endswith("[]") else bad:
                for method, to, body in (
                    ("PATCH", f"{path}/1", {name: value}), ("PUT", f"{path}/2", {"id": 2, name: value}),
                    ("POST", path, {"id": 3, name: value}), ("PATCH", path, [{"id": 1, name: value}]),
                ):  # fmt: skip
                    answer = await client.write(method, to, body)
                    assert (answer.status_code, answer.json().get("column")) == (400, name), (method, sql, answer.text)
            text = '{"a \\" b"}' if sql.endswith("[]") else 'a " b'
            for method, query in (
                ("GET", f"{name}=in.({json.dumps(text)})"), ("DELETE", f"{name}=eq.{text}"),
                ("GET", f"select=t::{sql}" if "." in sql and not sql.endswith("[]") else f"{name}=eq.{text}"),
            ):  # fmt: skip
                answer = await client.write(method, f"{path}?{quote(query, safe='=&:')}", None)
                assert answer.status_code == 400, (method, query, answer.text)
