"""One combination of layers, from an empty database to the verdict of the oracle.

Workers are paused (SIGSTOP) for longer than their locks last, at times that the seed chooses. Where there is a queue, a
consumer is paused when it has messages in hand: it waits for a row that this process has locked. It goes on only when
another has taken its partitions over, and applied all that was left.
"""

import asyncio
import functools
import random
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import asyncpg
from redis.asyncio import Redis

from benchmarks.layers.layers import QUEUE, Layers, Setup
from benchmarks.layers.oracle import SCHEMA, judged
from benchmarks.layers.redis_lock import held_by
from benchmarks.layers.source import deliver, deliver_all
from fencepost.testing.servers.gateway import COMMAND, GatewayServer, gateway_environment
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.postgres import clone, in_database
from fencepost.testing.servers.processes import eventually
from fencepost.testing.servers.server import Server

ORDERS: Final = tuple(f"order-{number}" for number in range(12))
VERSIONS: Final = 20
WORKERS: Final = 3
CONSUMERS: Final = ("consumer-a", "consumer-b")
PAUSES: Final = 3
PAUSE_S: Final = 0.8
"""More than a lock's TTL, and than the source's patience."""
IN_HAND: Final = 8
"""Messages of one order that wait when its consumer is paused, at least."""

_LOCK: Final = "SELECT 1 FROM orders WHERE order_id = $1 FOR UPDATE"
_WAITERS: Final = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"
"""How many wait. (Within a transaction pg_stat_activity stands still.)"""
_MEMBER: Final = """
SELECT o.member FROM fencepost.queue_owners o JOIN fencepost.queued q USING (partition) WHERE q.key = $1 LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Services:
    """What all combinations share. `launcher` starts commands of `fencepost`; `template`: a migrated database on the
    server `postgres`.
    """

    launcher: Launcher
    postgres: str
    template: str
    redis: str
    directory: Path


async def measure(services: Services, layers: Layers, seed: int) -> Mapping[str, Any]:
    """Run one combination; returns a row of the table."""
    name = "layers_" + layers.name.replace("-", "_")
    await clone(services.postgres, name, services.template)
    redis: Redis = Redis.from_url(services.redis)
    await redis.flushall()
    directory = services.directory / layers.name
    directory.mkdir()
    setup = Setup("", layers, services.redis, in_database(services.postgres, name), "", "", seed)
    began = time.monotonic()
    try:
        async with _connection(setup.database) as connection:
            await _prepare(services.launcher, connection, setup)
            async with _running(services.launcher, setup, directory) as running:
                await running.go(connection, redis)
            effects = await judged(connection, len(ORDERS), VERSIONS)
        sent = int(await redis.get("sent") or 0)
    finally:
        await redis.aclose()
        shutil.rmtree(directory / "sockets", ignore_errors=True)
    return {
        "lock": layers.lock,
        "queue": layers.queue,
        "fence": layers.fence,
        "events": len(ORDERS) * VERSIONS,
        "sent": sent,
        "effects": effects.effects,
        "duplicates": effects.duplicates,
        "stale": effects.stale,
        "without_effect": len(ORDERS) * VERSIONS - effects.effects + effects.duplicates,
        "wrong_at_the_end": effects.wrong_at_the_end,
        "seconds": round(time.monotonic() - began, 1),
    }


async def _prepare(launcher: Launcher, connection: asyncpg.Connection, setup: Setup) -> None:
    await connection.execute(SCHEMA)
    await connection.execute("INSERT INTO orders (order_id) SELECT unnest($1::text[])", list(ORDERS))
    if setup.layers.fence:
        queue = ("--queue", QUEUE) if setup.layers.queue else ()
        await asyncio.to_thread(launcher.run, ["protect", "orders", *queue], gateway_environment(setup.database))


class Running:
    """The processes of one combination."""

    def __init__(self, setup: Setup, workers: Sequence[tuple[str, Server]], consumers: Mapping[str, Server]) -> None:
        self._setup = setup
        self._workers = workers
        self._consumers = consumers
        self._chance = random.Random(f"{setup.seed} faults")  # noqa: S311 - no secret

    async def go(self, connection: asyncpg.Connection, redis: Redis) -> None:
        """Deliver all events, pause and resume, and end the processes in order: what they have in hand is done."""
        if self._consumers:
            await eventually(lambda: self._shared(connection), within=60, what="a share for each consumer")
        sockets = [path for path, _ in self._workers]
        delivering = asyncio.create_task(deliver_all(ORDERS, VERSIONS, sockets, self._setup.seed))
        pausing = asyncio.create_task(self._pause_workers(redis))
        paused = await self._pause_a_consumer() if self._consumers else None
        await asyncio.gather(delivering, pausing)
        for _, worker in self._workers:
            await asyncio.to_thread(worker.stop)
        if paused is not None:
            await eventually(lambda: self._is_empty(connection), within=60, what="an empty queue")
            paused.resume()
        for consumer in self._consumers.values():
            await asyncio.to_thread(consumer.stop)

    async def _pause_workers(self, redis: Redis) -> None:
        """Pause one after the other; one that has locks, while it has them. The source delivers again what it had."""
        for _ in range(PAUSES):
            await asyncio.sleep(self._chance.uniform(0.05, 0.2))
            number = self._chance.randrange(WORKERS)
            path, worker = self._workers[number]
            name = Path(path).name
            if self._setup.layers.lock:
                with suppress(TimeoutError):  # there may be nothing left to do
                    await eventually(functools.partial(held_by, redis, name), within=2, what="a worker with a lock")
            worker.pause()
            other, _ = self._workers[(number + 1) % WORKERS]
            again = [deliver(event, other) for event in await held_by(redis, name)]
            await asyncio.gather(asyncio.sleep(PAUSE_S), *again)
            worker.resume()

    async def _pause_a_consumer(self) -> Server:
        """Pause the consumer of one order while it waits for the row, with more messages of that order in hand."""
        order = self._chance.choice(ORDERS)
        key = f"orders/{order}".encode()
        database = self._setup.database
        # Behind the first lock messages gather. The consumer takes them when it is gone, and meets the second.
        async with _connection(database) as first, _connection(database) as second, second.transaction():
            await self._let_messages_gather(first, second, order, key)
            await eventually(lambda: self._waiters(second, 1), what="a consumer with messages in hand")
            consumer = self._consumers[await second.fetchval(_MEMBER, key)]
            consumer.pause()
        return consumer

    async def _let_messages_gather(
        self, first: asyncpg.Connection, second: asyncpg.Connection, order: str, key: bytes
    ) -> None:
        """Lock the row on one connection and then on the other, with messages of the order waiting in between."""
        async with first.transaction():
            await first.execute(_LOCK, order)
            await eventually(lambda: self._waits_for(first, key), what="messages behind a row")
            locking = asyncio.create_task(second.execute(_LOCK, order))
            await eventually(lambda: self._waiters(first, 2), what="the second lock's turn")
        await locking

    @staticmethod
    async def _shared(connection: asyncpg.Connection) -> bool:
        members = "SELECT count(DISTINCT member) FROM fencepost.queue_owners"
        return bool(await connection.fetchval(members) == len(CONSUMERS))

    @staticmethod
    async def _is_empty(connection: asyncpg.Connection) -> bool:
        return not await connection.fetchval("SELECT EXISTS (SELECT FROM fencepost.queued)")

    @staticmethod
    async def _waiters(connection: asyncpg.Connection, count: int) -> bool:
        """Whether so many transactions wait for locks."""
        return bool(await connection.fetchval(_WAITERS) >= count)

    async def _waits_for(self, connection: asyncpg.Connection, key: bytes) -> bool:
        """Whether a consumer waits for the row, and enough messages of the order wait for the consumer."""
        waiting = await connection.fetchval("SELECT count(*) FROM fencepost.queued WHERE key = $1", key)
        return bool(waiting >= IN_HAND and await self._waiters(connection, 1))


@asynccontextmanager
async def _connection(database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _running(launcher: Launcher, setup: Setup, directory: Path) -> AsyncIterator[Running]:
    """Run the processes of one combination; they are killed at the end, if they still run."""
    (directory / "sockets").mkdir()
    with ExitStack() as stack:
        if setup.layers.fence:
            settings = {"FENCEPOST_CONSUME_HERE": "off"}
            gateway = stack.enter_context(
                GatewayServer(setup.database, directory / "gateway.log", settings=settings, launcher=launcher)
            )
            setup = replace(setup, gateway=gateway.url)
        workers = [
            (str(path), _worker(replace(setup, name=path.name, socket=str(path)))) for path in _sockets(directory)
        ]
        names = CONSUMERS if setup.layers.queue else ()
        consumers = {name: _consumer(replace(setup, name=name), directory) for name in names}
        started = [*(worker for _, worker in workers), *consumers.values()]
        for server in started:
            stack.push(server)
            server.start()
        for server in started:
            await server.serves()
        yield Running(setup, workers, consumers)


def _sockets(directory: Path) -> list[Path]:
    return [directory / "sockets" / f"worker-{number}" for number in range(WORKERS)]


def _worker(setup: Setup) -> Server:
    path = Path(setup.socket)
    log = path.parents[1] / f"{setup.name}.log"
    command = [sys.executable, "-m", "benchmarks.layers.worker", setup.text()]
    return Server(command, log, lambda: _listens(path))


def _consumer(setup: Setup, directory: Path) -> Server:
    fenced = [*COMMAND, "consume", QUEUE, "--member", setup.name]
    plain = [sys.executable, "-m", "benchmarks.layers.consumer", setup.text()]
    command = fenced if setup.layers.fence else plain
    # PostgreSQL ends the transaction in which one was paused after this time; until then it has the row.
    environment = gateway_environment(setup.database, FENCEPOST_STATEMENT_TIMEOUT="5")
    # When it has its share it is ready: `Running.go` waits for that.
    return Server(command, directory / f"{setup.name}.log", lambda: True, environment)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
