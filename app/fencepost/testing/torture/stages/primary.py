"""The PostgreSQL of a run: restarted, crashed, and replaced by its standby.

The standby is synchronous, as docs/failover.md asks for: without that a failover loses acknowledged writes by itself,
and would show nothing about fences.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import asyncpg

from fencepost.server.ops.embedded.binaries import reachable_binaries
from fencepost.server.ops.embedded.process import Account
from fencepost.server.ops.embedded.server import PostgresServer
from fencepost.server.postgres.upkeep.generations import raise_generation
from fencepost.testing.servers.ports import free_port
from fencepost.testing.servers.standby import Standby
from fencepost.testing.servers.waiting import eventually
from fencepost.testing.torture.assignment import BUILTIN

T = TypeVar("T")
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_OPTIONS: Final = {
    "shared_buffers": "32MB",
    "jit": "off",
    # In the data directory, and so gone with it: a primary that was killed leaves what it has in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    "max_wal_size": "256MB",
    "min_wal_size": "32MB",
}
_SYNCHRONOUS: Final = "ALTER SYSTEM SET synchronous_standby_names = '*'"
_ATTACHED: Final = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"

_OLDEST: Final = f"SELECT CASE $1 WHEN '{BUILTIN}' THEN fencepost.oldest() ELSE fencepost.oldest($1) END"


class OwnPrimary:
    """A PostgreSQL in `directory`. Its address stays until a failover; `url` always has that of the primary."""

    def __init__(self, bin_dir: Path, directory: Path, *, standby: bool) -> None:
        self._bin_dir, self._directory = bin_dir, directory
        self._wants_standby = standby
        self._homes = 0
        self._home = self._new_home()
        self._server = self._server_in(self._home, free_port())
        self._standby: Standby | None = None
        self._standby_port = 0

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        self._server.start()
        if self._wants_standby:
            self.follow()

    def follow(self) -> None:
        """Make a standby that follows, and let commits wait for it from then on."""
        account = Account.choose(self._directory / self._home.name)
        home, self._standby_port = self._new_home(), free_port()
        home.mkdir(mode=0o700)
        if account.drop:
            os.chown(home, account.uid, account.gid)
        binaries = reachable_binaries(self._bin_dir, account)
        self._standby = Standby(binaries, account, home / "pgdata", self._standby_port)
        self._standby.make(self.url)
        self._next_home = home
        asyncio.run(_on(self.url, _synchronous))

    def restart(self, *, crash: bool) -> None:
        """Restart it: by SIGQUIT, which is a crash, or by a fast shutdown, which rolls back what is open."""
        if crash:
            os.kill(self._postmaster(), signal.SIGQUIT)
        self._server.stop()
        self._server.start()

    def fail_over(self) -> tuple[str, int]:
        """Kill the primary, promote the standby, raise the generation, and make another standby.

        Returns host and port of the new primary.
        """
        standby, home = self._standby, self._next_home
        assert standby is not None  # noqa: S101 - for the type: the kind of fault needs one
        os.kill(self._postmaster(), signal.SIGKILL)
        self._server.stop()
        asyncio.run(_on(standby.url, _promote))
        standby.stop()
        shutil.copy2(self._home / "password", home / "password")
        if (account := Account.choose(home)).drop:
            os.chown(home / "password", account.uid, account.gid)
        shutil.rmtree(self._home)
        self._home, self._server = home, self._server_in(home, self._standby_port)
        self._server.start()
        asyncio.run(_on(self.url, _raise))
        self.follow()
        return "127.0.0.1", urlsplit(self.url).port or 0

    def oldest(self, source: str) -> int:
        """Give the oldest token of a source that is not void: where its generation begins, or 1."""

        async def ask(connection: Connection) -> int:
            return int(await connection.fetchval(_OLDEST, source))

        return asyncio.run(_on(self.url, ask))

    def stop(self) -> None:
        if self._standby is not None:
            self._standby.stop()
        self._server.stop()

    def _new_home(self) -> Path:
        self._homes += 1
        return self._directory / f"postgresql{self._homes}"

    def _server_in(self, home: Path, port: int) -> PostgresServer:
        return PostgresServer(bin_dir=self._bin_dir, data_dir=home, port=port, options=_OPTIONS)

    def _postmaster(self) -> int:
        return int((self._home / "pgdata" / "postmaster.pid").read_text().split()[0])


async def _on(url: str, work: Callable[[Connection], Awaitable[T]]) -> T:
    connection = await asyncpg.connect(url, timeout=10)
    try:
        return await work(connection)
    finally:
        await connection.close()


async def _synchronous(connection: Connection) -> None:
    await connection.execute(_SYNCHRONOUS)
    await connection.execute("SELECT pg_reload_conf()")

    async def attached() -> bool:
        return bool(await connection.fetchval(_ATTACHED))

    await eventually(attached, what="a synchronous standby")


async def _promote(connection: Connection) -> None:
    if not await connection.fetchval("SELECT pg_promote(true, 30)"):
        raise TimeoutError("the standby was not promoted within 30 s")


async def _raise(connection: Connection) -> None:
    await raise_generation(connection, "fencepost torture has promoted the standby")
