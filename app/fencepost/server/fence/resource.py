"""Names: of resources, `{table}/{key}`, the key's values joined by commas, each percent-encoded; and of scopes. And how
much of a text is shown.

The same grammar serves paths, bodies and `fencepost.marks`. PostgreSQL renders names (`fencepost.enc`), from typed
values, so that one row has one name; here they are only read.
"""

import json
import re
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final

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


# Scopes: one fence for all rows that render to the same name (R8). `account/{account_id}` is a template.
#
# A template is a prefix, a slash, and columns in braces joined by commas. A row's scope is the prefix with the
# columns' values, in the grammar of resource names: `account/42`.

LONGEST_PREFIX: Final = 63
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_COLUMNS: Final = re.compile(r"\{[^{}]+\}(?:,\{[^{}]+\})*")


class MalformedScopeError(ValueError):
    """The template cannot be read; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A template, read. The prefix stands where a table's name stands in a row's resource name."""

    prefix: str
    columns: tuple[str, ...]

    @property
    def template(self) -> str:
        """The text that `parse_scope` reads."""
        return f"{self.prefix}/{','.join('{' + column + '}' for column in self.columns)}"


def parse_scope(template: str) -> Scope:
    """Read a template; raise MalformedScopeError."""
    prefix, slash, columns = template.partition("/")
    if not slash or not _COLUMNS.fullmatch(columns):
        raise MalformedScopeError(
            f"{template!r}: a scope is a name, a slash and columns in braces: account/{{account_id}}, or"
            " shelf/{region},{shelf}"
        )
    if not _PREFIX.fullmatch(prefix) or len(prefix) > LONGEST_PREFIX:
        raise MalformedScopeError(
            f"{template!r}: the name before the slash has 1 to {LONGEST_PREFIX} letters, digits, _ . or -"
        )
    names = tuple(columns[1:-1].split("},{"))
    if len(set(names)) < len(names):
        raise MalformedScopeError(f"{template!r}: a column is named twice")
    return Scope(prefix, names)


# Texts of requests as answers, logs and records show them: of so many bytes at most.
#
# A request's names and values come back in sentences of ours and of PostgreSQL's, and may have the size of a whole
# body. Where a sentence is too long its middle is left out, and its length said: what it is about stands at its
# beginning, and what became of it at its end.

MOST_OF_A_TEXT: Final = 1000
"""Bytes of a sentence or a name. The longest sentences of ours have 600, and names of tables and columns 63."""
MOST_OF_A_NAME: Final = 2600
"""Bytes of a resource's name: longer ones have no mark (migrations/schema/judging.sql), so no real one is cut."""
_CUT: Final = 60
"""Bytes of the note in the middle, at most."""
_LONGEST: Final = 12
"""Bytes that a character has at most, as `in_json`."""

Spell = Callable[[str], Sized]


def _in_utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def in_json(text: str) -> str:
    """Spell a text as a JSON log does: in ASCII."""
    return json.dumps(text)[1:-1]


def bounded(text: str, most: int = MOST_OF_A_TEXT, spell: Spell = _in_utf8) -> str:
    """Leave out the middle of a text that has more bytes, as it is spelled."""
    if len(text) * _LONGEST <= most or (len(text) <= most and len(spell(text)) <= most):
        return text
    room = most - _CUT
    last = _fitting(reversed(text[-room:]), room // 3, spell)
    first = _fitting(text[:room], room - room // 3, spell)
    return f"{text[:first]}… (cut: {len(text)} characters in all) …{text[-last:]}"


def _fitting(characters: Iterable[str], room: int, spell: Spell) -> int:
    """Count how many of the characters have so many bytes."""
    sizes = accumulate(len(spell(each)) for each in characters)
    return sum(1 for _ in takewhile(lambda size: size <= room, sizes))


def bounded_within(value: object) -> object:
    """Leave out the middles of texts in a value that becomes JSON: of names that programs read."""
    match value:
        case str():
            return bounded(value, MOST_OF_A_NAME)
        case list() | tuple():
            return [bounded_within(each) for each in value]
        case dict():
            return {name: bounded_within(each) for name, each in value.items()}
        case _:
            return value
