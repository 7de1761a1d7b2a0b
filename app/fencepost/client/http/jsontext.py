"""JSON, in and out."""

import json
import math
import re
import secrets
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID


def dumps(value: object) -> bytes:
    """Write JSON. Times and UUIDs go as strings, which PostgreSQL reads exactly; so does a timedelta, as an ISO 8601
    duration of days and seconds. Decimals go as numbers, with all digits. NaN as a float raises ValueError. Half of a
    character goes as its escape.
    """
    mark = ""

    def written(other: object) -> str:
        nonlocal mark
        if isinstance(other, Decimal) and other.is_finite():
            # json writes no number of ours: it gets a string, whose quotes and mark, which no other has, go again.
            mark = mark or secrets.token_hex(16)
            return f"{mark}{other}"
        return _text(other)

    text = json.dumps(value, default=written, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return (re.sub(f'"{mark}([^"]+)"', r"\1", text) if mark else text).encode(errors="backslashreplace")


def join_lines(texts: Iterable[bytes]) -> bytes:
    """Write a JSON text a line."""
    return b"".join([text + b"\n" for text in texts])


def loads_lines(text: bytes, *, decimals: bool = False) -> list[object]:
    """Read a JSON value a line; ValueError as `loads`."""
    return [loads(line, decimals=decimals) for line in text.splitlines()]


def loads(text: bytes, *, decimals: bool = False) -> object:
    """Read JSON; ValueError if it is none. `decimals`: fractions become Decimal, and lose no digit. A number that no
    float holds is a Decimal in any case, so that it can be sent back.
    """
    fraction = Decimal if decimals else _number
    read: object = json.loads(
        text, parse_float=fraction, parse_int=lambda digits: fraction(digits) if digits == "-0" else _integer(digits)
    )
    return read


def _number(text: str) -> float | Decimal:
    number = float(text)
    return number if math.isfinite(number) else Decimal(text)


def _integer(digits: str) -> int | Decimal:
    return int(digits) if len(digits) < _MOST_DIGITS else Decimal(digits)  # Python reads no longer ones


_MOST_DIGITS = 4000


def _text(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"P{value.days}DT{value.seconds}.{value.microseconds:06}S"
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} cannot be sent as JSON")
