"""Processes as /proc shows them: which are alive, whose children they are; and signals to a process with all below it.

A process is known by its pid and the time of its start, so that a signal never reaches another process that has been
given the pid of one that ended. A child that gave itself another parent (a daemon) does not belong to the tree.
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fencepost.testing.servers.stops import go_on, stop
from fencepost.testing.servers.waiting import PATIENCE, wait_until

_WITHIN = 2 * PATIENCE


class HasPid(Protocol):
    """A process of `subprocess`, `asyncio`, `multiprocessing` or psutil, or a server of the harness."""

    @property
    def pid(self) -> int | None:
        """Its pid; None when it was never started."""
        ...


def pid_of(process: HasPid | int) -> int:
    """Return the pid of a process. ValueError when it was never started, or is this very process or above it; TypeError
    for what is no process.
    """
    pid = process if isinstance(process, int) else getattr(process, "pid", process)
    if not isinstance(pid, int | None) or process is None:
        raise TypeError(f"a process is a pid, or an object with one in its attribute pid, and not {process!r}")
    if pid is None:
        raise ValueError(f"{process!r} has not been started")
    if pid <= 1 or pid in _above(os.getpid()):
        raise ValueError(f"process {pid} is the harness's own process, or one above it: name a process below it")
    return pid


@dataclass(frozen=True, slots=True)
class Known:
    """One process that was seen alive, by pid and time of start (in ticks since boot)."""

    pid: int
    started: int

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if _started(self.pid) == self.started:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def runs(self) -> bool:
        """Whether it runs or is stopped; a zombie does neither."""
        return _started(self.pid) == self.started and alive(self.pid)

    def stopped(self) -> bool:
        """Whether all of its threads are stopped, or it has ended."""
        if not self.runs():
            return True
        try:
            states = [_state(task / "stat") for task in Path(f"/proc/{self.pid}/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread that ended meanwhile: look again
        return all(state in "TtXZ" for state in states)


def tree(pid: int) -> list[Known]:
    """Return a process and all below it that are alive, parents first. Empty when it has ended."""
    found = [Known(each, started) for each in (pid, *descendants(pid)) if (started := _started(each)) is not None]
    return [each for each in found if each.runs()]


def stop_tree(pid: int) -> list[Known]:
    """SIGSTOP a process and all below it, and return those that ran, once each thread of all has stopped.

    Stops are counted: each process goes on when `continue_all` was called for the last of them. One that somebody else
    has stopped is not returned: it stays stopped. A thread that still runs may answer a request. TimeoutError when
    they do not stop within twice PATIENCE: then this stop is taken back.
    """
    return [each for each, counted in _stopped_tree(pid).items() if counted]


def _stopped_tree(pid: int) -> dict[Known, bool]:
    """Do so, and return all of them: with True those whose stop was counted."""
    found: dict[Known, bool] = {}

    def all_stopped() -> bool:
        fresh = [each for each in tree(pid) if each not in found]
        for each in fresh:
            found[each] = stop(each)
        return not fresh and all(each.stopped() for each in found)  # one that was forked meanwhile is found next time

    try:
        wait_until(all_stopped, within=_WITHIN, what=f"the stop of process {pid} and all below it")
    except BaseException:
        continue_all([each for each, counted in found.items() if counted])
        raise
    return found


def continue_all(stopped: list[Known]) -> None:
    """Take one stop of these processes back, children first."""
    for each in reversed(stopped):
        go_on(each)


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all below it, and return once none of them runs. A zombie is left to its parent."""
    victims = _stopped_tree(pid)  # one that is stopped forks no more
    for each in victims:
        each.signal(signal.SIGKILL)
    continue_all([each for each, counted in victims.items() if counted])
    wait_until(lambda: not any(each.runs() for each in victims), within=_WITHIN, what=f"the end of process {pid}")


def mentioning(text: str) -> dict[int, str]:
    """Return pid and command line of the live processes whose command line mentions `text`."""
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if text in command:  # a zombie has no command line
            found[int(process.name)] = command
    return found


def descendants(pid: int) -> list[int]:
    """Return the pids of a process's children, of theirs, and so on."""
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():  # each thread has the children that it forked
            with suppress(FileNotFoundError, ProcessLookupError):
                children += map(int, (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [found for child in children for found in (child, *descendants(child))]


def alive(pid: int) -> bool:
    """Whether a process runs or is stopped; a zombie does neither."""
    try:
        return _state(Path(f"/proc/{pid}/stat")) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _state(stat: Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]


def _started(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _above(pid: int) -> list[int]:
    """Return this pid, its parent's, and so on."""
    found = []
    while pid > 0:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            break
    return found
