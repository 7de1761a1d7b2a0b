"""What an answer of a gateway says of an operation: it happened, it has certainly not happened, or that is unknown.

Written from the promises of docs/outcomes.md, not from the gateway's code. In doubt it is unknown: a checker allows
unknown operations to have happened and not to have happened.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from fencepost.testing.torture.holders.exchange import Answer

Reason = Literal["stale", "spent", "missing", "unissued", "held", "other"]

_REASONS: Final[dict[str, Reason]] = {
    "FP001": "stale",
    "FP002": "spent",
    "FP006": "missing",
    "FP011": "held",
    "FP018": "unissued",
}
_UNKNOWN: Final = frozenset({"FP009", "FP023"})
_GENERATION: Final = 2**48
"""A failover raises the marks of all tables that have older tokens: to the last number before those of its own. An
answer that does not show the mark (rule epoch) is sorted by merging.py, which is told when failovers were."""
_SUCCESS: Final = range(200, 300)
_FAILED: Final = 500
_CONSTRAINT: Final = re.compile("23[0-9A-Z]{3}")


@dataclass(frozen=True, slots=True)
class Refused:
    """It has certainly had no effect. `mark` where the answer names it."""

    reason: Reason
    code: str
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """It may have happened, or may still."""

    why: str


def outcome(answer: Answer) -> Answer | Refused | Unknown:
    """Sort an answer; it is returned as it is if the operation happened."""
    if answer.status in _SUCCESS:
        return answer
    problem = _problem(answer)
    code = problem.get("code")
    if not isinstance(code, str):
        return Unknown(f"{answer.status} without a code")
    if code in _UNKNOWN or (answer.status >= _FAILED and not _nothing_was_done(code, problem)):
        return Unknown(f"{answer.status} {code}")
    named = problem.get("current_token")
    mark = int(named) if isinstance(named, str) else None
    if mark is not None and _of_a_failover(mark):
        return Refused("other", code)  # the token is of an earlier generation
    return Refused(_REASONS.get(code, "other"), code, mark)


def mark_read(answer: Answer) -> int | None:
    """Give the mark that the answer to a read shows; None for one that a failover has raised."""
    return None if answer.mark is None or _of_a_failover(answer.mark) else answer.mark


def _of_a_failover(mark: int) -> bool:
    """Whether a failover has raised the mark to this: no operation of the history has."""
    return (mark + 1) % _GENERATION == 0


def _nothing_was_done(code: str, problem: dict[str, object]) -> bool:
    """Whether a 5xx promises that nothing was changed: it may be repeated, or writes are in quarantine."""
    return problem.get("retryable") is True or code in {"FP015", "FP025"} or _CONSTRAINT.fullmatch(code) is not None


def _problem(answer: Answer) -> dict[str, object]:
    try:
        body = answer.body
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
