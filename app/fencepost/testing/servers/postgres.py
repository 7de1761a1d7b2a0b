"""PostgreSQL servers of the harness, and their databases. A primary and its standby, both real, and a link that leads
to either of them, are what a failover is made of.

async with replicated(bin_dir) as pair:
    await pair.caught_up()
    await pair.cut()                  # from here on the standby gets nothing
    ...                               # acknowledged by the primary, unknown to the standby
    pair.kill_primary()
    await pair.promote()
    pair.lead_to(pair.standby.url)
"""

import base64
import hashlib
import hmac
import itertools
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import psycopg

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import Account, Binaries, reachable_binaries
from fencepost.testing.faults.network import Link
from fencepost.testing.servers.processes import (
    PATIENCE,
    eventually,
    free_port,
    kill_tree,
    new_directory,
    remove_directory,
)
from fencepost.testing.servers.server import ServerError, in_lasting_thread

# Databases on one PostgreSQL: copied from a migrated template, which costs much less than migrating a new one.
#
# CREATE DATABASE copies 300 files, so copies are cheapest where the server keeps its data in memory.

ADOPT = "UPDATE fencepost.generations g SET database_oid = h.database_oid FROM fencepost.location() AS h"
"""Take a copy for an original. Gateways refuse copies (R19) until their generation is raised."""


def quick_logins(url: str) -> None:
    """Let the superuser's password be hashed once at each login, not 4096 times: half of what a connection costs."""
    password, salt = urlsplit(url).password or "", b"sixteen bytes of"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    of_server = hmac.digest(salted, b"Server Key", "sha256")
    salt_64, stored_64, of_server_64 = (base64.b64encode(each).decode() for each in (salt, stored, of_server))
    with psycopg.connect(url, autocommit=True) as connection:
        hashed = f"SCRAM-SHA-256$1:{salt_64}${stored_64}:{of_server_64}"
        connection.execute(f"ALTER ROLE CURRENT_USER PASSWORD '{hashed}'".encode())


def in_database(url: str, name: str) -> str:
    """Return the URL of another database on the same server."""
    return f"{url.rpartition('/')[0]}/{name}"


