"""Databases in which something was done already: it is done once a worker, and then copied as the migrated one is.

Making a table, protecting it and looking at it costs as much as all else of a short test.
"""

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from fencepost.testing.servers.postgres import Databases

T = TypeVar("T")


class ReadyMade(Databases):
    """Makes databases on one server, also copies of those in which something was done."""

    def __init__(self, url: str, template: str) -> None:
        super().__init__(url, template)
        self._done: dict[Hashable, tuple[str, Any]] = {}

    async def make_with(self, kind: Hashable, prepare: Callable[[str], Awaitable[T]]) -> tuple[str, T]:
        """Make a copy of a database that was prepared; returns its URL, and what `prepare` returned.

        The first of a kind is prepared, and stays as it is then: `prepare` leaves no connection open.
        """
        if kind not in self._done:
            first = self.make()
            self._done[kind] = first.rpartition("/")[2], await prepare(first)
        template, result = self._done[kind]
        migrated, self._template = self._template, template
        try:
            return self.make(), result
        finally:
            self._template = migrated


class Unmade:
    """The database of a test, until somebody needs it: then a fresh one, or a copy of what is needed."""

    def __init__(self, databases: ReadyMade) -> None:
        self._databases = databases
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Its URL. Makes a fresh, migrated database if there is none yet."""
        self._url = self._url or self._databases.make()
        return self._url

    async def made_with(self, kind: Hashable, prepare: Callable[[str], Awaitable[T]]) -> T:
        """Make it as a copy (see ReadyMade.make_with), or prepare the one that is there already."""
        if self._url is not None:
            return await prepare(self._url)
        self._url, result = await self._databases.make_with(kind, prepare)
        return result

    def drop(self) -> None:
        """Drop it, if it was made."""
        if self._url is not None:
            self._databases.drop(self._url)
