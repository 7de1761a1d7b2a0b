"""Bounds of reads, writes and kept answers: columns, patterns, rows, bytes."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx
import pytest
from tests.http.conftest import Start
from tests.support.asking import Api
from tests.support.gateways import in_process
from tests.support.interleave import connection_to
from tests.support.shops import Shop

from fencepost.server.gateway import group_commit
from fencepost.server.gateway.outcomes import MOST_KEPT, SMALL_KEPT
from fencepost.server.ops.protect import protect
from fencepost.server.postgres import reading
from fencepost.testing.servers.processes import PATIENCE

# What a read may ask for: types that a value is cast to, how many columns and patterns, how many bytes.

TOKENS = itertools.count(10)


def detail(answer: httpx.Response) -> str:
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "FP016"), answer.text
    return str(problem["detail"])


async def test_values_are_cast_to_types_of_the_list(api: Api, shop: Shop) -> None:
    kinds = (
        "varchar(255)", "CHARACTER VARYING", "jsonb", "numeric(10,2)", "text[]", "timestamp(3) with time zone",
        "pg_catalog.timestamptz",
    )  # fmt: skip
    await shop.sql("CREATE TABLE public.castable (id text PRIMARY KEY, v text)")
    for kind in kinds:
        value = "'2026-11-23'" if "time" in kind else "'{1}'" if "[]" in kind else "'1'"
        await shop.sql(f"INSERT INTO public.castable VALUES ('{kind}', {value})")
        answer = await api.ask(
            "GET", "data/castable?" + str(httpx.QueryParams({"select": f"v::{kind}", "id": f"eq.{kind}"}))
        )
        assert (answer.status_code, len(answer.json())) == (200, 1), answer.text


async def test_other_types_are_refused_by_name(api: Api) -> None:
    kinds = (
        "regclass", "_regclass", "regclass[]", "pg_catalog.regclass", "pg_catalog.regrole", "REGPROC", "anyelement",
        "oid", "name", "xml", "unknown", "public.nothing", "information_schema.sql_identifier",
    )  # fmt: skip
    for kind in kinds:
        answer = await api.ask("GET", f"data/orders?select=order_id::{kind}")
        assert f"nothing can be cast to {kind} here" in detail(answer), kind
    for kind in ("char(256)", "varchar(1000)", "numeric(9,256)"):
        assert "the numbers in brackets are 255 at most" in detail(
            await api.ask("GET", f"data/orders?select=status::{kind}")
        ), kind
    assert "it takes no cast" in detail(await api.ask("GET", "data/orders?select=last_fence_token::bigint"))


async def test_so_many_patterns_are_looked_for(api: Api) -> None:
    def asked(operator: str, count: int) -> str:
        alternatives = ",".join(f"order_id.{operator}.*x{each}y*" for each in range(count - 1))
        return f"data/orders?status={operator}.a*&or=(and({alternatives}),status.eq.b)"

    for operator in ("like", "ilike", "not.ilike"):
        assert "21 filters by like and ilike; at most 20" in detail(await api.ask("GET", asked(operator, 21))), operator
        assert (await api.ask("GET", asked(operator, 20))).status_code == 200, operator


@pytest.fixture
async def small(shop: Shop, start_gateway: Start) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway whose answers have 1000 bytes at most."""
    url = await start_gateway(shop.dsn, max_answer_bytes=1000, serve_unprotected=True)
    async with httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False) as client:
        yield client


