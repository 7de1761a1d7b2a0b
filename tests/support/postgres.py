"""PostgreSQL for the tests: which servers there are, where they keep their data, and how databases are copied.

Copying a migrated database costs much less than migrating a new one, and in memory less again: CREATE DATABASE
copies 300 files. So servers keep their data in /dev/shm where that is large enough. They are as durable as by default.
"""

import base64
import hashlib
import hmac
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from fencepost.embedded.server import EmbeddedServerError, PostgresServer, embedded_bin_dir

SERVERS = ("embedded-18", "debian-15")
"""The servers that tests run on. The first one that is installed runs everything."""

ADOPT = "UPDATE fencepost.generations g SET database_oid = h.database_oid FROM fencepost.location() AS h"
"""Take a clone for an original. Gateways refuse clones (R19) until their generation is raised."""

_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED = 2 * 1024**3  # bytes; a container's default is 64 MiB
_OPTIONS = {"max_prepared_transactions": "5", "jit": "off", "max_wal_size": "64MB", "min_wal_size": "32MB"}


def debian_bin_dir(version: int = 15) -> Path | None:
    """Return the folder of Debian's PostgreSQL programs, or None when the package is not installed."""
    folder = Path(f"/usr/lib/postgresql/{version}/bin")
    return folder if (folder / "initdb").is_file() else None


def server_bin_dir(kind: str) -> Path:
    """Return the folder of the programs of one of SERVERS; skips where it is not installed."""
    if kind == "debian-15":
        return debian_bin_dir(15) or pytest.skip("no PostgreSQL 15: apt-get install postgresql-15")
    try:
        return embedded_bin_dir()
    except EmbeddedServerError as error:
        pytest.skip(str(error))


def first_server() -> str:
    """Return the one of SERVERS that runs everything: the embedded one, which has no wheels for some Pythons."""
    try:
        embedded_bin_dir()
    except EmbeddedServerError:
        return "debian-15"
    return "embedded-18"


def new_directory() -> Path:
    """Make a directory that other users can walk through. Who asked for it removes it."""
    # Not tmp_path: its parents are 0700, and as root PostgreSQL runs as another user.
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED
    if in_memory:
        _remove_what_killed_runs_left()
    directory = Path(tempfile.mkdtemp(prefix=f"fencepost-{os.getpid()}-", dir=_MEMORY if in_memory else None))
    directory.chmod(0o755)
    return directory


def _remove_what_killed_runs_left() -> None:
    """Give memory back: remove the directories of processes that run no longer."""
    for directory in _MEMORY.glob("fencepost-*-*"):
        pid = directory.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def server_directory() -> Iterator[Path]:
    """Give such a directory, and remove it afterwards."""
    directory = new_directory()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def session_server(kind: str) -> Iterator[PostgresServer]:
    """Run one of SERVERS until the block ends."""
    bin_dir = server_bin_dir(kind)
    with (
        server_directory() as directory,
        PostgresServer(bin_dir=bin_dir, data_dir=directory / "data", options=_OPTIONS) as server,
    ):
        yield server


async def quick_logins(url: str) -> None:
    """Let the superuser's password be hashed once at each login, not 4096 times: half of what a connection costs."""
    password, salt = urlsplit(url).password or "", b"sixteen bytes of"
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    of_server = hmac.digest(salted, b"Server Key", "sha256")
    salt_64, stored_64, of_server_64 = (base64.b64encode(each).decode() for each in (salt, stored, of_server))
    await run_on(url, f"ALTER ROLE CURRENT_USER PASSWORD 'SCRAM-SHA-256$1:{salt_64}${stored_64}:{of_server_64}'")


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
    """Makes databases for tests on one server, and drops them, over one connection that stays open.

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
        """Drop it, whoever is still connected."""
        self._connection.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)".encode())

    def close(self) -> None:
        self._connection.close()


async def clone(server: str, name: str, template: str) -> None:
    """Make the database `name` on a server, with all that the migrated database `template` has."""
    await run_on(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    await run_on(in_database(server, name), ADOPT)
