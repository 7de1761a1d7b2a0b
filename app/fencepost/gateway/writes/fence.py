"""R5, as a loop: a conditional write that matched no row asks why, and is tried again when the answer is "it would".

1. The conditional statement runs. A row came back: accepted, and committed.
2. No row: the next statement asks for the live row's mark and for the mark of a key without a row.
3. A mark refuses the token: stale or spent. It stays true however late it is said, because marks never fall.
4. The table's source has not issued the token yet, or it is above the ceiling of an external table: so it is told,
   whether or not there is a row (R12). Where the statement of 1 did meet a row, its trigger has said so, as FP018.
5. No row and no mark that refuses: missing.
6. A live row with a mark that lets the token pass: the row was deleted and made anew between 1 and 2. Again, bounded.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from fencepost.fencing.problem_types import DATABASE_UNAVAILABLE
from fencepost.fencing.problems import Problem, problem_of
from fencepost.fencing.token import Token
from fencepost.fencing.verdict import MissingRow, Refusal, beyond, refusal, unissued
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import translated
from fencepost.storage.statements.fenced import FencedRow, Key, Standing, ask
from fencepost.storage.tables.catalog import Fence, ProtectedTable

ROUNDS: Final = 10

Write = Callable[[Connection, bool], Awaitable[FencedRow | None]]
"""A conditional write. The bool asks for care: it locks the row first, and undoes itself if something then keeps the
row from being written. The first try does without, unless the catalog knows of such a trigger."""


def judge(standing: Standing, fence: Fence, token: Token) -> Refusal | MissingRow | None:
    """Read the answer to R5's question; None says: write again."""
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


async def write_or_ask(
    connection: Connection,
    table: ProtectedTable,
    key: Key,
    token: Token,
    write: Write,
) -> FencedRow | Refusal | MissingRow | Problem:
    """Run a conditional single-row write until it is decided."""
    resource = ""
    for number in range(ROUNDS):
        with translated(writing=True):
            row = await write(connection, number > 0)
        if row is not None:
            return row
        with translated(writing=False):
            standing = await ask(connection, table, key)
        verdict = judge(standing, table.fence, token)
        if verdict is not None:
            return verdict
        resource = standing.resource
    if table.row_security:
        return MissingRow(resource)  # we may see the row, and a policy keeps us from writing it
    return contended(resource)


def contended(resource: str) -> Problem:
    """Give up without a verdict: the row comes and goes faster than it can be met, or a trigger eats the writes."""
    return Problem(
        DATABASE_UNAVAILABLE,
        f"{resource} would take the token, and yet {ROUNDS} tries in a row did not reach it: it is deleted and made"
        " anew all the time, or something keeps it from being written.",
        resource=resource,
        retry_after=1,
    )


def refused(verdict: Refusal | MissingRow | Problem, fence: Fence) -> Problem:
    """Tell a verdict as a problem."""
    return verdict if isinstance(verdict, Problem) else problem_of(verdict, fence.rule)
