"""Sees the ends of connections that are not read for now.

The event loop finds out that a client has closed its connection, or its half of it, when it reads; and while a request
waits behind another one, nothing is read. Linux tells it without reading (EPOLLRDHUP). So an epoll of our own is asked
for that alone, and the event loop watches the epoll: that costs nothing until a connection ends.
"""

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakKeyDictionary


class Ends:
    """The connections of one event loop of which somebody wants to know the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        self._reports: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._report)

    def watch(self, descriptor: int, report: Callable[[], None]) -> None:
        """Call this once the client of a connection sends nothing more, which it may have said already."""
        self._reports[descriptor] = report
        self._epoll.register(descriptor, select.EPOLLRDHUP)

    def forget(self, descriptor: int) -> None:
        """Watch it no longer, before it is closed: its number may be another's then."""
        if self._reports.pop(descriptor, None) is not None:
            with suppress(OSError):
                self._epoll.unregister(descriptor)

    def _report(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            report = self._reports.get(descriptor)
            self.forget(descriptor)
            if report is not None:
                report()


_OF: "WeakKeyDictionary[asyncio.AbstractEventLoop, Ends]" = WeakKeyDictionary()


def ends_of(loop: asyncio.AbstractEventLoop) -> Ends:
    """Give those of an event loop."""
    found = _OF.get(loop)
    if found is None:
        found = _OF[loop] = Ends(loop)
    return found
