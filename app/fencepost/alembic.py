"""For your own Alembic migrations: `from fencepost.alembic import protect, unprotect`.

    def upgrade() -> None:
        op.create_table("orders", …)
        protect(op, "orders", rule="strict")

    def downgrade() -> None:
        unprotect(op, "orders")
        op.drop_table("orders")

It does what `fencepost protect` does, by the same code, in the migration's own transaction: what rolls that back rolls
this back. Any driver of PostgreSQL will do, and Alembic's template for async ones too.
"""

import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar, Unpack, cast

from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import ARRAY, BigInteger, CursorResult, Text, bindparam, text
from sqlalchemy import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError

from fencepost.server.ops import schema as versions
from fencepost.server.ops.checks import ProtectError
from fencepost.server.ops.ddl import MISMATCH, TOO_HIGH
from fencepost.server.ops.protect import (
    LOCK_TIMEOUT_MS,
    PAUSE,
    ProtectOptions,
    ProtectPlan,
    plan_protect,
    plan_unprotect,
)
from fencepost.server.ops.schema import SCHEMA
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import MARK_CHECK, MARK_COLUMN
from fencepost.server.postgres.upkeep import WHERE_TO_LOOK

T = TypeVar("T")

_BUSY: Final = ("55P03", "40P01")
"""SQLSTATEs of a table that another session has locked: lock_not_available, deadlock_detected."""
_NO_TRANSACTION: Final = "25P01"
_FORBIDDEN: Final = "42501"
_KEPT: Final = ("search_path", "lock_timeout", "row_security")
"""Settings that the plan changes, and that the rest of the migration finds as they were."""
_ADDED: Final = (("column", MARK_COLUMN), ("check_constraint", MARK_CHECK))


class Operations(Protocol):
    """What is used of Alembic's `op`."""

    def get_context(self) -> MigrationContext:
        """Return the running migration's context."""

    def get_bind(self) -> SyncConnection:
        """Return the migration's connection."""


def protect(
    op: Operations, table: str, *, validate: bool = True, wait: float = 30.0, **asked: Unpack[ProtectOptions]
) -> None:
    """Protect a table as `fencepost protect` does, or change how it is protected. Can be repeated.

    table: as the catalog spells it, with or without schema.
    rule: `strict` or `epoch`. source: `external`, `builtin`, or a lock service that is known (`fencepost source`).
    scope: a template, or "" for a mark in each row. verify: whether the gateway asks the service about tokens that it
        does not know.
    above: for a table of an external source that has lost its column last_fence_token: no token up to this one may
        write to it any more.
    max_token, max_jump: for the source external, the highest token that the table takes (2^62 - 1), and how far one may
        be above the mark that it raises (0: any distance).
    queue: the queue that the table takes all its writes by, instead of a source, a scope and a ceiling.
    sealed: whether the gateway takes sealed tokens only.
    requires_key: whether writes through the gateway need an Idempotency-Key. What is None stays as it is; for a table
        that is new: strict, external, no scope, no key required, no seal.
    validate: check old rows too, while the table is locked: a scan. False leaves the check NOT VALID; doctor reports it
        until `fencepost protect` has run, or ALTER TABLE … VALIDATE CONSTRAINT fencepost_mark.
    wait: seconds in which the table's lock is asked for, again and again. It is kept until the migration commits.

    Raises alembic.util.CommandError, with all that is in the way, and under `alembic upgrade --sql`.
    """

    async def plan(connection: Connection) -> ProtectPlan:
        return await plan_protect(connection, table, **asked)

    _apply(op, table, "protect", plan, validate=validate, wait=wait)


def unprotect(op: Operations, table: str, *, wait: float = 30.0) -> None:
    """Take a table's protection away as `fencepost unprotect` does; its column and marks stay for a later `protect`.

    Before a protected table is dropped, too: its functions depend on it. Raises as `protect` does.
    """

    async def plan(connection: Connection) -> ProtectPlan:
        return await plan_unprotect(connection, table)

    _apply(op, table, "unprotect", plan, validate=False, wait=wait)


def include_name(name: str | None, type_: str, parent_names: Mapping[Any, str | None]) -> bool:  # noqa: ARG001
    """Keep autogenerate out of the schema fencepost: `context.configure(include_schemas=True, include_name=…)` in your
    env.py, or called by a hook of your own. Not needed without include_schemas.
    """
    return not (type_ == "schema" and name == SCHEMA)


def include_object(item: object, name: str | None, type_: str, reflected: bool, compare_to: object) -> bool:  # noqa: ARG001
    """Keep autogenerate from dropping the column and the check that `protect` added: for
    `context.configure(include_object=…)` in your env.py, or to be called by a hook of your own. A column that your
    models have is compared like any other.
    """
    return not (reflected and compare_to is None and (type_, name) in _ADDED)


def _apply(
    op: Operations,
    table: str,
    verb: str,
    planning: Callable[[Connection], Coroutine[Any, Any, ProtectPlan]],
    *,
    validate: bool,
    wait: float,
) -> None:
    if op.get_context().as_sql:
        raise CommandError(
            f"{table}: what {verb} does depends on the table as it is, and `alembic --sql` has no connection to look at"
            f" it: run `fencepost {verb} {table} --sql` against the database, and put its output in place of this."
        )
    bind = op.get_bind()
    try:
        _require_schema(bind, table)
        plan = _run_without_waiting(planning(cast("Connection", _Bound(bind))))
        _run(bind, [*plan.statements, *(plan.afterwards if validate else [])], wait)
    except ProtectError as error:
        raise CommandError(str(error)) from error
    except DBAPIError as error:
        message = _explain(error, wait)
        if message is None:
            raise
        raise CommandError(f"{table}: {message}") from error


