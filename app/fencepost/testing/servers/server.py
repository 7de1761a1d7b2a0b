"""A server process of the harness: ended by its pid, and gone when the process that started it is."""

import asyncio
import fcntl
import functools
import os
import queue
import shutil
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from fencepost.server.ops.parent_death import die_with_parent
from fencepost.testing.servers.processes import PATIENCE, KnownProcess, continue_all, kill_tree, stop_tree, wait_until

# The thread that starts servers: it lives as long as this process.
#
# The kernel ends a server together with the thread that started it (die_with_parent). A test that kills a server in a
# thread of its own starts it again there, and that thread ends soon.

T = TypeVar("T")

_lock: Final = threading.Lock()
_queues: Final[dict[int, "queue.SimpleQueue[Callable[[], None]]"]] = {}
"""By pid: a fork has no thread but its own."""


def in_lasting_thread(work: Callable[[], T]) -> T:
    """Call a function in a thread that ends only with this process; called in the main thread, it is that one.

    Raises what the function raises.
    """
    if threading.current_thread() is threading.main_thread():
        return work()
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again where it was called
            done.set_exception(error)

    _requests().put(run)
    found: T = done.result()
    return found


def _requests() -> "queue.SimpleQueue[Callable[[], None]]":
    with _lock:
        if os.getpid() not in _queues:
            requests: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(requests,), name="starter of servers", daemon=True).start()
            _queues[os.getpid()] = requests
        return _queues[os.getpid()]


def _serve(requests: "queue.SimpleQueue[Callable[[], None]]") -> None:
    while True:
        requests.get()()


_READY_WITHIN = 2 * PATIENCE
_STOPS_WITHIN = PATIENCE


class ServerError(Exception):
    """A server of the harness cannot be run. The message has the end of its log, or what to install."""


class Started(ABC):
    """What a block of `with` starts, and stops at its end; also where it could not be started to the end."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


class ChildProcess(Protocol):
    """A process of ours that was started: one of subprocess, or of a launcher."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code once it has ended; subprocess.TimeoutExpired after so many seconds."""
        ...


class Server(Started):
    """One server process, which can be killed, paused, and started again on its data.

    `ready` says whether it serves. `log` gets what it prints. `environment` replaces that of this process.
    It can be started in any thread, and ends with this process.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command, self._log, self._ready, self._environment = command, log, ready, environment
        self._process: ChildProcess | None = None
        self._paused: list[KnownProcess] = []

    @property
    def pid(self) -> int:
        """The pid of the process that runs. ServerError when none does."""
        if self._process is None:
            raise ServerError(f"{self._command[0]} does not run")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it without waiting for it."""
        self._process = in_lasting_thread(self._spawn)

    def _spawn(self) -> ChildProcess:
        with self._log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - a program of ours, no shell
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=functools.partial(die_with_parent, os.getpid(), signal.SIGKILL),  # noqa: PLW1509 - only prctl
            )

    def wait(self) -> None:
        """Return once it serves. ServerError when it ends instead, or takes longer than twice PATIENCE."""

        def serves_or_ended() -> bool:
            return not self.running or self._ready()

        with suppress(TimeoutError):
            wait_until(serves_or_ended, within=_READY_WITHIN)
            if self.running:
                return
        code = None if self._process is None else self._process.poll()
        raise ServerError(f"{self._command[0]} does not serve ({code}): {self.log_end()}")

    async def serves(self) -> None:
        """Do the same, leaving the event loop alone."""
        await asyncio.to_thread(self.wait)

    def log_end(self) -> str:
        """Return the last 2000 bytes of what it printed."""
        return self._log.read_bytes()[-2000:].decode(errors="replace")

    def crash(self) -> None:
        """SIGKILL it with all below it, and return once it has ended."""
        if self._process is not None:
            kill_tree(self._process.pid)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # what is no longer below it
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP it with all below it, and return once each thread has stopped: one that runs may still answer."""
        self._paused += stop_tree(self.pid)

    def resume(self) -> None:
        stopped, self._paused = self._paused, []
        continue_all(stopped)

    def stop(self) -> None:
        """End it, and return once it has ended: with SIGTERM, and by force after twenty seconds."""
        if self._process is None:
            return
        self.resume()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(_STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            self.crash()
        self._process = None

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait()
        except BaseException:
            self.crash()
            raise
        return self


# What is fetched or made once for each machine: $FENCEPOST_CACHE, or else ~/.cache/fencepost.


def cache() -> Path:
    """Where it is kept. The directory need not be there."""
    return Path(os.environ.get("FENCEPOST_CACHE") or Path.home() / ".cache/fencepost")


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Give the file or directory of this name. The first process that asks for it makes it: `make` gets a path where
    nothing is yet. Others wait meanwhile. What `make` left unfinished is never found. Raises ServerError.
    """
    place = cache() / name
    if place.exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = place.with_name(f"{name}.lock").open("ab")
    except OSError as error:
        raise ServerError(f"nothing can be kept in {cache()}: {error}; FENCEPOST_CACHE names another place") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            unfinished = place.with_name(f"{name}.unfinished")
            if unfinished.exists():  # whoever made it was killed
                shutil.rmtree(unfinished)
            unfinished.mkdir()
            try:
                make(unfinished / name)
                (unfinished / name).rename(place)
            finally:
                shutil.rmtree(unfinished)
    return place
