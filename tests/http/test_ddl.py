"""Requests beside DDL: protect again, old plans of queries, triggers of others, operators that are captured."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise, product

import httpx
import pytest
from tests.support.asking import code
from tests.support.gateways import in_process
from tests.support.interleave import Connect, Connection, blocks_another_session, start

from fencepost.server.ops.protect import plan_protect, plan_unprotect, protect
from fencepost.testing.servers.processes import eventually

# `protect` is repeated, or undone and done again, while DELETEs wait for the table: each is decided, none is a 500.

TABLE = "CREATE TABLE public.t (a int, b text, PRIMARY KEY (a, b))"
ROWS = "INSERT INTO public.t (a, b, last_fence_token) SELECT n, 'x', 1 FROM generate_series(1, 9) n"


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(TABLE)
    await protect(connection, "t")
    await connection.execute(ROWS)
    return connection


@pytest.fixture
async def gateway(owner: Connection, database: str) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001 - makes it
    # One connection each: the second DELETE of a session has what PostgreSQL remembers of the first.
    async with in_process(database, pool_size=1, batch_pool_size=1) as client:
        yield client


async def delete(gateway: httpx.AsyncClient, key: str, headers: dict[str, str]) -> httpx.Response:
    keyed = {name: value + key for name, value in headers.items()}
    return await gateway.delete(f"/v1/data/t/{key}", headers={"X-Fence-Token": "5"} | keyed)


@pytest.mark.parametrize(("headers", "shared"), [({}, True), ({"Idempotency-Key": "k"}, True), ({}, False)])
async def test_protect_again_while_a_delete_waits(
    gateway: httpx.AsyncClient, owner: Connection, connect: Connect, *, headers: dict[str, str], shared: bool
) -> None:
    if not shared:  # a trigger of the user's own keeps the writes of the table out of batches
        await owner.execute(
            "CREATE FUNCTION public.theirs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
            "CREATE TRIGGER theirs AFTER DELETE ON public.t FOR EACH ROW EXECUTE FUNCTION public.theirs()"
        )
    plan = await plan_protect(owner, "t")
    # Run the statements of a plan; while they hold the table's lock, a DELETE begins. It is done afterwards.
    observer = await connect()
    assert (await delete(gateway, "1,x", headers)).status_code == 204
    for key in ("2,x", "3,x"):
        await owner.execute("BEGIN")
        await owner.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        for statement in plan.statements:
            await owner.execute(statement)
        waiting = asyncio.create_task(delete(gateway, key, headers))
        await blocks_another_session(owner, observer)
        await owner.execute("COMMIT")
        answer = await waiting
        assert answer.status_code == 204, answer.text
        marks = "SELECT last_fence_token FROM fencepost.marks WHERE resource = $1 AND row_absent"
        assert await observer.fetchval(marks, f"t/{key}") == 5, key


async def test_a_delete_meets_it_several_times(gateway: httpx.AsyncClient, owner: Connection, connect: Connect) -> None:
    """Each time that it has the table's lock the function that it had found is gone, and then others have the lock."""
    statements = [
        "SET LOCAL search_path = pg_catalog, pg_temp",
        *(await plan_unprotect(owner, "t")).statements,
        *(await plan_protect(owner, "t")).statements,
    ]
    observer, owners = await connect(), [owner, await connect(), await connect()]
    await owner.execute("BEGIN")
    for statement in statements:
        await owner.execute(statement)
    waiting = asyncio.create_task(delete(gateway, "2,x", {}))
    await blocks_another_session(owner, observer)
    for holder, successor in pairwise(owners):
        await successor.execute("BEGIN")
        lock = successor.execute("LOCK TABLE public.t IN ACCESS EXCLUSIVE MODE")
        queued = await start(observer, lock, successor.get_server_pid())
        await holder.execute("COMMIT")
        await queued
        for statement in statements:
            await successor.execute(statement)
        await blocks_another_session(successor, observer)
        assert not waiting.done()
    await owners[-1].execute("COMMIT")
    answer = await waiting
    assert answer.status_code == 204, answer.text
    mark = "SELECT last_fence_token FROM fencepost.marks WHERE resource = 't/2,x' AND row_absent"
    assert await observer.fetchval(mark) == 5


# Triggers of the user's own in PL/pgSQL keep plans in each session: a column's new type must not be the end of it.

PLANNED_TABLE = """
SET search_path = public;
CREATE TABLE t (id int PRIMARY KEY, v int, w text);
CREATE TABLE seen (what text);
CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO seen VALUES ('v is ' || NEW.v); RETURN NEW; END $$;
CREATE TRIGGER theirs BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION theirs();
"""


@pytest.fixture
async def plans_owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(PLANNED_TABLE)
    await protect(connection, "t")
    return connection