async def test_an_answer_has_so_many_bytes(small: httpx.AsyncClient, shop: Shop) -> None:
    """Rows are fetched piece by piece: of what is too much, five thousand would be made for nothing."""

    def asked(count: int) -> str:
        return f"data/orders?order_id=eq.{key}&select=" + ",".join(
            f"a{each}:status::char(200)" for each in range(count)
        )

    key = await shop.order()
    assert (await small.get(asked(4))).status_code == 200
    answer = await small.get(asked(5))
    assert detail(answer) == "The rows have more than 1000 bytes."
    assert "FENCEPOST_MAX_ANSWER_BYTES" in answer.json()["hint"]
    await shop.sql("CREATE SEQUENCE public.drawn")
    await shop.sql("CREATE TABLE public.many AS SELECT n FROM generate_series(1, 5000) n")
    await shop.sql("CREATE VIEW public.counted AS SELECT n, nextval('public.drawn') AS drawn FROM public.many")
    assert "more than 1000 bytes" in detail(await small.get("data/counted"))
    (row,) = await shop.sql("SELECT last_value FROM public.drawn")
    assert row[0] <= reading.PIECE + 1  # PostgreSQL looks one row ahead
    assert (await small.get("data/counted?limit=3")).json()[2]["drawn"] > row[0]


async def test_what_is_named_too_often_is_not_made_so_often(small: httpx.AsyncClient, shop: Shop) -> None:
    """By 250 names a short request could have PostgreSQL build a gigabyte of one row, to find out that it is too much.
    What a value becomes as JSON counts: the type's own cast makes it here, and draws a number each time.
    """
    await shop.sql("CREATE SEQUENCE public.made_json")
    await shop.sql("CREATE TYPE public.short AS ENUM ('a')")
    made = "SELECT json_build_object('x', repeat('y', 300), 'made', nextval('public.made_json'))"
    await shop.sql(f"CREATE FUNCTION public.long(public.short) RETURNS json LANGUAGE sql AS $$ {made} $$")
    await shop.sql("CREATE CAST (public.short AS json) WITH FUNCTION public.long(public.short)")
    await shop.sql("CREATE TABLE public.expanding (id int PRIMARY KEY, c public.short)")
    await shop.sql("INSERT INTO public.expanding VALUES (1, 'a')")
    for path in ("data/expanding?limit=1&", "data/expanding/1?"):
        for name in ("c", "c->x", "c->>x"):
            select = ",".join(f"a{n}:{name}" for n in range(20))
            assert detail(await small.get(f"{path}select={select}")) == "The rows have more than 1000 bytes."
            assert (await small.get(f"{path}select=a:{name},b:{name}")).status_code == 200
    (row,) = await shop.sql("SELECT last_value FROM public.made_json")
    assert row[0] <= 6 * (1 + 3), "once for each refusal, once more than it is shown for each answer"


async def test_what_casts_make_on_their_way_counts(small: httpx.AsyncClient, shop: Shop) -> None:
    """`varchar(1)` shows one digit of a number, and makes all 400 before. A text that becomes jsonb has them then."""
    await shop.sql("CREATE TABLE public.cast_away (id int PRIMARY KEY, j jsonb, t text, o json, n int)")
    await shop.sql(
        "INSERT INTO public.cast_away VALUES"
        """ (1, '[1e400]', '[1e400]', '{"s": "[1e400]"}', 7), (2, '{}', '{1\\e1200}', '{"s": "[1e400, 1E+800]"}', 7)"""
    )
    async with connection_to(shop.dsn) as owner:
        await protect(owner, "cast_away")
    few, many = (",".join(f"a{n}:j::varchar({n})" for n in range(1, most)) for most in (3, 4))
    for select in (few, "t::jsonb", "o->>s::jsonb", "n::numeric,m:n::text", "j::jsonb"):
        for answer in (await small.get(f"data/cast_away/1?select={select}"), await patched(small, select)):
            assert answer.status_code == 200, answer.text
    for path in (f"1?select={many}", "2?select=t::numeric[]", "2?select=o->>s::jsonb"):
        assert detail(await small.get(f"data/cast_away/{path}")) == "The rows have more than 1000 bytes."
    assert detail(await patched(small, many)) == "The rows have more than 1000 bytes."


async def patched(client: httpx.AsyncClient, select: str) -> httpx.Response:
    token = next(TOKENS)
    path = f"data/cast_away?id=eq.1&select={select}" if ">" not in select else "data/cast_away?id=eq.1"
    headers = {"X-Fence-Token": str(token), "Prefer": "return=representation"}
    return await client.patch(path, json={"n": token}, headers=headers)


