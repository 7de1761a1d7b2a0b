"""Faults of processes: a pause, as of a virtual machine that is moved or a long garbage collection, and a kill."""

import subprocess
from collections.abc import Iterator

from fencepost.testing.faults.errors import FaultError
from fencepost.testing.faults.fault import fault
from fencepost.testing.faults.restarts import Restart, Restartable
from fencepost.testing.servers.processes import HasPid, Known, alive, continue_all, kill_tree, pid_of, stop_tree
from fencepost.testing.servers.stops import handled


@fault
def paused(process: HasPid | int) -> Iterator[None]:
    """Stop a process and all below it (SIGSTOP) until the block ends. The block begins when every thread has stopped.

    `process`: a pid, or anything with one: of subprocess, asyncio, multiprocessing, psutil, or a server of the harness.
    What ends in the block is left alone. Where blocks overlap, a process goes on when the last of them ends. A SIGTERM
    or SIGHUP that ends this process continues it first. ValueError for the test's own process; FaultError for one that
    has ended already; TimeoutError when it does not stop.
    """
    pid = _running(process)
    stopped: list[Known] = []
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
