"""Each test of test_queues.py runs once for every kind of log, on that one's real server."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.queues.benches import BENCHES, KafkaBench, QueueBench, brokers, log_of

from fencepost.server.queues.log import Consumer, Log, Message, Position, Received
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.processes import PATIENCE, eventually

FAST = frozenset({"postgres", "redis"})
"""Those that start in a moment; what others show is left to `make test-all`."""
PARTITIONS = 3
KEYS = [f"orders/order-{number}" for number in range(12)]
"""More than enough for all partitions."""
ROOT = Path(__file__).parents[3]


@pytest.fixture(
    scope="package",
    params=[
        name if name in FAST else pytest.param(name, marks=pytest.mark.long(f"tests with {name}")) for name in BENCHES
    ],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueueBench]:
    """Run one log's server for this directory; skips where it is not installed."""
    if request.param == "kafka":
        yield KafkaBench(request.getfixturevalue("one_broker"))
        return
    with BENCHES[request.param](tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture(scope="package")
def one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Run a Kafka of one broker for this directory; a test leaves it running."""
    with brokers(tmp_path_factory.mktemp("one"), 1) as running:
        yield running


@pytest.fixture(scope="package")
def three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Run a Kafka of three brokers for this directory; a test leaves all of them running."""
    with brokers(tmp_path_factory.mktemp("three"), 3) as running:
        yield running


@pytest.fixture
async def url(bench: QueueBench) -> str:
    """Give the URL of an empty log."""
    return await bench.new_log(PARTITIONS)


Another = Callable[[], Awaitable[Log]]


@pytest.fixture
def another(bench: QueueBench, url: str, stack: AsyncExitStack) -> Another:
    """Give a function that opens the log once more, as another process would."""

    async def one_more() -> Log:
        log = log_of(bench.name, url)
        await log.open()
        stack.push_async_callback(log.close)
        return log

    return one_more


@pytest.fixture
async def log(another: Another) -> Log:
    return await another()


@dataclass
class Member:
    """One who takes, and what it took and lost."""

    consumer: Consumer
    lost: list[frozenset[int]]
    taken: list[Received] = field(default_factory=list)
    _taking: asyncio.Task[None] | None = None

    async def take(self, most: int = 100, wait_s: float = 0.2) -> Sequence[Received]:
        got = await self.consumer.take(most, wait_s)
        assert len(got) <= most
        self.taken += got
        return got

    async def take_until(self, count: int) -> list[Received]:
        """Take so many messages altogether."""

        async def enough() -> bool:
            await self.take(count - len(self.taken))
            return len(self.taken) >= count

        if len(self.taken) < count:
            await eventually(enough, within=2 * PATIENCE, what=f"{count} messages")
        return self.taken

    async def nothing_comes(self) -> None:
        """Take for a second, and get nothing."""
        before = len(self.taken)
        for _ in range(5):
            await self.take()
        assert positions(self.taken[before:]) == []

    async def has(self, partitions: int) -> None:
        """Take until this member has so many partitions."""

        async def enough() -> bool:
            await self.take(wait_s=0.05)
            return len(self.consumer.partitions) == partitions

        await eventually(enough, within=2 * PATIENCE, what=f"{partitions} partitions")

    def keep_taking(self) -> None:
        """Take in the background, until `stop`."""

        async def forever() -> None:
            while True:
                await self.take()

        self._taking = asyncio.ensure_future(forever())

    async def stop(self) -> None:
        """End that, once its last `take` has returned: a call must not be torn apart."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.gather(self._taking, return_exceptions=True)
            self._taking = None

    async def close(self) -> None:
        await self.stop()
        await self.consumer.close()


Join = Callable[..., Member]


@pytest.fixture
def join(log: Log, stack: AsyncExitStack) -> Join:
    """Give a function that makes a member of those who take; closed at the end."""

    def member(name: str, of: Log = log) -> Member:
        lost: list[frozenset[int]] = []
        made = Member(of.consumer(name, lost.append), lost)
        made.consumer.begin(1)
        stack.push_async_callback(made.close)
        return made

    return member


class MemberProcess:
    """A member in a process of its own (member.py), which takes and decides nothing."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def says(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), 2 * PATIENCE))


@pytest.fixture
async def member_process(bench: QueueBench, url: str) -> AsyncIterator[Callable[[str], Awaitable[MemberProcess]]]:
    """Give a function that starts a member in a process of its own."""
    started: list[asyncio.subprocess.Process] = []

    async def start(name: str) -> MemberProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.conformance.queues.member", bench.name, url, name),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        started.append(process)
        return MemberProcess(process)

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


def message(key: str, value: str = "{}") -> Message:
    return Message(key.encode(), value.encode(), (("method", b"PATCH"),))


async def filled(log: Log, each: int = 1) -> list[Position]:
    """Append `each` messages of each key, one after the other of one key."""

    async def of_key(key: str) -> list[Position]:
        return [await log.append(message(key, f'{{"n": {n}}}')) for n in range(each)]

    found = await asyncio.gather(*map(of_key, KEYS))
    return [position for of_one in found for position in of_one]


def positions(received: Sequence[Received]) -> list[Position]:
    return [each.position for each in received]
