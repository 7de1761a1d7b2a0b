"""The ledger of a consumer in the database (storage/queues)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from fencepost.consuming.ledger import Checked, Kept
from fencepost.queues.log import LogState, Position
from fencepost.queues.write_id import MessageName
from fencepost.storage.connections.connection import Connection
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import map_errors
from fencepost.storage.leases import sources
from fencepost.storage.queues import progress, results, stopped
from fencepost.storage.queues.progress import PartitionProgress
from fencepost.storage.statements.idempotency import Recorded


class DatabaseLedger:
    """Of one queue."""

    def __init__(self, database: Database, queue: str) -> None:
        self._database = database
        self._queue = queue
        self._registered = False

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Connection]:
        async with self._database.connection(writing=True) as connection:
            with map_errors(writing=False):  # what is written here is written again when it is not known to be there
                yield connection

    async def check(self, ask: Callable[[], Awaitable[LogState]], generation: int | None) -> Checked:
        """Ask the log, and compare it with what is recorded."""
        before: progress.RecordedLog | None = None
        while True:
            state = await ask()
            epochs = state.leader_epochs or (None,) * state.partitions
            async with self._writing() as connection:
                if not self._registered:
                    await progress.register(connection, self._queue)
                    self._registered = True
                found = await progress.check(
                    connection,
                    self._queue,
                    state.incarnation,
                    state.ends,
                    epochs,
                    generation=generation,
                    before=before,
                )
                stops = {}
                if found.stopped:
                    stops = {each.resource: each.write_id for each in await stopped.stopped(connection, self._queue)}
            if found.verdict != "again":
                because = (found.because or "its source is quarantined") if found.verdict == "quarantined" else None
                return Checked(found.generation, state.partitions, because, stops)
            before = found.recorded

    async def quarantine(self, reason: str, generation: int | None) -> None:
        """Quarantine the queue's source, if its generation is still this one."""
        async with self._writing() as connection:
            await progress.quarantine(connection, self._queue, reason, generation)

    async def generation(self) -> int:
        """Read the generation of the queue's source."""
        async with self._writing() as connection:
            return (await sources.state(connection, self._queue, "")).generation

    async def result(self, name: MessageName) -> Kept | None:
        """Look up what was kept for a message, or for a copy of it."""
        async with self._writing() as connection:
            found = await results.result_of_message(connection, name.id, name.content)
        return None if found is None else Kept(found.id, found.answer)

    async def committed(self, position: Position, generation: int) -> bool:
        """Look up whether the log gives a message no more."""
        async with self._writing() as connection:
            return await progress.is_committed(connection, self._queue, generation, position.partition, position.offset)

    async def keep(self, name: MessageName, answer: Recorded) -> Kept | None:
        """Keep the answer of a message that has no effect."""
        async with self._writing() as connection:
            if await results.record(connection, name.id, name.content, answer):
                return None
            found = await results.result_of_message(connection, name.id, name.content)
        return None if found is None else Kept(found.id, found.answer)

    async def stop(self, resource: str, write_id: str) -> None:
        """Stop a resource."""
        async with self._writing() as connection:
            await stopped.stop_resource(connection, self._queue, resource, write_id)

    async def go_on(self, resource: str, write_id: str) -> None:
        """Let a resource go on."""
        async with self._writing() as connection:
            await stopped.clear_resource(connection, self._queue, resource, write_id)

    async def note(self, partitions: Sequence[PartitionProgress], generation: int) -> None:
        """Note what was done."""
        async with self._writing() as connection:
            await progress.note(connection, self._queue, generation, partitions)

    async def note_pause(self, member: str, because: str | None) -> None:
        """Note that a member is paused, or goes on."""
        async with self._writing() as connection:
            await progress.note_pause(connection, self._queue, member, because)

    async def note_committed(self, offsets: Sequence[int], generation: int) -> None:
        """Note what the log gives no more."""
        async with self._writing() as connection:
            await progress.note_committed(connection, self._queue, generation, offsets)
