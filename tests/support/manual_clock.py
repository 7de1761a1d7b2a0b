"""A clock that a test moves by hand: of the gateway's parts (server/times.py), and of the client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from fencepost.server.times import ConsumingTimes, HealthTimes, RequestTimes, Times
from fencepost.testing.servers.processes import PATIENCE

# Times of the gateways that tests run: what explains a refusal, or /readyz and /metrics show, is waited for, on a busy
# machine, too. And the consumer that a gateway has by default hears soon that it is to stop: it waits for its log
# first, else half a second.

UNHURRIED: Final = Times(
    requests=RequestTimes(explain_within=PATIENCE),
    health=HealthTimes(answer_within=PATIENCE, ask_for=PATIENCE),
    consuming=ConsumingTimes(take_for=0.1),
)

SPINS = 30  # turns of the event loop after which everything that can run has run; nothing here does real I/O


class Due:
    """A call or a sleeper that is due at a time."""

    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at, self.call = at, call
        self.over = False

    def cancel(self) -> None:
        self.over = True


class ManualClock:
    """Stands still until `advance`; sleepers wake, and calls are made, in the order of their times."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._due: list[Due] = []
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self._now

    now = monotonic

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        waking = asyncio.get_running_loop().create_future()
        self.call_later(seconds, lambda: None if waking.done() else waking.set_result(None))
        await waking

    def call_later(self, seconds: float, call: Callable[[], object]) -> Due:
        self._due.append(due := Due(self._now + seconds, call))
        return due

    async def advance(self, seconds: float) -> None:
        """Let time pass, and do what is due, each at its time."""
        end = self._now + seconds
        await settled()
        while due := [each.at for each in self._due if each.at <= end and not each.over]:
            self._now = max(self._now, min(due))
            self._wake()
            await settled()
        self._now = max(self._now, end)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let time pass by itself until the block ends, in steps between which real answers may come."""

        async def run() -> None:
            while True:
                await self.advance(0.25)
                await asyncio.sleep(0.005)

        running = asyncio.create_task(run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def suspend(self, seconds: float) -> None:
        """Let time pass as on a machine that sleeps: no task runs until it is over."""
        self._now += seconds
        self._wake()
        await settled()

    def _wake(self) -> None:
        for each in self._due:
            if each.at <= self._now and not each.over:
                each.over = True
                each.call()
        self._due = [each for each in self._due if not each.over]


class Hurried(ManualClock):
    """A clock on which every wait is over at once, and is noted."""

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._now += seconds
        await asyncio.sleep(0)


async def settled() -> None:
    """Return when everything that can run has run."""
    for _ in range(SPINS):
        await asyncio.sleep(0)
