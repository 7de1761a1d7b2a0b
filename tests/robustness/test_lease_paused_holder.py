"""The story that Fencepost is for: a holder is paused past its TTL, another one works, the first wakes up and writes.

Real processes, really stopped. With the fence its writes end in 409 and the row is its successor's; without the fence,
in the same schedule, the successor's update is lost every time.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.support.interleave import Connect, Connection
from tests.support.lease_http import running
from tests.support.lease_paused_holder import LOCK
from tests.support.lease_racing import EXPIRED
from tests.support.violations import promised

from fencepost.storage import demo
from fencepost.testing.servers.waiting import PATIENCE, eventually

pytestmark = pytest.mark.long("holders, leaders and gateways that are paused or killed")

ROUNDS = 5


class Holder:
    """The process that gets paused."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    async def read(self) -> int:
        """Let it acquire the lock and read; returns the lease's id."""
        self._stdin.write(b"acquire\n")
        return int(await self._line())

    async def pause(self) -> None:
        """Stop it, for real."""
        self._process.send_signal(signal.SIGSTOP)
        await eventually(self._stopped, what="a stopped process")

    async def _stopped(self) -> bool:
        return state(self._process.pid) == "T"

    async def wake_up_and_write(self) -> dict[str, str]:
        """Let it go on where it was; returns what its requests were answered."""
        self._stdin.write(b"write\n")
        self._process.send_signal(signal.SIGCONT)
        answers: dict[str, str] = json.loads(await self._line())
        return answers

    async def _line(self) -> str:
        return (await asyncio.wait_for(self._stdout.readline(), PATIENCE)).decode().strip()


@pytest.fixture
async def http(database: str) -> AsyncIterator[httpx.AsyncClient]:
    await demo.load(database)
    async with running(database) as client:
        yield client


@pytest.fixture
async def holder(http: httpx.AsyncClient, database: str) -> AsyncIterator[Holder]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.lease_paused_holder",
        str(http.base_url),
        database,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield Holder(process)
    process.kill()
    await process.communicate()


def state(pid: int) -> str:
    """Return whether it runs (R), sleeps (S) or is stopped (T)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def succeed(http: httpx.AsyncClient, observer: Connection, number: int) -> str:
    """Take the lock over once its time has run out, and write here and there; returns what was written."""
    body = {"lock": LOCK, "owner": "successor", "ttl_ms": 60_000, "wait_ms": 10_000, "claim": [LOCK]}
    lease = (await http.post("/v1/leases", json=body)).raise_for_status().json()
    note = f"the successor's {number}"
    written = await http.patch(f"/v1/data/{LOCK}", json={"note": note}, headers={"X-Fence-Token": lease["token"]})
    assert written.status_code == 200, written.text
    await observer.execute("UPDATE public.unfenced SET note = $1", note)
    secret = {"X-Lease-Secret": lease["secret"]}
    assert (await http.delete(f"/v1/leases/{lease['lease_id']}", headers=secret)).status_code == 204
    return note


async def test_a_paused_holder_cannot_write_over_its_successor_and_without_a_fence_it_does(
    holder: Holder, http: httpx.AsyncClient, connect: Connect
) -> None:
    observer = await connect()
    await observer.execute("CREATE TABLE public.unfenced AS SELECT order_id, note FROM public.orders")
    lost_updates = 0
    for number in range(ROUNDS):
        lease_id = await holder.read()
        await holder.pause()
        await observer.execute(EXPIRED, lease_id, 1.0)  # its time runs out
        note = await succeed(http, observer, number)
        answers = await holder.wake_up_and_write()
        row = (await http.get(f"/v1/data/{LOCK}")).json()
        promised(row["note"] == note, f"round {number}: the successor's update is lost: {answers}")
        refused = all(answers[verb] for verb in ("write", "claim", "mint", "renew"))
        promised(refused, f"round {number}: what the paused holder asked for was done: {answers}")
        assert answers == {"write": "FP001", "claim": "FP001", "mint": "FP012", "renew": "FP012", "release": ""}, number
        unfenced = await observer.fetchval("SELECT note FROM public.unfenced WHERE order_id = 'order-123'")
        lost_updates += note not in unfenced
    assert lost_updates == ROUNDS, "the control: the same schedule without a fence"
