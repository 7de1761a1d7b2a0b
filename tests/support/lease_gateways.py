"""Gateways without HTTP: the token source with its queue and listener, several on one database in one event loop."""

import asyncio
import hashlib
import itertools
import logging
import math
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from tests.support.asking import Api
from tests.support.gateways import in_thread
from tests.support.interleave import Connection
from tests.support.lease_racing import wanted
from tests.support.postgres import ReadyMade
from tests.support.shops import Shop, running_shop
from tests.support.violations import judging

from fencepost.server.locks.builtin import PostgresLocks, Queue
from fencepost.server.postgres import leases
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.leases import Acquired, LockRequest
from fencepost.server.postgres.listen import Listener
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually

# Asking for leases over HTTP: each test takes locks and secrets of its own, and no secret may come up in a log.

TIME = re.compile(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00")
TOKEN = re.compile(r"[1-9][0-9]*")
SECRETS: list[str] = []
"""All that were chosen or given."""

_numbers = itertools.count(1)


class Said(logging.Handler):
    """Everything that was logged, as text and with its arguments."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += f"{record.msg!r} {record.args!r} {record.exc_info!r}\n"


@contextmanager
def leasing_shop(databases: ReadyMade) -> Iterator[Shop]:
    """Serve a shop that logs all it can, with small caps; afterwards no secret, nor its hash, is in what it logged."""
    limits = {"max_ttl": 100.0, "max_wait": 50.0, "max_tokens": 7, "max_waiters": 3}
    output = Said()
    with running_shop(databases, log_level="debug", access_log=True, **limits) as shop:
        logging.getLogger().addHandler(output)
        try:
            yield shop
        finally:
            logging.getLogger().removeHandler(output)
    for secret in SECRETS:
        assert secret not in output.text, "a secret in the logs"
        assert digest(secret) not in output.text, "a secret's hash in the logs"


def new_secret() -> str:
    SECRETS.append(secrets.token_urlsafe(16))
    return SECRETS[-1]


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def new_name() -> str:
    return f"orders/order-{next(_numbers)}"


async def acquire(api: Api, *locks: str, secret: str | None = None, **body: object) -> httpx.Response:
    names: dict[str, object] = {"lock": locks[0]} if len(locks) == 1 else {"locks": list(locks)}
    headers = {} if secret is None else {"X-Lease-Secret": secret}
    return await api.ask("POST", "leases", {**names, **body}, headers=headers)


async def lease(api: Api, *locks: str, **asked: Any) -> Any:
    answer = await acquire(api, *(locks or (new_name(),)), **asked)
    assert answer.status_code == 201, answer.text
    given = answer.json()
    SECRETS.append(given["secret"])
    return given


def of(given: Any) -> dict[str, str]:
    return {"X-Lease-Secret": given["secret"]}


async def expire(shop: Shop, given: Any) -> None:
    await shop.sql(
        "UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s' WHERE lease_id = $1",
        int(given["lease_id"]),
    )


# What was granted and minted, and the checker: later grants of a lock have higher tokens, and no token comes twice.
#
# It shares no code with what it judges; it knows tokens, locks, and when a request began and was answered.


@dataclass
class Grant:
    """A lease: all tokens that it was given, in order, and when it was asked for and answered (any rising clock)."""

    locks: tuple[str, ...]
    began: float
    answered: float
    tokens: list[int]


@dataclass
class History:
    """Everything that was acknowledged."""

    grants: list[Grant] = field(default_factory=list)
    step: int = 0

    def tick(self) -> int:
        self.step += 1
        return self.step

    def check(self) -> None:
        """Raise Violation when the order of tokens is broken."""
        with judging(math.inf):
            self._check()

    def _check(self) -> None:
        issued = [token for grant in self.grants for token in grant.tokens]
        assert len(issued) == len(set(issued)), f"issued twice: {sorted(t for t in issued if issued.count(t) > 1)[:10]}"
        for grant in self.grants:
            assert grant.tokens == sorted(grant.tokens), f"a lease's tokens fall: {grant}"
        for lock in {lock for grant in self.grants for lock in grant.locks}:
            of_this_lock = sorted((g for g in self.grants if lock in g.locks), key=lambda grant: grant.tokens[0])
            highest = 0
            latest_start = 0.0
            for grant in of_this_lock:
                assert grant.tokens[0] > highest, f"{lock}: {grant} was granted below {highest}, of an earlier grant"
                assert grant.answered > latest_start, f"{lock}: {grant} was answered before a lower one was asked for"
                highest = max(highest, *grant.tokens)
                latest_start = max(latest_start, grant.began)


# Gateways over HTTP for the tests of leases, in threads of their own.


@asynccontextmanager
async def running(dsn: str, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
    """Run a gateway until the block ends; gives a client of it."""
    async with (
        in_thread(dsn, **settings) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as client,
    ):
        yield client


async def post(client: httpx.AsyncClient, lock: str, **asked: object) -> httpx.Response:
    """Ask for a lock. `secret` goes where it belongs."""
    secret = asked.pop("secret", None)
    headers = {"X-Lease-Secret": str(secret)} if secret else {}
    return await client.post("/v1/leases", json={"lock": lock, **asked}, headers=headers)


async def release(client: httpx.AsyncClient, lease: dict[str, str]) -> None:
    answer = await client.delete(f"/v1/leases/{lease['lease_id']}", headers={"X-Lease-Secret": lease["secret"]})
    assert answer.status_code == 204, answer.text


T = TypeVar("T")

HOUR = 3_600_000  # ms


class Side:
    """One gateway's token source. `failures`: what it reported of its queue and its listener."""

    def __init__(self, database: Database, times: Times = TIMES) -> None:
        self.failures: list[str] = []
        self.queue = Queue(database, self.failures.append, times)
        self.locks = PostgresLocks(database, self.queue)
        self.listening = asyncio.Event()
        self._asked: set[asyncio.Task[Acquired]] = set()

    async def acquire(self, *names: str, secret: str, gone: "asyncio.Future[None] | None" = None, **asked: Any) -> Any:
        """Acquire without claims. Gives an Acquired, of the kind that is due."""
        gone = gone or asyncio.get_running_loop().create_future()
        return await self.locks.take(wanted(*names, secret=secret, owner=secret, **asked), None, gone)

    async def wait(
        self, observer: Connection, *names: str, secret: str, wait_ms: int = HOUR, **asked: Any
    ) -> asyncio.Task[Any]:
        """Start waiting; return once the place in the queue is taken."""
        task = asyncio.create_task(self.acquire(*names, secret=secret, wait_ms=wait_ms, **asked))
        await in_line(observer, secret)
        return task


async def in_line(observer: Connection, secret: str) -> None:
    """Return once this waiter has a place."""
    await eventually(
        lambda: observer.fetchval("SELECT EXISTS (SELECT FROM fencepost.live_waiters WHERE owner = $1)", secret),
        what=f"a place for {secret}",
    )


async def let_gateways_be_silent(observer: Connection) -> None:
    """Let the waiters of a gateway count that has not beaten for half an hour, and not for three seconds only."""
    view: str = await observer.fetchval("SELECT pg_get_viewdef('fencepost.live_waiters'::regclass)")
    assert view.count("'00:00:03'::interval") == 2
    longer = view.replace("'00:00:03'::interval", "'00:30:00'::interval")
    await observer.execute(f"CREATE OR REPLACE VIEW fencepost.live_waiters AS {longer}")


async def out_of_line(observer: Connection, secret: str, *, within: float = PATIENCE) -> None:
    """Return once this waiter's place is gone."""
    await eventually(
        lambda: observer.fetchval("SELECT NOT EXISTS (SELECT FROM fencepost.live_waiters WHERE owner = $1)", secret),
        within=within,
        what=f"the end of the place of {secret}",
    )


@asynccontextmanager
async def open_side(dsn: str, *, pool_size: int = 4, times: Times = TIMES) -> AsyncIterator[Side]:
    """Run one gateway's token source until the block ends; afterwards no request of it waits."""
    database = await Database.open(dsn, Limits(pool_size=pool_size))
    side = Side(database, times)

    def listening() -> None:
        side.listening.set()
        side.queue.on_listening()

    async def reload() -> None:
        pass

    listener = Listener(
        dsn=dsn,
        reload=reload,
        lost=side.failures.append,
        channels={side.queue.channel: lambda payload: side.queue.on_notify(payload)},  # noqa: PLW0108 - looked up late
        connected=(listening,),
    )
    task = asyncio.create_task(listener.run())
    try:
        await asyncio.wait_for(side.listening.wait(), PATIENCE)
        yield side
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await side.queue.close()
        await database.close()


class Tries:
    """Counts the calls of `fencepost.acquire`, by secret."""

    def __init__(self) -> None:
        self.by_secret: dict[bytes, int] = {}
        self._try_locks = leases.try_locks

    @property
    def total(self) -> int:
        return sum(self.by_secret.values())

    async def __call__(self, connection: Any, asked: LockRequest, *others: Any) -> Acquired:
        self.by_secret[asked.secret_hash] = self.by_secret.get(asked.secret_hash, 0) + 1
        return await self._try_locks(connection, asked, *others)
