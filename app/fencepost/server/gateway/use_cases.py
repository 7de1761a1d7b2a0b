"""What requests can ask for, from a table's name to an outcome: errors of storage become problems, and what an outdated
picture of the tables, or a session's old query plans, may have caused runs once more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from fencepost.server.fence.caller import PEER, UNKNOWN
from fencepost.server.fence.problem_types import (
    BAD_REQUEST,
    OUTCOME_UNKNOWN,
    ROW_CHANGED,
    ROW_NOT_FOUND,
    TOKEN_REQUIRED,
    UNISSUED_TOKEN,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource
from fencepost.server.gateway import claims, read
from fencepost.server.gateway.alone import decide_alone
from fencepost.server.gateway.attempt import Batched, in_a_batch
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway, elsewhere
from fencepost.server.gateway.group_commit import Alone, Broken
from fencepost.server.gateway.idempotency import IdempotentRequest, Replayed, once_of
from fencepost.server.gateway.operations import operation_of
from fencepost.server.gateway.outcomes import Doubt, Outcome, Why
from fencepost.server.gateway.plan import Plan, plan_of, require_reach, require_token
from fencepost.server.gateway.read import ReadMany, ReadOne
from fencepost.server.gateway.refusals import (
    SUPPRESSED,
    acting,
    as_for,
    problem_of_refused,
    source_problem,
    unavailable,
    with_blocker,
    with_holders,
)
from fencepost.server.gateway.submit import AsMessage, Submitted, submit
from fencepost.server.gateway.write import (
    KeyCheck,
    OneRow,
    Write,
    doubtful_columns,
    name_of_key,
    needs_fitting,
)
from fencepost.server.locks.source import SourceError
from fencepost.server.observe.events import Accepted, Refused, Verb
from fencepost.server.postgres.connection import RowWrite
from fencepost.server.postgres.errors import (
    OutcomeUnknownError,
    RefusedError,
    SessionError,
    StorageError,
    UnavailableError,
)
from fencepost.server.postgres.query import OtherKeyError, QueryError, UnknownColumnError
from fencepost.server.postgres.tables import Catalog, Table

# Each use case on the table of its name: again on a fresh picture of the tables, or in a fresh session, where that may
# help.

MOST_DOUBTS: Final = 3
"""How often a request that met DDL is run again. Each time it may wait for the table, while others change it again."""
T = TypeVar("T")

Doubts = Sequence[Doubt]


async def write(
    gateway: Gateway,
    request: Write,
    message: IdempotentRequest | None = None,
    as_message: AsMessage | None = None,
) -> Outcome:
    """Write to a table, if no newer holder has: a PATCH, PUT, DELETE or POST of all rows that are meant, or of none. Or
    put the write into a queue (Submitted), where its request or its table wants that and there is `as_message`.

    `message` carries it out of a queue.
    """
    use = partial(_write, gateway, request, message, as_message)
    return await on_table(gateway, request.table, request.verb, use)


async def _write(
    gateway: Gateway,
    write: Write,
    message: IdempotentRequest | None,
    as_message: AsMessage | None,
    found: Table,
) -> Outcome:
    """Decide a write: with others in a batch, or alone. Raises QueryError, StorageError."""
    once = message
    if write.idempotency_key is not None:
        once = once_of(gateway, write.idempotency_key, write, found, message)
    plan = plan_of(found, write, once, gateway.max_rows, gateway.max_answer_bytes)
    if isinstance(plan, Problem):
        return plan
    if as_message is not None and (plan.queued or write.preferences.queued):
        return await submit(gateway, write, as_message, plan)
    authority = require_token(plan.table, write.token, gateway.seals)
    if isinstance(authority, Problem):
        return authority
    token, binding = authority
    row = Batched.of(
        write.target.key if isinstance(write.target, OneRow) else (), token, write.body.raw, gateway.caller, once
    )
    if write.if_match is not None:
        row.row.marks = write.if_match
    check = _key_check(plan, write, row.row) if plan.names_key or plan.creates else None
    name = ""
    if binding is not None and not plan.has_scope:
        if isinstance(write.target, OneRow):
            name = await name_of_key(gateway, plan.table, write.target.key)
            if (refused := elsewhere(binding, token, (name,))) is not None:
                return refused
        if write.verb == "delete" and (refused := require_reach(plan.table, authority)) is not None:
            return refused
    # Under a seal, a row's scope, and the row that a POST makes, are known in the transaction only.
    goes_alone = check is not None or (binding is not None and (plan.has_scope or write.verb == "post"))
    queues = None if goes_alone else plan.queues
    answer = await in_a_batch(gateway, queues, row)
    if not isinstance(answer, Alone | Broken):
        return answer
    operation = operation_of(plan, write, row.row, gateway.max_rows, name)
    operation.body, operation.once, operation.binding, operation.key_check = write.body, once, binding, check
    return await decide_alone(gateway, operation, queues, row, answer)


def _key_check(plan: Plan, write: Write, row: RowWrite) -> KeyCheck | None:
    """Give what only PostgreSQL can tell of the path's key; None: nothing is to be checked."""
    if not write.by_key:
        return None
    doubtful = doubtful_columns(plan.table, row.key, write.body)
    to_fit = plan.creates and needs_fitting(plan.table, row.key)
    return KeyCheck(plan.table, row, doubtful, to_fit) if doubtful or to_fit else None


