"""Answers of PostgreSQL that count for a while: one request asks for all that want the same answer meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from fencepost.server.clock import Clock

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
