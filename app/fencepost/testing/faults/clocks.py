"""A wall clock that steps, for processes that the harness starts.

libfaketime stands between a process and its clock. It is loaded when the process starts (LD_PRELOAD), so the process
must be started with the environment of a `SteppableClock`. What can be stepped so is the wall clock (CLOCK_REALTIME) of
Python programs: time.time(), datetime.now(). What cannot: programs that ask the kernel without libc (Go: etcd,
Kubernetes), Debian's Redis, which does not start with it, processes that run already, and the machine's clock, which
takes rights that a test should not have. Monotonic clocks go on as before.
"""

import math
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fencepost.testing.faults.errors import FaultUnavailableError
from fencepost.testing.faults.fault import fault

_PLACES: Final = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime", "/usr/lib64/faketime")
_LIBRARY: Final = "libfaketimeMT.so.1"


class SteppableClock:
    """A clock for processes that are started with its `environment`, and for all that these start.

    Use it with `with`, or call `close`. FaultUnavailableError where libfaketime is not installed.
    """

    def __init__(self) -> None:
        library = _library()
        handle, name = tempfile.mkstemp(prefix="fencepost-clock-")
        os.close(handle)
        self._file = Path(name)
        self._file.chmod(0o644)  # PostgreSQL runs as another user
        self._library = library
        self._lock = threading.Lock()
        self._base = 0.0
        self._steps: list[float] = []
        self.step_to(0.0)

    @property
    def offset(self) -> float:
        """By how many seconds it is ahead now: where `step_to` has set it, and the steps of the open blocks."""
        return self._base + sum(self._steps)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Give the environment that a process needs to have this clock, over `base` (by default this process's)."""
        base = os.environ if base is None else base
        preload = " ".join(filter(None, [str(self._library), base.get("LD_PRELOAD")]))
        return {
            **base,
            "LD_PRELOAD": preload,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step_to(self, offset: float) -> None:
        """Let the clock be ahead by exactly so many seconds from now on; negative: behind.

        Steps of blocks that are open are over with that.
        """
        with self._lock:
            self._base, self._steps = offset, []
            self._write()

    def step(self, seconds: float) -> None:
        """Add a step of so many seconds."""
        with self._lock:
            self._steps.append(seconds)
            self._write()

    def step_back(self, seconds: float) -> None:
        """Take a step of so many seconds away, unless `step_to` has ended it."""
        with self._lock, suppress(ValueError):
            self._steps.remove(seconds)
            self._write()

    def _write(self) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self.offset:+.6f}\n")
        fresh.chmod(0o644)
        fresh.replace(self._file)  # in one step: a process reads the file at each look at the clock

    def close(self) -> None:
        """Remove its file. Processes that still run with it have the machine's time again."""
        self._file.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@fault
def clock_stepped(clock: SteppableClock, seconds: float) -> Iterator[None]:
    """Let a wall clock be ahead by so many seconds, negative: behind, until the block ends.

    It steps at once, for all processes that have it. Steps that overlap add up. At the end it steps
    back, which is a step as well. ValueError for a step that is no number of seconds.
    """
    if not math.isfinite(seconds):
        raise ValueError(f"a clock steps by a number of seconds, not {seconds}")
    try:
        clock.step(seconds)
        yield
    finally:
        clock.step_back(seconds)


def _library() -> Path:
    for place in _PLACES:
        for folder in sorted(Path("/").glob(place.lstrip("/"))):
            if (folder / _LIBRARY).is_file():
                return folder / _LIBRARY
    raise FaultUnavailableError("no libfaketime, which steps the clock of a process: apt-get install faketime")
