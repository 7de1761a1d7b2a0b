"""For how long a request is tried: until a time has passed, whatever each try takes. The transport is a mock, and time
passes as it says.
"""

import asyncio
import contextlib
import json

import httpx
import pytest
from tests.client.counting import GRANT, Mock, problem
from tests.support.manual_clock import Hurried

from fencepost.client import Client, OutcomeUnknown, Retry, Unavailable
from fencepost.client.lease import acquire, make_acquire_request, release_call
from fencepost.testing.servers.processes import PATIENCE

REFUSED = httpx.ConnectError("refused")
HELD = problem(423, "FP011", retryable=True, **{"Retry-After": "9"})


def ok() -> httpx.Response:
    return httpx.Response(200, json={"order_id": "1"})


class Silent(httpx.AsyncBaseTransport):
    """A mock: each try lasts until its own limit, and has no answer; after some tries there is one."""

    def __init__(self, clock: Hurried, *, tries: int = 1000) -> None:
        self.clock, self.tries = clock, tries
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if len(self.requests) > self.tries:
            return ok()
        self.clock._now += request.extensions["timeout"]["read"]  # noqa: SLF001 - the mock's time passes here
        raise httpx.ReadTimeout("")


@pytest.mark.parametrize(("wait", "seconds"), [(0, 15), (3, 18), (24, 39), (None, 40)])
async def test_a_gateway_that_is_silent_is_given_up_after_a_time_that_is_known(
    wait: float | None, seconds: float
) -> None:
    """An answer is waited for 10 s beyond the wait, of which 25 s are asked for at once; patience is 5 s."""
    clock = Hurried()
    mock = Silent(clock)
    async with Client("http://mock", transport=mock, clock=clock) as c:
        with pytest.raises(Unavailable, match="was not answered"):
            await acquire(c._exchange, make_acquire_request("a", ttl=30, wait=wait, claim=False, owner="", tokens=1))  # noqa: SLF001
    assert clock.now() == pytest.approx(1000 + seconds)


async def test_a_write_without_an_answer_is_given_up_after_its_timeout_and_patience() -> None:
    clock = Hurried()
    async with Client("http://mock", transport=Silent(clock), clock=clock, timeout=30) as c:
        with pytest.raises(OutcomeUnknown):
            await c.patch("orders", 1, {"status": "x"}, token=34)
    assert clock.now() == pytest.approx(1035)


async def test_what_is_tried_again_soon_may_take_as_long_as_the_first_try() -> None:
    clock = Hurried()
    mock = Mock(REFUSED, ok)
    async with Client("http://mock", transport=mock, clock=clock, timeout=30) as c:
        await c.patch("orders", 1, {"status": "x"}, token=34)
    assert [request.extensions["timeout"]["read"] for request in mock.requests] == [30, 30]


async def test_an_acquire_that_met_a_failure_waits_on_after_a_short_slice() -> None:
    """So the next failure is a first one, and the gateway may restart as often as it likes meanwhile."""
    mock = Mock(REFUSED, HELD, lambda: httpx.Response(201, json=GRANT), lambda: httpx.Response(204))
    async with Client("http://mock", transport=mock, clock=Hurried()) as c, c.lock("a", wait=20):
        pass
    first, second, third = (json.loads(request.content) for request in mock.requests[:3])
    assert [(body["wait_ms"], body["keep_place"]) for body in (first, second)] == [(20000, False), (2000, True)]
    assert third["wait_ms"] > 15000
    assert not third["keep_place"]


async def test_the_gateway_is_not_waited_for_longer_than_patience() -> None:
    later = problem(503, "FP010", retryable=True, **{"Retry-After": "7"})
    mock = Mock(later, ok)
    async with Client("http://mock", transport=mock, clock=Hurried()) as c:
        with pytest.raises(Unavailable) as raised:
            await c.get("orders", 1)
    assert (raised.value.retry_after, len(mock.requests)) == (7.0, 1)


async def test_an_answer_of_upkeep_that_comes_drop_by_drop_is_given_up_too() -> None:
    left = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        left.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Client(url, timeout=0.5, retry=Retry(patience=0)) as c:
        with pytest.raises(Unavailable, match="no answer in time"):
            async with asyncio.timeout(PATIENCE):
                await c._exchange.once(release_call("7", "secret"))  # noqa: SLF001
        await left.wait()
