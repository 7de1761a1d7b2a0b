"""What a worker does in the database, past the gateway: it ends leases, and writes without a fence for the control."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
T = TypeVar("T")
_WITHIN: Final = 5.0  # seconds

DATABASE_ERRORS: Final = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # from a connection that PostgreSQL's end has left in the middle of an answer
)
"""What a statement raises when the database cannot be reached, or ends meanwhile."""

EXPIRE: Final = """
UPDATE fencepost.leases SET expires_at = clock_timestamp() - interval '1 s'
 WHERE lease_id = $1 AND starts_with(names[1], $2) AND ended_at IS NULL
"""
"""Of a lease of this run only: in a database that is not the gateway's, the number may be another program's lease."""


class Database:
    """A few connections, opened when they are needed and again when they were lost.

    `prefix` begins the names of the run's locks.
    """

    def __init__(self, url: str, prefix: str, connections: int = 2) -> None:
        self._url, self._prefix = url, prefix
        self._free: list[Connection] = []
        self._slots = asyncio.Semaphore(connections)

    async def close(self) -> None:
        for connection in self._free:
            connection.terminate()
        self._free = []

    async def expire(self, lease_id: str) -> None:
        """Move the end of a built-in lease into the past. A database that cannot be reached is left alone."""
        with suppress(*DATABASE_ERRORS):
            await self._run(lambda connection: connection.execute(EXPIRE, int(lease_id), self._prefix))

    async def members(self, table: str, name: str) -> str:
        """Read a row of the control. Raises what asyncpg raises."""
        query = f"SELECT value FROM public.{table} WHERE id = $1"
        return str(await self._run(lambda connection: connection.fetchval(query, name)) or "")

    async def stored(self, table: str) -> list[tuple[str, str]]:
        """Read all rows of it. Raises what asyncpg raises."""
        query = f"SELECT id, value FROM public.{table} ORDER BY id"
        return [(row["id"], row["value"]) for row in await self._run(lambda connection: connection.fetch(query))]

    async def store(self, table: str, name: str, members: str) -> None:
        """Write it, whatever is there: this is what no fence looks at. Raises what asyncpg raises."""
        statement = f"INSERT INTO public.{table} (id, value) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET value = $2"
        await self._run(lambda connection: connection.execute(statement, name, members))

    async def _run(self, work: "Callable[[Connection], Awaitable[T]]") -> T:
        async with self._slots, asyncio.timeout(_WITHIN):
            connection = self._free.pop() if self._free else await asyncpg.connect(self._url)
            try:
                done = await work(connection)
            except BaseException:
                connection.terminate()
                raise
            self._free.append(connection)
            return done
