"""Servers that tests run: on free ports of loopback, in directories of their own, ended by pid, gone when we are."""

import asyncio
import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from fencepost.embedded.process import die_with_parent

_READY_WITHIN = 60.0  # seconds
_POLL = 0.02  # seconds


def free_port() -> int:
    """Find a port on loopback that nobody listens on; a server that cannot be told 0 takes it at once."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Server:
    """One server process, which can be killed, stopped, and started again on its data. `ready` says that it serves."""

    def __init__(self, command: Sequence[str | Path], log: Path, ready: Callable[[], bool]) -> None:
        self._command, self._log, self._ready = command, log, ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The pid of the process that runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it without waiting for it."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - it only calls prctl
            )

    def wait(self) -> None:
        """Return once it serves."""
        deadline = time.monotonic() + _READY_WITHIN
        while not self._ready():
            code = None if self._process is None else self._process.poll()
            if code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._command[0]} does not serve ({code}): {self._log.read_text()[-2000:]}")
            time.sleep(_POLL)

    async def serves(self) -> None:
        """Return once it serves, leaving the event loop alone."""
        await asyncio.to_thread(self.wait)

    def crash(self) -> None:
        """SIGKILL it."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP it, and return once each of its threads has stopped: one that runs may still answer a request."""
        os.killpg(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + _READY_WITHIN
        while not _is_stopped(self.pid):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self._command[0]} has threads that SIGSTOP did not stop")
            time.sleep(_POLL)

    def resume(self) -> None:
        """SIGCONT it."""
        os.killpg(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it, and return once it has ended."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.crash()
        self._process = None


def _is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped (T in proc_pid_stat)."""
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
