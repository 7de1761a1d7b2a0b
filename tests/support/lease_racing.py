"""Connections that race for locks with the product's own statements, and one that looks on.

race = await open_lease_race(connect)
old = await race.acquire(race.a, "x", secret="old")
waiter = await race.waits(race.b, race.acquire(race.b, "x", secret="new"))
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from tests.support.interleave import Connect, Connection
from tests.support.racing import Racers, owner, racer

from fencepost.server.postgres import leases
from fencepost.server.postgres.leases import Granted, LeaseRow, LockRequest, hash_secret
from fencepost.testing.servers.processes import eventually

MINUTE = 60_000  # ms
ELSEWHERE = uuid4()

EXPIRED = "UPDATE fencepost.leases SET expires_at = clock_timestamp() - $2 * interval '1 s' WHERE lease_id = $1"
CLOCK_STEPPED_BACK = "UPDATE fencepost.leases SET expires_at = clock_timestamp() + interval '1 min' WHERE lease_id = $1"

STEPPED_BACK = """
UPDATE fencepost.leases SET granted_at = granted_at + $1, expires_at = expires_at + $1, ended_at = ended_at + $1;
UPDATE fencepost.draws SET drawn_at = drawn_at + $1;
UPDATE fencepost.waiters SET queued_at = queued_at + $1, give_up_at = give_up_at + $1;
UPDATE fencepost.gateways SET seen_at = seen_at + $1;
UPDATE fencepost.source_leases SET granted_at = granted_at + $1, expires_at = expires_at + $1, ended_at = ended_at + $1
"""
"""What a database holds whose clock has just stepped back: all its times are that much later."""

REMEMBERED = "SELECT (SELECT count(*) FROM fencepost.leases) + (SELECT count(*) FROM fencepost.draws)"


async def sweep_all(connection: Connection, keep_seconds: float) -> int:
    """Sweep, and forget what ended longer ago than that; return how many rows went."""
    before = await connection.fetchval(REMEMBERED)
    swept = await leases.sweep(connection)
    position: int | None = 0
    while position is not None:
        position = await leases.forget(connection, keep_seconds, position)
    gone: int = swept + before - await connection.fetchval(REMEMBERED)
    return gone


def wanted(
    *names: str,
    secret: str,
    owner: str = "somebody",
    ttl_ms: int = MINUTE,
    tokens: int = 1,
    claims: tuple[str, ...] = (),
    wait_ms: int = 0,
    keep_place: bool = False,
) -> LockRequest:
    return LockRequest(names, secret, owner, ttl_ms, tokens, claims, wait_ms, keep_place)


@dataclass
class LeaseRace(Racers):
    """A race for locks. `gateway` is the one whose waiters the racers are."""

    gateway: UUID = field(default_factory=uuid4)

    # The product's statements

    async def acquire(
        self, connection: Connection, *names: str, secret: str, visit: UUID | None = None, **others: Any
    ) -> Any:
        """Try once; with wait_ms and a visit, take a place in the queue. Gives an Acquired, of the kind that is due."""
        asked = wanted(*names, secret=secret, **others)
        gateway = None if visit is None else self.gateway
        return await leases.try_locks(connection, asked, gateway, visit, asked.wait_ms)

    async def queue(self, connection: Connection, *names: str, secret: str, visit: UUID | None = None) -> UUID:
        """Take a place in the queue."""
        visit = visit or uuid4()
        got = await self.acquire(connection, *names, secret=secret, owner=secret, wait_ms=MINUTE, visit=visit)
        assert got.verdict == "queued", got
        return visit

    async def acquire_past(self, connection: Connection, name: str, *, secret: str) -> Any:
        """Acquire a lock past its queue: what happens when all of its waiters were away for a moment."""
        await self.observer.execute("UPDATE fencepost.waiters SET give_up_at = give_up_at - interval '1 day'")
        got = await self.acquire(connection, name, secret=secret)
        await self.observer.execute("UPDATE fencepost.waiters SET give_up_at = give_up_at + interval '1 day'")
        return got

    async def renew(self, connection: Connection, lease_id: int, secret: str) -> LeaseRow | None:
        return await leases.extend(connection, lease_id, hash_secret(secret), ttl_ms=-1)

    async def mint(self, connection: Connection, lease_id: int, secret: str, count: int = 1) -> LeaseRow | None:
        return await leases.extend(connection, lease_id, hash_secret(secret), tokens=count)

    async def release(self, connection: Connection, lease_id: int, secret: str) -> bool:
        """Release at another gateway than the waiters'. False: it is held by another."""
        woken = await leases.release(connection, lease_id, hash_secret(secret), ELSEWHERE)
        assert not woken, f"waiters of another gateway: {woken}"
        return woken is not None

    async def release_here(self, connection: Connection, lease_id: int, secret: str) -> list[UUID] | None:
        """Release at the waiters' own gateway; returns whom it is to wake."""
        return await leases.release(connection, lease_id, hash_secret(secret), self.gateway)

    async def beat(self, *visits: UUID, left: tuple[UUID, ...] = ()) -> dict[UUID, int]:
        return dict(await leases.beat(self.observer, self.gateway, list(visits), list(left)))

    # Time

    async def expire(self, lease_id: int, ago: float = 1.0, *, by: "Connection | None" = None) -> None:
        """Let a lease run out `ago` seconds ago, or in so many if that is below 0; `by` who has locked its row."""
        await (by or self.observer).execute(EXPIRED, lease_id, ago)

    async def step_clock_back(self, lease_id: int) -> None:
        """Let the lease's time not be over yet, as it is when the clock steps back. What has ended stays ended."""
        await self.observer.execute(CLOCK_STEPPED_BACK, lease_id)

    async def clock_steps_back(self, by: str = "1 hour") -> None:
        """Let the database's clock step back."""
        await step_back(self.observer, by)

    async def run_out(self, lease_id: int) -> None:
        """Return once a lease's time has run out by the database's clock."""
        await eventually(
            lambda: self.observer.fetchval(
                "SELECT expires_at < clock_timestamp() FROM fencepost.leases WHERE lease_id = $1", lease_id
            ),
            what="the end of the TTL",
        )

    # Looking

    async def holder(self, name: str) -> int | None:
        """The live lease that has the lock."""
        lease: int | None = await self.observer.fetchval(
            """SELECT k.lease_id FROM fencepost.locks k JOIN fencepost.leases x USING (lease_id)
                WHERE k.name = $1 AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()""",
            name,
        )
        return lease

    async def lock_rows(self) -> dict[str, int | None]:
        return {row[0]: row[1] for row in await self.observer.fetch("SELECT name, lease_id FROM fencepost.locks")}

    async def waiting(self, name: str) -> list[str]:
        """Who waits, in order."""
        return [
            row[0]
            for row in await self.observer.fetch(
                "SELECT owner FROM fencepost.live_waiters WHERE name = $1 ORDER BY ticket", name
            )
        ]

    async def tickets(self, secret: str) -> list[int]:
        rows = await self.observer.fetch(
            "SELECT ticket FROM fencepost.waiters WHERE secret_hash = $1 ORDER BY name", hash_secret(secret)
        )
        return [row[0] for row in rows]

    async def counts(self) -> dict[str, int]:
        """How many rows each table of the token source has."""
        return {
            name: await self.observer.fetchval(f"SELECT count(*) FROM fencepost.{name}")
            for name in ("locks", "leases", "draws", "waiters", "gateways")
        }

    async def listen(self, connection: Connection, gateway: UUID | None = None) -> "asyncio.Queue[UUID]":
        """Listen for visits of this gateway, or of another one, that are woken. `notified` gives what was committed so
        far.
        """
        seen: asyncio.Queue[UUID] = asyncio.Queue()
        await connection.add_listener(
            f"fencepost_{(gateway or self.gateway).hex}",
            lambda *notification: seen.put_nowait(UUID(str(notification[-1]))),
        )
        return seen


async def step_back(connection: Connection, by: str = "1 hour") -> None:
    """Let a database hold what it would if its clock had just stepped back."""
    await connection.execute(STEPPED_BACK.replace("$1", f"interval '{by}'"))


async def notified(connection: Connection, seen: "asyncio.Queue[UUID]") -> list[UUID]:
    """What a listener has received. PostgreSQL delivers notifications before the answer of the next statement."""
    await connection.execute("SELECT 1")
    return [seen.get_nowait() for _ in range(seen.qsize())]


async def open_lease_race(connect: Connect) -> LeaseRace:
    """Bring everybody to the line."""
    race = LeaseRace(await racer(connect), await racer(connect), await racer(connect), await owner(connect))
    await race.beat()
    return race


async def granted(connection: Connection, name: str, tokens: int = 1) -> int:
    """Acquire a lock whose secret is its name; returns the first token."""
    got = await leases.try_locks(connection, wanted(name, secret=name, ttl_ms=MINUTE, tokens=tokens), None, None, 0)
    assert isinstance(got, Granted)
    return int(got.lease.tokens[0])
