"""Processes of `fencepost consume` that are asked to end, and workers of one that are killed: each acknowledged message
has one effect, in the order of its resource. The oracle is a trigger's log in the database. Consumers that are killed
or paused: queues/test_kills.py and queues/test_paused.py.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.consuming import Queue, make_tables, opened, write, wrong_effects
from tests.support.interleave import Connect, Connection
from tests.support.violations import assert_none, promised

from fencepost.cli.main import main
from fencepost.server.queues.registry import DEFAULT
from fencepost.testing.servers.processes import PATIENCE, descendants, eventually

pytestmark = pytest.mark.long("storms")

RESOURCES = 40


class Consumers:
    """Processes of `fencepost consume`, by their members' names."""

    def __init__(self, database: str, directory: Path) -> None:
        self.database = database
        self.directory = directory
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, member: str, *arguments: str) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
        with (self.directory / member).open("a") as errors:
            self.processes[member] = subprocess.Popen(
                [sys.executable, "-m", "fencepost", "consume", DEFAULT, "--member", member, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment | {"FENCEPOST_DATABASE_URL": self.database},
            )
        return self.processes[member]

    async def begun(self, member: str) -> None:
        """Wait until it consumes."""
        output = self.processes[member].stdout
        assert output is not None
        line = await asyncio.wait_for(asyncio.to_thread(output.readline), 2 * PATIENCE)
        assert f"{DEFAULT}" in line, (self.directory / member).read_text()

    def kill(self, member: str) -> None:
        process = self.processes.pop(member)
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def end(self) -> None:
        for member in list(self.processes):
            self.kill(member)


@asynccontextmanager
async def consumers(database: str, directory: Path) -> AsyncIterator[Consumers]:
    running = Consumers(database, directory)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
async def queue(database: str, connect: Connect) -> AsyncIterator[Queue]:
    """Give the queue, with an oracle, and without a consumer."""
    owner = await connect()
    await make_tables(owner, effects=True)
    async with opened(database, owner) as queue:
        yield queue


async def _submit(queue: Queue, numbers: range, expected: dict[str, list[int]], seed: int) -> None:
    messages, chance = [], random.Random(f"{seed} {numbers}")
    for number in numbers:
        resource = f"orders/k{chance.randrange(RESOURCES)}"
        expected[resource].append(number)
        messages.append(write(resource, body={"n": number}))
    await queue.append_at_once(messages)


def _is_a_worker(pid: int) -> bool:
    return "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()


async def _owners(owner: Connection) -> set[str]:
    rows = await owner.fetch("SELECT member FROM fencepost.queue_owners WHERE until > clock_timestamp()")
    return {row["member"] for row in rows if row["member"] is not None}


async def test_sigterm_leaves_nothing_half_done_and_the_partitions_at_once(
    queue: Queue, database: str, tmp_path: Path, seed: int
) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    async with consumers(database, tmp_path) as running:
        process = running.start("a")
        await running.begun("a")
        await _submit(queue, range(1, 1001), expected, seed)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
        assert await _owners(queue.owner) == set()
        undone = await queue.owner.fetchval("SELECT count(*) FROM fencepost.queued")
        effects = await queue.owner.fetchval("SELECT count(*) FROM public.effects")
        promised(undone + effects == 1000, f"{effects} effects, and {undone} of 1000 messages are to be done")
        running.start("b")
        await running.begun("b")
        await queue.empty(60)
    assert_none(await wrong_effects(queue.owner, expected), f"FENCEPOST_STORM_SEED={seed}")


async def test_workers_share_the_partitions_and_one_that_dies_is_started_again(
    queue: Queue, database: str, tmp_path: Path, seed: int
) -> None:
    expected: dict[str, list[int]] = defaultdict(list)
    async with consumers(database, tmp_path) as running:
        parent = running.start("a", "--workers", "2")
        await running.begun("a")

        async def both() -> bool:
            return await _owners(queue.owner) == {"a-1", "a-2"}

        await eventually(both, within=2 * PATIENCE, what="both have partitions")
        await _submit(queue, range(1, 501), expected, seed)
        workers = [pid for pid in descendants(parent.pid) if _is_a_worker(pid)]
        os.kill(workers[0], signal.SIGKILL)
        await _submit(queue, range(501, 1001), expected, seed)
        await queue.empty(60)
        await eventually(both, within=2 * PATIENCE, what="both have partitions again")
        parent.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(parent.wait, 30) == 0
    assert_none(await wrong_effects(queue.owner, expected), f"FENCEPOST_STORM_SEED={seed}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kafka:none",), "kafka:none is not configured here"),
        (("postgres:other",), "'postgres:other' is no queue"),
        ((DEFAULT, "--queues", "nats://h/x"), "nats:// is no queue"),
        ((DEFAULT, "--database-url", "postgresql://me@127.0.0.1:1/db"), "cannot connect to PostgreSQL"),
    ],
)
def test_what_keeps_it_from_starting_is_one_clear_line(arguments: tuple[str, ...], said: str, database: str) -> None:
    ended = CliRunner().invoke(
        main, ["consume", *arguments, "--start-timeout", "0"], env={"FENCEPOST_DATABASE_URL": database}
    )
    assert ended.exit_code == 1
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
