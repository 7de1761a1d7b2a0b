"""Keeps the newest Catalog: reloaded when notified (NOTIFY, SIGHUP) and when a request finds it outdated.

A request that meets an unknown column, table or changed type has the gateway look whether the table has changed (one
small query), and asks for a picture begun after it arrived if so. At most one load runs at a time, and all that wait
share it. A change that no request stumbles over (a new column) is seen by the load that runs now and then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.tables.catalog import EVERYTHING, Catalog, Served, Table
from fencepost.server.postgres.tables.load import is_outdated, load


class CatalogCache:
    """The gateway's current picture of the database."""

    def __init__(
        self, database: Database, on_load: Callable[[Catalog], None] = lambda _: None, served: Served = EVERYTHING
    ) -> None:
        self._database = database
        self._served = served
        self._on_load = on_load
        self._current = Catalog(0, {})
        self._loading: asyncio.Task[Catalog] | None = None

    @property
    def current(self) -> Catalog:
        """The newest picture there is."""
        return self._current

    async def reload(self) -> Catalog:
        """Load a picture that was begun after this call: a load under way may be too old."""
        if self._loading is not None and not self._loading.done():
            await asyncio.wait([self._loading])
        return await self._load()

    async def loaded_after(self, moment: float) -> Catalog:
        """Return a picture begun after `moment` (loop time), loading it unless that has just been done."""
        return self._current if self._current.begun > moment else await self.reload()

    async def close(self) -> None:
        """End a load that is under way; its waiters are cancelled with it."""
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
            await asyncio.wait([self._loading])

    async def has_changed(self, name: str, table: Table | None, lent: AbstractAsyncContextManager[Connection]) -> bool:
        """Look whether the database has something else under this name than the picture with `table` in it. The
        question is asked on a connection of the gateway's own that is `lent` for it.
        """
        if not self._served.has(name):
            return False
        async with lent as connection:
            with map_errors(writing=False):
                return await is_outdated(connection, self._served.schemas, name, table)

    def _load(self) -> Awaitable[Catalog]:
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._read())
            # A request that waits gets its failure; if all have gone, none needs it.
            self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        # A caller that goes away must not cancel the load that others wait for.
        return asyncio.shield(self._loading)

    async def _read(self) -> Catalog:
        """Load. Where nothing has changed, the tables stay the ones that there were, with all that was made of them.
        Where a table has got code of users' that may change sessions, connections are made anew: it may have run in
        them since, unseen.
        """
        async with self._database.connection(counted=False) as connection:  # one load at a time
            catalog = await load(connection, self._served, self._current.version + 1)
        if catalog.tables == self._current.tables and self._current.version:
            catalog = replace(catalog, version=self._current.version, tables=self._current.tables)
        if catalog.runs_new_code(self._current):
            self._database.expire()
        self._current = catalog
        self._on_load(catalog)
        return catalog
