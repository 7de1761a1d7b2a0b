"""Whether the client of a request is still there, and is still to be answered: who waits for long asks this, and nobody
else watches clients or credentials for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from starlette.types import Scope

from fencepost.server.fence.problem_types import INVALID_CREDENTIAL
from fencepost.server.fence.problems import Problem
from fencepost.server.http.problems.response import RequestError
from fencepost.server.identity.authenticator import Standing

T = TypeVar("T")

WATCH: Final = "fencepost.watch"
"""A key of the scope. Its value is a function, set by the server's protocol (serving/guarded.py)."""
STANDING: Final = "fencepost.standing"
"""A key of the scope, where there is authentication: the Standing of the caller's credential."""


def hung_up(scope: Scope) -> "asyncio.Future[None]":
    """Give what is done once the client has closed the connection, or its half of it: it waits for nothing more. The
    future is the connection's: it is not to be cancelled. Under another server it is never done.
    """
    watch = scope.get(WATCH)
    found: asyncio.Future[None] = asyncio.get_running_loop().create_future() if watch is None else watch()
    return found


@asynccontextmanager
async def leaving(scope: Scope) -> AsyncIterator["asyncio.Future[None]"]:
    """Give what is done once nobody is to be answered any more: the client has hung up, or its credential is good no
    longer, although its time is not over. It is not to be cancelled. A fault of our own in finding that out ends it,
    too, and is raised at the end: it says nothing of the credential.
    """
    standing: Standing | None = scope.get(STANDING)
    if standing is None:
        yield hung_up(scope)
        return
    gone = asyncio.create_task(_gone(scope, standing))
    try:
        yield gone
        if gone.done():
            gone.result()
    finally:
        gone.cancel()


async def unless(gone: "asyncio.Future[None]", waiting: Coroutine[Any, Any, T]) -> T | None:
    """Wait for something, but not for longer than someone is to be answered; None: there is nobody."""
    waits = asyncio.create_task(waiting)
    try:
        await asyncio.wait((waits, gone), return_when=asyncio.FIRST_COMPLETED)
        return waits.result() if waits.done() else None
    finally:
        waits.cancel()


def refuse_if_over(scope: Scope, gone: "asyncio.Future[None]", report: Callable[[Problem], None]) -> None:
    """Raise RequestError, and report it, where the client waits still and its credential is good no longer."""
    if gone.done() and gone.exception() is None and not hung_up(scope).done():
        detail = "The token or key was revoked, or has lost rights, while the request waited."
        report(refused := Problem(INVALID_CREDENTIAL, detail))
        raise RequestError(refused)


def may_ask_again(scope: Scope) -> bool:
    """Whether the caller may come again, with another credential if need be: its key was not revoked meanwhile."""
    standing: Standing | None = scope.get(STANDING)
    return standing is None or not standing.is_over_for_good


async def _gone(scope: Scope, standing: Standing) -> None:
    over = asyncio.create_task(standing.over())
    try:
        await asyncio.wait((hung_up(scope), over), return_when=asyncio.FIRST_COMPLETED)
        if over.cancelled():
            raise RuntimeError("looking at the credential again was cancelled")
        if over.done():
            over.result()
    finally:
        over.cancel()
