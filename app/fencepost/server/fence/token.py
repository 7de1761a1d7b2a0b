"""Fencing tokens: what one looks like, and how a rule compares two of them (R1, R2, R11)."""

import re
from dataclasses import dataclass
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
    if len(raw) > _MOST_DIGITS or (number := int(raw)) > MAX_TOKEN:
        raise MalformedTokenError(f"a token is at most {MAX_TOKEN} (a signed 64-bit integer)")
    return Token(number)


def accepts(rule: Rule, mark: int, token: Token) -> bool:
    """Return whether a resource at this mark takes an operation with this token.

    In SQL: `fencepost.accepts`, and in the WHERE of statements `comparison` (postgres/row_sql.py).
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


# How high a token of a table may be whose source is external (R12).
#
# Of a source that Fencepost knows, the highest issued token is known, and a token above it is refused. Of an external
# one it is not: its tables have a ceiling instead, because one made-up token would lock out all holders after it.

HIGHEST_TOKEN: Final = 2**62 - 1
"""What a table of an external source takes at most if nothing else is set: as many numbers again are left above."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`max_token`: the highest token that the table takes. `max_jump`: how far one may be above the mark that it would
    raise, or above the table's floor where that is higher; None: any distance.
    """

    max_token: int = HIGHEST_TOKEN
    max_jump: int | None = None

    def may_refuse(self, token: int) -> bool:
        """Whether there is a mark (0, for one) that this token must not raise."""
        return token > self.max_token or (self.max_jump is not None and token > self.max_jump)


# The fence's verdicts. Refusals are values; exceptions are for broken machinery.
#
# The comparisons here are those of migrations/schema, judging.sql and bounds.sql: tests/races/test_one_rule.py
# holds both against each other. Python does not know the oldest token of a generation: the triggers refuse what is
# below.


@dataclass(frozen=True, slots=True)
class Stale:
    """The token is below the mark: a newer holder has written. Not spent (R3), and never retryable."""

    resource: str
    presented: Token
    mark: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Strict, and the token equals the mark: an operation with this very token was accepted here before."""

    resource: str
    presented: Token
    mark: int


@dataclass(frozen=True, slots=True)
class Unissued:
    """The table's source has issued no token this high (R12)."""

    resource: str
    presented: Token
    issued: int
    source: str = "builtin"


@dataclass(frozen=True, slots=True)
class BeyondCeiling:
    """The table's source is external, and the token is above `highest`: the highest token that the table takes, or the
    mark that it would raise and `max_jump`, where that is given (R12).
    """

    resource: str
    presented: Token
    highest: int
    max_jump: int | None = None


@dataclass(frozen=True, slots=True)
class MissingRow:
    """There is no such row (or row security hides it), and no mark that the token would be too old for."""

    resource: str


Refusal = Stale | Spent | Unissued | BeyondCeiling


def refusal(rule: Rule, resource: str, mark: int, token: Token) -> Stale | Spent | None:
    """Judge a token by a mark: None when the rule accepts it, else why not."""
    if accepts(rule, mark, token):
        return None
    return Spent(resource, token, mark) if mark == token else Stale(resource, token, mark)


def unissued(resource: str, token: Token, issued: int, source: str) -> Unissued | None:
    """Compare a token with the highest that the table's source has issued: `fencepost.require_issued` (R12)."""
    return Unissued(resource, token, issued, source) if token > issued else None


def beyond(
    resource: str, token: Token, mark: int, floor: int, max_token: int | None, max_jump: int | None
) -> BeyondCeiling | None:
    """Compare a token with the ceiling of an external table: `fencepost.beyond` (R12). A token that raises nothing is
    left to the mark, whose refusal is more exact.
    """
    if token <= mark:
        return None
    if max_token is not None and token > max_token:
        return BeyondCeiling(resource, token, max_token)
    base = max(mark, floor)
    if max_jump is not None and token - base > max_jump:
        return BeyondCeiling(resource, token, base + max_jump, max_jump)
    return None
