"""A PostgreSQL of the suite's own, for `postgres-advisory`; the source's role is an ordinary one."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncpg
from tests.support.interleave import Connection
from tests.support.postgres import server_bin_dir
from tests.support.servers import all_gone

from fencepost.server.locks.advisory import AdvisorySource, from_url
from fencepost.server.locks.source import Grant, Holder, Source, SourceContext
from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.processes import descendants, eventually, free_port, new_directory, remove_directory

ROLE = "locker"
PASSWORD = "p%40ss"

KEY = """
database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND locktype = 'advisory' AND objsubid = 1
AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1, 0)"""


class AdvisoryBench:
    name = "advisory"

    def __init__(self, server: PostgresServer, pgdata: Path, port: int) -> None:
        self.server, self._pgdata, self.port = server, pgdata, port
        self._stopped: list[int] = []
        self.url = f"postgres-advisory://{ROLE}:{PASSWORD}@127.0.0.1:{port}/locks"
        self.dsn = self.url.replace("postgres-advisory", "postgresql")

    async def prepare(self) -> None:
        admin = await asyncpg.connect(self.server.url)
        await admin.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'p@ss'")
        await admin.execute(f"CREATE DATABASE locks OWNER {ROLE}")
        await admin.close()

    async def connect(self) -> Connection:
        """Connect as another program of the same role; the caller closes it."""
        return await asyncpg.connect(self.dsn)

    async def crash(self) -> None:
        pids = self._pids()
        for pid in pids:
            with suppress(ProcessLookupError):  # some end by themselves when the postmaster does
                os.kill(pid, signal.SIGKILL)
        self.server.stop()
        await all_gone(pids)

    async def restart(self) -> None:
        self.server.start()

    async def pause(self) -> None:
        self._stopped = self._pids()
        for pid in self._stopped:
            os.kill(pid, signal.SIGSTOP)

    async def resume(self) -> None:
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
        await eventually(self._answers, what="PostgreSQL's answer")

    async def spoil(self, lock: str) -> None:
        """Leave the lock to a prepared transaction: no session holds it, and no waiting helps."""
        other = await self.connect()
        await other.execute("BEGIN")
        await other.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock)
        await other.execute(f"PREPARE TRANSACTION '{lock}'")
        await other.close()

    async def waiting(self, lock: str) -> int:
        return await self.asked(f"SELECT count(*) FROM pg_locks WHERE NOT granted AND {KEY}", lock)

    async def asked(self, question: str, *arguments: object) -> int:
        other = await self.connect()
        try:
            return int(await other.fetchval(question, *arguments))
        finally:
            await other.close()

    async def _answers(self) -> bool:
        return await self.asked("SELECT 1") == 1

    def _pids(self) -> list[int]:
        postmaster = int((self._pgdata / "postmaster.pid").read_text().split()[0])
        return [postmaster, *descendants(postmaster)]


def sourced(url: str, options: str = "", dsn: str = "") -> AdvisorySource:
    """Make a source with options of its own; the caller closes it."""
    return from_url(url + options, SourceContext("adv", dsn))


async def taking(source: Source, lock: str, *, wait_s: float = 0) -> Grant | Holder:
    return await source.acquire(lock, owner="somebody", ttl_ms=60_000, tokens=1, wait_s=wait_s)


def pid_of(grant: Grant) -> int:
    return int(grant.handle.partition(":")[0])


@contextmanager
def running(directory: Path) -> Iterator[AdvisoryBench]:  # noqa: ARG001 - PostgreSQL's user may not enter it
    """Run PostgreSQL until the block ends."""
    home, port = new_directory(), free_port()
    # Nothing is written to it but a prepared transaction.
    server = PostgresServer(
        bin_dir=server_bin_dir(os.environ.get("FENCEPOST_ADVISORY_POSTGRES", "embedded-18")),
        data_dir=home / "data",
        port=port,
        options={"shared_buffers": "16MB", "max_prepared_transactions": "10"},
    )
    try:
        with server:
            bench = AdvisoryBench(server, home / "data" / "pgdata", port)
            asyncio.run(bench.prepare())
            yield bench
    finally:
        remove_directory(home)
