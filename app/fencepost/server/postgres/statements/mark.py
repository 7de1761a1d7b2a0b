"""How a statement names the mark that judges a row: the row's own (R1, R2), or that of its scope (R8).

A row's mark is compared and stored by the statement itself. A scope's mark was judged and raised before, by
`fencepost.enter`: the statement is bound to rows of the scopes that were entered.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from fencepost.server.postgres.statements.parameters import SCOPE, SCOPES, TOKEN
from fencepost.server.postgres.statements.row_sql import (
    FOUND_MARK,
    MARK,
    comparison,
    of_types,
    or_outdated,
    or_unfenced,
    row_scope,
    same_table,
)
from fencepost.server.postgres.tables.catalog import ProtectedTable


class Mark(NamedTuple):
    """Pieces of SQL about the row `r`."""

    same_table: str
    """The table's name still means the table that the catalog has seen, its key is the one, and the columns that are
    given have the types; raises FP000 where that is not so (R13)."""
    passes: str
    """The write of one row may go on."""
    within: tuple[str, ...]
    """What else the rows have in common that a write of several may meet: terms of an AND."""
    refuses: str
    """Of a row that was met and locked, with its mark as FOUND_MARK: the write must not go on."""
    shown: str
    """The mark as the write has left it; 0 where it is the scope's."""
    may_insert: str
    """The same as `same_table`, of an INSERT, which only a trigger judges: raises FP005 where that does not fire. A
    partition's is looked at by the trigger that gives the row its token (functions.py)."""
    stored: tuple[tuple[str, str], ...]
    """What an UPDATE or INSERT stores beside the row's other columns, as (column, value): -t, which is a token and no
    echo of the column (R14). The triggers judge it and store t. Where there are none, the table's check refuses -t: the
    table was unprotected, and we have not heard of it (R13), or it only looks like the protected one."""


def mark_of(table: ProtectedTable, given: Collection[str] = (), *, deletes: bool = False) -> Mark:
    """Give the pieces for a table. `given`: the columns that the body gives values of."""
    rule, scope = table.fence.rule, table.fence.scope
    same = or_outdated(table.fence.name, [*same_table(table), *of_types(table, given)])
    if deletes or not table.updates_reach_further.isdisjoint(given):
        same = " AND ".join((same, *_reached_fences(table)))
    name, oid = table.fence.name, table.oid
    if scope is not None:
        # Its trigger keeps a row from changing its scope, which no check would refuse.
        same = f"{same} AND {or_unfenced(name, oid, 'scope')}"
        named = row_scope(table, scope)
        within = (same, f"{named} = ANY ({SCOPES})")
        return Mark(same, f"{same} AND {named} = {SCOPE}", within, "false", "0::bigint", same, ())
    lets_pass = f"{comparison(rule)} {TOKEN}"
    judged = f" AND {or_unfenced(name, oid, 'insmark')}" if table.kind == "table" else ""
    return Mark(
        same_table=same,
        passes=f"{same} AND r.{MARK} {lets_pass}",
        within=(same,),
        refuses=f"NOT {FOUND_MARK} {lets_pass}",
        shown=f"r.{MARK}",
        may_insert=f"{same}{judged}",
        stored=((MARK, f"-{TOKEN}"),),
    )


def _reached_fences(table: ProtectedTable) -> Iterator[str]:
    """Look at the fences of the tables to which foreign keys' actions lead: PostgreSQL writes to these by itself."""
    for oid, name, scoped in table.reached:
        for trigger in ("scope",) if scoped else ("del", "upd"):
            yield or_unfenced(name, oid, trigger, each_time=True)
