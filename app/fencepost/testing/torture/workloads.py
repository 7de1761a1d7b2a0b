"""What the actors of a run do: one class a workload."""

import asyncio
import contextlib
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

import fencepost
from fencepost.testing.history import Op, Operation
from fencepost.testing.torture.assignment import BUILTIN, OF_BATCH, Fenced, Kind
from fencepost.testing.torture.holders import (
    DATABASE_ERRORS,
    Actor,
    HeldLease,
    HolderDatabase,
    Sender,
    acquire,
    lapse,
    mint,
    release,
    run_token,
)


class Player(ABC):
    """Plays a workload with one actor. It may remember things from turn to turn."""

    def __init__(self, actor: Actor, database: HolderDatabase | None) -> None:
        self._actor, self._database, self._dice = actor, database, actor.dice

    @abstractmethod
    async def turn(self) -> None:
        """Do a few operations: a holder's work under one grant, or a look from outside."""

    async def finish(self) -> None:
        """Do what the run has to have done in the end, when the faults are over."""
        return


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run can play.

    name: after `--workload`. what: one line about it. play: makes a player of an actor; the database is there if
    `database` is set, or the run has one. tables: those that it needs. sets: the table whose rows are sets, which are
    read at the end. early: whether holders may release too early and go on: not where the lock alone protects, for
    that would be their own fault. slept: the share of turns in which a holder sleeps until its lease is over. trusts:
    whether holders stop when their lease is over, and are alone until then: faults that end leases early would break
    that by themselves. shares: whether its holders share keys or locks, as many as --resources says. loses: whether it
    is a control, which has to be found invalid. builtin: whether its leases are always of the built-in source.
    """

    name: str
    what: str
    play: Callable[[Actor, HolderDatabase | None], Player]
    tables: tuple[Kind, ...]
    sets: Kind | None = None
    early: bool = True
    slept: float = 0.01
    database: bool = False
    trusts: bool = False
    shares: bool = True
    loses: bool = False
    builtin: bool = False

    @property
    def promised(self) -> frozenset[Op]:
        """The operations that it is about: a run in which none of these was accepted has shown nothing."""
        return frozenset[Op](("write", "add") if self.tables else ("acquire",))


# The Python client: whether what it believes about a lease is true, and whether what it repeats is done once.
#
# A holder that asks its client, and stops when the client says so, is alone as long as only clocks and networks fail:
# the client's trust ends before the lease does. So the history has, without tokens, the moments at which a client
# trusted its lease, and no two of them may overlap. Faults that move the ends of leases in the database would break
# that by themselves; so would a lease that is lost to a failover.

_TTL: Final = 0.4
_WAIT: Final = 0.2
_TIMEOUT: Final = 1.0
_LONG: Final = 0.5
"""How many turns are so long that the lease must be renewed meanwhile."""
_BELIEVED_FOR: Final = 0.005
"""Seconds for which an answer of the client's is believed: less than its margin, which is 0.02 s at least."""
_ASKED_EVERY: Final = 0.008
_FULL: Final = 40
"""Members after which the actors go on to a new set: writing back a large one only costs time."""
_WRONG_SECRETS: Final = 0.2


class _Clients(Player):
    """One actor with a client of each gateway."""

    def __init__(self, actor: Actor, database: HolderDatabase | None) -> None:
        super().__init__(actor, database)
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

    def __init__(self, actor: Actor, database: HolderDatabase | None) -> None:
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


# Rows in blocks: a holder writes all rows of a block in one request, which must happen to all of them or to none.
#
# Each row has a mark of its own, so each is an operation of its own in the history: a request counts as a hundred.

_ROWS: Final = 100
"""In a block."""
_BLOCKS_TOKENS: Final = 4
_MOST_WRITES: Final = 3
_BLOCKS_READERS: Final = 0.3
"""How many turns are a look from outside."""


class Blocks(Player):
    """One actor."""

    def __init__(self, actor: Actor, database: HolderDatabase | None) -> None:
        super().__init__(actor, database)
        self._table = Fenced(actor.assignment.prefix, "blocks")

    async def turn(self) -> None:
        """Take the lock of a block, write it, perhaps lose the lock, write it again. Or read a block."""
        block = self._dice.randrange(self._actor.assignment.resources)
        lease = None
        if self._dice.random() >= _BLOCKS_READERS:
            lease = await acquire(self._actor, f"block/{block}", tokens=_BLOCKS_TOKENS)
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

    async def _write(self, block: int, lease: HeldLease, *, there: bool) -> bool:
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


