"""How large a body becomes when its numbers are written out. `1e131071` has eight characters in a body, takes twenty
bytes in a jsonb, and has 131,072 digits in each answer: a body of 36 kB would have PostgreSQL make half a gigabyte for
each GET. So PostgreSQL is not given numbers that have more digits in all than `MOST` of the largest answer.

Once a value is stored nobody can tell how large its text is without making it.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from fencepost.server.fence.problem_types import BODY_TOO_LARGE
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.writes.write import Body
from fencepost.server.postgres.tables import Table

_SHARE: Final = 8
"""Of the largest answer the numbers of a body may fill the eighth part: a row has several columns."""
_MOST_DIGITS: Final = 131_072
_MOST_FRACTION: Final = 16_383
"""PostgreSQL's own limits of a number: digits before the point, and after it."""
_SHORTEST: Final = 8
"""Characters that a number of so many digits has at least, with what divides it from the next one."""
_OF_SHORT: Final = 20
"""Digits a byte that numbers with exponents of two digits have at most: `1e99,`."""
_SHAPE: Final = bytes.maketrans(b"123456789._E-", b"00000000000e+")
_LONG: Final = (b"0e000", b"0e+000")
"""Exponents of three digits, as _SHAPE leaves them: it takes a twentieth of the time of a regular expression."""
_UNQUOTED: Final = str.maketrans("", "", '"\\\\')
"""Without what may stand anywhere in the text of an array or a composite: `{1\\e131071}`, `(1"e"131071)`."""
_EXPONENT: Final = re.compile(r"[0-9.][eE]([-+]?)([0-9_]+)")


def refuse_expansion(table: Table, body: Body, largest_answer: int) -> Problem | None:
    """Refuse a body whose numbers would have too many digits in the columns that they are for."""
    most = largest_answer // _SHARE
    if len(body.raw) < most // _MOST_DIGITS * _SHORTEST or table.expanding.isdisjoint(body.columns):
        return None
    text = body.text
    # Escapes may hide an exponent from both: `"1\\u0065131071"`.
    if b"\\" not in body.raw:
        shape = body.raw.translate(_SHAPE)
        if len(shape) * _OF_SHORT <= most and not any(each in shape for each in _LONG):
            return None
        if _digits(text) <= most:  # in strings, too
            return None
    try:
        given = json.loads(text, parse_float=_Number, parse_int=_Number)
    except RecursionError:
        given = [dict.fromkeys(body.columns, text)]
    for name in table.expanding.intersection(body.columns):
        strings = table.columns[name].base_name != "jsonb"
        digits = sum(_within(row.get(name), strings=strings) for row in _rows(given))
        if digits > most:
            return Problem(
                BODY_TOO_LARGE,
                f"body: the numbers of {name} have {digits} digits when they are written out, more than {most}.",
                hint="An eighth of FENCEPOST_MAX_ANSWER_BYTES is allowed. A column of type json or text keeps numbers"
                " as they are written.",
            )
    return None


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _rows(given: object) -> Iterator[Mapping[str, object]]:
    for each in given if isinstance(given, list) else [given]:
        if isinstance(each, dict):
            yield each


def _within(value: object, *, strings: bool) -> int:
    """Add up the digits of all numbers in a value; those in strings, too, where the column's type reads strings."""
    digits, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, str) and (strings or isinstance(each, _Number)):
            digits += _digits(each if isinstance(each, _Number) else each.translate(_UNQUOTED))
    return digits


def _digits(text: str) -> int:
    """Add up the digits that exponents stand for. PostgreSQL refuses numbers that are too large."""
    digits = 0
    for sign, written in _EXPONENT.findall(text):
        exponent = written.replace("_", "").lstrip("0")[:7] or "0"
        if sign == "-":
            digits += min(int(exponent), _MOST_FRACTION)
        elif int(exponent) <= _MOST_DIGITS:
            digits += int(exponent)
    return digits
