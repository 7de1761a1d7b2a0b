"""One write, from a connection to its outcome: transaction, retries, and what happens when it is not decided at once.

Every write of every verb that is decided alone comes through `perform`. What an attempt does on a connection, its
`Operation` says. It may be run several times, each time from the start:

- after a deadlock or a serialization failure, verdict and all (R4);
- inside a transaction when it needs several statements, or has an Idempotency-Key, or a sealed token.
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

A row has a mark of its own, which the statement that writes it compares with the token (R1); why a row was not reached
is asked of it (attempt.py). Or it shares that of its scope, of which there is one for many rows (R8). Then an attempt
is one transaction, in this order:

1. the scopes: read from the rows, without a lock (their columns never change), or rendered from key and body;
2. enter them, in a statement of its own: their marks are judged and raised, sorted; who holds them is waited for;
3. the write, in a later statement: it sees all that older holders have committed, and is bound to the scopes entered.

In a batch, 1 and 2 are one statement for all of its writes (postgres/scopes.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fencepost.server.fence.problem_types import OUTCOME_UNKNOWN
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.seal import Binding
from fencepost.server.fence.token import Token, shown_mark
from fencepost.server.gateway.attempt import Batched, WriteQueues, in_a_batch
from fencepost.server.gateway.gateway import Gateway, elsewhere
from fencepost.server.gateway.group_commit import HELD, Alone, Broken
from fencepost.server.gateway.idempotency import IdempotentRequest, landed_meanwhile, look_up, record
from fencepost.server.gateway.outcomes import Done, Outcome, busy
from fencepost.server.gateway.write import NO_BODY, Body, KeyCheck, enter, refused_scope, with_column
from fencepost.server.postgres import connection as backends
from fencepost.server.postgres import scopes as scope_statements
from fencepost.server.postgres.connection import Key, RowWrite, Session
from fencepost.server.postgres.database import as_gateway, in_transaction
from fencepost.server.postgres.errors import (
    OutcomeUnknownError,
    RefusedError,
    RoleError,
    UnavailableError,
    UncommittedError,
)
from fencepost.server.postgres.marks import KeyState, keys_may_change, read_resource
from fencepost.server.postgres.query import NO_QUERY, Query
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import ProtectedTable

_NOT_ASKED: Final = "the outcome could not be asked for: {}"
HOW_TO_ASK: Final = "Ask GET /v1/fences?resource=…, or read the row."


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the marks show of a write without a key whose outcome is unknown. `landed` None: they do not show it."""

    landed: bool | None
    resource: str | None = None
    mark: int | None = None


@dataclass(slots=True, kw_only=True)
class Operation(ABC):
    """What a request does to a table: a verb, with the request's own values."""

    table: ProtectedTable
    row: RowWrite
    """Its values. The key is empty where it is none of a row of the table."""
    body: Body = NO_BODY
    once: IdempotentRequest | None = None
    """The request's Idempotency-Key."""
    binding: Binding | None = None
    """What the token's seal is bound to; None: it has none."""
    query: Query = NO_QUERY
    """What it selects, and by which filters."""
    key_check: KeyCheck | None = None
    """What is to be checked of its key; None: nothing."""
    entered: list[str] = field(init=False)
    """The scopes whose marks the last attempt raised, sorted."""

    def __post_init__(self) -> None:
        """A batch may have entered a scope before."""
        self.entered = [self.row.scope] if self.row.scope else []

    @property
    def runs_code(self) -> bool:
        """Whether it may run code of users', which may change the session."""
        return self.table.runs_code

    @abstractmethod
    async def write(self, session: Session) -> Outcome:
        """Write, to rows that have marks of their own, or whose scopes (`row.scopes`) were entered."""

    async def scopes(self, session: Session, scope: Scope) -> list[str] | Outcome:
        """Find the scopes to enter, of the table's `scope`, without locks; or what makes it needless."""
        raise NotImplementedError(f"{self.table.name}: it was not expected to have a scope")

    def refused(self, by: Sequence[Entered]) -> Problem:
        """Give the answer when scopes were not entered."""
        return refused_scope(self.table, by[0], self.row.token)

    async def explain(self, _session: Session, _error: RefusedError) -> Problem | None:
        """Explain a refusal of PostgreSQL's by rows' own marks, after everything was undone; None: it is answered as it
        is.
        """
        return None

    async def evidence(self, _session: Session) -> Evidence:
        """Ask rows' own marks whether an attempt can have landed, when its backend is gone."""
        return Evidence(None)

    @property
    def how_to_ask(self) -> str:
        """Say how a client finds out by rows' own marks whether it landed, when the connection has broken and there was
        no key.
        """
        return HOW_TO_ASK

    def written(self, done: Done) -> Sequence[str]:
        """Name the resources that have marks of their own and were written, or claimed, by what an attempt came to."""
        return (done.resource,)


