"""A consumer of a queue: one session after the other (session.py), and once a second it notes how far it got. Now
and then it asks the log, too, what that has committed: records of such messages may be forgotten.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from fencepost.server.consuming.ledger import Ledger
from fencepost.server.consuming.progress import Progress, noted_reason
from fencepost.server.consuming.reports import Reports
from fencepost.server.consuming.session import ConsumerLimits, Decides, Session, SessionParts
from fencepost.server.consuming.waiting import Pause, wait_for
from fencepost.server.postgres.errors import StorageError
from fencepost.server.queues.log import Log, LogError
from fencepost.server.times import TIMES, ConsumingTimes

_OF_BEFORE: Final = "what a former process of this member has noted"


class QueueConsumer:
    """One member of those who consume a queue. `run` returns when `stop` was called, and leaves nothing half done.
    Where a message can never be decided here (it has a caller, and there are no keys) it leaves all to others, and is
    paused.
    """

    def __init__(
        self, log: Log, member: str, ledger: Ledger, decider: Decides, reports: Reports, limits: ConsumerLimits,
        times: ConsumingTimes = TIMES.consuming,
    ) -> None:  # fmt: skip
        self._log = log
        self._ledger = ledger
        self._reports = reports
        self._progress = Progress()
        self._pause = Pause(reports)
        self._parts = SessionParts(log, member, ledger, decider, reports, limits, self._pause, times, self._progress)
        self._times = times
        self._stopping = asyncio.Event()
        self._session: Session | None = None
        self._noted_pause: str | None = _OF_BEFORE
        self._committed: tuple[int, list[int]] | None = None
        """What was noted last: the generation, and by partition below which offset all is committed."""

    @property
    def partitions(self) -> frozenset[int]:
        return self._session.consumer.partitions if self._session is not None else frozenset()

    @property
    def paused_because(self) -> str | None:
        """Why nothing is decided, or taken, now; None: it goes on."""
        return self._pause.reason

    async def run(self) -> None:
        """Consume until `stop` is called."""
        noting = [
            asyncio.create_task(self._again_and_again(self._times.note_every, self._note)),
            asyncio.create_task(
                self._again_and_again(self._times.note_every, lambda: self._note_pause(self.paused_because))
            ),
            asyncio.create_task(self._again_and_again(self._times.committed_every, self._note_committed)),
        ]
        try:
            while not self._stopping.is_set():
                self._session = session = Session(self._parts)
                await session.run()
                if session.left_because is not None:
                    # Others that can go on have its partitions now. Were it to stay, its hand would fill in silence.
                    self._session = None
                    self._pause.begin(session.left_because)
                    await self._stopping.wait()
        finally:
            self._session = None
            for task in noting:
                task.cancel()
            await asyncio.wait(noting)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.end_within):
                    await self._note()
                    await self._note_pause(None)

    def stop(self) -> None:
        """Have `run` return when what has begun is decided."""
        self._stopping.set()
        if self._session is not None:
            self._session.over.set()

    async def stopped(self, within: float) -> bool:
        """Wait so many seconds for `stop` to be called; whether it was."""
        return await wait_for(self._stopping, within)

    async def _again_and_again(self, every: float, do: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(every)
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - it is done again, and the fault is not silent
                self._reports.fault(error)

    async def _note_committed(self) -> None:
        """Ask the log what it has committed, and note that when it has changed; and the look itself."""
        generation = self._progress.generation
        if generation is None:
            return
        with suppress(LogError, StorageError):  # the log is asked again
            at = await self._ledger.now()
            committed = (generation, list(await self._log.decided()))
            state = await self._log.state()
            if committed != self._committed:
                await self._ledger.note_committed(committed[1], generation)
                self._committed = committed
            await self._ledger.note_look(at, committed[1], state, generation)

    async def _note(self) -> None:
        collected, generation = self._progress.collect(asyncio.get_running_loop().time()), self._progress.generation
        if not collected or generation is None:
            return
        try:
            await self._ledger.note(collected, generation)
        except StorageError:
            self._progress.put_back(collected)

    async def _note_pause(self, reason: str | None) -> None:
        """Note for those who look elsewhere why nothing goes on, while that is so; None: it goes on, or is over."""
        if reason is None and self._noted_pause is None:
            return
        with suppress(StorageError):  # it is noted the next time
            await self._ledger.note_pause(self._parts.member, reason and noted_reason(reason))
            self._noted_pause = reason
