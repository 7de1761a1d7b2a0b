"""Rows by their keys, of a batch or of a write that goes alone: what a verb does to them, and why one was not reached.

R5, as a loop: a conditional write that reached no row asks why, and is tried again when the answer is "it would".

1. The conditional statement runs. A row came back: accepted.
2. No row: the next statement asks for the live row's mark and for the mark of a key without a row.
3. A mark refuses the token: stale or spent. It stays true however late it is answered, because marks never fall.
4. The table's source has not issued the token yet, or it is above the ceiling of an external table: that is the
   answer, whether or not there is a row (R12). Where the statement of 1 did meet a row, its trigger has refused it as
   FP018.
5. No row and no mark that refuses: missing. PUT creates the row, a claim raises the mark of the key.
6. Nothing refuses, and yet nothing was written: the row was deleted and made anew between 1 and 2, or created between
   2 and 5; in a batch, another transaction holds it. Again, bounded.

`attempt` is one round, for all writes of a batch; a batch leaves step 6 to group commit, which sends such a write with
another batch. A write that is decided alone is a batch of one whose statements may wait, round after round:
`attempt_alone`.

In a table with a scope (R8) the scopes' marks were judged and raised before the statement of 1, in the same
transaction, and rows have none. So there is nothing to ask when it reaches no row: the row is missing, was deleted, or
made anew in another scope. Then everything is rolled back, the marks too, and starts over as after a serialization
failure.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import DATABASE_UNAVAILABLE, ROW_CHANGED, ROW_NOT_FOUND
from fencepost.server.fence.problems import Problem, problem_of
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import MissingRow, Refusal, Token, beyond, refusal, unissued
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.group_commit import AGAIN, ALONE, Alone, BatchQueue, Broken, RoleQueues
from fencepost.server.gateway.idempotency import IdempotentRequest, Keeping, answer_of
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.write import Verb, needs_fitting, refused_scope, require_fitting
from fencepost.server.postgres import keyed, marks
from fencepost.server.postgres.answers import nothing, shown
from fencepost.server.postgres.connection import FencedRow, Key, RowWrite, Session, Wait, WriteStatement
from fencepost.server.postgres.database import act_for, in_transaction, savepoint
from fencepost.server.postgres.errors import RefusedError, StorageError, conflict
from fencepost.server.postgres.keyed import Change, Record
from fencepost.server.postgres.marks import Appeared, KeyState, claim_absent
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.scopes import Entered, Opened, Prelude, ScopeOf, prelude, scope_of_row
from fencepost.server.postgres.tables import Fence, ProtectedTable, Table

ROUNDS: Final = 10
"""How often a write that nothing refuses is tried before it is given up."""
BELIEVED_ROUNDS: Final = 2
"""In how many rounds a duplicate of a partition counts as the row's own key, without a look."""
UNIQUE_VIOLATION: Final = "23505"
SAID_MARKS: Final = 3
"""How many marks of an If-Match a sentence names."""

WriteVerb = Verb | Literal["claim"]
Answer = Outcome | Alone
"""AGAIN: nothing refuses the write; ALONE: it cannot be known here."""
Missing = tuple[RowWrite, MissingRow]


@dataclass(frozen=True, slots=True)
class Statements:
    """A verb's statements. `careful` runs from the second round on: it locks the row first, and undoes itself if
    something then keeps the row from being written. `wait`: in a batch they leave a row alone that is held (skip).
    """

    table: ProtectedTable
    wait: Wait
    first: WriteStatement
    careful: WriteStatement
    creating: WriteStatement | None = None
    """A PUT's. In a batch it needs a transaction: if the connection breaks while it creates, that is unknown."""
    inserts: bool = False
    """Whether it is a POST, whose first statement creates."""
    claims: bool = False
    """Whether it sets nothing but the mark; where there is no row, it raises that of the key."""
    conditional: bool = False
    """Whether the row must have one of the marks that the request names (If-Match): it is there, or nothing is made."""

    @property
    def creates(self) -> bool:
        """Whether something is made where a row is missing. A row that row security hides is not an absent key: its
        mark is its own, and out of a claim's reach.
        """
        return self.creating is not None or (self.claims and not self.table.row_security)


