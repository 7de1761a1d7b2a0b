"""The ledger of a consumer in the database (postgres/queues)."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from fencepost.server.consuming.ledger import Checked, Kept
from fencepost.server.gateway.results import CALLER_HEADER
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.connections.engine import Database
from fencepost.server.postgres.connections.transactions import run_write
from fencepost.server.postgres.leases import sources
from fencepost.server.postgres.queues import progress, results, stopped
from fencepost.server.postgres.queues.progress import PartitionProgress
from fencepost.server.postgres.queues.results import LetterSize
from fencepost.server.postgres.statements.idempotency import Recorded
from fencepost.server.queues.log import LogState, Position
from fencepost.server.queues.write_id import MessageName

T = TypeVar("T")


class DatabaseLedger:
    """Of one queue."""

    def __init__(self, database: Database, queue: str) -> None:
        self._database = database
        self._queue = queue
        self._registered = False

    async def _write(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Do what is done again when it is not known to have landed. It is for writing also where it only reads: what
        is found is as safe as a commit is.
        """
        return await run_write(self._database.for_writing, work, repeatable=True)

    async def check(self, ask: Callable[[], Awaitable[LogState]], generation: int | None) -> Checked:
        """Ask the log, and compare it with what is recorded."""
        before: progress.RecordedLog | None = None
        while True:
            state = await ask()
            compare = partial(self._compare, state, generation, before)
            found, stops = await self._write(compare)
            self._registered = True
            if found.verdict != "again":
                because = (found.because or "its source is quarantined") if found.verdict == "quarantined" else None
                return Checked(found.generation, state.partitions, because, stops)
            before = found.recorded

    async def _compare(
        self, state: LogState, generation: int | None, before: progress.RecordedLog | None, connection: Connection
    ) -> tuple[progress.LogCheck, dict[str, str]]:
        if not self._registered:
            await progress.register(connection, self._queue)
        epochs = state.leader_epochs or (None,) * state.partitions
        found = await progress.check(
            connection, self._queue, state.incarnation, state.ends, epochs, generation=generation, before=before
        )
        stops = await stopped.stopped(connection, self._queue) if found.stopped else []
        return found, {each.resource: each.write_id for each in stops}

    async def quarantine(self, reason: str, generation: int | None) -> None:
        """Quarantine the queue's source, if its generation is still this one."""
        await self._write(lambda connection: progress.quarantine(connection, self._queue, reason, generation))

    async def generation(self) -> int:
        """Read the generation of the queue's source."""
        state = await self._write(lambda connection: sources.state(connection, self._queue, ""))
        return state.generation

    async def result(self, name: MessageName) -> Kept | None:
        """Look up what was kept for a message, or for a copy of it."""
        found = await self._write(lambda connection: results.result_of_message(connection, name.id, name.content))
        return None if found is None else Kept(found.id, found.answer)

    async def committed(self, position: Position, generation: int) -> bool:
        """Look up whether the log gives a message no more."""
        return await self._write(
            lambda connection: progress.is_committed(
                connection, self._queue, generation, position.partition, position.offset
            )
        )

    async def keep(self, name: MessageName, answer: Recorded, letter_bytes: int | None = None) -> Kept | None:
        owner = dict(answer.headers).get(CALLER_HEADER, "")
        letter = None if letter_bytes is None else LetterSize(self._queue, owner, letter_bytes)

        async def keep(connection: Connection) -> Kept | None:
            if await results.record(connection, name.id, name.content, answer, letter):
                return None
            found = await results.result_of_message(connection, name.id, name.content)
            if found is None:  # it stood where it does not belong, and was retried: its record says less than it did
                found = (await results.results(connection, [name.id])).get(name.id)
            return None if found is None else Kept(found.id, found.answer)

        return await self._write(keep)

    async def stop(self, resource: str, write_id: str) -> None:
        await self._write(lambda connection: stopped.stop_resource(connection, self._queue, resource, write_id))

    async def go_on(self, resource: str, write_id: str) -> None:
        await self._write(lambda connection: stopped.clear_resource(connection, self._queue, resource, write_id))

    async def note(self, partitions: Sequence[PartitionProgress], generation: int) -> None:
        await self._write(lambda connection: progress.note(connection, self._queue, generation, partitions))

    async def note_pause(self, member: str, because: str | None) -> None:
        await self._write(lambda connection: progress.note_pause(connection, self._queue, member, because))

    async def note_committed(self, offsets: Sequence[int], generation: int) -> None:
        await self._write(lambda connection: progress.note_committed(connection, self._queue, generation, offsets))

    async def now(self) -> float:
        return await self._write(progress.now)

    async def note_look(self, at: float, decided: Sequence[int], state: LogState, generation: int) -> None:
        said = (state.incarnation, state.ends)
        await self._write(lambda connection: progress.note_look(connection, self._queue, generation, at, decided, said))

    async def applied_to(self) -> float | None:
        """Read before when all that came into the log is decided, in seconds since the epoch; None: not known."""
        return await self._write(lambda connection: progress.applied_to(connection, self._queue))

    async def forgotten_to(self) -> float | None:
        """Read when the newest record of a caller's message was made that was forgotten; None: none was."""
        return await self._write(lambda connection: progress.forgotten_to(connection, self._queue))
