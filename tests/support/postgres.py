"""PostgreSQL for the tests: which servers there are. They are as durable as by default."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import EmbeddedServerError, embedded_bin_dir
from fencepost.testing.servers.processes import server_directory

SERVERS = ("embedded-18", "debian-15")
"""The servers that tests run on."""

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


def installed_servers() -> list[str]:
    """List those of SERVERS that are installed; the first one where none is, so that tests skip with its reason."""
    try:
        embedded_bin_dir()
    except EmbeddedServerError:  # no wheels for this Python
        return [SERVERS[1]]
    return list(SERVERS) if debian_bin_dir() else [SERVERS[0]]


def first_server() -> str:
    """Return the installed one of SERVERS that tests run on which are about something else than PostgreSQL."""
    return installed_servers()[0]


@contextmanager
def session_server(kind: str) -> Iterator[PostgresServer]:
    """Run one of SERVERS until the block ends."""
    bin_dir = server_bin_dir(kind)
    with (
        server_directory() as directory,
        PostgresServer(bin_dir=bin_dir, data_dir=directory / "data", options=_OPTIONS) as server,
    ):
        yield server
