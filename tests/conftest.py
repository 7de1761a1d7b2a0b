"""Real PostgreSQL for the tests: the embedded 18 and Debian's 15, a fresh migrated database for each test."""

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import hypothesis
import pytest
from tests.support.clones import clone
from tests.support.interleave import Connect, Connection

from fencepost.embedded.server import EmbeddedServerError, PostgresServer, embedded_bin_dir

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("fencepost", deadline=None)
hypothesis.settings.load_profile("fencepost")

TEMPLATE = "fencepost_template"
KUBE = ".ci/kube-apiserver"
_numbers = itertools.count(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:  # noqa: ARG001
    """Name what could not run here, and how to enable it."""
    if reasons := _lacking(terminalreporter):
        terminalreporter.section("not run on this machine")
        for reason in sorted(reasons):
            terminalreporter.line(
                reason if KUBE in reason else f"{reason}  (`make test-servers` as root installs all other servers)"
            )


def _lacking(reporter: pytest.TerminalReporter) -> set[str]:
    """Give why tests were skipped, but for those about what a lock service does not promise: these run nowhere."""
    skipped = reporter.stats.get("skipped", [])
    reasons = {str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped}
    return {reason for reason in reasons if not reason.startswith("capability: ")}


def _forbidden(reporter: pytest.TerminalReporter) -> set[str]:
    """What of it CI does not let pass: all but a kube-apiserver that .ci/run could not build."""
    without_kube = bool(os.environ.get("FENCEPOST_WITHOUT_KUBE"))
    return {reason for reason in _lacking(reporter) if not (without_kube and KUBE in reason)}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI nothing may be skipped: what a machine lacks, .ci/run has to install."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("FENCEPOST_NO_SKIPS") and reporter is not None and _forbidden(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what is not about PostgreSQL on one version of it: the other would show nothing new."""
    of_one = ("client", "cli", "conformance", "sources")
    others = {item for item in items if item.path.parent.name in of_one and "debian-15" in item.name}
    if others:
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]


def debian_bin_dir(version: int = 15) -> Path | None:
    """Return the folder of Debian's PostgreSQL programs, or None when the package is not installed."""
    folder = Path(f"/usr/lib/postgresql/{version}/bin")
    return folder if (folder / "initdb").is_file() else None


def server_bin_dir(kind: str) -> Path:
    """Return the folder of the programs of one of `postgres`'s kinds; skips where it is not installed."""
    if kind == "debian-15":
        return debian_bin_dir(15) or pytest.skip("no PostgreSQL 15: apt-get install postgresql-15")
    try:
        return embedded_bin_dir()
    except EmbeddedServerError as error:
        pytest.skip(str(error))


def in_database(url: str, name: str) -> str:
    """Return the URL of another database on the same server."""
    return f"{url.rpartition('/')[0]}/{name}"


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Give a directory right under /tmp that other users can walk through, and remove it afterwards."""
    # Not tmp_path: its parents are 0700, and as root PostgreSQL runs as another user.
    directory = Path(tempfile.mkdtemp(prefix="fencepost-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session", params=["embedded-18", "debian-15"])
def postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Run a PostgreSQL server for the session, once per version. Its durability is the default one: doctor looks."""
    bin_dir = server_bin_dir(request.param)
    directory = Path(tempfile.mkdtemp(prefix="fencepost-"))
    directory.chmod(0o755)
    try:
        options = {"max_prepared_transactions": "5"}
        with PostgresServer(bin_dir=bin_dir, data_dir=directory / "data", options=options) as server:
            yield server
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    """Make the migrated database that each test's database is a copy of. Returns its name."""
    from fencepost.storage.schema.migrate import upgrade  # noqa: PLC0415 - tests without a database need no Alembic

    async def make() -> None:
        await _on_server(postgres, f"CREATE DATABASE {TEMPLATE}")
        await upgrade(in_database(postgres.url, TEMPLATE))

    asyncio.run(make())
    return TEMPLATE


@pytest.fixture
async def database(postgres: PostgresServer, template: str) -> AsyncIterator[str]:
    """Give the URL of a fresh, migrated database. It is dropped afterwards, whoever is still connected."""
    name = f"test_{next(_numbers)}"
    await clone(postgres.url, name, template)
    yield in_database(postgres.url, name)
    await _on_server(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def connect(database: str) -> AsyncIterator[Connect]:
    """Give a function that connects to the test's database. All its connections are closed afterwards."""
    opened: list[Connection] = []

    async def connect() -> Connection:
        connection = await asyncpg.connect(database)
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


async def _on_server(server: PostgresServer, statement: str) -> None:
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
