"""Whether the client of a request is still there."""

import asyncio
from typing import Final

from starlette.types import Scope

WATCH: Final = "fencepost.watch"
"""A key of the scope. Its value is a function, set by the server's protocol (cli/serving/guarded.py)."""


def hung_up(scope: Scope) -> "asyncio.Future[None]":
    """Give what is done once the client has closed the connection, or its half of it: it waits for nothing more. The
    future is the connection's: it is not to be cancelled. Under another server it is never done.
    """
    watch = scope.get(WATCH)
    found: asyncio.Future[None] = asyncio.get_running_loop().create_future() if watch is None else watch()
    return found
