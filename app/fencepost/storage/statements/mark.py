"""How a statement names the mark that judges a row: the row's own (R1, R2), or that of its scope (R8).

A row's mark is compared and stored by the statement itself. A scope's mark was judged and raised before, by
`fencepost.enter`: the statement is bound to rows of the scopes that were entered.
"""

from typing import NamedTuple

from fencepost.storage.statements.parameters import SCOPE, SCOPES, TOKEN
from fencepost.storage.statements.row_sql import FOUND_MARK, MARK, comparison, row_scope
from fencepost.storage.tables.catalog import ProtectedTable


class Mark(NamedTuple):
    """Pieces of SQL about the row `r`."""

    passes: str
    """The write of one row may go on."""
    within: tuple[str, ...]
    """What else the rows have in common that a write of several may meet: terms of an AND."""
    refuses: str
    """Of a row that was met and locked, with its mark as FOUND_MARK: the write must not go on."""
    shown: str
    """The mark as the write has left it; 0 where it is the scope's."""
    stored: tuple[tuple[str, str], ...]
    """What an UPDATE or INSERT stores beside the row's other columns, as (column, value): -t, which is a token and no
    echo of the column (R14). The triggers judge it and store t. Where there are none, the table's check refuses -t: the
    table was unprotected, and we have not heard of it (R13), or it only looks like the protected one."""


def mark_of(table: ProtectedTable) -> Mark:
    """Give the pieces for a table."""
    rule, scope = table.fence.rule, table.fence.scope
    if scope is not None:
        named = row_scope(table, scope)
        return Mark(f"{named} = {SCOPE}", (f"{named} = ANY ({SCOPES})",), "false", "0::bigint", ())
    lets_pass = f"{comparison(rule)} {TOKEN}"
    return Mark(
        passes=f"r.{MARK} {lets_pass}",
        within=(),
        refuses=f"NOT {FOUND_MARK} {lets_pass}",
        shown=f"r.{MARK}",
        stored=((MARK, f"-{TOKEN}"),),
    )
