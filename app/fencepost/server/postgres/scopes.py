"""Scopes in statements: who may use one, its mark, its names, and the statement that comes before a batch's writes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import Token
from fencepost.server.postgres.answers import Given, key_texts, typed, unnested
from fencepost.server.postgres.connection import (
    MOST_KEY_COLUMNS,
    OF_KEY,
    OF_WRITES,
    Batch,
    Bound,
    Connection,
    Key,
    Parameter,
    RowWrite,
    Statement,
    ask,
    compiled,
)
from fencepost.server.postgres.database import savepoint
from fencepost.server.postgres.errors import DATA_EXCEPTION, VIOLATION, RefusedError
from fencepost.server.postgres.keyed import Recorded, State, read_state
from fencepost.server.postgres.many import TooManyRows
from fencepost.server.postgres.query import Filter, render_filters
from fencepost.server.postgres.row_sql import literal, operator, resource_sql, row_scope, the_row
from fencepost.server.postgres.tables import Column, Fence, Table, quote

# Whether a role has to do with a scope: with the tables that share it, and the rows in it. Asked as that role.

_OPEN: Final = """
SELECT c.oid::int8 AS oid, pg_catalog.row_security_active(c.oid) AS ruled
  FROM fencepost.protected p JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) p.relation
 WHERE pg_catalog.left(p.scope, pg_catalog.strpos(p.scope, '/{') OPERATOR(pg_catalog.-) 1) OPERATOR(pg_catalog.=) $1
   AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE')
   AND CASE WHEN $2 THEN pg_catalog.has_table_privilege(c.oid, 'DELETE')
                         OR pg_catalog.has_any_column_privilege(c.oid, 'INSERT, UPDATE')
            ELSE pg_catalog.has_any_column_privilege(c.oid, 'SELECT') END"""
"""What fencepost.may_write asks for writers, for the role of now."""


async def tables_open(connection: Connection, scope: Scope, *, writing: bool) -> dict[int, bool]:
    """List the tables of a scope that the role may read, or write to: by oid, whether row security rules it there."""
    rows = await ask(connection, _OPEN, scope.prefix, writing)
    return {row["oid"]: row["ruled"] for row in rows}


async def has_row(connection: Connection, table: Table, name: str, *, writing: bool) -> bool:
    """Whether the policies of a table show a row of the scope; writing: one that may be changed. It is locked then, so
    that it stays; the scope's mark was taken before (R20).
    """
    if table.fence is None or table.fence.scope is None:
        return False
    lock = " FOR KEY SHARE" if writing else ""
    row = await connection.fetchrow(
        f"SELECT 1 FROM {table.sql_name} AS r WHERE {row_scope(table, table.fence.scope)} OPERATOR(pg_catalog.=) $1"
        f" LIMIT 1{lock}",
        name,
    )
    return row is not None


# The marks of scopes (R8): entering them, which raises their marks, and looking them up.


@dataclass(frozen=True, slots=True)
class Entered:
    """What became of one scope's mark: accepted, or the mark that refused the token."""

    scope: str
    refused_by: int | None


async def enter(
    connection: Connection, table: Table, scope: Scope, scopes: Sequence[str], token: Token
) -> list[Entered]:
    """Raise the scopes' marks, sorted; RefusedError (FP000) when the table has another scope by now."""
    rows = await connection.fetch(
        "SELECT e.scope, e.refused_by FROM fencepost.gateway_enter($1, $2, $3, $4, $5) AS e",
        scope.prefix,
        list(scopes),
        token,
        table.oid,
        scope.template,
    )
    return [Entered(row["scope"], row["refused_by"]) for row in rows]


@dataclass(frozen=True, slots=True)
class ScopeMark:
    """What is known of one scope: its mark, where it has one (and since when), and the floor of its prefix."""

    scope: str
    recorded: int | None
    floor: int
    changed_at: str | None

    @property
    def mark(self) -> int:
        """The highest token that is refused under `strict`; 0: none."""
        return max(self.recorded or 0, self.floor)


