"""Whose answer this is: the database behind a connection, compared with what is stored there and what was met (R19).

A promoted asynchronous standby, a restored backup and a copy have forgotten acknowledged writes, marks and tokens, and
look like the original in every other way. So each new connection reads where it leads, and only these may write:

1. it is not in recovery;
2. its location (system identifier, timeline, oid of the database, oid of fencepost.generations) is that of the newest
   generation that is stored there;
3. its history holds the newest generation that this process has met, number and identity. If it does not, it ends with
   one that came before what was met: a former primary; or with another one: two histories raised a generation each,
   and neither knows the tokens of the other. Raising one of them `--above` the other ends that;
4. its WAL is not behind what this process had met in the same generation: a server on the same timeline never goes
   back, not by a crash either, because the position compared is that of what was safe on disk. A copy of the data
   directory that was put in the original's place does. Once that was seen, the generation is refused for good: the
   copy's own writes soon carry it past the position that gave it away;
5. it has the newest moment that this process had met in the same generation: a random mark that gateways leave while
   the database is written to. A copy that was written to before it was put in place is ahead by its WAL, and was taken
   before that moment all the same.

What is met is compared with what was known before the question was sent: answers arrive in another order than they were
given in. It is kept in the process: a gateway that was started since knows nothing of it.

A connection that was refused is asked again before it is refused again: a standby's connections survive its promotion,
and an operator's `fencepost generation raise` is to work without a restart. One that was accepted stays so, until what
is met speaks against it; when a newer generation is met, all connections are made anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

import asyncpg

from fencepost.server.fence.token import GENERATION_BITS
from fencepost.server.postgres.errors import QuarantinedError, StandbyError, UnavailableError
from fencepost.server.times import Clock

ORIGIN: Final = """
SELECT o.in_recovery, o.system_identifier, o.timeline, o.database_oid, o.relation_oid, o.flushed, o.generation,
       CAST(o.identity AS text) AS identity, o.known_system, o.known_timeline, o.known_database, o.known_relation,
       o.history, o.above, o.moment, CAST(o.nonce AS text) AS nonce, o.forgot, o.due
  FROM fencepost.origin() AS o"""
ORIGIN_SINCE: Final = ORIGIN.replace("origin()", "origin($1, CAST($2 AS uuid))")
"""The same, compared with a moment that was met: its number and nonce, or nulls."""


@dataclass(frozen=True, slots=True)
class Location:
    """One database as no copy of it is. `timeline` is None in recovery."""

    system_identifier: int
    timeline: int | None
    database: int
    relation: int
    """The oid of fencepost.generations."""

    def describe(self) -> str:
        """Return the location as a phrase for messages."""
        return f"system {self.system_identifier} on timeline {self.timeline}"

    def members(self) -> dict[str, object]:
        """Give it for a problem's body."""
        return {
            "system_identifier": str(self.system_identifier),
            "timeline": self.timeline,
            "database_oid": str(self.database),
            "relation_oid": str(self.relation),
        }


@dataclass(frozen=True, slots=True)
class Met:
    """The newest generation that this process was connected to, and how far its WAL was safe there, in bytes.

    `back_at`: a lower position that was found later. `remade`: the oid that fencepost.generations was later found to
    have in this very database, to which open connections lead as well: what they were accepted for is gone.
    """

    generation: int
    identity: str
    location: Location
    flushed: int
    history: frozenset[str]
    back_at: int | None = None
    remade: int | None = None
    moment: int | None = None
    nonce: str | None = None
    """The newest moment that was met there; None: there was none."""

    def members(self) -> dict[str, object]:
        """Give it for a problem's body."""
        return {"generation": str(self.generation), "identity": self.identity}


