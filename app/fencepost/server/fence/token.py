"""Fencing tokens: what one looks like, and how a rule compares two of them (R1, R2, R11)."""

import re
from typing import Final, Literal, NewType, assert_never

Token = NewType("Token", int)
"""A positive 64-bit integer; a later grant of a lock has a larger one."""

Rule = Literal["strict", "epoch"]
"""How a table compares: strict takes `mark < t`, epoch takes `mark <= t` (docs/decisions/0030)."""

NO_MARK = 0
"""The mark of a resource that was never written through a fence."""

GENERATION_BITS: Final = 48
"""A token is generation * 2^48 + what its source counts (R12)."""
GENERATIONS: Final = 32768
"""How many there can be: tokens end at 2^63."""
BUILTIN: Final = "builtin"
"""The source whose tokens Fencepost's own database hands out (R9, R12)."""
EXTERNAL: Final = "external"
"""Any source: the operator vouches that one place mints the tokens. Every other name is one in fencepost.sources."""
MAX_TOKEN = 2**63 - 1

# ASCII only, and \Z: `$` would let a trailing newline pass, int() takes "1_000", " 5 " and Arabic digits.
_GRAMMAR = re.compile(rb"[1-9][0-9]*\Z")
_MOST_DIGITS: Final = len(str(MAX_TOKEN))


class MalformedTokenError(ValueError):
    """What stands in `X-Fence-Token` is not a token. The message has the reason, for the sender."""


def parse_token(raw: bytes) -> Token:
    """Read a token from a header's bytes, or raise MalformedTokenError (R11)."""
    if not _GRAMMAR.match(raw):
        raise MalformedTokenError(
            "a token is one positive decimal integer: ASCII digits only, no sign, space, comma or leading zero"
        )
    if len(raw) > _MOST_DIGITS or int(raw) > MAX_TOKEN:
        raise MalformedTokenError(f"a token is at most {MAX_TOKEN} (a signed 64-bit integer)")
    return Token(int(raw))


def accepts(rule: Rule, mark: int, token: Token) -> bool:
    """Return whether a resource at this mark takes an operation with this token.

    In SQL: `fencepost.accepts`, and in the WHERE of statements `comparison` (postgres/statements/row_sql.py).
    """
    match rule:
        case "strict":
            return mark < token
        case "epoch":
            return mark <= token
        case _:
            assert_never(rule)


def shown_mark(rule: Rule, mark: int) -> int | None:
    """Give a resource's mark for all to see; None: a write with this very number would be accepted (decision 0032)."""
    return None if mark != NO_MARK and accepts(rule, mark, Token(mark)) else mark