async def decide_alone(
    gateway: Gateway, operation: Operation, queues: WriteQueues | None, write: Batched, why: Alone | Broken
) -> Outcome:
    """Decide by itself what no batch of `queues` has decided; where its row is locked, when its turn comes."""
    if isinstance(why, Broken):
        return await perform(gateway, operation, after=why)
    if why is not HELD:
        return await perform(gateway, operation)
    # The rows of POSTs have no name yet, and wait for each other only where PostgreSQL makes them.
    row = write.row.scope or ((operation.table.oid, write.row.key) if write.row.key else write)
    turns = gateway.turns if gateway.share is None else gateway.share.turns
    async with turns.of(row) as mine:
        if mine:
            return await perform(gateway, operation)
    # Others had all turns, for locks of theirs. This row may be free by now.
    answer = await in_a_batch(gateway, queues, write)
    if not isinstance(answer, Alone | Broken):
        return answer
    if answer is HELD:
        return busy(operation.table, write.row.key)
    return await decide_alone(gateway, operation, None, write, answer)


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
        evidence = await _evidence(connection, operation)
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
            # The scopes' marks were judged before; rows have none.
            own_marks = operation.table.fence.scope is None
            problem = await operation.explain(connection, error) if own_marks else None
            if problem is None:
                raise
            return problem


async def _once(connection: Session, operation: Operation) -> Outcome:
    once = operation.once
    whole = operation.binding is not None or operation.table.fence.scope is not None
    if once is None and not whole and not connection.is_in_transaction():
        return await _check_and_write(connection, operation)
    while True:
        try:
            return await in_transaction(connection, lambda: _attempted(connection, operation))
        except RefusedError as error:
            if once is None or not landed_meanwhile(error):
                raise


async def _attempted(connection: Session, operation: Operation) -> Outcome:
    """Attempt it in the transaction that is open."""
    once, binding = operation.once, operation.binding
    if once is not None and (known := await look_up(connection, once)) is not None:
        return known
    outcome = await _check_and_write(connection, operation)
    if isinstance(outcome, Problem):
        return outcome
    if once is not None:
        await record(connection, once, outcome)
    if binding is not None:
        written = operation.entered if operation.table.fence.scope is not None else operation.written(outcome)
        return elsewhere(binding, operation.row.token, written) or outcome
    return outcome


async def _check_and_write(connection: Session, operation: Operation) -> Outcome:
    """Check the key, which only PostgreSQL can tell to be unfit (QueryError), before any statement writes or locks.
    Then enter the scopes, where the table has one, and write.
    """
    table, scope, row = operation.table, operation.table.fence.scope, operation.row
    operation.entered = []
    if operation.key_check is not None:
        await operation.key_check.run(connection)
    if scope is None:
        return await operation.write(connection)
    scopes = await operation.scopes(connection, scope)
    if not isinstance(scopes, list):
        return scopes
    if scopes:
        operation.entered = sorted(scopes)
        if refused_by := await enter(connection, table, scope, scopes, row.token):
            return operation.refused(refused_by)
    row.scopes, row.scope = scopes, scopes[0] if scopes else ""
    return await operation.write(connection)


# What the marks show of a write whose connection broke: it would have raised them (R15).


async def _evidence(connection: Session, operation: Operation) -> Evidence:
    """Find out by its marks whether the write can have landed. A scope's floor that equals the token is no operation's
    mark: it may have been pruned, or was another scope's.
    """
    scope, token = operation.table.fence.scope, operation.row.token
    if scope is None:
        return await operation.evidence(connection)
    if not operation.entered:  # it broke before the marks were asked for: nothing was written yet
        return Evidence(landed=False)
    found = await scope_statements.marks(connection, scope, operation.entered)
    lowest = min(found, key=lambda each: each.mark)
    if lowest.mark < token:
        return Evidence(landed=False, resource=lowest.scope, mark=lowest.mark)
    own = next((each for each in found if each.mark == each.recorded == token), None)
    shown = own or lowest
    return Evidence(landed=True if own else None, resource=shown.scope, mark=shown.mark)


async def row_evidence(
    connection: Session, table: ProtectedTable, key: Key, token: Token, *, creates: bool = False
) -> Evidence:
    """Decide by a key's mark whether a write with this token can have landed.

    `creates`: the write may have made a row, and then a trigger may have given it another key.
    """
    if table.row_security or (creates and await keys_may_change(connection, table)):
        return Evidence(None)  # a policy may hide the row, and the row's mark with it
    found = await read_resource(connection, table, key)
    return _by_mark(found.resource, max(found.live or 0, found.recorded or 0), token)


def rows_evidence(states: Sequence[KeyState], token: Token) -> Evidence:
    """Decide the same for rows that were inserted together. `without_row` may be a floor: it shows no write."""
    found = [(max(s.live or 0, s.without_row or 0), s) for s in states]
    if not found:
        return Evidence(None)
    mark, state = min(found, key=lambda each: each[0])
    evidence = _by_mark(state.resource, mark, token)
    return Evidence(None) if evidence.landed and state.live != token else evidence


def _by_mark(resource: str, mark: int, token: Token) -> Evidence:
    return Evidence(landed=False if mark < token else (True if mark == token else None), resource=resource, mark=mark)


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
        how = operation.how_to_ask if operation.table.fence.scope is None else HOW_TO_ASK
        hint = f"{how} With an Idempotency-Key such a request can be repeated."
    return Problem(
        OUTCOME_UNKNOWN,
        f"It is not known whether the write landed{', or will' if may_still_land else ''}: {error}",
        hint=hint,
        resource=evidence.resource,
        current_token=shown,
        extra={"known": known},
    )
