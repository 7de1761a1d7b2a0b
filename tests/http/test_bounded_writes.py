"""A write whose answer would have more bytes than an answer may have is refused, and leaves nothing behind."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx
import pytest
from tests.support.counting_proxy import Counted, counting
from tests.support.in_process import in_process

from fencepost.storage.batches import group_commit
from fencepost.storage.protecting.protect import protect

MOST = 100_000
ROOM = 60_000
"""What comes from PostgreSQL beside an answer: what a new connection reads, and what is sent at once before it ends."""
LARGE = 1000
"""The key of a row of 300,000 bytes. Rows 1 to 400 have a note of one."""
ROWS = 400

SQL = """
SET search_path = public;
CREATE SEQUENCE made;
CREATE TYPE counted AS ENUM ('one');
CREATE FUNCTION make(counted) RETURNS json LANGUAGE plpgsql AS $$ BEGIN RETURN nextval('public.made')::text; END $$;
CREATE CAST (counted AS json) WITH FUNCTION make(counted);
CREATE TABLE plain (id int PRIMARY KEY, note text DEFAULT 'x', n int DEFAULT 0, room int NOT NULL DEFAULT 1,
  made counted DEFAULT 'one');
CREATE TABLE scoped (LIKE plain INCLUDING ALL);
CREATE TABLE triggered (LIKE plain INCLUDING ALL);
CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN coalesce(NEW, OLD); END';
CREATE TRIGGER same BEFORE INSERT OR UPDATE OR DELETE ON triggered FOR EACH ROW EXECUTE FUNCTION same();
"""
"""Rows with marks, rows that share one, and rows whose writes share no transaction. `made` counts how many of them
became JSON, for a sequence is not rolled back.
"""
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
PADDED = ",".join(f"a{n}:note::char(255)" for n in range(240)) + ",made"
"""60,000 bytes of any row."""
REPEATED = "made," + ",".join(f"a{n}:n,b{n}:note" for n in range(100))
ALL = f"id=lte.{ROWS}"
SOME = [{"id": n, "n": 7} for n in range(1, 100)]
NEW = [{"id": n, "note": "new", "room": 1} for n in range(3000, 3100)]
PUT = {"note": "p" * 40_000, "room": 1}


@dataclass
class Bounded:
    """A gateway whose answers have MOST bytes, on tables of the owner's."""

    client: httpx.AsyncClient
    owner: asyncpg.Connection
    counted: Counted
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

    async def made(self) -> int:
        """How many rows have become JSON so far."""
        count: int = await self.owner.fetchval("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.made")
        return count


@pytest.fixture
async def bounded(database: str) -> AsyncIterator[Bounded]:
    owner = await asyncpg.connect(database)
    await owner.execute(SQL)
    await protect(owner, "plain")
    await protect(owner, "triggered")
    await protect(owner, "scoped", scope="room/{room}")
    await owner.execute(ROWS_OF_EACH)
    async with counting(database) as (url, counted), in_process(url, max_answer_bytes=MOST) as client:
        yield Bounded(client, owner, counted)
    await owner.close()


def refused(answer: httpx.Response, detail: str = f"The rows have more than {MOST} bytes.") -> None:
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["detail"]) == (400, "FP016", detail), answer.text[:500]
    assert "FENCEPOST_MAX_ANSWER_BYTES" in problem["hint"]


WRITES: dict[str, tuple[str, str, object]] = {
    "PATCH": ("PATCH", f"/{LARGE}", {"n": 1}),
    "PATCH of nothing": ("PATCH", f"/{LARGE}", {}),
    "PATCH, repeated": ("PATCH", f"/{LARGE}?select={REPEATED}", {"n": 1}),
    "PATCH by filter": ("PATCH", f"?{ALL}&select={PADDED}", {"n": 1}),
    "PATCH of nothing by filter": ("PATCH", f"?{ALL}&select={PADDED}", {}),
    "PATCH of one by filter": ("PATCH", f"?id=eq.{LARGE}", {"n": 1}),
    "PATCH of an array": ("PATCH", f"?select={PADDED}", SOME),
    "PUT": ("PUT", f"/{LARGE}?select={REPEATED}", PUT),
    "PUT of a new row": ("PUT", f"/4000?select={REPEATED}", PUT),
    "POST of one": ("POST", f"?select={REPEATED}", {"id": 4001, **PUT}),
    "POST of an array": ("POST", f"?select={PADDED}", NEW),
    "DELETE": ("DELETE", f"/{LARGE}", None),
    "DELETE, repeated": ("DELETE", f"/{LARGE}?select={REPEATED}", None),
    "DELETE by filter": ("DELETE", f"?{ALL}&select={PADDED}", None),
}


