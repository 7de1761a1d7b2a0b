"""The consumer of a queue over a log in memory, with all its mocks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.queue_mock import Applying, MockLedger, MockLog, MockReports, message

from fencepost.server.consuming.applying import Decided, QueueNow, Result
from fencepost.server.consuming.consumer import ConsumerLimits, QueueConsumer
from fencepost.server.consuming.deciding import Decider
from fencepost.server.queues.log import Received
from fencepost.server.times import TIMES, ConsumingTimes
from fencepost.testing.servers.processes import PATIENCE, eventually


def applied(_received: Received, _standing: QueueNow) -> Result:
    return Decided("applied")


class MockedConsumer:
    """A consumer with all its mocks."""

    def __init__(
        self, come_to: Callable[[Received, QueueNow], Result] = applied, limits: ConsumerLimits | None = None,
        times: ConsumingTimes = TIMES.consuming,
    ) -> None:  # fmt: skip
        self.log, self.ledger, self.reports = MockLog(), MockLedger(), MockReports()
        self.applying = Applying(come_to)
        decider = Decider("kafka:q", self.applying, self.ledger, self.log.dead, now=lambda: 5.0)
        self.consumer = QueueConsumer(
            self.log, "m", self.ledger, decider, self.reports, limits or ConsumerLimits(), times
        )

    async def append(self, *resources: str) -> None:
        for each in resources:
            await self.log.append(message(each))

    @property
    def done(self) -> list[int]:
        return [each.position.offset for each in self.log.done]

    async def all_done(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.log.done) >= count

        await eventually(enough, what=f"{count} messages done")


@asynccontextmanager
async def running(mocked: MockedConsumer) -> AsyncIterator[None]:
    task = asyncio.create_task(mocked.consumer.run())
    try:
        yield
    finally:
        mocked.consumer.stop()
        await asyncio.wait_for(task, PATIENCE)


async def until(what: str, true: Callable[[], bool]) -> None:
    async def ask() -> bool:
        return true()

    await eventually(ask, what=what)
