"""What runs beside the requests: keeping the catalog fresh, sweeping ended leases, sending waiters away at the end."""

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from types import FrameType
from typing import Any, Final

from fencepost.locks.postgres import PostgresLocks
from fencepost.locks.queue import Queue
from fencepost.observe.events import Emit, ListenerLost, QueueFailed
from fencepost.storage.catalog_cache import CatalogCache
from fencepost.storage.errors import StorageError
from fencepost.storage.listen import Listener

RELOAD_EVERY: Final = 30.0
"""Seconds. What nobody announced and no request stumbles over, a new column say, is seen after this time at most."""
SWEEP_EVERY: Final = 60.0
"""Seconds, more or less, between two removals of what ended leases left."""


@asynccontextmanager
async def running(
    dsn: str, catalog: CatalogCache, locks: PostgresLocks, lease_history: float, emit: Emit
) -> AsyncIterator[None]:
    """Run all of it until the block ends."""

    async def reload() -> None:
        try:
            await catalog.reload()
        except StorageError as error:
            emit(ListenerLost(f"the catalog could not be read: {error}"))

    async def reload_now_and_then() -> None:
        while True:
            await asyncio.sleep(RELOAD_EVERY)
            await reload()

    async def sweep_now_and_then() -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY * random.uniform(0.5, 1.5))  # noqa: S311 - so that gateways take turns
            try:
                await locks.sweep(lease_history)
            except StorageError as error:
                emit(QueueFailed(f"ended leases could not be swept: {error}"))

    queue = locks.queue
    listener = Listener(
        dsn,
        reload,
        lambda reason: emit(ListenerLost(reason)),
        channel=queue.channel,
        woken=queue.on_notify,
        connected=queue.on_listening,
    )
    tasks = [asyncio.create_task(work) for work in (listener.run(), reload_now_and_then(), sweep_now_and_then())]
    try:
        with _reloading_on_hangup(reload), _stopping_at_once(queue):
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _reloading_on_hangup(reload: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
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
def _stopping_at_once(queue: Queue) -> Iterator[None]:
    """Send waiters away as soon as the process is asked to stop: the server would wait for them otherwise."""
    loop = asyncio.get_running_loop()
    previous: dict[signal.Signals, Callable[[int, FrameType | None], Any]] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(queue.stop)
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
