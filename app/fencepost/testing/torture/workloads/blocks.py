"""Rows in blocks: a holder writes all rows of a block in one request, which must happen to all of them or to none.

Each row has a mark of its own, so each is an operation of its own in the history: a request counts as a hundred.
"""

from typing import Final

from fencepost.testing.torture.holders.actor import Actor
from fencepost.testing.torture.holders.database import Database
from fencepost.testing.torture.holders.locks import Lease, acquire, lapse, release
from fencepost.testing.torture.tables import Fenced
from fencepost.testing.torture.workloads.workload import Workload

_ROWS: Final = 100
"""In a block."""
_TOKENS: Final = 4
_MOST_WRITES: Final = 3
_READERS: Final = 0.3
"""How many turns are a look from outside."""


class Blocks:
    """One actor."""

    def __init__(self, actor: Actor, database: Database | None) -> None:
        self._actor, self._database, self._dice = actor, database, actor.dice
        self._table = Fenced(actor.assignment.prefix, "blocks")

    async def turn(self) -> None:
        """Take the lock of a block, write it, perhaps lose the lock, write it again. Or read a block."""
        block = self._dice.randrange(self._actor.assignment.resources)
        lease = None
        if self._dice.random() >= _READERS:
            lease = await acquire(self._actor, f"block/{block}", tokens=_TOKENS)
        if lease is None:
            await self._read(block)
            return
        there = await self._read(block)
        for _ in range(self._dice.randint(1, _MOST_WRITES)):
            there = await self._write(block, lease, there=there) or there
        released = await lapse(self._actor, lease, self._database)
        await self._write(block, lease, there=there)
        if not released:
            await release(self._actor, lease)

    async def _write(self, block: int, lease: Lease, *, there: bool) -> bool:
        """Write all rows: create them, if they were not there when they were looked at. Whether they are now."""
        actor, token = self._actor, lease.token()
        rows = [{"id": key, "value": actor.value()} for key in _keys(block)]
        operations = [
            actor.recorder.invoke(
                process=actor.name,
                op="write",
                resource=self._table.resource(row["id"]),
                token=token,
                value=row["value"],
            )
            for row in rows
        ]
        headers = {"X-Fence-Token": str(token), "Prefer": "return=minimal"}
        verb = "PATCH" if there else "POST"
        answer = await actor.sender.send(operations, verb, self._table.path(None), headers, rows)
        for operation in operations if answer is not None else ():
            operation.ok()
        return answer is not None

    async def _read(self, block: int) -> bool:
        """Read all rows in one request; whether they were there."""
        operations = {
            key: self._actor.recorder.invoke(process=self._actor.name, op="read", resource=self._table.resource(key))
            for key in _keys(block)
        }
        path = f"{self._table.path(None)}?select=id,value&id=like.{block}-*"
        answer = await self._actor.sender.send(list(operations.values()), "GET", path, {})
        if answer is None:
            return False
        values = {row["id"]: row["value"] for row in answer.body}
        for key, operation in operations.items():
            operation.ok(value=values.get(key))
        return bool(values)


def _keys(block: int) -> list[str]:
    return [f"{block}-{row}" for row in range(_ROWS)]


WORKLOAD: Final = Workload(
    "blocks",
    "a hundred rows in one request, written with tokens and read: all of them or none",
    Blocks,
    tables=("blocks",),
)
