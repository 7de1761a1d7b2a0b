"""A TCP proxy that can fall silent, hang up, or lose answers: what networks do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Proxy:
    """Stands between a client and a gateway."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname, parts.port
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._losing = 0
        self._pumps: set[asyncio.Task[None]] = set()
        self.lost = asyncio.Event()
        self.url = ""

    def silence(self) -> None:
        """Forward nothing from now on; connections stay open."""
        self._speaks.clear()

    def speak(self) -> None:
        """Forward again, also what was held back."""
        self._speaks.set()

    def lose_next_answer(self) -> None:
        """Hang up when the next answer comes, instead of forwarding it."""
        self._losing += 1
        self.lost.clear()

    def swallow_next_answer(self) -> None:
        """Say nothing when the next answer comes, and keep the connection open."""
        self._losing -= 1
        self.lost.clear()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        for pump in (self._pump(reader, far_writer), self._pump(far_reader, writer, answers=True)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def close(self) -> None:
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False) -> None:
        with contextlib.suppress(OSError):
            try:
                while data := await reader.read(65536):
                    await self._speaks.wait()
                    if answers and self._losing:
                        swallow = self._losing < 0
                        self._losing -= -1 if swallow else 1
                        self.lost.set()
                        if swallow:
                            await asyncio.get_running_loop().create_future()
                        break
                    writer.write(data)
                    await writer.drain()
                await self._speaks.wait()
            finally:
                writer.transport.abort() if answers else writer.close()


@asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[Proxy]:
    """Run a proxy in the test's own loop."""
    proxy = Proxy(url)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
