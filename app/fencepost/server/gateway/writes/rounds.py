"""R5, as a loop: a conditional write that reached no row asks why, and is tried again when the answer is "it would".

1. The conditional statement runs. A row came back: accepted.
2. No row: the next statement asks for the live row's mark and for the mark of a key without a row.
3. A mark refuses the token: stale or spent. It stays true however late it is answered, because marks never fall.
4. The table's source has not issued the token yet, or it is above the ceiling of an external table: that is the answer,
   whether or not there is a row (R12). Where the statement of 1 did meet a row, its trigger has refused it as FP018.
5. No row and no mark that refuses: missing. PUT creates the row, a claim raises the mark of the key.
6. Nothing refuses, and yet nothing was written: the row was deleted and made anew between 1 and 2, or created between 2
   and 5; in a batch, another transaction holds it. Again, bounded.

`round_of` is one round, for all writes of a batch; a batch leaves step 6 to group commit, which sends such a write with
another batch. A write that is decided alone is a batch of one whose statements may wait, round after round:
`decide_alone`. What the statements are, and what is created, is the verb's (verbs.py). `judge` reads the answer to
step 2.
"""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Final, Protocol

from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE
from fencepost.server.fence.problems import Problem, problem_of
from fencepost.server.fence.token import MissingRow, Refusal, Token, beyond, refusal, unissued
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import StorageError, map_errors
from fencepost.server.postgres.group_commit import ALONE, Alone
from fencepost.server.postgres.keyed import Wait
from fencepost.server.postgres.marks import KeyState
from fencepost.server.postgres.row_sql import RowWrite
from fencepost.server.postgres.tables import Fence, ProtectedTable

ROUNDS: Final = 10
"""How often a write that nothing refuses is tried before it is given up."""

Answer = Outcome | Alone
Verdict = Refusal | MissingRow | Problem | Alone
"""Why a write reached no row. AGAIN: nothing refuses it; ALONE: it cannot be known here."""


class Steps(Protocol):
    """What the loop runs for writes of one verb. Each step answers for each write, in the order given."""

    @property
    def table(self) -> ProtectedTable: ...

    @property
    def creates(self) -> bool:
        """Whether a missing row is created."""

    async def write(self, connection: Connection, writes: Sequence[RowWrite], number: int) -> list[Answer]:
        """Write what the marks let pass; ALONE: no row was reached. `number` counts the rounds from 0."""

    async def ask(self, connection: Connection, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Find out why rows were not reached."""

    async def create(
        self, connection: Connection, missing: Sequence[tuple[RowWrite, MissingRow]], number: int
    ) -> Sequence[Answer]:
        """Create what is missing; ALONE: something was in the way."""

    async def never_reached(self, connection: Connection, write: RowWrite) -> Outcome:
        """Give a write up that nothing refuses and that reached no row in ROUNDS rounds."""


class RowSteps(Steps, Protocol):
    """What marks ask the steps of a verb when rows were not reached (marks.py)."""

    @property
    def wait(self) -> Wait:
        """What its statements do about a row that is held."""

    async def ask_rows(self, connection: Connection, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Ask the rows' own marks: step 2 above."""

    def absent(self, writes: Sequence[RowWrite]) -> Sequence[Problem]:
        """Answer as if there were no such rows."""


async def decide_alone(connection: Connection, steps: Steps, write: RowWrite) -> Outcome:
    """Run rounds of a single write until it is decided."""
    for number in range(ROUNDS):
        (answer,) = await round_of(connection, steps, (write,), number)
        if not isinstance(answer, Alone):
            return answer
    with map_errors(writing=connection.is_in_transaction()):
        return await steps.never_reached(connection, write)


async def round_of(
    connection: Connection, steps: Steps, writes: Sequence[RowWrite], number: int = 0, *, committed: bool = False
) -> Sequence[Answer]:
    """Write, ask, create. `committed`: what the first statement writes is committed at once, in a batch without a
    transaction; whatever goes wrong after it concerns only the writes that are left, and is found out alone.
    """
    with map_errors(writing=True):
        answers = await steps.write(connection, writes, number)
    with suppress(StorageError) if committed else nullcontext():
        await _ask_and_create(connection, steps, writes, answers, number)
    return answers


async def _ask_and_create(
    connection: Connection, steps: Steps, writes: Sequence[RowWrite], answers: list[Answer], number: int
) -> None:
    """Answer the writes that reached no row: their answers are ALONE."""
    left = [n for n, answer in enumerate(answers) if answer is ALONE]
    if not left:
        return
    with map_errors(writing=connection.is_in_transaction()):
        verdicts = await steps.ask(connection, [writes[n] for n in left])
    missing: list[tuple[int, MissingRow]] = []
    for n, verdict in zip(left, verdicts, strict=True):
        if isinstance(verdict, Alone):
            answers[n] = verdict
        elif isinstance(verdict, MissingRow) and steps.creates:
            missing.append((n, verdict))
        else:
            answers[n] = problem_of_verdict(verdict, steps.table.fence)
    if missing:
        with map_errors(writing=True):
            created = await steps.create(connection, [(writes[n], verdict) for n, verdict in missing], number)
        for (n, _), answer in zip(missing, created, strict=True):
            answers[n] = answer


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