def statements_of(table: ProtectedTable, verb: WriteVerb, change: Change, wait: Wait) -> Statements:
    """Write a verb's statements."""
    if verb == "post":
        first = keyed.insert(table, change, wait)
        return Statements(table, wait, first, first, inserts=True)
    if verb == "delete":
        first = careful = keyed.delete(table, change, wait)
    else:
        first = keyed.update(table, change, wait)
        careful = keyed.update(table, change, wait, careful=True) if wait == "block" else first
    creating = keyed.create(table, change, wait) if verb == "put" and not change.conditional else None
    claims = verb == "claim"
    return Statements(table, wait, first, careful, creating, claims=claims, conditional=change.conditional)


_MAKE_THE_ROW: Final = (
    "Row security applies to this table: a key is claimed only while you see its row. Fence a new key with its row:"
    " PUT it under the token."
)


async def claim_row(session: Session, table: ProtectedTable, write: RowWrite, most_bytes: int) -> Outcome:
    """Claim a row, or a key without one; in a transaction that is open, where a grant claims. The row, of so many bytes
    at most, is the answer.
    """
    return await attempt_alone(session, table.kept(_claiming, most_bytes), write)


async def claim_rows(
    session: Session, table: ProtectedTable, writes: Sequence[RowWrite], most_bytes: int
) -> list[Outcome]:
    """Claim rows that this transaction has locked already, in one round trip; as `claim_row` otherwise."""
    answers = await attempt(session, table.kept(_claiming_locked, most_bytes), writes)
    return [
        await claim_row(session, table, write, most_bytes) if isinstance(answer, Alone) else answer
        for write, answer in zip(writes, answers, strict=True)
    ]


async def put_aside(session: Session, table: ProtectedTable, write: RowWrite) -> Outcome:
    """Change a row that was taken too often, which this transaction has locked, as `protect --on-exhausted` says."""
    return await attempt_alone(
        session, table.kept(_putting_aside), replace(write, raw=table.fence.on_exhausted.encode())
    )


def _putting_aside(table: ProtectedTable) -> Statements:
    columns = tuple(json.loads(table.fence.on_exhausted))
    if gone := [name for name in columns if name not in table.columns]:
        raise QueryError(f"{table.name}: {', '.join(gone)}: `protect --on-exhausted` names what is no column any more")
    return statements_of(table, "patch", Change(columns, nothing(0), frozenset(), named=True), "block")


def _claiming(table: ProtectedTable, most_bytes: int) -> Statements:
    return statements_of(table, "claim", _claim(table, most_bytes), "block")


def _claiming_locked(table: ProtectedTable, most_bytes: int) -> Statements:
    return statements_of(table, "claim", _claim(table, most_bytes), "skip")


def _claim(table: ProtectedTable, most_bytes: int) -> Change:
    return Change((), shown(table, None, most_bytes), frozenset(), named=True)


async def attempt_alone(session: Session, of: Statements, write: RowWrite) -> Outcome:
    """Run rounds of a single write until it is decided."""
    for number in range(ROUNDS):
        (answer,) = await attempt(session, of, (write,), number)
        if not isinstance(answer, Alone):
            return answer
    return await _give_up(session, of, write)


