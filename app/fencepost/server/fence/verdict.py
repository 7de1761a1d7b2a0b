"""The fence's verdicts. Refusals are values; exceptions are for broken machinery.

The comparisons here are those of migrations/schema, judging.sql and bounds.sql: tests/integration/test_one_rule.py
holds both against each other. Python does not know the oldest token of a generation: the triggers refuse what is below.
"""

from dataclasses import dataclass

from fencepost.server.fence.token import Rule, Token, accepts


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