def _explain(error: DBAPIError, wait: float) -> str | None:
    """What a refusal of PostgreSQL's means here; None: it is our own fault."""
    state = _sqlstate(error)
    if state in _BUSY:
        return (
            f"another transaction has held a lock on it, or on the sequence of tokens, for {wait:g} s (see"
            f" {WHERE_TO_LOOK})."
        )
    if state == _NO_TRANSACTION:
        return "this needs the migration's transaction; it cannot be inside of autocommit_block()."
    if state == _FORBIDDEN:
        return f"{error.orig}: run the migration as a member of the role that owns the schema fencepost."
    return str(error.orig) if state in (TOO_HIGH, MISMATCH) else None


def _require_schema(bind: SyncConnection, table: str) -> None:
    """Refuse where the statements would mean something else, or nothing."""
    if bind.dialect.name != "postgresql":
        raise CommandError(f"{table}: Fencepost protects tables of PostgreSQL, and this is {bind.dialect.name}.")
    schema = _run_without_waiting(versions.fit(cast("Connection", _Bound(bind))))
    with bind.begin_nested():
        isolation = bind.scalar(text("SELECT current_setting('transaction_isolation')"))
    if not schema.works:
        raise CommandError(f"{table}: schema fencepost: {schema.describe()}")
    if isolation != "read committed":
        raise CommandError(
            f"{table}: the migration's transaction is {isolation}. Marks are read once the table is locked, and must"
            " not be older than the lock: use READ COMMITTED."
        )


def _run(bind: SyncConnection, statements: Sequence[str], wait: float) -> None:
    """Run all or nothing of it. The table's lock is asked for with a short timeout: a request that waits would make
    every later reader of the table wait behind it.
    """
    deadline = time.monotonic() + wait
    while True:
        try:
            with bind.begin_nested(), _keep_settings(bind):
                for statement in (
                    f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}",
                    "SET LOCAL search_path = pg_catalog, pg_temp",
                ):
                    _execute(bind, statement)
                for statement in statements:
                    _execute(bind, statement)
        except DBAPIError as error:
            if _sqlstate(error) not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
        else:
            return


@contextmanager
def _keep_settings(bind: SyncConnection) -> Iterator[None]:
    before = {name: bind.scalar(text("SELECT current_setting(:name)"), {"name": name}) for name in _KEPT}
    yield
    # An error rolls back to the savepoint, which takes them back as well.
    for name, value in before.items():
        bind.execute(text("SELECT set_config(:name, :value, true)"), {"name": name, "value": value})


def _execute(bind: SyncConnection, statement: str) -> CursorResult[Any]:
    # Without parameters, no driver looks for % or : in what is quoted.
    return bind.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _sqlstate(error: DBAPIError) -> str | None:
    """Read the SQLSTATE, which drivers call by different names."""
    original = error.orig
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if state is None and original is not None and original.args and isinstance(original.args[0], dict):
        state = original.args[0].get("C")  # pg8000
    return None if state is None else str(state)


def _run_without_waiting(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits: all that it awaits is _Bound's, which has its answers at once."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("it waited for something that is not the migration's connection")


class _Bound:
    """The migration's connection as the planning code sees it: with the methods of asyncpg's that it uses."""

    def __init__(self, bind: SyncConnection) -> None:
        self._bind = bind

    async def fetch(self, query: str, *arguments: object) -> list[Mapping[str, Any]]:
        return [dict(row) for row in self._result(query, arguments).mappings()]

    async def fetchrow(self, query: str, *arguments: object) -> Mapping[str, Any] | None:
        row = self._result(query, arguments).mappings().first()
        return None if row is None else dict(row)

    async def fetchval(self, query: str, *arguments: object) -> object:
        return self._result(query, arguments).scalar()

    async def execute(self, query: str) -> None:
        _execute(self._bind, query)

    def transaction(self) -> "_Look":
        return _Look(self._bind)

    def _result(self, query: str, arguments: Sequence[object]) -> CursorResult[Any]:
        if not arguments:
            return _execute(self._bind, query)
        # text() would take `:name` for a parameter, and $1 for text.
        named = re.sub(r"\$(\d+)", r":p\1", query.replace(":", "\\:"))
        parameters = [bindparam(f"p{n}", value, _type_of(value)) for n, value in enumerate(arguments, 1)]
        return self._bind.execute(text(named).bindparams(*parameters))


def _type_of(value: object) -> Text | BigInteger | ARRAY[str]:
    if isinstance(value, list):
        return ARRAY(Text())
    return BigInteger() if isinstance(value, int) else Text()


class _Look:
    """A savepoint that is taken back at its end, with the settings that were made in it: planning only looks."""

    def __init__(self, bind: SyncConnection) -> None:
        self._bind = bind
        self._undo: Callable[[], None] | None = None

    async def __aenter__(self) -> None:
        self._undo = self._bind.begin_nested().rollback

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._undo is not None:
            self._undo()
