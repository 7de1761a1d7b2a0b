"""A real HTTP server that gives a JWKS, or whatever else a test has it send."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Give an answer of HTTP/1.1."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@dataclass
class JwksServer:
    """`says`: what each request gets. While `gate` is clear, requests wait."""

    says: bytes
    url: str = ""
    asked: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)

    def give(self, document: Mapping[str, Any]) -> None:
        """Give this document from now on."""
        self.says = answer(json.dumps(document).encode())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            self.waiting.set()
            await self.gate.wait()
            writer.write(self.says)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def jwks_server(document: Mapping[str, Any], tls: ssl.SSLContext | None = None) -> AsyncIterator[JwksServer]:
    """Run one on a free port of loopback; with `tls` by https."""
    there = JwksServer(b"")
    there.give(document)
    there.gate.set()
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0, ssl=tls)
    there.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks"
    try:
        yield there
    finally:
        there.gate.set()
        server.close()
        await server.wait_closed()
