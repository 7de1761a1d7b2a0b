"""When `fencepost serve` cannot start: one line that gives the reason, an exit code, and nothing touched."""

import asyncio
import errno
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.gateways import refused, serving_process

from fencepost.cli.main import main
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.serving.server import ListenError, listen
from fencepost.testing.servers.processes import alive


@contextmanager
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


async def test_a_data_directory_in_use_is_one_line(short_dir: Path) -> None:
    async with serving_process(short_dir) as gateway:
        again = short_dir / "again"
        again.mkdir()
        given = ("--port", "0", "--data-dir", str(short_dir / "data"))
        code, output = await asyncio.to_thread(refused, *given, directory=again)
        assert code == 1
        pid = gateway.process.pid
        assert output == f"Error: the data directory {short_dir}/data is in use by fencepost (pid {pid})\n"
        assert alive(pid)


def test_a_busy_port_is_one_line_and_touches_nothing(short_dir: Path) -> None:
    with busy_port() as port:
        code, output = refused("--data-dir", str(short_dir / "data"), directory=short_dir, FENCEPOST_PORT=str(port))
    assert (code, output.count("\n")) == (1, 1)
    assert output.startswith(f"Error: port {port} on 127.0.0.1 is in use")
    assert not (short_dir / "data").exists()


def test_an_address_that_cannot_be_taken_is_named_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ports need privileges is a setting of the machine, so the refusal is made up."""
    with pytest.raises(ListenError, match=r"192\.0\.2\.1 is no address of this machine; .* --host or FENCEPOST_HOST$"):
        listen("192.0.2.1", 0, allow_remote=True)

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", denied)
    with pytest.raises(ListenError, match=r"^port 1 on 127\.0\.0\.1 needs privileges .* --port or FENCEPOST_PORT$"):
        listen("127.0.0.1", 1, allow_remote=False)


def refused_here(port: int, *arguments: str, directory: Path, **variables: str) -> str:
    """Run serve in this process, which starts ten times faster than one of its own; return its one line. It must fail
    before it listens on the port, which is busy, and before it touches its data.
    """
    given = ("serve", *arguments, "--port", str(port), "--data-dir", str(directory / "data"))
    result = CliRunner().invoke(main, given, env=variables)
    assert (result.exit_code in (1, 2), result.stdout, result.stderr.count("\n")) == (True, "", 1), result.output
    assert not (directory / "data").exists(), arguments
    return result.stderr


def test_other_addresses_than_loopback_need_a_word_and_authentication(short_dir: Path) -> None:
    with busy_port() as port:
        for host in ("0.0.0.0", "::"):
            assert "--allow-remote" in refused_here(port, "--host", host, directory=short_dir), host
        for arguments in (
            ("--host", "0.0.0.0", "--allow-remote"),
            ("--allow-remote",),
            ("--host", "0.0.0.0", "--allow-remote", "--jwt-role-claim-key", ""),
        ):
            assert "needs authentication" in refused_here(port, *arguments, directory=short_dir), arguments


SECRET = "a secret that has thirty-two bytes and more"


def test_settings_that_cannot_be_are_refused_in_one_line(short_dir: Path) -> None:
    with busy_port() as port:
        for arguments, why in (
            (("--jwt-secret", "topsecret"), "at least 32 bytes"),
            (("--jwt-secret", '{"kty":"oct","k":"topsecrets0w"}'), "a secret has at least 32 bytes"),
            (("--jwt-secret", "@/nowhere"), "it cannot be read"),
            (("--jwt-secret", SECRET, "--jwt-jwks", "https://id.example/jwks"), "give one of them"),
            (("--jwt-jwks", "http://id.example/jwks"), "use https"),
            (("--anon-role", "web"), "give --jwt-secret, --jwt-jwks or --api-keys"),
            (("--jwt-secret", SECRET, "--anon-role", "x" * 64), "no name of a role"),
            (("--jwt-aud", "orders"), "give --jwt-secret or --jwt-jwks"),
            (("--allowed-hosts", "shop.example:443"), "is no name of a host"),
            (("--cors-origins", "shop.example"), "is no origin"),
            (("--sources", "a=redis://one a=redis://two"), "FENCEPOST_SOURCES: a stands there twice"),
        ):
            output = refused_here(port, *arguments, directory=short_dir)
            assert why in output, arguments
            assert "topsecret" not in output, arguments
            assert SECRET not in output, arguments


def test_a_database_that_cannot_be_reached_is_one_line(short_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    url = f"postgresql://u:secret@127.0.0.1:{port}/db"
    given = ("--port", "0", "--start-timeout", "0")
    code, output = refused(*given, directory=short_dir, FENCEPOST_DATABASE_URL=url)
    assert (code, output.count("\n")) == (1, 1)
    assert "secret" not in output


HEAVY = {"alembic", "sqlalchemy", "httpx"}


def test_on_the_users_own_database_nothing_heavy_is_loaded(short_dir: Path) -> None:
    url = "postgresql://u@127.0.0.1:1/db"
    given = ("--port", "0", "--start-timeout", "0")
    _, output = refused(*given, directory=short_dir, FENCEPOST_DATABASE_URL=url, PYTHONPROFILEIMPORTTIME="1")
    loaded = {line.rpartition("|")[2].strip() for line in output.splitlines()}
    assert "fencepost.server.wiring" in loaded, output[-500:]
    assert loaded & HEAVY == set()
    script = "import sys, fencepost.server.serving.worker, fencepost.server.wiring; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & HEAVY == set()


def test_a_database_without_the_schema_gets_the_advice_to_migrate(short_dir: Path, postgres: PostgresServer) -> None:
    code, output = refused("--port", "0", directory=short_dir, FENCEPOST_DATABASE_URL=postgres.url)
    assert (code, output.count("\n")) == (1, 1)
    assert "fencepost migrate" in output
