"""How connections get to several workers: one thread accepts them all, and hands each to the worker with the fewest.

Workers that share a listening socket each accept as much as they can get: of 64 connections one may take 50, and their
requests queue up for it while the other idles. SO_REUSEPORT throws dice instead. So only this thread of the
parent listens:

    client ── connect ──▶ listener ── accept ──▶ Dispatcher ── channel (a socket pair for each worker) ──▶ worker

A channel carries descriptors down (SCM_RIGHTS, one with each byte) and Reports up: how many of them the worker has
taken, and how many connections it has open. A worker's load is what it has open and what it has not taken yet; the
fewest wins, and who is next in turn among equals. So workers stay even when connections end unevenly, and a worker that
was replaced fills up first.

- A worker that has reported once serves. Ten a second follow. One that is silent for two seconds (stopped, or
  stuck) gets connections only if all are silent.
- A worker that ends, or begins to drain, closes its end of the channel: it gets no more. What it had not taken
  is closed by the kernel, as are the connections of a process that dies, so no client waits for ever.
- While no worker can take anything the thread does not accept: the kernel's queue holds new connections, and refuses
  what it cannot hold, as it does without us.
- `stop` closes the listener, and a connection accepted in vain. The channels end after what is in them.
"""

import errno
import functools
import logging
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

REPORT: Final = struct.Struct("QQ")
"""Connections taken since the worker began, and connections open now."""

SILENT_AFTER: Final = 2.0
"""Seconds without a report after which a worker is passed over."""

_UNTAKEN: Final = 64
"""How many connections may wait in a channel. More than that is for the kernel's queue, from where others get them."""

_NO_ROOM: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

logger = logging.getLogger("uvicorn.error")


@dataclass(eq=False, slots=True)
class WorkerChannel:
    """What the dispatcher knows of a worker: its channel, and what is in it."""

    channel: socket.socket
    handed: int = 0
    taken: int = 0
    open: int = 0
    reported_at: float = 0.0
    clogged: bool = False

    @property
    def full(self) -> bool:
        """Whether nothing more can be handed to it until it reports."""
        return self.clogged or self.handed - self.taken >= _UNTAKEN

    @property
    def load(self) -> int:
        """How many connections it has, or will have once it has taken all that it was handed."""
        return self.open + self.handed - self.taken


class Dispatcher(threading.Thread):
    """The thread that accepts. The listeners are its own from `start` on. A worker distinguishes their connections by
    the port of its own end.
    """

    def __init__(self, *listeners: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name="dispatcher", daemon=True)
        for listener in listeners:
            listener.setblocking(False)
        self._listeners = listeners
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        self._new: SimpleQueue[WorkerChannel] = SimpleQueue()
        self._workers: list[WorkerChannel] = []  # of workers that serve; who is next in turn comes first
        self._in_hand: socket.socket | None = None
        self._accepting = False
        self._stopping = False

    @property
    def serving(self) -> int:
        """How many workers take connections."""
        return len(self._workers)

    def add(self) -> socket.socket:
        """Make a channel for a new worker, and give the worker's end of it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._new.put(WorkerChannel(ours))
        with suppress(OSError):  # the thread has ended: the supervisor will see it
            self._waker.send(b"\0")
        return theirs

    def stop(self) -> None:
        """Stop listening. Returns once nothing is accepted or handed over any more."""
        self._stopping = True
        with suppress(OSError):  # it has ended already
            self._waker.send(b"\0")
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        """Accept and hand over until stopped."""
        self._selector.register(self._woken, selectors.EVENT_READ, self._add_new)
        try:
            while not self._stopping:
                for key, _ in self._selector.select():
                    key.data()
        finally:
            for key in list(self._selector.get_map().values()):  # the workers' channels among them
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
            self._selector.close()
            for listener in self._listeners:
                listener.close()
            self._waker.close()
            if self._in_hand is not None:
                self._in_hand.close()

    def _add_new(self) -> None:
        self._woken.recv(4096)
        while not self._new.empty():
            worker = self._new.get()

            def read(worker: WorkerChannel = worker) -> None:
                self._read_reports(worker)

            self._selector.register(worker.channel, selectors.EVENT_READ, read)

    def _read_reports(self, worker: WorkerChannel) -> None:
        """Read a worker's reports, of which the last one counts, or learn that it takes no more."""
        try:
            reports = worker.channel.recv(256 * REPORT.size)
        except OSError:
            reports = b""
        if not reports:
            self._drop(worker)
            return
        if worker not in self._workers:
            self._workers.append(worker)
        worker.taken, worker.open = REPORT.unpack(reports[-REPORT.size :])
        worker.reported_at, worker.clogged = self._clock(), False
        if self._in_hand is not None:
            connection, self._in_hand = self._in_hand, None
            self._hand(connection)
        self._listen_if(self._next() is not None)

    def _drop(self, worker: WorkerChannel) -> None:
        if worker.channel.fileno() >= 0:
            self._selector.unregister(worker.channel)
            worker.channel.close()
        if worker in self._workers:
            self._workers.remove(worker)

    def _listen_if(self, wanted: bool) -> None:
        for listener in self._listeners:
            if wanted and not self._accepting:
                self._selector.register(listener, selectors.EVENT_READ, functools.partial(self._accept, listener))
            elif self._accepting and not wanted:
                self._selector.unregister(listener)
        self._accepting = wanted

    def _accept(self, listener: socket.socket) -> None:
        """Accept what is there, as long as a worker can take it."""
        while self._next() is not None:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:  # the client has gone already
                    continue
                logger.warning("Connections cannot be accepted: %s", error.strerror)
                break
            self._hand(connection)
        self._listen_if(wanted=False)  # until a worker reports

    def _next(self) -> WorkerChannel | None:
        """Choose the worker for the next connection."""
        now = self._clock()
        free = [worker for worker in self._workers if not worker.full and self._in_hand is None]
        return min(free, key=lambda worker: (now - worker.reported_at > SILENT_AFTER, worker.load), default=None)

    def _hand(self, connection: socket.socket) -> None:
        """Hand a connection to the worker with the fewest; keep it in hand when none can take it."""
        while (worker := self._next()) is not None:
            try:
                socket.send_fds(worker.channel, [b"\0"], [connection.fileno()])
            except OSError as error:
                if isinstance(error, BlockingIOError) or error.errno == errno.ETOOMANYREFS:
                    worker.clogged = True
                else:
                    self._drop(worker)
                continue
            connection.close()
            worker.handed += 1
            self._workers.remove(worker)
            self._workers.append(worker)
            return
        self._in_hand = connection
