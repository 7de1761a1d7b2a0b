"""What becomes of queued writes, and who waits for that: one question at a time, for all that are waited for here.

The record of a write's result is there as soon as its effect is (R16), so it is asked for again and again: soon after
a request waits, and five times a second later. A NOTIFY with each effect would make commits wait for each other.
A request that waits has no connection.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

from fencepost.clock import wait_until_set
from fencepost.fencing.problem_types import DATABASE_UNAVAILABLE
from fencepost.fencing.problems import Problem
from fencepost.quota import UNKNOWN, Quota
from fencepost.storage.errors import StorageError
from fencepost.storage.statements.idempotency import Recorded
from fencepost.times import TIMES, Times

State = Literal["applied", "refused", "failed"]
"""applied: as a synchronous write that succeeded. refused: the fence refused the token that the client gave. failed:
everything else that does not pass by waiting; the message is a dead letter.
"""
STATES: Final[tuple[State, ...]] = get_args(State)
STATE_HEADER: Final = "fencepost-state"
"""The header of a kept answer that has the state."""
LETTER_HEADER: Final = "fencepost-letter"
"""The header of a kept answer that says what became of the write's dead letter (queue_close in queue_results.sql):
IN_HAND, DROPPED, or RETRIED_AS and the id of the write that it was appended as. No such header: the letter is there, or
will be.
"""
IN_HAND: Final = "in hand"
"""A retry of it has begun: it is there still."""
DROPPED: Final = "dropped"
RETRIED_AS: Final = "retried as "

RETRY_AFTER: Final = 1

Look: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, Recorded]]]
"""Asks for the results of writes by their ids, and returns those that are there."""


def state_of(answer: Recorded) -> State:
    """Read the state of a kept answer."""
    found = next((value for name, value in answer.headers if name == STATE_HEADER), None)
    for state in STATES:
        if state == found:
            return state
    raise ValueError(f"no state of a queued write: {found!r}")


def letter_of(answer: Recorded) -> str | None:
    """Read from a kept answer what became of the dead letter; None: nothing yet."""
    return next((value for name, value in answer.headers if name == LETTER_HEADER), None)


class Results:
    """Those who wait at this process."""

    def __init__(self, quota: Quota, times: Times = TIMES) -> None:
        self._quota = quota
        self._times, self._clock = times.watches, times.clock
        self._waiting: dict[str, list[asyncio.Future[Recorded | Problem]]] = {}
        self._newest = 0.0
        self._poller: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopped = False

    @property
    def count(self) -> int:
        """How many wait."""
        return self._quota.count

    async def wait(self, look: Look, write_id: str, within: float, caller: str = UNKNOWN) -> Recorded | Problem | None:
        """Wait for the result of a write. None: there was none within so many seconds. A Problem: the database cannot
        be asked, the gateway is stopping, or too many wait here.
        """
        if self._stopped:
            return _stopping()
        with self._quota.place(caller) as full:
            return await self._wait(look, write_id, within) if full is None else _too_many(full)

    async def _wait(self, look: Look, write_id: str, within: float) -> Recorded | Problem | None:
        news: asyncio.Future[Recorded | Problem] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(write_id, []).append(news)
        self._newest = self._clock.monotonic()
        self._wake.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(look))
        try:
            async with asyncio.timeout(within):
                return await news
        except TimeoutError:
            return None
        finally:
            self._leave(write_id, news)

    def stop(self) -> None:
        """Send away all who wait, and all who will."""
        self._stopped = True
        self._answer(self._waiting, _stopping())

    def _leave(self, write_id: str, news: "asyncio.Future[Recorded | Problem]") -> None:
        others = self._waiting[write_id]
        others.remove(news)
        if not others:
            del self._waiting[write_id]

    async def _poll(self, look: Look) -> None:
        within = self._times.look_within
        while self._waiting:
            asked = list(self._waiting)
            self._wake.clear()
            try:
                async with asyncio.timeout(within):
                    found = await look(asked)
            except TimeoutError:
                self._answer(asked, unavailable(f"PostgreSQL did not answer within {within:g} s"))
            except StorageError as error:
                self._answer(asked, unavailable(str(error)))
            else:
                for write_id, answer in found.items():
                    self._answer([write_id], answer)
            await self._pause()

    async def _pause(self) -> None:
        if self._clock.monotonic() - self._newest < self._times.results_new_for:
            await self._clock.sleep(self._times.results_soon)
        else:
            await wait_until_set(self._wake, self._times.results_every, self._clock)

    def _answer(self, write_ids: Iterable[str], news: Recorded | Problem) -> None:
        for write_id in write_ids:
            for each in self._waiting.get(write_id, ()):
                if not each.done():
                    each.set_result(news)


def _too_many(full: str) -> Problem:
    detail = f"No more requests may wait for queued writes at this gateway: there are {full}."
    return Problem(
        DATABASE_UNAVAILABLE, detail, hint="Ask without ?wait=, or ask another gateway.", retry_after=RETRY_AFTER
    )


def _stopping() -> Problem:
    return Problem(DATABASE_UNAVAILABLE, "The gateway is stopping.", retry_after=RETRY_AFTER)


def unavailable(reason: str) -> Problem:
    """The problem when results cannot be asked for."""
    return Problem(
        DATABASE_UNAVAILABLE, f"What became of the write cannot be looked up: {reason}", retry_after=RETRY_AFTER
    )
