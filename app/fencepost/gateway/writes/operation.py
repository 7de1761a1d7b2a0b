"""One write, from a connection to its outcome: transaction, retries, and what happens when it is not decided at once.

Every write of every verb that is decided alone comes through `perform`. `Operation.attempt` is what the verb does on a
connection; it may be run several times, each time from the start:

- after a deadlock or a serialization failure, verdict and all (R4);
- inside a transaction when it needs several statements, or has an Idempotency-Key (idempotency.py). A refusal rolls
  that back: an answer that is no success has no effect. A connection that breaks before COMMIT was sent has none
  either;
- when the connection broke before the answer, and so the outcome is unknown (R15). Then, on another connection to the
  same system and timeline (another one may lack what was committed here),
  1. the old backend is ended, and it is made sure that it is gone: until then it may still commit;
  2. with a key, the attempt is run again: its look-up finds the record if the write landed;
     without one, it is run again only if the marks say that it cannot have landed: a mark never falls, and the write
     would have raised it. Else the answer is outcome-unknown, with what is known: no 409 or 404 is given that might be
     the echo of the write itself.
"""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from fencepost.fencing.problem_types import OUTCOME_UNKNOWN
from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Outcome
from fencepost.gateway.refusals import RETRY_AFTER
from fencepost.gateway.writes.culprit import HasColumns, with_column
from fencepost.gateway.writes.idempotency import IdempotentRequest, attempt_keyed, landed_meanwhile
from fencepost.storage.batches.batch_queue import Broken
from fencepost.storage.connections import backends
from fencepost.storage.connections.connection import Connection, GatewayConnection, gateway_connection
from fencepost.storage.connections.engine import retry_conflicts
from fencepost.storage.errors import OutcomeUnknownError, RefusedError, UnavailableError, UncommittedError, map_errors
from fencepost.storage.statements.parameters import RowWrite
from fencepost.storage.tables.catalog import ProtectedTable

RESOLVED_WITHIN: Final = 10.0
"""Seconds that an unknown outcome is looked into before the answer is that it is unknown."""
PAUSE: Final = 0.1
"""Seconds before the database is asked again when it could not be reached, or ended the connection again."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the marks say of a write without a key whose outcome is unknown. `landed` None: they do not say."""

    landed: bool | None
    resource: str | None = None
    mark: int | None = None


@dataclass(slots=True, kw_only=True)
class Operation(ABC):
    """What a request does to a table: a verb, with the request's own values."""

    table: ProtectedTable
    row: RowWrite
    """Its values. The key is empty where it is none of a row of the table."""
    body: HasColumns | None = None
    once: IdempotentRequest | None = None
    """The request's Idempotency-Key."""

    @property
    def in_transaction(self) -> bool:
        """Whether an attempt is several statements that must be one."""
        return False

    @abstractmethod
    async def attempt(self, connection: Connection) -> Outcome:
        """Do it, from the start."""

    async def explain(self, _connection: Connection, _error: RefusedError) -> Problem | None:
        """Explain a refusal of PostgreSQL's, after everything was undone; None: it is answered as it is."""
        return None

    async def evidence(self, _connection: Connection) -> Evidence:
        """Ask the marks whether an attempt can have landed, when its backend is gone."""
        return Evidence(None)


class _Refused(Exception):  # noqa: N818 - it is not an error; it rolls a transaction back
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


async def perform(gateway: Gateway, operation: Operation, after: Broken | None = None) -> Outcome:
    """Run an operation until it is decided, or it is certain that it cannot be known how it ended.

    `after`: it was tried in a batch already, which broke.
    """
    loop = asyncio.get_running_loop()
    unknown: OutcomeUnknownError | None = after.error if after is not None else None
    broken: GatewayConnection | None = after.connection if after is not None else None
    deadline = 0.0 if after is None else loop.time() + RESOLVED_WITHIN
    while True:
        try:
            async with gateway.database.connection(writing=True) as connection:
                if unknown is not None and broken is not None:
                    if (settled := await _settle(connection, operation, unknown, broken)) is not None:
                        return settled
                    broken = None  # only now: whatever breaks before is asked again
                mine = gateway_connection(connection)
                try:
                    return await _decide(connection, operation)
                except OutcomeUnknownError:
                    broken = mine
                    raise
        except OutcomeUnknownError as error:
            pause = 0.0 if unknown is None else PAUSE
            deadline = deadline or loop.time() + RESOLVED_WITHIN
            # With a key, what came before is settled only by a look-up that was answered.
            if unknown is None or operation.once is None or not isinstance(error, UncommittedError):
                unknown = error
        except UnavailableError:
            if unknown is None:
                raise
            pause = PAUSE
        if loop.time() > deadline:
            return _give_up(unknown, operation)
        await asyncio.sleep(pause)


