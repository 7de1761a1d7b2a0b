"""One PostgreSQL; each log is the one of a database of its own, with as many partitions as the test wants."""

import asyncio
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg
from tests.support.postgres import first_server, server_bin_dir
from tests.support.processes import all_gone

from fencepost.embedded.server import PostgresServer
from fencepost.queues.log import Consumer, DeadLetters, LogState, LogUnavailableError, Message, Position, Received
from fencepost.queues.postgres.consumer import TTL
from fencepost.queues.postgres.log import PostgresLog
from fencepost.storage.connections.connection import Limits
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import StorageError
from fencepost.storage.schema.migrate import upgrade
from fencepost.testing.servers.databases import clone, in_database, quick_logins, run_on
from fencepost.testing.servers.directories import server_directory
from fencepost.testing.servers.ports import free_port
from fencepost.testing.servers.waiting import eventually

TEMPLATE = "queue_template"
MADE_AGAIN = """
CREATE TABLE fencepost.queued_again (LIKE fencepost.queued INCLUDING ALL);
DROP TABLE fencepost.queued;
ALTER TABLE fencepost.queued_again RENAME TO queued;
ALTER SEQUENCE fencepost.queue_0 RESTART;
ALTER SEQUENCE fencepost.queue_1 RESTART;
ALTER SEQUENCE fencepost.queue_2 RESTART"""


class LateLog:
    """The log of a database that need not be there when it is opened. A gateway does not start without its database."""

    def __init__(self, dsn: str, partitions: int) -> None:
        self._dsn, self._partitions = dsn, partitions
        self._database: Database | None = None
        self._log: PostgresLog | None = None

    async def open(self) -> None:
        with suppress(LogUnavailableError):
            await self.inner()

    async def inner(self) -> PostgresLog:
        if self._log is None:
            try:
                self._database = await Database.open(self._dsn, Limits(pool_size=4, batch_pool_size=1))
            except StorageError as error:
                raise LogUnavailableError(str(error)) from error
            self._log = PostgresLog(self._database, self._dsn, self._partitions)
        return self._log

    async def close(self) -> None:
        if self._log is not None and self._database is not None:
            await self._log.close()
            await self._database.close()

    @property
    def dead(self) -> DeadLetters:
        assert self._log is not None
        return self._log.dead

    async def append(self, message: Message) -> Position:
        return await (await self.inner()).append(message)

    async def state(self) -> LogState:
        return await (await self.inner()).state()

    async def decided(self) -> Sequence[int]:
        return await (await self.inner()).decided()

    async def waiting(self, position: Position) -> Sequence[Received] | None:
        return await (await self.inner()).waiting(position)

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> Consumer:
        assert self._log is not None
        return self._log.consumer(member, lost)

    async def advice(self) -> list[str]:
        return await (await self.inner()).advice()


def log_of(url: str) -> LateLog:
    dsn, _, partitions = url.partition("?partitions=")
    return LateLog(dsn, int(partitions))


class PostgresQueueBench:
    """See QueueBench."""

    name = "postgres"
    handed_over_within_s = TTL + 10

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self.server, self._directory = server, directory
        self._numbers = itertools.count(1)

    async def new_log(self, partitions: int) -> str:
        name = f"queue_{next(self._numbers)}"
        await clone(self.server.url, name, TEMPLATE)
        dsn = in_database(self.server.url, name)
        await run_on(dsn, f"DELETE FROM fencepost.queue_owners WHERE partition >= {partitions}")
        return f"{dsn}?partitions={partitions}"

    async def make_again(self, url: str) -> None:
        await run_on(url.partition("?")[0], MADE_AGAIN)

    async def crash(self) -> None:
        pids = self._pids()
        os.kill(pids[0], signal.SIGKILL)
        self.server.stop()
        await all_gone(pids)

    async def restart(self) -> None:
        self.server.start()

    async def pause(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    async def resume(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

        async def answers() -> bool:
            try:
                await asyncio.wait_for(run_on(self.server.url, "SELECT 1"), 2)
            except (OSError, TimeoutError, asyncpg.PostgresError):
                return False
            return True

        await eventually(answers, what="an answer")

    @property
    def _pid(self) -> int:
        return int((self._directory / "pgdata" / "postmaster.pid").read_text().split()[0])

    def _pids(self) -> list[int]:
        """Find the server and its backends."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return [self._pid, *map(int, children)]


@contextmanager
def running(_directory: Path) -> Iterator[PostgresQueueBench]:
    with (
        server_directory() as directory,
        PostgresServer(bin_dir=server_bin_dir(first_server()), data_dir=directory / "data", port=free_port()) as server,
    ):
        quick_logins(server.url)

        async def make() -> None:
            await run_on(server.url, f"CREATE DATABASE {TEMPLATE}")
            await upgrade(in_database(server.url, TEMPLATE))

        asyncio.run(make())
        yield PostgresQueueBench(server, directory / "data")
