"""A TCP proxy that cuts connections: on demand, when it sees certain bytes, or at a byte chosen by chance.

For what a `Link` of the harness does not do: mute a connection at certain bytes of any protocol and keep it open, and
cut each connection at a byte of its own.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

Budget = Callable[[], int | None]
"""Gives, for each new connection, after how many bytes it is cut; None: never."""


class _Link:
    """One connection through the proxy. A cut ends the near side; the far side may stay open, as in real networks."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter, left: int | None) -> None:
        self.near, self.far, self.left = near, far, left
        self.muted = self.cut = False


class CuttingProxy:
    """Stands before a server, in the test's own loop."""

    def __init__(self, host: str, port: int, budget: Budget, chance: random.Random) -> None:
        self._host, self._port = host, port
        self._budget, self._chance = budget, chance
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.cutting = True
        self.refusing = False
        self.mute_after: bytes | None = None
        """Once a client has sent this, it gets nothing any more on that connection."""
        self.mute_skips = 0
        """How often it may be sent before that."""
        self.muted = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, far_writer, self._budget())
        self._links.add(link)
        for pump in (self._pump(link, reader, far_writer, to_server=True), self._pump(link, far_reader, writer)):
            self._spawn(pump)

    def cut_all(self, *, half_open: bool = True) -> None:
        """End every client's side now; the server notices only unless `half_open`."""
        for link in list(self._links):
            self._cut(link, half_open=half_open)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links:
            link.near.transport.abort()
            link.far.transport.abort()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cut(self, link: _Link, *, half_open: bool) -> None:
        if link.cut:
            return
        link.cut = True
        self.cuts += 1
        link.near.transport.abort()
        if not half_open:
            link.far.transport.abort()

    async def _pump(
        self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_server: bool = False
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    if link.cut or (link.muted and not to_server):
                        continue  # swallowed
                    if to_server and self.mute_after is not None and self.mute_after in data:
                        link.muted = self.mute_skips == 0
                        self.mute_skips = max(self.mute_skips - 1, 0)
                    if self.cutting and link.left is not None:
                        data, whole = data[: link.left], len(data)
                        link.left -= whole
                    writer.write(data)
                    await writer.drain()
                    if link.muted:
                        self.muted.set()
                    if self.cutting and link.left is not None and link.left <= 0:
                        self._cut(link, half_open=self._chance.random() < 0.5)
        finally:
            if not link.cut:
                link.near.transport.abort()
                link.far.transport.abort()
            elif not to_server:  # the server has hung up, or the test is over
                link.far.transport.abort()
            if not to_server:
                self._links.discard(link)


@asynccontextmanager
async def cutting_proxy(
    url: str, budget: Budget = lambda: None, seed: int = 0
) -> AsyncIterator[tuple[CuttingProxy, str]]:
    """Run a proxy before the server of a URL; gives it, and the URL that leads through it."""
    parts = urlsplit(url)
    proxy = CuttingProxy(parts.hostname or "127.0.0.1", parts.port or 80, budget, random.Random(seed))
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, url.replace(f":{parts.port}", f":{port}", 1)
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
