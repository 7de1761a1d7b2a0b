"""What requests can ask for, from a table's name to an outcome: errors of storage become problems, and what an outdated
picture of the tables, or a session's old query plans, may have caused runs once more.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Literal

from fencepost.server.fence.problem_types import (
    BAD_REQUEST,
    OUTCOME_UNKNOWN,
    ROW_NOT_FOUND,
    TOKEN_REQUIRED,
    UNISSUED_TOKEN,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource
from fencepost.server.gateway import explain as explaining
from fencepost.server.gateway import read as reading
from fencepost.server.gateway.blockers import with_blocker
from fencepost.server.gateway.claims import claim as claims
from fencepost.server.gateway.claims.claim import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.gateway.read import ReadMany, ReadOne
from fencepost.server.gateway.refusals import (
    RETRY_AFTER,
    SUPPRESSED,
    as_for,
    problem_of_refused,
    source_problem,
    unavailable,
)
from fencepost.server.gateway.roles import acting
from fencepost.server.gateway.submit import AsMessage, Submitted, is_queued, submit
from fencepost.server.gateway.superseded import with_holders
from fencepost.server.gateway.writes import insert as inserting
from fencepost.server.gateway.writes import keyed, matching
from fencepost.server.gateway.writes import patch_rows as arrays
from fencepost.server.gateway.writes.expansion import refuse_expansion
from fencepost.server.gateway.writes.idempotency import IdempotentRequest, Render, once_of
from fencepost.server.gateway.writes.write import Listed, Matching, OneRow, Write
from fencepost.server.locks.source import SourceError
from fencepost.server.observe.events import Accepted, Refused, Verb
from fencepost.server.postgres.errors import OutcomeUnknownError, RefusedError, SessionError, UnavailableError
from fencepost.server.postgres.query import OtherKeyError, QueryError, UnknownColumnError
from fencepost.server.postgres.tables import Catalog, Table
from fencepost.server.quota import PEER, UNKNOWN

MOST_DOUBTS: Final = 3
"""How often a request that met DDL is run again. Each time it may wait for the table, while others change it again."""

Doubt = Literal["catalog", "answer", "session"] | None
"""Why a request may have failed for nothing: the picture of the database is outdated, or a session's query plans are.
answer: the picture may be, and where PostgreSQL cannot be asked the answer stands all the same."""


async def write(
    gateway: Gateway,
    request: Write,
    render: Render | None = None,
    message: IdempotentRequest | None = None,
    as_message: AsMessage | None = None,
) -> Outcome:
    """Write to a table, if no newer holder has: a PATCH, PUT, DELETE or POST of all rows that are meant, or of none. Or
    put the write into a queue (Submitted), where its request or its table wants that and there is `as_message`.

    `render` gives the answer that is kept under the request's Idempotency-Key; `message` carries it out of a queue.
    """

    def use(table: Table) -> Coroutine[Any, Any, Outcome]:
        refused = refuse_expansion(table, request.body, gateway.max_answer_bytes)
        if refused is not None:
            return _answered(refused)
        if as_message is not None and is_queued(request, table):
            return submit(gateway, request, as_message, table)
        return _write(gateway, request, render, message, table)

    return await on_table(gateway, request.table, request.verb, use)


async def _answered(outcome: Outcome) -> Outcome:
    return outcome


def _write(
    gateway: Gateway, request: Write, render: Render | None, message: IdempotentRequest | None, table: Table
) -> Coroutine[Any, Any, Outcome]:
    once = once_of(request.idempotency_key, gateway.caller, table, render, message)
    match request.target:
        case OneRow(key):
            return keyed.write(gateway, request, key, once, table)
        case Matching(filters):
            return matching.write(gateway, request, filters, once, table)
        case Listed(count):
            of_array = inserting.write if request.verb == "post" else arrays.write
            return of_array(gateway, request, count, once, table)


async def claim(gateway: Gateway, request: Claim, render: Render | None = None) -> Outcome:
    """Raise a mark, or return who has raised it further. `rows` has the row, or nothing where there is none. `render`
    gives the answer that is kept under the claim's Idempotency-Key.
    """
    use = partial(claims.write, gateway, request, render)
    return await on_table(gateway, request.resource.table, "claim", use, Catalog.find_or_scope)


async def explain(gateway: Gateway, resource: Resource, caller: str = UNKNOWN) -> Outcome:
    """Look a resource up: a row, or a scope (R8). What was never written has the mark 0. A row of a table with a scope
    has no mark of its own: its scope is shown.
    """
    use = partial(explaining.explain, gateway, resource, caller)
    return await on_table(gateway, resource.table, "read", use, Catalog.find_or_scope)


async def read_many(gateway: Gateway, request: ReadMany) -> Outcome:
    """Read what matches, at most max_rows of it."""
    return await on_table(gateway, request.table, "read", partial(reading.read_many, gateway, request))


async def read_one(gateway: Gateway, request: ReadOne) -> Outcome:
    """Read a row by its key."""
    return await on_table(gateway, request.table, "read", partial(reading.read_one, gateway, request))


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
    outcome, doubt = await _attempt(gateway, table, name, use)
    try:
        for _ in range(MOST_DOUBTS):
            if doubt is None:
                break
            # The picture must be from after the attempt: that waited for a lock, maybe, while the table changed.
            failed = asyncio.get_running_loop().time()
            if await _has_changed(gateway, table, name, doubt):
                table = find(await gateway.catalog.loaded_after(failed), name)
            elif doubt != "session":
                break
            # Where a session was in doubt, all are new by now.
            outcome, doubt = await _attempt(gateway, table, name, use)
        if isinstance(outcome, Problem) and await _source_has_issued(gateway, table, outcome):
            outcome, _ = await _attempt(gateway, table, name, use)
    except UnavailableError as error:
        outcome = unavailable(error)
    except RefusedError as error:
        outcome = problem_of_refused(error)
    except SourceError as error:
        outcome = source_problem(error, table.fence.source if table is not None and table.fence is not None else "")
    if isinstance(outcome, Problem):
        outcome = as_for(gateway.caller, await with_holders(gateway, table, outcome))
        outcome = await with_blocker(gateway, table, outcome)
    _report(gateway, table, verb, outcome)
    return outcome


async def _has_changed(gateway: Gateway, table: Table | None, name: str, doubt: Doubt) -> bool:
    """Look whether the picture of a table is outdated. UnavailableError where that cannot be asked, and matters."""
    try:
        async with gateway.look():
            return await gateway.catalog.has_changed(name, table, gateway.own_connection())
    except UnavailableError:
        if doubt == "answer":
            return False
        raise


async def _source_has_issued(gateway: Gateway, table: Table | None, refused: Problem) -> bool:
    """Ask the table's source whether it has issued a token that was refused as never issued (`protect --verify`)."""
    fence = table.fence if table is not None else None
    if refused.type is not UNISSUED_TOKEN or fence is None or not fence.verify or refused.presented_token is None:
        return False
    locks = gateway.sources.get(fence.source)
    return locks is not None and await locks.verify(refused.presented_token)


