"""The Python client: whether what it believes about a lease is true, and whether what it repeats is done once.

A holder that asks its client, and stops when the client says so, is alone as long as only clocks and networks fail: the
client's trust ends before the lease does. So the history has, without tokens, the moments at which a client trusted
its lease, and no two of them may overlap. Faults that move the ends of leases in the database would break that by
themselves; so would a lease that is lost to a failover.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from typing import Final

import fencepost  # its client is imported on use: workers of other workloads start without it
from fencepost.testing.torture.assignment import BUILTIN
from fencepost.testing.torture.holders.actor import Actor
from fencepost.testing.torture.holders.database import Database
from fencepost.testing.torture.holders.token import run_token
from fencepost.testing.torture.tables import Fenced
from fencepost.testing.torture.workloads.workload import Workload

_TTL: Final = 0.4
_WAIT: Final = 0.2
_TIMEOUT: Final = 1.0
_LONG: Final = 0.5
"""How many turns are so long that the lease must be renewed meanwhile."""
_BELIEVED_FOR: Final = 0.005
"""Seconds for which an answer of the client's is believed: less than its margin, which is 0.02 s at least."""
_ASKED_EVERY: Final = 0.008
_FULL: Final = 40
"""As in sets.py."""
_WRONG_SECRETS: Final = 0.2


class _Clients(ABC):
    """One actor with a client of each gateway."""

    def __init__(self, actor: Actor, database: Database | None) -> None:
        self._actor, self._database, self._dice = actor, database, actor.dice
        self._clients: list[fencepost.Client] = []
        self._source = None if actor.assignment.source == BUILTIN else actor.assignment.source
        self._ttl = max(_TTL, actor.assignment.least_ttl_ms / 1000)
        self._turns = 0

    async def turn(self) -> None:
        """Take a lock, work under it, and leave it; or not get it."""
        if not self._clients:  # they belong to the event loop
            urls = self._actor.assignment.gateways
            retry = fencepost.Retry(patience=0.5, first=0.02, longest=0.2)
            owner = self._actor.name
            token = run_token() if self._actor.assignment.authenticated else None
            self._clients = [
                fencepost.Client(url, token=token, owner=owner, timeout=_TIMEOUT, retry=retry) for url in urls
            ]
        self._turns += 1
        client = self._dice.choice(self._clients)
        with contextlib.suppress(fencepost.FencepostError):
            await self._take_turn(client, self._dice.randrange(self._actor.assignment.resources))

    @abstractmethod
    async def _take_turn(self, client: "fencepost.Client", slot: int) -> None: ...


class Believers(_Clients):
    """Holds a lock for as long as the client trusts the lease, and inserts entries under it."""

    async def _take_turn(self, client: "fencepost.Client", slot: int) -> None:
        lock = f"{self._actor.assignment.prefix}/clients/{slot}"
        if self._dice.random() < _WRONG_SECRETS:
            await self._release_anothers(client, lock)
        async with client.lock(lock, ttl=self._ttl, wait=_WAIT, source=self._source) as lease:
            until = time.monotonic() + self._dice.random() * (2 if self._dice.random() < _LONG else 0.2) * self._ttl
            believing = asyncio.create_task(self._believe(lease, f"lock/{lock}", until))
            await self._insert(client, lease)
            await believing

    async def _believe(self, lease: "fencepost.Lease", lock: str, until: float) -> None:
        """Record again and again that the lease is trusted."""
        while time.monotonic() < until:
            operation = self._actor.recorder.invoke(process=self._actor.name, op="acquire", resource=lock)
            now = time.monotonic_ns()
            if not lease.trusted:
                operation.refused("held")
                return
            operation.ok(expires=now + int(_BELIEVED_FOR * 1e9))
            self._actor.sender.count("accepted")
            await asyncio.sleep(_ASKED_EVERY)

    async def _insert(self, client: "fencepost.Client", lease: "fencepost.Lease") -> None:
        actor, table = self._actor, Fenced(self._actor.assignment.prefix, "ledger")
        value, account = actor.value(), f"{actor.name}a{self._turns // _FULL}"
        operation = actor.recorder.invoke(process=actor.name, op="add", resource=table.resource(account), value=value)
        try:
            await client.post(table.name, {"account": account, "value": value}, lease=lease)
        except fencepost.FencepostError as error:
            operation.unknown(f"{type(error).__name__}: {error}")
            actor.sender.count("unknown")
        else:
            operation.ok()
            actor.sender.count("accepted")

    async def _release_anothers(self, client: "fencepost.Client", lock: str) -> None:
        """Try to release what another one holds, with a secret that is not its holder's."""
        for held in await client.locks(lock):
            if held.lease_id is not None:
                secret = {"X-Lease-Secret": "not-the-secret-of-the-holder-1234"}
                await self._actor.sender.send([], "DELETE", f"/v1/leases/{held.lease_id}", secret)


class ClientSets(_Clients):
    """Reads a set from the claim that comes with the lock, loses the lease perhaps, and writes the set back."""

    def __init__(self, actor: Actor, database: Database | None) -> None:
        super().__init__(actor, database)
        self._rounds = [0] * actor.assignment.resources

    async def _take_turn(self, client: "fencepost.Client", slot: int) -> None:
        actor, table = self._actor, Fenced(self._actor.assignment.prefix, "sets")
        name, value = f"s{slot}r{self._rounds[slot]}", actor.value()
        resource = table.resource(name)
        async with client.lock(resource, ttl=self._ttl, wait=_WAIT, claim=True, source=self._source) as lease:
            row = lease.row
            members = [] if row is None else str(row["value"]).split(",")
            if len(members) >= _FULL:
                self._rounds[slot] += 1
                return
            if self._database is not None and self._dice.random() < actor.assignment.lapses.expired:
                await self._database.expire(lease.id)
                await asyncio.sleep(self._dice.random() * 0.05)
            operation = actor.recorder.invoke(process=actor.name, op="add", resource=resource, value=value)
            try:
                await client.put(table.name, name, {"value": ",".join([*members, value])}, lease=lease)
            except fencepost.FencepostError as error:
                operation.unknown(f"{type(error).__name__}: {error}")
                actor.sender.count("unknown")
            else:
                operation.ok()
                actor.sender.count("accepted")


CLIENTS: Final = Workload(
    "client",
    "the Python client: no two may trust their leases of one lock at once, and what it repeats is done once",
    Believers,
    tables=("ledger",),
    sets="ledger",
    trusts=True,
)
CLIENT_SETS: Final = Workload(
    "client-set",
    "sets that are read with a claim, added to and written back by the Python client: none may lose a member",
    ClientSets,
    tables=("sets",),
    sets="sets",
)
