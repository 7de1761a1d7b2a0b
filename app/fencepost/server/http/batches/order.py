"""The order in which the lines of a batch take effect: a line begins when those are decided that it must wait for.

Of each group of tables there is a phase: lines of one table, each of which names its row. They begin once the phase
before them is over, and of one row one after the other. A line of another table, or one that may concern any row of
its table, begins a new phase; the latter has a phase to itself. Lines under one Idempotency-Key wait for each other,
too, whatever they concern: the first one is done.

A line that is to be sent again, because it is not known whether it landed or it found no connection, would take effect
after those behind it. So later lines on its row, or under its key, are not done either (`Behind`).
"""

import asyncio
from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from fencepost.server.gateway.writes.places import Place


class Behind(Exception):  # noqa: N818 - no error: it says where a line stands
    """The line is not to be done: line `number` is on its row, and to be sent again first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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

    number: int
    place: Place
    key: str | None
    _order: "Order"
    _phase: _Phase
    _earlier: "tuple[asyncio.Future[None] | None, ...]"
    _decided: "asyncio.Future[None]"

    async def come(self) -> None:
        """Wait until all is decided that the line must wait for. Raises Behind."""
        for earlier in self._earlier:
            if earlier is not None and not earlier.done():
                await asyncio.wait((earlier,))  # others wait for it too: it is not to be cancelled
        if (number := self._order.first_of(self.place, self.key)) is not None:
            raise Behind(number)

    def decided(self, *, again: bool) -> None:
        """Let those begin that wait for the line. `again`: it is to be sent again."""
        if again:
            self._order.hold_back(self)
        self._decided.set_result(None)
        self._order.leave(self, self._phase, self._decided)


class Order:
    """The lines of a batch that are not decided, and what lines concern that are to be sent again."""

    def __init__(self) -> None:
        self._phases: dict[Hashable, _Phase] = {}
        """Of each group of tables, the last one."""
        self._keys: dict[str, asyncio.Future[None]] = {}
        """Of each Idempotency-Key, when its last line is decided."""
        self._again: dict[Hashable, dict[Hashable, int]] = {}
        """Of each table, the rows of lines that are to be sent again, and the first of these lines."""
        self._again_keys: dict[str, int] = {}
        self.again = 0
        """How many rows and keys of such lines are kept."""

    def enter(self, number: int, place: Place, key: str | None) -> Turn:
        """Give the next line its turn. `key`: its Idempotency-Key."""
        loop = asyncio.get_running_loop()
        phase = self._phases.get(place.group)
        if phase is None or place.row is None or phase.unit != place.unit:
            before = None if phase is None else phase.over
            unit = None if place.row is None else place.unit
            phase = self._phases[place.group] = _Phase(unit, before, loop.create_future())
        phase.undecided += 1
        decided: asyncio.Future[None] = loop.create_future()
        earlier = phase.before, phase.rows.get(place.row), None if key is None else self._keys.get(key)
        phase.rows[place.row] = decided
        if key is not None:
            self._keys[key] = decided
        return Turn(number, place, key, self, phase, earlier, decided)

    def leave(self, turn: Turn, phase: _Phase, decided: "asyncio.Future[None]") -> None:
        """Forget a line that is decided."""
        if phase.rows.get(turn.place.row) is decided:
            del phase.rows[turn.place.row]
        if turn.key is not None and self._keys[turn.key] is decided:
            del self._keys[turn.key]
        phase.undecided -= 1
        if phase.undecided:
            return
        phase.over.set_result(None)
        if self._phases[turn.place.group] is phase:
            del self._phases[turn.place.group]

    def hold_back(self, turn: Turn) -> None:
        """Keep what a line concerns that is to be sent again."""
        rows = self._again.setdefault(turn.place.unit, {})
        self.again += turn.place.row not in rows
        rows.setdefault(turn.place.row, turn.number)
        if turn.key is not None:
            self.again += turn.key not in self._again_keys
            self._again_keys.setdefault(turn.key, turn.number)

    @property
    def units_again(self) -> AbstractSet[Hashable]:
        """The tables, and templates of scopes, that these lines concern."""
        return self._again.keys()

    def first_of(self, place: Place, key: str | None) -> int | None:
        """Find a line that is to be sent again before one of this place and key is done."""
        if key is not None and key in self._again_keys:
            return self._again_keys[key]
        rows = self._again.get(place.unit)
        if rows is None:
            return None
        return next(iter(rows.values())) if place.row is None else rows.get(place.row, rows.get(None))

    async def all_decided(self) -> None:
        """Wait until no line is left."""
        while self._phases:
            await asyncio.wait([phase.over for phase in self._phases.values()])
