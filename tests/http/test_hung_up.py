"""Clients that close the connection, or their half of it, before they are answered."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import asyncpg
import httpx
import pytest
from tests.http.raw import RawConnection
from tests.support.gateways import DemoGateway
from tests.support.interleave import blocks_another_session
from tests.support.lease_gateways import post, release

from fencepost.testing.servers.processes import PATIENCE, eventually

ROW = "/v1/data/orders/order-123"


def request(method: str, path: str, body: object = None, token: int | None = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n"
    head += "" if body is None else "Content-Type: application/json\r\n"
    head += "" if token is None else f"X-Fence-Token: {token}\r\n"
    return f"{head}\r\n".encode() + text


@dataclass
class Holder:
    """A session that has locked the row, and another one that looks on."""

    session: asyncpg.Connection
    observer: asyncpg.Connection

    async def is_waited_for(self) -> None:
        await blocks_another_session(self.session, self.observer)

    async def commits(self) -> None:
        await self.session.execute("COMMIT")


@pytest.fixture
async def holder(gateway_url: str, shared: DemoGateway) -> AsyncIterator[Holder]:  # noqa: ARG001 - it makes the row
    session, observer = await asyncpg.connect(shared.dsn), await asyncpg.connect(shared.dsn)
    await session.execute("BEGIN; SELECT FROM orders WHERE order_id = 'order-123' FOR UPDATE")
    yield Holder(session, observer)
    await session.close()
    await observer.close()


WRITES = [request("PATCH", ROW, {"note": str(token)}, token) for token in (1301, 1302, 1303)]


@pytest.mark.parametrize(("behind", "last"), [(b"", None), (WRITES[0][:-3], None), (b"NO HTTP\r\n\r\n", 400)])
async def test_whole_requests_are_answered_in_order_and_then_what_is_behind_them(
    raw: RawConnection, holder: Holder, behind: bytes, last: int | None
) -> None:
    await raw.send(b"".join(WRITES) + behind)
    raw.writer.write_eof()
    await holder.is_waited_for()
    await holder.commits()
    for note in ("1301", "1302", "1303"):
        answer = await raw.answer()
        assert (answer.status, answer.body["note"]) == (200, note)
    if last is not None:
        assert (await raw.answer()).status == last
    assert await raw.ended()


async def test_what_is_granted_to_a_client_that_has_gone_is_given_back(
    raw: RawConnection, gateway_url: str, holder: Holder
) -> None:
    """Also without `wait_ms`: the claim waits for the row."""
    wanted = {"lock": "nightly", "claim": ["orders/order-123"], "ttl_ms": 3_600_000}
    await raw.send(request("POST", "/v1/leases", wanted))
    await holder.is_waited_for()
    raw.writer.write_eof()
    await holder.commits()
    answer = await raw.answer()
    assert (answer.status, answer.body["code"]) == (400, "FP016")
    assert "nothing is held" in answer.body["detail"]
    assert await raw.ended()
    another = await RawConnection.open(gateway_url)
    await another.send(request("POST", "/v1/leases", wanted))
    assert (await another.answer()).status == 201
    another.close()


async def test_what_is_granted_to_a_client_that_withdraws_meanwhile_is_given_back(
    raw: RawConnection, http: httpx.AsyncClient, holder: Holder
) -> None:
    """It has chosen the secret, so that having gone alone is no reason."""
    wanted = {"lock": "weekly", "claim": ["orders/order-123"], "ttl_ms": 3_600_000}
    secret = {"X-Lease-Secret": "0123456789-withdrawn-secret"}
    acquire = request("POST", "/v1/leases", wanted)
    await raw.send(
        acquire.replace(b"\r\n\r\n", b"\r\nX-Lease-Secret: %b\r\n\r\n" % secret["X-Lease-Secret"].encode(), 1)
    )
    await holder.is_waited_for()
    raw.writer.write_eof()
    under_way = await http.delete("/v1/leases", headers=secret)
    assert (under_way.status_code, under_way.headers["retry-after"]) == (503, "1")
    await holder.commits()
    assert "nothing is held" in (await raw.answer()).body["detail"]
    assert (await http.delete("/v1/leases", headers=secret)).status_code == 204
    assert (await http.get("/v1/locks?name=weekly")).json() == []
    again = await http.post("/v1/leases", json=wanted, headers=secret)
    assert (again.status_code, "was withdrawn" in again.json()["detail"]) == (400, True)


HEALTH = request("GET", "/healthz")
ENDS: list[Callable[[RawConnection], None]] = [RawConnection.close, lambda raw: raw.writer.write_eof()]


@pytest.mark.parametrize("end", ENDS, ids=["closed", "half closed"])
@pytest.mark.parametrize(("behind", "later"), [(b"", b""), (HEALTH * 100, b""), (b"", HEALTH), (b"", HEALTH * 6)])
async def test_who_has_gone_waits_for_no_lock_whatever_it_sent_behind_the_request(
    raw: RawConnection, http: httpx.AsyncClient, behind: bytes, later: bytes, end: Callable[[RawConnection], None]
) -> None:
    lease = (await post(http, "G", ttl_ms=3_600_000)).json()

    async def waiters() -> int:
        (lock,) = (await http.get("/v1/locks?name=G")).json()
        return len(lock["waiters"])

    await raw.send(request("POST", "/v1/leases", {"lock": "G", "wait_ms": 60_000, "ttl_ms": 3_600_000}) + behind)
    await eventually(waiters, what="the waiter")
    await raw.send(later)
    end(raw)

    async def nobody() -> bool:
        return not await waiters()

    await eventually(nobody, what="the queue without it")
    await release(http, lease)
    assert (await post(http, "G")).status_code == 201
    if not raw.writer.is_closing():
        answers = [await raw.answer() for _ in range(1 + (behind + later).count(b"GET"))]
        assert [each.status for each in answers] == [400] + [200] * (len(answers) - 1)
        assert await raw.ended()


async def test_a_stream_ends_when_its_client_has_gone_whatever_it_sent_behind_the_request(raw: RawConnection) -> None:
    await raw.send(request("GET", "/v1/elections/events?name=scheduler") + HEALTH * 100)
    await raw.reader.readuntil(b"event: vacant")
    raw.writer.write_eof()
    async with asyncio.timeout(PATIENCE):
        assert (await raw.reader.read()).count(b"HTTP/1.1 200") == 100
