"""Operators and functions that another role has put into `public`: the gateway, whose role's search_path has that
schema, runs none of them.

They take exactly the types that the statements compare, so that they would be preferred to PostgreSQL's own where those
need a coercion: `varchar = varchar` is text's.
"""

import asyncio
from itertools import product

import httpx
import pytest
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection

from fencepost.server.ops.protect import protect
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.versions

TABLES = """
SET search_path = public;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN code AS varchar(10);
CREATE TABLE things (
  a varchar(10), b code, m mood, n int, PRIMARY KEY (a, b, m, n),
  v varchar(20), w text, c char(4), z code, j jsonb, k json, tags varchar[], moods mood[], s smallint, d numeric(6, 2));
CREATE TABLE scoped (id varchar(10) PRIMARY KEY, owner varchar(10) NOT NULL, v varchar(20));
"""

HOSTILE_TYPES = (
    *("varchar", "text", "bpchar", "public.code", "public.mood", "int2", "int4", "numeric", "json", "jsonb"),
    *("varchar[]", "text[]", "public.mood[]", "name", "oid", "regclass"),
)
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "~~", "~~*", "&")
RAISES = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'captured'; END $$"

HOSTILE_FUNCTIONS = f"""
CREATE FUNCTION public.captured(bigint, anyelement) RETURNS bigint {RAISES};
CREATE FUNCTION public.unnest(text[]) RETURNS SETOF text {RAISES};
CREATE FUNCTION public.row_to_json(record) RETURNS json {RAISES};
CREATE FUNCTION public.set_config(varchar, varchar, bool) RETURNS text {RAISES};
CREATE FUNCTION public.to_regclass(varchar) RETURNS regclass {RAISES};
CREATE FUNCTION public.starts_with(name, text) RETURNS bool {RAISES};
CREATE FUNCTION public.starts_with(name, varchar) RETURNS bool {RAISES};
CREATE FUNCTION public.left(text, bigint) RETURNS text {RAISES};
CREATE FUNCTION public.strpos(text, varchar) RETURNS int {RAISES};
"""


# What runs along with the statements of requests, and not for each: how the catalog is looked at, and leases.
OF_THE_CATALOG = f"""
CREATE FUNCTION public.of_the_catalog(regclass, oid) RETURNS bool {RAISES};
CREATE OPERATOR public.= (FUNCTION = public.of_the_catalog, LEFTARG = regclass, RIGHTARG = oid)"""
OF_LEASES = f"""
CREATE FUNCTION public.to_json(timestamptz) RETURNS json {RAISES};
CREATE FUNCTION public.of_leases(json, json) RETURNS text {RAISES};
CREATE OPERATOR public.#>> (FUNCTION = public.of_leases, LEFTARG = json, RIGHTARG = json)"""
# Of types that it does not know asyncpg asks the catalog what they are.
OF_ASYNCPG = f"""
CREATE FUNCTION public.of_asyncpg(oid, int) RETURNS bool {RAISES};
CREATE OPERATOR public.<> (FUNCTION = public.of_asyncpg, LEFTARG = oid, RIGHTARG = int)"""


async def make_hostile(owner: Connection) -> None:
    """Fill public with operators and functions of which each raises."""
    statements = [HOSTILE_FUNCTIONS]
    for number, (left, right) in enumerate(product(HOSTILE_TYPES, HOSTILE_TYPES)):
        if (left, right) in {("regclass", "oid"), ("oid", "int4")}:
            continue
        statements += [f"CREATE FUNCTION public.o{number}({left}, {right}) RETURNS bool {RAISES};"]
        statements += [
            f"CREATE OPERATOR public.{symbol} (FUNCTION = public.o{number}, LEFTARG = {left}, RIGHTARG = {right});"
            for symbol in COMPARISONS
        ]
    for number, (left, right) in enumerate(product(("json", "jsonb"), ("text", "varchar", "int4", "json", "jsonb"))):
        statements += [f"CREATE FUNCTION public.p{number}({left}, {right}) RETURNS jsonb {RAISES};"]
        statements += [
            f"CREATE OPERATOR public.{symbol} (FUNCTION = public.p{number}, LEFTARG = {left}, RIGHTARG = {right});"
            for symbol in ("->", "->>")
        ]
    for each in HOSTILE_TYPES:
        statements += [
            f"CREATE FUNCTION public.to_jsonb({each}) RETURNS jsonb {RAISES};",
            f"CREATE AGGREGATE public.count({each}) (SFUNC = public.captured, STYPE = bigint, INITCOND = 0);",
        ]
    await owner.execute("\n".join([*statements, OF_ASYNCPG]))


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(TABLES)
    await protect(connection, "things")
    await protect(connection, "scoped", scope="owner/{owner}")
    await make_hostile(connection)
    return connection