async def test_pieces_make_a_whole_and_have_the_time_of_one_statement(database: str) -> None:
    async with connection_to(database) as owner:
        counts = (499, 500, 501, 1203)
        for count in counts:
            await owner.execute(f"CREATE TABLE public.pieces_{count} AS SELECT n FROM generate_series(1, {count}) n")
        slow = "CASE WHEN n % 500 = 1 THEN pg_sleep(0.5)::text END"
        await owner.execute(f"CREATE VIEW public.slowly AS SELECT n, {slow} AS s FROM generate_series(1, 5000) n")
    async with in_process(database, serve_unprotected=True, statement_timeout=2) as client:
        for count in counts:
            path = f"/v1/data/pieces_{count}"
            answer = await client.get(f"{path}?order=n.desc", headers={"Prefer": "count=exact"})
            assert [row["n"] for row in answer.json()] == list(range(count, 0, -1))
            assert answer.headers["content-range"] == f"0-{count - 1}/{count}"
            part = await client.get(f"{path}?order=n&offset=1&limit=700")
            assert [row["n"] for row in part.json()] == list(range(2, min(count, 701) + 1))
        late = await client.get("/v1/data/slowly")
        assert (late.status_code, late.json()["code"]) == (503, "57014")


# A write whose answer would have more bytes than an answer may have is refused, and leaves nothing behind.

MOST = 100_000
LARGE = 1000
"""The key of a row of 300,000 bytes. Rows 1 to 400 have a note of one."""
ROWS = 400

SQL = """
SET search_path = public;
CREATE TABLE plain (id int PRIMARY KEY, note text DEFAULT 'x', n int DEFAULT 0, room int NOT NULL DEFAULT 1);
CREATE TABLE scoped (LIKE plain INCLUDING ALL);
CREATE TABLE triggered (LIKE plain INCLUDING ALL);
CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END';
CREATE TRIGGER same BEFORE INSERT OR UPDATE OR DELETE ON triggered FOR EACH ROW EXECUTE FUNCTION same();
"""
"""Rows with marks, rows that share one, and rows whose writes share no transaction."""
ROWS_OF_EACH = f"""
SET session_replication_role = replica;
TRUNCATE public.plain, public.scoped, public.triggered;
DELETE FROM fencepost.marks; DELETE FROM fencepost.idempotency;
INSERT INTO public.plain (id) SELECT generate_series(1, {ROWS});
INSERT INTO public.plain (id, note) VALUES ({LARGE}, repeat('y', 300000));
INSERT INTO public.plain (id, note) SELECT n, repeat('z', 60000) FROM generate_series(2001, 2002) n;
INSERT INTO public.scoped (id, note) SELECT id, note FROM public.plain;
INSERT INTO public.triggered (id, note) SELECT id, note FROM public.plain;
RESET session_replication_role
"""
PADDED = ",".join(f"a{n}:note::char(255)" for n in range(240))
"""60,000 bytes of any row."""
REPEATED = ",".join(f"a{n}:n,b{n}:note" for n in range(100))
ALL = f"id=lte.{ROWS}"
SOME = [{"id": n, "n": 7} for n in range(1, 100)]
NEW = [{"id": n, "note": "new", "room": 1} for n in range(3000, 3100)]
PUT = {"note": "p" * 40_000, "room": 1}