BLOCKS_WORKLOAD: Final = Workload(
    "blocks",
    "a hundred rows in one request, written with tokens and read: all of them or none",
    Blocks,
    tables=("blocks",),
)


_HELD_FOR: Final = 0.005
"""Seconds, at most."""
_SHORT: Final = 0.6
"""How many grants are for so short a time that they end by themselves, while others are being asked for."""
_SHORT_MS: Final = 100
"""Milliseconds above the least TTL, at most."""
_MINTS: Final = 3
_MINTS_WHEN_SHORT: Final = 30
"""Enough for the grant to end while one more token is being drawn."""
_MINTED: Final = (1, 500, 1000)
"""Tokens at a time. To draw many takes the source some milliseconds, in which the grant may end."""
_WAITS_MS: Final = (0, 20, 400)


class Mutex(Player):
    """A lock by itself: taken, held for a moment, given back; or lost, as its time was over or its holder slept."""

    async def turn(self) -> None:
        """Take one of the locks, mint as long as it is ours, and give it back."""
        actor, dice = self._actor, self._dice
        number = dice.randrange(actor.assignment.resources)
        short = dice.random() < _SHORT
        ttl_ms = actor.assignment.least_ttl_ms + dice.randint(0, _SHORT_MS) if short else actor.assignment.ttl_ms
        # For every second lock all try at once; a queue would let one try after the other.
        wait_ms = dice.choice(_WAITS_MS) if number % 2 else 0
        lease = await acquire(actor, f"mutex/{number}", tokens=dice.choice((1, 1, 3)), wait_ms=wait_ms, ttl_ms=ttl_ms)
        if lease is None:
            return
        for _ in range(_MINTS_WHEN_SHORT if short else dice.randint(0, _MINTS)):
            if not await mint(actor, lease, dice.choice(_MINTED)):
                return
        await asyncio.sleep(dice.random() * _HELD_FOR)
        if not await lapse(actor, lease, self._database):
            await release(actor, lease)


MUTEX_WORKLOAD: Final = Workload(
    "mutex",
    "a lock by itself: the tokens of its grants must rise",
    Mutex,
    tables=(),
)


_TABLES: Final[tuple[Kind, ...]] = ("strict", "epoch", "scoped")
_REGISTER_TOKENS: Final = 8
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
_REGISTER_READERS: Final = 0.2
"""How many turns are a look from outside."""


class Register(Player):
    """Fenced writes to rows, by holders whose leases pass on while they still write; and readers without a lock."""

    def __init__(self, actor: Actor, database: HolderDatabase | None) -> None:
        super().__init__(actor, database)
        self._tables = [Fenced(actor.assignment.prefix, kind) for kind in _TABLES]
        self._keys = [f"k{number}" for number in range(actor.assignment.resources)]
        self._others = [actor.another_sender() for _ in range(_AT_ONCE - 1)]

    async def turn(self) -> None:
        """Take a row's lock, write it, perhaps lose the lock, write it again. Or read a row."""
        table, key = self._dice.choice(self._tables), self._dice.choice(self._keys)
        reads = self._dice.random() < _REGISTER_READERS
        lease = None if reads else await acquire(self._actor, table.resource(key), tokens=_REGISTER_TOKENS)
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

    async def _step(self, table: Fenced, key: str, lease: HeldLease) -> None:
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

    async def _burst(self, table: Fenced, key: str, lease: HeldLease) -> None:
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


REGISTER_WORKLOAD: Final = Workload(
    "register",
    "fenced writes, reads, deletes, inserts and claims of rows, by holders of leases that pass on",
    Register,
    tables=_TABLES,
)


# Sets that grow by reading, adding and writing back, under a lock: with a fence, and as the control without one.
#
# These are the workloads by which Jepsen showed etcd's locks to be unsafe (etcd 3.4.3). A holder that is paused
# between its reading and its writing overwrites what others have added meanwhile; the lock cannot prevent it, a fence
# does.

_SLEPT: Final = 0.05
"""A control in which no holder sleeps has nothing to lose."""


class _Sets(Player):
    """One actor: which set it adds to, under which lock."""

    def __init__(self, actor: Actor, database: HolderDatabase | None) -> None:
        super().__init__(actor, database)
        self._rounds = [0] * actor.assignment.resources
        self._released = False

    async def turn(self) -> None:
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

    @abstractmethod
    async def _add(self, name: str, lease: HeldLease) -> int:
        """Add a member; returns how many there were."""


class FencedSets(_Sets):
    """Claims the row, reads what the claim returns, and writes with a newer token."""

    async def _add(self, name: str, lease: HeldLease) -> int:
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

    async def _add(self, name: str, lease: HeldLease) -> int:
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


