"""A clock that a test moves by hand."""

import asyncio

SPINS = 30  # turns of the event loop after which everything that can run has run; nothing here does real I/O


class ManualClock:
    """Stands still until `advance`; sleepers wake in the order of their times."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        waking = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + seconds, waking))
        await waking

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking each sleeper at its time."""
        end = self._now + seconds
        await settled()
        while due := [at for at, waking in self._sleepers if at <= end and not waking.done()]:
            self._now = max(self._now, min(due))
            self._wake()
            await settled()
        self._now = max(self._now, end)

    async def suspend(self, seconds: float) -> None:
        """Let time pass as on a machine that sleeps: no task runs until it is over."""
        self._now += seconds
        self._wake()
        await settled()

    def _wake(self) -> None:
        for at, waking in self._sleepers:
            if at <= self._now and not waking.done():
                waking.set_result(None)
        self._sleepers = [(at, waking) for at, waking in self._sleepers if not waking.done()]


async def settled() -> None:
    """Return when everything that can run has run."""
    for _ in range(SPINS):
        await asyncio.sleep(0)