@pytest.fixture
async def plans_gateway(plans_owner: Connection, database: str) -> AsyncIterator[httpx.AsyncClient]:  # noqa: ARG001 - makes it
    async with in_process(database) as client:
        yield client


async def test_every_write_and_claim_goes_on(plans_gateway: httpx.AsyncClient, plans_owner: Connection) -> None:
    made = await plans_gateway.post("/v1/data/t", json={"id": 1, "v": 1}, headers={"X-Fence-Token": "1"})
    assert made.status_code == 201, made.text
    await plans_owner.execute("SELECT setval('fencepost.tokens', 100)")
    writes: tuple[tuple[str, str, object], ...] = (
        ("PATCH", "data/t/1", {}), ("PATCH", "data/t?id=eq.1", {}), ("PUT", "data/t/1", {}), ("PUT", "data/t/2", {}),
        ("POST", "data/t", {"id": 3}), ("POST", "claims", {"resource": "t/1"}),
        ("POST", "leases", {"lock": "l", "owner": "me", "ttl_ms": 10_000, "claim": ["t/1"]}),
    )  # fmt: skip
    for token, (method, path, body) in enumerate(writes, 2):
        await plans_owner.execute(f"ALTER TABLE t ALTER COLUMN v TYPE {('int USING NULL', 'text')[token % 2 == 0]}")
        headers = {} if path == "leases" else {"X-Fence-Token": str(token)}
        answer = await plans_gateway.request(method, f"/v1/{path}", json=body, headers=headers)
        assert answer.is_success, answer.text


async def test_a_trigger_that_raises_the_same_itself_is_reported(
    plans_gateway: httpx.AsyncClient, plans_owner: Connection
) -> None:
    await plans_owner.execute(
        "CREATE OR REPLACE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM nextval('public.tries');"
        " RAISE EXCEPTION 'type of parameter 1 (uuid) does not match that when preparing the plan (text)'"
        " USING ERRCODE = '42804'; END $$; CREATE SEQUENCE tries"
    )
    answer = await plans_gateway.post("/v1/data/t", json={"id": 1, "v": 1}, headers={"X-Fence-Token": "1"})
    assert (answer.status_code, answer.json()["code"]) == (400, "42804")
    assert await plans_owner.fetchval("SELECT last_value FROM tries") == 1, "it ran again"


# Triggers, rules and cascades of the user's own: an answer that is no success has no effect, whatever they do.

TABLES = """
CREATE TABLE soft (id int PRIMARY KEY, deleted bool NOT NULL DEFAULT false, n int NOT NULL DEFAULT 0);
CREATE TABLE seen (what text);
CREATE TABLE child (id int PRIMARY KEY, soft int NOT NULL REFERENCES soft ON DELETE CASCADE)"""


async def trigger(connection: Connection, event: str, body: str) -> None:
    await connection.execute(
        f"CREATE FUNCTION theirs() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$;"
        f"CREATE TRIGGER theirs {event} ON soft FOR EACH ROW EXECUTE FUNCTION theirs()"
    )


@pytest.fixture
async def soft_owner(connect: Connect) -> Connection:
    connection = await connect()
    await connection.execute(TABLES)
    return connection


@pytest.fixture
async def soft(soft_owner: Connection) -> Connection:
    """Protect the table `soft`, with two rows; gives its owner's connection."""
    await protect(soft_owner, "soft")
    await soft_owner.execute("INSERT INTO soft (id, last_fence_token) VALUES (1, 1), (2, 1)")
    return soft_owner


async def write(client: httpx.AsyncClient, method: str, path: str, token: int, body: object = None) -> httpx.Response:
    return await client.request(method, f"/v1/data/{path}", headers={"X-Fence-Token": str(token)}, json=body)


async def state(owner: Connection) -> list[tuple[object, ...]]:
    return [tuple(row) for row in await owner.fetch("SELECT id, deleted, n, last_fence_token FROM soft ORDER BY id")]


UNTOUCHED = [(1, False, 0, 1), (2, False, 0, 1)]

SUPPRESSED: dict[str, tuple[str, list[tuple[str, str, object]]]] = {
    "BEFORE DELETE": (
        "INSERT INTO seen VALUES ('delete'); UPDATE soft SET deleted = true WHERE id = OLD.id; RETURN NULL;",
        [("DELETE", "soft/1", None), ("DELETE", "soft?id=lt.9", None)],
    ),
    "BEFORE UPDATE": (
        "INSERT INTO seen VALUES ('update'); RETURN NULL;",
        [("PATCH", "soft/1", {"n": 7}), ("PUT", "soft/1", {"n": 7}), ("PATCH", "soft?id=lt.9", {"n": 7})],
    ),
    "BEFORE INSERT": (
        "INSERT INTO seen VALUES ('insert'); IF NEW.id = 4 THEN RETURN NULL; END IF; RETURN NEW;",
        [("POST", "soft", [{"id": 3}, {"id": 4}]), ("POST", "soft", {"id": 4}), ("PUT", "soft/4", {})],
    ),
}


