"""Watching elections: many subscribers, one poller for each election that is watched in this process.

A poller asks every half second. NOTIFY would not spare it that: a leader that is killed notifies no one.
It begins with the first subscriber and ends with the last, or when it can no longer find out who leads: then the
subscriptions end too. So as long as a subscription goes on, silence means that nothing has changed.

A subscriber that is slow, or came late, gets the present state, and not the terms that began and ended in between.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from fencepost.election.state import Election
from fencepost.fencing.problem_types import DATABASE_UNAVAILABLE
from fencepost.fencing.problems import Problem

EVERY: Final = 0.5
"""Seconds between two looks."""
LOOK_WITHIN: Final = 5.0
"""Seconds that a look may take."""
RETRY_AFTER: Final = 1

Look: TypeAlias = Callable[[], Awaitable[Election | Problem]]
"""Asks how an election stands."""


class _Watch:
    """One election, asked about again and again."""

    def __init__(self, look: Look) -> None:
        self.subscribers = 0
        self.state: Election | Problem | None = None
        self.version = 0
        """Rises when the leader is another one."""
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._look = look
        self.task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while not isinstance(self.state, Problem):
            try:
                async with asyncio.timeout(LOOK_WITHIN):
                    found = await self._look()
            except TimeoutError:
                found = Problem(
                    DATABASE_UNAVAILABLE,
                    f"PostgreSQL did not answer within {LOOK_WITHIN:g} s who leads.",
                    retry_after=1,
                )
            self._notify(found)
            if not isinstance(found, Problem):
                await asyncio.sleep(EVERY)

    def _notify(self, found: Election | Problem) -> None:
        before, self.state = self.state, found
        if isinstance(before, Election) and isinstance(found, Election) and before.led_by == found.led_by:
            return
        self.version += 1
        self.news.set_result(None)
        self.news = asyncio.get_running_loop().create_future()


class Subscription:
    """One who watches; or who would have, and is refused."""

    def __init__(self, watch: _Watch | Problem, stopping: "asyncio.Future[None]") -> None:
        self._watch, self._stopping = watch, stopping
        self._seen = 0

    async def next(self, within: float = math.inf) -> Election | Problem | None:
        """Return how the election stands, at first and whenever another leader, or none, has taken over.

        None: nothing has changed for so many seconds. A Problem ends the subscription: the state cannot be found out.
        """
        watch = self._watch
        if isinstance(watch, Problem):
            return watch
        if watch.version == self._seen and not watch.task.done():
            waited_for = {watch.news, watch.task, self._stopping}
            limit = None if within == math.inf else within
            await asyncio.wait(waited_for, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if self._stopping.done():
            return _stopping_problem()
        if watch.version == self._seen:
            if watch.task.done():
                watch.task.result()  # raises what it failed with
            return None
        self._seen = watch.version
        return watch.state


class Watches:
    """The elections that are watched at this process, by any key that is unique."""

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._watches: dict[object, _Watch] = {}
        self._count = 0
        self._stopping: asyncio.Future[None] | None = None  # made in the loop that it belongs to
        self._stopped = False

    @property
    def count(self) -> int:
        """How many subscribers there are."""
        return self._count

    @property
    def watched(self) -> int:
        """How many elections are asked about."""
        return len(self._watches)

    @asynccontextmanager
    async def subscribe(self, key: object, look: Look) -> AsyncIterator[Subscription]:
        """Watch until the block ends. `look` is called unless this key is watched already."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_future()
        if self._stopped or self._count >= self._most:
            yield Subscription(_stopping_problem() if self._stopped else self._too_many(), self._stopping)
            return
        watch = self._watches.get(key)
        if watch is None or watch.task.done():
            watch = self._watches[key] = _Watch(look)
        self._count += 1
        watch.subscribers += 1
        try:
            yield Subscription(watch, self._stopping)
        finally:
            self._count -= 1
            watch.subscribers -= 1
            if watch.subscribers == 0:
                watch.task.cancel()
                if self._watches.get(key) is watch:
                    del self._watches[key]

    def _too_many(self) -> Problem:
        detail = f"{self._most} streams of elections are open at this gateway, and it opens no more."
        return Problem(DATABASE_UNAVAILABLE, detail, retry_after=RETRY_AFTER)

    def stop(self) -> None:
        """End all subscriptions, and begin no more."""
        self._stopped = True
        if self._stopping is not None and not self._stopping.done():
            self._stopping.set_result(None)


def _stopping_problem() -> Problem:
    return Problem(DATABASE_UNAVAILABLE, "The gateway is stopping.", retry_after=RETRY_AFTER)
