"""The same fenced write as most people would put it into a FastAPI application: what Fencepost is compared with.

pydantic in and out, a dependency for the pool, `pool.fetchrow`, the same conditional UPDATE. It has no claims, no
marks of deleted rows, no triggers behind it, and answers a stale writer with a bare 409. As many connections to
PostgreSQL per process as the gateway has by default.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import asyncpg
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from pydantic import BaseModel

UPDATE = """
UPDATE orders_plain SET status = $1, last_fence_token = $2
 WHERE order_id = $3 AND last_fence_token < $2
RETURNING order_id, status, last_fence_token"""


SELECT = "SELECT order_id, status, last_fence_token FROM orders_plain WHERE order_id = $1"


class Change(BaseModel):
    """What may be changed."""

    status: str


class Order(BaseModel):
    """An order as it is answered."""

    order_id: str
    status: str
    last_fence_token: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the pool."""
    async with asyncpg.create_pool(os.environ["BENCHMARK_DATABASE_URL"], max_size=10) as pool:
        app.state.pool = pool
        yield


def get_pool(request: Request) -> asyncpg.Pool:
    """Give the pool to a handler."""
    pool: asyncpg.Pool = request.app.state.pool
    return pool


app = FastAPI(lifespan=lifespan)


@app.patch("/orders/{order_id}")
async def change_order(
    order_id: str,
    change: Change,
    x_fence_token: Annotated[int, Header()],
    pool: Annotated[asyncpg.Pool, Depends(get_pool)],
) -> Order:
    """Change an order, unless the token is stale."""
    row = await pool.fetchrow(UPDATE, change.status, x_fence_token, order_id)
    if row is None:
        raise HTTPException(409, "stale token")
    return Order(**dict(row))


@app.get("/orders/{order_id}")
async def show_order(order_id: str, pool: Annotated[asyncpg.Pool, Depends(get_pool)]) -> Order:
    """Show an order."""
    row = await pool.fetchrow(SELECT, order_id)
    if row is None:
        raise HTTPException(404, "no such order")
    return Order(**dict(row))