async def _attempt(
    gateway: Gateway, table: Table | None, name: str, use: Callable[[Table], Coroutine[Any, Any, Outcome]]
) -> tuple[Outcome, Doubt]:
    """Run once, and return what may be why it failed. A part of a transaction leaves its doubts to that."""
    outcome, doubt = await _tried(gateway, table, name, use)
    if doubt is not None and gateway.together is not None:
        gateway.together.doubted.append((name, table))
        doubt = None
    return outcome, doubt


async def _tried(
    gateway: Gateway, table: Table | None, name: str, use: Callable[[Table], Coroutine[Any, Any, Outcome]]
) -> tuple[Outcome, Doubt]:
    if table is None:
        return Problem(UNKNOWN_TABLE, f"There is no table {name}."), "catalog"
    try:
        outcome = await acting(gateway, use(table))
    except QueryError as error:
        return bad_request(f"{error}"), _doubt_of_query(error)
    except RefusedError as error:
        if error.sqlstate == SUPPRESSED and table.row_security:
            return Problem(ROW_NOT_FOUND, f"Row security keeps {table.name} from being written there."), None
        return problem_of_refused(error, table), _doubt_of(error)
    except OutcomeUnknownError as error:
        detail = f"It is not known whether the write landed: {error}"
        return Problem(OUTCOME_UNKNOWN, detail, retry_after=RETRY_AFTER), None
    except SessionError as error:  # the connection is closed; another one has what its session has lost
        return unavailable(error), "session"
    except UnavailableError as error:
        return unavailable(error), None
    return outcome, _doubt_of_answer(outcome, table)


def _doubt_of_answer(outcome: Outcome, table: Table) -> Doubt:
    """A table that has just got a queue takes writes without a token; one that has just lost it takes others again. And
    where no partition can have a row, PostgreSQL has not compared the key: the row may be there by another one.
    """
    if not isinstance(outcome, Problem):
        return None
    if outcome.type is UNPROTECTED_TABLE:
        return "catalog"
    queued = table.fence is not None and table.fence.queue is not None
    no_partition = outcome.type is ROW_NOT_FOUND and table.kind == "partitioned table"
    in_doubt = no_partition or outcome.type is TOKEN_REQUIRED or (queued and outcome.type is BAD_REQUEST)
    return "answer" if in_doubt else None


def _doubt_of_query(error: QueryError) -> Doubt:
    if isinstance(error, OtherKeyError):
        return "answer"
    return "catalog" if isinstance(error, UnknownColumnError) else None


def _doubt_of(error: RefusedError) -> Doubt:
    if error.of_an_old_query_plan:
        return "session"
    return "catalog" if error.may_be_outdated else None


def _report(gateway: Gateway, found: Table | None, verb: Verb, outcome: Outcome) -> None:
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
        gateway.emit(Accepted(table, verb, len(outcome.rows)))
