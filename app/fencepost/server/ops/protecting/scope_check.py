"""Whether a scope fits its table and the other tables that have it (R8)."""

from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.fence.resource import MalformedScopeError, Scope, parse_scope
from fencepost.server.fence.token import Ceiling, Rule
from fencepost.server.ops.protecting.check import ProtectError
from fencepost.server.ops.protecting.target import COLUMNS, KEY_TYPES, KeyColumn, Target
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection

_FAMILIES: Final = {"int2": "integer", "int4": "integer", "int8": "integer", "varchar": "text"}
"""Types whose values have the same texts, so that tables may differ in them."""

PREFIX_OF: Final = "left(p.scope, strpos(p.scope, '/{') - 1)"
"""The name of a scope of fencepost.protected p, without its columns."""

_COLUMNS: Final = f"""{COLUMNS}
 WHERE a.attrelid = $1::int8::oid AND a.attname = ANY ($2) AND a.attnum > 0 AND NOT a.attisdropped"""

_SIBLINGS: Final = f"""
SELECT p.name, p.rule, p.source, p.sealed, p.max_token, p.max_jump, p.scope, p.relation::oid::int8 AS oid
  FROM fencepost.protected p
  JOIN pg_class c ON c.oid = p.relation
 WHERE {PREFIX_OF} = $1 AND p.relation <> $2::int8::oid ORDER BY p.name"""

_TABLES: Final = """
SELECT n.nspname::text AS schema, c.relname::text AS relation
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
   AND $1::text IN (c.relname::text, n.nspname || '.' || c.relname)"""


@dataclass(frozen=True, slots=True)
class TableScope:
    """A scope that fits its table: `columns` are the template's, with their types."""

    scope: Scope
    columns: tuple[KeyColumn, ...]


def read_template(table: str, template: str) -> Scope:
    """Read a template; ProtectError when it is none."""
    try:
        return parse_scope(template)
    except MalformedScopeError as error:
        raise ProtectError(table, [f"scope {error}."]) from error


async def examine_name(connection: Connection, target: Target) -> None:
    """Refuse a table that is called like a scope: one resource name would mean two things."""
    of_scope = await connection.fetchval(
        f"SELECT p.name FROM fencepost.protected p WHERE {PREFIX_OF} = $1 LIMIT 1", target.name
    )
    if of_scope is not None:
        raise ProtectError(
            target.name, [f"its name is that of a scope, {target.name}/…, of the table {of_scope}: rename one of them."]
        )


async def read_scope(connection: Connection, target: Target, template: str) -> TableScope | None:
    """Give a table's scope with its columns' types; None when they no longer fit."""
    scope = parse_scope(template)
    columns = await _template_columns(connection, target, target.oid, scope)
    return None if isinstance(columns, list) else TableScope(scope, columns)


async def examine_scope(
    connection: Connection,
    target: Target,
    scope: Scope,
    rule: Rule,
    source: str,
    ceiling: Ceiling | None,
    *,
    sealed: bool,
) -> TableScope:
    """Check a scope against its table and its other tables; ProtectError lists all that is in the way."""
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        columns = await _template_columns(connection, target, target.oid, scope)
        reasons: list[str] = columns if isinstance(columns, list) else []
        if await _is_a_table(connection, scope.prefix):
            reasons.append(
                f"the scope's name {scope.prefix} is that of a table: a resource name would mean two things."
            )
        for row in await connection.fetch(_SIBLINGS, scope.prefix, target.oid):
            if (difference := _difference(row, rule, source, ceiling, sealed=sealed)) is not None:
                reasons.append(difference)
            others = await _template_columns(connection, target, row["oid"], parse_scope(row["scope"]))
            if not isinstance(columns, list) and not isinstance(others, list) and _family(columns) != _family(others):
                reasons.append(
                    f"{row['name']} has the scope {row['scope']}, of other types or another number of columns: equal"
                    " scopes would have two names."
                )
    if isinstance(columns, list) or reasons:
        raise ProtectError(target.name, reasons)
    return TableScope(scope, columns)


async def _is_a_table(connection: Connection, name: str) -> bool:
    """Whether a table is called so, or was when it was protected."""
    tables = await connection.fetch(_TABLES, name)
    if name in {api_name(row["schema"], row["relation"]) for row in tables}:
        return True
    taken: bool = await connection.fetchval("SELECT EXISTS (SELECT FROM fencepost.protected WHERE name = $1)", name)
    return taken


def _difference(other: asyncpg.Record, rule: Rule, source: str, ceiling: Ceiling | None, *, sealed: bool) -> str | None:
    """Say in what another table of the scope is protected differently; None: in nothing."""
    if (other["rule"], other["source"]) != (rule, source):
        return (
            f"{other['name']} has the same scope with the rule {other['rule']} and the source {other['source']}; one"
            " mark has one rule and one source: unprotect the others, change this one, and protect them again."
        )
    if (other["max_token"], other["max_jump"]) != _of(ceiling):
        jump = "no --max-jump" if other["max_jump"] is None else f"--max-jump {other['max_jump']}"
        return (
            f"{other['name']} has the same scope with --max-token {other['max_token']} and {jump}; one mark has one"
            " ceiling: unprotect the others, change this one, and protect them again."
        )
    if other["sealed"] != sealed:
        return (
            f"{other['name']} has the same scope {'with' if other['sealed'] else 'without'} --sealed; one mark is"
            " raised by sealed tokens only, or by all: unprotect the others, change this one, and protect them again."
        )
    return None


def _of(ceiling: Ceiling | None) -> tuple[int | None, int | None]:
    return (None, None) if ceiling is None else (ceiling.max_token, ceiling.max_jump)


def _family(columns: tuple[KeyColumn, ...]) -> tuple[str, ...]:
    return tuple(_FAMILIES.get(column.base_name, column.base_name) for column in columns)


async def _template_columns(
    connection: Connection, target: Target, oid: int, scope: Scope
) -> tuple[KeyColumn, ...] | list[str]:
    found = {row["name"]: row for row in await connection.fetch(_COLUMNS, oid, list(scope.columns))}
    reasons = []
    for name in scope.columns:
        row = found.get(name)
        if row is None:
            reasons.append(f"the scope's column {name} is no column of {target.name}.")
            continue
        if row["is_enum"]:
            reasons.append(
                f"the scope's column {name} is of the enum {row['type']}: renaming one of its values would give"
                " a scope a new name, without a mark. Let the scope have a text column, with a CHECK."
            )
        elif not (row["builtin"] and row["base_name"] in KEY_TYPES):
            reasons.append(
                f"the scope's column {name} is of type {row['type']}, whose equal values have several texts; it can"
                f" be of {', '.join(KEY_TYPES)}, or a domain over one of these."
            )
        if not row["deterministic"]:
            reasons.append(
                f"the scope's column {name} has a nondeterministic collation: equal scopes would have two marks."
            )
        if not row["not_null"]:
            reasons.append(f"the scope's column {name} can be null: ALTER TABLE … ALTER COLUMN {name} SET NOT NULL.")
        if row["generated"]:
            reasons.append(f"the scope's column {name} is generated, and not known before a row is written.")
    return reasons or tuple(KeyColumn(n, found[n]["type"], found[n]["base_name"]) for n in scope.columns)