# Requests with an Idempotency-Key, repeated when their outcome is unknown, when it is known, and at the same time.

_ATTEMPTS: Final = 8
_TWICE_AT_ONCE: Final = 0.2
_AGAIN: Final = 0.4
_ANOTHER: Final = 0.1
"""How often a key is sent with another request, which must be refused."""
_PER_ACCOUNT: Final = 100
"""Entries after which an actor goes on to a new account, so that each can be read at once."""
_RELEASED_AFTER: Final = 200
"""Turns after which an actor takes a new lease."""


class Idempotent(Player):
    """One actor: entries of a ledger, which are inserted, and so would be there twice; and rows that it writes."""

    def __init__(self, actor: Actor, database: HolderDatabase | None) -> None:
        super().__init__(actor, database)
        prefix = actor.assignment.prefix
        self._ledger, self._rows = Fenced(prefix, "ledger"), Fenced(prefix, "epoch")
        self._twin = actor.another_sender()
        self._lease: HeldLease | None = None
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


IDEMPOTENT_WORKLOAD: Final = Workload(
    "idempotent",
    "requests with an Idempotency-Key, repeated: each must be done exactly once",
    Idempotent,
    tables=("ledger", "epoch"),
    sets="ledger",
    shares=False,
)

# Jobs: rows of which each worker takes the next one, does it, and writes it back as done. Each must be done, once.
#
# A job is made with a batch of others, which is a set in the history: a job is added to it when it is made, and is a
# member once for each effect that is found at the end. So a job that was never done is lost, and one that was done
# twice is there twice. The write-back has the job as its key in the history (no Idempotency-Key is sent): two that were
# accepted are found by that, too. Some workers leave a row of their effect in the transaction of the write-back.
#
# What a take has granted is known from its answer alone. It is recorded then, as having begun when it was asked for: a
# grant of the job's lock, and a claim of its row. How often the job was taken must rise with each take, as tokens do,
# and is recorded as a lock of its own. A take whose answer never came is not recorded; so of refusals only is recorded
# that they were: the mark that has refused may be that of such a take.

_NEXT_ASKED: Final = 4
"""How often a take with a secret of its own is asked for, when its answer is lost."""
_NEXT_WAITS_MS: Final = (0, 0, 100)
_NEXT_LIMITS: Final = (1, 1, 3)
_CHOSEN_SECRETS: Final = 0.4
_PROGRESSES: Final = 0.2
_LEAVES_AN_EFFECT: Final = 0.3
_GIVES_UP: Final = 0.05
"""How many jobs are left as they are, with their leases."""


class _Workers(Player):
    """One worker. It makes a batch of jobs where there is none to take."""

    kind: Kind

    def __init__(self, actor: Actor, database: HolderDatabase | None) -> None:
        super().__init__(actor, database)
        self._table = Fenced(actor.assignment.prefix, self.kind)
        self._batches = 0

    async def turn(self) -> None:
        if not await self._take(lapses=True):
            self._batches += 1
            batch = f"{self._actor.name}b{self._batches}"
            await self._make(
                batch, [f"{batch}{OF_BATCH}{number}" for number in range(self._actor.assignment.resources)]
            )

    async def finish(self) -> None:
        """Do all jobs that are left, whoever has made them."""
        while await self._take(lapses=False) or await self._left():
            pass

    @abstractmethod
    async def _take(self, *, lapses: bool) -> bool:
        """Take jobs and do them; whether there was one. With lapses, it is not always done, or in time."""

    @abstractmethod
    async def _make(self, batch: str, keys: list[str]) -> None:
        """Make the jobs of a batch."""

    @abstractmethod
    async def _left(self) -> bool:
        """Whether a job may be left that is not done."""

    def _made(self, batch: str, keys: list[str], token: int | None) -> tuple[list[Operation], list[dict[str, str]]]:
        """Begin the operations by which jobs are made, and give the rows."""
        rows, operations = [{"id": key, "value": self._actor.value()} for key in keys], []
        for row in rows:
            operations.append(self._invoke("write", row["id"], token=token, value=row["value"]))
            operations.append(self._invoke("add", batch, value=row["id"]))
        return operations, rows

    def _invoke(self, op: Op, name: str, **fields: Any) -> Operation:
        """Begin an operation on a job, or on a batch of them."""
        resource = self._table.resource(name)
        return self._actor.recorder.invoke(process=self._actor.name, op=op, resource=resource, **fields)


