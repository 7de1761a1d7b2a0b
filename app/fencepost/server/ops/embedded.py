"""An embedded PostgreSQL: the real server, run as our child on a data directory of ours.

The supervisor starts `postgres` in the foreground, as a child that it holds by its handle, and never touches
a process that it did not start. What can go wrong, and what then holds:

- Ctrl-C in a terminal reaches only us (the child has a session of its own), so the gateway drains first.
- We are killed: the kernel sends the child SIGINT, PostgreSQL's fast shutdown. Committed rows are on disk.
- The next start comes while that shutdown still runs: it waits for the old postmaster to be gone.
- The old postmaster is a zombie, or its pid has been given to another process: postmaster.pid is stale.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from fencepost.server.ops.embedded_files import (
    Account,
    Binaries,
    DataDirectory,
    EmbeddedServerError,
    open_inside,
    reachable_binaries,
    read_inside,
    require_main_thread,
)

# Reading PostgreSQL's postmaster.pid: who runs on a cluster, and whether it is ready.
#
# Its first line is the postmaster's pid, its eighth the state, `ready` once connections are taken.

_STATUS_LINE = 7


def is_ready(pgdata: Path, pid: int) -> bool:
    """Return whether the postmaster with this pid takes connections. pg_ctl waits on the same line."""
    lines = _read(pgdata)
    return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"


def live_postmaster(pgdata: Path) -> int | None:
    """Return the pid of the postmaster that runs on this cluster, or None when nothing does.

    A postmaster's working directory is its cluster. A zombie has none, and a stranger who was given the same
    pid has another one.
    """
    pid = _recorded_pid(pgdata)
    if pid is None or pid == os.getpid():
        return None
    try:
        runs_here = Path("/proc", str(pid), "cwd").samefile(pgdata)
    except OSError:  # it is gone, a zombie, or another user's
        return None
    return pid if runs_here else None


def disown_stale_pid_file(pgdata: Path) -> None:
    """Make PostgreSQL see that a pid file is stale, where its own test, kill -0, would take it for live.

    Our own pid goes in: PostgreSQL knows that its parent is no server on its cluster. The file itself stays,
    with the shared memory key in it, by which PostgreSQL makes sure that no old backend is still at work.
    Call it only while holding the data directory's lock, with live_postmaster() None.
    """
    lines = _read(pgdata)
    if lines:
        lines[0] = str(os.getpid())
        with os.fdopen(open_inside(pgdata.parent, _name(pgdata), os.O_WRONLY | os.O_TRUNC), "w") as file:
            file.write("\n".join(lines) + "\n")


def _recorded_pid(pgdata: Path) -> int | None:
    lines = _read(pgdata)
    try:
        return abs(int(lines[0])) if lines else None
    except ValueError:
        return None


def _read(pgdata: Path) -> list[str]:
    try:
        return read_inside(pgdata.parent, _name(pgdata)).splitlines()
    except FileNotFoundError:
        return []


def _name(pgdata: Path) -> str:
    return f"{pgdata.name}/postmaster.pid"


HOST = "127.0.0.1"
# Not "fencepost": with the usual search_path, "$user" would put a plain CREATE TABLE into our own schema.
SUPERUSER = "postgres"

_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "128MB",
    "fsync": "on",
    "logging_collector": "off",
    # Messages of the server itself; refused statements are answered to their callers and would only fill the file.
    "log_min_messages": "log",
}

# Seconds. Recovery after a crash reads up to max_wal_size of log; a fast shutdown writes a checkpoint.
_READY_WITHIN = 300.0
_PREDECESSOR_GONE_WITHIN = 10.0
_STOPPED_WITHIN = {signal.SIGINT: 60.0, signal.SIGQUIT: 10.0, signal.SIGKILL: 10.0}
_POLL = 0.01
_PORT_ATTEMPTS = 5


class PostgresServer:
    """PostgreSQL from `bin_dir` on `data_dir`, listening on 127.0.0.1 only, from start() to stop().

    `port` None takes a free one at each start. `options` are PostgreSQL settings, over our own. As root the
    server runs as an unprivileged user. Use it in the main thread; all errors are EmbeddedServerError.
    """

    def __init__(
        self,
        *,
        bin_dir: Path,
        data_dir: Path,
        port: int | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.bin_dir = bin_dir
        self._data_dir = data_dir.absolute()
        self._fixed_port = port
        self._settings = {**_SETTINGS, **options}
        self._directory: DataDirectory | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Where the running server is: postgresql://fencepost:PASSWORD@127.0.0.1:PORT/postgres."""
        if self._url is None:
            raise EmbeddedServerError(f"the embedded PostgreSQL in {self._data_dir} is not running")
        return self._url

    @property
    def running(self) -> bool:
        """Whether the server is up: started, and not ended by itself since."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Start the server, with a new cluster if there is none, and return once it takes connections."""
        self._require_lasting_thread()
        if self._child is not None:
            raise EmbeddedServerError(f"the embedded PostgreSQL in {self._data_dir} has already been started")
        account = Account.choose(self._data_dir)
        binaries = reachable_binaries(self.bin_dir, account)
        directory = DataDirectory(self._data_dir, account)
        try:
            directory.open()
            self._directory = directory
            if not directory.pgdata.exists():
                _initialise(directory, binaries)
            directory.check_version(binaries.major)
            password = directory.password()
            _await_predecessor(directory)
            port = self._launch(directory, binaries)
            self._url = f"postgresql://{SUPERUSER}:{password}@{HOST}:{port}/postgres"
            directory.publish_url(self._url)
        except BaseException:
            self.stop()
            directory.close()
            raise

    def _require_lasting_thread(self) -> None:
        """Refuse a thread that may end before this process: the server would end with it."""
        require_main_thread()

    def stop(self) -> None:
        """Shut the server down and free the data directory. Open transactions are rolled back.

        A server that does not end within a minute is ended by force, which costs a recovery at the next start
        but no committed row. Stopping what does not run is harmless.
        """
        if self._child is not None:
            _end(self._child)
            self._child = None
        self._url = None
        if self._directory is not None:
            self._directory.withdraw_url()
            self._directory.close()
            self._directory = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, directory: DataDirectory, binaries: Binaries) -> int:
        """Run `postgres` and wait until it is ready. Returns its port.

        A free port may be taken by another process before PostgreSQL binds it; then another one is tried.
        """
        for _ in range(_PORT_ATTEMPTS):
            port = self._fixed_port or _free_port()
            log_begin = directory.log.stat().st_size if directory.log.exists() else 0
            self._child = _spawn(directory, binaries, {**self._settings, "port": str(port)})
            if _await_ready(self._child, directory):
                return port
            ended_with, self._child = self._child.returncode, None
            output = _complaints(directory.read_log(log_begin))
            if "could not create any TCP/IP sockets" not in output:
                raise EmbeddedServerError(
                    f"PostgreSQL did not start (exit status {ended_with}): {output or 'without a message'}"
                    f" (the whole log: {directory.log})"
                )
            if self._fixed_port:
                break
        raise EmbeddedServerError(f"PostgreSQL did not start: port {port} on {HOST} is in use by another process")


