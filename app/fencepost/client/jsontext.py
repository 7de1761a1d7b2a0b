"""JSON, in and out."""

import json
from datetime import date, datetime, time
from decimal import Decimal
from uuid import UUID


def dumps(value: object) -> bytes:
    """Write JSON. Times, UUIDs and Decimals go as strings, which PostgreSQL reads exactly; NaN raises ValueError."""
    return json.dumps(value, default=_text, allow_nan=False, separators=(",", ":"), ensure_ascii=False).encode()


def loads(text: bytes, *, decimals: bool = False) -> object:
    """Read JSON; ValueError if it is none. `decimals`: fractions become Decimal, and lose no digit."""
    read: object = json.loads(text, parse_float=Decimal if decimals else None)
    return read


def _text(value: object) -> str:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, UUID | Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r} cannot be sent as JSON")
