"""The server in a gateway process: it listens to nothing, and is handed its connections by the parent (dispatch.py).

A spawned process imports this before signals are taken care of, so it is kept light; worker.py is not.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

from fencepost.server.serving.dispatch import REPORT
from fencepost.server.serving.protocol import GuardedProtocol

_AT_ONCE = 16
"""Connections taken before the event loop goes on with requests, and after which the parent gets a report at once."""


class HandedProtocol(GuardedProtocol):
    """The protocol of a connection that was handed over, which reports the end of its connection."""

    def __init__(self, server: uvicorn.Server, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state, loop)
        self._ended = ended

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up, and report the end."""
        super().connection_lost(exc)
        self._ended()


class WorkerServer(uvicorn.Server):
    """uvicorn's server on a channel instead of a listening socket.

    uvicorn sees the connections as its own, in `server_state.connections`: its limits, keep-alive and draining hold.
    """

    _channel: socket.socket

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections once the application is up."""
        await super().startup([])
        (self._channel,) = sockets or []
        self._channel.setblocking(False)
        self._taken = self._reported = 0
        self._held: set[socket.socket] = set()
        self._arriving: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_reader(self._channel, self._take)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; a start that waits for PostgreSQL ends at once."""
        if not self.started:
            # An exception would be lost where it meets a callback of uvloop's or asyncpg's, which log it and go on.
            os._exit(0)
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: report that this worker lives, and its connections."""
        self._report()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take what the parent has accepted, for it accepts no more, then drain."""
        while self._take_one():
            pass
        asyncio.get_running_loop().remove_reader(self._channel)
        await asyncio.gather(*self._arriving)
        await super().shutdown(sockets)

    def _take(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._take_one():
                break
        if (
            self._taken - self._reported >= _AT_ONCE
        ):  # the parent hands over only so many that it does not know to be taken
            self._report()

    def _take_one(self) -> bool:
        """Take a connection; false when there is none."""
        try:
            byte, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # the parent has gone, and had not read our last report
            byte, descriptors = b"", []
        if not byte:  # the parent listens no more, and soon asks us to stop
            asyncio.get_running_loop().remove_reader(self._channel)
            return False
        self._taken += 1
        if descriptors:  # else we have too many already, and the kernel closed it
            connection = socket.socket(fileno=descriptors[0])
            self._held.add(connection)
            task = asyncio.create_task(self._open(connection))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)
        return True

    async def _open(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()

        def ended() -> None:
            self._held.discard(connection)

        connection.setblocking(False)
        try:
            await loop.connect_accepted_socket(lambda: HandedProtocol(self, loop, ended), connection)
        except OSError:  # the client has gone already
            connection.close()
            ended()

    def _report(self) -> None:
        # Both figures are of one moment: a connection counted twice, or not at all, would mislead the next one.
        with suppress(OSError):  # the parent is gone or stuck: the next report will do
            self._channel.send(REPORT.pack(self._taken, len(self._held)))
            self._reported = self._taken