class Workers(_Workers):
    """Takes jobs with leases, and writes them back under their tokens."""

    kind = "jobs"

    async def _take(self, *, lapses: bool) -> bool:
        dice, secret, limit = self._dice, None, self._dice.choice(_NEXT_LIMITS)
        if dice.random() < _CHOSEN_SECRETS:
            secret, limit = secrets.token_urlsafe(32), 1
        since = time.monotonic_ns()
        found = await self._ask(secret, limit, dice.choice(_NEXT_WAITS_MS) if lapses else _WAITS_MS[-1])
        for lease in [self._granted(given, since) for given in found]:
            await self._do(lease, lapses=lapses)
        return bool(found)

    async def _ask(self, secret: str | None, limit: int, wait_ms: int) -> list[dict[str, Any]]:
        """Ask for the next jobs, again where the answer was lost; give their leases."""
        actor = self._actor
        asked = {
            "next": {"table": self._table.name, "where": "status=eq.new", "limit": limit},
            "owner": actor.name,
            "ttl_ms": actor.assignment.ttl_ms,
            "wait_ms": wait_ms,
            "tokens": 2,
        }
        headers = {} if secret is None else {"X-Lease-Secret": secret}
        for _ in range(1 if secret is None else _NEXT_ASKED):
            answer = await actor.sender.send([], "POST", "/v1/leases", headers, asked)
            if answer is not None:
                body = answer.body or {"leases": []}
                found: list[dict[str, Any]] = body.get("leases", [body])
                return found
        return []

    def _granted(self, given: dict[str, Any], since: int) -> HeldLease:
        """Record what a take has granted that was asked for at this time."""
        tokens = tuple(int(token) for token in given["tokens"])
        lease = HeldLease(given["lock"], given["lease_id"], given["secret"], tokens, deque(tokens))
        name, recorder, lock = self._actor.name, self._actor.recorder, f"lock/{lease.lock}"
        recorder.invoke(process=name, op="acquire", resource=lock, since=since).ok(token=lease.first)
        counted = recorder.invoke(process=name, op="acquire", resource=f"{lock}/attempt", since=since)
        counted.ok(token=given["attempt"])
        if (mark := int(given["claims"][0]["mark"])) < lease.first:  # else a repeated answer's, which a failover raised
            claim = self._invoke("claim", self._key(lease), token=mark, since=since)
            claim.ok(value=given["row"]["value"])
        self._actor.sender.count("accepted", 3)
        return lease

    def _key(self, lease: HeldLease) -> str:
        return lease.lock.removeprefix(self._table.resource(""))

    async def _do(self, lease: HeldLease, *, lapses: bool) -> None:
        """Do a job and give its lock back. With lapses: or neither, or after the lease is over."""
        if lapses and self._dice.random() < _GIVES_UP:
            return
        if self._dice.random() < _PROGRESSES:
            await self._write(lease, done=False)
        released = lapses and await lapse(self._actor, lease, self._database)
        await self._write(lease, done=True)
        if not released:
            await release(self._actor, lease)

    async def _write(self, lease: HeldLease, *, done: bool) -> None:
        """Write a job: that it is done, sometimes with a row of its effect in the same transaction; or progress."""
        table, sender, key, value = self._table, self._actor.sender, self._key(lease), self._actor.value()
        token = lease.granted[-1] if done else lease.first
        once = {"key": table.resource(key)} if done else {}
        operation = self._invoke("write", key, token=token, value=value, **once)
        row = {"value": value} | ({"status": "done"} if done else {})
        if done and self._dice.random() < _LEAVES_AN_EFFECT:
            common = {"token": token, "prefer": "return=minimal"}
            lines = (
                {"method": "PATCH", "path": f"{table.name}/{key}", "body": row} | common,
                {"method": "POST", "path": table.name, "body": {"id": value, "value": key, "status": "effect"}}
                | common,
            )
            body = b"\n".join(map(orjson.dumps, lines))
            answer = await sender.send([operation], "POST", "/v1/batch?atomic=true", {}, body, reasons=False)
        else:
            headers = {"X-Fence-Token": str(token), "Prefer": "return=minimal"}
            answer = await sender.send([operation], "PATCH", table.path(key), headers, row, reasons=False)
        if answer is not None:
            operation.ok()

    async def _make(self, batch: str, keys: list[str]) -> None:
        actor = self._actor
        lease = await acquire(actor, f"jobs/{batch}")
        if lease is None:
            return
        operations, rows = self._made(batch, keys, lease.first)
        headers, path = {"X-Fence-Token": str(lease.first), "Prefer": "return=minimal"}, self._table.path(None)
        answer = await actor.sender.send(operations, "POST", path, headers, rows, reasons=False)
        for operation in operations if answer is not None else ():
            operation.ok()
        await release(actor, lease)

    async def _left(self) -> bool:
        path = f"{self._table.path(None)}?status=eq.new&select=id&limit=1"
        answer = await self._actor.sender.send([], "GET", path, {})
        return answer is None or bool(answer.body)