async def run_on(url: str, statement: str) -> None:
    """Run one statement on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


class Databases:
    """Makes databases on one server, and drops them, over one connection that stays open.

    It blocks the event loop for the few milliseconds: no test runs meanwhile.
    """

    def __init__(self, url: str, template: str) -> None:
        self._url, self._template = url, template
        self._numbers = itertools.count(1)
        self._connection = psycopg.connect(url, autocommit=True)

    def make(self) -> str:
        """Make a copy of the template; returns its URL."""
        name = f"test_{next(self._numbers)}"
        self._connection.execute(f"CREATE DATABASE {name} TEMPLATE {self._template} STRATEGY FILE_COPY".encode())
        url = in_database(self._url, name)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(ADOPT.encode())
        return url

    def drop(self, url: str) -> None:
        self._connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)".encode())

    def close(self) -> None:
        """Close the connection. What was made and not dropped stays."""
        self._connection.close()


async def clone(server: str, name: str, template: str) -> None:
    """Make the database `name` on a server, with all that the migrated database `template` has."""
    await run_on(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    await run_on(in_database(server, name), ADOPT)


# The embedded PostgreSQL as a server that faults can be brought upon: paused, killed, and started again on its
# port.

QUICK: Final = {
    "dynamic_shared_memory_type": "mmap",  # in the data directory: what a killed server leaves is removed with it
    "jit": "off",
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "shared_buffers": "16MB",
}
"""Settings for a server whose data is small and gone after the test. It is as durable as by default."""


class Postgres(PostgresServer):
    """PostgreSQL from `bin_dir` on `data_dir`. Its URL stays the same when it is killed and started again.

    It can be started in any thread, and ends with this process. Errors of its start are EmbeddedServerError.
    """

    def __init__(self, *, bin_dir: Path, data_dir: Path, options: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(bin_dir=bin_dir, data_dir=data_dir, port=free_port(), options={**QUICK, **options})

    @property
    def pid(self) -> int:
        """The pid of the postmaster. ServerError when it does not run."""
        if self._child is None:
            raise ServerError("PostgreSQL does not run")
        return self._child.pid

    def start(self) -> None:
        """Start it, and return once it takes connections. EmbeddedServerError when it does not."""
        in_lasting_thread(super().start)

    def _require_lasting_thread(self) -> None:
        """Take any: `start` has chosen one."""

    def crash(self) -> None:
        """End it as a power failure does, with all its backends."""
        if self._child is not None:
            kill_tree(self._child.pid)
            self._child.wait()
        self.stop()

    def wait(self) -> None:
        """Return at once: `start` has waited until it takes connections."""


Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class Standby:
    """A hot standby, made by pg_basebackup from a running primary; after promotion a server like any other."""

    def __init__(self, binaries: Binaries, account: Account, directory: Path, port: int) -> None:
        self._binaries, self._account, self._directory, self._port = binaries, account, directory, port
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def make(self, primary: str) -> None:
        self._run("pg_basebackup", "-d", primary, "-D", self._directory, "-R", "-X", "stream", "-c", "fast", "-N")
        self.url = primary.replace(f":{urlsplit(primary).port}/", f":{self._port}/")
        with (self._directory.parent / "standby.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - a program of ours, no shell
                [
                    *(self._binaries.bin_dir / "postgres", "-D", self._directory),
                    *("-c", f"port={self._port}", "-c", "listen_addresses=127.0.0.1"),
                    *("-c", "unix_socket_directories=", "-c", "wal_retrieve_retry_interval=100ms"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._binaries.environment,
                **self._account.popen_arguments(signal.SIGQUIT),
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(PATIENCE)

    def _run(self, program: str, *arguments: str | Path) -> None:
        subprocess.run(  # noqa: S603 - a program of ours, no shell
            [self._binaries.bin_dir / program, *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            env=self._binaries.environment,
            **self._account.popen_arguments(signal.SIGKILL),
        )


class Pair:
    """A primary, its standby, and a link that leads to the primary at first, as a virtual IP does."""

    def __init__(self, primary: PostgresServer, pgdata: Path, make: "MakeStandby", link: Link) -> None:
        self.primary, self.standby, self.link = primary, make(), link
        self._pgdata = pgdata
        self._make = make
        self._primary_url = primary.url
        self._conninfo = ""

    @property
    def url(self) -> str:
        """The URL by way of the link: of the server that it leads to."""
        return self.link.url

    def lead_to(self, url: str, *, hang_up: bool = True) -> None:
        """Lead new connections to the server of this URL, and hang up those that are open, by default."""
        parts = urlsplit(url)
        self.link.lead_to(parts.hostname or "127.0.0.1", parts.port or 5432, hang_up=hang_up)

    async def another(self) -> Standby:
        made = self._make()
        await eventually(lambda: _answers(made.url), what="the standby's first answer")
        return made

    async def caught_up(self, standby: Standby | None = None) -> None:
        """Return once the standby has replayed everything that the primary has written."""
        async with _connected(self._primary_url) as primary, _connected((standby or self.standby).url) as follower:
            position = await primary.fetchval("SELECT pg_current_wal_lsn()::text")

            async def replayed() -> bool:
                return bool(await follower.fetchval("SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", position))

            await eventually(replayed, what="the standby caught up")

    async def synchronous(self) -> None:
        """Let the primary wait for the standby at each commit from now on."""
        async with _connected(self._primary_url) as primary:
            await make_synchronous(primary)

    async def cut(self) -> None:
        """Cut the standby off: it stays as it is."""
        async with _connected(self.standby.url) as standby:
            self._conninfo = await standby.fetchval("SHOW primary_conninfo")
            await standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
            await standby.execute("SELECT pg_reload_conf()")

            async def alone() -> bool:
                return not await standby.fetchval("SELECT count(*) FROM pg_stat_wal_receiver")

            await eventually(alone, what="the standby cut off")

    async def mend(self) -> None:
        async with _connected(self.standby.url) as standby:
            quoted = await standby.fetchval("SELECT quote_literal($1::text)", self._conninfo)
            await standby.execute(f"ALTER SYSTEM SET primary_conninfo = {quoted}")
            await standby.execute("SELECT pg_reload_conf()")

    def kill_primary(self) -> None:
        os.kill(int((self._pgdata / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        self.primary.stop()

    async def promote(self, standby: Standby | None = None) -> None:
        """Let the standby be a primary. TimeoutError when it takes longer than PATIENCE."""
        async with _connected((standby or self.standby).url) as promoted:
            if not await promoted.fetchval("SELECT pg_promote(true, $1)", int(PATIENCE)):
                raise TimeoutError(f"the standby was not promoted within {PATIENCE:g} s")

    def primary_again(self) -> str:
        self.primary.start()
        return self.primary.url


async def make_synchronous(primary: Connection) -> None:
    """Let a primary wait for a standby at each commit from now on, and return once one is attached."""
    await primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
    await primary.execute("SELECT pg_reload_conf()")

    async def attached() -> bool:
        return bool(await primary.fetchval("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"))

    await eventually(attached, what="a synchronous standby")


MakeStandby = Callable[[], Standby]


@asynccontextmanager
async def replicated(bin_dir: Path) -> AsyncIterator[Pair]:
    """Run a primary and a standby until the block ends."""
    directory = new_directory()
    standbys: list[Standby] = []
    # Nothing here outlives the test, so nothing is waited for but commits.
    primary = PostgresServer(bin_dir=bin_dir, data_dir=directory / "primary", options={"shared_buffers": "16MB"})
    try:
        primary.start()
        account = Account.choose(directory / "primary")

        def make() -> Standby:
            home = directory / f"standby{len(standbys)}"
            home.mkdir(mode=0o700)
            if account.drop:
                os.chown(home, account.uid, account.gid)
            standby = Standby(reachable_binaries(bin_dir, account), account, home / "pgdata", free_port())
            standbys.append(standby)
            standby.make(primary.url)
            return standby

        with Link.to(primary.url) as link:
            pair = Pair(primary, directory / "primary" / "pgdata", make, link)
            await eventually(lambda: _answers(pair.standby.url), what="the standby's first answer")
            yield pair
    finally:
        for standby in standbys:
            standby.stop()
        primary.stop()
        remove_directory(directory)


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def _answers(url: str) -> bool:
    try:
        async with _connected(url) as connection:
            return bool(await connection.fetchval("SELECT pg_is_in_recovery()"))
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return False