@pytest.mark.parametrize("event", SUPPRESSED)
async def test_a_suppressed_write_leaves_nothing_behind(soft: Connection, database: str, event: str) -> None:
    body_of_trigger, writes = SUPPRESSED[event]
    await trigger(soft, event, body_of_trigger)
    async with in_process(database) as gateway:
        for method, path, body in writes:
            answer = await write(gateway, method, path, 5, body)
            assert code(answer) == (400, "FP403"), (method, path)
            assert "suppressed" in answer.json()["detail"], path
            assert await state(soft) == UNTOUCHED, (method, path)
            assert await soft.fetchval("SELECT count(*) FROM seen") == 0, (method, path)


async def test_a_cascade_into_a_protected_table_is_reported_as_what_it_is(soft: Connection, database: str) -> None:
    await protect(soft, "child")
    await soft.execute("INSERT INTO child (id, soft, last_fence_token) VALUES (7, 1, 1)")
    async with in_process(database) as gateway:
        answer = await write(gateway, "DELETE", "soft/1", 5)
        assert code(answer) == (409, "FP428")
        assert answer.json()["resource"] == "child/7"
        assert await state(soft) == UNTOUCHED


async def test_a_foreign_fp409_is_no_verdict_of_ours(soft: Connection, database: str) -> None:
    await trigger(soft, "BEFORE UPDATE", "RAISE EXCEPTION 'mine' USING ERRCODE = 'FP409';")
    async with in_process(database) as gateway:
        assert code(await write(gateway, "PATCH", "soft/1", 5, {"n": 7})) == (400, "FP409")


async def test_what_is_to_concern_one_row_writes_nothing_when_it_does_not(soft: Connection, database: str) -> None:
    headers = {"X-Fence-Token": "5", "Accept": "application/vnd.pgrst.object+json"}
    async with in_process(database) as gateway:
        for method, path, body in (
            ("PATCH", "soft?id=lt.9", {"n": 7}), ("DELETE", "soft?id=lt.9", None),
            ("PATCH", "soft?id=gt.9", {"n": 7}), ("POST", "soft", [{"id": 3}, {"id": 4}]), ("POST", "soft", []),
        ):  # fmt: skip
            answer = await gateway.request(method, f"/v1/data/{path}", headers=headers, json=body)
            assert code(answer) == (406, "FP021"), (method, path, body)
            assert await state(soft) == UNTOUCHED, (method, path, body)
        shown = headers | {"Prefer": "return=representation"}
        answer = await gateway.patch("/v1/data/soft?id=eq.1&select=n", headers=shown, json={"n": 7})
        assert (answer.status_code, answer.json()) == (200, {"n": 7})


# Operators and functions that another role has put into `public`: the gateway, whose role's search_path has that
# schema, runs none of them.
# They take exactly the types that the statements compare, so that they would be preferred to PostgreSQL's own where
# those need a coercion: `varchar = varchar` is text's.

CAPTURED_TABLES = """
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
    await eventually(lambda: owner.fetchval("SELECT count(*) FROM fencepost.waiters"))
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
        "SELECT 'a'::varchar = 'a'::varchar", "SELECT 'a'::varchar LIKE 'a'::text",
        "SELECT 'a'::varchar IS NOT DISTINCT FROM 'a'::varchar", "SELECT 'ok'::mood < 'ok'::mood",
        "SELECT ARRAY['a']::varchar[] = ARRAY['a']::varchar[]", "SELECT to_jsonb('a'::varchar)",
        "SELECT unnest(ARRAY['a'])", "SELECT count('a'::varchar)",
        "SELECT 'pg_class'::regclass = 'pg_class'::regclass",
    ):  # fmt: skip
        with pytest.raises(Exception, match="captured"):
            await owner.fetch(sql)


@pytest.mark.versions
async def test_every_request_uses_postgresqls_own_operators(connect: Connect, database: str) -> None:
    captured_owner = await connect()
    await captured_owner.execute(CAPTURED_TABLES)
    await protect(captured_owner, "things")
    await protect(captured_owner, "scoped", scope="owner/{owner}")
    await make_hostile(captured_owner)
    await are_in_the_way(captured_owner)
    async with in_process(database) as gateway:
        ask = Asker(gateway)
        await every_verb_on_rows(ask)
        await every_verb_on_scopes(ask)
        await every_filter(ask)
        await what_goes_along_with_requests(ask, captured_owner)
        await health(ask, captured_owner)
