"""What the marks say of a token, and the problem that it is answered with."""

from typing import Final

from fencepost.fencing.problem_types import DATABASE_UNAVAILABLE
from fencepost.fencing.problems import Problem, problem_of
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import MissingRow, Refusal, beyond, refusal, unissued
from fencepost.storage.statements.asking import KeyState
from fencepost.storage.tables.catalog import Fence

ROUNDS: Final = 10
"""How often a write that nothing refuses is tried (rounds.py)."""


def judge(standing: KeyState, fence: Fence, token: Token) -> Refusal | MissingRow | None:
    """Read the answer to R5's question; None: nothing refuses."""
    mark = standing.live if standing.live is not None else standing.without_row
    verdict: Refusal | None = None
    if mark is not None:
        verdict = refusal(fence.rule, standing.resource, mark, token)
    if verdict is None and not fence.pinned:
        floor = standing.without_row or 0  # beside a live row it is the table's floor
        verdict = beyond(standing.resource, token, mark or 0, floor, standing.issued, standing.max_jump)
    elif verdict is None and standing.issued is not None:
        verdict = unissued(standing.resource, token, standing.issued, fence.source)
    if verdict is None and standing.live is None:
        return MissingRow(standing.resource)
    return verdict


def problem_of_verdict(verdict: Refusal | MissingRow | Problem, fence: Fence) -> Problem:
    """Give a verdict as a problem."""
    return verdict if isinstance(verdict, Problem) else problem_of(verdict, fence.rule)


def contended(resource: str) -> Problem:
    """Give up without a verdict: the row comes and goes faster than it can be met, or a trigger eats the writes."""
    return Problem(
        DATABASE_UNAVAILABLE,
        f"{resource} would take the token, and yet {ROUNDS} tries in a row did not reach it: it is deleted and made"
        " anew all the time, or something keeps it from being written.",
        resource=resource,
        retry_after=1,
    )