async def attempt(
    session: Session, of: Statements, writes: Sequence[RowWrite], number: int = 0, *, committed: bool = False
) -> list[Answer]:
    """Write, ask, create: round `number`, from 0. `committed`: what the first statement writes is committed at once, in
    a batch without a transaction; whatever goes wrong after it concerns only the writes that are left, and is found out
    alone.
    """
    rows = await (of.careful if number else of.first).run(session, writes)
    answers = answers_of(of.table, writes, rows, created=of.inserts)
    left = [n for n, answer in enumerate(answers) if answer is ALONE]
    if not left:
        return answers
    with suppress(StorageError) if committed else nullcontext():
        verdicts = await _explain_zero_rows(session, of, [writes[n] for n in left])
        missing: list[tuple[int, MissingRow]] = []
        for n, verdict in zip(left, verdicts, strict=True):
            if isinstance(verdict, Alone):
                answers[n] = verdict
            elif isinstance(verdict, MissingRow) and of.creates:
                missing.append((n, verdict))
            else:
                answers[n] = _problem_of(of, verdict)
        if missing:
            created = await _create(session, of, [(writes[n], verdict) for n, verdict in missing], number)
            for (n, _), answer in zip(missing, created, strict=True):
                answers[n] = answer
    return answers


def answers_of(
    table: ProtectedTable, writes: Sequence[RowWrite], rows: Sequence[FencedRow | None], *, created: bool
) -> list[Answer]:
    """Give the answers of writes of a row each; ALONE: no row was reached."""
    return [
        ALONE if row is None else done_of(table, write, row, created) for write, row in zip(writes, rows, strict=True)
    ]


def done_of(table: ProtectedTable, write: RowWrite, row: FencedRow, created: bool) -> Done:
    """Give what a write of one row has come to, with the mark of the row, or of its scope, which is the token now."""
    if table.fence.scope is None:
        return Done((row.json,), row.mark, created, resource=row.resource)
    return Done((row.json,), write.token, created, resource=row.resource, scope=write.scope)


async def _explain_zero_rows(
    session: Session, of: Statements, writes: Sequence[RowWrite]
) -> Sequence[Refusal | MissingRow | Problem | Alone]:
    """Find out why rows were not reached."""
    table = of.table
    if table.fence.scope is not None:
        return await _explain_in_scopes(session, of, table.fence.scope, writes)
    if of.inserts:
        return [ALONE] * len(writes)  # what kept it from inserting is found out alone
    states = await marks.ask(session, table, [write.key for write in writes])
    if of.conditional:
        return [_judge_condition(state, table.fence, write) for state, write in zip(states, writes, strict=True)]
    # What a transaction has deleted itself it may make anew (R1): whether it has, the INSERT's trigger knows.
    perhaps_own = of.creates and of.wait == "block" and session.is_in_transaction()
    return [
        MissingRow(state.resource)
        if perhaps_own and state.live is None and state.without_row == write.token
        else judge(state, table.fence, write.token) or AGAIN
        for state, write in zip(states, writes, strict=True)
    ]


def _judge_condition(state: KeyState, fence: Fence, write: RowWrite) -> Refusal | Problem | Alone:
    """Judge a write under If-Match. The fence comes first: who is stale has lost the lock, whatever the row is now."""
    verdict = judge(state, fence, write.token)
    if verdict is not None and not isinstance(verdict, MissingRow):
        return verdict
    if state.live is not None and (not write.marks or state.live in write.marks):
        return AGAIN
    wanted = " or ".join(str(mark) for mark in write.marks[:SAID_MARKS])
    found = "there is no such row" if state.live is None else f"its mark is {state.live}"
    return Problem(
        ROW_CHANGED,
        f"If-Match: the write is for {state.resource}{' with the mark ' if wanted else ''}{wanted}, and {found}.",
        resource=state.resource,
        presented_token=write.token,
        current_token=state.live,
    )


async def _explain_in_scopes(
    session: Session, of: Statements, scope: Scope, writes: Sequence[RowWrite]
) -> Sequence[MissingRow | Problem]:
    """The marks let the tokens pass: what was not reached is missing, or has left its scope. With row security we may
    see a row, and a policy keeps us from writing it: starting over would end the same way.
    """
    if of.creates:
        if of.wait == "block":
            await _require_no_other_scope(session, of.table, scope, writes[0])
        return [MissingRow("")] * len(writes)
    if of.wait == "block" and of.table.row_security:
        return [no_row(of.table, write.key) for write in writes]
    raise left_its_scope(of.table, writes[0])


