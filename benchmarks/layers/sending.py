"""How a worker passes an event on: into the queue or to the table, with the fence or without it."""

import json
from typing import Protocol, cast

import asyncpg

from benchmarks.layers.layers import Event, Setup
from fencepost import Client, StaleToken
from fencepost.server.postgres import queues
from fencepost.server.postgres.queues import PARTITIONS, MessageRow
from fencepost.server.queues.log import partition_of

UPDATE = "UPDATE orders SET version = $2 WHERE order_id = $1"


class Sender(Protocol):
    """One way of doing it."""

    async def send(self, event: Event, token: int) -> None:
        """Write it, or queue it; returns when that is certain."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class Fenced:
    """Through the gateway: each write has a token, its grant's or its place in the queue, and an Idempotency-Key."""

    def __init__(self, url: str, *, queue: bool) -> None:
        self._client = Client(url)
        self._queue = queue

    async def send(self, event: Event, token: int) -> None:
        """PATCH the order. A refusal is an answer: a newer holder has written."""
        changes = {"version": event.version}
        if self._queue:
            await self._client.submit.patch("orders", event.order, changes, idempotency_key=event.id)
            return
        try:
            await self._client.patch("orders", event.order, changes, token=token, idempotency_key=event.id)
        except StaleToken:
            return

    async def close(self) -> None:
        """Close the client."""
        await self._client.aclose()


class Plain:
    """Without the gateway: an UPDATE, or a message in the same log, which a plain consumer makes an UPDATE of."""

    def __init__(self, pool: "asyncpg.Pool[asyncpg.Record]", *, queue: bool) -> None:
        self._pool = pool
        self._queue = queue

    async def send(self, event: Event, token: int) -> None:  # noqa: ARG002 - no receiver looks at it
        """UPDATE the order, or append."""
        async with self._pool.acquire() as pooled:
            connection = cast("asyncpg.Connection", pooled)
            if self._queue:
                key = f"orders/{event.order}".encode()
                value = json.dumps({"version": event.version}).encode()
                row = MessageRow(partition_of(key, PARTITIONS), key, (("method", b"PATCH"),), value)
                await queues.append(connection, [row])
            else:
                await connection.execute(UPDATE, event.order, event.version)

    async def close(self) -> None:
        """Close the pool."""
        await self._pool.close()


async def sender(setup: Setup) -> Sender:
    """Give the one of these layers."""
    if setup.layers.fence:
        return Fenced(setup.gateway, queue=setup.layers.queue)
    pool = await asyncpg.create_pool(setup.database, min_size=1, max_size=8)
    return Plain(pool, queue=setup.layers.queue)
