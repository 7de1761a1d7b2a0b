"""What an actor does to locks. It does not stop when its lease is over: that is what fences are for."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from fencepost.testing.torture.assignment import BUILTIN
from fencepost.testing.torture.holders.actor import Actor
from fencepost.testing.torture.holders.database import Database

_WAIT_MS: Final = 400
_BEYOND: Final = 0.05
"""Seconds that a holder sleeps longer than its lease."""


@dataclass(slots=True)
class Lease:
    """A lock that was granted. It may be over: a holder that was paused does not know."""

    lock: str
    id: str
    secret: str
    granted: tuple[int, ...]
    tokens: deque[int]

    @property
    def first(self) -> int:
        """The token of the grant."""
        return self.granted[0]

    def token(self) -> int:
        """Give the next token; the last one again and again, when the others are used up."""
        return self.tokens.popleft() if len(self.tokens) > 1 else self.tokens[0]


async def acquire(
    actor: Actor, lock: str, *, tokens: int = 1, wait_ms: int = _WAIT_MS, ttl_ms: int | None = None
) -> Lease | None:
    """Take a lock; None if it is held, or the answer is lost."""
    assignment = actor.assignment
    name = f"{assignment.prefix}/{lock}"
    operation = actor.recorder.invoke(process=actor.name, op="acquire", resource=f"lock/{name}")
    asked = {
        "lock": name,
        "owner": actor.name,
        "ttl_ms": ttl_ms or assignment.ttl_ms,
        "wait_ms": wait_ms,
        "tokens": tokens,
    } | ({} if assignment.source == BUILTIN else {"source": assignment.source})
    answer = await actor.sender.send([operation], "POST", "/v1/leases", {}, asked)
    if answer is None:
        return None
    granted = answer.body
    drawn = tuple(int(token) for token in granted["tokens"])
    operation.ok(token=drawn[0])
    return Lease(name, granted["lease_id"], granted["secret"], drawn, deque(drawn))


async def release(actor: Actor, lease: Lease) -> None:
    """Give it back."""
    operation = actor.recorder.invoke(
        process=actor.name, op="release", resource=f"lock/{lease.lock}", token=lease.first
    )
    answer = await actor.sender.send([operation], "DELETE", f"/v1/leases/{lease.id}", {"X-Lease-Secret": lease.secret})
    if answer is not None:
        operation.ok()


async def mint(actor: Actor, lease: Lease, count: int = 1) -> bool:
    """Draw more tokens; whether the answer says that the lease is still held.

    It is recorded as an acquire that names the token of the grant, and shows the last one that was drawn.
    """
    operation = actor.recorder.invoke(
        process=actor.name, op="acquire", resource=f"lock/{lease.lock}", token=lease.first
    )
    secret, path = {"X-Lease-Secret": lease.secret}, f"/v1/leases/{lease.id}/tokens"
    answer = await actor.sender.send([operation], "POST", path, secret, {"count": count})
    if answer is None:
        return False
    drawn = [int(token) for token in answer.body["tokens"]]
    operation.ok(token=drawn[-1])
    lease.tokens.extend(drawn)
    return True


async def lapse(actor: Actor, lease: Lease, database: Database | None) -> bool:
    """Perhaps lose the lease, by the actor's dice, and go on as if it was not lost. Whether it was released."""
    lapses, dice = actor.assignment.lapses, actor.dice.random()
    if dice < lapses.early:
        await release(actor, lease)
        return True
    dice -= lapses.early
    if database is not None and dice < lapses.expired:
        await database.expire(lease.id)
        await asyncio.sleep(actor.dice.random() * _BEYOND)
        return False
    dice -= lapses.expired
    if 0 <= dice < lapses.slept:
        await asyncio.sleep(actor.assignment.ttl_ms / 1000 + actor.dice.random() * _BEYOND)
    return False
