"""`client.work("jobs", where=…)`: a worker that takes the next row of a table, keeps its lease, and writes under it."""

import asyncio
import contextlib
import logging
import secrets
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote, urlencode

from fencepost.client.answers import GrantAnswer, Key, Row
from fencepost.client.clock import sleep_until
from fencepost.client.errors import LeaseLost, Unavailable
from fencepost.client.http import Exchange, Retry
from fencepost.client.lease import (
    SECRET_BYTES,
    AcquireRequest,
    Lease,
    NoRow,
    PendingReleases,
    Timings,
    Writes,
    several,
)
from fencepost.client.lock import Lock
from fencepost.client.rows import Filters, Writer, delete, pairs, patch, put

# Work: who takes which row, and what becomes of it.
#
# The gateway grants the lock of the first row that matches and that nobody holds, and claims the row with the grant. So
# to take a job is to acquire a lock whose name is not known before: the acquire, the renewals, the release and the
# withdrawal are those of `lock`. What a worker that was paused still writes is refused by the row's mark.
#
# 1. A job is over when its handler returns: its lease is released. What has been done is said by the handler's own
#    write, such as {"status": "done"}; a row that still matches is taken again.
# 2. A job whose handler raises is not lost: its row is next again, and its `attempt` one higher. First it stays taken
#    for a pause, which doubles with each attempt. Meanwhile nobody takes the row, and this place of the worker takes no
#    other: a job that always fails, or a worker on which all fail, makes no hot loop. So does a row that was taken
#    before, and about which its handler wrote nothing.
# 3. A job whose lease is lost is cancelled, as the body of a `lock` is. Another worker may have the row by then.
# 4. A worker that stops takes no more: an acquire under way is withdrawn, so that no row is held for nobody. Running
#    jobs are finished; those that run for too long are cancelled, and their leases released.
#
# Places of a worker that find nothing wait one behind another: an idle worker has one request waiting in the gateway.

LONGEST_PAUSE: Final = 60.0
"""Seconds for which the row of a job that failed stays taken, at most."""
FIRST_OF_JOB: Final = 2
"""Tokens that are drawn for a job: most write once."""
_AWAY: Final = Retry(first=1.0, longest=15.0)
"""Between the asks of a gateway that is away for longer than the client's `retry`."""

logger = logging.getLogger("fencepost.client")
jobs_logger = logging.getLogger("fencepost.client.work")
"""Is told how jobs end that were not done."""


class Job:
    """A row that was taken, and the lease that keeps it. What is written by it carries tokens of the lease."""

    lease: Lease
    """The lease: for tokens, for other writes (`client.patch(…, lease=job.lease)`), and for `lease.lost`."""
    table: str
    """The table's name."""
    key: Key
    """The row's key; of several columns: a tuple of their values, as texts."""
    row: Row
    """The row, as it was when it was taken: no older holder has changed it since."""
    attempt: int
    """How often the row was taken, this time included: 1 at first."""

    def __init__(self, writer: Writer, lease: Lease, attempt: int) -> None:
        table, _, values = lease.locks[0].partition("/")
        key = tuple(unquote(value) for value in values.split(","))
        self.lease, self.table, self.attempt = lease, unquote(table), attempt
        self.key = key if len(key) > 1 else key[0]
        self.row = lease.row or {}
        self._writer = writer
        self.has_written = False
        """Whether `patch`, `put` or `delete` has changed the row."""

    def __repr__(self) -> str:
        return f"<Job {self.name}, attempt {self.attempt}>"

    @property
    def name(self) -> str:
        """The name of the row, and of its lock: `jobs/17`."""
        return self.lease.locks[0]

    async def patch(
        self, changes: Mapping[str, Any], *, if_match: int | str | None = None, idempotency_key: str | None = None
    ) -> Row:
        """Change columns of the row; returns the row. LeaseLost, StaleToken: the job is another worker's. RowNotFound
        if the row is gone.
        """
        stored: Row = await self._write(
            lambda fresh: patch(self.table, self.key, changes, fresh, if_match), idempotency_key
        )
        return stored

    async def put(self, row: Row, *, if_match: int | str | None = None, idempotency_key: str | None = None) -> Row:
        """Replace the row; columns that are left out get their defaults. Returns the row."""
        stored: Row = await self._write(lambda fresh: put(self.table, self.key, row, fresh, if_match), idempotency_key)
        return stored

    async def delete(self, *, if_match: int | str | None = None, idempotency_key: str | None = None) -> None:
        """Delete the row."""
        await self._write(lambda fresh: delete(self.table, self.key, fresh, if_match), idempotency_key)

    async def _write(self, call: Callable[[int | None], Any], key: str | None) -> Any:
        answer = await self._writer.write(self.name, call, lease=self.lease, idempotency_key=key)
        self.has_written = True
        return answer.body