async def _require_no_other_scope(session: Session, table: ProtectedTable, scope: Scope, write: RowWrite) -> None:
    """Refuse a PUT to a row of another scope. Who creates a row of this scope has to enter it, so only a row of another
    one can be there.
    """
    other = await scope_of_row(session, table, scope, write.key)
    if other is not None and other != write.scope:
        raise QueryError(
            f"{table.name}/{','.join(write.key)} is in the scope {other}, and the request names {write.scope}:"
            " a row's scope cannot change"
        )


def left_its_scope(table: ProtectedTable, write: RowWrite) -> RefusedError:
    """Give the error by which a write starts over whose scopes were entered and whose row was not reached."""
    name = write.scope if len(write.scopes) <= 1 else table.name
    return conflict(f"{name}: a row left the scope, or is held, and its mark was raised")


async def _create(session: Session, of: Statements, missing: Sequence[Missing], number: int) -> Sequence[Answer]:
    """Create what is missing; ALONE, AGAIN: something was in the way. A duplicate answers nothing in a batch, and is an
    error (which undoes only itself) alone. A key without a row is claimed alone: that waits for who makes the row.
    """
    if of.creating is None and of.wait == "skip":
        return [ALONE] * len(missing)
    if of.creating is None:
        return [await _claim_absent(session, of.table, *each) for each in missing]
    writes = [write for write, _ in missing]
    if of.wait == "skip":
        rows = await of.creating.run(session, writes)
    else:
        try:
            async with savepoint(session):
                rows = await of.creating.run(session, writes)
        except RefusedError as error:
            if error.sqlstate != UNIQUE_VIOLATION:
                raise
            return [await _explain_duplicate(session, of.table, missing[0], error, number)]
    if of.table.fence.scope is not None and None in rows:
        raise conflict(f"{writes[0].scope}: a key is taken in another scope, or held")
    return answers_of(of.table, writes, rows, created=True)


async def _claim_absent(session: Session, table: ProtectedTable, write: RowWrite, missing: MissingRow) -> Answer:
    """Raise the mark of a key without a row; a row that it has by now is written in the next round."""
    if needs_fitting(table, write.key):
        await require_fitting(session, table, write.key, "resource")
    raised = await claim_absent(session, table, write.key, write.token, missing.resource)
    if isinstance(raised, Appeared):
        return AGAIN
    if raised is not None:
        refusing = refusal(table.fence.rule, missing.resource, raised, write.token)
        if refusing is not None:
            return problem_of_verdict(refusing, table.fence)
    return Done([], write.token, resource=missing.resource)


async def _explain_duplicate(
    session: Session, table: ProtectedTable, missing: Missing, error: RefusedError, number: int
) -> Answer:
    """Say what it means that a key was taken when a row was to be created, in this round; the error, raised again, if
    the duplicate is the request's own. A row that is there after all is written in the next round, or, in a scope,
    after starting over. With row security a policy hides the row, or keeps us from writing it: neither would help.
    """
    write, verdict = missing
    if table.fence.scope is None:
        if not await _may_be_the_key(session, table, write.key, error, number):
            raise error
        return problem_of_verdict(verdict, table.fence) if table.row_security else ALONE
    taken = await scope_of_row(session, table, table.fence.scope, write.key)
    # A partition's key has a name that the catalog does not know.
    if taken is None and error.constraint != table.key_constraint:
        raise error
    if table.row_security and taken in (None, write.scope):
        return no_row(table, write.key)
    raise conflict(f"{write.scope}: the key was taken in another scope meanwhile") from error


async def _may_be_the_key(session: Session, table: ProtectedTable, key: Key, error: RefusedError, number: int) -> bool:
    """Whether a duplicate is the row's own key, so that its row is there after all (or was, a moment ago).

    A partition's key has a name that the catalog does not know: in two rounds that is believed, later if a row is
    there.
    """
    if error.constraint == table.key_constraint:
        return True
    if table.kind != "partitioned table":
        return False
    return number < BELIEVED_ROUNDS or await marks.exists(session, table, key)


