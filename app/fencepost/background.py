"""What runs beside the requests: keeping the catalog fresh, sweeping ended leases, sending waiters away at the end."""

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from fencepost.election.watching import Watches
from fencepost.locks.builtin.leases import PostgresLocks
from fencepost.observe.events import Emit, ListenerLost, Pruned, PruningFailed, QueueFailed
from fencepost.stopping import Stopping
from fencepost.storage.connections.engine import Database
from fencepost.storage.connections.listen import Listener
from fencepost.storage.errors import StorageError
from fencepost.storage.tables.cache import CatalogCache
from fencepost.storage.upkeep.pruning import Pruner, prune_records

RELOAD_EVERY: Final = 30.0
"""Seconds. What was not announced and no request stumbles over, for example a new column, is seen after this time at
most.
"""
LOOK_EVERY: Final = 1.0
"""Seconds between two looks at which database this is: for a restore under open connections, and so that the position
of the WAL that the gateway remembers is no older (origin.py)."""
SWEEP_EVERY: Final = 60.0
"""Seconds, more or less, between two removals of what ended leases left."""
PRUNE_EVERY: Final = 60.0
"""Seconds, more or less, between two passes over marks and idempotency records."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is over is remembered, in seconds."""

    leases: float
    marks: float
    idempotency: float


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is done now and then, whether or not a request asks for it."""

    database: Database
    catalog: CatalogCache
    locks: PostgresLocks
    retention: Retention
    emit: Emit
    watches: Watches
    stopping: Stopping

    async def reload(self) -> None:
        """Read the catalog anew, and see whether this is still the database to write to."""
        try:
            await self.catalog.reload()
        except StorageError as error:
            self.emit(ListenerLost(f"the catalog could not be read: {error}"))
        with suppress(StorageError):  # it is said when it is asked for; here it only is to be noticed soon (R19)
            await self.database.origin_status()

    async def reload_now_and_then(self) -> None:
        """Reload for ever."""
        while True:
            await asyncio.sleep(RELOAD_EVERY)
            await self.reload()

    async def look_now_and_then(self) -> None:
        """See whether this is still the database to write to, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            with suppress(StorageError):
                await self.database.origin_status()

    async def sweep_now_and_then(self) -> None:
        """Remove what ended leases left, for ever."""
        while True:
            await asyncio.sleep(_about(SWEEP_EVERY))
            try:
                await self.locks.sweep(self.retention.leases)
            except StorageError as error:
                self.emit(QueueFailed(f"ended leases could not be swept: {error}"))

    async def prune_now_and_then(self) -> None:
        """Forget old marks and idempotency records, for ever."""
        pruner = Pruner(self.database)
        while True:
            await asyncio.sleep(_about(PRUNE_EVERY))
            try:
                if pruned := await pruner.run(self.retention.marks):
                    self.emit(Pruned("marks", pruned))
                if pruned := await prune_records(self.database, self.retention.idempotency):
                    self.emit(Pruned("idempotency", pruned))
            except StorageError as error:
                self.emit(PruningFailed(f"marks or idempotency records could not be pruned: {error}"))


def _about(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311 - so that gateways take turns


@asynccontextmanager
async def run_upkeep(dsn: str, upkeep: Upkeep) -> AsyncIterator[None]:
    """Run all of it until the block ends."""
    queue = upkeep.locks.queue
    listener = Listener(
        dsn,
        upkeep.reload,
        lambda reason: upkeep.emit(ListenerLost(reason)),
        channel=queue.channel,
        woken=queue.on_notify,
        connected=queue.on_listening,
    )
    works = (
        listener.run(),
        upkeep.reload_now_and_then(),
        upkeep.look_now_and_then(),
        upkeep.sweep_now_and_then(),
        upkeep.prune_now_and_then(),
    )
    tasks = [asyncio.create_task(work) for work in works]
    try:
        with (
            _reload_on_hangup(upkeep.reload),
            _stop_at_once(upkeep.stopping.ask, queue.stop, upkeep.watches.stop),
        ):
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _reload_on_hangup(reload: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Reload the catalog on SIGHUP."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[None]] = set()

    def on_hangup() -> None:
        task = asyncio.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    # Signals belong to the main thread; in tests the application runs in another.
    with suppress(ValueError, RuntimeError):
        loop.add_signal_handler(signal.SIGHUP, on_hangup)
    yield


@contextmanager
def _stop_at_once(*stops: Callable[[], None]) -> Iterator[None]:
    """Call these once the process is asked to stop. Who waits or watches is sent away: the server would wait for them
    otherwise.
    """
    loop = asyncio.get_running_loop()
    previous: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in stops:
            loop.call_soon_threadsafe(each)
        previous[signal.Signals(number)](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            handler = signal.getsignal(number)
            if callable(handler):  # the server's own, which was there first
                previous[number] = handler
                signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