async def marks(connection: Connection, scope: Scope, scopes: Sequence[str]) -> list[ScopeMark]:
    """Look scopes up, in one snapshot."""
    rows = await connection.fetch(
        "SELECT u.scope, m.last_fence_token AS recorded, coalesce(fencepost.gateway_floor_of($1), 0) AS floor,"
        " pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{}' AS changed_at"
        " FROM pg_catalog.unnest($2::text[]) AS u(scope)"
        " LEFT JOIN LATERAL fencepost.gateway_mark_record(u.scope) AS m ON true",
        scope.prefix,
        list(scopes),
    )
    return [ScopeMark(row["scope"], row["recorded"], row["floor"], row["changed_at"]) for row in rows]


async def tables_of(connection: Connection, fence: Fence, scope: Scope) -> list[str]:
    """Name the tables that share the scopes; RefusedError (FP000) when the fence's table is none of them by now."""
    rows = await connection.fetch(
        "SELECT p.name FROM fencepost.protected p JOIN pg_class c ON c.oid OPERATOR(pg_catalog.=) p.relation"
        " WHERE pg_catalog.left(p.scope, pg_catalog.strpos(p.scope, '/{') - 1) = $1 ORDER BY p.name",
        scope.prefix,
    )
    names = [row["name"] for row in rows]
    if fence.name not in names:
        await connection.execute("SELECT fencepost.outdated($1)", fence.name)
    return names


# Which scope a row is in, or would be (R8): read from the row, or rendered from key, body and filters. No locks.

_WIDEST = {"int2": "pg_catalog.int8", "int4": "pg_catalog.int8", "varchar": "pg_catalog.text"}
"""The tables of a scope may have integers of different widths: a scope's name is read as the widest."""

_ALWAYS_FIT: Final = {"int2": 4, "int4": 9}
"""So many characters of an integer fit into its type."""


async def scope_of_row(connection: Connection, table: Table, scope: Scope, key: Key) -> str | None:
    """Read a row's scope, without a lock: its columns never change. None: there is no row."""
    text = f"SELECT {row_scope(table, scope)} FROM {table.sql_name} AS r WHERE {the_row(table)}"
    found: str | None = await compiled(text, OF_KEY).value(connection, key)
    return found


async def scope_named(
    connection: Connection, table: Table, scope: Scope, key: Key, columns: Sequence[str], body: str
) -> str | None:
    """Render the scope that key and body name together, from typed values; None: one of them is null."""
    bound = Bound()
    values = dict(zip(table.key, key, strict=True))
    parts = []
    from_body = tuple(name for name in scope.columns if name not in values and name in columns)
    for name in scope.columns:
        column = table.columns[name]
        value = f"CAST({bound.add(values[name])} AS {column.base_type})" if name in values else f"b.{quote(name)}"
        parts.append((column.base_name, value))
    source = (
        f" FROM json_to_record({bound.add(body, 'json')}) AS b({full_columns(table, from_body)})" if from_body else ""
    )
    statement = compiled(f"SELECT {resource_sql(scope.prefix, parts)}{source}", bound.parameters)
    found: str | None = await statement.value(connection, None)
    return found


def full_columns(table: Table, columns: Sequence[str]) -> str:
    """List columns with their full types: a scope is named after what will be stored, rounded and cut."""
    return ", ".join(f"{quote(name)} {table.columns[name].type}" for name in columns)


async def scopes_of_body(connection: Connection, table: Table, scope: Scope, body: str) -> list[str | None]:
    """Render the scopes of all rows of a JSON array, each once; None among them: a row lacks a column."""
    rows = await connection.fetch(
        f"SELECT DISTINCT {row_scope(table, scope, 'b')} AS scope"
        f" FROM json_to_recordset($1::json) AS b({full_columns(table, scope.columns)})",
        body,
    )
    return [row["scope"] for row in rows]


