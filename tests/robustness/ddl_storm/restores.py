"""A dump, more writes and DDL, and then the dump put in the database's place, in the same cluster."""

import asyncio
import copy
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
from tests.robustness.ddl_storm import log
from tests.robustness.ddl_storm.actor import TRIES, Actor
from tests.robustness.ddl_storm.world import Shape, World
from tests.support.interleave import Connection

from fencepost.server.ops.embedded_files import Binaries
from fencepost.testing.servers.postgres import in_database
from fencepost.testing.servers.processes import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Restores:
    """Dumps, and restores what was dumped the last time."""

    def __init__(self, world: World, server: str, binaries: Binaries, directory: Path) -> None:
        self._world, self._server, self._binaries = world, server, binaries
        self._file = directory / "dump"
        self._saved: list[Shape] | None = None
        self._dumps = 0
        self.drained: list[Callable[[Connection], Awaitable[None]]] = []
        """Called with a connection to the database that was replaced, before it is dropped."""

    @property
    def _name(self) -> str:
        return f"d{self._dumps}"

    async def dump_or_restore(self, actor: Actor) -> None:
        """By turns."""
        if self._saved is None:
            await self._dump(actor)
        else:
            await self._restore(actor, self._saved)
            self._saved = None

    async def _dump(self, actor: Actor) -> None:
        self._dumps += 1
        await actor.emitter.emit("dump", {"name": self._name}, self._world.epoch)
        self._saved = copy.deepcopy(self._world.shapes)
        await self._run("pg_dump", "-Fc", "-f", str(self._file), "-d", self._world.dsn)
        self._world.ddl["pg_dump"] += 1

    async def _restore(self, actor: Actor, saved: list[Shape]) -> None:
        maintenance = await asyncpg.connect(self._server)
        try:
            await maintenance.execute("CREATE DATABASE storm_new TEMPLATE template0")
            new = in_database(self._server, "storm_new")
            await self._run("pg_restore", "--exit-on-error", "-d", new, str(self._file))
            connection = await asyncpg.connect(new)
            await log.begin(connection)
            await connection.execute(
                "SELECT pg_logical_emit_message(false, 'restored', $1::text)", f'{{"name": "{self._name}"}}'
            )
            await connection.close()
            await actor.close()
            for shape in self._world.shapes:
                shape.version += 1
            self._world.epoch += 1
            await actor.emitter.close()
            await self._swap(maintenance)
            for shape in saved:
                shape.version += 2
            self._world.shapes[:] = saved
            self._world.epoch += 1
            oldest = await self._keep_the_log(maintenance)
        finally:
            await maintenance.close()
        self._world.ddl["pg_restore"] += 1
        # Its generation was not raised yet: gateways must not write.
        await self._world.after(40, within=1.5)
        # The dump may be from before a generation that the gateways have met.
        above = ("--above", str(oldest))
        for _ in range(TRIES):  # it may meet a deadlock with direct SQL, which changes nothing
            if await actor.fencepost(None, "generation", "raise", "--reason", "a dump was restored", *above):
                break

    async def _swap(self, maintenance: Connection) -> None:
        """Put the new database in the old one's place; sessions of the old one are ended."""
        await maintenance.execute("ALTER DATABASE storm WITH ALLOW_CONNECTIONS false")

        async def renamed() -> bool:
            await maintenance.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'storm'")
            try:
                await maintenance.execute("ALTER DATABASE storm RENAME TO storm_old")
            except asyncpg.ObjectInUseError:
                return False
            return True

        await eventually(renamed, what="no connection to the old database")
        await maintenance.execute("ALTER DATABASE storm_new RENAME TO storm")

    async def _keep_the_log(self, maintenance: Connection) -> int:
        """Take what the log has of the old database, and drop it. Returns the first token of its generation."""
        await maintenance.execute("ALTER DATABASE storm_old WITH ALLOW_CONNECTIONS true")
        old = await asyncpg.connect(in_database(self._server, "storm_old"))
        for take in self.drained:
            await take(old)
        await log.end(old)
        oldest: int = await old.fetchval("SELECT fencepost.oldest()")
        await old.close()
        await maintenance.execute("DROP DATABASE storm_old WITH (FORCE)")
        return oldest

    async def _run(self, program: str, *arguments: str) -> None:
        process = await asyncio.create_subprocess_exec(
            self._binaries.bin_dir / program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=self._binaries.environment,
        )
        _, output = await process.communicate()
        assert process.returncode == 0, f"{program}: {output.decode()}"
