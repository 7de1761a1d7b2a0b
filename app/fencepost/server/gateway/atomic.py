"""Several writes and claims that land all, or none: one transaction (POST /v1/batch?atomic=true).

Each is decided as if it were alone, one after the other, on one connection and inside a savepoint: what is refused can
so be explained, and then all of it is undone. It locks in the order in which the writes come, which need not be that of
other transactions: a deadlock is found by PostgreSQL, and whoever it ends starts over (R4), here all of it.

All of it has the time of one statement (FENCEPOST_STATEMENT_TIMEOUT), starts over or not: it holds its rows for no
longer. COMMIT is not interrupted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fencepost.server.fence.problem_types import OUTCOME_UNKNOWN
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import NOTHING, Together
from fencepost.server.gateway.refusals import RETRY_AFTER, acting, as_for, problem_of_refused, unavailable
from fencepost.server.gateway.use_cases import MOST_DOUBTS
from fencepost.server.observe.events import Accepted, Event, Refused
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import in_transaction
from fencepost.server.postgres.errors import (
    OutcomeUnknownError,
    RefusedError,
    UnavailableError,
    UncommittedError,
    cancelled,
)
from fencepost.server.postgres.tables import Table

T = TypeVar("T")


class Undone(Exception):  # noqa: N818 - it is not an error; it rolls a transaction back
    """What was asked for is undone, and the answer is `answer`."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.answer = answer


@dataclass(slots=True)
class _Run:
    """What one run of it has left."""

    events: list[Event] = field(default_factory=list)
    doubted: list[tuple[str, Table | None]] = field(default_factory=list)
    until: float | None = None
    """When its time is over (the event loop's clock); None: it has no connection yet."""


async def atomically(gateway: Gateway, use: Callable[[Gateway], Awaitable[T]]) -> T | Problem:
    """Run `use`, whose gateway decides all in one transaction. It raises Undone to have nothing done. It may be run
    several times, each time from the start. A Problem: PostgreSQL could not do it, or refused the COMMIT.
    """
    run = _Run()
    try:
        answer = await _decided(gateway, use, run)
    except RefusedError as error:
        answer = as_for(gateway.caller, problem_of_refused(error))
    except OutcomeUnknownError as error:
        detail = f"It is not known whether the batch landed: {error}"
        answer = Problem(OUTCOME_UNKNOWN, detail, retry_after=RETRY_AFTER)
    except UnavailableError as error:
        answer = unavailable(error)
    if isinstance(answer, Problem):
        gateway.report_if_forbidden(answer)
        run.events = [Refused("", "batch", answer.name, answer.detail, None, None, None)]
    for event in run.events:
        gateway.emit(event)
    return answer


async def _decided(gateway: Gateway, use: Callable[[Gateway], Awaitable[T]], run: _Run) -> T | Problem:
    for last in [False] * MOST_DOUBTS + [True]:
        try:
            answer = await acting(gateway, gateway.run_write(partial(_once, gateway, use, run), runs_code=False))
        except RefusedError as error:  # sessions with old query plans: all are new by now
            if last or not error.of_an_old_query_plan:
                raise
            continue
        if last or not await _is_outdated(gateway, run):
            break
    return answer


async def _once(gateway: Gateway, use: Callable[[Gateway], Awaitable[T]], run: _Run, connection: Session) -> T:
    run.events.clear()
    run.doubted.clear()
    whole = Together(connection, doubted=run.doubted)
    part = replace(gateway, together=whole, emit=run.events.append)
    seconds = gateway.database.statement_timeout
    run.until = run.until or asyncio.get_running_loop().time() + seconds

    async def in_time() -> T:
        try:
            async with asyncio.timeout_at(run.until):
                return await use(part)
        except TimeoutError:
            raise cancelled(
                f"the batch took more than {seconds:g} s (FENCEPOST_STATEMENT_TIMEOUT), and nothing was written"
            ) from None

    try:
        return await in_transaction(connection, in_time)
    except Undone as undone:
        if whole.failed is not None:
            raise whole.failed from undone
        run.events[:] = [event for event in run.events if not isinstance(event, Accepted)]
        refused: T = undone.answer
        return refused
    except UncommittedError as error:
        raise UnavailableError(NOTHING.format(error)) from error


async def _is_outdated(gateway: Gateway, run: _Run) -> bool:
    """Look whether a table has changed for which a part may have been refused; then all are looked at anew."""
    failed = asyncio.get_running_loop().time()
    for name, table in run.doubted:
        if await gateway.catalog.has_changed(name, table, gateway.own_connection()):
            await gateway.catalog.loaded_after(failed)
            return True
    return False