async def scopes_matching(
    connection: Connection, table: Table, scope: Scope, filters: tuple[Filter, ...], limit: int
) -> list[str] | TooManyRows:
    """Render the scopes of the rows that match, each once; no more than `limit` rows may match."""
    bound = Bound()
    condition = render_filters(table, filters, bound)
    rows = await compiled(
        f"SELECT m.scope, count(*) AS rows FROM (SELECT {row_scope(table, scope)} AS scope FROM {table.sql_name} AS r"
        f" WHERE {condition} LIMIT {limit + 1}) AS m GROUP BY m.scope",
        bound.parameters,
    ).fetch(connection, None)
    return TooManyRows(limit) if sum(row["rows"] for row in rows) > limit else [row["scope"] for row in rows]


async def scopes_typed(
    connection: Connection, table: Table, scope: Scope, values: Sequence[tuple[str, ...]]
) -> list[str]:
    """Render scopes from the texts of their columns' values, in the order given."""
    texts = [key_texts(n) for n, _ in enumerate(scope.columns)]
    columns = [table.columns[c] for c in scope.columns]
    given = unnested(texts)
    parts = [
        (column.base_name, f"CAST({text} AS {_WIDEST.get(column.base_name, column.base_type)})")
        for column, text in zip(columns, given.texts, strict=True)
    ]
    rows = await compiled(
        f"SELECT {resource_sql(scope.prefix, parts)} AS scope FROM {given.source} ORDER BY {given.place}", texts
    ).fetch(connection, values)
    return [row["scope"] for row in rows]


def may_change(table: Table, scope: Scope, values: Sequence[str]) -> bool:
    """Whether storing could change a scope's values, or refuse them: rounded numbers, texts cut to length, domains."""
    return any(
        _column_may_change(table.columns[name], value) for name, value in zip(scope.columns, values, strict=True)
    )


def _column_may_change(column: Column, value: str) -> bool:
    is_domain = "." in column.type and column.type != column.base_type
    if column.max_length is not None and not is_domain:
        return len(value) > column.max_length
    return column.type != column.base_type or len(value) > _ALWAYS_FIT.get(column.base_name, len(value))


async def stores(connection: Connection, table: Table, scope: Scope, values: Sequence[str]) -> bool:
    """Whether a row of the table can have these values of its scope, which can be read as the types."""
    bound = Bound()
    tests = []
    for name, value in zip(scope.columns, values, strict=True):
        column = table.columns[name]
        wanted = _WIDEST.get(column.base_name, column.base_type)
        named = f"CAST({bound.add(value)} AS {wanted})"
        tests.append(f"{named} {operator(column, '=')} CAST(CAST({named} AS {column.type}) AS {wanted})")
    try:
        async with savepoint(connection):
            ((same,),) = await compiled(f"SELECT {' AND '.join(tests)}", bound.parameters).ask(connection, None)
    except RefusedError as error:
        if not error.sqlstate.startswith((DATA_EXCEPTION, VIOLATION)):  # too large, or a domain's CHECK
            raise
        return False
    return bool(same)


# What comes before the writes of a batch (group_commit.py), in one statement and in the order of R20: Idempotency-Keys
# are looked up (R16), then the scopes of those that are new are found and entered (R8).
#
# It leaves alone what another transaction holds, but for what fencepost.enter_each waits for, a moment
# (migrations/schema/scopes.sql). Scopes are read from rows without a lock: their columns never change.

ScopeOf = Literal["row", "key and body", "body"]
"""What a write's scope is read from. A key has a body beside it that is an object; a body alone is an array of one."""


@dataclass(slots=True)
class Opened:
    """What became of it. `refused_by` is the mark that refused."""

    key: Recorded | State
    scope: str = ""
    """The scope, entered or not; empty where there is none."""
    verdict: Literal["entered", "refused", "busy", "unclear"] = "entered"
    refused_by: int | None = None


@dataclass(frozen=True, slots=True)
class Prelude:
    """The statement. No Idempotency-Key may be in its batch twice."""

    statement: Statement[Batch]
    idempotent: bool
    scoped: bool

    async def run(self, connection: Connection, batch: Batch) -> list[Opened]:
        rows = await self.statement.fetch(connection, batch)
        if not self.scoped:
            return [Opened(read_state(row)) for row in rows]
        if not self.idempotent:
            return [Opened("new", row[0] or "", row[1], row[2]) for row in rows]
        return [Opened(read_state(row), row[3] or "", row[4], row[5]) for row in rows]


