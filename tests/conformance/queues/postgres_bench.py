"""One PostgreSQL; each log is the one of a database of its own, with as many partitions as the test wants."""

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
from tests.support.postgres import first_server, server_bin_dir
from tests.support.servers import all_gone

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import StorageError
from fencepost.server.queues.log import LogUnavailableError
from fencepost.server.queues.postgres import TTL, PostgresLog
from fencepost.testing.servers.postgres import clone, in_database, quick_logins, run_on
from fencepost.testing.servers.processes import eventually, free_port, server_directory

TEMPLATE = "queue_template"
MADE_AGAIN = """
CREATE TABLE fencepost.queued_again (LIKE fencepost.queued INCLUDING ALL);
DROP TABLE fencepost.queued;
ALTER TABLE fencepost.queued_again RENAME TO queued;
ALTER SEQUENCE fencepost.queue_0 RESTART;
ALTER SEQUENCE fencepost.queue_1 RESTART;
ALTER SEQUENCE fencepost.queue_2 RESTART"""


class OpenedLog(PostgresLog):
    """The log of a database, with the connections to it."""

    def __init__(self, dsn: str, partitions: int) -> None:
        self._dsn, self._partitions_asked = dsn, partitions

    async def open(self) -> None:
        try:
            self._opened = await Database.open(self._dsn, Limits(pool_size=4, batch_pool_size=1))
        except StorageError as error:
            raise LogUnavailableError(str(error)) from error
        super().__init__(self._opened, self._dsn, self._partitions_asked)

    async def close(self) -> None:
        await super().close()
        await self._opened.close()


def log_of(url: str) -> OpenedLog:
    dsn, _, partitions = url.partition("?partitions=")
    return OpenedLog(dsn, int(partitions))


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