async def _give_up(session: Session, of: Statements, write: RowWrite) -> Outcome:
    """Give up a write that nothing refuses and that reached no row. With row security we may see the row, and a policy
    keeps us from writing it: a PUT tries to create it all the same, which a policy may refuse, by name.
    """
    table = of.table
    if table.fence.scope is not None:
        return contended(write.scope)
    (state,) = await marks.ask(session, table, [write.key])
    if not table.row_security:
        return contended(state.resource)
    missing = MissingRow(state.resource)
    if of.creates:
        (answer,) = await _create(session, of, [(write, missing)], ROUNDS)
        if not isinstance(answer, Alone):
            return answer
    return _problem_of(of, missing)


def _problem_of(of: Statements, verdict: Refusal | MissingRow | Problem) -> Problem:
    """Give a verdict as a problem. A claim that meets no row it may raise the mark of says what to do instead."""
    problem = problem_of_verdict(verdict, of.table.fence)
    return replace(problem, hint=_MAKE_THE_ROW) if of.claims and problem.type is ROW_NOT_FOUND else problem


# Single-row writes as batches decide them (gateway/group_commit.py): one transaction for many requests.
#
# A batch without keys and scopes is one statement, which commits by itself; rows that it did not reach are asked about
# in the next one (R5). With them, and for PUT, it is a transaction, in the order that all transactions keep (R20):
# Idempotency-Keys, scopes, rows, records. The ids of a queue's messages are recorded like keys, and not looked up
# before (idempotency.py). Where callers of one role are to be told apart (row security, a default that reads the
# claims), each writes with claims and name of its own, one caller after the other. What a batch cannot decide for
# certain, it leaves to `perform`, which decides a write alone.

MOST_WRITES: Final = 256
MOST_IDEMPOTENT: Final = 64
"""Each Idempotency-Key that is looked up is a lock, and PostgreSQL has room for some 64 per connection."""


@dataclass(slots=True, eq=False)
class Batched:
    """One request's write. `row.scope` is found out by the first batch that carries it."""

    row: RowWrite
    caller: Caller
    once: IdempotentRequest | None = None

    @classmethod
    def of(cls, key: Key, token: Token, body: bytes, caller: Caller, once: IdempotentRequest | None) -> "Batched":
        if once is None:
            return cls(RowWrite(key, token, body), caller)
        return cls(RowWrite(key, token, body, once.key, once.payload_hash, once.caller), caller, once)


_CALLER: Final = attrgetter("caller.claims", "caller.name")
"""What of a caller statements can see beside the role. Each message of a queue has a `Caller` of its own."""

WriteQueue = BatchQueue[Batched, Outcome]


@dataclass(frozen=True, slots=True)
class WriteQueues:
    """The queues of such writes."""

    queues: RoleQueues[Batched, Outcome]
    runs_code: bool
    """Whether triggers run that nobody has read: they could take a caller's role or claims to the next one."""

    def of(self, caller: Caller) -> WriteQueue | None:
        """Find the queue of a caller's writes; None: they go alone."""
        return None if caller.role is not None and self.runs_code else self.queues.of(caller)


def claim_queues(table: ProtectedTable, most_bytes: int, kept: Keeping) -> WriteQueues | None:
    """Make the queues of claims of rows; None: as for writes."""
    return queues_of(table, "claim", _claim(table, most_bytes), kept)