@pytest.mark.parametrize(
    ("table", "key", "writes"),
    [
        ("plain", None, tuple(WRITES)),
        ("plain", "a-key", ("PATCH", "POST of one", "DELETE", "PATCH by filter")),
        ("scoped", "a-key", ("PATCH of nothing", "PUT", "POST of an array", "DELETE by filter")),
        ("triggered", None, ("PATCH, repeated", "PUT of a new row", "PATCH of an array", "DELETE")),
    ],
)
async def test_a_write_is_refused_whole(bounded: Bounded, table: str, writes: tuple[str, ...], key: str | None) -> None:
    once = {} if key is None else {"Idempotency_Key": key}
    for write in writes:
        await bounded.owner.execute(ROWS_OF_EACH)
        method, rest, body = WRITES[write]
        path = f"data/{table}{rest}"
        before, sent, made = await bounded.standing(table), bounded.counted.bytes, await bounded.made()
        answer = await bounded.ask(method, path, body, token=50, Prefer="return=representation", **once)
        refused(answer)
        assert "return=minimal" in answer.json()["hint"], write
        assert await bounded.standing(table) == before, write
        assert bounded.counted.bytes - sent < MOST + ROOM, write
        # Of several rows those before the one that makes it too much, and that one; of one row, once more in its batch.
        assert await bounded.made() - made <= (0 if REPEATED in rest else 3), write
        minimal = await bounded.ask(method, path, body, token=50, Prefer="return=minimal", **once)
        assert minimal.is_success, (write, minimal.text)
        assert "idempotent-replayed" not in minimal.headers, write


@pytest.mark.parametrize("table", ["plain", "triggered"])
async def test_a_claim_is_refused(bounded: Bounded, table: str) -> None:
    before, sent = await bounded.standing(table), bounded.counted.bytes
    refused(await bounded.ask("POST", "claims", {"resource": f"{table}/{LARGE}"}))
    assert await bounded.standing(table) == before
    assert bounded.counted.bytes - sent < MOST + ROOM
    assert (await bounded.ask("POST", "claims", {"resource": f"{table}/1"})).status_code == 200


@pytest.mark.parametrize(
    ("claims", "detail"),
    [
        ([f"plain/{LARGE}"], f"The rows have more than {MOST} bytes."),
        (["plain/2001", "plain/2002"], f"claim: The rows have more than {MOST} bytes."),
    ],
)
async def test_a_lease_with_such_claims_is_not_granted(bounded: Bounded, claims: list[str], detail: str) -> None:
    before, sent = await bounded.standing("plain"), bounded.counted.bytes
    wanted = {"lock": "x", "ttl_ms": 60_000, "claim": claims}
    refused(await bounded.client.post("/v1/leases", json=wanted, headers={"X-Lease-Secret": "s" * 32}), detail)
    assert await bounded.standing("plain") == before
    assert bounded.counted.bytes - sent < 2 * MOST + ROOM
    granted = await bounded.client.post("/v1/leases", json={**wanted, "claim": ["plain/2001", "plain/1"]})
    assert granted.status_code == 201, granted.text


async def test_a_lease_that_is_asked_for_again_is_answered_within_the_bound(bounded: Bounded) -> None:
    wanted, headers = {"lock": "x", "ttl_ms": 60_000, "claim": ["plain/1"]}, {"X-Lease-Secret": "s" * 32}
    assert (await bounded.client.post("/v1/leases", json=wanted, headers=headers)).status_code == 201
    grown = "UPDATE public.plain SET note = repeat('y', 300000) WHERE id = 1"
    async with bounded.owner.transaction():
        await bounded.owner.execute("SET LOCAL fencepost.token = '1000000'")
        await bounded.owner.execute(grown)
    sent = bounded.counted.bytes
    again = await bounded.client.post("/v1/leases", json=wanted, headers=headers)
    refused(again, f"claim: The rows have more than {MOST} bytes.")
    assert bounded.counted.bytes - sent < MOST + ROOM