@dataclass(frozen=True, slots=True)
class Origin:
    """What a connection is connected to, and what is stored there.

    `flushed` is None in recovery; `generation`, `identity` and `known` of the newest generation are None when nothing
    is stored. `history` has all generations, as number/identity; `above` is the highest token of `--above`.
    """

    in_recovery: bool
    found: Location
    flushed: int | None
    generation: int | None
    identity: str | None
    known: Location | None
    history: frozenset[str]
    above: int | None
    moment: int | None = None
    nonce: str | None = None
    """The newest moment that is stored there."""
    forgot: bool = False
    """Whether the moment is missing that was met before the question was sent."""
    due: bool = False
    """Whether something was written there since the newest moment."""

    @classmethod
    def of(cls, row: asyncpg.Record) -> "Origin":
        known = Location(*(row[f"known_{name}"] for name in ("system", "timeline", "database", "relation")))
        return cls(
            row["in_recovery"],
            Location(*(row[name] for name in ("system_identifier", "timeline", "database_oid", "relation_oid"))),
            row["flushed"],
            row["generation"],
            None if row["identity"] is None else str(row["identity"]),
            None if row["generation"] is None else known,
            frozenset(row["history"] or ()),
            row["above"],
            row["moment"],
            row["nonce"],
            row["forgot"],
            row["due"],
        )

    def same_history(self, other: "Origin") -> bool:
        """Whether what was committed there is known here (R15)."""
        return self.found == other.found

    def follows(self, met: Met) -> bool:
        """Whether what is stored here goes on from a generation that was met."""
        if f"{met.generation}/{met.identity}" in self.history:
            return True
        return self.above is not None and self.above >> GENERATION_BITS >= met.generation

    def _precedes(self, met: Met) -> bool:
        newest = f"{self.generation}/{self.identity}"
        return newest in met.history and newest != f"{met.generation}/{met.identity}"

    def problem(self, met: Met | None = None) -> UnavailableError | None:
        """Return why nothing may be written here; None: it may."""
        if self.in_recovery:
            return StandbyError(
                "This PostgreSQL is a standby: it serves reads; grants and fenced writes need the primary"
            )
        if self.generation is None:
            return QuarantinedError(f"{self._here()}, and fencepost.generations is empty", self._members())
        if met is not None and self._precedes(met):
            return QuarantinedError(
                f"{self._here()} and knows of generation {self.generation}, while generation {met.generation} has"
                " been raised elsewhere: it is a former primary, or a backup from before that, and must not be written"
                f" to. If it is to go on all the same: {_raise_above(met)}",
                {**self._members(), "highest_generation": str(met.generation), "met": met.members()},
            )
        if self.found != self.known:
            return QuarantinedError(
                f"{self._here()}, and generation {self.generation} {self._meaning()}", self._members()
            )
        return None if met is None else self._memory_problem(met)

    def _here(self) -> str:
        return f"This PostgreSQL is {self.found.describe()}"

    def _memory_problem(self, met: Met) -> UnavailableError | None:
        if not self.follows(met):
            return QuarantinedError(
                f"{self._here()} and knows of generation {self.generation}, and its history does not know the"
                f" generation {met.generation} that this gateway has met: two copies of this database went on by"
                " themselves, and each raised a generation. Tokens of one are worth nothing in the other. Decide which"
                f" one goes on, end the other, and on the one that goes on: {_raise_above(met)}",
                {**self._members(), "met": met.members()},
            )
        if met.back_at is not None and met.identity == self.identity:
            return QuarantinedError(
                f"{self._here()}, whose WAL was found at {_lsn(met.back_at)} after it had been safe up to"
                f" {_lsn(met.flushed)}: the server was replaced by an older copy of its data directory (a snapshot),"
                " which has forgotten acknowledged writes, their marks and tokens. If it is to go on: fencepost"
                " generation raise --reason …",
                {
                    **self._members(),
                    "met": {**met.members(), "flushed": _lsn(met.flushed), "found": _lsn(met.back_at)},
                },
            )
        if self.forgot and met.identity == self.identity:
            return QuarantinedError(
                f"{self._here()}, and what gateways left in it now and then (fencepost.moments) shows that it is"
                " another copy of the database than the one that this gateway has met: one of the two was made from the"
                " other's data directory, before something that was acknowledged, and has forgotten that. Decide which"
                " one goes on, end the other, and on the one that goes on: fencepost generation raise --reason …",
                {**self._members(), "met": met.members()},
            )
        if met.remade is not None and met.identity == self.identity and self.found.relation != met.remade:
            return QuarantinedError(
                f"{self._here()}, and the schema fencepost was made anew in it since this connection was opened",
                self._members(),
            )
        return None

    def _meaning(self) -> str:
        known = self.known
        if known is None or self.found.system_identifier != known.system_identifier:
            return (
                f"was raised on system {known and known.system_identifier}, timeline {known and known.timeline}: this"
                " is another cluster, with a copy of the data (a restored dump, pg_upgrade, a logical replica)"
            )
        if self.found.timeline != known.timeline:
            lost = (
                "a standby was promoted, or a backup restored, and writes that were acknowledged, their marks and"
                " tokens may be missing here"
                if (self.found.timeline or 0) > (known.timeline or 0)
                else "this timeline is older than that: a former primary, or a backup of it"
            )
            return f"was raised on system {known.system_identifier}, timeline {known.timeline}: {lost}"
        forgotten = "what was written to the original since then, marks and tokens too, is missing here"
        if self.found.database != known.database:
            return (
                f"was raised in another database of this cluster, whose oid is {known.database}, and this one's is"
                f" {self.found.database}: this is a copy (a restored dump, a clone by CREATE DATABASE … TEMPLATE,"
                f" also one that was given the original's name), and {forgotten}"
            )
        return (
            f"was raised before the schema fencepost was made anew in this database (fencepost.generations had the oid"
            f" {known.relation}, and has {self.found.relation}): a dump was restored over it, and {forgotten}"
        )

    def _members(self) -> dict[str, object]:
        known: dict[str, object] = {"generation": None if self.generation is None else str(self.generation)}
        if self.known is not None:
            known |= {"identity": self.identity, **self.known.members()}
        return {"found": self.found.members(), "known": known}