async def claim(gateway: Gateway, request: Claim) -> Outcome:
    """Raise a mark, or return who has raised it further. `rows` has the row, or nothing where there is none."""
    use = partial(claims.write, gateway, request)
    return await on_table(gateway, request.resource.table, "claim", use, Catalog.find_or_scope)


async def explain(gateway: Gateway, resource: Resource, caller: str = UNKNOWN) -> Outcome:
    """Look a resource up: a row, or a scope (R8). What was never written has the mark 0. A row of a table with a scope
    has no mark of its own: its scope is shown.
    """
    use = partial(read.explain, gateway, resource, caller)
    return await on_table(gateway, resource.table, "read", use, Catalog.find_or_scope)


async def read_many(gateway: Gateway, request: ReadMany) -> Outcome:
    """Read what matches, at most max_rows of it."""
    return await on_table(gateway, request.table, "read", partial(read.read_many, gateway, request))


async def read_one(gateway: Gateway, request: ReadOne) -> Outcome:
    """Read a row by its key."""
    return await on_table(gateway, request.table, "read", partial(read.read_one, gateway, request))


async def on_table(
    gateway: Gateway,
    name: str,
    verb: Verb,
    use: Callable[[Table], Coroutine[Any, Any, Outcome]],
    find: Callable[[Catalog, str], Table | None] = Catalog.find,
) -> Outcome:
    """Run `use` on the table of this name; again on a fresh catalog while the picture proves outdated, and in a fresh
    session when that one's plans do. `find` returns the table that is meant.

    Errors of storage become problems here, and nowhere else; and here a refusal learns who is behind it (R18).
    """
    table = find(gateway.catalog.current, name)
    outcome, doubts = await _attempt(gateway, table, name, use)
    if isinstance(outcome, Problem):

        async def once_more() -> tuple[Outcome, Doubts]:
            nonlocal table
            table = find(gateway.catalog.current, name)
            return await _attempt(gateway, table, name, use)

        outcome = await until_certain(gateway, outcome, doubts, once_more)
    if isinstance(outcome, Problem) and outcome.type is UNISSUED_TOKEN and table is not None:
        outcome = await _as_its_source_says(gateway, table, use, outcome)
    if isinstance(outcome, Problem):
        outcome = as_for(gateway.caller, await with_holders(gateway, table, outcome))
        outcome = await with_blocker(gateway, table, outcome)
    report(gateway, table, verb, outcome)
    return outcome


async def until_certain(
    gateway: Gateway, outcome: T, doubts: Doubts, once_more: Callable[[], Awaitable[tuple[T, Doubts]]]
) -> T | Problem:
    """Have what was refused run once more, for as long as what refused it may be outdated."""
    for _ in range(MOST_DOUBTS):
        if not doubts:
            break
        # The picture must be from after the attempt: that waited for a lock, maybe, while the table changed.
        failed = asyncio.get_running_loop().time()
        try:
            if await _has_changed(gateway, doubts):
                await gateway.catalog.loaded_after(failed)
            elif not any(doubt.why == "session" for doubt in doubts):  # all sessions are new by now
                break
        except (UnavailableError, RefusedError) as error:
            return problem_of(error, None)[0]
        outcome, doubts = await once_more()
    return outcome


async def _has_changed(gateway: Gateway, doubts: Doubts) -> bool:
    """Look whether the picture of a table is outdated. UnavailableError where that cannot be asked, and matters."""
    for name, table, why in doubts:
        try:
            async with gateway.look():
                if name and await gateway.catalog.has_changed(name, table, gateway.own_connection()):
                    return True
        except UnavailableError:
            if why != "answer":
                raise
    return False