def _of_each(name: str, type_: str, read: Callable[[RowWrite], object]) -> Parameter[Batch]:
    return Parameter(name, f"{type_}[]", lambda batch: [read(write) for write in batch])


_WHOSE: Final[Parameter[Batch]] = Parameter("caller", "text", lambda batch: batch[0].keys_of)
_KEYS: Final = _of_each("idempotency keys", "text", attrgetter("idempotency_key"))
_HASHES: Final = _of_each("payload hashes", "bytea", attrgetter("payload_hash"))
_TOKENS: Final = _of_each("tokens", "bigint", attrgetter("token"))
_BODIES: Final = _of_each("bodies", "text", attrgetter("body"))
_KEY_PARTS: Final = tuple(_of_each(each.name, "text", each.read) for each in OF_WRITES[:MOST_KEY_COLUMNS])
_PARAMETERS: Final = (_WHOSE, _KEYS, _HASHES, _TOKENS, *_KEY_PARTS, _BODIES)


def prelude(table: Table, scope: Scope | None, scope_of: ScopeOf, *, idempotent: bool) -> Prelude | None:
    """Write the statement; None: nothing comes before the writes. `idempotent`: Idempotency-Keys are looked up."""
    if scope is None and not idempotent:
        return None
    begun_keys = f"fencepost.gateway_idem_begin_each({_WHOSE}, {_KEYS}, {_HASHES})"
    known = "k.state, k.outcome, k.rows"
    if scope is None:
        text = f"SELECT {known} FROM {begun_keys} AS k ORDER BY k.number"
        return Prelude(compiled(text, _PARAMETERS), idempotent, scoped=False)
    name, given = _scopes(table, scope, scope_of)
    if idempotent:
        # Whose key is not new enters nothing.
        named = f"SELECT CASE k.state WHEN 'new' THEN {name} END FROM {given} JOIN k ON k.number = x.o - 1"
    else:
        named = f"SELECT {name} FROM {given}"
    entered = (
        f"fencepost.gateway_enter_each({literal(scope.prefix)}, ARRAY({named} ORDER BY x.o), {_TOKENS},"
        f" {table.oid}::oid, {literal(scope.template)})"
    )
    verdict = "e.scope, e.verdict, e.refused_by"
    if idempotent:
        text = (
            f"WITH k AS MATERIALIZED (SELECT * FROM {begun_keys})"
            f" SELECT {known}, {verdict} FROM {entered} AS e JOIN k USING (number) ORDER BY e.number"
        )
    else:
        text = f"SELECT {verdict} FROM {entered} AS e ORDER BY e.number"
    return Prelude(compiled(text, _PARAMETERS), idempotent, scoped=True)


def _scopes(table: Table, scope: Scope, scope_of: ScopeOf) -> tuple[str, str]:
    """Render a write's scope, and what it is read from: rows of x."""
    of_key = _KEY_PARTS[: len(table.key)] if scope_of != "body" else ()
    given = unnested([*of_key, *([_BODIES] if scope_of != "row" else ())])
    values = typed(table, given.texts[: len(of_key)]) if of_key else {}
    if scope_of == "row":
        match = Given(given.source, values, given.place).match(table)
        return f"(SELECT {row_scope(table, scope)} FROM {table.sql_name} AS r WHERE {match})", given.source
    source = given.source
    if wanted := [column for column in scope.columns if column not in values]:
        reads = "json_to_recordset" if scope_of == "body" else "json_to_record"
        body = given.texts[-1]
        source += f" CROSS JOIN LATERAL {reads}({body}::json) AS b({full_columns(table, wanted)})"
    parts = [(table.columns[c].base_name, values.get(c, f"b.{quote(c)}")) for c in scope.columns]
    return resource_sql(scope.prefix, parts), source
