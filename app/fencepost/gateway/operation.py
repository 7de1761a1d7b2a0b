"""One write, from a connection to its outcome: transaction, retries, and what happens when it is not decided at once.

Every write of every verb comes through `perform`. `attempt` says what the verb does on a connection; it may be run
several times, each time from the start:

- after a deadlock or a serialization failure, verdict and all (R4);
- inside a transaction when it needs several statements. A refusal rolls that back: an answer that is no success has no
  effect.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fencepost.fencing.problems import Problem
from fencepost.gateway.core import Gateway, Outcome
from fencepost.gateway.culprit import HasColumns, naming_the_column
from fencepost.storage.catalog import Table
from fencepost.storage.engine import Connection, retrying
from fencepost.storage.errors import RefusedError, translated
from fencepost.storage.fenced import Key

Attempt = Callable[[Connection], Awaitable[Outcome]]
Explain = Callable[[Connection, RefusedError], Awaitable[Problem | None]]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a request wants done to a table."""

    table: Table
    attempt: Attempt
    transaction: bool = False
    """Whether `attempt` is several statements that must be one."""
    body: HasColumns | None = None
    key: Key = ()
    explain: Explain | None = None
    """Asked after PostgreSQL refused and everything was undone; None: the refusal is told as it is."""


class _Refused(Exception):  # noqa: N818 - it is not an error; it rolls a transaction back
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


async def perform(gateway: Gateway, operation: Operation) -> Outcome:
    """Run an operation until it is decided."""
    async with (
        gateway.database.connection() as connection,
        naming_the_column(connection, operation.table, operation.body, operation.key),
    ):
        try:
            return await retrying(lambda: _once(connection, operation))
        except RefusedError as error:
            problem = await operation.explain(connection, error) if operation.explain else None
            if problem is None:
                raise
            return problem


async def _once(connection: Connection, operation: Operation) -> Outcome:
    if not operation.transaction:
        return await operation.attempt(connection)
    try:
        with translated(writing=True):
            async with connection.transaction():
                outcome = await operation.attempt(connection)
                if isinstance(outcome, Problem):
                    raise _Refused(outcome)  # noqa: TRY301 - leaving the block is what undoes it
                return outcome
    except _Refused as refused:
        return refused.problem
