"""The server in a gateway process: it listens to nothing, and is handed its connections by the parent (dispatch.py).

A spawned process imports this before signals are taken care of, so it is kept light; worker.py is not.
"""

import asyncio
import functools
import socket
from contextlib import suppress

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .dispatch import REPORT

_AT_ONCE = 16
"""Connections taken before the event loop goes on with requests, and after which the parent is told at once."""


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
        self._taken = self._told = 0
        self._arriving: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        self._protocol = functools.partial(
            HttpToolsProtocol, self.config, self.server_state, self.lifespan.state, _loop=loop
        )
        loop.add_reader(self._channel, self._take)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: say that we live, and what we have."""
        self._report()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more, then drain. Closing the channel closes what is in it."""
        asyncio.get_running_loop().remove_reader(self._channel)
        await asyncio.gather(*self._arriving)
        await super().shutdown(sockets)

    def _take(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                said, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            if not said:  # the parent listens no more, and soon asks us to stop
                asyncio.get_running_loop().remove_reader(self._channel)
                return
            if not descriptors:  # we have too many already: the kernel closed it
                self._taken += 1
                continue
            task = asyncio.create_task(self._open(socket.socket(fileno=descriptors[0])))
            self._arriving.add(task)
            task.add_done_callback(self._arrived)

    async def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        except OSError:  # the client has gone already
            connection.close()

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._arriving.discard(task)
        self._taken += 1
        if self._taken - self._told >= _AT_ONCE:  # it hands over only so many that it does not know to be taken
            self._report()

    def _report(self) -> None:
        with suppress(OSError):  # the parent is gone or stuck: the next report will do
            self._channel.send(REPORT.pack(self._taken, len(self.server_state.connections)))
            self._told = self._taken
