"""Faults of processes: PostgreSQL, the gateway, lock services: stopped, killed, started again."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, Protocol, runtime_checkable

from fencepost.server.ops.embedded_files import EmbeddedServerError
from fencepost.testing.faults.fault import FaultError, fault
from fencepost.testing.servers.processes import (
    HasPid,
    KnownProcess,
    alive,
    continue_all,
    handled,
    kill_tree,
    pid_of,
    stop_tree,
)
from fencepost.testing.servers.server import ServerError

# Servers that were killed are started again, also when one of them needs another that is still dead.
#
# `with killed(postgres), killed(gateway):` ends with the gateway, which cannot start without its PostgreSQL. Its start
# fails, and is then left to the block of PostgreSQL, which does it when PostgreSQL serves. Only when no block is open
# any more, so that no server is to come back, a start that fails is an error.


@runtime_checkable
class Restartable(Protocol):
    """A server of the harness: `killed` starts it again."""

    @property
    def pid(self) -> int: ...

    @property
    def running(self) -> bool: ...

    def crash(self) -> None: ...

    def start(self) -> None: ...

    def wait(self) -> None: ...


class Restart:
    """What one block of `killed` does at its end. It counts as open from when it is made."""

    def __init__(self, server: Restartable) -> None:
        self._servers = [server]
        with _lock:
            _open.append(self)

    def do(self) -> None:
        """Start the server, and then those that other blocks have left to this one.

        Raises ServerError or EmbeddedServerError when no open block is left that could do it later.
        """
        with ExitStack() as rest:
            rest.callback(self._start_what_was_left)
            self._start(self._servers[0])

    def _start_what_was_left(self) -> None:
        with _lock:
            _open.remove(self)
        with ExitStack() as all_of_them:
            for server in self._servers[:0:-1]:
                all_of_them.callback(self._start, server)

    def _start(self, server: Restartable) -> None:
        try:
            if not server.running:
                server.start()
            server.wait()
        except (ServerError, EmbeddedServerError):
            with _lock:
                others = [each for each in _open if each is not self]
                if not others:
                    raise
                others[-1]._servers.append(server)  # noqa: SLF001 - another one of this class


_lock: Final = threading.Lock()
_open: Final[list[Restart]] = []


@fault
def paused(process: HasPid | int) -> Iterator[None]:
    """Stop a process and all below it (SIGSTOP) until the block ends. The block begins when every thread has stopped.

    `process`: a pid, or anything with one: of subprocess, asyncio, multiprocessing, psutil, or a server of the harness.
    What ends in the block is left alone. Where blocks overlap, a process goes on when the last of them ends. A SIGTERM
    or SIGHUP that ends this process continues it first. ValueError for the test's own process; FaultError for one that
    has ended already; TimeoutError when it does not stop.
    """
    pid = _running(process)
    stopped: list[KnownProcess] = []
    with handled():
        try:
            stopped = stop_tree(pid)
            yield
        finally:
            continue_all(stopped)


@fault
def killed(process: HasPid | int) -> Iterator[None]:
    """Kill a process and all below it (SIGKILL). The block begins when none of them runs.

    A server of the harness is started again on its data when the block ends, and serves then; one that needs another
    server which is still killed is started when that one's block ends. Another process stays dead: only its owner
    knows how to start it. ValueError for the test's own process; FaultError for one that has ended already.
    """
    pid = _running(process)
    if isinstance(process, Restartable):
        restart = Restart(process)
        try:
            process.crash()
            yield
        finally:
            restart.do()
    else:
        kill_tree(pid)
        if isinstance(process, subprocess.Popen):
            process.wait()
        yield


def _running(process: HasPid | int) -> int:
    """Return the pid of a process that runs. FaultError for one that has ended: the fault would show nothing."""
    pid = pid_of(process)
    if not alive(pid):
        raise FaultError(
            f"process {pid} has ended already, so that a fault of it would show nothing. Look into its log for the"
            " reason, or begin the fault while it runs"
        )
    return pid
