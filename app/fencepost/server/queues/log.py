"""The Protocol of a log: an ordered sequence of messages in each of its partitions.

The process that appends chooses the partition by the message's key (`partition_of`), so all messages of a resource are
in one partition, in the order in which they were acknowledged. The offset of a message is its place in its partition.
Offsets rise, may have gaps, and never repeat for as long as the log's `incarnation` stays. The fencing token of a
message is generation * 2^48 + offset + 1 (R12): tokens are compared within one resource, and so within one partition.

The conformance suite holds every kind of log to this, on its real server.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, Protocol

Headers = tuple[tuple[str, bytes], ...]
"""The headers of a message, in their order; a name may stand more than once."""

TAKEN_BYTES: Final = 16 * 2**20
"""After about so many bytes a `take` gives no further message."""
MOST_OFFSET: Final = 2**48 - 3
"""The highest offset that a token can be made of."""


class LogError(Exception):
    """A log could not do what was asked. The message is one sentence for the caller of the gateway."""


class LogUnavailableError(LogError):
    """The log cannot be reached. Nothing was done."""


class LogUnknownError(LogUnavailableError):
    """The log did not answer in time. What was asked for may have been done."""


class LogConfigError(LogError):
    """The URL is wrong, or a library is missing. The message names the remedy."""


def namesake(log: str, member: str) -> LogConfigError:
    """Say that two processes take under one name; `log` names the log."""
    return LogConfigError(f"{log}: another process takes as member {member}: give each its own --member")


class LogChangedError(LogError):
    """The log is not the one that was recorded, or lost what it had acknowledged: its source is to be quarantined."""


# What is made for each message is not frozen: that would cost more than the rest of its making.
@dataclass(slots=True)
class Message:
    """What is appended. `key`: the resource, as UTF-8. `value` None is a message without one."""

    key: bytes
    value: bytes | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log."""

    partition: int
    offset: int


@dataclass(slots=True)
class Received:
    """A message that was taken from a log. `at`: when it was appended, in seconds since the epoch: for people, since in
    Kafka (CreateTime) and Redis its producer may say so as it likes. `handle`: what the log's own `done` needs.
    `leader_epoch`: where the log counts its leaders (Kafka); else None.
    """

    position: Position
    message: Message
    at: float
    leader_epoch: int | None = None
    handle: object = None


