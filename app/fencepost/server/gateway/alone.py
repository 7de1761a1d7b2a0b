"""One write, from a connection to its outcome: transaction, retries, and what happens when it is not decided at once.

Every write of every verb that is decided alone comes through `perform`. What an attempt does on a connection, the verb
(`Operation`) and its marks (`Marks`) say. It may be run several times, each time from the start:

- after a deadlock or a serialization failure, verdict and all (R4);
- inside a transaction when it needs several statements, or has an Idempotency-Key (`attempt_keyed`), or a sealed token.
  A refusal rolls that back: an answer that is no success has no effect. A connection that breaks before COMMIT was sent
  has none either. With a seal, the resources that were written are compared with what it is bound to, last: only then
  is known which they are, of a filter, of an array, of a row to which a trigger gave its key;
- when the connection broke before the answer, and so the outcome is unknown (R15). Then, on another connection to the
  same system and timeline (another one may lack what was committed here),
  1. the old backend is ended, and it is made sure that it is gone: until then it may still commit;
  2. with a key, the attempt is run again: its look-up finds the record if the write landed;
     without one, it is run again only if the marks show that it cannot have landed: a mark never falls, and the write
     would have raised it. Else the answer is outcome-unknown, with what is known: no 409 or 404 is given that might be
     the echo of the write itself.
"""

from collections.abc import Awaitable
from typing import Final

from fencepost.server.fence.problem_types import OUTCOME_UNKNOWN
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.token import shown_mark
from fencepost.server.gateway.gateway import Gateway, elsewhere
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.refusals import RETRY_AFTER
from fencepost.server.gateway.rounds import Evidence, Operation, Replayed, attempt_keyed, landed_meanwhile
from fencepost.server.gateway.write import with_column
from fencepost.server.postgres import connection as backends
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import as_gateway, in_transaction
from fencepost.server.postgres.errors import (
    OutcomeUnknownError,
    RefusedError,
    RoleError,
    UnavailableError,
    UncommittedError,
)
from fencepost.server.postgres.group_commit import Broken

_NOT_ASKED: Final = "the outcome could not be asked for: {}"


async def perform(gateway: Gateway, operation: Operation, after: Broken | None = None) -> Outcome:
    """Run an operation until it is decided, or it is certain that it cannot be known how it ended; or as a part of the
    transaction that it belongs to (gateway/atomic.py).

    `after`: it was tried in a batch already, which broke.
    """
    if gateway.together is None:
        return await _until_decided(gateway, operation, after)
    async with gateway.together.part(gateway.caller, runs_code=operation.runs_code) as connection:
        return await _decide(connection, operation)


async def _until_decided(gateway: Gateway, operation: Operation, after: Broken | None) -> Outcome:
    times, clock = gateway.times.requests, gateway.times.clock
    unknown: OutcomeUnknownError | None = after.error if after is not None else None
    broken: Session | None = after.connection if after is not None else None
    deciding: Session | None = None
    deadline = 0.0 if after is None else clock.monotonic() + times.resolve_within

    async def decide(connection: Session) -> Outcome:
        nonlocal broken, deciding
        if unknown is not None and broken is not None:
            async with as_gateway(connection, gateway.caller):  # whose backend it was
                ended = await _end(gateway, connection, unknown, broken)
            if (settled := await _settle(connection, operation, unknown, ended=ended)) is not None:
                return settled
            broken = None  # only now: whatever breaks before is asked again
        deciding = connection
        return await _decide(connection, operation)

    while True:
        deciding = None
        try:
            return await gateway.run_write(decide, runs_code=operation.runs_code)
        except OutcomeUnknownError as error:
            broken = deciding or broken
            pause = 0.0 if unknown is None else times.resolve_pause
            deadline = deadline or clock.monotonic() + times.resolve_within
            # With a key, what came before is settled only by a look-up that was answered.
            if unknown is None or operation.once is None or not isinstance(error, UncommittedError):
                unknown = error
        except (UnavailableError, RoleError):  # also of a role that was allowed when it was written
            if unknown is None:
                raise
            pause = times.resolve_pause
        if clock.monotonic() > deadline:
            return _give_up(unknown, operation)
        await clock.sleep(pause)


