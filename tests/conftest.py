"""Real PostgreSQL for the tests: the embedded 18 and Debian's 15, a fresh migrated database for each test.

Which tests run: see support/selection.py. Where the servers are and how databases are made: see support/postgres.py.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg
import hypothesis
import pytest
from tests.support.interleave import Connect, Connection
from tests.support.postgres import SERVERS, ReadyMade, Unmade, session_server

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.postgres import in_database, quick_logins, run_on
from fencepost.testing.servers.processes import server_directory

pytest_plugins = ["tests.support.selection", "tests.support.second_look"]

# How long an example takes shows how busy the machine is.
hypothesis.settings.register_profile("fencepost", deadline=None)
hypothesis.settings.load_profile("fencepost")

# No server of the tests has TLS, and to ask each time is a tenth of what a connection costs. `fencepost serve` asks.
os.environ.setdefault("PGSSLMODE", "disable")

TEMPLATE = "fencepost_template"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Have warnings logged: a gateway in the process sets the level for itself, and may serve for a whole session,
    while other tests read what is logged.
    """
    if logging.root.level > logging.WARNING:
        logging.root.setLevel(logging.WARNING)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Give a directory with a short name that other users can walk through, and remove it afterwards."""
    with server_directory() as directory:
        yield directory


@pytest.fixture(scope="session", params=SERVERS)
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Run a PostgreSQL server for the session, once per version."""
    with session_server(request.param) as server:
        quick_logins(server.url)
        yield server


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    """Make the migrated database that each test's database is a copy of. Returns its name."""
    from fencepost.server.ops.migrate import upgrade  # noqa: PLC0415 - tests without a database need no Alembic

    async def make() -> None:
        await run_on(postgres.url, f"CREATE DATABASE {TEMPLATE}")
        await upgrade(in_database(postgres.url, TEMPLATE))

    asyncio.run(make())
    return TEMPLATE


@pytest.fixture(scope="session")
def databases(postgres: PostgresServer, template: str) -> Iterator[ReadyMade]:
    """Give what makes databases on the session's server."""
    with contextlib.closing(ReadyMade(postgres.url, template)) as made:
        yield made


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """Give a stack: what is entered there, or pushed, ends with the test."""
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def unmade(databases: ReadyMade) -> Iterator[Unmade]:
    """Give the test's database before it is made: for `open_race`, which then copies one that has its table already.

    It is dropped afterwards, even with open connections.
    """
    unmade = Unmade(databases)
    yield unmade
    unmade.drop()


@pytest.fixture
def database(unmade: Unmade) -> str:
    """Give the URL of the test's database: a fresh, migrated one, unless a race was opened in it."""
    return unmade.url


@pytest.fixture
async def connect(unmade: Unmade) -> AsyncIterator[Connect]:
    """Give a function that connects to the test's database. All its connections are closed afterwards."""
    opened: list[Connection] = []

    async def connect() -> Connection:
        connection = await asyncpg.connect(unmade.url)
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        await _close(connection)


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=5)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError, OSError):
        # A test may leave a statement waiting, or its backend terminated: that connection is only hung up.
        connection.terminate()
