"""What runs beside the requests: keeping the catalog fresh, sweeping ended leases, sending waiters away at the end."""

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from fencepost.server.gateway.gateway import Gateway
from fencepost.server.identity.api_keys import Announcements, ApiKeys
from fencepost.server.observe.events import Emit, ListenerLost, Pruned, PruningFailed, QueueFailed
from fencepost.server.observe.metrics import CallerRefusals
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import StorageError
from fencepost.server.postgres.listen import Listener
from fencepost.server.postgres.upkeep import Pruner, add, leave_moment, prune_records
from fencepost.server.stopping import Stopping
from fencepost.server.times import TIMES, Times


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is over is remembered, in seconds."""

    leases: float
    marks: float
    idempotency: float


class SealKeys(Protocol):
    """The file with the keys of seals."""

    def look(self) -> None: ...

    def read(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys: who verifies them, and who hears that they change."""

    verifier: ApiKeys
    announcements: Announcements


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is done now and then, whether or not a request asks for it."""

    gateway: Gateway
    retention: Retention
    stopping: Stopping
    keys: Keys | None = None
    """None: the gateway takes no API keys."""
    seal_keys: SealKeys | None = None

    async def reload(self) -> None:
        """Read the keys of seals and the catalog anew, and see whether this is still the database to write to."""
        if self.seal_keys is not None:
            self.seal_keys.read()
        try:
            await self.gateway.catalog.reload()
        except StorageError as error:
            self.gateway.emit(ListenerLost(f"the catalog could not be read: {error}"))
        with suppress(StorageError):  # requests report it; here it only has to be noticed soon (R19)
            await self.gateway.database.origin_status()

    async def reload_now_and_then(self) -> None:
        while True:
            await self.gateway.times.clock.sleep(self.gateway.times.upkeep.reload_every)
            await self.reload()

    async def look_now_and_then(self) -> None:
        """See whether this is still the database to write to, and whether keys of seals have changed, for ever."""
        while True:
            await self.gateway.times.clock.sleep(self.gateway.times.upkeep.look_every)
            if self.seal_keys is not None:
                self.seal_keys.look()
            with suppress(StorageError):
                await self.gateway.database.origin_status()

    async def leave_moments_now_and_then(self) -> None:
        """Leave moments in the database while it is written to, for ever (R19)."""
        while True:
            await self.gateway.times.clock.sleep(self.gateway.times.upkeep.look_every)
            if self.gateway.database.moment_due:
                with suppress(StorageError):  # requests report it
                    await leave_moment(self.gateway.database)

    async def note_uses_now_and_then(self, keys: ApiKeys) -> None:
        """Note which API keys are used, for ever. Where that fails (the database may be a standby), a note is lost."""
        while True:
            await self._sleep_about(self.gateway.times.upkeep.note_keys_about_every)
            with suppress(StorageError):
                await keys.note_uses()

    async def sweep_now_and_then(self) -> None:
        """Remove what ended leases left, for ever."""
        while True:
            await self._sleep_about(self.gateway.times.upkeep.sweep_about_every)
            try:
                await self.gateway.locks.sweep(self.retention.leases)
            except StorageError as error:
                self.gateway.emit(QueueFailed(f"ended leases could not be swept: {error}"))

    async def prune_now_and_then(self) -> None:
        """Forget old marks and idempotency records, for ever."""
        pruner = Pruner(self.gateway.database)
        while True:
            await self._sleep_about(self.gateway.times.upkeep.prune_about_every)
            try:
                if pruned := await pruner.run(self.retention.marks):
                    self.gateway.emit(Pruned("marks", pruned))
                if pruned := await prune_records(self.gateway.database, self.retention.idempotency):
                    self.gateway.emit(Pruned("idempotency", pruned))
            except StorageError as error:
                self.gateway.emit(PruningFailed(f"marks or idempotency records could not be pruned: {error}"))

    async def _sleep_about(self, seconds: float) -> None:
        """Sleep more or less so long, so that gateways take turns."""
        await self.gateway.times.clock.sleep(seconds * random.uniform(0.5, 1.5))  # noqa: S311 - no secret


@asynccontextmanager
async def recording(
    database: Database, refusals: CallerRefusals, emit: Emit, times: Times = TIMES
) -> AsyncIterator[None]:
    """Write down now and then, and at the end, what callers were refused for who they are."""

    async def record() -> None:
        if not (counts := refusals.take()):
            return
        try:
            await add(database, counts)
        except StorageError as error:
            refusals.give_back(counts)
            emit(PruningFailed(f"refusals of callers could not be recorded, and will be later: {error}"))

    async def record_now_and_then() -> None:
        while True:
            await times.clock.sleep(times.upkeep.record_every)
            await record()

    task = asyncio.create_task(record_now_and_then())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await record()


@asynccontextmanager
async def run_upkeep(dsn: str, upkeep: Upkeep) -> AsyncIterator[None]:
    """Run all of it until the block ends."""
    gateway, queue = upkeep.gateway, upkeep.gateway.locks.queue
    listener = Listener(
        dsn=dsn,
        reload=upkeep.reload,
        lost=lambda reason: gateway.emit(ListenerLost(reason)),
        channel=queue.channel,
        woken=queue.on_notify,
        connected=queue.on_listening,
        keys=upkeep.keys.announcements if upkeep.keys else None,
        times=gateway.times,
    )
    of_keys = (
        (upkeep.note_uses_now_and_then(upkeep.keys.verifier), upkeep.keys.announcements.forget_while_unheard())
        if upkeep.keys
        else ()
    )
    works = (
        *of_keys,
        listener.run(),
        upkeep.reload_now_and_then(),
        upkeep.look_now_and_then(),
        upkeep.leave_moments_now_and_then(),
        upkeep.sweep_now_and_then(),
        upkeep.prune_now_and_then(),
    )
    tasks = [asyncio.create_task(work) for work in works]
    try:
        with (
            _reload_on_hangup(upkeep.reload),
            _stop_at_once(
                upkeep.stopping.ask, queue.stop, gateway.watches.stop, gateway.results.stop, gateway.batches.stop
            ),
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
