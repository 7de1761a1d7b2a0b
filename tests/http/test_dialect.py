"""The dialect of queries, by its effect: limits, counts, values there and back, return=minimal, which tables."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID

import asyncpg
import httpx
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.http.conftest import Start
from tests.http.test_data_routes import of, some_orders
from tests.support.asking import Api, code
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection, connection_to
from tests.support.shops import Shop

from fencepost.cli.main import main
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import PATIENCE, eventually

# What the dialect honours, by its effect: limits, counts, schemas, numbers past all floats, tokens on reads.


async def test_one_row_more_than_max_affected_refuses_all_and_a_write_counts(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "DELETE"):
        some, keys = await some_orders(shop, [10] * 4)
        for prefer in ("max-affected=1", "handling=strict,max-affected=3", "return=representation, max-affected=1"):
            answer = await api.ask(method, f"data/orders?{some}", of(method), token=11, prefer=prefer)
            assert code(answer) == (400, "FP016"), prefer
            assert "max-affected" in answer.json()["detail"], prefer
        assert [await shop.mark(key) for key in keys] == [10] * 4, method
        prefer = "handling=strict,max-affected=4,count=exact"
        done = await api.ask(method, f"data/orders?{some}", of(method), token=11, prefer=prefer)
        assert (done.status_code, done.headers["content-range"]) == (204, "0-3/4"), method
        assert sorted(done.headers["preference-applied"].split(", ")) == sorted(prefer.split(",")), method
    none = await api.ask("DELETE", f"data/orders?{some}", token=13, prefer="count=exact")
    assert none.headers["content-range"] == "*/0"
    for prefer in ("count=exact,return=minimal", "count=exact"):
        rows = [{"order_id": shop.key()} for _ in range(2)]
        answer = await api.ask("POST", "data/orders", rows, token=5, prefer=prefer)
        assert (answer.status_code, answer.headers["content-range"]) == (201, "*/2"), prefer


async def test_max_affected_holds_for_rows_that_share_a_mark(api: Api, shop: Shop) -> None:
    await shop.sql("CREATE TABLE public.seats (id int PRIMARY KEY, hall int NOT NULL, taken bool)")
    await shop.sql("INSERT INTO public.seats SELECT n, n % 2, false FROM generate_series(1, 4) n")
    async with connection_to(shop.dsn) as connection:
        await protect(connection, "seats", scope="hall/{hall}")
    for method, body in (("PATCH", {"taken": True}), ("DELETE", None)):
        path = "data/seats?id=gt.0"
        assert code(await api.ask(method, path, body, token=5, prefer="max-affected=3")) == (400, "FP016"), method
    rows = await shop.sql("SELECT count(*) FROM public.seats WHERE NOT taken")
    assert rows[0][0] == 4
    assert (await api.ask("DELETE", path, token=5, prefer="max-affected=4")).status_code == 204


async def test_missing_default_is_done_where_nothing_is_missing(api: Api, shop: Shop) -> None:
    """PostgREST would store the default, 1; without the preference it is null, which quantity cannot be."""
    first, second = shop.key(), shop.key()
    rows = [{"order_id": first}, {"order_id": second, "quantity": 4}]
    path = "data/orders?columns=order_id,quantity"
    refused = await api.ask("POST", path, rows, token=5, prefer="missing=default")
    assert code(refused) == (400, "FP016")
    assert "element 0 of the body lacks quantity" in refused.json()["detail"]
    assert [await shop.mark(first), await shop.mark(second)] == [None, None]
    whole = [{"order_id": first, "quantity": 2}, {"order_id": second, "quantity": 4}]
    done = await api.ask("POST", path, whole, token=5, prefer="missing=default")
    assert [row["quantity"] for row in done.json()] == [2, 4]
    for key in (first, second):
        keyed = f"data/orders/{key}?columns=quantity,note"
        assert code(await api.ask("PATCH", keyed, {"quantity": 1}, token=6, prefer="missing=default")) == (400, "FP016")
    without = await api.ask("POST", "data/orders", {"order_id": shop.key()}, token=5, prefer="missing=default")
    assert without.json()[0]["quantity"] == 1


async def test_a_delete_takes_no_body_but_an_empty_object(api: Api, shop: Shop) -> None:
    for body in (b"", b" ", b"{}", b" { } ", b"[]"):
        key = await shop.order()
        assert (await api.ask("DELETE", f"data/orders/{key}", token=11, content=body)).status_code == 204
    key = await shop.order()
    for body in (b'{"status": "new"}', b"[{}]", b"null", b"nonsense"):
        for path in (f"data/orders/{key}", f"data/orders?order_id=eq.{key}"):
            assert code(await api.ask("DELETE", path, token=11, content=body)) == (400, "FP016"), body
    assert await shop.mark(key) == 10


async def test_a_number_past_all_floats_is_read_and_sent_back(api: Api, shop: Shop) -> None:
    await shop.sql("CREATE TABLE public.large (id text PRIMARY KEY, n numeric, j jsonb)")
    async with connection_to(shop.dsn) as connection:
        await protect(connection, "large")
    for number in ("-1e400", "9" * 2000 + ".5"):
        key, json_type = shop.key(), {"Content-Type": "application/json"}
        body = f'{{"id": "{key}", "n": {number}, "j": {{"a": [{number}]}}}}'.encode()
        made = await api.ask("POST", "data/large", content=body, token=1, headers=json_type)
        assert made.status_code == 201, made.text
        for token, (method, path) in enumerate(
            (("PATCH", f"large/{key}"), ("PUT", f"large/{key}"), ("PATCH", f"large?id=eq.{key}"), ("PATCH", "large")), 2
        ):
            read = await api.ask("GET", f"data/large/{key}")
            sent = read.content if path != "large" else b"[" + read.content + b"]"
            if "?" in path:
                sent = read.content.replace(f'"id":"{key}",'.encode(), b"")
            back = await api.ask(method, f"data/{path}", content=sent, token=token, headers=json_type)
            assert back.is_success, back.text
            assert (await api.ask("GET", f"data/large/{key}")).content == read.content, number
        rows = await shop.sql(
            "SELECT n = ($1::text)::numeric, last_fence_token FROM public.large WHERE id = $2", number, key
        )
        assert tuple(rows[0]) == (True, 5), number


async def test_of_two_profiles_that_differ_none_is_chosen(api: Api, shop: Shop) -> None:
    """Both schemas have a table orders: the wrong one would be written."""
    await shop.sql("INSERT INTO sales.orders VALUES (7, 'as it was', 1)")
    key = await shop.order()
    both = {"Accept-Profile": "sales", "Content-Profile": "sales"}
    for method, body, headers in (
        ("PATCH", {"label": "x"}, {"Accept-Profile": "sales"}),
        ("DELETE", None, {"Accept-Profile": "sales"}),
        ("DELETE", None, {"Accept-Profile": "public", "Content-Profile": "sales"}),
        ("GET", None, {"Content-Profile": "sales"}),
        ("GET", None, {"Content-Profile": "public", "Accept-Profile": "sales"}),
    ):
        answer = await api.ask(method, "data/orders/7", body, token=5, headers=headers)
        assert code(answer) == (400, "FP016"), (method, headers)
    assert (await api.ask("GET", "data/orders/7", headers=both)).json()["label"] == "as it was"
    assert (await api.ask("DELETE", "data/orders/7", token=6, headers=both)).status_code == 204
    assert (await api.ask("GET", f"data/orders/{key}", headers={"Content-Profile": "public"})).status_code == 200


# Keys of every type that `protect` takes, written and read back: a value finds its row, which has one name.

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
    "text": TEXTS, "varchar(20)": TEXTS, "boolean": st.booleans(), "bigint": st.integers(-(2**63), 2**63 - 1),
    "numeric": NUMERICS, "uuid": st.uuids().map(str), "date": DAYS, "timestamptz": INSTANTS,
    "bytea": st.binary(max_size=20).map(lambda raw: "\\x" + raw.hex()), "public.mood": st.sampled_from(MOODS),
}  # fmt: skip
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
    async with connection_to(database) as owner:
        labels = ", ".join("'" + mood.replace("'", "''") + "'" for mood in MOODS)
        await owner.execute(f"CREATE TYPE public.mood AS ENUM ({labels})")
        for number, sql in enumerate(TYPES):
            await owner.execute(f"CREATE TABLE public.by_{number} (key {sql} PRIMARY KEY, n int)")
            await protect(owner, f"by_{number}")
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


async def test_json_null_is_kept_where_a_column_must_have_a_value(connect: Connect, database: str) -> None:
    columns = "j jsonb NOT NULL, k json NOT NULL, d public.doc, e public.draft, n jsonb"
    owner = await connect()
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
    assert [tuple(each) for each in found] == [("null",) * 4 + (None,)] * 4 + [
        ('{"j": null}', "null", "null", "null", None)
    ]


@pytest.mark.versions
async def test_what_a_type_cannot_read_is_400_and_names_the_column(connect: Connect, database: str) -> None:
    """Types of extensions may call it an internal error."""
    owner = await connect()
    types = await owner.fetch("SELECT name FROM pg_available_extensions WHERE name IN ('hstore', 'ltree', 'vector')")
    columns = {"p": "tsquery", "x": "jsonpath"}
    for (name,) in types:
        await owner.execute(f"CREATE EXTENSION {name} SCHEMA public")
        columns |= {f"a{name}": f"public.{name}", f"b{name}": f"public.{name}[]"}
    await owner.execute(f"CREATE TABLE public.odd (id int PRIMARY KEY, t text, {as_columns(columns)})")
    await protect(owner, "odd")
    await owner.execute("INSERT INTO public.odd (id, t, last_fence_token) VALUES (1, 'a \" b', 1)")
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
async def test_a_row_of_every_type_comes_back_as_it_went(connect: Connect, database: str) -> None:
    owner = await connect()
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


# `Prefer: return=minimal` reads what a write needs and no more: who may see key and mark only can write.
# The gateway's role may SELECT key, mark and (in a table with a scope) the scope's column, and UPDATE one column.

MINIMAL = "return=minimal"

SQL = """
SET search_path = public;
CREATE TABLE tasks (
  id int PRIMARY KEY, status text, secret text NOT NULL DEFAULT 'hidden', room int NOT NULL DEFAULT 1
);
CREATE TABLE notes (LIKE tasks INCLUDING ALL);
CREATE TABLE desks (LIKE tasks INCLUDING ALL);
CREATE TABLE chairs (LIKE tasks INCLUDING ALL);
CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END';
CREATE TRIGGER same BEFORE INSERT OR UPDATE OR DELETE ON chairs FOR EACH ROW EXECUTE FUNCTION same();
INSERT INTO tasks (id) SELECT generate_series(1, 9);
INSERT INTO notes (id) SELECT generate_series(1, 9);
INSERT INTO desks (id) SELECT generate_series(1, 9);
INSERT INTO chairs (id) SELECT generate_series(1, 9);
"""
"""Rows with marks, rows that share one, and rows whose writes share no transaction, since a trigger runs."""
GRANTS = """
GRANT DELETE ON public.tasks, public.notes, public.chairs, public.desks TO minimalist;
GRANT SELECT (id, room, last_fence_token), INSERT (id, status, room, last_fence_token),
  UPDATE (status, last_fence_token) ON public.tasks, public.notes, public.chairs TO minimalist;