def queues_of(table: ProtectedTable, verb: WriteVerb, change: Change, kept: Keeping) -> WriteQueues | None:
    """Make the queues of such writes; None: they cannot share a transaction, or are too rare to be worth it."""
    scope = table.fence.scope
    if not table.shares_transactions or _reaches_further(table, verb, change):
        return None
    if scope is not None and not _fits_a_batch(table, scope, verb, change):
        return None
    statements = statements_of(table, verb, change, "skip")
    scope_of: ScopeOf = "row" if verb in ("patch", "delete") else "body" if verb == "post" else "key and body"
    looked_up = kept == "looked up"
    first = prelude(table, scope, scope_of, idempotent=looked_up)
    simple = verb != "put" and not kept and scope is None

    def make(caller: Caller) -> WriteQueue:
        # A batch locks a row that it deletes, and a PUT's may create others' rows: alone, a write may need less. And a
        # value of type regclass may name what lies in a schema that the role may not use: that concerns one write.
        named = any(column.base_name.lstrip("_").startswith("reg") for column in table.columns.values())
        lenient = caller.role is not None and (verb in ("put", "delete") or named)
        # Under row security each caller has Idempotency-Keys of its own (idempotency.py).
        by_caller = caller.role is not None and (table.shows_caller or table.row_security)
        batches = _Batches(statements, first, simple, lenient, by_caller)
        if simple:
            return BatchQueue(batches.run, caller=caller)
        most = MOST_IDEMPOTENT if looked_up else MOST_WRITES
        return BatchQueue(batches.run, _clashes, most, caller=caller)

    return WriteQueues(RoleQueues(make), table.triggers_are_vouched_for)


def _reaches_further(table: Table, verb: WriteVerb, change: Change) -> bool:
    """Whether such a write may, by a foreign key's action, write to rows of other tables."""
    if verb == "delete":
        return table.deletes_reach_further
    return verb != "post" and not table.updates_reach_further.isdisjoint(change.sets)


def _fits_a_batch(table: Table, scope: Scope, verb: WriteVerb, change: Change) -> bool:
    """Whether such a write of a table with a scope changes something, and names its scope if no row does."""
    if verb in ("patch", "put") and not change.sets:
        return False
    named = {*change.columns, *(() if verb == "post" else table.key)}
    return verb in ("patch", "delete") or named.issuperset(scope.columns)


def _clashes(write: Batched) -> Iterable[tuple[str, str]]:
    """A key's or a scope's second operation in a transaction would pass for the first one's own."""
    if write.once is not None:
        yield ("key", write.once.key)
    if write.row.scope:
        yield ("scope", write.row.scope)


async def in_a_batch(gateway: Gateway, queues: WriteQueues | None, write: Batched) -> Answer | Broken:
    """Have a write decided in a batch; ALONE, HELD or Broken if that cannot be."""
    if queues is None or gateway.together is not None or (queue := queues.of(gateway.caller)) is None:
        return ALONE
    row = write.row
    if gateway.share is None:
        return await gateway.group.write(queue, write, row.key, len(row.raw))
    async with gateway.batches.places:
        return await gateway.group.write(queue, write, row.key, len(row.raw), counted=False)


