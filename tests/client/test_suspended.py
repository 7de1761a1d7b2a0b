"""Suspended machines: trust ends early, never late."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.testing.servers.processes import PATIENCE

SCRIPT = Path(__file__).with_name("time_namespace.py")


def may_unshare() -> str | None:
    """Return why a time namespace cannot be had here; None if it can."""
    try:
        done = subprocess.run(["unshare", "-T", "--boottime", "1", "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no unshare: apt-get install util-linux"
    return f"no time namespaces: {done.stderr.strip()}" if done.returncode else None


REFUSED = may_unshare()
in_namespace = pytest.mark.skipif(REFUSED is not None, reason=REFUSED or "")


async def run(*command: str) -> dict[str, object]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(), 2 * PATIENCE)
    assert process.returncode == 0, errors.decode()
    found: dict[str, object] = json.loads(out)
    return found


@in_namespace
async def test_a_laptop_that_slept_past_the_ttl_writes_nothing_when_it_wakes(gateway_url: str) -> None:
    """CLOCK_BOOTTIME is an hour ahead at once; CLOCK_MONOTONIC, which the event loop goes by, has seen nothing."""
    found = await run(sys.executable, str(SCRIPT), gateway_url, "3600")
    assert found == {
        "monotonic_jumped": 0,
        "boottime_jumped": 3600,
        "trusted_before": True,
        "trusted": False,
        "write": "expired",
        "lost": "expired",
        "status": "paid",
    }