GRANT SELECT (id, room), INSERT (id, status, room), UPDATE (status) ON public.desks TO minimalist;
"""


@pytest.fixture
async def owner(connect: Connect) -> AsyncIterator[Connection]:
    connection = await connect()
    await connection.execute(SQL)
    for table in ("tasks", "notes", "chairs"):
        await protect(connection, table)
    await protect(connection, "desks", scope="room/{room}")
    await connection.execute("CREATE ROLE minimalist LOGIN PASSWORD 'secret'")
    try:
        yield connection
    finally:
        await connection.execute("DROP OWNED BY minimalist; DROP ROLE minimalist")


@pytest.fixture
async def minimal_api(owner: Connection, database: str, start_gateway: Start) -> AsyncIterator[Api]:
    command = ["migrate", "--gateway-role", "minimalist", "--database-url", database]
    migrated = await asyncio.to_thread(CliRunner().invoke, main, command)
    assert migrated.exit_code == 0, migrated.output
    await owner.execute(GRANTS)
    owners = database.partition("://")[2].partition("@")[0]
    async with Api.open(await start_gateway(database.replace(owners, "minimalist:secret"))) as api:
        yield api


async def test_what_is_not_shown_is_not_read(minimal_api: Api, owner: Connection) -> None:
    for table, key in (("tasks", None), ("notes", "a-key"), ("chairs", None), ("desks", "other-key")):
        writes: list[tuple[str, str, object, int]] = [
            ("PATCH", "1", {"status": "paid"}, 204),
            ("PATCH", "?id=eq.2", {"status": "paid"}, 204),
            ("PATCH", "", [{"id": 3, "status": "paid"}, {"id": 4, "status": "paid"}], 204),
            ("POST", "", {"id": 11, "status": "paid", "room": 1}, 201),
            ("POST", "", [{"id": 12, "status": "paid", "room": 1}, {"id": 13, "status": "paid", "room": 1}], 201),
            ("DELETE", "5", None, 204),
            ("DELETE", "?id=in.(6,7)", None, 204),
        ]
        for number, (method, path, body, status) in enumerate(writes, 1):
            where = f"data/{table}{'' if path.startswith('?') or not path else '/'}{path}"
            headers = {} if key is None else {"Idempotency-Key": f"{key}-{number}"}
            shown = await minimal_api.ask(
                method, where, body, token=number, prefer="return=representation", headers=headers
            )
            assert code(shown) == (403, "42501"), (method, path)
            done = await minimal_api.ask(method, where, body, token=number, prefer=MINIMAL, headers=headers)
            assert done.status_code == status, (method, path, done.text)
            assert done.content == b""
        rows = await owner.fetch(f"SELECT id, status FROM public.{table} ORDER BY id")
        written = {1, 2, 3, 4, 11, 12, 13}
        assert [tuple(row) for row in rows] == [(n, "paid" if n in written else None) for n in sorted({8, 9} | written)]


# What a gateway serves: protected tables only, unless a setting says otherwise, and of them those that are named.

SERVED_SQL = """
CREATE TABLE public.plain (id int PRIMARY KEY, note text);
INSERT INTO public.plain VALUES (1, 'not for all');
CREATE VIEW public.shown AS SELECT order_id FROM public.orders;
CREATE SCHEMA sales;
CREATE TABLE sales.leads (id int PRIMARY KEY, note text);
INSERT INTO sales.leads VALUES (1, 'lead');
"""


@pytest.fixture
async def tables(demo_database: str) -> str:
    async with connection_to(demo_database) as connection:
        await connection.execute(SERVED_SQL)
        await protect(connection, "sales.leads")
    return demo_database


def reading(base_url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base_url, timeout=PATIENCE, trust_env=False)


async def test_what_is_not_protected_is_not_read_nor_shown_until_it_is(tables: str, start_gateway: Start) -> None:
    async with reading(await start_gateway(tables)) as http:
        for path in ("plain", "plain/1", "shown", "public.plain"):
            answer = await http.get(f"/v1/data/{path}")
            assert (answer.status_code, answer.json()["code"]) == (403, "FP005"), path
            assert "not for all" not in answer.text, path
            assert "FENCEPOST_SERVE_UNPROTECTED" in answer.json()["hint"], path
        paths = (await http.get("/openapi.json")).json()["paths"]
        index = (await http.get("/")).text
        assert "/v1/data/orders" in paths
        assert not {"/v1/data/plain", "/v1/data/shown"} & set(paths)
        assert ">orders<" in index
        assert ">plain<" not in index
        # The picture of the tables may be old: the refusal is looked into before it is given.
        async with connection_to(tables) as connection:
            await protect(connection, "plain")
        assert (await http.get("/v1/data/plain")).status_code == 200


async def test_only_the_tables_of_the_list_are_there(tables: str, start_gateway: Start) -> None:
    async with reading(await start_gateway(tables, tables=" public.orders ,shown", serve_unprotected=True)) as http:
        for path in ("orders?limit=1", "public.orders?limit=1", "shown?limit=1"):
            assert (await http.get(f"/v1/data/{path}")).status_code == 200, path
        for path in ("sales.leads", "plain"):
            answer = await http.get(f"/v1/data/{path}")
            assert (answer.status_code, answer.json()["code"]) == (404, "FP007"), path
        write = await http.patch("/v1/data/sales.leads/1", headers={"X-Fence-Token": "9"}, json={"note": "mine"})
        claim = await http.post("/v1/claims", headers={"X-Fence-Token": "9"}, json={"resource": "sales.leads/1"})
        assert {write.status_code, claim.status_code} == {404}
        paths = set((await http.get("/openapi.json")).json()["paths"])
        assert paths & {"/v1/data/sales.leads", "/v1/data/plain"} == set()
        # Requests for other tables do not have the catalog loaded, as listening for changes has, once.
        twice = "fencepost_catalog_loads_total 2.0"
        await eventually(lambda: has_loaded(http, twice), what=twice)
        before = loads(await http.get("/metrics"))
        assert (await http.get("/v1/data/sales.leads")).status_code == 404
        assert loads(await http.get("/metrics")) == before


async def test_what_is_to_be_served_and_is_not_there_is_named_at_the_start(
    tables: str, start_gateway: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    async with reading(await start_gateway(tables, tables="public.orders,nope", schemas="public,none,shop")) as http:
        assert (await http.get("/v1/data/orders?limit=1")).status_code == 200
    written = capfd.readouterr().err
    assert "--tables: there is nothing to serve yet of nope " in written
    assert "--schemas: there is nothing to serve yet of none, shop " in written


async def has_loaded(http: httpx.AsyncClient, times: str) -> bool:
    return loads(await http.get("/metrics")) == times


def loads(metrics: httpx.Response) -> str:
    return next(line for line in metrics.text.splitlines() if line.startswith("fencepost_catalog_loads_total"))
