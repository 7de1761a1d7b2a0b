"""A mock of a lock service, and leases over it.

`Scripted` answers what a test sets, when the test lets it. How real services behave is shown by tests/conformance and
by the tests of this folder that have the fixture `api`.
"""

import asyncio
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.interleave import Connection

from fencepost.server.locks.source import Capabilities, Grant, Holder, SourceUnavailableError
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.postgres import sources
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.leases import LockRequest, hash_secret

NAME = "scripted"
_secrets = itertools.count(1)


@dataclass
class Scripted:
    """A mock of a lock service. Numbers come from `numbers`; `held` is what it believes to be held."""

    capabilities: Capabilities = field(default_factory=lambda: Capabilities("source", fair=True, verifies=True))
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    held: dict[str, str] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    slow: set[str] = field(default_factory=set)
    """Locks whose grants stay under way until the gate opens: the number is drawn before."""
    waits: set[str] = field(default_factory=set)
    """Locks that are granted once the gate opens: the number is drawn after."""
    lost: bool = False
    release_fails: bool = False
    stuck: set[str] = field(default_factory=set)
    """Locks that cannot be released."""
    refuses: set[str] = field(default_factory=set)
    """Locks of another holder, which is answered once `refused_until` is set."""
    refused_until: asyncio.Event | None = None

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        del owner, ttl_ms, wait_s
        if lock in self.refuses and self.refused_until is not None:
            await self.refused_until.wait()
            return Holder("me")
        if lock in self.waits:
            self.asked.set()
            await self.gate.wait()
        drawn = () if self.capabilities.order == "database" else self._draw(tokens)
        handle = f"{lock}#{drawn[0] if drawn else next(self.numbers)}"
        self.held[lock] = handle
        if lock in self.slow:
            self.asked.set()
            await self.gate.wait()
        return Grant(handle, drawn)

    def _draw(self, count: int) -> tuple[int, ...]:
        return tuple(next(self.numbers) for _ in range(count))

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        del ttl_ms
        return not self.lost and self.held.get(lock) == handle

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        return self._draw(count) if await self.renew(lock, handle, 1) else None

    async def release(self, lock: str, handle: str) -> None:
        if self.release_fails:
            raise SourceUnavailableError("it is away")
        if lock in self.stuck:
            raise ValueError("a library's own error")
        self.released.append(handle)
        if self.held.get(lock) == handle:
            del self.held[lock]

    async def inspect(self, lock: str) -> Holder | None:
        return Holder() if lock in self.held else None

    async def issued(self, number: int) -> bool:
        return number <= 1000

    async def advice(self) -> list[str]:
        return []


@dataclass
class Stage:
    """Leases over a scripted service."""

    locks: SourceLocks
    service: Scripted
    observer: Connection
    database: Database
    troubles: list[str]
    quarantined: list[str]
    secret: str = ""

    async def acquire(
        self, lock: str, *, claim: Any = None, gone: Any = None, tokens: int = 1, secret: str | None = None
    ) -> Any:
        self.secret = secret or str(next(_secrets))
        wanted = LockRequest((lock,), self.secret, "me", 20_000, tokens, ("t/1",) if claim else (), 10_000)
        return await self.locks.take(wanted, claim, gone or asyncio.get_running_loop().create_future())

    def elsewhere(self) -> "Stage":
        """The same leases, at another process of the gateway."""
        return replace(self, locks=SourceLocks(NAME, "mock", self.service, self.database))

    @property
    def secret_hash(self) -> bytes:
        return hash_secret(self.secret)

    async def raised(self) -> None:
        async with self.observer.transaction():
            await sources.raise_source(self.observer, NAME, "a test")

    async def live(self) -> int:
        count: int = await self.observer.fetchval("SELECT count(*) FROM fencepost.source_leases WHERE ended_at IS NULL")
        return count
