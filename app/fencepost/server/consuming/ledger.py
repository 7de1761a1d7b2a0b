"""What a consumer reads and writes in the database about its queue: where the log stands, and what was decided."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fencepost.server.postgres.queues.progress import PartitionProgress
from fencepost.server.postgres.statements.idempotency import Recorded
from fencepost.server.queues.log import LogState, Position
from fencepost.server.queues.write_id import MessageName


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at the log came to. `partitions`: how many it has. `quarantined`: why nothing of it may be applied;
    None: it is the log that was recorded. `stopped`: by resource, the dead letter that its later messages wait for.
    """

    generation: int
    partitions: int = 0
    quarantined: str | None = None
    stopped: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept for a message. `id`: the id of its write, under which it was decided."""

    id: str
    answer: Recorded


class Ledger(Protocol):
    """The database's side of a queue. Each method raises StorageError."""

    async def check(self, ask: Callable[[], Awaitable[LogState]], generation: int | None) -> Checked:
        """Ask the log, compare it with what is recorded of it, and record how far it has got. To be called after
        messages were taken and before one of them is written. `generation`: what the check before gave; None: nothing
        was taken yet. Where the answer has another one, what was taken is void. Raises LogError, too.
        """
        ...

    async def quarantine(self, reason: str, generation: int | None) -> None:
        """The log is not the one that was recorded, as its own client has noticed. `generation`: the one in which it
        did; nothing is done when the source was raised meanwhile. None: it does not know it.
        """
        ...

    async def generation(self) -> int:
        """Read the generation of the queue's source, as it is now."""
        ...

    async def result(self, name: MessageName) -> Kept | None:
        """Look up what was kept for a message, or for a copy of it."""
        ...

    async def committed(self, position: Position, generation: int) -> bool:
        """Whether the log was said to give this message no more, in this generation: it is decided, and what was kept
        for it may have been forgotten.
        """
        ...

    async def keep(self, name: MessageName, answer: Recorded, letter_bytes: int | None = None) -> Kept | None:
        """Keep the answer of a message that has no effect. Not None: another one is kept already, and stays.
        `letter_bytes`: what the dead letter has that it becomes; None: it becomes none.
        """
        ...

    async def stop(self, resource: str, write_id: str) -> None:
        """Have later messages of a resource become dead letters, because of this one."""
        ...

    async def go_on(self, resource: str, write_id: str) -> None:
        """Let later messages of a resource be applied again, if it is this one that stopped it."""
        ...

    async def note(self, partitions: Sequence[PartitionProgress], generation: int) -> None:
        """Note what was done, for those who look. `generation`: that of the offsets."""
        ...

    async def note_pause(self, member: str, because: str | None) -> None:
        """Note that this member decides or takes nothing, and why; None: it goes on."""
        ...

    async def now(self) -> float:
        """Read the database's clock, in seconds since the epoch."""
        ...

    async def note_look(self, at: float, decided: Sequence[int], state: LogState, generation: int) -> None:
        """Note what the log has said after `now` gave `at`: first below which offsets all is decided, then what it
        is. So it becomes known that all is decided that came before a moment, whatever times the messages have.
        """
        ...

    async def note_committed(self, offsets: Sequence[int], generation: int) -> None:
        """Note, by partition, below which offset the log gives no message again. `generation`: the one in which it was
        asked.
        """
        ...