@dataclass
class Bounded:
    """A gateway whose answers have MOST bytes, on tables of the owner's."""

    client: httpx.AsyncClient
    owner: asyncpg.Connection
    tokens: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def ask(
        self, method: str, path: str, body: object = None, *, token: int | None = None, **headers: str
    ) -> httpx.Response:
        """Ask with a new token, unless it is given."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        sent["X-Fence-Token"] = str(next(self.tokens) if token is None else token)
        return await self.client.request(method, f"/v1/{path}", json=body, headers=sent)

    async def standing(self, table: str) -> list[Any]:
        """All that a write could have changed, the rows' versions too."""
        queries = (
            f"SELECT ctid, xmin, * FROM public.{table} ORDER BY id",
            "SELECT resource, last_fence_token FROM fencepost.marks ORDER BY 1",
            "SELECT key FROM fencepost.idempotency",
            "SELECT name FROM fencepost.locks",
        )
        return [await self.owner.fetch(query) for query in queries]


@pytest.fixture
async def bounded(database: str) -> AsyncIterator[Bounded]:
    async with connection_to(database) as owner:
        await owner.execute(SQL)
        await protect(owner, "plain")
        await protect(owner, "triggered")
        await protect(owner, "scoped", scope="room/{room}")
        await owner.execute(ROWS_OF_EACH)
        async with in_process(database, max_answer_bytes=MOST) as client:
            yield Bounded(client, owner)


def refused(answer: httpx.Response, detail: str = f"The rows have more than {MOST} bytes.") -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["detail"]) == (400, "FP016", detail), answer.text[:500]
    assert "FENCEPOST_MAX_ANSWER_BYTES" in problem["hint"]


WRITES: dict[str, tuple[str, str, object]] = {
    "PATCH": ("PATCH", f"/{LARGE}", {"n": 1}),
    "PATCH of nothing": ("PATCH", f"/{LARGE}", {}),
    "PATCH, repeated": ("PATCH", f"/{LARGE}?select={REPEATED}", {"n": 1}),
    "PATCH by filter": ("PATCH", f"?{ALL}&select={PADDED}", {"n": 1}),
    "PATCH of an array": ("PATCH", f"?select={PADDED}", SOME),
    "PUT": ("PUT", f"/{LARGE}?select={REPEATED}", PUT),
    "PUT of a new row": ("PUT", f"/4000?select={REPEATED}", PUT),
    "POST of one": ("POST", f"?select={REPEATED}", {"id": 4001, **PUT}),
    "POST of an array": ("POST", f"?select={PADDED}", NEW),
    "DELETE": ("DELETE", f"/{LARGE}", None),
    "DELETE by filter": ("DELETE", f"?{ALL}&select={PADDED}", None),
}


async def test_a_write_is_refused_whole(bounded: Bounded) -> None:
    refused: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
        ("plain", None, tuple(WRITES)),
        ("plain", "a-key", ("PATCH", "POST of one", "DELETE", "PATCH by filter")),
        ("scoped", "a-key", ("PATCH of nothing", "PUT", "POST of an array", "DELETE by filter")),
        ("triggered", None, ("PATCH, repeated", "PUT of a new row", "PATCH of an array", "DELETE")),
    )
    for table, key, writes in refused:
        for write in writes:
            await refused_whole(bounded, table, write, {} if key is None else {"Idempotency_Key": key})


async def refused_whole(bounded: Bounded, table: str, write: str, once: dict[str, str]) -> None:
    await bounded.owner.execute(ROWS_OF_EACH)
    method, rest, body = WRITES[write]
    path = f"data/{table}{rest}"
    before = await bounded.standing(table)
    answer = await bounded.ask(method, path, body, token=50, Prefer="return=representation", **once)
    refused(answer)
    assert "return=minimal" in answer.json()["hint"], write
    assert await bounded.standing(table) == before, write
    minimal = await bounded.ask(method, path, body, token=50, Prefer="return=minimal", **once)
    assert minimal.is_success, (write, minimal.text)
    assert "idempotent-replayed" not in minimal.headers, write


