"""Whose answer this is: the system and timeline behind a connection, compared with what is stored there (R19).

A promoted asynchronous standby has forgotten acknowledged writes, marks and tokens, and looks like its primary in every
other way. So each new connection says where it leads, and only these may write:

1. it is not in recovery;
2. its system identifier and timeline are those of the newest generation that is stored there;
3. this generation is the highest that this process has met: an old primary that came back knows a lower one.

A connection that was refused is asked again before it is refused again: a standby's connections survive its promotion,
and an operator's `fencepost generation raise` is to work without a restart. One that was accepted stays so, because a
running primary cannot change its timeline; when a higher generation is met, all connections are made anew.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.storage.errors import QuarantinedError, StandbyError, UnavailableError

ORIGIN: Final = """
SELECT o.in_recovery, o.system_identifier, o.timeline, o.generation, o.known_system, o.known_timeline
  FROM fencepost.origin() AS o"""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a connection is connected to, and what is stored there as the newest generation.

    `timeline` is None in recovery; `generation`, `known_system`, `known_timeline` are None when nothing is stored.
    """

    in_recovery: bool
    system_identifier: int
    timeline: int | None
    generation: int | None
    known_system: int | None
    known_timeline: int | None

    @classmethod
    def of(cls, row: asyncpg.Record) -> "Origin":
        """Read a row of fencepost.origin()."""
        return cls(*(row[name] for name in cls.__slots__))

    def same_history(self, other: "Origin") -> bool:
        """Whether what was committed there is known here: the system and the timeline are the same (R15)."""
        return (self.system_identifier, self.timeline) == (other.system_identifier, other.timeline)

    def problem(self, highest: int) -> UnavailableError | None:
        """Say why nothing may be written here; None: it may. `highest` is the generation that was met elsewhere."""
        if self.in_recovery:
            return StandbyError(
                "This PostgreSQL is a standby: it serves reads; grants and fenced writes need the primary"
            )
        here = f"system {self.system_identifier} on timeline {self.timeline}"
        if self.generation is None:
            return QuarantinedError(f"This PostgreSQL is {here}, and fencepost.generations is empty", self._members())
        if self.generation < highest:
            return QuarantinedError(
                f"This PostgreSQL is {here} and knows of generation {self.generation}, while generation {highest} has"
                " been raised elsewhere: it is a former primary, or a backup of one, and must not be written to",
                {**self._members(), "highest_generation": str(highest)},
            )
        if (self.system_identifier, self.timeline) == (self.known_system, self.known_timeline):
            return None
        return QuarantinedError(
            f"This PostgreSQL is {here}, and generation {self.generation} was raised on system {self.known_system},"
            f" timeline {self.known_timeline}: {self._meaning()}",
            self._members(),
        )

    def _meaning(self) -> str:
        if self.system_identifier != self.known_system:
            return "this is another cluster, with a copy of the data (a restored dump, pg_upgrade, a logical replica)"
        if (self.timeline or 0) > (self.known_timeline or 0):
            return (
                "a standby was promoted, or a backup restored, and writes that were acknowledged, their marks and"
                " tokens may be missing here"
            )
        return "this timeline is older than that: a former primary, or a backup of it"

    def _members(self) -> dict[str, object]:
        def text(number: int | None) -> str | None:
            return None if number is None else str(number)

        return {
            "found": {"system_identifier": str(self.system_identifier), "timeline": self.timeline},
            "known": {
                "generation": text(self.generation),
                "system_identifier": text(self.known_system),
                "timeline": self.known_timeline,
            },
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether writes are let through to this database, and why not. `generation` is None when nothing is stored."""

    accepted: bool
    generation: int | None
    reason: str | None

    def describe(self) -> str:
        """Say it in a line."""
        if self.accepted:
            return f"accepted: generation {self.generation}"
        return f"refused: {self.reason}"


class Watch:
    """What one process knows of generations, over all its connections."""

    def __init__(self, changed: Callable[[Standing], None] = lambda _standing: None) -> None:
        self.highest = 0
        self._changed = changed
        self._told: Standing | None = None

    def met(self, origin: Origin) -> bool:
        """Take note of an origin; True: it is of a higher generation than all before, so older connections must go."""
        if origin.problem(self.highest) is not None or origin.generation is None:
            return False
        rose = origin.generation > self.highest
        self.highest = max(self.highest, origin.generation)
        return rose

    def judge(self, origin: Origin) -> UnavailableError | None:
        """Say why nothing may be written there, and tell whoever wants to know when that has changed."""
        error = origin.problem(self.highest)
        standing = Standing(error is None, origin.generation, None if error is None else str(error))
        if standing != self._told:
            self._told = standing
            self._changed(standing)
        return error
