"""Fenced writes to rows, by holders whose leases pass on while they still write; and readers without a lock."""

import asyncio
from typing import Final

from fencepost.testing.torture.holders.actor import Actor
from fencepost.testing.torture.holders.database import Database
from fencepost.testing.torture.holders.locks import Lease, acquire, lapse, release
from fencepost.testing.torture.tables import Fenced, Kind
from fencepost.testing.torture.workloads.workload import Workload

_TABLES: Final[tuple[Kind, ...]] = ("strict", "epoch", "scoped")
_TOKENS: Final = 8
"""Drawn with the grant. A holder that does more than that sends its last token again."""
_STEPS: Final = (
    "PATCH",
    "PATCH",
    "PATCH",
    "PUT",
    "PUT",
    "PUT",
    "POST",
    "DELETE",
    "claim",
    "claim",
    "read",
    "many",
    "burst",
    "overtaken",
    "overtaken",
)
_AT_ONCE: Final = 3
_MOST_STEPS: Final = 5
_MOST_STEPS_AFTER: Final = 3
_OVERTAKING: Final = ("DELETE", "DELETE", "PUT", "claim")
_OVERTAKEN: Final = ("PUT", "PUT", "POST", "PATCH", "DELETE")
_OUT_OF_TURN: Final = 0.2
"""How often a step has any of the lease's tokens: one that was used already, or that later ones have overtaken."""
_READERS: Final = 0.2
"""How many turns are a look from outside."""


class Register:
    """One actor."""

    def __init__(self, actor: Actor, database: Database | None) -> None:
        self._actor, self._database, self._dice = actor, database, actor.dice
        self._tables = [Fenced(actor.assignment.prefix, kind) for kind in _TABLES]
        self._keys = [f"k{number}" for number in range(actor.assignment.resources)]
        self._others = [actor.another_sender() for _ in range(_AT_ONCE - 1)]

    async def turn(self) -> None:
        """Take a row's lock, write it, perhaps lose the lock, write it again. Or read a row."""
        table, key = self._dice.choice(self._tables), self._dice.choice(self._keys)
        reads = self._dice.random() < _READERS
        lease = None if reads else await acquire(self._actor, table.resource(key), tokens=_TOKENS)
        if lease is None:
            await self._actor.read(table, key)
            return
        for _ in range(self._dice.randint(1, _MOST_STEPS)):
            await self._step(table, key, lease)
        released = await lapse(self._actor, lease, self._database)
        for _ in range(self._dice.randint(0, _MOST_STEPS_AFTER)):
            await self._step(table, key, lease)
        if not released:
            await release(self._actor, lease)

    async def _step(self, table: Fenced, key: str, lease: Lease) -> None:
        step = self._dice.choice(_STEPS)
        if step == "read":
            await self._actor.read(table, key)
            return
        again = table.rule == "epoch" and self._dice.random() < 0.5  # noqa: PLR2004 - as often as not
        if self._dice.random() < _OUT_OF_TURN:
            token = self._dice.choice(lease.granted)
        else:
            token = lease.tokens[0] if again else lease.token()
        match step:
            case "many" if table.kind != "scoped":
                others = self._dice.sample(self._keys, min(2, len(self._keys)))
                await self._actor.write_many(table, sorted({key, *others}), token)
            case "many":
                await self._actor.write(table, key, token)
            case "burst":
                await self._burst(table, key, lease)
            case "overtaken":
                later = lease.token()
                await self._do(self._dice.choice(_OVERTAKING), table, key, later)
                await self._do(self._dice.choice(_OVERTAKEN), table, key, token)
            case verb:
                await self._do(verb, table, key, token)

    async def _do(self, verb: str, table: Fenced, key: str, token: int) -> None:
        match verb:
            case "DELETE":
                await self._actor.delete(table, key, token)
            case "claim":
                await self._actor.claim(table, key, token)
            case _:
                await self._actor.write(table, key, token, verb=verb)

    async def _burst(self, table: Fenced, key: str, lease: Lease) -> None:
        """Write several times at once, not in the order of the tokens, and look: what is sent while another write is
        under way goes into one batch.
        """
        first, *others = (lease.token() for _ in range(_AT_ONCE))
        verb = self._dice.choice(("PATCH", "PUT"))
        under_way = zip((self._actor.sender, *self._others), (first, *reversed(others)), strict=True)
        await asyncio.gather(
            *(self._actor.write(table, key, token, verb=verb, sender=sender) for sender, token in under_way)
        )
        await self._actor.read(table, key)


WORKLOAD: Final = Workload(
    "register",
    "fenced writes, reads, deletes, inserts and claims of rows, by holders of leases that pass on",
    Register,
    tables=_TABLES,
)
