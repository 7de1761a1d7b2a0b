"""Requests with an Idempotency-Key, repeated when their outcome is unknown, when it is known, and at the same time."""

import asyncio
from typing import Final

from fencepost.testing.torture.holders.actor import Actor
from fencepost.testing.torture.holders.database import Database
from fencepost.testing.torture.holders.locks import Lease, acquire
from fencepost.testing.torture.holders.sender import Sender
from fencepost.testing.torture.tables import Fenced
from fencepost.testing.torture.workloads.workload import Workload

_ATTEMPTS: Final = 8
_TWICE_AT_ONCE: Final = 0.2
_AGAIN: Final = 0.4
_ANOTHER: Final = 0.1
"""How often a key is sent with another request, which must be refused."""
_PER_ACCOUNT: Final = 100
"""Entries after which an actor goes on to a new account, so that each can be read at once."""
_RELEASED_AFTER: Final = 200
"""Turns after which an actor takes a new lease."""


class Idempotent:
    """One actor: entries of a ledger, which are inserted, and so would be there twice; and rows that it writes."""

    def __init__(self, actor: Actor, database: Database | None) -> None:  # noqa: ARG002 - as all players
        self._actor, self._dice = actor, actor.dice
        prefix = actor.assignment.prefix
        self._ledger, self._rows = Fenced(prefix, "ledger"), Fenced(prefix, "epoch")
        self._twin = actor.another_sender()
        self._lease: Lease | None = None
        self._turns = 0

    async def turn(self) -> None:
        self._turns += 1
        if self._lease is None or self._turns % _RELEASED_AFTER == 0:
            self._lease = await acquire(self._actor, f"idempotent/{self._actor.name}/{self._turns}")
        if self._lease is None:
            return
        done = await (self._entry if self._dice.random() < 0.7 else self._row)(self._lease.first)  # noqa: PLR2004
        if not done:  # its tokens may be those of an older generation: begin anew
            self._lease = None

    async def _entry(self, token: int) -> bool:
        """Insert an entry; whether it is known to be there."""
        value, account = self._actor.value(), f"{self._actor.name}a{self._turns // _PER_ACCOUNT}"
        if self._dice.random() < _TWICE_AT_ONCE:
            both = (self._insert(sender, account, value, token) for sender in (self._actor.sender, self._twin))
            done = any(await asyncio.gather(*both))
        else:
            done = await self._insert(self._actor.sender, account, value, token)
        attempts = 1
        while attempts < _ATTEMPTS and (not done or self._dice.random() < _AGAIN):
            done = await self._insert(self._actor.sender, account, value, token) or done
            attempts += 1
        if done and self._dice.random() < _ANOTHER:
            await self._insert(self._actor.sender, account, self._actor.value(), token, key=value)
        return done

    async def _insert(self, sender: Sender, account: str, value: str, token: int, *, key: str | None = None) -> bool:
        key = value if key is None else key
        operation = self._actor.recorder.invoke(
            process=self._actor.name, op="add", resource=self._ledger.resource(account), value=value, key=key
        )
        headers = {"X-Fence-Token": str(token), "Idempotency-Key": key, "Prefer": "return=minimal"}
        body = {"account": account, "value": value}
        answer = await sender.send([operation], "POST", self._ledger.path(None), headers, body)
        if answer is None:
            return False
        operation.ok(replayed=b"idempotent-replayed" in answer.headers)
        return True

    async def _row(self, token: int) -> bool:
        """Write a row twice, with another write of the same holder in between: the repetition must change nothing."""
        key, value = self._actor.name, self._actor.value()
        first = await self._actor.write(self._rows, key, token, value=value, once=value)
        await self._actor.write(self._rows, key, token)
        await self._actor.write(self._rows, key, token, value=value, once=value)
        await self._actor.read(self._rows, key)
        return first is not None


WORKLOAD: Final = Workload(
    "idempotent",
    "requests with an Idempotency-Key, repeated: each must be done exactly once",
    Idempotent,
    tables=("ledger", "epoch"),
    sets="ledger",
    shares=False,
)
