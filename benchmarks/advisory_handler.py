"""`pg_advisory_lock` behind the same HTTP stack: what leases are compared with.

As most people would write it in FastAPI: a session lock needs its connection for as long as it is held, so the handler
keeps one for each holder and for each waiter. It has no TTL, no token, no queue of its own, and forgets who holds what
when the process ends.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_hex
from typing import TYPE_CHECKING

import asyncpg
from fastapi import FastAPI, Request
from pydantic import BaseModel

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

Held = dict[str, "PoolConnectionProxy[asyncpg.Record]"]


class Wanted(BaseModel):
    """What to lock."""

    lock: str


class Lease(BaseModel):
    """What to release it by."""

    lease_id: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open a pool with a connection for each client of the benchmark."""
    async with asyncpg.create_pool(os.environ["BENCHMARK_DATABASE_URL"], max_size=40) as pool:
        app.state.pool = pool
        app.state.held = {}
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/v1/leases", status_code=201)
async def acquire(wanted: Wanted, request: Request) -> Lease:
    """Wait for the lock."""
    connection = await request.app.state.pool.acquire()
    await connection.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", wanted.lock)
    lease_id = token_hex(16)
    held: Held = request.app.state.held
    held[lease_id] = connection
    return Lease(lease_id=lease_id)


@app.delete("/v1/leases/{lease_id}", status_code=204)
async def release(lease_id: str, request: Request) -> None:
    """Give it back; asyncpg's reset on release unlocks once more, harmlessly."""
    held: Held = request.app.state.held
    connection = held.pop(lease_id)
    await connection.execute("SELECT pg_advisory_unlock_all()")
    await request.app.state.pool.release(connection)