_TAKE_BY_HAND: Final = """
UPDATE public.{table} SET locked_until = clock_timestamp() + $1 * interval '1 ms'
 WHERE id = (SELECT id FROM public.{table} WHERE status = 'new' AND coalesce(locked_until < clock_timestamp(), true)
              ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id
"""
_DO_BY_HAND: Final = """
WITH done AS (UPDATE public.{table} SET status = 'done', value = $2 WHERE id = $1)
INSERT INTO public.{table} (id, value, status) VALUES ($2, $1, 'effect')
"""
_EXPIRE_BY_HAND: Final = "UPDATE public.{table} SET locked_until = clock_timestamp() - interval '1 s' WHERE id = $1"
_MAKE_BY_HAND: Final = "INSERT INTO public.{table} (id, value) SELECT * FROM unnest($1::text[], $2::text[])"
_LEFT_BY_HAND: Final = "SELECT FROM public.{table} WHERE status = 'new' LIMIT 1"
_LATER: Final = 0.05
"""Seconds after which the database is asked again."""


class UnfencedWorkers(_Workers):
    """Does the same as it is made by hand: a time until which a job is its worker's, and nothing that a write meets."""

    kind = "plain_jobs"

    async def _take(self, *, lapses: bool) -> bool:
        found = await self._run(_TAKE_BY_HAND, self._actor.assignment.ttl_ms)
        if not found:
            return found is None  # unknown: perhaps there is one
        key = found[0]["id"]
        if lapses:
            if self._dice.random() < _GIVES_UP:
                return True
            await self._lapse(key)
        value = self._actor.value()
        operation = self._invoke("write", key, value=value, key=self._table.resource(key))
        await self._run(_DO_BY_HAND, key, value, operations=[operation])
        return True

    async def _lapse(self, key: str) -> None:
        """Perhaps lose the job, as `lapse` does."""
        assigned, dice = self._actor.assignment, self._dice.random()
        if dice < assigned.lapses.expired:
            await self._run(_EXPIRE_BY_HAND, key)
            await asyncio.sleep(self._dice.random() * _LATER)
        elif dice < assigned.lapses.expired + assigned.lapses.slept:
            await asyncio.sleep(assigned.ttl_ms / 1000 + self._dice.random() * _LATER)

    async def _make(self, batch: str, keys: list[str]) -> None:
        operations, rows = self._made(batch, keys, None)
        await self._run(_MAKE_BY_HAND, keys, [row["value"] for row in rows], operations=operations)

    async def _left(self) -> bool:
        found = await self._run(_LEFT_BY_HAND)
        if found:
            await asyncio.sleep(_LATER)
        return found is None or bool(found)

    async def _run(self, statement: str, *values: object, operations: Sequence[Operation] = ()) -> list[Any] | None:
        """Run a statement, which is these operations; give its rows. None: whether it had an effect is unknown."""
        assert self._database is not None  # noqa: S101 - for the type: Workload.database says so
        try:
            found = await self._database.fetch(statement.format(table=self._table.name), *values)
        except DATABASE_ERRORS as error:
            for operation in operations:
                operation.unknown(f"{type(error).__name__}: {error}")
            self._actor.sender.count("unknown", len(operations))
            await asyncio.sleep(_LATER)
            return None
        for operation in operations:
            operation.ok()
        self._actor.sender.count("accepted", len(operations))
        return found


JOBS_WORKLOAD: Final = Workload(
    "jobs",
    "jobs that workers take as the next row of a table: each must be done, and once",
    Workers,
    tables=("jobs",),
    sets="jobs",
    builtin=True,
)
JOBS_UNFENCED: Final = Workload(
    "jobs-unfenced",
    "the control: the same by SKIP LOCKED and a time until which a job is locked. It must do some twice",
    UnfencedWorkers,
    tables=("plain_jobs",),
    sets="plain_jobs",
    early=False,
    slept=_SLEPT,
    database=True,
    loses=True,
    builtin=True,
)

WORKLOADS: Final[dict[str, Workload]] = {
    workload.name: workload
    for workload in (
        REGISTER_WORKLOAD,
        BLOCKS_WORKLOAD,
        MUTEX_WORKLOAD,
        FENCED,
        UNFENCED,
        IDEMPOTENT_WORKLOAD,
        CLIENTS,
        CLIENT_SETS,
        JOBS_WORKLOAD,
        JOBS_UNFENCED,
    )
}
