"""Patterns of locks, as a JWT's claim or an API key names those that its caller may see and take."""

from typing import Final

MOST: Final = 100
"""Patterns of one caller."""
LONGEST: Final = 512
"""Characters of one."""


def read_patterns(given: object) -> tuple[str, ...]:
    """Read a list of patterns: names, each of which may end with `*` (`orders/*`). Raises ValueError, which says what
    is wrong.
    """
    if not isinstance(given, list):
        raise ValueError('it is no list of patterns, as ["orders/*"]')  # noqa: TRY004 - a value of a claim
    if len(given) > MOST:
        raise ValueError(f"it has more than {MOST} patterns")
    for pattern in given:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= LONGEST or not pattern.isprintable():
            raise ValueError(f"{str(pattern)[:60]!r} is no pattern: a text of 1 to {LONGEST} printable characters is")
        if "*" in pattern[:-1]:
            raise ValueError(f"{pattern[:60]!r}: a * may stand at the end of a pattern only")
    return tuple(given)
