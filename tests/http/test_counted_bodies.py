"""Bodies that arrive count, whatever the route: more than there is room for is refused, and read by nobody."""

import asyncio

import pytest
from tests.http.raw import RawConnection

from fencepost.server.http.bodies import MOST_BODIES
from fencepost.server.quota import most_of
from fencepost.testing.servers.processes import PATIENCE

SIZE = 1_000_000


@pytest.mark.parametrize(
    "line", ["POST /v1/claims", "POST /v1/leases", "DELETE /v1/leases/1", "PATCH /v1/data/orders/1"]
)
async def test_bodies_that_do_not_come_to_an_end_are_refused_once_there_is_no_room_for_more(
    gateway_url: str, line: str
) -> None:
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {SIZE}\r\n"
    head += "X-Lease-Secret: 0123456789-0123456789-01" if "leases" in line else "X-Fence-Token: 1"
    there_are = most_of(MOST_BODIES << 20) // SIZE
    opened = [await RawConnection.open(gateway_url) for _ in range(there_are + 1)]
    try:
        for each in opened:
            await each.send(f"{head}\r\n\r\n{{".encode())
        answers = [asyncio.create_task(each.answer()) for each in opened]
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        assert [(each.result().status, each.result().body["code"]) for each in done] == [(503, "FP010")]
        assert len(waiting) == there_are
    finally:
        for each in opened:
            each.close()
        await asyncio.gather(*answers, return_exceptions=True)
