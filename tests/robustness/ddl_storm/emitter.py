"""Messages of the storm's own in the log of what PostgreSQL commits."""

import asyncio
import json
from typing import TYPE_CHECKING, Final

import asyncpg
from tests.robustness.ddl_storm.world import World

if TYPE_CHECKING:
    from tests.support.interleave import Connection

GONE: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class Emitter:
    """A connection that only emits messages which belong to no transaction: they stand where they were emitted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._connection: Connection | None = None
        self._epoch = -1
        self._turn = asyncio.Lock()

    async def emit(self, prefix: str, content: dict[str, object], epoch: int) -> bool:
        """Write a message into the log of this epoch's database; False: that database is no more."""
        async with self._turn:
            if epoch % 2:
                return False
            if self._epoch != self._world.epoch or self._connection is None or self._connection.is_closed():
                await self.close()
                self._epoch = self._world.epoch
                try:
                    self._connection = await asyncpg.connect(self._world.dsn)
                except GONE:
                    return False
            if epoch != self._epoch:
                return False
            try:
                await self._connection.execute(
                    "SELECT pg_logical_emit_message(false, $1, $2::text)", prefix, json.dumps(content)
                )
            except GONE:
                return False
            return epoch == self._world.epoch

    async def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
