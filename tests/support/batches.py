"""A batch, sent and read as its bytes go: both ways at the same time."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.http.raw import RawConnection

HEAD = (
    b"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    b"Transfer-Encoding: chunked\r\n"
)


def written(line: object) -> bytes:
    """Write a line: a value as JSON, bytes as they are."""
    return line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"


def patch(key: str, token: object, idempotency_key: str | None = None, /, **changes: object) -> dict[str, object]:
    """Give a line that changes an order."""
    once = {} if idempotency_key is None else {"idempotency_key": idempotency_key}
    return {"method": "PATCH", "path": f"orders/{key}?select=order_id", "token": token, "body": changes, **once}


@dataclass
class Sent:
    """A batch under way."""

    connection: RawConnection
    begun: bool = False
    left: bytes = field(default=b"")

    @classmethod
    async def open(cls, url: str, credential: str = "") -> "Sent":
        sent = cls(await RawConnection.open(url))
        authorization = f"Authorization: Bearer {credential}\r\n".encode() if credential else b""
        await sent.connection.send(HEAD + authorization + b"\r\n")
        return sent

    async def send(self, *lines: object) -> None:
        data = b"".join(written(line) for line in lines)
        await self.connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.connection.send(b"0\r\n\r\n")

    async def next(self) -> dict[str, Any] | None:
        """Read a verdict; None at the end of the answer. IncompleteReadError: the answer was cut off."""
        reader = self.connection.reader
        if not self.begun:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            self.begun = True
        while b"\n" not in self.left:
            size = int(await reader.readuntil(b"\r\n"), 16)
            part = (await reader.readexactly(size + 2))[:size]
            if not part:
                assert not self.left
                return None
            self.left += part
        line, _, self.left = self.left.partition(b"\n")
        verdict: dict[str, Any] = json.loads(line)
        return verdict

    async def rest(self) -> list[dict[str, Any]]:
        verdicts = []
        while (verdict := await self.next()) is not None:
            verdicts.append(verdict)
        return verdicts


async def batch(url: str, lines: Iterable[object]) -> list[dict[str, Any]]:
    """Send a whole batch, and give its verdicts."""
    sent = await Sent.open(url)

    async def send() -> None:
        for line in lines:
            await sent.send(line)
        await sent.end()

    try:
        verdicts: list[dict[str, Any]] = (await asyncio.gather(sent.rest(), send()))[0]
    finally:
        sent.connection.close()
    return verdicts
