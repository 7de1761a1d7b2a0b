"""What is attempted of a write: once under its Idempotency-Key (R16), judged by the marks of its rows or of their
scopes, in rounds that ask why a row was not reached (R5).
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE, KEY_IN_FLIGHT, KEY_REUSED
from fencepost.server.fence.problems import Problem, problem_of
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.seal import Binding
from fencepost.server.fence.token import MissingRow, Refusal, Token, beyond, refusal, unissued
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.refusals import RETRY_AFTER
from fencepost.server.gateway.write import NO_BODY, Body, IdempotencyKey, KeyCheck, Verb, enter, refused_scope
from fencepost.server.postgres import keyed, marks
from fencepost.server.postgres import scopes as scope_statements
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.errors import RefusedError, StorageError, UnavailableError, conflict
from fencepost.server.postgres.group_commit import ALONE, Alone
from fencepost.server.postgres.keyed import Change, FencedRow, Record, Recorded, State, Wait
from fencepost.server.postgres.marks import KeyState, keys_may_change, read_resource
from fencepost.server.postgres.query import NO_QUERY, Query, QueryError
from fencepost.server.postgres.row_sql import Key, RowWrite
from fencepost.server.postgres.scopes import Entered, scope_of_row
from fencepost.server.postgres.tables import Fence, ProtectedTable, Table

# Idempotency-Key (R16): a write that landed is answered again, and not done again.
#
# One transaction: 1 the key is looked up, its lock tried without waiting, and looked up again in a new statement (all
# of that is fencepost.idem_begin); 2 the write; 3 the record of its answer, last; COMMIT. So a record is there if, and
# only if, the write landed. The look-up precedes the fence: a caller that repeats a write that landed gets its answer,
# also after the lock has changed hands. Refusals are not stored, and the token is not part of the payload: a later
# holder may repeat.
#
# A message of a queue has a key, too: its id, under the caller `queue`. Its record is made in the same transaction,
# and in a batch nothing is looked up before. The fence refuses a message that comes again, because its token is not
# above the mark; where the fence lets it pass (epoch), the primary key of the records undoes the second write (23505).
# Then it is decided alone, where such a write is looked up as all others are, and answered again. A message whose
# client gave it an Idempotency-Key has both: the two records are made in one transaction, or none is.

RECORD: Final = ("fencepost", "idempotency_pkey", "23505")
"""What a second record of a key meets: schema, constraint, SQLSTATE."""
COPY: Final = ("fencepost", "idempotency_message_idx", "23505")
"""What the record of a message meets that is in its log twice."""

Render = Callable[[Done], Recorded]
"""Renders what a success is answered with, as it is kept for those who repeat the request."""


# Not frozen: it is made for each write that has a key.
@dataclass(slots=True)
class IdempotentRequest:
    """What makes a write happen once: a key, the hash of its payload, and what is kept under it."""

    key: str
    payload_hash: bytes
    render: Render
    """How its success is answered, which is kept."""
    caller: str = keyed.CALLER
    """Whose key it is: keys of two callers are two keys."""
    looked_up: bool = True
    """Whether the key is looked up before the write, also in a batch; else only alone."""
    message: "IdempotentRequest | None" = None
    """The message of a queue that carries the request, whose record is made with this one's."""

    def records(self, done: Done) -> list[Record]:
        """Give what is recorded when the write has landed, in the write's transaction."""
        own = (self.caller, self.key, self.payload_hash, self.render(done))
        return [own] if self.message is None else [own, *self.message.records(done)]


def once_of(
    key: IdempotencyKey | None,
    caller: Caller,
    table: Table,
    render: Render | None,
    message: IdempotentRequest | None = None,
) -> IdempotentRequest | None:
    """Give what makes a write happen once: its client's key, the message that carries it, both, or neither.

    `render` gives the answer of its success, which is kept; needed with a key.
    """
    if key is None:
        return message
    if render is None:
        raise RuntimeError("a write with an Idempotency-Key is recorded as it is answered")
    return IdempotentRequest(key.text, key.payload_hash, render, _whose(caller, table), message=message)


