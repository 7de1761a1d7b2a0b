"""Requests as bytes: what no client of HTTP would send."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fencepost.testing.servers.processes import PATIENCE


@dataclass(frozen=True)
class Answer:
    """An answer; `body` is its JSON, or None."""

    status: int
    headers: dict[str, str]
    body: Any


@dataclass
class RawConnection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, url: str) -> "RawConnection":
        where = urlsplit(url)
        return cls(*await asyncio.open_connection(where.hostname, where.port))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        """Read one answer; TimeoutError after PATIENCE. IncompleteReadError: the connection ended without one."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(status.split()[1]), headers, json.loads(body) if body else None)

    async def ended(self) -> bool:
        """Whether the gateway has closed it, with nothing more said. Waits for the one or the other."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.writer.transport.abort()


async def ask(url: str, request: bytes) -> Answer:
    """Send bytes on a connection of their own, and read the answer."""
    connection = await RawConnection.open(url)
    try:
        await connection.send(request)
        return await connection.answer()
    finally:
        connection.close()
