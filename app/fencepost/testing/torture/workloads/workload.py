"""What a workload is: which tables it needs, and what one actor does in one turn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fencepost.testing.history import Op
from fencepost.testing.torture.holders.actor import Actor
from fencepost.testing.torture.holders.database import Database
from fencepost.testing.torture.tables import Kind


class Player(Protocol):
    """Plays a workload with one actor. It may remember things from turn to turn."""

    async def turn(self) -> None:
        """Do a few operations: a holder's work under one grant, or a look from outside."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a run can play.

    name: after `--workload`. what: one line about it. play: makes a player of an actor; the database is there if
    `database` is set, or the run has one. tables: those that it needs. sets: the table whose rows are sets, which are
    read at the end. early: whether holders may release too early and go on: not where the lock alone protects, for
    that would be their own fault. slept: the share of turns in which a holder sleeps until its lease is over. trusts:
    whether holders stop when their lease is over, and are alone until then: faults that end leases early would break
    that by themselves. shares: whether its holders share keys or locks, as many as --resources says. loses: whether it
    is a control, which has to be found invalid.
    """

    name: str
    what: str
    play: Callable[[Actor, Database | None], Player]
    tables: tuple[Kind, ...]
    sets: Kind | None = None
    early: bool = True
    slept: float = 0.01
    database: bool = False
    trusts: bool = False
    shares: bool = True
    loses: bool = False

    @property
    def promised(self) -> frozenset[Op]:
        """The operations that it is about: a run in which none of these was accepted has shown nothing."""
        return frozenset[Op](("write", "add") if self.tables else ("acquire",))
