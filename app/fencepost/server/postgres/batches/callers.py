"""Whose the connections of batches are: no caller ever has all of them, nor all that one queue may have at once.

A batch takes a place of one of those whom it is for: of those who may have one more, whoever has the most. The writes
of those who may not are left out of it, and wait for their own: so nobody's slow writes are in all that is in flight,
and nobody waits for the places of another one.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from fencepost.server.postgres.batches.batch_queue import BatchQueue
from fencepost.server.quota import UNKNOWN, most_of

MOST_AT_ONCE: Final = 3
"""How many batches of a queue may be in flight when they are slow."""
MOST_OF_CALLER: Final = most_of(MOST_AT_ONCE)
"""How many of these may have a place of one caller."""


@dataclass(slots=True)
class Place:
    """What one that sends batches of a queue has taken."""

    caller: str


class Places:
    """`most` connections of each caller. What the gateway asks for itself has no bound here."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[str, int] = {}
        self._full: set[str] = set()

    def take(self, queue: BatchQueue[Any, Any]) -> Place | None:
        """Take a place for batches of a queue. None: nobody who waits in it may have one more."""
        caller = self._choose(queue)
        if caller is None:
            return None
        self._add(queue, caller)
        return Place(caller)

    def move(self, queue: BatchQueue[Any, Any], place: Place) -> bool:
        """Have it be of one whom the next batch is for; False: nobody who waits may have one more."""
        if len(queue.pending) == 1 and place.caller in queue.pending:
            return True
        self.give_back(queue, place)
        caller = self._choose(queue)
        if caller is not None:
            place.caller = caller
        self._add(queue, place.caller)
        return caller is not None

    def give_back(self, queue: BatchQueue[Any, Any], place: Place) -> None:
        caller = place.caller
        queue.places.remove(caller)
        self._full.discard(caller)
        if left := self._of[caller] - 1:
            self._of[caller] = left
        else:
            del self._of[caller]

    def left_out(self, queue: BatchQueue[Any, Any], place: Place) -> Collection[str]:
        """Say whose writes the next batch leaves out."""
        if not self._full and len(queue.places) < MOST_AT_ONCE:
            return ()
        return {each for each in queue.pending if each != place.caller and not self._may_have_more(queue, each)}

    def is_wanted(self, place: Place) -> bool:
        """Whether whose it is has as many as one may have: if another queue waits for one, this one would do."""
        return place.caller in self._full

    def waits_for_one(self, queue: BatchQueue[Any, Any]) -> bool:
        """Whether somebody who waits in a queue has as many as one may have."""
        return not self._full.isdisjoint(queue.pending)

    def _choose(self, queue: BatchQueue[Any, Any]) -> str | None:
        if not self._of:
            return next(iter(queue.pending), None)
        chosen, most = None, -1
        for caller in queue.pending:
            has = self._of.get(caller, 0)
            if has > most and self._may_have_more(queue, caller):
                chosen, most = caller, has
        return chosen

    def _may_have_more(self, queue: BatchQueue[Any, Any], caller: str) -> bool:
        places = queue.places
        if not places:
            return caller not in self._full
        return caller == UNKNOWN or (caller not in self._full and places.count(caller) < MOST_OF_CALLER)

    def _add(self, queue: BatchQueue[Any, Any], caller: str) -> None:
        queue.places.append(caller)
        has = self._of[caller] = self._of.get(caller, 0) + 1
        if has >= self._most and caller != UNKNOWN:
            self._full.add(caller)
