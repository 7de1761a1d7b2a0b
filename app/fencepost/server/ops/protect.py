"""Protect and unprotect a table. What that takes is in the schema: `fencepost.protect` and `fencepost.unprotect`, which
any program with a PostgreSQL driver may call (migrations/schema, protection.sql and protect.sql).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, TypedDict, TypeVar, Unpack

import asyncpg

from fencepost.server.fence.token import Rule
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.connection import Connection

T = TypeVar("T")

BUSY: Final = ("55P03", "40P01")
"""SQLSTATEs of a table that another session has locked: lock_not_available, deadlock_detected. The latter: with a
session that has drawn a token and wants the table, while this has the table and wants to move the tokens."""
REFUSED: Final = ("22023", "54000", "55000")
"""SQLSTATEs of what cannot be done: there is no such option; a mark is too high; anything else that is in the way."""
PAUSE: Final = 0.5
"""Seconds between two tries for the table's lock, in which its other users get through."""


class ProtectOptions(TypedDict, total=False):
    """What can be asked for of a table's protection. What is None, or not there, stays as it is; of a table that is new
    it is strict, external, no scope, no key required, no seal, no word for its triggers, no work.

    rule: `strict` or `epoch`. source: `external`, `builtin`, or a lock service that is known (`fencepost source`).
    requires_key: writes through the gateway need an Idempotency-Key.
    scope: a template (R8), or empty: each row has a mark of its own.
    verify: the gateway asks the lock service about tokens that it does not know.
    above: where the marks of an external source are lost, a token up to which none may write.
    max_token, max_jump: see Ceiling; a max_jump of 0 is none.
    queue: the queue that the table takes all its writes by, instead of a source, a scope and a ceiling.
    sealed: the gateway takes sealed tokens only.
    triggers_see_own_row: the owner vouches for the table's triggers, so that its writes may share transactions.
    work: workers take the table's rows, the next one each time.
    max_attempts, on_exhausted: how often a row may be taken, and the columns that put it aside then, with their values
        as the body of a PATCH has them; a max_attempts of 0 takes both away.
    """

    rule: Rule | None
    source: str | None
    requires_key: bool | None
    scope: str | None
    verify: bool | None
    above: int | None
    max_token: int | None
    max_jump: int | None
    queue: str | None
    sealed: bool | None
    triggers_see_own_row: bool | None
    work: bool | None
    max_attempts: int | None
    on_exhausted: Mapping[str, str | float | bool | None] | None


class ProtectError(Exception):
    """The table cannot be protected (or unprotected) as it is. `reasons` are sentences for its owner."""

    def __init__(self, table: str, reasons: list[str]) -> None:
        super().__init__(f"{table}: " + " ".join(reasons))
        self.table = table
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class ProtectPlan:
    """What would run: `statements` in one transaction, then `afterwards` by itself."""

    statements: list[str]
    afterwards: list[str]

    def script(self) -> str:
        lines = [
            "BEGIN;",
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;",
            "SET LOCAL search_path = pg_catalog, pg_temp;",
            *(f"{s};" for s in self.statements),
            "COMMIT;",
        ]
        return "\n".join([*lines, *(f"{s};" for s in self.afterwards)]) + "\n"


@contextmanager
def _refusals(table: str) -> Iterator[None]:
    try:
        yield
    except asyncpg.PostgresError as error:
        if (refused := _refused(table, error)) is None:
            raise
        raise refused from error


async def plan_protect(connection: Connection, table: str, **asked: Unpack[ProtectOptions]) -> ProtectPlan:
    """Check the table, and write down what `protect` would run. Raises ProtectError."""
    plan = "SELECT * FROM fencepost.protect_plan(fencepost.table_called($1), $2::text::jsonb)"
    with _refusals(table):
        rows = await connection.fetch(plan, table, json.dumps(asked))
    return ProtectPlan(
        [row["statement"] for row in rows if not row["afterwards"]],
        [row["statement"] for row in rows if row["afterwards"]],
    )


async def plan_unprotect(connection: Connection, table: str) -> ProtectPlan:
    """Write down what `unprotect` would run. Raises ProtectError."""
    with _refusals(table):
        rows = await connection.fetch("SELECT * FROM fencepost.unprotect_plan(fencepost.table_called($1))", table)
    return ProtectPlan([row[0] for row in rows], [])


class Changed(NamedTuple):
    """What `protect` has done. `name`: that of the table's resources; `before`, `after`: its rows of
    fencepost.protected.
    """

    name: str
    before: Mapping[str, object] | None
    after: Mapping[str, object]


_PROTECT: Final = "SELECT p.* FROM fencepost.protect(fencepost.table_called($1), $2::text::jsonb) p"
_PROTECTION: Final = (
    "SELECT p.* FROM fencepost.protected p WHERE p.relation OPERATOR(pg_catalog.=) fencepost.table_called($1)"
)


async def protect(
    connection: Connection, table: str, *, wait: float = 30.0, **asked: Unpack[ProtectOptions]
) -> Changed:
    """Protect a table, or change how it is protected. Can be repeated. Raises ProtectError when something is in the
    way, or the table's lock cannot be had within `wait` seconds.
    """

    async def act() -> Changed:
        before = await connection.fetchrow(_PROTECTION, table)
        [after] = await connection.fetch(_PROTECT, table, json.dumps(asked))
        return Changed(after["name"], None if before is None else dict(before), dict(after))

    made = await until_free(connection, table, wait, act)
    validation = f"SELECT fencepost.validation(p) FROM ({_PROTECTION}) p"
    if (statement := await connection.fetchval(validation, table)) is not None:
        await connection.execute(statement)
    return made


async def unprotect(connection: Connection, table: str, *, wait: float = 30.0) -> str:
    """Take a table's protection away; its column and marks stay for a later `protect`. Raises as `protect` does."""

    async def act() -> str:
        name: str = await connection.fetchval("SELECT fencepost.unprotect(fencepost.table_called($1))", table)
        return name

    return await until_free(connection, table, wait, act)


async def until_free(connection: Connection, table: str, wait: float, act: Callable[[], Awaitable[T]]) -> T:
    """Run `act` in a transaction, again and again while another session has the table's lock, for `wait` seconds.

    READ COMMITTED: what is read once the table is locked must not be older than the lock.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        try:
            with _refusals(table):
                async with connection.transaction(isolation="read_committed"):
                    return await act()
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if loop.time() > deadline:
                message = (
                    f"another transaction has held a lock on it, or on the sequence of tokens, for {wait:g} s (see"
                    f" {upkeep.WHERE_TO_LOOK}); nothing was changed."
                )
                blockers = upkeep.describe_holders(await upkeep.lock_holders(connection))
                raise ProtectError(table, [message, *([blockers] if blockers else [])]) from error
            await asyncio.sleep(PAUSE)


def _refused(table: str, error: asyncpg.PostgresError) -> ProtectError | None:
    """Read a refusal by the schema's functions, which name the table if they have found it; None: another error."""
    if error.sqlstate not in REFUSED:
        return None
    name = error.table_name or table
    message = (error.message or str(error)).removeprefix(f"{name}: ")
    return ProtectError(name, [message, *(error.detail or "").splitlines(), *([error.hint] if error.hint else [])])
