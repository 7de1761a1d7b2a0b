"""A TCP proxy that counts what a server sends. In the test's own loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit


class Counted:
    """How many bytes have come from the server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 5432
        self._links: set[asyncio.Task[None]] = set()
        self.bytes = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        for link in (self._pump(reader, far_writer, 0), self._pump(far_reader, writer, 1)):
            task = asyncio.get_running_loop().create_task(link)
            self._links.add(task)
            task.add_done_callback(self._links.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: int) -> None:
        try:
            while piece := await reader.read(65536):
                self.bytes += len(piece) * counts
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass  # an end has gone
        finally:
            writer.close()

    async def close(self) -> None:
        while self._links:
            await asyncio.wait(self._links)


@asynccontextmanager
async def counting(url: str) -> AsyncIterator[tuple[str, Counted]]:
    """Give the URL of the same database by way of the proxy, and what it counts. Its clients are gone at the end."""
    counted = Counted(url)
    server = await asyncio.start_server(counted.carry, "127.0.0.1", 0)
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    port = server.sockets[0].getsockname()[1]
    try:
        yield urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}" if login else f"127.0.0.1:{port}")), counted
    finally:
        server.close()
        await counted.close()
