"""A gateway, rows, and the statements that reads share: they can be stopped, and made to fail."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from tests.support.interleave import Connect
from tests.support.postgres import Unmade
from tests.support.racing import Race, open_race
from tests.support.use_cases import open_gateway

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.read import ReadOne
from fencepost.server.gateway.use_cases import read_one
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.keyed import FencedRow
from fencepost.server.postgres.query import Select
from fencepost.server.postgres.reading import KeyedReads
from fencepost.server.postgres.row_sql import Key

run = KeyedReads.run


TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN short AS varchar(5);
CREATE TABLE numbers (id integer PRIMARY KEY, t text);
CREATE TABLE pairs (a bigint, b text, v jsonb, PRIMARY KEY (a, b));
CREATE TABLE ids (id uuid PRIMARY KEY, f double precision, at timestamptz, d date, tags text[]);
CREATE TABLE days (day date PRIMARY KEY, m mood, s short);
CREATE TABLE moods (m mood PRIMARY KEY, n numeric(8, 2));
CREATE TABLE "Odd ""a"" b" ("the key" varchar(9) PRIMARY KEY, "a b" bytea, c char(4));
CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
INSERT INTO numbers VALUES (7, 'seven'), (-1, NULL);
INSERT INTO pairs VALUES (1, 'x', '{"a": [1, 2]}'), (1, 'y,z', 'null'), (9223372036854775807, '', NULL);
INSERT INTO ids VALUES ('00000000-0000-0000-0000-00000000000a', 'NaN', '2026-01-01', 'infinity', '{a,NULL}');
INSERT INTO days VALUES ('2026-01-31', 'glad', 'abc');
INSERT INTO moods VALUES ('sad', 1.5);
INSERT INTO "Odd ""a"" b" VALUES ('k', '\\x00ff', 'ab');
INSERT INTO parts VALUES (3, 1), (13, 2);
"""


@dataclass
class Statements:
    """The statements that gathered reads are, each with its keys; they can be stopped, before or after PostgreSQL."""

    keys: list[list[Key]] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    stop: str = ""
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    fails: type[asyncpg.PostgresError] | None = None
    """How PostgreSQL refuses them."""
    sizes: list[list[int | None]] = field(default_factory=list)
    """How many characters of each row they sent; None: it goes alone, or is not there."""

    async def run(self, reads: KeyedReads, connection: Any, keys: Sequence[Key]) -> Any:
        self.keys.append(list(keys))
        stop, self.stop = self.stop, ""
        if stop == "before":
            self.stopped.set()
            await self.go.wait()
        if self.fails:
            raise RefusedError(self.fails("refused"))
        answer = await run(reads, connection, keys)
        self.sizes.append([len(each.json) if isinstance(each, FencedRow) else None for each in answer])
        if stop == "after":
            self.stopped.set()
            await self.go.wait()
        return answer


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Statements:
    statements = Statements()

    async def recorded(reads: KeyedReads, connection: Any, keys: Sequence[Key]) -> Any:
        return await statements.run(reads, connection, keys)

    monkeypatch.setattr(KeyedReads, "run", recorded)
    return statements


@pytest.fixture
async def race(connect: Connect, unmade: Unmade) -> Race:
    race = await open_race(connect, unmade)
    for number in range(20):
        await race.insert(race.a, f"k{number}", 30 + number, n=number)
    return race


@pytest.fixture
async def gateway(race: Race) -> AsyncIterator[Gateway]:
    async with open_gateway(race.dsn, pool_size=4) as gateway:
        yield gateway
        assert gateway.reads.waiting.count == 0
        await gateway.gathered.close()


def reading(gateway: Gateway, *keys: str, table: str = "orders", select: Select = None) -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(read_one(gateway, ReadOne(table, tuple(key.split(",")), select))) for key in keys]


async def gathered(sent: Statements, gateway: Gateway, *keys: str) -> list[asyncio.Task[Outcome]]:
    """Ask for k0, and for these keys while that read is under way: they are one statement. Give all reads."""
    sent.stop = "before"
    tasks = reading(gateway, "k0")
    await sent.stopped.wait()
    tasks += reading(gateway, *keys)
    await asyncio.sleep(0)
    sent.go.set()
    return tasks


def shown(outcome: Outcome) -> tuple[list[str], int | None] | str:
    return outcome.name if isinstance(outcome, Problem) else (list(outcome.rows), outcome.mark)


async def shown_of(tasks: Sequence[asyncio.Task[Outcome]]) -> list[tuple[list[str], int | None] | str]:
    return [shown(each) for each in await asyncio.gather(*tasks)]


async def alone(gateway: Gateway, request: ReadOne, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    with monkeypatch.context() as patched:
        patched.setattr("fencepost.server.gateway.read._lanes", lambda _gateway, _table, _select: None)
        gateway.catalog.current.tables[request.table].plans.clear()
        outcome = await read_one(gateway, request)
        gateway.catalog.current.tables[request.table].plans.clear()
    return outcome
