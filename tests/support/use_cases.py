"""The use cases' gateway on a race's database, requests for it, and what came of them.

async with open_gateway(race.dsn) as gateway:
    assert result_of(await patch(gateway, keyed("k", 30, status="paid"))) == "ok"
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from tests.http.raw import RawConnection
from tests.support.manual_clock import UNHURRIED
from tests.support.racing import Key, Race, parts

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.token import Token
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.group_commit import GroupCommit
from fencepost.server.gateway.outcomes import Done, Outcome, Turns
from fencepost.server.gateway.takers import NextRows
from fencepost.server.gateway.use_cases import write
from fencepost.server.gateway.write import (
    NO_BODY,
    Body,
    IdempotencyKey,
    Listed,
    Matching,
    OneRow,
    Preferences,
    Verb,
    Write,
)
from fencepost.server.locks.builtin import PostgresLocks, Queue
from fencepost.server.postgres.catalog_cache import CatalogCache
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.query import Filter
from fencepost.server.times import Times
from fencepost.testing.servers.processes import PATIENCE

# A batch, sent and read as its bytes go: both ways at the same time.

HEAD = (
    b"POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
    b"Transfer-Encoding: chunked\r\n"
)


def written(line: object) -> bytes:
    """Write a line: a value as JSON, bytes as they are."""
    return line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"


def patch_line(key: str, token: object, idempotency_key: str | None = None, /, **changes: object) -> dict[str, object]:
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


# Reading a stream of server-sent events.

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


SHOWN = Preferences("representation")


@asynccontextmanager
async def open_gateway(
    dsn: str,
    *,
    pool_size: int = 1,
    max_rows: int = 100,
    lock_timeout: float = 10.0,
    batch_pool_size: int = 4,
    lease_pool_size: int = 2,
    times: Times = UNHURRIED,
) -> AsyncIterator[Gateway]:
    """Build the use cases' gateway. With one connection in its pool, `gateway_pid` is where its statements run."""
    limits = Limits(
        pool_size, lock_timeout=lock_timeout, batch_pool_size=batch_pool_size, lease_pool_size=lease_pool_size
    )
    database = await Database.open(dsn, limits, times=times)
    try:
        catalog = CatalogCache(database)
        await catalog.reload()
        locks = PostgresLocks(database, Queue(database, print, times))
        turns = Turns(at_once=pool_size, wait=lock_timeout)
        reads = GroupCommit(database, reads=True, times=times)
        group = GroupCommit(database, times=times)
        taking = NextRows(times, database.waiting)
        yield Gateway(
            *(database, catalog, lambda _: None, max_rows, locks, group, turns, reads, 10**7, taking), times=times
        )
    finally:
        await database.close()


async def gateway_pid(gateway: Gateway) -> int:
    async with gateway.database.connection() as connection:
        return connection.get_server_pid()


async def grants_pid(gateway: Gateway) -> int:
    """Where locks are taken, while no other request about leases is under way."""
    async with gateway.database.for_leases() as connection:
        return connection.get_server_pid()


def body(**values: object) -> Body:
    return Body(json.dumps(values).encode(), tuple(values), values)


def keyed(key: Key, token: int, table: str = "orders", **values: object) -> Write:
    """A write of one row: give it to patch, put or delete."""
    return Write("patch", table, OneRow(parts(key)), Token(token), body(**values), preferences=SHOWN)


def matching(filters: tuple[Filter, ...], token: int, table: str = "orders", **values: object) -> Write:
    """A write of all rows that match: give it to patch or delete."""
    given = body(**values) if values else NO_BODY
    return Write("patch", table, Matching(filters), Token(token), given, preferences=SHOWN)


def listed(token: int, *rows: Mapping[str, object], table: str = "orders") -> Write:
    """A write of the rows of an array: give it to post or patch."""
    given = Body(json.dumps(rows).encode(), tuple(rows[0]), {})
    return Write("post", table, Listed(len(rows)), Token(token), given, preferences=SHOWN)


def once(name: str = "k1", payload: bytes = b"payload") -> IdempotencyKey:
    return IdempotencyKey(name, payload)


async def patch(gateway: Gateway, asked: Write) -> Outcome:
    return await _decide(gateway, asked, "patch")


async def put(gateway: Gateway, asked: Write) -> Outcome:
    return await _decide(gateway, asked, "put")


async def post(gateway: Gateway, asked: Write) -> Outcome:
    return await _decide(gateway, asked, "post")


async def delete(gateway: Gateway, asked: Write) -> Outcome:
    return await _decide(gateway, asked, "delete")


async def _decide(gateway: Gateway, asked: Write, verb: Verb) -> Outcome:
    return await write(gateway, replace(asked, verb=verb))


def result_of(answer: Outcome) -> str:
    """Sum an answer up: ok, created, or the problem's code."""
    if isinstance(answer, Problem):
        return answer.name
    assert isinstance(answer, Done)
    return "created" if answer.created else "ok"


# A request to the gateway that waits for another transaction.


async def answer_after(
    race: Race, gateway: Gateway, *earlier: Awaitable[object], request: Coroutine[Any, Any, Outcome]
) -> Outcome:
    """Do what is earlier in a transaction, on `race.a`; commit once the request waits for it. Give the answer."""
    holder = await race.begin(race.a)
    for each in earlier:
        await each
    waiter = await race.waits_at(await gateway_pid(gateway), request)
    await holder.commit()
    return await waiter
