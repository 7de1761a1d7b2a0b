"""Processes of a test: waited for, stopped, ended with it; their ports and directories."""

import asyncio
import fcntl
import functools
import itertools
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, Protocol, TypeVar

# Waiting for a condition by asking again and again, with a deadline. Only here the harness waits by the clock.

T = TypeVar("T")

PATIENCE: Final = 30.0 * float(os.environ.get("FENCEPOST_PATIENCE") or 1)
"""Seconds after which a wait gives up that only guards against hanging. A machine that is busy with other work sets the
variable FENCEPOST_PATIENCE to a factor, as CI does.
"""

_FIRST, _LONGEST = 0.001, 0.01  # seconds: the first pause is short, each further one is twice as long, up to the second


def _pauses() -> Iterator[float]:
    pause = _FIRST
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST)


async def eventually(
    condition: Callable[[], Awaitable[T | None]], *, within: float = PATIENCE, what: str = "the condition"
) -> T:
    """Ask again and again until the answer is truthy, and return it; TimeoutError after `within` seconds."""
    deadline, pauses = time.monotonic() + within, _pauses()
    while not (answer := await condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true within {within} s")
        await asyncio.sleep(next(pauses))
    return answer


def wait_until(condition: Callable[[], T | None], *, within: float = PATIENCE, what: str = "the condition") -> T:
    """Do the same for code that is not asynchronous: the calling thread waits."""
    deadline, pauses = time.monotonic() + within, _pauses()
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true within {within} s")
        time.sleep(next(pauses))
    return answer


_LOWEST: Final = 10_000
_RANGES: Final = 16
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def range_of(worker: str, below: int) -> range:
    """Give the ports of a worker of xdist ("gw0" …), all below those of outgoing connections.

    Without workers it is the last range, also for a pytest that a test runs. Where too few are below it is 0, which the
    system replaces.
    """
    width = (min(below, 65536) - _LOWEST) // _RANGES
    if width < 50:  # noqa: PLR2004 - servers that a test may have at one time
        return range(1)
    number = int(worker.removeprefix("gw")) % (_RANGES - 1) if worker else _RANGES - 1
    return range(_LOWEST + width * number, _LOWEST + width * (number + 1))


@functools.cache
def _one_after_another() -> Iterator[int]:
    below = int(_OUTGOING.read_text().split()[0]) if _OUTGOING.exists() else 32768
    ports = range_of(os.environ.get("PYTEST_XDIST_WORKER", ""), below)
    # Not from its first: a process of an earlier run may be left. A run's seed is not to decide it.
    begin = random.SystemRandom().randrange(len(ports))
    return itertools.cycle([*ports[begin:], *ports[:begin]])


def free_port() -> int:
    """Find a port on loopback on which no process listens, and which is given neither to an outgoing connection nor to
    another worker of xdist. The next call gives another one.

    So a server that is killed gets its port again when it is started again.
    """
    for port in itertools.islice(_one_after_another(), 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as probe:
            found: int = probe.getsockname()[1]
            return found
    raise OSError("no free port of loopback")


def listens(port: int) -> bool:
    """Whether a process accepts connections on this port of loopback."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


# Directories of servers: in memory where there is room, and open to the user that PostgreSQL runs as.
#
# A directory belongs to the process that made it, which holds a lock (flock) on it until it ends. The kernel drops the
# lock of a process that was killed; the next process that makes a directory then removes the one that was left. The
# lock and not a pid says whether the owner lives: containers may share /dev/shm and /tmp, and do not see each other's
# pids.

_MEMORY = Path("/dev/shm")  # noqa: S108 - what is made in it has a name of its own, by mkdtemp
_MEMORY_NEEDED: Final = 2 * 1024**3  # bytes; a container's default is 64 MiB
_PREFIX: Final = "fencepost-servers-"
_locks: Final[dict[Path, int]] = {}
"""The open directories whose locks this process holds."""


def owned_directory(prefix: str, parent: Path) -> Path:
    """Make a directory of this process with a name of its own, and remove those whose processes have ended.

    `remove_directory` removes it; so does the next process that calls this function, once this one has ended.
    """
    _remove_what_killed_runs_left(prefix, parent)
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process has removed it before it was locked
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if directory.exists():
            _locks[directory] = lock
            return directory
        os.close(lock)


def remove_directory(directory: Path) -> None:
    """Remove a directory that `owned_directory` or `new_directory` made, with all that is in it."""
    shutil.rmtree(directory)
    if directory in _locks:
        os.close(_locks.pop(directory))


def _remove_what_killed_runs_left(prefix: str, parent: Path) -> None:
    for directory in parent.glob(f"{prefix}*"):
        try:
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # it is another user's, or was removed meanwhile
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # its owner lives
        else:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


def new_directory() -> Path:
    """Make a directory that other users can walk through. The caller removes it, by `remove_directory`."""
    # Not tmp_path: its parents are 0700, and as root PostgreSQL runs as another user.
    if _MEMORY.is_dir():
        _remove_what_killed_runs_left(_PREFIX, _MEMORY)  # they may be what leaves no room
    in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_NEEDED
    directory = owned_directory(_PREFIX, _MEMORY if in_memory else Path(tempfile.gettempdir()))
    directory.chmod(0o755)
    return directory


@contextmanager
def server_directory() -> Iterator[Path]:
    """Give such a directory, and remove it afterwards."""
    directory = new_directory()
    try:
        yield directory
    finally:
        remove_directory(directory)


# Processes that this one has stopped, each with how often: it goes on when the last of its stops ends.
#
# A signal that ends this process (SIGTERM, SIGHUP) ends no block of `with`, so its handler continues all of them
# first, and then does what the signal did before. Only the main thread can set a handler: it is set when this module
# is imported there, and again, above what was set meanwhile, for each stop that begins there. SIGKILL cannot be
# handled.


class Stoppable(Protocol):
    """A process; equal ones are the same process."""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        ...

    def stopped(self) -> bool:
        """Whether it is stopped, or has ended."""
        ...


_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)
_stops: Final[dict[Stoppable, int]] = {}
_lock: Final = threading.RLock()


def stop(process: Stoppable) -> bool:
    """SIGSTOP a process, and count it. False, and not counted, when somebody else has stopped it already."""
    with _lock:
        counted = process in _stops or not process.stopped()
        if counted:
            _stops[process] = _stops.get(process, 0) + 1  # before the signal: a handler may run in between
        process.signal(signal.SIGSTOP)
    return counted


def go_on(process: Stoppable) -> None:
    """Take one stop of a process back; after the last, SIGCONT."""
    with _lock:
        if _stops[process] == 1:
            process.signal(signal.SIGCONT)
            del _stops[process]
        else:
            _stops[process] -= 1


class _Handler:
    """Continues what is stopped, and then lets the signal do what it did before. A fork of this process continues
    nothing.
    """

    def __init__(self, number: signal.Signals) -> None:
        self.before = signal.getsignal(number)
        self._pid = os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            for process in list(_stops):
                process.signal(signal.SIGCONT)
        if callable(self.before):
            self.before(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _handle() -> list[tuple[signal.Signals, _Handler]]:
    """Set handlers where none of these is in place. A signal that is ignored, as under nohup, stays so."""
    fresh: list[tuple[signal.Signals, _Handler]] = []
    if threading.current_thread() is not threading.main_thread():
        return fresh
    for number in _SIGNALS:
        handler = _Handler(number)
        if not isinstance(handler.before, _Handler) and handler.before not in (signal.SIG_IGN, None):
            with suppress(ValueError):  # not the main interpreter
                signal.signal(number, handler)
                fresh.append((number, handler))
    return fresh


@contextmanager
def handled() -> Iterator[None]:
    """In this block a signal that ends this process continues what is stopped."""
    fresh = _handle()
    try:
        yield
    finally:
        for number, handler in fresh:
            before = handler.before
            if signal.getsignal(number) is handler:
                signal.signal(number, before)


_handle()


# Processes as /proc shows them: which are alive, whose children they are; and signals to a process with all below it.
#
# A process is known by its pid and the time of its start, so that a signal never reaches another process that has been
# given the pid of one that ended. A child that gave itself another parent (a daemon) does not belong to the tree.

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
class KnownProcess:
    """One process that was seen alive, by pid and time of start (in ticks since boot)."""

    pid: int
    started: int

    def signal(self, number: signal.Signals) -> None:
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


def tree(pid: int) -> list[KnownProcess]:
    """Return a process and all below it that are alive, parents first. Empty when it has ended."""
    found = [
        KnownProcess(each, started) for each in (pid, *descendants(pid)) if (started := _started(each)) is not None
    ]
    return [each for each in found if each.runs()]


def stop_tree(pid: int) -> list[KnownProcess]:
    """SIGSTOP a process and all below it, and return those that ran, once each thread of all has stopped.

    Stops are counted: each process goes on when `continue_all` was called for the last of them. One that somebody else
    has stopped is not returned: it stays stopped. A thread that still runs may answer a request. TimeoutError when
    they do not stop within twice PATIENCE: then this stop is taken back.
    """
    return [each for each, counted in _stopped_tree(pid).items() if counted]


def _stopped_tree(pid: int) -> dict[KnownProcess, bool]:
    """Do so, and return all of them: with True those whose stop was counted."""
    found: dict[KnownProcess, bool] = {}

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


def continue_all(stopped: list[KnownProcess]) -> None:
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
    found = []
    while pid > 0:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            break
    return found
