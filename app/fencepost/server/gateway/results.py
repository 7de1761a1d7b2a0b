"""What came of queued writes, and who waits for that."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from fencepost.server.fence.caller import UNKNOWN, Caller
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.postgres.errors import StorageError
from fencepost.server.postgres.pool import Quota
from fencepost.server.postgres.queues import Result
from fencepost.server.times import TIMES, Times, wait_until_set

# What becomes of queued writes, and who waits for that: one question at a time, for all that are waited for here.
#
# The record of a write's result is there as soon as its effect is (R16), so it is asked for again and again: soon
# after a request waits, and five times a second later. A NOTIFY with each effect would make commits wait for each
# other. A request that waits has no connection.


class AskedWrite(NamedTuple):
    """A write that is asked for, and by whom (`whose`): to others than its caller it is not there."""

    write_id: str
    whose: str


Look: TypeAlias = Callable[[Sequence[AskedWrite]], Awaitable[Mapping[AskedWrite, Result]]]
"""Asks for the results of writes, and returns those that are there."""


def whose(caller: Caller | None) -> str:
    """Say whose a queued write is, and whose it is to be for one who asks; empty: of callers without a role."""
    return "" if caller is None or caller.role is None else json.dumps([caller.role, caller.name])


def is_for(result: Result, asked: AskedWrite) -> bool:
    """Whether a result is that of the write that is asked for, and of the one who asks. A result under another id is of
    a message at another offset, with the same nonce. It counts only where its caller is proven: anybody who can read a
    log, and append to it, could otherwise show one that has failed in place of the write.
    """
    if result.claimed:
        return result.claimed == asked.whose and result.id == asked.write_id
    return result.owner == asked.whose


class Results:
    """Those who wait at this process."""

    def __init__(self, quota: Quota, times: Times = TIMES) -> None:
        self._quota = quota
        self._times, self._clock = times.watches, times.clock
        self._waiting: dict[AskedWrite, list[asyncio.Future[Result | Problem]]] = {}
        self._newest = 0.0
        self._poller: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._stopped = False

    @property
    def count(self) -> int:
        return self._quota.count

    async def wait(
        self, look: Look, asked: AskedWrite, within: float, caller: str = UNKNOWN
    ) -> Result | Problem | None:
        """Wait for the result of a write. None: there was none within so many seconds. A Problem: the database cannot
        be asked, the gateway is stopping, or too many wait here.
        """
        if self._stopped:
            return _stopping()
        with self._quota.place(caller) as full:
            return await self._wait(look, asked, within) if full is None else _too_many(full)

    async def _wait(self, look: Look, asked: AskedWrite, within: float) -> Result | Problem | None:
        news: asyncio.Future[Result | Problem] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(asked, []).append(news)
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
            self._leave(asked, news)

    def stop(self) -> None:
        """Send away all who wait, and all who will."""
        self._stopped = True
        self._answer(self._waiting, _stopping())

    def _leave(self, asked: AskedWrite, news: "asyncio.Future[Result | Problem]") -> None:
        others = self._waiting[asked]
        others.remove(news)
        if not others:
            del self._waiting[asked]

    async def _poll(self, look: Look) -> None:
        within = self._times.look_within
        while self._waiting:
            asked = list(self._waiting)
            self._wake.clear()
            try:
                async with asyncio.timeout(within):
                    found = await look(asked)
            except TimeoutError:
                self._answer(asked, results_unavailable(f"PostgreSQL did not answer within {within:g} s"))
            except StorageError as error:
                self._answer(asked, results_unavailable(str(error)))
            else:
                for each, answer in found.items():
                    self._answer([each], answer)
            await self._pause()

    async def _pause(self) -> None:
        if self._clock.monotonic() - self._newest < self._times.results_new_for:
            await self._clock.sleep(self._times.results_soon)
        else:
            await wait_until_set(self._wake, self._times.results_every, self._clock)

    def _answer(self, asked: Iterable[AskedWrite], news: Result | Problem) -> None:
        for each in asked:
            for waiting in self._waiting.get(each, ()):
                if not waiting.done():
                    waiting.set_result(news)


def _too_many(full: str) -> Problem:
    detail = f"No more requests may wait for queued writes at this gateway: there are {full}."
    return Problem(DATABASE_UNAVAILABLE, detail, hint="Ask without ?wait=, or ask another gateway.")


def _stopping() -> Problem:
    return Problem(DATABASE_UNAVAILABLE, "The gateway is stopping.")


def results_unavailable(reason: str) -> Problem:
    """The problem when results cannot be asked for."""
    return Problem(DATABASE_UNAVAILABLE, f"What became of the write cannot be looked up: {reason}")