async def _as_its_source_says(
    gateway: Gateway, table: Table, use: Callable[[Table], Coroutine[Any, Any, Outcome]], refused: Problem
) -> Outcome:
    """Ask the table's source whether it has issued a token that was refused as never issued (`protect --verify`). If it
    has, run once more.
    """
    fence, token = table.fence, refused.presented_token
    if fence is None or not fence.verify or token is None or (source := gateway.sources.get(fence.source)) is None:
        return refused
    try:
        if not await source.verify(token):
            return refused
    except (UnavailableError, RefusedError) as error:
        return problem_of(error, None)[0]
    except SourceError as error:
        return source_problem(error, fence.source)
    return (await _attempt(gateway, table, table.name, use))[0]


async def _attempt(
    gateway: Gateway, table: Table | None, name: str, use: Callable[[Table], Coroutine[Any, Any, Outcome]]
) -> tuple[Outcome, Doubts]:
    """Run once, and return what may be why it failed. A part of a transaction leaves its doubts to that."""
    outcome: Outcome
    why: Why | None
    if table is None:
        outcome, why = Problem(UNKNOWN_TABLE, f"There is no table {name}."), "catalog"
    else:
        try:
            outcome = await (use(table) if gateway.caller.role is None else acting(gateway, use(table)))
        except (QueryError, StorageError) as error:
            outcome, why = problem_of(error, table)
        else:
            if not isinstance(outcome, Problem):
                return outcome, ()
            why = _doubt_of_answer(outcome, table)
    if why is None:
        return outcome, ()
    doubt = Doubt(name, table, why)
    if gateway.together is None:
        return outcome, (doubt,)
    gateway.together.doubts.append(doubt)
    return outcome, ()


def problem_of(
    error: QueryError | StorageError, table: Table | None, what: str = "write"
) -> tuple[Problem, Why | None]:
    """Give an error as a problem, and what may be behind it. Raises what is neither: RoleError."""
    match error:
        case QueryError():
            return bad_request(f"{error}"), _doubt_of_query(error)
        case RefusedError():
            if error.sqlstate == SUPPRESSED and table is not None and table.row_security:
                return Problem(ROW_NOT_FOUND, f"Row security keeps {table.name} from being written there."), None
            refused = problem_of_refused(error, table)
            return refused, _doubt_of(error) or ("answer" if refused.type is UNISSUED_TOKEN else None)
        case OutcomeUnknownError():
            detail = f"It is not known whether the {what} landed: {error}"
            return Problem(OUTCOME_UNKNOWN, detail), None
        case UnavailableError():
            # A session that has lost what it had: its connection is closed, and another one has that.
            return unavailable(error), "session" if isinstance(error, SessionError) else None
        case _:
            raise error


def _doubt_of_answer(outcome: Problem, table: Table) -> Why | None:
    """A table that has just got a queue takes writes without a token; one that has just lost it takes others again; one
    that is verified since takes tokens that its source alone knows. And where no partition can have a row, PostgreSQL
    has not compared the key: the row may be there by another one.
    """
    if outcome.type is UNPROTECTED_TABLE:
        return "catalog"
    queued = table.fence is not None and table.fence.queue is not None
    no_row = outcome.type is ROW_NOT_FOUND or (outcome.type is ROW_CHANGED and outcome.current_token is None)
    no_partition = no_row and table.kind == "partitioned table"
    of_token = outcome.type in (TOKEN_REQUIRED, UNISSUED_TOKEN)
    return "answer" if no_partition or of_token or (queued and outcome.type is BAD_REQUEST) else None


def _doubt_of_query(error: QueryError) -> Why | None:
    if isinstance(error, OtherKeyError):
        return "answer"
    return "catalog" if isinstance(error, UnknownColumnError) else None


def _doubt_of(error: RefusedError) -> Why | None:
    if error.of_an_old_query_plan:
        return "session"
    return "catalog" if error.may_be_outdated else None


def report(gateway: Gateway, found: Table | None, verb: Verb, outcome: Outcome) -> None:
    """Have an outcome counted and logged."""
    # Names that no table has would make as many series of metrics as callers can invent.
    table = found.name if found is not None else ""
    if isinstance(outcome, Problem):
        gateway.report_if_forbidden(outcome)
        gateway.emit(
            Refused(
                table,
                verb,
                outcome.name,
                outcome.detail,
                outcome.resource,
                outcome.presented_token,
                outcome.current_token,
                gateway.caller.name or None,
                PEER.get(),
            )
        )
    elif isinstance(outcome, Submitted):
        gateway.emit(Accepted(table, "submit", 0))
    elif verb != "read":
        gateway.emit(Accepted(table, verb, 0 if isinstance(outcome, Replayed) else len(outcome.rows)))
