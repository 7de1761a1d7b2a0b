"""When `fencepost serve` cannot start: one line that says why, an exit code, and nothing touched."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.processes import alive
from tests.support.serving import refused, serving

from fencepost.embedded.server import PostgresServer


@contextmanager
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


async def test_a_data_directory_in_use_is_one_line(short_dir: Path) -> None:
    async with serving(short_dir) as gateway:
        again = short_dir / "again"
        again.mkdir()
        given = ("--port", "0", "--data-dir", str(short_dir / "data"))
        code, said = await asyncio.to_thread(refused, *given, directory=again)
        assert code == 1
        pid = gateway.process.pid
        assert said == f"Error: the data directory {short_dir}/data is in use by fencepost (pid {pid})\n"
        assert alive(pid)


def test_a_busy_port_is_one_line_and_touches_nothing(short_dir: Path) -> None:
    with busy_port() as port:
        code, said = refused("--data-dir", str(short_dir / "data"), directory=short_dir, FENCEPOST_PORT=str(port))
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith(f"Error: port {port} on 127.0.0.1 is in use")
    assert not (short_dir / "data").exists()


def test_a_privileged_port_is_one_line(short_dir: Path) -> None:
    # Root is allowed every port, unless the capability is taken away.
    prefix = ("setpriv", "--bounding-set", "-net_bind_service") if os.geteuid() == 0 else ()
    code, said = refused("--port", "1", "--data-dir", str(short_dir / "data"), directory=short_dir, prefix=prefix)
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("Error: port 1 on 127.0.0.1 needs privileges")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_other_addresses_than_loopback_need_a_word(short_dir: Path, host: str) -> None:
    code, said = refused("--host", host, "--port", "0", directory=short_dir)
    assert (code, said.count("\n")) == (1, 1)
    assert "there is no authentication yet" in said
    assert "--allow-remote" in said


def test_a_bad_value_names_option_and_variable(short_dir: Path) -> None:
    code, said = refused(directory=short_dir, FENCEPOST_WORKERS="many")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("Error: bad value for --workers (FENCEPOST_WORKERS)")


@pytest.mark.parametrize(
    "given", ["redis", "r=redis://:secret@h/0 r=redis://h/0", "r=redis://h/0?wait_ms=many", "r=x://h"]
)
@pytest.mark.parametrize("embedded", [True, False])
def test_malformed_sources_are_refused_before_anything_is_opened(
    short_dir: Path, given: str, *, embedded: bool
) -> None:
    """Also before the database, which is not there either."""
    with busy_port() as port:
        database = () if embedded else ("--database-url", f"postgresql://u@127.0.0.1:{port}/db")
        given_all = ("--port", str(port), "--data-dir", str(short_dir / "data"), "--sources", given, *database)
        code, said = refused(*given_all, directory=short_dir)
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith("Error: FENCEPOST_SOURCES: ")
    assert "secret" not in said
    assert not (short_dir / "data").exists()


def test_an_option_wins_over_its_variable(short_dir: Path) -> None:
    with busy_port() as port, busy_port() as other:
        _, said = refused("--port", str(port), directory=short_dir, FENCEPOST_PORT=str(other))
    assert f"port {port} " in said


def test_a_database_that_cannot_be_reached_is_one_line(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    url = f"postgresql://u:secret@127.0.0.1:{port}/db"
    code, said = refused("--port", "0", directory=short_dir, FENCEPOST_DATABASE_URL=url)
    assert (code, said.count("\n")) == (1, 1)
    assert "secret" not in said


def test_a_database_without_the_schema_is_told_to_migrate(short_dir: Path, postgres: PostgresServer) -> None:
    code, said = refused("--port", "0", directory=short_dir, FENCEPOST_DATABASE_URL=postgres.url)
    assert (code, said.count("\n")) == (1, 1)
    assert "fencepost migrate" in said