@dataclass(frozen=True, slots=True)
class _Batches:
    """The batches of one queue."""

    statements: Statements
    prelude: Prelude | None
    simple: bool
    """Whether statements that each commit by themselves will do."""
    lenient: bool
    """Whether a write alone may need fewer privileges than the batch."""
    by_caller: bool
    """Whether what the statements run may see claims and name of who calls, beside the role."""

    async def run(self, connection: Session, batch: Sequence[Batched]) -> Sequence[Answer]:
        """Write; as those who call, where they can be seen, and then in one transaction if they are several."""
        connection.code_ran |= self.statements.table.triggers_are_vouched_for
        try:
            if self.by_caller:
                if len(set(map(_CALLER, batch))) > 1:
                    return await in_transaction(connection, lambda: self._of_several(connection, batch))
                await act_for(connection, batch[0].caller)
            if self.simple:
                return await attempt(connection, self.statements, [write.row for write in batch], committed=True)
            return await in_transaction(connection, lambda: self._in_order(connection, batch))
        except RefusedError as error:
            if self.lenient and error.lacks_privilege:
                return [ALONE] * len(batch)
            raise

    async def _of_several(self, connection: Session, batch: Sequence[Batched]) -> list[Answer]:
        """Write in the order of the batch, whoever calls next."""
        answers: list[Answer] = []
        for _, of_one in groupby(batch, _CALLER):
            writes = tuple(of_one)
            await act_for(connection, writes[0].caller)
            answers += await self._in_order(connection, writes)
        return answers

    async def _in_order(self, connection: Session, batch: Sequence[Batched]) -> list[Answer]:
        """Look the keys up, enter the scopes, write, record."""
        answers: list[Answer] = [ALONE] * len(batch)
        left: Sequence[int] = range(len(batch))
        if self.prelude is not None:
            left = await self._open(connection, self.prelude, batch, answers)
        if left:
            written = await attempt(connection, self.statements, [batch[number].row for number in left])
            for number, answer in zip(left, written, strict=True):
                answers[number] = answer
            await _record(connection, batch, left, answers)
        return answers

    async def _open(
        self, connection: Session, prelude: Prelude, batch: Sequence[Batched], answers: list[Answer]
    ) -> list[int]:
        """Look keys up and enter scopes; gives the numbers of the writes that may go on."""
        left = []
        for number, opened in enumerate(await prelude.run(connection, [write.row for write in batch])):
            row = batch[number].row
            answer: Answer | None = answer_of(opened.key)
            if answer is None:
                row.scope = opened.scope
                answer = None if opened.verdict == "entered" else _not_entered(self.statements.table, row, opened)
            if answer is None:
                left.append(number)
            else:
                answers[number] = answer
        return left


def _not_entered(table: ProtectedTable, row: RowWrite, opened: Opened) -> Answer | None:
    """Give the answer of a write whose scope was not entered; None: it was."""
    match opened.verdict:
        case "entered":
            return None
        case "refused":
            return refused_scope(table, Entered(opened.scope, opened.refused_by), row.token)
        case "busy":
            return AGAIN
        case "unclear":  # alone it is found out what is wrong
            return ALONE


async def _record(
    connection: Session, batch: Sequence[Batched], left: Sequence[int], answers: Sequence[Answer]
) -> None:
    """Record what is answered under the keys of those that were accepted, last."""
    records: list[Record] = []
    for number in left:
        once, answer = batch[number].once, answers[number]
        if once is not None and isinstance(answer, Done):
            records += once.records(answer)
    if records:
        await keyed.record_many(connection, records)


# Verdicts, and what they are answered with.


def judge(state: KeyState, fence: Fence, token: Token) -> Refusal | MissingRow | None:
    """Read the answer to R5's question; None: nothing refuses."""
    mark = state.live if state.live is not None else state.without_row
    verdict: Refusal | None = None
    if mark is not None:
        verdict = refusal(fence.rule, state.resource, mark, token)
    if verdict is None and not fence.pinned:
        floor = state.without_row or 0  # beside a live row it is the table's floor
        verdict = beyond(state.resource, token, mark or 0, floor, state.issued, state.max_jump)
    elif verdict is None and state.issued is not None:
        verdict = unissued(state.resource, token, state.issued, fence.source)
    if verdict is None and state.live is None:
        return MissingRow(state.resource)
    return verdict


def problem_of_verdict(verdict: Refusal | MissingRow | Problem, fence: Fence) -> Problem:
    """Give a verdict as a problem."""
    return verdict if isinstance(verdict, Problem) else problem_of(verdict, fence.rule)


def no_row(table: Table, key: Key) -> Problem:
    """Give the answer for a key without a row."""
    return Problem(ROW_NOT_FOUND, f"There is no row {table.name}/{','.join(key)}.")


def contended(resource: str) -> Problem:
    """Give up without a verdict: the row comes and goes faster than it can be met, or a trigger eats the writes."""
    return Problem(
        DATABASE_UNAVAILABLE,
        f"{resource} would take the token, and yet {ROUNDS} tries in a row did not reach it: it is deleted and made"
        " anew all the time, or something keeps it from being written.",
        resource=resource,
    )
