"""What the events of a history must be to each other: a clock that does not go backwards, and an invoke before its end.

It remembers the operations that are open, and nothing of those that are over. Faults are few: it remembers all.
"""

from collections.abc import Callable
from typing import assert_never

from fencepost.testing.history.errors import BadHistoryError
from fencepost.testing.history.events import End, Event, Fault, Healed, Invoke, Note
from fencepost.testing.history.fields import judge_end, judge_invoke


class Order:
    """Judges the events of one history, in their order. `place` says where the event with a number is, from 1 on."""

    def __init__(self, place: Callable[[int], str]) -> None:
        self._place = place
        self._number = 0
        self._now = 0
        self._open: dict[int, tuple[Invoke, int]] = {}
        self._faults: dict[int, int] = {}
        self._not_healed: set[int] = set()

    def judge(self, event: Event) -> None:
        """Take the next event. Raises BadHistoryError."""
        if event.time < self._now:
            raise BadHistoryError(
                f"the clock goes backwards, from {self._now} to {event.time}: times must come from one monotonic clock"
                " (time.monotonic_ns), and lines must be in their order"
            )
        self._now = event.time
        self._number += 1
        match event:
            case Invoke():
                self._begins(event)
            case End():
                self._ends(event)
            case Fault():
                self._fault_begins(event)
            case Healed():
                if event.id not in self._not_healed:
                    raise BadHistoryError(f"fault {event.id} is healed, and did not begin before")
                self._not_healed.remove(event.id)
            case Note():
                pass
            case _:
                assert_never(event)

    def _begins(self, invoke: Invoke) -> None:
        if invoke.id in self._open:
            first = self._place(self._open[invoke.id][1])
            raise BadHistoryError(
                f"operation {invoke.id} begins a second time before it ended: ids must be unique. It began in {first}"
            )
        judge_invoke(invoke)
        self._open[invoke.id] = invoke, self._number

    def _ends(self, end: End) -> None:
        invoke, _ = self._open.pop(end.id, (None, 0))
        if invoke is None:
            raise BadHistoryError(
                f"operation {end.id} ends, and did not begin before: a broken clock has put the two in the wrong order,"
                " or a line is missing"
            )
        judge_end(invoke, end)

    def _fault_begins(self, fault: Fault) -> None:
        if fault.id in self._faults:
            first = self._place(self._faults[fault.id])
            raise BadHistoryError(f"fault {fault.id} begins a second time: ids must be unique. It began in {first}")
        self._faults[fault.id] = self._number
        self._not_healed.add(fault.id)
