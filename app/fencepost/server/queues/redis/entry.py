"""An entry of a stream, as a message: its id is `0-<offset + 1>`, its fields `at`, `key`, `value` and `h:<header>`."""

from collections.abc import Sequence
from typing import Final

from fencepost.server.queues.log import LogChangedError, Message, Position, Received

_HEADER: Final = b"h:"
_NO_TIME: Final = 1e11
"""Seconds that no clock shows, and PostgreSQL need not keep: the year 5138."""


def fields_of(message: Message) -> list[bytes]:
    """Give the fields of a message and their values in turn, but for `at`: the server's own clock says when."""
    fields = [b"key", message.key]
    if message.value is not None:
        fields += [b"value", message.value]
    for name, value in message.headers:
        fields += [_HEADER + name.encode(), value]
    return fields


def sequence_of(entry_id: bytes, stream: str) -> int:
    """Read an entry's place in its stream, 1 or more. Raises LogChangedError."""
    if not entry_id.startswith(b"0-"):
        raise LogChangedError(
            f"{stream} has the entry {entry_id.decode()}, which was not added as 0-*: its time would be the token. The "
            "stream has to be deleted, and the source raised"
        )
    return int(entry_id[2:])


def read_entry(
    entry: Sequence[Sequence[bytes]] | tuple[bytes, Sequence[bytes]],
    partition: int,
    stream: str,
    handle: object,
) -> Received:
    """Make a message of an entry. What it has no field for is empty; other fields are left out."""
    entry_id, fields = entry
    assert isinstance(entry_id, bytes)  # noqa: S101 - for the type checker
    at, key, value, headers = 0.0, b"", None, []
    for name, content in zip(fields[::2], fields[1::2], strict=True):
        if name.startswith(_HEADER):
            headers.append((name[len(_HEADER) :].decode(errors="replace"), content))
        elif name == b"at":
            at = seconds_of(content)
        elif name == b"key":
            key = content
        elif name == b"value":
            value = content
    position = Position(partition, sequence_of(entry_id, stream) - 1)
    return Received(position, Message(key, value, tuple(headers)), at, None, handle)


def seconds_of(content: bytes) -> float:
    """When a message was appended; 0 where a program that adds entries itself gave something else than a time."""
    try:
        seconds = float(content)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds < _NO_TIME else 0.0  # NaN is neither
