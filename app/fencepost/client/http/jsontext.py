"""JSON, in and out."""

import json
import math
from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID


def dumps(value: object) -> bytes:
    """Write JSON. Times, UUIDs and Decimals go as strings, which PostgreSQL reads exactly; NaN raises ValueError."""
    return json.dumps(value, default=_text, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def loads(text: bytes, *, decimals: bool = False) -> object:
    """Read JSON; ValueError if it is none. `decimals`: fractions become Decimal, and lose no digit. A number that no
    float holds is a Decimal in any case, so that it can be sent back.
    """
    read: object = json.loads(text, parse_float=Decimal if decimals else _number, parse_int=_integer)
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
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} cannot be sent as JSON")
