"""Resource names: `{table}/{key}`, the key's values joined by commas, each percent-encoded.

The same grammar serves paths, bodies and `fencepost.marks`. PostgreSQL renders names (`fencepost.enc`), from typed
values, so that one row has one name; this module only reads them.
"""

import re
from dataclasses import dataclass

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")


class MalformedResourceError(ValueError):
    """The name cannot be read. The message names the part and what is wrong with it."""


# Made for each request and message, and so not frozen: that would cost more than the rest of its making.
@dataclass(slots=True, unsafe_hash=True)
class Resource:
    """A row's name, read: the table's API name and the text of each key value, in the key's column order."""

    table: str
    key: tuple[str, ...]


def decode_segment(raw: bytes) -> str:
    """Percent-decode one part strictly: a stray `%`, bytes that are not UTF-8, or a NUL raise."""
    given = raw
    if b"%" in raw:
        if _BAD_ESCAPE.search(raw):
            raise MalformedResourceError(f"{_shown(given)}: a % must be followed by two hexadecimal digits")
        raw = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), raw)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedResourceError(f"{_shown(given)}: is not UTF-8") from error
    if "\0" in text:
        raise MalformedResourceError(f"{_shown(given)}: PostgreSQL has no character NUL")
    return text


def _shown(given: bytes) -> str:
    return repr(given.decode("utf-8", "backslashreplace"))


def decode_key(raw: bytes) -> tuple[str, ...]:
    """Split a raw key at its commas, then decode each value: `%2C` is part of a value, `,` separates two."""
    return tuple(decode_segment(part) for part in raw.split(b","))


def parse_resource(name: str) -> Resource:
    """Read `orders/order-123`; raise MalformedResourceError when there is no slash or a part cannot be decoded."""
    table, slash, key = name.partition("/")
    if not slash or not table:
        raise MalformedResourceError(f"{name!r}: a resource is named table/key, like orders/order-123")
    if name.isascii() and "%" not in name and "\0" not in name:
        return Resource(table, tuple(key.split(",")))
    try:
        return Resource(decode_segment(table.encode()), decode_key(key.encode()))
    except UnicodeEncodeError as error:
        raise MalformedResourceError(f"{name!r}: is not UTF-8") from error