async def test_a_claim_is_refused_and_a_lease_with_such_claims_not_granted(bounded: Bounded) -> None:
    before = await bounded.standing("plain")
    refused(await bounded.ask("POST", "claims", {"resource": f"plain/{LARGE}"}))
    refused(await bounded.ask("POST", "claims", {"resource": f"triggered/{LARGE}"}))
    for claims, where in (([f"plain/{LARGE}"], ""), (["plain/2001", "plain/2002"], "claim: ")):
        wanted = {"lock": "x", "ttl_ms": 60_000, "claim": claims}
        refused(await bounded.client.post("/v1/leases", json=wanted), f"{where}The rows have more than {MOST} bytes.")
    assert await bounded.standing("plain") == before
    granted = await bounded.client.post("/v1/leases", json={**wanted, "claim": ["plain/2001", "plain/1"]})
    assert granted.status_code == 201, granted.text


@pytest.mark.parametrize("write", ["PATCH", "POST"])
async def test_in_a_batch_it_alone_is_refused(bounded: Bounded, write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were sent with it are answered as if it had not been there."""
    batches: list[Sequence[Any]] = []
    run = group_commit._run_batch  # noqa: SLF001 - what was together in a transaction

    async def seen(queue: Any, connection: Any, behind: Any, batch: Any) -> None:
        batches.append([waiting.write.row.token for waiting in batch])
        await run(queue, connection, behind, batch)

    monkeypatch.setattr(group_commit, "_run_batch", seen)

    def one(key: int, token: int, note: str) -> Any:
        full = {"id": key + 5000, "note": note, "room": 1}
        body = {"PATCH": {"n": 9}, "POST": full}[write]
        path = "data/plain" if write == "POST" else f"data/plain/{key}"
        return bounded.ask(write, path, body, token=token, Prefer="return=representation")

    others = [one(key, 100 + key, "small") for key in range(1, 6)]
    first, *answers = await asyncio.gather(*others[:1], one(LARGE, 200, "n" * 120_000), *others[1:])
    refused(answers.pop(0))
    assert all(answer.is_success for answer in (first, *answers)), [answer.text for answer in answers]
    assert all(len(answer.json()) for answer in answers)
    assert any(200 in batch and len(batch) > 1 for batch in batches), batches
    (row,) = await bounded.owner.fetch(f"SELECT n, length(note) AS size FROM public.plain WHERE id = {LARGE}")
    assert (row["n"], row["size"]) == (0, 300_000)


# Of a large answer under an Idempotency-Key the record has no rows: a repeat is answered as under return=minimal.

KEPT_SQL = f"""
CREATE TABLE public.plain (id int PRIMARY KEY, note text DEFAULT repeat('x', {MOST_KEPT}), n int DEFAULT 0);
INSERT INTO public.plain SELECT generate_series(1, 9);
INSERT INTO public.plain VALUES (100, repeat('y', 6000)), (101, repeat('y', 6000)), (102, repeat('z', 1500));
"""
KEPT_ROWS = "return=representation"


@pytest.fixture
async def owner(database: str) -> AsyncIterator[asyncpg.Connection]:
    async with connection_to(database) as owner:
        await owner.execute(KEPT_SQL)
        await protect(owner, "plain")
        yield owner


async def ask(
    client: httpx.AsyncClient, method: str, path: str, body: object, prefer: str, *, token: int, key: str
) -> httpx.Response:
    headers = {"X-Fence-Token": str(token), "Idempotency-Key": key} | ({"Prefer": prefer} if prefer else {})
    return await client.request(method, f"/v1/{path}", json=body, headers=headers)


async def kept_bytes(owner: asyncpg.Connection) -> int:
    size: int = await owner.fetchval("SELECT coalesce(sum(octet_length(rows)), 0)::int FROM fencepost.idempotency")
    return size


def minimal(prefer: str) -> str:
    return ", ".join(["return=minimal", *(each for each in prefer.split(", ") if each not in ("", KEPT_ROWS))])


async def test_a_repeat_has_no_rows_and_says_so(database: str, owner: asyncpg.Connection) -> None:
    # Method, path, body, preferences, the status of the answer; the body and the status of the repeat.
    kept_writes: list[tuple[str, str, object, str, int, object, int]] = [
        ("PATCH", "data/plain/1", {"n": 1}, "handling=strict", 200, None, 204),
        ("PUT", "data/plain/20", {"n": 1}, "", 201, None, 201),
        ("POST", "data/plain", {"id": 21}, "count=exact", 201, None, 201),
        ("POST", "data/plain", [{"id": 22}, {"id": 23}], KEPT_ROWS, 201, None, 201),
        ("PATCH", "data/plain?id=in.(2,3)", {"n": 1}, f"{KEPT_ROWS}, max-affected=5", 200, None, 204),
        ("PATCH", "data/plain", [{"id": 4, "n": 1}, {"id": 5, "n": 1}], KEPT_ROWS, 200, None, 204),
        ("DELETE", "data/plain/6", None, KEPT_ROWS, 200, None, 204),
        ("DELETE", "data/plain?id=in.(7,8)", None, KEPT_ROWS, 200, None, 204),
        ("POST", "claims", {"resource": "plain/9"}, "", 200, {"resource": "plain/9", "mark": None}, 200),
    ]
    async with in_process(database) as client:
        for number, (method, path, body, prefer, status, again, minimally) in enumerate(kept_writes):
            key = f"k{number}"
            first = await ask(client, method, path, body, prefer, token=10, key=key)
            assert first.status_code == status, first.text
            assert len(first.content) > MOST_KEPT, path
            second = await ask(client, method, path, body, prefer, token=11, key=key)
            assert (second.status_code, second.headers["idempotent-replayed"]) == (minimally, "true"), path
            assert (json.loads(second.content) if second.content else None) == again
            assert second.headers["preference-applied"] == minimal(prefer)
            assert second.headers.get("location") == first.headers.get("location")
            assert second.headers.get("content-range") == first.headers.get("content-range")
        assert await owner.fetchval("SELECT count(*) FROM public.plain WHERE last_fence_token = 11") == 0
        assert await kept_bytes(owner) < SMALL_KEPT


async def test_so_have_lines_of_batches_and_pages_of_queued_writes(database: str, owner: asyncpg.Connection) -> None:
    lines: list[dict[str, Any]] = [
        {"method": "PATCH", "path": f"plain/{n}", "token": 10, "body": {"n": 1}, "idempotency_key": f"k{n}"}
        for n in range(1, 5)
    ]
    async with in_process(database) as client:
        for query, some in (("", lines[:2]), ("?atomic=true", lines[2:])):
            content = "".join(json.dumps(line) + "\n" for line in some)
            headers = {"Content-Type": "application/x-ndjson"}
            answers = [await client.post(f"/v1/batch{query}", content=content, headers=headers) for _ in range(2)]
            first, second = ([json.loads(line) for line in answer.text.splitlines()] for answer in answers)
            assert [len(line["body"]["note"]) for line in first] == [MOST_KEPT, MOST_KEPT]
            assert [
                (line["status"], line["body"], line["preference_applied"], line["replayed"]) for line in second
            ] == [(204, None, "return=minimal", True)] * 2
        queued = await ask(client, "PATCH", "data/plain/5", {"n": 1}, "respond-async", token=10, key="q")
        page = (await client.get(f"{queued.headers['location']}?wait=60")).json()
        assert (page["state"], page["answer"]["status"], page["answer"]["body"]) == ("applied", 204, None)
        assert page["answer"]["headers"]["preference-applied"] == "return=minimal"
    assert await kept_bytes(owner) == 0


async def test_what_a_caller_had_kept_counts_and_small_answers_do_not(database: str, owner: asyncpg.Connection) -> None:
    statuses = []
    async with in_process(database, max_kept_bytes=40_000) as client:
        for row in (100, 101, 102):
            for token in (10, 11):
                answer = await ask(client, "PATCH", f"data/plain/{row}", {"n": 1}, "", token=token, key=f"k{row}")
                statuses.append(answer.status_code)
    assert statuses == [200, 200, 200, 204, 200, 200]
    assert 7500 < await kept_bytes(owner) < 7700
