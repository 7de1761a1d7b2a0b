"""Sets that grow by reading, adding and writing back, under a lock: with a fence, and as the control without one.

These are the workloads by which Jepsen showed etcd's locks to be unsafe (etcd 3.4.3). A holder that is paused between
its reading and its writing overwrites what others have added meanwhile; the lock cannot prevent it, a fence does.
"""

from typing import Final

from fencepost.testing.torture.holders.actor import Actor
from fencepost.testing.torture.holders.database import DATABASE_ERRORS, Database
from fencepost.testing.torture.holders.locks import Lease, acquire, lapse, release
from fencepost.testing.torture.tables import Fenced
from fencepost.testing.torture.workloads.workload import Workload

_FULL: Final = 40
"""Members after which the actors go on to a new set: writing back a large one only costs time."""

_SLEPT: Final = 0.05
"""A control in which no holder sleeps has nothing to lose."""


class _Sets:
    """One actor: which set it adds to, under which lock."""

    def __init__(self, actor: Actor, database: Database | None) -> None:
        self._actor, self._database = actor, database
        self._rounds = [0] * actor.assignment.resources
        self._released = False

    async def turn(self) -> None:
        """Add one member to a set."""
        slot = self._actor.dice.randrange(len(self._rounds))
        lease = await acquire(self._actor, f"set/{slot}", tokens=2)
        if lease is None:
            return
        self._released = False
        members = await self._add(f"s{slot}r{self._rounds[slot]}", lease)
        if members >= _FULL:
            self._rounds[slot] += 1
        if not self._released:
            await release(self._actor, lease)

    async def _add(self, name: str, lease: Lease) -> int:
        """Add a member; returns how many there were."""
        raise NotImplementedError


class FencedSets(_Sets):
    """Claims the row, reads what the claim returns, and writes with a newer token."""

    async def _add(self, name: str, lease: Lease) -> int:
        actor, table, value = self._actor, Fenced(self._actor.assignment.prefix, "sets"), self._actor.value()
        resource, claimed, token = table.resource(name), lease.token(), lease.token()
        operation = actor.recorder.invoke(process=actor.name, op="add", resource=resource, token=token, value=value)
        headers = {"X-Fence-Token": str(claimed)}
        answer = await actor.sender.send([], "POST", "/v1/claims", headers, {"resource": resource})
        if answer is None:
            operation.refused("other")  # without a claim nothing is written
            return 0
        row = answer.body["row"]
        members = [] if row is None else row["value"].split(",")
        self._released = await lapse(actor, lease, self._database)
        headers = {"X-Fence-Token": str(token), "Prefer": "return=minimal"}
        body = {"value": ",".join([*members, value])}
        if await actor.sender.send([operation], "PUT", table.path(name), headers, body) is not None:
            operation.ok()
        return len(members)


class UnfencedSets(_Sets):
    """Does the same in a table that nothing protects, past the gateway."""

    async def _add(self, name: str, lease: Lease) -> int:
        actor, database, value = self._actor, self._database, self._actor.value()
        assert database is not None  # noqa: S101 - for the type: Workload.database says so
        table = Fenced(actor.assignment.prefix, "plain")
        operation = actor.recorder.invoke(process=actor.name, op="add", resource=table.resource(name), value=value)
        try:
            found = await database.members(table.name, name)
            members = found.split(",") if found else []
            self._released = await lapse(actor, lease, database)
            await database.store(table.name, name, ",".join([*members, value]))
        except DATABASE_ERRORS as error:
            operation.unknown(f"{type(error).__name__}: {error}")
            actor.sender.count("unknown")
            return 0
        operation.ok()
        actor.sender.count("accepted")
        return len(members)


FENCED: Final = Workload(
    "fenced-set",
    "sets that are read, added to and written back with tokens: none may lose a member",
    FencedSets,
    tables=("sets",),
    sets="sets",
    early=False,
    slept=_SLEPT,
)
UNFENCED: Final = Workload(
    "unfenced-set",
    "the control: the same under the lock alone, in a table without a fence. It must lose members",
    UnfencedSets,
    tables=("plain",),
    sets="plain",
    early=False,
    slept=_SLEPT,
    database=True,
    loses=True,
)
