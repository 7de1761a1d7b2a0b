"""The pool under pressure, as the caller of the API sees it."""

import asyncio
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
from tests.support.interleave import Connection
from tests.support.manual_clock import settled

from fencepost.storage.connections.connection import Limits, gateway_connection
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import UnavailableError


async def test_an_exhausted_pool_reports_it_in_time(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1, pool_timeout=0.2))
    try:
        async with pool.connection():
            with pytest.raises(UnavailableError, match=r"no connection to PostgreSQL within 0\.2 s"):
                async with pool.connection():
                    pass
        async with pool.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await pool.close()


async def test_a_connection_that_ends_as_it_is_handed_over_is_replaced(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1))

    async def used(lent: AbstractAsyncContextManager[Connection]) -> int:
        async with lent as connection:
            found: int = await connection.fetchval("SELECT 1")
            return found

    try:
        for lend in (partial(pool.connection, writing=True), pool.batch_connection, pool.connection):
            async with lend() as first:
                waits = asyncio.create_task(used(lend()))
                await settled()
            gateway_connection(first).terminate()  # its next caller has not run yet
            assert await waits == 1
    finally:
        await pool.close()


async def test_every_session_is_read_committed_and_durable(database: str) -> None:
    pool = await Database.open(database, Limits())
    try:
        async with pool.connection() as connection:
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"
            assert await connection.fetchval("SHOW synchronous_commit") == "on"
            assert await connection.fetchval("SHOW TimeZone") == "UTC"
    finally:
        await pool.close()


async def test_a_transaction_left_open_does_not_reach_the_next_user(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1))
    try:
        async with pool.connection() as connection:
            await connection.execute("BEGIN; CREATE TABLE left_open (id int)")
        async with pool.connection() as connection:
            assert not connection.is_in_transaction()
            assert await connection.fetchval("SELECT to_regclass('left_open') IS NULL")
    finally:
        await pool.close()


async def test_more_than_may_wait_for_a_connection_are_refused_at_once(database: str) -> None:
    pool = await Database.open(database, Limits(pool_size=1, pool_timeout=30, most_waiting=1))
    try:
        async with pool.connection():
            waiting = asyncio.create_task(ask(pool))
            await asyncio.sleep(0)  # it runs up to where it waits
            with pytest.raises(UnavailableError, match="FENCEPOST_MAX_WAITING"):
                await ask(pool)
        assert await waiting == 1
    finally:
        await pool.close()


async def ask(pool: Database) -> int:
    async with pool.connection() as connection:
        found: int = await connection.fetchval("SELECT 1")
        return found
