"""The use cases' gateway on a race's database, requests for it, and what came of them.

async with open_gateway(race.dsn) as gateway:
    assert result_of(await patch(gateway, keyed("k", 30, status="paid"))) == "ok"
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.support.racing import Key, parts
from tests.support.unhurried import UNHURRIED

from fencepost.server.fence.problems import Problem
from fencepost.server.fence.token import Token
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.gathered import GatheredReads
from fencepost.server.gateway.outcomes import CallerShares, Done, Outcome, Reads, Turns
from fencepost.server.gateway.use_cases import write
from fencepost.server.gateway.write import NO_BODY, Body, Listed, Matching, OneRow, Preferences, Verb, Write
from fencepost.server.locks.builtin import PostgresLocks, Queue
from fencepost.server.postgres.catalog_cache import CatalogCache
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.group_commit import GroupCommit
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.query import Filter
from fencepost.server.times import Times

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
        shares = CallerShares(pool_size, lock_timeout)
        reads = Reads(pool_size, shares)
        gathered = GatheredReads(database, reads, times=times)
        group = GroupCommit(database, times=times)
        yield Gateway(
            *(database, catalog, lambda _: None, max_rows, locks, group, turns, reads, gathered, shares, 10**7),
            times=times,
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


async def patch(gateway: Gateway, asked: Write) -> Outcome:
    return await _decide(gateway, asked, "patch")


async def put(gateway: Gateway, asked: Write) -> Outcome:
    return await _decide(gateway, asked, "put")


async def post(gateway: Gateway, asked: Write) -> Outcome:
    return await _decide(gateway, asked, "post")


async def delete(gateway: Gateway, asked: Write) -> Outcome:
    return await _decide(gateway, asked, "delete")


async def _decide(gateway: Gateway, asked: Write, verb: Verb) -> Outcome:
    return await write(gateway, replace(asked, verb=verb), rendered)


def rendered(done: Done) -> Recorded:
    """What is kept under an Idempotency-Key."""
    return Recorded(200, (), "".join(done.rows).encode())


def result_of(answer: Outcome) -> str:
    """Sum an answer up: ok, created, or the problem's code."""
    if isinstance(answer, Problem):
        return answer.name
    assert isinstance(answer, Done)
    return "created" if answer.created else "ok"
