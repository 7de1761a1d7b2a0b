"""A gateway, consumers, and the queue between them, each a process that can be paused, killed and started again."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
from tests.robustness.queues.log_servers import LogServers, OneKafka, log_servers
from tests.robustness.queues.oracle import KEYS, SCHEMA, TRIGGER, Submission, effects_of, judge
from tests.robustness.queues.submitters import Submitters
from tests.support.postgres import first_server, server_bin_dir

from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.gateway import COMMAND, GatewayServer, gateway_environment
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.postgres import Postgres, in_database, quick_logins, run_on
from fencepost.testing.servers.processes import PATIENCE, eventually, server_directory
from fencepost.testing.servers.server import ChildProcess, Server

SETTLES_WITHIN = 2 * PATIENCE
"""Seconds in which what waits in the queue is applied after a storm."""


def messages(default: int) -> int:
    """Give the size of a storm: how many acknowledged submissions end it; FENCEPOST_STORM_MESSAGES for others."""
    return int(os.environ.get("FENCEPOST_STORM_MESSAGES") or default)


class ConsumerServer(Server):
    """One `fencepost consume`."""

    def __init__(
        self, database: str, queue: str, member: str, log: Path, settings: dict[str, str], by: Launcher
    ) -> None:
        self.member = member
        self._launcher, self._seen = by, 0
        log.touch()
        arguments = ("consume", queue, "--member", member)
        super().__init__([*COMMAND, *arguments], log, self._has_joined, gateway_environment(database, **settings))

    def start(self) -> None:
        self._seen = self._log.stat().st_size
        super().start()

    def log_text(self) -> str:
        """Give all that it printed."""
        return self._log.read_text(errors="replace")

    def _spawn(self) -> ChildProcess:
        return self._launcher.launch(
            [str(word) for word in self._command[len(COMMAND) :]], self._environment or {}, self._log
        )

    def _has_joined(self) -> bool:
        return f"{self.member} consumes".encode() in self._log.read_bytes()[self._seen :]


@dataclass
class World:
    """All of them. `consumers`: those that were made, by member."""

    log: LogServers
    postgres: Postgres
    database: str
    gateway: GatewayServer
    directory: Path
    settings: dict[str, str]
    launcher: Launcher
    consumers: dict[str, ConsumerServer] = field(default_factory=dict)
    _ends: int = 0

    async def consumer(self, member: str) -> ConsumerServer:
        """Start a consumer, and return it once it takes."""
        found = self.consumers.get(member)
        if found is None:
            log = self.directory / f"{member}.log"
            found = ConsumerServer(self.database, self.log.queue, member, log, self.settings, self.launcher)
            self.consumers[member] = found
        found.start()
        await found.serves()
        return found

    async def connect(self) -> asyncpg.Connection:
        """Connect to the database."""
        return await asyncpg.connect(self.database)

    async def settle(self, submitters: Submitters) -> None:
        """Return once all that was submitted is decided: a last write of each row is, and they are in its order."""
        self._ends += 1
        tags = [f"end{self._ends}-{key}" for key in KEYS]
        async with asyncio.TaskGroup() as group:
            for key, tag in zip(KEYS, tags, strict=True):
                group.create_task(submitters.until_acknowledged(key, tag))
        connection = await self.connect()

        async def applied() -> bool:
            query = "SELECT count(DISTINCT tag) FROM oracle.effects WHERE tag = ANY ($1)"
            return bool(await connection.fetchval(query, tags) == len(tags))

        try:
            within = SETTLES_WITHIN + len(submitters.submissions) / 200
            await eventually(
                applied, within=within, what=f"the last write of each row {await self.missing(submitters)}"
            )
        finally:
            await connection.close()

    async def missing(self, submitters: Submitters) -> int:
        """Count the acknowledged submissions that have no effect yet."""
        connection = await self.connect()
        tags = [each.tag for each in submitters.submissions if each.answer == "acknowledged"]
        query = "SELECT count(*) FROM unnest($1::text[]) t WHERE NOT EXISTS (SELECT FROM oracle.effects WHERE tag = t)"
        missing: int = await connection.fetchval(query, tags)
        await connection.close()
        return missing

    async def end(self, submitters: Submitters) -> None:
        """Settle twice, and the second time with a consumer that has nothing of before: it takes again what others took
        and did not say to be done.
        """
        await self.settle(submitters)
        for each in self.consumers.values():
            await asyncio.to_thread(each.stop)
        await self.consumer("last")
        await self.settle(submitters)

    async def wrong(self, submissions: list[Submission]) -> list[str]:
        """Judge."""
        connection = await self.connect()
        try:
            return judge(submissions, await effects_of(connection), await asyncio.to_thread(self.log.places))
        finally:
            await connection.close()

    def logs(self) -> str:
        """Give the ends of the logs of consumers and gateway, for a failure's message."""
        servers: list[Server] = [self.gateway, *self.consumers.values()]
        return "\n".join(each.log_end() for each in servers)


@asynccontextmanager
async def world(
    kind: str,
    *,
    launcher: Launcher,
    one_kafka: OneKafka | None = None,
    consume_here: bool = False,
    protected: bool = True,
    statement_timeout: str = "30",
) -> AsyncIterator[World]:
    """Run a PostgreSQL, a gateway, and the log's servers; consumers are started by the test. `one_kafka`: a Kafka that
    serves other tests, too; without it there is one of its own. `consume_here`: the gateway consumes postgres:default,
    too. `protected` False: the table is not. `statement_timeout`: in seconds.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(server_directory())
        postgres = Postgres(bin_dir=server_bin_dir(first_server()), data_dir=directory / "pg")
        (directory / "pg").mkdir()
        postgres.start()
        stack.callback(postgres.stop)
        quick_logins(postgres.url)
        await run_on(postgres.url, "CREATE DATABASE shop")
        database = in_database(postgres.url, "shop")
        log = await log_servers(kind, directory, stack, one_kafka)
        settings = {"FENCEPOST_STATEMENT_TIMEOUT": statement_timeout}
        if log.url is not None:
            settings["FENCEPOST_QUEUES"] = log.url
        await _prepare(database, log.queue if protected else None)
        options = () if consume_here else ("--no-consume-here",)
        gateway = GatewayServer(database, directory / "gateway.log", *options, settings=settings, launcher=launcher)
        stack.enter_context(gateway)
        made = World(log, postgres, database, gateway, directory, settings, launcher)
        try:
            yield made
        finally:
            for each in made.consumers.values():
                each.crash()


async def _prepare(database: str, queue: str | None) -> None:
    await upgrade(database)
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(SCHEMA)
        if queue is not None:
            await protect(connection, "orders", queue=queue)
        await connection.execute(TRIGGER)
    finally:
        await connection.close()
