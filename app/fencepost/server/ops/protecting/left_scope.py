"""A table that leaves its scope (R8) takes the prefix's highest mark as its own floor, and its next protection by
rows writes it into the rows.
"""

from typing import Final

from fencepost.server.fence.resource import Scope, parse_scope
from fencepost.server.fence.token import Ceiling
from fencepost.server.ops.protecting.functions import drop_functions
from fencepost.server.ops.protecting.names import relation, take_name
from fencepost.server.ops.protecting.table import (
    drop_scope_functions,
    drop_triggers,
    drop_truncate_triggers,
    mend_reset,
    refuse_above_sql,
    scope_marks_sql,
)
from fencepost.server.ops.protecting.target import Target
from fencepost.server.postgres.row_sql import encode_name, literal
from fencepost.server.postgres.tables import quote

SCOPE_PARTS: Final = ("scope", "scope_ins", "scope_upd")


def lock_prefix(prefix: str) -> str:
    """Keep all writers out of a prefix's scopes until the end of the transaction."""
    return f"SELECT pg_advisory_xact_lock(hashtextextended({literal('fencepost.scope/' + prefix)}, 0))"


def leave_for(target: Target, scope: Scope | None, ceiling: Ceiling | None) -> list[str]:
    """List what takes a table out of the scope that it is in, if that is not the one that it is to have."""
    now = target.registered
    before = parse_scope(now.scope) if now is not None and now.scope is not None else None
    if now is None or before is None or before == scope:
        return []
    table = f"{quote(target.schema)}.{quote(target.relation)}"
    return leave_sql(table, now.name, target.name, now.functions, before, ceiling)


def leave_sql(
    table: str, name: str, now_called: str, stem: str, scope: Scope, ceiling: Ceiling | None = None
) -> list[str]:
    """List what takes a table out of its scope: its floor becomes the highest mark that its rows may have had. If it
    was renamed, that of the name that it has now: the next protection is of that one. A mark above the ceiling is
    refused, before it becomes the mark of every row.
    """
    prefix, now = literal(scope.prefix), literal(now_called)
    return [
        f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE",
        lock_prefix(scope.prefix),
        *(
            []
            if ceiling is None
            else refuse_above_sql(ceiling.max_token, scope_marks_sql(scope.prefix, registered=True))
        ),
        *([take_name(table, now_called)] if name != now_called else []),
        f"INSERT INTO fencepost.floors AS f (name, relation, floor, covers_rows)"
        f" SELECT {now}, {relation(table)}, greatest((SELECT max(m.last_fence_token) FROM fencepost.marks m"
        f" WHERE starts_with(m.resource, {literal(encode_name(scope.prefix) + '/')})),"
        f" (SELECT max(p.floor) FROM fencepost.floors p WHERE p.name IN ({prefix}, {literal(name)})), 0), true"
        f" ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor), covers_rows = true,"
        f" relation = excluded.relation",
        f"UPDATE fencepost.protected SET scope = NULL WHERE name = {literal(name)}",
        *drop_triggers(table, SCOPE_PARTS),
        *drop_scope_functions(stem),
    ]


def raise_rows_sql(target: Target, ceiling: Ceiling | None = None) -> list[str]:
    """List what precedes a protection by rows: those that have no marks of their own take the floor as theirs."""
    table, name = f"{quote(target.schema)}.{quote(target.relation)}", literal(target.name)
    mend = literal(mend_reset("%s", registered=True))
    above = "NULL" if ceiling is None else f"'{ceiling.max_token}'"
    return [f"SELECT fencepost.raise_rows({literal(table)}::regclass, {name}, {above}, {mend})"]


def unprotect_scope_sql(
    table: str, name: str, now_called: str, stem: str, scope: Scope, partitions: tuple[str, ...]
) -> list[str]:
    """List what undoes `protect --scope`. Marks and floors stay: a later protect goes on from them."""
    return [
        *leave_sql(table, name, now_called, stem, scope),
        *drop_truncate_triggers(table, partitions),
        *drop_functions(stem),
        f"DELETE FROM fencepost.protected WHERE name = {literal(name)}",
        "NOTIFY fencepost, 'reload'",
    ]
