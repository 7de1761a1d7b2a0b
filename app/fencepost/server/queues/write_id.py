"""The id of a write that goes through a log: `<queue>.<partition>.<offset>.<last part>`.

The last part is the nonce that a gateway gave the message, 16 hexadecimal digits; of a message without one it is a
hash of the message, of its position and of the time at which it was appended. So a message has the same id however
often it comes, and another one at the same position, in a log that was made again or cut off, has another id. Without
the last part the id names a position. Names of queues may have dots and digits, so an id is read from its end; an
offset has at most 15 digits, and so is no last part.

A log may have one message twice, at two offsets: a producer that does not know whether a message was appended appends
it again, and Kafka's idempotent producer does so, too, where messages before it timed out (seen with librdkafka 2.x and
three brokers). Both copies have the nonce and the same content, and so they are one write: the records of the database
have each pair of the two once (idempotency_message_idx).
"""

import hashlib
import re
import secrets
import struct
from dataclasses import dataclass
from typing import Final

from fencepost.server.queues.log import MOST_OFFSET, Message, Position, Received

QUEUE_NAME: Final = re.compile(r"(?:kafka|redis|postgres):[A-Za-z0-9._-]{1,48}")
"""The name of a queue, which is also the name of its source of tokens."""
NONCE: Final = re.compile(r"[0-9a-f]{16}")
_NUMBER: Final = r"0|[1-9][0-9]{0,14}"
_ID: Final = re.compile(
    rf"(?P<queue>{QUEUE_NAME.pattern})\.(?P<partition>{_NUMBER})\.(?P<offset>{_NUMBER})"
    rf"(?:\.(?P<nonce>{NONCE.pattern}))?"
)


class MalformedWriteIdError(ValueError):
    """The text is no id of a write. The message has the form that one has."""


def new_nonce() -> str:
    """Choose a nonce for a message, so that its id comes up once."""
    return secrets.token_hex(8)


def joined(message: Message) -> bytes:
    """Join all that a message says: its key, value and headers. Two messages with other words have other bytes."""
    parts = [message.key, message.value or b""]
    for name, value in message.headers:
        parts += (name.encode(), value)
    # Lengths first: parts that meet elsewhere are other parts.
    lengths = struct.pack(f"<{len(parts)}Q", *map(len, parts))
    return b"".join((lengths, *parts))


def content_of(message: Message) -> bytes:
    """Hash all that a message says: its key, value and headers."""
    return hashlib.blake2b(joined(message), digest_size=16).digest()


def content_at(position: Position, content: bytes) -> bytes:
    """Hash what a message says and where it is, which is what it is recognised by where it does not belong."""
    place = f"{position.partition}.{position.offset} ".encode()
    return hashlib.blake2b(place + content, digest_size=16).digest()


def hash_of(queue: str, received: Received) -> str:
    """Make the last part of the id of a message that has no nonce."""
    position = received.position
    place = f"{queue}.{position.partition}.{position.offset} {received.at:.3f} ".encode()
    return hashlib.blake2b(place + content_of(received.message), digest_size=8).hexdigest()


@dataclass(slots=True)
class MessageName:
    """What a message is recognised by. `id`: that of its write. `content`: the hash of what it says. Another message
    with the same last part of the id and the same content is a copy of it.
    """

    id: str
    content: bytes


@dataclass(frozen=True, slots=True)
class WriteId:
    """An id, read. `nonce` None: it names a position only."""

    queue: str
    position: Position
    nonce: str | None = None

    def __str__(self) -> str:
        """Write it as it stands in paths, records and dead letters."""
        return id_at(self.queue, self.position, self.nonce)


def id_at(queue: str, position: Position, nonce: str | None) -> str:
    """Write the id of the write at a position."""
    place = f"{queue}.{position.partition}.{position.offset}"
    return place if nonce is None else f"{place}.{nonce}"


def parse_write_id(text: str) -> WriteId:
    """Read an id, with or without its last part. Raises MalformedWriteIdError."""
    # The queue's name is greedy: what follows is taken from the end.
    found = _ID.fullmatch(text)
    if found is None or int(found["offset"]) > MOST_OFFSET:
        raise MalformedWriteIdError(
            f"{text[:120]!r} is no id of a write: queue.partition.offset.nonce, as the answer 202 gave it"
        )
    return WriteId(found["queue"], Position(int(found["partition"]), int(found["offset"])), found["nonce"])
