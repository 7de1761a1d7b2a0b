"""Which writes of a lease the client sends side by side: those to tables of which an answer has shown that their rows
have a mark each.
"""

import asyncio

import httpx
from tests.support.manual_clock import ManualClock, settled

from fencepost.client import Client
from fencepost.client.leases.lease import Lease
from fencepost.client.rows.writer import SCOPE_HEADER

GRANT = {
    "lease_id": "7",
    "lock": "a",
    "locks": ["a"],
    "owner": "me",
    "token": "1",
    "tokens": ["1"],
    "claims": [],
    "ttl_ms": 30000,
    "waited_ms": 0,
    "granted_at": None,
    "expires_at": None,
}


class Held(httpx.AsyncBaseTransport):
    """Grants a lease, mints, and holds each answer to a write until `answer`; those of items have a scope."""

    def __init__(self) -> None:
        self.minted = 1
        self.sent: list[str] = []
        self._answers: list[asyncio.Event] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/leases":
            return httpx.Response(201, json=GRANT)
        if path.endswith("/tokens"):
            self.minted += 100
            return httpx.Response(200, json={"tokens": [str(self.minted + n) for n in range(8)]})
        if request.method != "PATCH":
            return httpx.Response(204)
        self.sent.append(path.removeprefix("/v1/data/"))
        self._answers.append(may_answer := asyncio.Event())
        await may_answer.wait()
        return httpx.Response(200, json={}, headers={SCOPE_HEADER: "account/1"} if "items" in path else {})

    async def answer(self) -> list[str]:
        """Answer all that were sent; returns what has been sent since the last time, in its order."""
        await settled()
        for each in self._answers:
            each.set()
        sent, self.sent, self._answers = self.sent, [], []
        return sent


async def rounds(client: Client, lease: Lease, held: Held, *rows: tuple[str, str]) -> list[list[str]]:
    """Write these rows at once; returns which were sent together."""
    writes = [asyncio.create_task(client.patch(table, key, {"n": 1}, lease=lease)) for table, key in rows]
    together = []
    while not all(write.done() for write in writes):
        together.append(await held.answer())
        await settled()
    await asyncio.gather(*writes)
    return together


async def test_writes_to_several_rows_are_sent_side_by_side_once_an_answer_has_shown_that_there_is_no_scope() -> None:
    held = Held()
    async with Client("http://mock", transport=held, clock=ManualClock()) as client, client.lock("a") as lease:
        rows = (("orders", "1"), ("orders", "2"), ("orders", "3"))
        assert await rounds(client, lease, held, *rows) == [["orders/1"], ["orders/2"], ["orders/3"]]
        assert await rounds(client, lease, held, *rows) == [["orders/1", "orders/2", "orders/3"]]


async def test_writes_to_a_table_with_a_scope_wait_for_all_others_each_time() -> None:
    held = Held()
    async with Client("http://mock", transport=held, clock=ManualClock()) as client, client.lock("a") as lease:
        await rounds(client, lease, held, ("orders", "1"), ("items", "1"))
        rows = (("orders", "1"), ("items", "1"), ("items", "2"), ("orders", "2"), ("orders", "3"))
        together = [["orders/1"], ["items/1"], ["items/2"], ["orders/2", "orders/3"]]
        assert await rounds(client, lease, held, *rows) == together