def _initialise(directory: DataDirectory, binaries: Binaries) -> None:
    """Make a cluster. It gets its name once it is whole: a killed initdb leaves nothing half-made."""
    directory.discard_unfinished()
    directory.new_password()
    command: list[str | Path] = [
        *(binaries.bin_dir / "initdb", "-D", directory.unfinished, "-U", SUPERUSER),
        *("--pwfile", directory.password_file, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"),
        "--no-instructions",
    ]
    done = subprocess.run(  # noqa: S603 - a program of ours, no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=binaries.environment,
        **directory.account.popen_arguments(signal.SIGKILL),
    )
    if done.returncode != 0:
        directory.discard_unfinished()
        raise EmbeddedServerError(f"initdb failed in {directory.path}: {' | '.join(done.stdout.splitlines()[-3:])}")
    directory.adopt_unfinished()


def _spawn(directory: DataDirectory, binaries: Binaries, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # TCP only: the path of a Unix socket is limited to 107 bytes, and nothing of ours needs one.
    settings = {"listen_addresses": HOST, "unix_socket_directories": "", **settings}
    options = [argument for name, value in settings.items() for argument in ("-c", f"{name}={value}")]
    log = directory.open_log()
    try:
        return subprocess.Popen(  # noqa: S603 - a program of ours, no shell
            [binaries.bin_dir / "postgres", "-D", directory.pgdata, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=binaries.environment,
            **directory.account.popen_arguments(),
        )
    except OSError as error:
        raise EmbeddedServerError(f"PostgreSQL in {binaries.bin_dir} did not start: {error}") from error
    finally:
        os.close(log)


def _await_predecessor(directory: DataDirectory) -> None:
    """Wait for a postmaster whose supervisor was killed: it is shutting down. Disown a stale pid file."""
    deadline = time.monotonic() + _PREDECESSOR_GONE_WITHIN
    while (pid := live_postmaster(directory.pgdata)) is not None:
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"the data directory {directory.path} is in use by another PostgreSQL (pid {pid})"
            )
        time.sleep(_POLL)
    disown_stale_pid_file(directory.pgdata)


def _await_ready(child: subprocess.Popen[bytes], directory: DataDirectory) -> bool:
    """Wait until the server takes connections; False when it ended instead."""
    deadline = time.monotonic() + _READY_WITHIN
    while child.poll() is None:
        if is_ready(directory.pgdata, child.pid):
            return True
        if time.monotonic() > deadline:
            raise EmbeddedServerError(f"PostgreSQL is not ready after {_READY_WITHIN:.0f} s; see {directory.log}")
        time.sleep(_POLL)
    return False


def _end(child: subprocess.Popen[bytes]) -> None:
    for with_signal, patience in _STOPPED_WITHIN.items():
        child.send_signal(with_signal)
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:  # a second Ctrl-C: the user will not wait for a checkpoint
            continue
        return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _complaints(log: str) -> str:
    """Give PostgreSQL's complaints on one line: its FATAL lines, else its last three."""
    lines = log.splitlines()
    severe = [line for line in lines if any(word in line for word in ("FATAL:", "PANIC:", "could not", "HINT:"))]
    return " | ".join((severe or lines)[-3:])
