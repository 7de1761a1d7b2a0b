"""The DDL storm: a server of its own, two gateways with two workers each, writers, the DDL actor, and the oracle."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from tests.robustness.ddl_storm import world as log
from tests.robustness.ddl_storm.ddl import Ddl, Restores
from tests.robustness.ddl_storm.oracle import Oracle
from tests.robustness.ddl_storm.world import GROUPS, World, compare
from tests.robustness.ddl_storm.writers import SQL, DirectWriter, Emitter, direct_writers, http_writers
from tests.support.gateways import STARTS_WITHIN, launch
from tests.support.interleave import Connection, connection_to
from tests.support.servers import all_gone

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.embedded_files import Account, Binaries, reachable_binaries
from fencepost.server.ops.migrate import upgrade
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import PATIENCE, descendants, new_directory, remove_directory

HTTP, DIRECT = 10, 5
"""Writers of each kind."""


@dataclass
class Server:
    """PostgreSQL with a database `storm`, whose log can be read."""

    url: str
    binaries: Binaries

    @property
    def dsn(self) -> str:
        return in_database(self.url, "storm")


@dataclass
class Storm:
    """What came of it."""

    wrong: list[str]
    complaints: list[str]
    answers: Counter[str]
    ddl: Counter[str]
    fenced: Counter[str]


@contextmanager
def server(bin_dir: Path) -> Iterator[Server]:
    """Run a server for one storm."""
    directory = new_directory()
    options = {"wal_level": "logical", "max_replication_slots": "10", "autovacuum_naptime": "5s"}
    postgres = PostgresServer(bin_dir=bin_dir, data_dir=directory / "data", options=options)
    try:
        postgres.start()
        yield Server(postgres.url, reachable_binaries(bin_dir, Account.choose(directory / "data")))
    finally:
        postgres.stop()
        remove_directory(directory)


@asynccontextmanager
async def _gateway(dsn: str, errors: Path) -> AsyncIterator[str]:
    process = launch("--port", "0", "--workers", "2", "--log-level", "error", errors=errors, FENCEPOST_DATABASE_URL=dsn)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), STARTS_WITHIN)
        found = [word for word in line.split() if word.startswith("http://")]
        assert found, line
        yield found[0].rstrip("/")
    finally:
        everything = [process.pid, *descendants(process.pid)]
        process.kill()
        await asyncio.to_thread(process.communicate, timeout=PATIENCE)
        await all_gone(everything)


async def prepare(running: Server, sabotage: str = "") -> None:
    """Make the database `storm`, and begin its log. `sabotage` is SQL that is run after `fencepost migrate`."""
    connection = await asyncpg.connect(running.url)
    await connection.execute("CREATE DATABASE storm")
    await connection.close()
    await upgrade(running.dsn)
    async with connection_to(running.dsn) as connection:
        await connection.execute(SQL)
        if sabotage:
            await connection.execute(sabotage)
        await log.begin(connection)


async def rage(running: Server, directory: Path, seed: int, operations: int) -> Storm:
    """Let the storm loose, and judge it."""
    await prepare(running)
    world = World(running.dsn, seed, operations)
    emitter = Emitter(world)
    decoder, read = log.Decoder(), []

    async def keep(connection: Connection) -> None:
        nonlocal decoder
        read.extend(await log.drain(connection, decoder))
        decoder = log.Decoder()

    restores = Restores(world, running.url, running.binaries, directory)
    restores.drained.append(keep)
    ddl = Ddl(world, emitter, {restores.dump_or_restore: min(operations // 3, 2500)})
    async with AsyncExitStack() as stack:
        await ddl.begin()
        urls = [await stack.enter_async_context(_gateway(running.dsn, directory / f"gateway{n}")) for n in range(2)]
        async with asyncio.TaskGroup() as group:
            group.create_task(http_writers(world, emitter, urls, HTTP))
            group.create_task(direct_writers(world, DIRECT))
            group.create_task(ddl.act())
    await emitter.close()
    await ddl.actor.close()
    async with connection_to(running.dsn) as connection:
        await keep(connection)
        await log.end(connection)
    return judge(world, read)


def judge(world: World, read: list[log.Transaction]) -> Storm:
    """Judge what was read of the log, and what was answered."""
    oracle = Oracle(world.operations)
    for transaction in read:
        oracle.read(transaction)
    answer = compare(world.operations.values(), oracle.applied, oracle.bare)
    wrong = [*oracle.wrong, *answer, *world.wrong]
    return Storm(wrong, world.complaints, world.answers, world.ddl, oracle.fenced)


# No dice: a list of operations, one after the other, that goes through each hole of ddl.py. It is driven against
# the real database, and the storm's oracle judges its log.

OLD, NEW = 120, 130
"""Tokens: NEW is accepted, then OLD must not be."""


async def steer(running: Server, sabotage: str) -> tuple[dict[str, str], Storm]:
    """Drive the list; give what its two stale writes were answered (`committed`, or an SQLSTATE), and the judgement.

    `sabotage` is SQL that is run after `fencepost migrate`.
    """
    await prepare(running, sabotage)
    world = World(running.dsn, seed=0, operations=0)  # it is over from its start: nobody waits for anybody
    emitter, writer = Emitter(world), DirectWriter(world, 0)
    ddl = Ddl(world, emitter, {})
    row, neighbour, stale = frozenset({1}), frozenset({1 + GROUPS}), {}  # of one scope

    rows = await ddl.create("fa", "plain")
    await ddl.actor.protect(rows, "strict", "external")
    await writer.attempt("insert", rows, row, 110)
    await writer.attempt("delete", rows, row, NEW)
    stale["insert"] = (await writer.attempt("insert", rows, row, OLD)).answer

    scoped = await ddl.create("fb", "plain")
    await ddl.actor.protect(scoped, "strict", "external", scoped=True)
    await writer.attempt("insert", scoped, row, 110)
    await writer.attempt("insert", scoped, neighbour, NEW)
    await ddl.actor.protect(scoped, scoped=False)
    stale["update"] = (await writer.attempt("update", scoped, row, OLD)).answer

    await emitter.close()
    await ddl.actor.close()
    writer.close()
    async with connection_to(running.dsn) as connection:
        read = await log.drain(connection, log.Decoder())
        await log.end(connection)
    return stale, judge(world, read)