@pytest.mark.parametrize(
    ("write", "table"), [("PATCH", "plain"), ("PUT", "scoped"), ("POST", "plain"), ("DELETE", "scoped")]
)
async def test_in_a_batch_it_is_alone_with_its_refusal(
    bounded: Bounded, write: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were sent with it are answered as if it had not been there."""
    batches: list[Sequence[Any]] = []
    run = group_commit._run_batch  # noqa: SLF001 - what was together in a transaction

    async def seen(queue: Any, connection: Any, behind: Any, batch: Any) -> None:
        batches.append([waiting.write.row.token for waiting in batch])
        await run(queue, connection, behind, batch)

    monkeypatch.setattr(group_commit, "_run_batch", seen)
    if table == "scoped":  # writes of one scope are never in one batch
        await bounded.owner.execute(
            "ALTER TABLE public.scoped DISABLE TRIGGER USER; UPDATE public.scoped SET room = id"
        )
        await bounded.owner.execute("ALTER TABLE public.scoped ENABLE TRIGGER USER")

    def one(key: int, token: int, note: str) -> Any:
        path, room = f"data/{table}/{key}", key if table == "scoped" else 1
        full = {"id": key + 5000, "note": note, "room": room}
        body = {"PATCH": {"n": 9}, "PUT": {"note": note, "room": room}, "POST": full, "DELETE": None}[write]
        path = f"data/{table}" if write == "POST" else path
        return bounded.ask(write, path, body, token=token, Prefer="return=representation")

    others = [one(key, 100 + key, "small") for key in range(1, 6)]
    first, *answers = await asyncio.gather(*others[:1], one(LARGE, 200, "n" * 120_000), *others[1:])
    refused(answers.pop(0))
    assert all(answer.is_success for answer in (first, *answers)), [answer.text for answer in answers]
    assert all(len(answer.json()) for answer in answers)
    assert any(200 in batch and len(batch) > 1 for batch in batches), batches
    (row,) = await bounded.owner.fetch(f"SELECT n, length(note) AS size FROM public.{table} WHERE id = {LARGE}")
    assert (row["n"], row["size"]) == (0, 300_000)


async def test_a_row_that_is_large_for_a_batch_is_answered_all_the_same(database: str, bounded: Bounded) -> None:
    await bounded.owner.execute("ALTER TABLE public.plain ALTER note SET DEFAULT repeat('x', 2000000)")
    async with in_process(database) as client:
        headers = {"X-Fence-Token": "60", "Prefer": "return=representation"}
        answer = await client.put("/v1/data/plain/5", json={}, headers=headers)
        assert (answer.status_code, len(answer.json()["note"])) == (200, 2_000_000)


async def test_what_is_not_too_large_comes_as_before(bounded: Bounded) -> None:
    """In the order of the keys, or of the array; and the number of bytes that an answer may have is exact."""
    asked = "&select=id,n,note"
    rows = await bounded.ask("PATCH", f"data/plain?id=lte.40{asked}", {"n": 3}, Prefer="return=representation")
    assert rows.json() == [{"id": n, "n": 3, "note": "x"} for n in range(1, 41)]
    patched = [{"id": n, "n": n} for n in (7, 3, 5)]
    rows = await bounded.ask("PATCH", "data/plain?select=id,n", patched, Prefer="return=representation")
    assert rows.json() == patched
    made = [{"id": n, "note": "new"} for n in (9003, 9001, 9002)]
    rows = await bounded.ask("POST", "data/plain?select=id,note", made, Prefer="return=representation")
    assert rows.json() == made
    size = MOST - len('{"note":""}')
    for length, status in ((size, 200), (size + 1, 400)):
        body = {"note": "b" * length}
        answer = await bounded.ask("PATCH", "data/plain/1?select=note", body, Prefer="return=representation")
        assert answer.status_code == status, answer.text[:300]


async def test_a_read_builds_nothing_that_select_repeats(bounded: Bounded) -> None:
    for path in (f"data/plain/{LARGE}", f"data/plain?id=eq.{LARGE}"):
        made = await bounded.made()
        joined = "&" if "?" in path else "?"
        refused(await bounded.client.get(f"/v1/{path}{joined}select={REPEATED}"))
        assert await bounded.made() == made