def _raise_above(met: Met) -> str:
    return f"fencepost generation raise --above {met.generation << GENERATION_BITS} --reason …"


def _lsn(position: int) -> str:
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class OriginStatus:
    """Whether writes are let through to this database, and why not. `generation` is None when nothing is stored."""

    accepted: bool
    generation: int | None
    reason: str | None

    def describe(self) -> str:
        """Return the status as one line for logs."""
        if self.accepted:
            return f"accepted: generation {self.generation}"
        return f"refused: {self.reason}"


class Watch:
    """What one process knows of the database, over all its connections.

    before = watch.met                  # before the question is sent
    origin = ...                        # the answer
    watch.compare(origin, before)
    """

    def __init__(self, changed: Callable[[OriginStatus], None] = lambda _status: None) -> None:
        self.met: Met | None = None
        self._changed = changed
        self._reported: OriginStatus | None = None
        self.accepting = False
        """Whether what was reported last is that writes are let through."""

    def compare(self, origin: Origin, before: Met | None) -> None:
        """Compare a new answer's position with what was known before it was asked for, and take note of its moment."""
        now = self.met
        if now is None or before is None or origin.flushed is None or now.back_at is not None:
            return
        if origin.found != now.location:
            if replace(origin.found, relation=now.location.relation) == now.location:
                self.met = replace(now, remade=origin.found.relation)
            return
        if not now.identity == before.identity == origin.identity or origin.forgot:
            return
        if origin.flushed < before.flushed:
            self.met = replace(now, back_at=origin.flushed)
            return
        if origin.flushed > now.flushed:
            now = replace(now, flushed=origin.flushed)
        if origin.moment is not None and origin.moment > (now.moment or 0):
            now = replace(now, moment=origin.moment, nonce=origin.nonce)
        self.met = now

    def problem(self, origin: Origin) -> UnavailableError | None:
        """Return why nothing may be written there, as far as this process knows."""
        return origin.problem(self.met)

    def judge(self, origin: Origin) -> tuple[UnavailableError | None, bool]:
        """Return why nothing may be written there, and report it when that has changed. Takes note of an origin that
        may be written to; True: it is of another generation than all before, so older connections must go.
        """
        error, newer = self.problem(origin), False
        if error is None and origin.generation is not None and origin.identity is not None:
            newer = self.met is not None and self.met.identity != origin.identity
            if self.met is None or newer:
                self.met = Met(
                    origin.generation,
                    origin.identity,
                    origin.found,
                    origin.flushed or 0,
                    origin.history,
                    moment=origin.moment,
                    nonce=origin.nonce,
                )
        reason = None if error is None else str(error)
        if self._reported is None or (self._reported.generation, self._reported.reason) != (origin.generation, reason):
            self._reported = OriginStatus(error is None, origin.generation, reason)
            self.accepting = self._reported.accepted
            self._changed(self._reported)
        return error, newer


# Answers of PostgreSQL that count for a while: one request asks for all that want the same answer meanwhile.

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST_KEPT: Final = 1000
"""How many answers are kept: requests choose what is asked for."""


class Known(Generic[K, V]):
    """Answers by what was asked for. Each counts for so many `seconds`."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds, self._clock = seconds, clock
        self._answers: dict[K, tuple[V, float]] = {}
        self._asking: dict[K, asyncio.Lock] = {}

    async def get(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        """Give the answer, which is asked for where none counts. Raises what `ask` raises."""
        if (found := self._counting(key)) is not None:
            return found[0]
        asking = self._asking.setdefault(key, asyncio.Lock())
        try:
            async with asking:
                if (found := self._counting(key)) is not None:
                    return found[0]
                answers = self._answers  # an answer to a question from before `forget` is forgotten with the others
                answer = await ask()
                if len(answers) >= MOST_KEPT:
                    answers.clear()
                answers[key] = (answer, self._clock.monotonic() + self._seconds)
                return answer
        finally:
            if not asking.locked():
                self._asking.pop(key, None)

    def last(self, key: K) -> V | None:
        """Give the last answer, also where it does not count any more; None: there is none."""
        found = self._answers.get(key)
        return None if found is None else found[0]

    def forget(self) -> None:
        self._answers = {}

    def _counting(self, key: K) -> tuple[V, float] | None:
        found = self._answers.get(key)
        return found if found is not None and found[1] > self._clock.monotonic() else None
