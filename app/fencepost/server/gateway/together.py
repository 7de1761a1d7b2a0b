"""The transaction that several writes and claims are parts of (gateway/atomic.py)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from fencepost.server.fence.caller import Caller
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import users_code
from fencepost.server.postgres.errors import RETRIED, OutcomeUnknownError, RefusedError, UnavailableError

if TYPE_CHECKING:
    from fencepost.server.postgres.tables import Table

NOTHING: Final = "nothing was written: {}"


@dataclass(slots=True)
class Together:
    """The transaction."""

    connection: Connection
    failed: RefusedError | None = None
    """A deadlock, a serialization failure or an old query plan: for this all of it starts over."""
    doubted: "list[tuple[str, Table | None]]" = field(default_factory=list)
    """Tables, by their names, whose picture may be outdated: a part of it was refused, maybe for that."""

    @asynccontextmanager
    async def part(self, caller: Caller, *, runs_code: bool) -> AsyncIterator[Connection]:
        """Decide a part of it. `runs_code`: of users', which may change the session: what comes next finds it as it
        was. UnavailableError: the connection has broken, and nothing was written.
        """
        try:
            async with users_code(self.connection, caller, runs=runs_code, local=False):
                yield self.connection
        except RefusedError as error:
            if error.sqlstate in RETRIED or error.of_an_old_query_plan:
                self.failed = error
            raise
        except OutcomeUnknownError as error:  # before the COMMIT
            raise UnavailableError(NOTHING.format(error)) from error
