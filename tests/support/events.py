"""Reading a stream of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from fencepost.testing.servers.processes import PATIENCE

WITHIN = PATIENCE  # seconds


@dataclass(frozen=True)
class Event:
    """One event. `data` is its JSON."""

    kind: str
    id: str | None
    data: Any

    @property
    def owner(self) -> str | None:
        leader = self.data["leader"]
        return None if leader is None else str(leader["owner"])


class Events:
    """An open stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> Event:
        """Return the next event, leaving comments out. StopAsyncIteration at the end of the stream."""
        return await asyncio.wait_for(self._next(), WITHIN)

    async def ended(self) -> None:
        """Return once the stream has ended as it should, and sent nothing more."""

        async def to_the_end() -> list[str]:
            return [line async for line in self._lines if line and not line.startswith(":")]

        assert await asyncio.wait_for(to_the_end(), WITHIN) == []

    async def _next(self) -> Event:
        fields: dict[str, str] = {}
        while line := await anext(self._lines):
            name, _, value = line.partition(": ")
            fields[name] = value
        if "data" not in fields:  # a comment, or the time after which to connect again
            return await self._next()
        return Event(fields["event"], fields.get("id"), json.loads(fields["data"]))


@asynccontextmanager
async def streaming(client: httpx.AsyncClient, name: str, **query: str) -> AsyncIterator[Events]:
    """Watch an election until the block ends."""
    async with client.stream("GET", "/v1/elections/events", params={"name": name, **query}) as response:
        assert response.status_code == 200, await response.aread()
        yield Events(response)
