"""Idempotency keys (R16): every write has one, so that it can be sent again when its answer got lost."""

import re
from typing import Final
from uuid import uuid4

KEY_HEADER: Final = "Idempotency-Key"
_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")


def new_key() -> str:
    """Return a key that no other client has."""
    return uuid4().hex


def key_header(key: str) -> str:
    """Return the header's value; ValueError for what cannot be a key: 1 to 255 visible ASCII characters."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"idempotency_key {key[:40]!r}: a key is 1 to 255 visible ASCII characters")
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
