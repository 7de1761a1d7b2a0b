"""Of a large answer under an Idempotency-Key the record has no rows: a repeat is answered as under return=minimal."""

import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
from tests.support.gateways import in_process

from fencepost.server.gateway.outcomes import MOST_KEPT, SMALL_KEPT
from fencepost.server.ops.protect import protect

SQL = f"""
CREATE TABLE public.plain (id int PRIMARY KEY, note text DEFAULT repeat('x', {MOST_KEPT}), n int DEFAULT 0);
INSERT INTO public.plain SELECT generate_series(1, 9);
INSERT INTO public.plain VALUES (100, repeat('y', 6000)), (101, repeat('y', 6000)), (102, repeat('z', 1500));
"""
ROWS = "return=representation"
WRITES: list[tuple[str, str, object, str, int, object, int]] = [
    ("PATCH", "data/plain/1", {"n": 1}, "handling=strict", 200, None, 204),
    ("PUT", "data/plain/20", {"n": 1}, "", 201, None, 201),
    ("POST", "data/plain", {"id": 21}, "count=exact", 201, None, 201),
    ("POST", "data/plain", [{"id": 22}, {"id": 23}], ROWS, 201, None, 201),
    ("PATCH", "data/plain?id=in.(2,3)", {"n": 1}, f"{ROWS}, max-affected=5", 200, None, 204),
    ("PATCH", "data/plain", [{"id": 4, "n": 1}, {"id": 5, "n": 1}], ROWS, 200, None, 204),
    ("DELETE", "data/plain/6", None, ROWS, 200, None, 204),
    ("DELETE", "data/plain?id=in.(7,8)", None, ROWS, 200, None, 204),
    ("POST", "claims", {"resource": "plain/9"}, "", 200, {"resource": "plain/9", "mark": None}, 200),
]
"""Method, path, body, preferences, the status of the answer; the body and the status of the repeat."""


@pytest.fixture
async def owner(database: str) -> AsyncIterator[asyncpg.Connection]:
    owner = await asyncpg.connect(database)
    await owner.execute(SQL)
    await protect(owner, "plain")
    yield owner
    await owner.close()


async def ask(
    client: httpx.AsyncClient, method: str, path: str, body: object, prefer: str, *, token: int, key: str
) -> httpx.Response:
    headers = {"X-Fence-Token": str(token), "Idempotency-Key": key} | ({"Prefer": prefer} if prefer else {})
    return await client.request(method, f"/v1/{path}", json=body, headers=headers)


async def kept_bytes(owner: asyncpg.Connection) -> int:
    size: int = await owner.fetchval("SELECT coalesce(sum(length(answer)), 0)::int FROM fencepost.idempotency")
    return size


def minimal(prefer: str) -> str:
    return ", ".join(["return=minimal", *(each for each in prefer.split(", ") if each not in ("", ROWS))])


async def test_a_repeat_has_no_rows_and_says_so(database: str, owner: asyncpg.Connection) -> None:
    async with in_process(database) as client:
        for number, (method, path, body, prefer, status, again, minimally) in enumerate(WRITES):
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


async def test_what_a_caller_has_had_kept_counts_and_small_answers_do_not(
    database: str, owner: asyncpg.Connection
) -> None:
    statuses = []
    async with in_process(database, max_kept_bytes=40_000) as client:
        for row in (100, 101, 102):
            for token in (10, 11):
                answer = await ask(client, "PATCH", f"data/plain/{row}", {"n": 1}, "", token=token, key=f"k{row}")
                statuses.append(answer.status_code)
    assert statuses == [200, 200, 200, 204, 200, 200]
    assert 7500 < await kept_bytes(owner) < 7700
