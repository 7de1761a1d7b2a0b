"""The order in which the lines of a batch take effect: a line begins when those are decided that it must wait for.

Of each group of tables there is a phase: lines of one table, each of which names its row. They begin once the phase
before them is over, and of one row one after the other. A line of another table, or one that may concern any row of
its table, begins a new phase; the latter has a phase to itself.
"""

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field

from fencepost.gateway.writes.places import Place


@dataclass(slots=True, eq=False)
class _Phase:
    unit: Hashable | None
    """The table whose rows its lines name; None: it has one line, of any rows."""
    before: "asyncio.Future[None] | None"
    over: "asyncio.Future[None]"
    undecided: int = 0
    rows: "dict[Hashable, asyncio.Future[None]]" = field(default_factory=dict)
    """Of each row, when its last line is decided."""


@dataclass(slots=True, eq=False)
class Turn:
    """A line's turn. `decided` is to be called once, however it ends."""

    _order: "Order"
    _place: Place
    _phase: _Phase
    _previous: "asyncio.Future[None] | None"
    _decided: "asyncio.Future[None]"

    async def come(self) -> None:
        """Wait until all is decided that the line must wait for."""
        for earlier in (self._phase.before, self._previous):
            if earlier is not None and not earlier.done():
                await asyncio.wait((earlier,))  # others wait for it too: it is not to be cancelled

    def decided(self) -> None:
        """Let those begin that wait for the line."""
        self._decided.set_result(None)
        self._order.leave(self._place, self._phase, self._decided)


class Order:
    """The lines of a batch that are not decided."""

    def __init__(self) -> None:
        self._phases: dict[Hashable, _Phase] = {}
        """Of each group of tables, the last one."""

    def enter(self, place: Place) -> Turn:
        """Give the next line its turn."""
        loop = asyncio.get_running_loop()
        phase = self._phases.get(place.group)
        if phase is None or place.row is None or phase.unit != place.unit:
            before = None if phase is None else phase.over
            unit = None if place.row is None else place.unit
            phase = self._phases[place.group] = _Phase(unit, before, loop.create_future())
        phase.undecided += 1
        decided: asyncio.Future[None] = loop.create_future()
        previous = phase.rows.get(place.row)
        phase.rows[place.row] = decided
        return Turn(self, place, phase, previous, decided)

    def leave(self, place: Place, phase: _Phase, decided: "asyncio.Future[None]") -> None:
        """Forget a line that is decided."""
        if phase.rows.get(place.row) is decided:
            del phase.rows[place.row]
        phase.undecided -= 1
        if phase.undecided:
            return
        phase.over.set_result(None)
        if self._phases[place.group] is phase:
            del self._phases[place.group]

    async def all_decided(self) -> None:
        """Wait until no line is left."""
        while self._phases:
            await asyncio.wait([phase.over for phase in self._phases.values()])
