"""A script: a holder whose machine is suspended, seen from inside. Run by test_losing.py.

It moves itself into a time namespace whose CLOCK_BOOTTIME is ahead, while CLOCK_MONOTONIC and the wall clock go on as
before: which is what a process sees when its laptop wakes up.
"""

import asyncio
import ctypes
import json
import os
import sys
import time
from pathlib import Path

from fencepost import Client, LeaseLost
from fencepost.testing.servers.processes import PATIENCE

CLONE_NEWTIME = 0x80


def sleep_like_a_laptop(seconds: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWTIME):
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    Path("/proc/self/timens_offsets").write_text(f"monotonic 0 0\nboottime {seconds} 0\n")
    with Path("/proc/self/ns/time_for_children").open() as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWTIME):
            sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")


async def main(url: str, seconds: int) -> dict[str, object]:
    async with Client(url) as c, c.lock("orders/order-123", ttl=30, claim=True) as lease:
        await c.patch("orders", "order-123", {"status": "paid"}, lease=lease)
        monotonic, boot = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        trusted_before = lease.trusted
        sleep_like_a_laptop(seconds)
        found: dict[str, object] = {
            "monotonic_jumped": round(time.monotonic() - monotonic),
            "boottime_jumped": round(time.clock_gettime(time.CLOCK_BOOTTIME) - boot),
            "trusted_before": trusted_before,
            "trusted": lease.trusted,
        }
        try:
            await c.patch("orders", "order-123", {"status": "shipped"}, lease=lease)
        except LeaseLost as lost:
            found["write"] = lost.reason
        found["lost"] = (await asyncio.wait_for(lease.lost, 2 * PATIENCE)).reason
        found["status"] = (await c.get("orders", "order-123"))["status"]
        return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