def _whose(caller: Caller, table: Table) -> str:
    """Say whose the keys are: another role that sends the same key has another one. Under row security an answer may
    depend on more than the role: there each caller has keys of its own.
    """
    if caller.role is None:
        return keyed.CALLER
    whose = f"role {caller.role}"
    return f"{whose} caller {caller.name}" if table.row_security else whose


Keeping = tuple[str, bool] | None
"""How the answers of a batch are kept: whose the keys are, and whether they are looked up before. None: they are not
kept."""


def keeping(once: IdempotentRequest | None) -> Keeping:
    """Say how a request's answer is kept."""
    return None if once is None else (once.caller, once.looked_up)


@dataclass(slots=True)
class Replayed(Done):
    """What was answered when the write landed. `of_message`: it is what the message came to that carries the request,
    and not what another request with the same key did.
    """

    answer: Recorded | None = None
    of_message: bool = False


async def attempt_keyed(
    connection: Session, once: IdempotentRequest, attempt: Callable[[Session], Awaitable[Outcome]]
) -> Outcome:
    """Attempt an idempotent write in the transaction that is open; leaving it by a Problem must roll it back."""
    if once.message is not None and (known := await _look_up(connection, once.message)) is not None:
        if isinstance(known, Replayed):
            known.of_message = True
        return known
    if (known := await _look_up(connection, once)) is not None:
        return known
    outcome = await attempt(connection)
    if not isinstance(outcome, Problem):
        for each in once.records(outcome):
            await keyed.record(connection, *each)
    return outcome


async def _look_up(connection: Session, once: IdempotentRequest) -> Replayed | Problem | None:
    try:
        return answer_of(await keyed.begin(connection, once.caller, once.key, once.payload_hash))
    except RefusedError as error:  # for example a time limit: no refusal of the write, which may have landed before
        raise UnavailableError(f"the Idempotency-Key could not be looked up: {error}") from error


def answer_of(found: Recorded | State) -> Replayed | Problem | None:
    """Answer what the look-up of a key has found; None: the write is new."""
    if isinstance(found, Recorded):
        return Replayed([], answer=found)
    match found:
        case "new":
            return None
        case "in flight":
            return Problem(
                KEY_IN_FLIGHT,
                "A request with this Idempotency-Key is being worked on.",
                hint="Wait for its answer, or repeat it after Retry-After: then its answer is there.",
                retry_after=RETRY_AFTER,
            )
        case "reused":
            return Problem(
                KEY_REUSED,
                "This Idempotency-Key was used for another request: another method, table, key, query or body.",
                hint="Every write has a key of its own.",
            )


def copied(error: RefusedError) -> bool:
    """Whether the message of a queue was decided under another id: the log has it at two offsets."""
    return (error.schema, error.constraint, error.sqlstate) == COPY


def landed_meanwhile(error: RefusedError) -> bool:
    """Whether another request with the same key has landed in spite of the lock: then its answer is ours."""
    return (error.schema, error.constraint, error.sqlstate) == RECORD


