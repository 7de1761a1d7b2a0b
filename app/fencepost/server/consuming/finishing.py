"""Says to the log which messages are decided, many at once."""

import asyncio
from collections.abc import Callable, Sequence

from fencepost.server.consuming.reports import Reports
from fencepost.server.consuming.waiting import Backoff
from fencepost.server.queues.log import Consumer, LogError, Received
from fencepost.server.times import ConsumingTimes


class Finisher:
    """Of one member, in one session. `said`: called with messages once the log has noted that they are done."""

    def __init__(
        self, consumer: Consumer, said: Callable[[Sequence[Received]], None], reports: Reports, times: ConsumingTimes
    ) -> None:
        self._times = times
        self._consumer = consumer
        self._said = said
        self._reports = reports
        self._decided: list[Received] = []
        self._some_decided = asyncio.Event()

    def add(self, received: Received) -> None:
        self._decided.append(received)
        self._some_decided.set()

    async def run(self) -> None:
        """Say what is decided, again and again, until this is cancelled."""
        backoff = Backoff(self._times)
        while True:
            await self._some_decided.wait()
            self._some_decided.clear()
            try:
                await self.say()
            except LogError:
                await asyncio.sleep(backoff.next())
            except Exception as error:  # noqa: BLE001 - without this task the room would run out, and nothing say why
                self._reports.fault(error)
                await asyncio.sleep(backoff.next())
            else:
                backoff.reset()

    async def say(self) -> None:
        """Say what is decided, once. Raises LogUnavailableError: it is said again the next time."""
        decided, self._decided = self._decided, []
        try:
            await self._consumer.done(decided)
        except BaseException:
            self._decided = decided + self._decided
            self._some_decided.set()
            raise
        self._said(decided)