@dataclass(frozen=True, slots=True)
class LogState:
    """A log as it is now. `incarnation`: another one after the log was deleted and made again; empty where there is
    none yet, and its first use makes it (Redis). `ends`: by partition, the offset that the next message will have, or a
    lower one.
    """

    incarnation: str
    ends: tuple[int, ...]
    leader_epochs: tuple[int | None, ...] = ()

    @property
    def partitions(self) -> int:
        return len(self.ends)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be applied. `id`: that of the write. `at`: when it became a dead letter. `left_out`:
    what of its message the letter does not have, which was too large: the value, or the headers too. The message is
    still in the log, at its position.
    """

    id: str
    reason: str
    position: Position
    message: Message
    at: float
    left_out: str = ""


class Consumer(Protocol):
    """One member of those who take from a log. Each partition is taken by one member at a time, as far as the log
    knows: a member that was paused may still hold messages that another has taken since.

    Not to be called from two tasks at once, but for `done`.
    """

    def begin(self, generation: int) -> None:
        """Take in this generation of the log's source from now on; before that `take` is called with `most` 0 only. A
        loss of the log's is a LogChangedError until a generation is begun that is higher than the one in which it was
        found: then its source was raised, and messages come from where the log begins to be another.
        """
        ...

    async def take(self, most: int, wait_s: float) -> Sequence[Received]:
        """Take messages that were not taken before, those of one partition in their order; none came in `wait_s`: none.
        `most` of them, and fewer where they are large (TAKEN_BYTES). To be called at least every few seconds, also
        while nothing more can be taken: then with `most` 0. Messages that were taken and not done come again, from the
        start of the partition's undone ones, to the next member that has the partition. Raises LogUnavailableError,
        LogChangedError.
        """
        ...

    @property
    def partitions(self) -> frozenset[int]: ...

    async def done(self, received: Sequence[Received]) -> None:
        """These are decided: they need not come again. In any order; what cannot be committed yet is remembered. Those
        of partitions that were lost are left out in silence: the next member decides them anew. Raises
        LogUnavailableError.
        """
        ...

    async def close(self) -> None:
        """Commit what is done, and leave: others get the partitions at once. Raises nothing."""
        ...


class DeadLetters(Protocol):
    """Where messages go that cannot be applied. One of an id is there once, however often it is put."""

    async def put(self, letter: DeadLetter) -> None:
        """Add one; durable when this returns. Raises LogUnavailableError."""
        ...

    async def list(self, most: int) -> Sequence[DeadLetter]:
        """List the oldest of those that are there. Raises LogUnavailableError."""
        ...

    async def get(self, letter_id: str) -> DeadLetter | None:
        """Find one. Raises LogUnavailableError."""
        ...

    async def drop(self, letter_id: str) -> bool:
        """Remove one; whether it was there. Raises LogUnavailableError."""
        ...

    async def count(self) -> Mapping[int, int]:
        """Count those that are there, by the partition of their messages; partitions without one are left out. Raises
        LogUnavailableError.
        """
        ...


class Log(Protocol):
    """A log of writes. One object per process and configured queue, for one event loop."""

    @property
    def dead(self) -> DeadLetters: ...

    async def open(self) -> None:
        """Get ready. Does not need the log's server to be there: a gateway starts without it."""
        ...

    async def close(self) -> None: ...

    async def append(self, message: Message) -> Position:
        """Append a message to the partition of its key. When this returns it is durable, on all replicas that the log's
        settings ask for. Raises LogUnavailableError: it is not there, nor will be; LogUnknownError: it may be there.
        """
        ...

    async def state(self) -> LogState:
        """Ask the log's server what the log is now. Raises LogUnavailableError, LogChangedError where it is gone."""
        ...

    async def decided(self) -> Sequence[int]:
        """Ask, by partition, for the offset below which all is decided. Raises LogUnavailableError."""
        ...

    async def oldest(self) -> Sequence[float | None]:
        """Ask, by partition, when the first message that is not decided was appended, in seconds since the epoch. None:
        there is none, or it is not known. Raises LogUnavailableError.
        """
        ...

    async def waiting(self, position: Position) -> Sequence[Received] | None:
        """Read the message at one position, if it is not decided: it, or none. None: this log cannot read a single
        position. Raises LogUnavailableError.
        """
        ...

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> Consumer:
        """Make a member of those who take. `member` names it among them, and stays the same when it is started again.
        `lost` is called with partitions that it no longer has.
        """
        ...

    async def advice(self) -> list[str]:
        """List what in the settings of the log's server may lose or repeat messages, one sentence each, for
        `fencepost doctor`. Raises LogUnavailableError.
        """
        ...


# Which partition a key belongs to: murmur2, as Kafka's Java client has it, for every kind of log.
#
# All writes of a resource must be in one partition, since only there they are in order; so every producer has to
# choose alike. librdkafka's own default is another one: its producers set `partitioner=murmur2_random`.

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_SHIFT: Final = 24
_32_BITS: Final = 0xFFFFFFFF
_WORDS: Final = Struct("<I")


def murmur2(key: bytes) -> int:
    """Hash a key to 32 bits."""
    length = len(key)
    hashed = _SEED ^ length
    whole = length - length % 4
    for (word,) in _WORDS.iter_unpack(key[:whole]):
        # Integers of Python have no width: only what is shifted right, or returned, must be cut to 32 bits.
        scattered = word * _FACTOR & _32_BITS
        hashed = (hashed * _FACTOR ^ (scattered ^ scattered >> _SHIFT) * _FACTOR) & _32_BITS
    if length > whole:
        hashed = (hashed ^ int.from_bytes(key[whole:], "little")) * _FACTOR & _32_BITS
    hashed = (hashed ^ hashed >> 13) * _FACTOR & _32_BITS
    return hashed ^ hashed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, 0 to partitions - 1."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