class Asker:
    """Writes with ever newer tokens."""

    def __init__(self, gateway: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self._token = 10

    async def __call__(
        self, method: str, path: str, body: object = None, *, status: int = 200, stale: bool = False
    ) -> httpx.Response:
        headers = {}
        if method != "GET" and path != "leases":
            self._token += 0 if stale else 1
            headers["X-Fence-Token"] = "1" if stale else str(self._token)
        answer = await self.gateway.request(method, f"/v1/{path}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert "captured" not in answer.text
        return answer


ROW = {"a": "x", "b": "y", "m": "ok", "n": 1}
REST = {"v": "abc", "w": "abc", "c": "ab", "z": "q", "j": {"k": [1]}, "k": {"k": "v"}, "tags": ["t"], "moods": ["ok"]}
KEY = "data/things/x,y,ok,1"


async def every_verb_on_rows(ask: Asker) -> None:
    await ask("POST", "data/things", ROW | REST, status=201)
    await ask("POST", "data/things", [ROW | {"n": n} for n in (2, 3, 4)], status=201)
    await ask("POST", "data/things", ROW, status=409)
    await ask("POST", "data/things", [ROW, ROW | {"n": 5}], status=409, stale=True)
    await ask("POST", "data/things", ROW | {"n": 5, "s": "no number"}, status=400)
    await ask("PUT", "data/things/p,q,sad,1", {"v": "new"}, status=201)
    await ask("PUT", "data/things/p,q,sad,1", {"v": "newer", "n": "01", "m": "sad"})
    await ask("PUT", "data/things/p,q,sad,1", {"a": "another"}, status=400)
    await ask("PUT", "data/things/longer than ten,q,sad,1", {}, status=400)
    await ask("PATCH", KEY, {"v": "changed"})
    await ask("PATCH", KEY, {"v": "changed"}, status=409, stale=True)
    await ask("PATCH", "data/things/no,such,ok,1", {}, status=404)
    await ask("PATCH", "data/things?v=eq.changed&a=in.(x,y)", {"w": "many"}, status=204)
    await ask("PATCH", "data/things?a=eq.x", {"w": "many"}, status=409, stale=True)
    await ask("POST", "claims", {"resource": "things/x,y,ok,1"})
    await ask("POST", "claims", {"resource": "things/absent,y,ok,1"})
    await ask("POST", "claims", {"resource": "things/absent and long,y,ok,1"}, status=400)
    await ask("DELETE", KEY, status=204)
    await ask("DELETE", "data/things?a=eq.x&n=gt.3", status=204)


async def every_verb_on_scopes(ask: Asker) -> None:
    await ask("POST", "data/scoped", [{"id": each, "owner": "o"} for each in "abcd"], status=201)
    await ask("POST", "data/scoped", {"id": "e", "owner": "p"}, status=201)
    await ask("POST", "data/scoped", {"id": "a", "owner": "o"}, status=409)
    await ask("PUT", "data/scoped/f", {"owner": "o"}, status=201)
    await ask("PUT", "data/scoped/f", {"owner": "o", "v": "1"})
    await ask("PUT", "data/scoped/f", {"owner": "p"}, status=400)
    await ask("PATCH", "data/scoped/a", {"v": "2", "owner": "o"})
    await ask("PATCH", "data/scoped/a", {"v": "2"}, status=409, stale=True)
    await ask("PATCH", "data/scoped?owner=eq.o&id=in.(a,b)", {"v": "3"}, status=204)
    await ask("POST", "claims", {"resource": "owner/o"})
    await ask("DELETE", "data/scoped/a", status=204)
    await ask("DELETE", "data/scoped?owner=like.*o*", status=204)
    await ask("GET", "data/scoped/e")


COMPARED = (
    *(("a", "x"), ("b", "y"), ("m", "ok"), ("n", "1"), ("v", "abc"), ("w", "abc"), ("c", "ab"), ("z", "q")),
    *(("s", "1"), ("d", "1.5"), ("tags", "{t}"), ("moods", "{ok}")),
)
LISTED = (
    *(("a", "x,y"), ("b", "x,y"), ("m", "ok,sad"), ("n", "1,2"), ("v", "abc"), ("c", "ab"), ("z", "q")),
    *(("tags", '"{t}"'), ("moods", '"{ok}"')),
)
QUERIES = [
    *(
        f"{column}={operator}.{value}"
        for column, value in COMPARED
        for operator in ("eq", "neq", "isdistinct", "gt", "gte", "lt", "lte", "not.eq")
    ),
    *(f"{column}={operator}.a*" for column in ("a", "b", "v", "w", "c", "z") for operator in ("like", "ilike")),
    *(f"{column}=in.({value})" for column, value in LISTED),
    *("j->k->0=eq.1", "j->>k=like.*", "j->>k=eq.x", "k->>k=eq.v", "k->>k=in.(v,w)", "tags->0=eq.1"),
    "select=j->k->0,k->>k,tags->0,moods->0&order=a,b.desc,m,v,z.nullsfirst",
    "or=(a.eq.x,not.and(v.lt.b,z.is.null))",
]


async def every_filter(ask: Asker) -> None:
    await ask("POST", "data/things", ROW | REST | {"n": 7}, status=201)
    for query in QUERIES:
        answer = await ask.gateway.get(f"/v1/data/things?{query}", headers={"Prefer": "count=exact"})
        assert answer.status_code == 200, (query, answer.text)


async def what_goes_along_with_requests(ask: Asker, owner: Connection) -> None:
    claims = ["things/x,y,ok,1", "things/x,y,ok,2", "owner/o", "owner/p"]
    await owner.execute("SELECT fencepost.issue_beyond(1000)")
    await ask("POST", "leases", {"lock": "claims", "ttl_ms": 10_000, "claim": claims}, status=201)
    for hostile in (OF_THE_CATALOG, OF_LEASES):
        await owner.execute(hostile)
    for resource in ("things/x,y,ok,1", "things/p,q,sad,1", "owner/o", "scoped/e"):
        await ask("GET", f"fences?resource={resource}")
    await ask("POST", "data/things", ROW | {"s": "no number"}, status=400)
    given = (await ask("POST", "leases", {"lock": "l", "ttl_ms": 10_000}, status=201)).json()
    queued = asyncio.create_task(ask("POST", "leases", {"lock": "l", "ttl_ms": 10_000, "wait_ms": 9_000}, status=201))
    secret = {"X-Lease-Secret": given["secret"]}
    answer = await ask.gateway.post(f"/v1/leases/{given['lease_id']}/tokens", json={"count": 2}, headers=secret)
    assert answer.status_code == 200, answer.text

    async def a_waiter_is_there() -> bool:
        return bool(await owner.fetchval("SELECT count(*) FROM fencepost.waiters"))

    await eventually(a_waiter_is_there)
    answer = await ask.gateway.delete(f"/v1/leases/{given['lease_id']}", headers=secret)
    assert answer.status_code == 204, answer.text
    await queued


async def health(ask: Asker, owner: Connection) -> None:
    name = await owner.fetchval("SELECT current_database()")
    await owner.execute(f"ALTER DATABASE {name} SET work_mem = '5MB'")  # so that there are such settings to look at
    for path in ("/readyz", "/metrics"):
        answer = await ask.gateway.get(path)
        assert answer.status_code == 200, answer.text
        assert "captured" not in answer.text, path


async def are_in_the_way(owner: Connection) -> None:
    """Else the others would show nothing."""
    for sql in (
        "SELECT 'a'::varchar = 'a'::varchar",
        "SELECT 'a'::varchar LIKE 'a'::text",
        "SELECT 'a'::varchar IS NOT DISTINCT FROM 'a'::varchar",
        "SELECT 'ok'::mood < 'ok'::mood",
        "SELECT ARRAY['a']::varchar[] = ARRAY['a']::varchar[]",
        "SELECT to_jsonb('a'::varchar)",
        "SELECT unnest(ARRAY['a'])",
        "SELECT count('a'::varchar)",
        "SELECT 'pg_class'::regclass = 'pg_class'::regclass",
    ):
        with pytest.raises(Exception, match="captured"):
            await owner.fetch(sql)


async def test_every_request_uses_postgresqls_own_operators(owner: Connection, database: str) -> None:
    await are_in_the_way(owner)
    async with in_process(database) as gateway:
        ask = Asker(gateway)
        await every_verb_on_rows(ask)
        await every_verb_on_scopes(ask)
        await every_filter(ask)
        await what_goes_along_with_requests(ask, owner)
        await health(ask, owner)
