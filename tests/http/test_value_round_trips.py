"""Keys of every type that `protect` takes, written and read back: a value finds its row, which has one name."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID

import asyncpg
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.gateways import in_process
from tests.support.interleave import Connection

from fencepost.server.ops.protect import protect

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
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "numeric": NUMERICS,
    "uuid": st.uuids().map(str),
    "date": DAYS,
    "timestamptz": INSTANTS,
    "bytea": st.binary(max_size=20).map(lambda raw: "\\x" + raw.hex()),
    "public.mood": st.sampled_from(MOODS),
}
FEWER = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))


class Client:
    """A gateway and a token that rises."""

    def __init__(self, http: httpx.AsyncClient, token: int = 0) -> None:
        self.http = http
        self.token = token

    async def write(self, method: str, path: str, body: object = None, content: str = "") -> httpx.Response:
        self.token += 1
        headers = {"X-Fence-Token": str(self.token), "Content-Type": "application/json"}
        sent = content or (None if body is None else json.dumps(body))
        return await self.http.request(method, path, content=sent, headers=headers)


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
    if sql in ("date", "timestamptz"):  # spelled otherwise; they are compared as names
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
            ):  # fmt: skip
                answer = await client.write(method, f"{path}?{quote(query, safe='=&:')}")
                assert answer.status_code == 400, (method, query, answer.text)
            for method, to in (("GET", path), ("PATCH", f"{path}/1")) if name.startswith("a") else ():
                cast = await client.write(
                    method, f"{to}?select=t::{sql}", {"t": 'a " b'} if method == "PATCH" else None
                )
                assert cast.status_code == 400, (method, sql, cast.text)


SAMPLES = {
    "bool": "t", "bytea": "\\x00ff", "char": "a", "name": "n", "int2": "-1", "int4": "7", "int8": "9007199254740993",
    "int2vector": "1 2", "oidvector": "1 2", "oid": "4294967295", "tid": "(1,2)", "xid": "5", "cid": "5", "xid8": "9",
    "text": 'it\'s "odd", {yes} \\ NULL', "varchar": "", "bpchar": "a ", "refcursor": "c", "uuid": str(UUID(int=1)),
    "numeric": "12345678901234567890.1234567890", "float4": "0.1", "float8": "-0", "money": "$1,234.50",
    "json": '{"a": 1.50, "b": [null], "b": 2}', "jsonb": '{"a": 1.50}', "jsonpath": '$."a"', "xml": "<a>&lt;</a>",
    "date": "infinity", "time": "24:00:00", "timetz": "00:00:00-01:30", "timestamp": "0044-03-15 00:00:00 BC",
    "timestamptz": "-infinity", "interval": "-1 mons +2 days -00:00:00.1", "bit": "1", "varbit": "", "inet": "::1/64",
    "cidr": "10.0.0.0/8", "macaddr": "08:00:2b:01:02:03", "macaddr8": "08:00:2b:01:02:03:04:05", "point": "(1,-0)",
    "line": "{1,2,3}", "lseg": "[(1,2),(3,4)]", "box": "(3,4),(1,2)", "path": "[(1,2),(3,4)]", "circle": "<(1,2),3>",
    "polygon": "((1,2),(3,4))", "pg_lsn": "16/B374D848", "tsvector": "'a':1A 'b,c'", "tsquery": "'a' & !'b'",
    "txid_snapshot": "10:20:10,14", "pg_snapshot": "10:20:10,14", "aclitem": "=r/postgres", "regproc": "int4in",
    "regprocedure": "int4in(cstring)", "regoper": "||/", "regoperator": "+(integer,integer)", "regclass": "pg_class",
    "regtype": "integer", "regconfig": "english", "regdictionary": "simple", "regnamespace": "public",
    "regrole": "postgres", "regcollation": '"C"', "regdatabase": "postgres", "int4range": "[1,3)", "int8range": "empty",
    "numrange": "(,1.50]", "daterange": "[2026-01-01,)", "tsrange": "(,)", "tstzrange": "[infinity,)",
    "hstore": r'"a"=>NULL, "\"\\"=>"x, =>"', "citext": "It", "ltree": "a.B_1", "mood": 'a "b", {c}',
    "day": "infinity", "lquery": "a.*", "ltxtquery": "a", "pair": '(1,"(a,b) ""c""")',
    "bag": r'("""a""=>""1""","{""\\""b\\""=>NULL"",NULL}")',
}  # fmt: skip
"""A text of each type that a column can have. Of an array and a multirange it is an element's."""
# Arrays of vectors are left out: PostgreSQL writes them as JSON that it does not read.
MADE = """
CREATE TYPE mood AS ENUM ('sad', 'a "b", {c}'); CREATE DOMAIN day AS date; CREATE TYPE pair AS (n int, t text)"""
CATALOG = """
SELECT format_type(t.oid, -1) AS sql, coalesce(e.typname, t.typname)::text AS sample, e.typdelim::text AS delimiter,
       t.typtype = 'm' AS of_ranges
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_range r ON r.rngmultitypid = t.oid LEFT JOIN pg_type e ON e.oid = r.rngtypid OR e.typarray = t.oid
 WHERE n.nspname IN ('pg_catalog', 'public') AND t.typtype <> 'p' AND t.typisdefined
   AND t.typname NOT IN ('_cstring', '_int2vector', '_oidvector')
   AND coalesce(e.typtype, 'b') <> 'm' AND (n.nspname = 'public' OR coalesce(e.typrelid, t.typrelid) = 0) ORDER BY 1"""


