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

import json
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol, Unpack

from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Connection as SyncConnection
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fencepost.server.ops import schema as versions
from fencepost.server.ops.protect import BUSY, PAUSE, REFUSED, ProtectOptions
from fencepost.server.ops.schema import SCHEMA
from fencepost.server.postgres.tables import MARK_CHECK, MARK_COLUMN
from fencepost.server.postgres.upkeep import WHERE_TO_LOOK

_NO_TRANSACTION: Final = "25P01"
_FORBIDDEN: Final = "42501"
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
    asked: see ProtectOptions. What is None, or not given, stays as it is.
    validate: check old rows too, while the table is locked: a scan. False leaves the check NOT VALID; doctor reports it
        until `fencepost protect` has run, or ALTER TABLE … VALIDATE CONSTRAINT fencepost_mark.
    wait: seconds in which the table's lock is asked for, again and again. It is kept until the migration commits.

    Raises alembic.util.CommandError, with all that is in the way, and under `alembic upgrade --sql`.
    """
    call = (
        "SELECT fencepost.validation(p)"
        " FROM fencepost.protect(fencepost.table_called(:table), CAST(CAST(:asked AS text) AS jsonb)) AS p"
    )
    validation = _apply(op, table, "protect", call, {"table": table, "asked": json.dumps(asked)}, wait)
    if validate and validation is not None:
        # Without parameters, no driver looks for % or : in what is quoted.
        op.get_bind().exec_driver_sql(validation, execution_options={"no_parameters": True})


def unprotect(op: Operations, table: str, *, wait: float = 30.0) -> None:
    """Take a table's protection away as `fencepost unprotect` does; its column and marks stay for a later `protect`.

    Before a protected table is dropped, too: its functions depend on it. Raises as `protect` does.
    """
    _apply(op, table, "unprotect", "SELECT fencepost.unprotect(fencepost.table_called(:table))", {"table": table}, wait)


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


def _apply(op: Operations, table: str, verb: str, call: str, arguments: dict[str, str], wait: float) -> str | None:
    """Call a function of the schema, all or nothing of it, and return what it says. While another session has the
    table's lock it is asked for again.
    """
    if op.get_context().as_sql:
        raise CommandError(
            f"{table}: what {verb} does depends on the table as it is, and `alembic --sql` has no connection to look at"
            f" it: run `fencepost {verb} {table} --sql` against the database, and put its output in place of this."
        )
    bind = op.get_bind()
    deadline = time.monotonic() + wait
    while True:
        try:
            _require_schema(bind, table)
            with bind.begin_nested():
                said: str | None = bind.scalar(text(call), arguments)
                return said
        except DBAPIError as error:
            if _sqlstate(error) not in BUSY or time.monotonic() > deadline:
                message = _explain(error, wait)
                if message is None:
                    raise
                raise CommandError(f"{table}: {message.removeprefix(f'{table}: ')}") from error
            time.sleep(PAUSE)


def _explain(error: DBAPIError, wait: float) -> str | None:
    """What a refusal of PostgreSQL's means here; None: it is our own fault."""
    state = _sqlstate(error)
    if state in BUSY:
        return (
            f"another transaction has held a lock on it, or on the sequence of tokens, for {wait:g} s (see"
            f" {WHERE_TO_LOOK})."
        )
    if state == _NO_TRANSACTION:
        return "this needs the migration's transaction; it cannot be inside of autocommit_block()."
    if state == _FORBIDDEN:
        return f"{error.orig}: run the migration as a member of the role that owns the schema fencepost."
    return _sentences(error) if state in REFUSED else None


def _require_schema(bind: SyncConnection, table: str) -> None:
    """Refuse where the functions are not there, or would mean something else."""
    if bind.dialect.name != "postgresql":
        raise CommandError(f"{table}: Fencepost protects tables of PostgreSQL, and this is {bind.dialect.name}.")
    with bind.begin_nested():
        found = bind.scalar(text(versions.FOUND)) and bind.scalar(text(versions.CURRENT))
        oldest = bind.scalar(text(versions.HAS_OLDEST)) and bind.scalar(text(versions.OLDEST))
        isolation = bind.scalar(text("SELECT current_setting('transaction_isolation')"))
    schema = versions.compare(found or None, oldest or None)
    if not schema.works:
        raise CommandError(f"{table}: schema fencepost: {schema.describe()}")
    if isolation != "read committed":
        raise CommandError(
            f"{table}: the migration's transaction is {isolation}. Marks are read once the table is locked, and must"
            " not be older than the lock: use READ COMMITTED."
        )


# Drivers call the parts of an error by different names.


def _sqlstate(error: DBAPIError) -> str | None:
    original = error.orig
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None) or _of_pg8000(error).get("C")
    return None if state is None else str(state)


def _sentences(error: DBAPIError) -> str:
    """Read the message with its detail and its hint, and without the lines of functions that it was raised in."""
    original = error.orig
    if (said := getattr(original, "diag", None)) is not None:  # psycopg
        parts = [said.message_primary, said.message_detail, said.message_hint]
    elif of := _of_pg8000(error):
        parts = [of.get(part) for part in "MDH"]
    else:
        of_asyncpg = getattr(original, "__cause__", None)
        parts = [getattr(of_asyncpg, part, None) for part in ("message", "detail", "hint")]
    return " ".join(part.replace("\n", " ") for part in parts if part) or str(original)


def _of_pg8000(error: DBAPIError) -> Mapping[str, str]:
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], dict) else {}