async def _end(gateway: Gateway, connection: Session, unknown: OutcomeUnknownError, broken: Session) -> bool:
    """End the backend of the broken connection. False: it is one of another history, where nothing can be asked."""
    uncommitted = isinstance(unknown, UncommittedError)
    if not uncommitted and not connection.origin.same_history(broken.origin):
        return False
    try:
        await backends.end(connection, broken.backend, gateway.times.connections.end_backend_within)
    except RefusedError as error:
        raise UnavailableError(_NOT_ASKED.format(error)) from error
    return True


async def _settle(
    connection: Session, operation: Operation, unknown: OutcomeUnknownError, *, ended: bool
) -> Problem | None:
    """Find out what a backend did that was ended. None: it can be tried again."""
    if not ended:
        return _unknown(unknown, Evidence(None), operation)
    if isinstance(unknown, UncommittedError) or operation.once is not None:
        return None
    try:
        evidence = await operation.marks.evidence(connection, operation)
    except RefusedError as error:  # a lock or time limit: our question was refused, and not the write
        raise UnavailableError(_NOT_ASKED.format(error)) from error
    return None if evidence.landed is False else _unknown(unknown, evidence, operation)


def _give_up(unknown: OutcomeUnknownError, operation: Operation) -> Problem:
    if isinstance(unknown, UncommittedError):
        raise UnavailableError(f"nothing was written: {unknown}") from unknown
    return _unknown(unknown, Evidence(None), operation, may_still_land=True)


async def _decide(connection: Session, operation: Operation) -> Outcome:
    async with with_column(connection, operation.table, operation.body, operation.row.key, operation.query):
        try:
            return await _once(connection, operation)
        except RefusedError as error:
            problem = await operation.marks.explain(connection, operation, error)
            if problem is None:
                raise
            return problem


async def _once(connection: Session, operation: Operation) -> Outcome:
    once = operation.once
    whole = operation.binding is not None or operation.marks.in_transaction
    if once is None and not whole and not connection.is_in_transaction():
        return await operation.marks.attempt(connection, operation)
    while True:
        try:
            return await in_transaction(connection, lambda: _attempted(connection, operation))
        except RefusedError as error:
            if once is None or not landed_meanwhile(error):
                raise


async def _attempted(connection: Session, operation: Operation) -> Outcome:
    """Attempt it in the transaction that is open."""

    def attempt(connection: Session) -> Awaitable[Outcome]:
        return operation.marks.attempt(connection, operation)

    once, binding = operation.once, operation.binding
    outcome = await (attempt(connection) if once is None else attempt_keyed(connection, once, attempt))
    if binding is not None and isinstance(outcome, Done) and not isinstance(outcome, Replayed):
        written = operation.marks.written(operation, outcome)
        return elsewhere(binding, operation.row.token, written) or outcome
    return outcome


def _unknown(
    error: OutcomeUnknownError, evidence: Evidence, operation: Operation, *, may_still_land: bool = False
) -> Problem:
    known = None
    # Its own token is the caller's; a newer one may be a living holder's.
    mark = evidence.mark
    shown = mark if evidence.landed or mark is None else shown_mark(operation.table.fence.rule, mark)
    if evidence.resource is not None and evidence.mark is not None:
        meaning = (
            "A write with this token was accepted. If it was used for this request only, the request landed."
            if evidence.landed
            else "A newer token has written since; whether this request landed before that is not known."
        )
        known = {
            "resource": evidence.resource,
            "mark": None if shown is None else str(shown),
            "meaning": meaning,
        }
    if operation.once is not None:
        hint = "Repeat the request with the same Idempotency-Key: it is done once."
    elif may_still_land:
        hint = "It may land yet: claim the resource with a newer token, and read what the claim returns."
    else:
        hint = f"{operation.marks.how_to_ask(operation)} With an Idempotency-Key such a request can be repeated."
    return Problem(
        OUTCOME_UNKNOWN,
        f"It is not known whether the write landed{', or will' if may_still_land else ''}: {error}",
        hint=hint,
        resource=evidence.resource,
        current_token=shown,
        retry_after=RETRY_AFTER,
        extra={"known": known},
    )