async def every_type(owner: Connection) -> dict[str, str]:
    """Give a text of each type that reads texts."""
    await owner.execute(f"SET search_path = public; {MADE}")
    wanted = "SELECT name FROM pg_available_extensions WHERE name IN ('hstore', 'citext', 'ltree')"
    for (name,) in await owner.fetch(wanted):
        await owner.execute(f"CREATE EXTENSION {name}")
        if name == "hstore":
            await owner.execute("CREATE TYPE bag AS (h hstore, hs hstore[])")
    texts = {}
    for sql, sample, delimiter, of_ranges in await owner.fetch(CATALOG):
        text = SAMPLES.get(sample, "x")
        if of_ranges:
            text = f"{{{text}}}"
        elif delimiter is not None:
            text = json.dumps(text, ensure_ascii=False).join(("{{", f"{delimiter}NULL}}}}"))
        with suppress(asyncpg.FeatureNotSupportedError, asyncpg.InternalServerError):  # xml is not in each build
            texts[sql] = await owner.fetchval(f"SELECT CAST($1::text AS {sql})::text", text)
    return texts


@pytest.mark.versions
async def test_a_row_of_every_type_comes_back_as_it_went(database: str) -> None:
    owner = await asyncpg.connect(database)
    given = await every_type(owner)
    columns = {f"c{n}": sql for n, sql in enumerate(given)}
    await owner.execute(f"CREATE TABLE every (id int PRIMARY KEY, {as_columns(columns)})")
    await protect(owner, "every")
    values = ", ".join(f"CAST(${n}::text AS {sql})" for n, sql in enumerate(given, 1))
    await owner.execute(f"INSERT INTO every VALUES (1, {values}, 1)", *given.values())
    async with in_process(database) as http:
        client, path = Client(http, 1), "/v1/data/every"
        row = (await http.get(f"{path}/1")).text
        for method, to, body in (("PUT", "/1", row), ("PATCH", "/1", row), ("PATCH", "", f"[{row}]")):
            answer = await client.write(method, path + to, content=body)
            assert answer.status_code < 300, (method, answer.text)
            (found,) = await owner.fetch(f"SELECT {', '.join(f'{name}::text' for name in columns)} FROM every")
            differ = {sql: (text, now) for (sql, text), now in zip(given.items(), found, strict=True) if text != now}
            assert not differ, method
        led = {sql for c, sql in columns.items() if (await http.get(f"{path}?{c}->0=not.is.null")).status_code == 200}
    with_parts = {"json", "jsonb", "int2vector", "oidvector", "pair", "bag", "hstore"}
    assert led == {sql for sql in given if sql in with_parts or sql.endswith("[]")}, "JSON paths lead into these"
    await owner.close()
