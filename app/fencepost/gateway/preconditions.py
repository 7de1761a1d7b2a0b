"""What a request must have before PostgreSQL is asked: a protected table, a token, columns, a key."""

from collections.abc import Sequence

from fencepost.fencing.problem_types import (
    TOKEN_REQUIRED,
    UNPROTECTED_TABLE,
)
from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.token import Token
from fencepost.storage.statements.query import QueryError, UnknownColumnError
from fencepost.storage.tables.catalog import MARK_COLUMN, Fence, ProtectedTable, Table


def require_protected(table: Table) -> ProtectedTable | Problem:
    """Refuse a write to what is not protected (R13), or whose protection is broken."""
    if isinstance(table, ProtectedTable):
        return table
    if table.fence is None:
        what = "is not protected" if table.kind in ("table", "partitioned table") else f"is a {table.kind}"
        return Problem(
            UNPROTECTED_TABLE,
            f"{table.name} {what}: Fencepost reads it, and writes only where a fence checks.",
            hint=f"fencepost protect {table.name}" if table.key else None,
        )
    return Problem(
        UNPROTECTED_TABLE,
        f"{table.name} is registered as protected, but its name, triggers, column or key have changed.",
        hint=f"`fencepost doctor` says what is missing; `fencepost protect {table.name}` mends it.",
    )


def require_token(table: Table, token: Token | None) -> Token | Problem:
    """Refuse a write without token (R13): whether or not its row exists."""
    if token is None:
        return Problem(
            TOKEN_REQUIRED,
            f"{table.name} is protected: the write carries no X-Fence-Token.",
            hint="Send the token that your lock service gave with the grant.",
        )
    return token


def require_columns(table: Table, columns: Sequence[str]) -> None:
    """Refuse body keys that are no columns, and the mark, which only the gateway writes."""
    for name in columns:
        if name == MARK_COLUMN:
            raise QueryError(f"body: {MARK_COLUMN} is the mark and not data: the token travels in X-Fence-Token")
        if name not in table.columns:
            raise UnknownColumnError(f"body: {name}", table.name)


def require_key(table: Table, key: Sequence[str]) -> None:
    """Refuse a path whose key does not fit the table's."""
    if not table.key:
        raise QueryError(f"{table.name} has no primary key: name rows by filters, ?column=eq.value")
    if len(key) != len(table.key):
        raise QueryError(
            f"the key of {table.name} has {len(table.key)} value(s), {','.join(table.key)}; the path has {len(key)}"
            " (a comma inside a value is written %2C)"
        )


def require_once(fence: Fence, once: object | None) -> Problem | None:
    """Refuse a write without a key where the table wants one."""
    if once is not None or not fence.requires_key:
        return None
    return bad_request(
        f"Idempotency-Key: writes to {fence.name} need one.",
        "Choose a new one for every write, a UUID say, and send it again when you repeat the write.",
    )
