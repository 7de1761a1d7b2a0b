"""What a request must have before PostgreSQL is asked: a protected table, a token, columns, a key."""

from collections.abc import Sequence
from typing import Final

from fencepost.server.fence.problem_types import TOKEN_REQUIRED, UNPROTECTED_TABLE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.seal import Binding, Presented, SealedToken
from fencepost.server.fence.token import Token
from fencepost.server.gateway.seals import Seals, no_keys, refused
from fencepost.server.postgres.answers import Shown, nothing
from fencepost.server.postgres.answers import shown as read_shown
from fencepost.server.postgres.query import OtherKeyError, QueryError, Select, UnknownColumnError
from fencepost.server.postgres.row_sql import encode_name
from fencepost.server.postgres.tables import MARK_COLUMN, Catalog, Fence, ProtectedTable, Table


def require_served(catalog: Catalog, table: Table) -> Problem | None:
    """Refuse to read what is not protected, unless the gateway serves that, too."""
    if catalog.reads(table):
        return None
    return Problem(
        UNPROTECTED_TABLE,
        f"{table.name} is not protected, and this gateway serves what is protected only.",
        hint=f"fencepost protect {table.name}, or FENCEPOST_SERVE_UNPROTECTED=1 at the gateway: it is read then.",
    )


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
        f"{table.name} is registered as protected, and its fence does not hold: {table.fence.broken}.",
        hint=f"`fencepost doctor` shows what is missing; `fencepost protect {table.name}` mends it.",
    )


Authority = tuple[Token, Binding | None]
"""The number of a token, and what its seal is bound to; None: it has no seal, and needs none."""


def require_token(table: ProtectedTable, presented: Presented | None, seals: Seals) -> Authority | Problem:
    """Refuse a write without token (R13), whether or not its row exists; and without a seal where the table wants one.
    A seal that is there is verified in any case. Whether it is for what is written, the caller has to see to.
    """
    if presented is None:
        return Problem(
            TOKEN_REQUIRED,
            f"{table.name} is protected: the write carries no X-Fence-Token.",
            hint=_SEND_SEALED if table.fence.sealed else "Send the token that your lock service gave with the grant.",
        )
    if table.fence.sealed and seals.keys is None:
        return no_keys(table.name)
    if isinstance(presented, SealedToken):
        return _require_seal(table, presented, seals)
    if table.fence.sealed:
        return Problem(
            TOKEN_REQUIRED,
            f"{table.name} takes sealed tokens only, and token {presented} has no seal.",
            hint=_SEND_SEALED,
            presented_token=presented,
        )
    return presented, None


def _require_seal(table: ProtectedTable, presented: SealedToken, seals: Seals) -> Authority | Problem:
    binding = seals.verify(presented)
    if isinstance(binding, Problem):
        return binding
    if table.fence.pinned and binding.source != table.fence.source:
        return refused(
            presented.number,
            "other-source",
            f"is of the source {binding.source}, and {table.name} takes tokens of {table.fence.source}.",
            f'Acquire with "source": "{table.fence.source}".',
        )
    return presented.number, binding


def require_reach(table: ProtectedTable, authority: Authority) -> Problem | None:
    """Refuse a DELETE under a seal that is not for all of the table, where foreign keys may take other rows of it with
    the one that is named (ON DELETE CASCADE from a row to its children). It is for rows that have marks of their own:
    a scope's own trigger sees to it.
    """
    number, binding = authority
    fence = table.fence
    if binding is None or not fence.deletes_own_rows:
        return None
    if binding.covers_all(f"{encode_name(fence.name)}/"):
        return None
    return refused(
        number,
        "other-resource",
        f"is not for all rows of {table.name}, and a foreign key takes others of them with a row that is deleted.",
        f'Acquire with "writes": ["{encode_name(fence.name)}/*"].',
    )


_SEND_SEALED: Final = "Send `sealed_token` whole, as the gateway gave it with the lease: a number alone can be made up."


def require_columns(table: Table, columns: Sequence[str]) -> None:
    """Refuse body keys that are no columns, and the mark, which only the gateway writes."""
    for name in columns:
        if name == MARK_COLUMN:
            raise QueryError(f"body: {MARK_COLUMN} is the mark and not data: the token travels in X-Fence-Token")
        if name not in table.columns:
            raise UnknownColumnError(f"body: {name}", table.name)


def require_key(table: Table, key: Sequence[str]) -> None:
    """Refuse a path whose key does not fit the table's (OtherKeyError)."""
    if not table.key:
        raise OtherKeyError(f"{table.name} has no primary key: name rows by filters, ?column=eq.value")
    if len(key) != len(table.key):
        raise OtherKeyError(
            f"the key of {table.name} has {len(table.key)} value(s), {','.join(table.key)}; the path has {len(key)}"
            " (a comma inside a value is written %2C)"
        )


def require_once(fence: Fence, once: object | None) -> Problem | None:
    """Refuse a write without a key where the table wants one."""
    if once is not None or not fence.requires_key:
        return None
    return bad_request(
        f"Idempotency-Key: writes to {fence.name} need one.",
        "Choose a new one for every write, for example a UUID, and send it again when you repeat the write.",
    )


def not_with_queue(fence: Fence, what: str) -> Problem:
    """Refuse what a table cannot take whose tokens are positions in a queue (R12)."""
    return bad_request(
        f"{fence.name} takes all its writes by the queue {fence.queue}, one row each: {what} cannot be one of them.",
        "The place of a write in the queue is its token: send PATCH, PUT or DELETE of a row, or POST of one object,"
        " without X-Fence-Token.",
    )


def ready_to_write(
    table: Table, presented: Presented | None, columns: tuple[str, ...], once: object | None, seals: Seals
) -> tuple[ProtectedTable, Authority] | Problem:
    """Check what every write to a collection needs: a fence, columns that there are, a token."""
    protected = require_protected(table)
    if isinstance(protected, Problem):
        return protected
    require_columns(table, columns)
    if (keyless := require_once(protected.fence, once)) is not None:
        return keyless
    checked = require_token(protected, presented, seals)
    return checked if isinstance(checked, Problem) else (protected, checked)


def target_of(table: Table, select: Select, most: int, *, shown: bool) -> Shown:
    """Read what the answer shows, in at most so many bytes; nothing if no row is shown. QueryError for an unknown
    column in any case.
    """
    target = read_shown(table, select, most)
    return target if shown else nothing(most)