Handler: TypeAlias = Callable[[Job], Awaitable[object]]
"""What does a job."""


class _TakenLock(Lock):
    """The lock of the next row."""

    attempt = 0

    def _make_lease(self, granted: GrantAnswer, timings: Timings, trusted_from: float) -> Lease:
        self.attempt = granted.attempt or 0
        return super()._make_lease(granted, timings, trusted_from)


class Work:
    """Rows of a table as jobs, one after another. Used once.

    `await work.run(handle, concurrency=4)` is a worker: it calls `handle(job)` for up to four jobs at once, each in a
    task of its own, until it is stopped. `async for job in work` is for a program that does one job after another in
    its own way: a job ends when the next one is asked for.
    """

    def __init__(
        self,
        exchange: Exchange,
        pending: PendingReleases,
        writer: Writer,
        request: AcquireRequest,
        *,
        margin: float | None,
        pause: float,
        stop_on: Sequence[signal.Signals],
    ) -> None:
        Timings.of(request.ttl, margin)
        self._exchange, self._pending, self._writer, self._request = exchange, pending, writer, request
        self._margin = margin
        self._pause = Retry(first=pause, longest=max(pause, LONGEST_PAUSE))
        self._stop_on = tuple(stop_on)
        self._line = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._hurrying = asyncio.Event()
        self._used = False

    def stop(self, *, now: bool = False) -> None:
        """Take no more. Running jobs are finished; `now`: they are cancelled. From the event loop's thread."""
        if now:
            self._hurrying.set()
        self._stopping.set()

    def on_signal(self) -> None:
        """Stop; the second time: now."""
        self.stop(now=self._stopping.is_set())

    async def __aiter__(self) -> AsyncGenerator[Job, None]:
        """Give one job after another. A body that raises ends the loop, and its row is next again at once. The body is
        not cancelled when the lease is lost: its writes raise LeaseLost then, and `job.lease.lost` tells.
        """
        self._begin()
        with self._stopped_by_signals():
            while (taken := await self._take()) is not None:
                lock, job = taken
                try:
                    yield job
                    await self._hold_back(job)
                finally:
                    await lock.__aexit__(None, None, None)

    async def run(self, handle: Handler, *, concurrency: int = 1, drain: float = 30.0) -> None:
        """Call `handle(job)` for each job, for up to `concurrency` at once, until `stop`, a signal of `stop_on`, or
        until there was nothing for `wait` seconds. Then running jobs have `drain` seconds; those that run still are
        cancelled.

        What a handler raises is logged, and its row is next again after a pause. A handler whose job's lease is lost is
        cancelled. Raises what keeps the worker from asking: Forbidden, NotFound, BadRequest, Unauthenticated, as other
        calls do; running jobs are finished before. A gateway that is away is asked again, unless there is a `wait`.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency!r}: at least 1 job at once")
        self._begin()
        clock = self._exchange.clock
        running: set[asyncio.Task[None]] = set()
        places = [asyncio.create_task(self._place(handle, running)) for _ in range(concurrency)]
        try:
            with self._stopped_by_signals():
                await _first_of(asyncio.wait(places), self._stopping.wait())
                late = sleep_until(clock, clock.now() + drain)
                await _first_of(asyncio.wait(places), self._hurrying.wait(), late)
                for task in running:
                    task.cancel()
                await asyncio.wait(places)
        finally:
            for place in places:
                place.cancel()
            await asyncio.wait(places)
        await asyncio.gather(*places)

    def _begin(self) -> None:
        if self._used:
            raise RuntimeError("each work() is used once: call work() again")
        self._used = True

    def _stopped_by_signals(self) -> contextlib.AbstractContextManager[None]:
        loop = asyncio.get_running_loop()
        return stopping_on(self._stop_on, lambda: loop.call_soon_threadsafe(self.on_signal))

    # A place of the worker: it takes a job, does it, and takes the next one.

    async def _place(self, handle: Handler, running: set[asyncio.Task[None]]) -> None:
        try:
            while (taken := await self._take()) is not None:
                lock, job = taken
                try:
                    await self._hold_back(job, failed=not await self._do(job, handle, running))
                finally:
                    await lock.__aexit__(None, None, None)
        except BaseException:
            self._stopping.set()  # the others would be refused, too
            raise

    async def _do(self, job: Job, handle: Handler, running: set[asyncio.Task[None]]) -> bool:
        """Run the handler, and cancel it when the lease is lost. False: it raised."""

        async def doing() -> None:
            await handle(job)

        task = asyncio.create_task(doing(), name=f"fencepost: {job.name}")
        running.add(task)
        job.lease.on_loss(task.cancel)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            running.discard(task)
        error = None if task.cancelled() else task.exception()
        if not job.lease.trusted:
            jobs_logger.warning("%s, attempt %d: the lease was lost, and the job ended", job.name, job.attempt)
        elif task.cancelled():
            jobs_logger.warning("%s, attempt %d, was cancelled: its row is next again", job.name, job.attempt)
        elif error is not None:
            jobs_logger.error("%s, attempt %d, failed: its row is next again", job.name, job.attempt, exc_info=error)
        return error is None

    async def _hold_back(self, job: Job, *, failed: bool = False) -> None:
        """Keep the row of a job that failed, or that was taken before and not written to, for the pause; no longer than
        the lease is ours and the worker works.
        """
        if failed or (job.attempt > 1 and not job.has_written):
            clock = self._exchange.clock
            over = sleep_until(clock, clock.now() + self._pause.delay(job.attempt))
            await _first_of(over, self._stopping.wait(), job.lease.lost)

    async def _take(self) -> tuple[Lock, Job] | None:
        """Take the next row. None: work was stopped, or there was nothing for as long as it is waited for."""
        clock, wait, failures = self._exchange.clock, self._request.wait, 0
        while not self._stopping.is_set():
            came = clock.now()
            try:
                taken = await self._ask(0.0)
                if taken is None and wait != 0:
                    async with self._line:
                        taken = await self._ask(None if wait is None else max(came + wait - clock.now(), 0.0))
                if taken is not None or wait is not None:
                    return taken
            except (Unavailable, LeaseLost) as error:
                if isinstance(error, Unavailable) and not (wait is None and error.may_repeat):
                    raise
                failures += 1
                logger.warning("%s could not be taken, asking again: %s", self._request.shown, error)
                pause = _AWAY.delay(failures, error.retry_after)
                await _first_of(sleep_until(clock, clock.now() + pause), self._stopping.wait())
        return None

    async def _ask(self, wait: float | None) -> tuple[Lock, Job] | None:
        """Acquire the lock of the next row, until work is stopped. None: there is no row."""
        if self._stopping.is_set():
            return None
        request = replace(self._request, wait=wait, secret=secrets.token_urlsafe(SECRET_BYTES))
        lock = _TakenLock(self._exchange, self._pending, request, margin=self._margin, cancel_on_loss=False)
        entering = asyncio.create_task(lock.__aenter__())
        try:
            await _first_of(asyncio.wait({entering}), self._stopping.wait())
        except asyncio.CancelledError:
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)
            if lock.entered:  # just before
                await lock.__aexit__(None, None, None)
            raise
        entering.cancel()  # which withdraws it
        await asyncio.gather(entering, return_exceptions=True)
        try:
            lease = entering.result()
        except (NoRow, asyncio.CancelledError):
            return None
        if self._stopping.is_set() or lease.row is None:  # the row was deleted since
            await lock.__aexit__(None, None, None)
            return None
        return lock, Job(self._writer, lease, lock.attempt)


async def _first_of(*events: Awaitable[object]) -> None:
    """Wait until one of them has happened; the waits for the others are cancelled."""
    waits = [asyncio.ensure_future(event) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


# A signal stops all work of this process that is to be stopped by it, as of two tables.

_handled: Final[dict[int, tuple[Any, list[Callable[[], object]]]]] = {}
"""The handler that a signal had before, and what it stops."""


@contextlib.contextmanager
def stopping_on(signals: Sequence[signal.Signals], stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` when one of these signals comes, until the block ends. Only in the main thread, where Python runs the
    handlers of signals.
    """
    if threading.current_thread() is not threading.main_thread():
        signals = ()
    for number in signals:
        if number not in _handled:
            _handled[number] = signal.getsignal(number), []
            signal.signal(number, _stop_all)
        _handled[number][1].append(stop)
    try:
        yield
    finally:
        for number in signals:
            before, stops = _handled[number]
            stops.remove(stop)
            if not stops:
                signal.signal(number, before or signal.SIG_DFL)
                del _handled[number]


def _stop_all(number: int, _: object) -> None:
    for stop in list(_handled[number][1]):
        stop()


def make_work_request(
    table: str,
    *,
    where: str | Filters,
    order: str | None,
    ttl: float,
    wait: float | None,
    owner: str,
    tokens: int,
    writes: Writes,
) -> AcquireRequest:
    """Check the arguments of `work`. ValueError names what makes no sense."""
    if not table:
        raise ValueError("work: the name of a table")
    if wait is not None and not 0 <= wait < float("inf"):
        raise ValueError(f"wait={wait!r}: 0 or more seconds, or None to work until it is stopped")
    if tokens < 1:
        raise ValueError(f"tokens={tokens!r}: a grant draws at least 1 token")
    asked = {
        "table": table,
        "where": where if isinstance(where, str) else urlencode(pairs(where), quote_via=quote),
        "order": order or "",
    }
    return AcquireRequest(
        locks=(),
        claims=(),
        owner=owner,
        ttl=ttl,
        wait=wait,
        tokens=tokens,
        writes=several(writes),
        next={name: text for name, text in asked.items() if text},
        secret="",
    )
