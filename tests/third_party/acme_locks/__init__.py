"""Locks in an SQLite file, as a token source for Fencepost: acme:///var/lib/acme/locks.db.

An example of a third party's source. All that it imports of Fencepost is the Protocol and its errors.
"""

import asyncio
import secrets
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar
from urllib.parse import urlsplit

from fencepost.server.locks.source import (
    REQUEST_TIMEOUT,
    Capabilities,
    Grant,
    Holder,
    SourceConfigError,
    SourceContext,
    SourceUnavailableError,
)

T = TypeVar("T")

NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"
LOOKS_AGAIN = 0.05  # seconds between two tries of a waiter
TABLES = """
CREATE TABLE IF NOT EXISTS holds (
  lock text PRIMARY KEY, handle text NOT NULL, owner text NOT NULL, ends integer NOT NULL
);
CREATE TABLE IF NOT EXISTS tokens (last integer NOT NULL);
INSERT INTO tokens SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM tokens);
"""


def open_source(url: str, context: SourceContext) -> "AcmeSource":
    """Make a source from its URL. Raises SourceConfigError, whose message Fencepost shows when it starts."""
    path = urlsplit(url).path
    if not path:
        raise SourceConfigError(f"{context.name} needs a file, as in acme:///var/lib/acme/locks.db")
    return AcmeSource(path)


class AcmeSource:
    """See fencepost.server.locks.source.Source. Each method is one transaction."""

    capabilities = Capabilities(order="source", fair=False, verifies=True)

    def __init__(self, path: str) -> None:
        self._path = path

    async def open(self) -> None:
        """Do nothing: a gateway starts without its lock service."""

    async def close(self) -> None:
        """Do nothing: there is no connection that stays."""

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        handle = secrets.token_hex(16)
        deadline = asyncio.get_running_loop().time() + wait_s

        def take(file: sqlite3.Connection) -> Grant | Holder:
            held = _holder(file, lock)
            if held is not None:
                return held
            file.execute(f"REPLACE INTO holds VALUES (?, ?, ?, {NOW} + ?)", (lock, handle, owner, ttl_ms))
            return Grant(handle, _draw(file, tokens))  # after the lock is ours, in the same transaction

        while isinstance(found := await self._ask(take), Holder):
            if (left := deadline - asyncio.get_running_loop().time()) <= 0:
                break
            await asyncio.sleep(min(LOOKS_AGAIN, left))
        return found

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        def prolong(file: sqlite3.Connection) -> bool:
            if not _owns(file, lock, handle):
                return False
            file.execute(f"UPDATE holds SET ends = {NOW} + ? WHERE lock = ?", (ttl_ms, lock))
            return True

        return await self._ask(prolong)

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        return await self._ask(lambda file: _draw(file, count) if _owns(file, lock, handle) else None)

    async def release(self, lock: str, handle: str) -> None:
        await self._ask(lambda file: file.execute("DELETE FROM holds WHERE lock = ? AND handle = ?", (lock, handle)))

    async def inspect(self, lock: str) -> Holder | None:
        return await self._ask(lambda file: _holder(file, lock))

    async def issued(self, number: int) -> bool:
        return await self._ask(lambda file: bool(file.execute("SELECT last >= ? FROM tokens", (number,)).fetchone()[0]))

    async def advice(self) -> list[str]:
        return ["acme:// locks in one file: when it is deleted the tokens start anew"]

    async def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask in a thread, whole: a caller that is cancelled meanwhile leaves a hold that expires."""

        def ask() -> T:
            try:
                with closing(sqlite3.connect(self._path, timeout=REQUEST_TIMEOUT, isolation_level=None)) as file:
                    file.executescript(TABLES)
                    file.execute("BEGIN IMMEDIATE")
                    answer = question(file)
                    file.execute("COMMIT")
                    return answer
            except sqlite3.OperationalError as error:
                raise SourceUnavailableError(f"{self._path}: {error}") from error

        return await asyncio.to_thread(ask)


def _holder(file: sqlite3.Connection, lock: str) -> Holder | None:
    row = file.execute(f"SELECT owner, ends - {NOW} FROM holds WHERE lock = ? AND ends > {NOW}", (lock,)).fetchone()
    return None if row is None else Holder(*row)


def _owns(file: sqlite3.Connection, lock: str, handle: str) -> bool:
    found = file.execute(f"SELECT 1 FROM holds WHERE lock = ? AND handle = ? AND ends > {NOW}", (lock, handle))
    return found.fetchone() is not None


def _draw(file: sqlite3.Connection, count: int) -> tuple[int, ...]:
    last: int = file.execute("UPDATE tokens SET last = last + ? RETURNING last", (count,)).fetchone()[0]
    return tuple(range(last - count + 1, last + 1))
