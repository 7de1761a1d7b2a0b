"""A write whose answer would have more bytes than an answer may have is refused, and leaves nothing behind."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx
import pytest
from tests.support.gateways import in_process

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import group_commit

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
    owner = await asyncpg.connect(database)
    await owner.execute(SQL)
    await protect(owner, "plain")
    await protect(owner, "triggered")
    await protect(owner, "scoped", scope="room/{room}")
    await owner.execute(ROWS_OF_EACH)
    async with in_process(database, max_answer_bytes=MOST) as client:
        yield Bounded(client, owner)
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
    "PATCH of an array": ("PATCH", f"?select={PADDED}", SOME),
    "PUT": ("PUT", f"/{LARGE}?select={REPEATED}", PUT),
    "PUT of a new row": ("PUT", f"/4000?select={REPEATED}", PUT),
    "POST of one": ("POST", f"?select={REPEATED}", {"id": 4001, **PUT}),
    "POST of an array": ("POST", f"?select={PADDED}", NEW),
    "DELETE": ("DELETE", f"/{LARGE}", None),
    "DELETE by filter": ("DELETE", f"?{ALL}&select={PADDED}", None),
}


REFUSED: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("plain", None, tuple(WRITES)),
    ("plain", "a-key", ("PATCH", "POST of one", "DELETE", "PATCH by filter")),
    ("scoped", "a-key", ("PATCH of nothing", "PUT", "POST of an array", "DELETE by filter")),
    ("triggered", None, ("PATCH, repeated", "PUT of a new row", "PATCH of an array", "DELETE")),
)


async def test_a_write_is_refused_whole(bounded: Bounded) -> None:
    for table, key, writes in REFUSED:
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
async def test_in_a_batch_it_is_alone_with_its_refusal(
    bounded: Bounded, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