async def _settle(
    connection: Connection, operation: Operation, unknown: OutcomeUnknownError, broken: GatewayConnection
) -> Problem | None:
    """End the backend of the broken connection, and find out what it did. None: it can be tried again."""
    uncommitted = isinstance(unknown, UncommittedError)
    if not uncommitted and not gateway_connection(connection).origin.same_history(broken.origin):
        return _unknown(unknown, Evidence(None), operation)
    try:
        await backends.end(connection, broken.backend)
        if uncommitted or operation.once is not None:
            return None
        with map_errors(writing=False):
            evidence = await operation.evidence(connection)
    except RefusedError as error:  # a lock or time limit: our question was refused, and not the write
        raise UnavailableError(f"the outcome could not be asked for: {error}") from error
    return None if evidence.landed is False else _unknown(unknown, evidence, operation)


def _give_up(unknown: OutcomeUnknownError, operation: Operation) -> Problem:
    if isinstance(unknown, UncommittedError):
        raise UnavailableError(f"nothing was written: {unknown}") from unknown
    return _unknown(unknown, Evidence(None), operation, may_still_land=True)


async def _decide(connection: Connection, operation: Operation) -> Outcome:
    async with with_column(connection, operation.table, operation.body, operation.row.key):
        try:
            return await retry_conflicts(lambda: _once(connection, operation))
        except RefusedError as error:
            problem = await operation.explain(connection, error)
            if problem is None:
                raise
            return problem


async def _once(connection: Connection, operation: Operation) -> Outcome:
    once = operation.once
    if once is None and not operation.in_transaction:
        outcome = await operation.attempt(connection)
        gateway_connection(connection).require_replicated()
        return outcome
    while True:
        committing = False
        try:
            with map_errors(writing=True):
                async with connection.transaction():
                    outcome = await (
                        attempt_keyed(connection, once, operation.attempt) if once else operation.attempt(connection)
                    )
                    if isinstance(outcome, Problem):
                        raise _Refused(outcome)  # noqa: TRY301 - leaving the block is what undoes it
                    committing = True
                gateway_connection(connection).require_replicated()
                return outcome
        except _Refused as refused:
            return refused.problem
        except OutcomeUnknownError as error:
            if committing:
                raise
            raise UncommittedError(str(error)) from error
        except RefusedError as error:
            if once is None or not landed_meanwhile(error):
                raise


def _unknown(
    error: OutcomeUnknownError, evidence: Evidence, operation: Operation, *, may_still_land: bool = False
) -> Problem:
    known = None
    if evidence.resource is not None and evidence.mark is not None:
        meaning = (
            "A write with this token was accepted. If it was used for this request only, the request landed."
            if evidence.landed
            else "A newer token has written since; whether this request landed before that is not known."
        )
        known = {"resource": evidence.resource, "mark": str(evidence.mark), "meaning": meaning}
    if operation.once is not None:
        hint = "Repeat the request with the same Idempotency-Key: it is done once."
    elif may_still_land:
        hint = "It may land yet: claim the resource with a newer token, and read what the claim returns."
    else:
        hint = "Ask GET /v1/fences?resource=…, or read the row. With an Idempotency-Key such a request can be repeated."
    return Problem(
        OUTCOME_UNKNOWN,
        f"It is not known whether the write landed{', or will' if may_still_land else ''}: {error}",
        hint=hint,
        resource=evidence.resource,
        current_token=evidence.mark,
        retry_after=RETRY_AFTER,
        extra={"known": known},
    )
