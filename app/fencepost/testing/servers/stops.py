"""Processes that this one has stopped, each with how often: it goes on when the last of its stops ends.

A signal that ends this process (SIGTERM, SIGHUP) ends no block of `with`, so its handler continues all of them first,
and then does what the signal did before. Only the main thread can set a handler: it is set when this module is
imported there, and again, above what was set meanwhile, for each stop that begins there. SIGKILL cannot be handled.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, Protocol


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
