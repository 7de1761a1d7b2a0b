"""Texts of requests as answers, logs and records show them: of so many bytes at most.

A request's names and values come back in sentences of ours and of PostgreSQL's, and may have the size of a whole body.
Where a sentence is too long its middle is left out, and its length said: what it is about stands at its beginning, and
what became of it at its end.
"""

import json
from collections.abc import Callable, Iterable, Sized
from itertools import accumulate, takewhile
from typing import Final

MOST: Final = 1000
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


def bounded(text: str, most: int = MOST, spell: Spell = _in_utf8) -> str:
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