# R5, as a loop: a conditional write that reached no row asks why, and is tried again when the answer is "it would".
#
# 1. The conditional statement runs. A row came back: accepted.
# 2. No row: the next statement asks for the live row's mark and for the mark of a key without a row.
# 3. A mark refuses the token: stale or spent. It stays true however late it is answered, because marks never fall.
# 4. The table's source has not issued the token yet, or it is above the ceiling of an external table: that is the
#    answer, whether or not there is a row (R12). Where the statement of 1 did meet a row, its trigger has refused it as
#    FP018.
# 5. No row and no mark that refuses: missing. PUT creates the row, a claim raises the mark of the key.
# 6. Nothing refuses, and yet nothing was written: the row was deleted and made anew between 1 and 2, or created between
#    2 and 5; in a batch, another transaction holds it. Again, bounded.
#
# `round_of` is one round, for all writes of a batch; a batch leaves step 6 to group commit, which sends such a write
# with another batch. A write that is decided alone is a batch of one whose statements may wait, round after round:
# `decide_alone`. What the statements are, and what is created, is the verb's (keyed.py). `judge` reads the answer to
# step 2.

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

    async def write(self, connection: Session, writes: Sequence[RowWrite], number: int) -> list[Answer]:
        """Write what the marks let pass; ALONE: no row was reached. `number` counts the rounds from 0."""

    async def ask(self, connection: Session, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Find out why rows were not reached."""

    async def create(
        self, connection: Session, missing: Sequence[tuple[RowWrite, MissingRow]], number: int
    ) -> Sequence[Answer]:
        """Create what is missing; ALONE: something was in the way."""

    async def never_reached(self, connection: Session, write: RowWrite) -> Outcome:
        """Give a write up that nothing refuses and that reached no row in ROUNDS rounds."""


class RowSteps(Steps, Protocol):
    """What marks ask the steps of a verb when rows were not reached."""

    @property
    def wait(self) -> Wait:
        """What its statements do about a row that is held."""

    async def ask_rows(self, connection: Session, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Ask the rows' own marks: step 2 above."""

    def absent(self, writes: Sequence[RowWrite]) -> Sequence[Problem]:
        """Answer as if there were no such rows."""


async def decide_alone(connection: Session, steps: Steps, write: RowWrite) -> Outcome:
    """Run rounds of a single write until it is decided."""
    for number in range(ROUNDS):
        (answer,) = await round_of(connection, steps, (write,), number)
        if not isinstance(answer, Alone):
            return answer
    return await steps.never_reached(connection, write)


async def round_of(
    connection: Session, steps: Steps, writes: Sequence[RowWrite], number: int = 0, *, committed: bool = False
) -> Sequence[Answer]:
    """Write, ask, create. `committed`: what the first statement writes is committed at once, in a batch without a
    transaction; whatever goes wrong after it concerns only the writes that are left, and is found out alone.
    """
    answers = await steps.write(connection, writes, number)
    with suppress(StorageError) if committed else nullcontext():
        await _ask_and_create(connection, steps, writes, answers, number)
    return answers


async def _ask_and_create(
    connection: Session, steps: Steps, writes: Sequence[RowWrite], answers: list[Answer], number: int
) -> None:
    """Answer the writes that reached no row: their answers are ALONE."""
    left = [n for n, answer in enumerate(answers) if answer is ALONE]
    if not left:
        return
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


# What a write that is decided alone is: a verb, with a request's own values. Whose marks judge it, and so how it is
# attempted, is another matter (`Marks`).

HOW_TO_ASK: Final = "Ask GET /v1/fences?resource=…, or read the row."


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the marks show of a write without a key whose outcome is unknown. `landed` None: they do not show it."""

    landed: bool | None
    resource: str | None = None
    mark: int | None = None


@dataclass(slots=True, kw_only=True)
class Operation(ABC):
    """What a request does to a table: a verb, with the request's own values. Its `marks` use what it says of itself."""

    table: ProtectedTable
    marks: "Marks"
    """Whose marks judge it."""
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

    async def check(self, connection: Session) -> None:
        """Refuse a key that only PostgreSQL can tell to be unfit (QueryError), before any statement writes or locks."""
        if self.key_check is not None:
            await self.key_check.run(connection)

    @abstractmethod
    async def write(self, connection: Session) -> Outcome:
        """Write, to rows that have marks of their own, or whose scopes (`row.scopes`) were entered."""

    async def scopes(self, connection: Session, scope: Scope) -> list[str] | Outcome:
        """Find the scopes to enter, of the table's `scope`, without locks; or what makes it needless."""
        raise NotImplementedError(f"{self.table.name}: it was not expected to have a scope")

    def refused(self, by: Sequence[Entered]) -> Problem:
        """Give the answer when scopes were not entered."""
        return refused_scope(self.table, by[0], self.row.token)

    async def explain(self, _connection: Session, _error: RefusedError) -> Problem | None:
        """Explain a refusal of PostgreSQL's by rows' own marks, after everything was undone; None: it is answered as it
        is.
        """
        return None

    async def evidence(self, _connection: Session) -> Evidence:
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


class Marks(Protocol):
    """Whose marks judge writes to a table: what differs between a row's own and its scope's."""

    @property
    def names_rows(self) -> bool:
        """Whether rows are what is judged, and what a sealed token is for: they are named before they are written."""

    @property
    def in_transaction(self) -> bool:
        """Whether an attempt is several statements that must be one."""

    async def attempt(self, connection: Session, operation: Operation) -> Outcome: ...

    async def explain(self, connection: Session, operation: Operation, error: RefusedError) -> Problem | None:
        """Explain a refusal of PostgreSQL's, after everything was undone; None: it is answered as it is."""

    async def evidence(self, connection: Session, operation: Operation) -> Evidence:
        """Ask the marks whether an attempt can have landed, when its backend is gone."""

    def how_to_ask(self, operation: Operation) -> str:
        """Say how a client finds that out."""

    def written(self, operation: Operation, done: Done) -> Sequence[str]:
        """Name the resources whose marks let it pass, by what an attempt came to."""

    def fit_a_batch(self, table: Table, verb: Verb, change: Change) -> bool:
        """Whether a batch can have such writes judged."""

    def done(self, write: RowWrite, row: FencedRow, *, created: bool) -> Done: ...

    def answers(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None], *, created: bool) -> list[Answer]:
        """Give the answers of writes of a row each; ALONE where no row was reached."""

    def made(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None]) -> Sequence[Answer]:
        """Give the answers of writes that had to create their rows; ALONE where something was in the way."""

    async def why(self, connection: Session, steps: RowSteps, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """Find out why rows were not reached."""

    async def duplicate(
        self,
        connection: Session,
        steps: RowSteps,
        missing: tuple[RowWrite, MissingRow],
        error: RefusedError,
        number: int,
    ) -> Answer:
        """Say what it means that a key was taken when a row was to be created, in this round; the error, raised again,
        if it is the request's own.
        """

    async def given_up(self, connection: Session, steps: RowSteps, write: RowWrite) -> Outcome:
        """Give up a write that nothing refuses and that reached no row."""


async def row_evidence(
    connection: Session, table: ProtectedTable, key: Key, token: Token, *, creates: bool = False
) -> Evidence:
    """Decide by a key's mark whether a write with this token can have landed: it would have raised the mark (R15).

    `creates`: the write may have made a row, and then a trigger may have given it another key.
    """
    if table.row_security or (creates and await keys_may_change(connection, table)):
        return Evidence(None)  # a policy may hide the row, and the row's mark with it
    found = await read_resource(connection, table, key)
    return _evidence(found.resource, max(found.live or 0, found.recorded or 0), token)


def rows_evidence(standings: Sequence[KeyState], token: Token) -> Evidence:
    """Decide the same for rows that were inserted together. `without_row` may be a floor: it shows no write."""
    found = [(max(s.live or 0, s.without_row or 0), s) for s in standings]
    if not found:
        return Evidence(None)
    mark, standing = min(found, key=lambda each: each[0])
    evidence = _evidence(standing.resource, mark, token)
    return Evidence(None) if evidence.landed and standing.live != token else evidence


def _evidence(resource: str, mark: int, token: Token) -> Evidence:
    return Evidence(landed=False if mark < token else (True if mark == token else None), resource=resource, mark=mark)


# Whose marks judge a write: its rows' own, or those of their scopes. What differs between the two stands here.
#
# A row has a mark of its own, which the statement that writes it compares with the token (R1); why a row was not
# reached is asked of it (R5).
#
# Or it shares that of its scope, of which there is one for many rows (R8). Then an attempt is one transaction, in this
# order:
#
# 1. the scopes: read from the rows, without a lock (their columns never change), or rendered from key and body;
# 2. enter them, in a statement of its own: their marks are judged and raised, sorted; who holds them is waited for;
# 3. the write, in a later statement: it sees all that older holders have committed, and is bound to the scopes
#    entered.
#
# So there is nothing left to ask when 3 reaches no row: it is missing, was deleted, or made anew in another scope.
# Everything is rolled back, the marks too, and starts over as after a serialization failure. A refusal rolls back as
# well (alone.py). In a batch, 1 and 2 are one statement for all of its writes (postgres/scopes.py).

BELIEVED_ROUNDS: Final = 2
"""In how many rounds a duplicate of a partition counts as the row's own key, without a look."""


def marks_of(table: ProtectedTable) -> Marks:
    """Say whose marks judge the writes to a table."""
    scope = table.fence.scope
    return OWN_MARKS if scope is None else ScopeMarks(scope)


class OwnMarks:
    """Each row has one."""

    names_rows: ClassVar = True
    in_transaction: ClassVar = False

    async def attempt(self, connection: Session, operation: Operation) -> Outcome:
        await operation.check(connection)
        return await operation.write(connection)

    async def explain(self, connection: Session, operation: Operation, error: RefusedError) -> Problem | None:
        return await operation.explain(connection, error)

    async def evidence(self, connection: Session, operation: Operation) -> Evidence:
        return await operation.evidence(connection)

    def how_to_ask(self, operation: Operation) -> str:
        """Have the rows' asked for."""
        return operation.how_to_ask

    def written(self, operation: Operation, done: Done) -> Sequence[str]:
        return operation.written(done)

    def fit_a_batch(self, _table: Table, _verb: Verb, _change: Change) -> bool:
        """Rows are judged wherever they are written."""
        return True

    def done(self, _write: RowWrite, row: FencedRow, *, created: bool) -> Done:
        """Answer with the row's mark, and its name where it was asked for."""
        return Done((row.json,), row.mark, created, resource=row.resource)

    def answers(self, _writes: Sequence[RowWrite], rows: Sequence[FencedRow | None], *, created: bool) -> list[Answer]:
        """Answer the same for each: here without a call, for these are the rows of batches."""
        return [ALONE if row is None else Done((row.json,), row.mark, created, resource=row.resource) for row in rows]

    def made(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None]) -> Sequence[Answer]:
        """A row that is there after all is written in the next round."""
        return self.answers(writes, rows, created=True)

    async def why(self, connection: Session, steps: RowSteps, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        return await steps.ask_rows(connection, writes)

    async def duplicate(
        self,
        connection: Session,
        steps: RowSteps,
        missing: tuple[RowWrite, MissingRow],
        error: RefusedError,
        number: int,
    ) -> Answer:
        """A row is there after all: it is written in the next round. With row security a policy hides it, or keeps us
        from writing it.
        """
        table, (write, verdict) = steps.table, missing
        if not await _may_be_the_key(connection, table, write.key, error, number):
            raise error
        return problem_of_verdict(verdict, table.fence) if table.row_security else ALONE

    async def given_up(self, connection: Session, steps: RowSteps, write: RowWrite) -> Outcome:
        """Give up. With row security we may see the row, and a policy keeps us from writing it: a PUT tries to create
        it all the same, which a policy may refuse, by name.
        """
        table = steps.table
        (standing,) = await marks.ask(connection, table, [write.key])
        if not table.row_security:
            return contended(standing.resource)
        missing = MissingRow(standing.resource)
        if steps.creates:
            (answer,) = await steps.create(connection, [(write, missing)], ROUNDS)
            if not isinstance(answer, Alone):
                return answer
        return problem_of_verdict(missing, table.fence)


OWN_MARKS: Final = OwnMarks()


async def _may_be_the_key(
    connection: Session, table: ProtectedTable, key: Key, error: RefusedError, number: int
) -> bool:
    """Whether a duplicate is the row's own key, so that its row is there after all (or was, a moment ago).

    A partition's key has a name that the catalog does not know: in two rounds that is believed, later if a row is
    there.
    """
    if error.constraint == table.key_constraint:
        return True
    if table.kind != "partitioned table":
        return False
    return number < BELIEVED_ROUNDS or await marks.exists(connection, table, key)


@dataclass(frozen=True, slots=True)
class ScopeMarks:
    """Each scope has one, for all of its rows."""

    scope: Scope
    names_rows: ClassVar = False
    in_transaction: ClassVar = True

    async def attempt(self, connection: Session, operation: Operation) -> Outcome:
        """Check, find the scopes, enter them, write."""
        operation.entered, row = [], operation.row
        await operation.check(connection)
        scopes = await operation.scopes(connection, self.scope)
        if not isinstance(scopes, list):
            return scopes
        if scopes:
            operation.entered = sorted(scopes)
            if refused_by := await enter(connection, operation.table, self.scope, scopes, row.token):
                return operation.refused(refused_by)
        row.scopes, row.scope = scopes, scopes[0] if scopes else ""
        return await operation.write(connection)

    async def explain(self, _connection: Session, _operation: Operation, _error: RefusedError) -> Problem | None:
        """The scopes' marks were judged before; rows have none."""
        return None

    async def evidence(self, connection: Session, operation: Operation) -> Evidence:
        """Find out by the scopes' marks whether the write can have landed: it would have raised all of them (R15).

        A floor that equals the token is no operation's mark: it may have been pruned, or was another scope's.
        """
        if not operation.entered:  # it broke before the marks were asked for: nothing was written yet
            return Evidence(landed=False)
        token = operation.row.token
        found = await scope_statements.marks(connection, self.scope, operation.entered)
        lowest = min(found, key=lambda each: each.mark)
        if lowest.mark < token:
            return Evidence(landed=False, resource=lowest.scope, mark=lowest.mark)
        own = next((each for each in found if each.mark == each.recorded == token), None)
        shown = own or lowest
        return Evidence(landed=True if own else None, resource=shown.scope, mark=shown.mark)

    def how_to_ask(self, _operation: Operation) -> str:
        return HOW_TO_ASK

    def written(self, operation: Operation, _done: Done) -> Sequence[str]:
        """Name the scopes: the write is bound to those that were entered."""
        return operation.entered

    def fit_a_batch(self, table: Table, verb: Verb, change: Change) -> bool:
        """Whether such a write changes something, and names its scope if no row does."""
        if verb in ("patch", "put") and not change.sets:
            return False
        named = {*change.columns, *(() if verb == "post" else table.key)}
        return verb in ("patch", "delete") or named.issuperset(self.scope.columns)

    def done(self, write: RowWrite, row: FencedRow, *, created: bool) -> Done:
        """Answer with the token, which is the scope's mark now, and the scope's name."""
        return Done((row.json,), write.token, created, resource=row.resource, scope=write.scope)

    def answers(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None], *, created: bool) -> list[Answer]:
        return [
            ALONE if row is None else self.done(write, row, created=created)
            for write, row in zip(writes, rows, strict=True)
        ]

    def made(self, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None]) -> Sequence[Answer]:
        """Start over if a key is taken."""
        if None in rows:
            raise conflict(f"{writes[0].scope}: a key is taken in another scope, or held")
        return self.answers(writes, rows, created=True)

    async def why(self, connection: Session, steps: RowSteps, writes: Sequence[RowWrite]) -> Sequence[Verdict]:
        """The marks let the tokens pass: what was not reached is missing, or has left its scope. With row security we
        may see a row, and a policy keeps us from writing it: starting over would end the same way.
        """
        if steps.creates:
            if steps.wait == "block":
                await self._require_no_other_scope(connection, steps.table, writes[0])
            return [MissingRow("")] * len(writes)
        if steps.wait == "block" and steps.table.row_security:
            return steps.absent(writes)
        raise conflict(f"{_named(steps.table, writes[0])}: a row left the scope, or is held, and its mark was raised")

    async def _require_no_other_scope(self, connection: Session, table: ProtectedTable, write: RowWrite) -> None:
        """Refuse a PUT to a row of another scope. Who creates a row of this scope has to enter it, so only a row of
        another one can be there.
        """
        other = await scope_of_row(connection, table, self.scope, write.key)
        if other is not None and other != write.scope:
            raise QueryError(
                f"{table.name}/{','.join(write.key)} is in the scope {other}, and the request names {write.scope}:"
                " a row's scope cannot change"
            )

    async def duplicate(
        self,
        connection: Session,
        steps: RowSteps,
        missing: tuple[RowWrite, MissingRow],
        error: RefusedError,
        _number: int,
    ) -> Answer:
        """Start over if the row's own key is taken; else the duplicate is the request's. With row security, a row that
        we do not see, or see in the scope that was entered, is one that a policy keeps us from writing: starting over
        would end the same way.
        """
        table, (write, _) = steps.table, missing
        taken = await scope_of_row(connection, table, self.scope, write.key)
        # A partition's key has a name that the catalog does not know.
        if taken is None and error.constraint != table.key_constraint:
            raise error
        if table.row_security and taken in (None, write.scope):
            return steps.absent([write])[0]
        raise conflict(f"{write.scope}: the key was taken in another scope meanwhile") from error

    async def given_up(self, _connection: Session, _steps: RowSteps, write: RowWrite) -> Outcome:
        return contended(write.scope)


def _named(table: ProtectedTable, write: RowWrite) -> str:
    """Name the scope of a write; the table where it has several."""
    return write.scope if len(write.scopes) <= 1 else table.name
