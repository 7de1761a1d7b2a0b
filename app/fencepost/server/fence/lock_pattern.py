"""Patterns of lock names: `orders/*` is every name that begins with `orders/`; without a `*` at its end it is one name.

A pattern is read, and refused where it is none, by identity/locks.py.
"""

from collections.abc import Sequence
from typing import Final

_LIKE: Final = str.maketrans({"\\": r"\\", "%": r"\%", "_": r"\_"})


def matches(pattern: str, name: str) -> bool:
    """Whether a lock of this name is one of those that the pattern names."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def likes(patterns: Sequence[str] | None) -> list[str] | None:
    """Write patterns as SQL's LIKE has them."""
    if patterns is None:
        return None
    return [p[:-1].translate(_LIKE) + "%" if p.endswith("*") else p.translate(_LIKE) for p in patterns]
