"""Several writes and claims that land all, or none: one transaction (POST /v1/batch?atomic=true).

Each is decided as if it were alone, one after the other, on one connection and inside a savepoint: what is refused can
so be explained, and then all of it is undone. It locks in the order in which the writes come, which need not be that of
other transactions: a deadlock is found by PostgreSQL, and whoever it ends starts over (R4), here all of it.

All of it has the time of one statement (FENCEPOST_STATEMENT_TIMEOUT), starts over or not: it holds its rows for no
longer. COMMIT is not interrupted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import NOTHING, Doubt, Together
from fencepost.server.gateway.refusals import acting, as_for
from fencepost.server.gateway.use_cases import problem_of, until_certain
from fencepost.server.observe.events import Accepted, Event, Refused
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import in_transaction
from fencepost.server.postgres.errors import (
    StorageError,
    UnavailableError,
    UncommittedError,
    cancelled,
)

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
    doubts: list[Doubt] = field(default_factory=list)
    until: float | None = None
    """When its time is over (the event loop's clock); None: it has no connection yet."""


async def atomically(gateway: Gateway, use: Callable[[Gateway], Awaitable[T]]) -> T | Problem:
    """Run `use`, whose gateway decides all in one transaction. It raises Undone to have nothing done. It may be run
    several times, each time from the start. A Problem: PostgreSQL could not do it, or refused the COMMIT.
    """
    run = _Run()

    async def attempt() -> tuple[T | Problem, Sequence[Doubt]]:
        try:
            once = gateway.run_write(partial(_once, gateway, use, run), runs_code=False)
            return await acting(gateway, once), run.doubts
        except StorageError as error:
            problem, why = problem_of(error, None, "batch")
            return problem, () if why is None else (Doubt("", None, why),)

    answer = await until_certain(gateway, *await attempt(), attempt)
    if isinstance(answer, Problem):
        answer = as_for(gateway.caller, answer)
        gateway.report_if_forbidden(answer)
        run.events = [Refused("", "batch", answer.name, answer.detail, None, None, None)]
    for event in run.events:
        gateway.emit(event)
    return answer


async def _once(gateway: Gateway, use: Callable[[Gateway], Awaitable[T]], run: _Run, connection: Session) -> T:
    run.events.clear()
    run.doubts.clear()
    whole = Together(connection, doubts=run.doubts)
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
        landed = await in_transaction(connection, in_time)
    except Undone as undone:
        if whole.failed is not None:
            raise whole.failed from undone
        run.events[:] = [event for event in run.events if not isinstance(event, Accepted)]
        refused: T = undone.answer
        return refused
    except UncommittedError as error:
        raise UnavailableError(NOTHING.format(error)) from error
    run.doubts.clear()  # all of it has landed: it is not done again
    return landed
