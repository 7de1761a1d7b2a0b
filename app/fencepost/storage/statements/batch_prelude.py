"""What comes before the writes of a batch (group_commit.py), in one statement and in the order of R6: Idempotency-Keys
are looked up (R16), then the scopes of those that are new are found and entered (R8).

It leaves alone what another transaction holds, but for what fencepost.enter_each waits for, a moment
(migrations/schema/scopes.sql). Scopes are read from rows without a lock, as scoped.py does.
"""

from dataclasses import dataclass
from typing import Literal

from fencepost.fencing.scope import Scope
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.fenced_batch import Batch
from fencepost.storage.statements.idempotency import CALLER, Recorded, State, begun
from fencepost.storage.statements.row_sql import literal, operator, resource_sql
from fencepost.storage.statements.scope_names import full_columns, row_scope
from fencepost.storage.tables.catalog import Table, quote

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
    """The statement, written once. Parameters: where `keyed`, caller, keys and hashes; where `scope_of` is given,
    tokens, and arrays of the row's key values, of bodies, or of both.
    """

    sql: str
    keyed: bool
    scope_of: ScopeOf | None

    async def run(self, connection: Connection, batch: Batch) -> list[Opened]:
        """Run it for the writes of a batch. No Idempotency-Key may be in it twice."""
        arguments: list[object] = []
        if self.keyed:
            arguments += [CALLER, [each.idempotency_key for each in batch], [each.payload_hash for each in batch]]
        if self.scope_of is not None:
            arguments.append([each.token for each in batch])
            if self.scope_of != "body":
                arguments += [list(values) for values in zip(*(each.key for each in batch), strict=True)]
            if self.scope_of != "row":
                arguments.append([each.body for each in batch])
        rows = await connection.fetch(self.sql, *arguments)
        if self.scope_of is None:
            return [Opened(begun(row)) for row in rows]
        if not self.keyed:
            return [Opened("new", row[0] or "", row[1], row[2]) for row in rows]
        return [Opened(begun(row), row[4] or "", row[5], row[6]) for row in rows]


def prelude(table: Table, scope: Scope | None, scope_of: ScopeOf, *, keyed: bool) -> Prelude | None:
    """Write the statement; None: nothing comes before the writes."""
    keys = "fencepost.idem_begin_each($1, $2, $3)"
    if scope is None:
        sql = f"SELECT k.state, k.status, k.headers, k.answer FROM {keys} AS k ORDER BY k.number"
        return Prelude(sql, keyed, None) if keyed else None
    tokens = 4 if keyed else 1
    name, source = _scopes(table, scope, scope_of, first=tokens + 1)
    if keyed:
        # Whose key is not new enters nothing.
        names = f"SELECT CASE k.state WHEN 'new' THEN {name} END FROM {source} JOIN k ON k.number = x.o - 1"
    else:
        names = f"SELECT {name} FROM {source}"
    entered = (
        f"fencepost.enter_each({literal(scope.prefix)}, ARRAY({names} ORDER BY x.o), ${tokens}::bigint[],"
        f" {table.oid}::oid, {literal(scope.template)})"
    )
    told = "e.scope, e.verdict, e.refused_by"
    if not keyed:
        return Prelude(f"SELECT {told} FROM {entered} AS e ORDER BY e.number", keyed, scope_of)
    sql = (
        f"WITH k AS MATERIALIZED (SELECT * FROM {keys})"
        f" SELECT k.state, k.status, k.headers, k.answer, {told}"
        f" FROM {entered} AS e JOIN k USING (number) ORDER BY e.number"
    )
    return Prelude(sql, keyed, scope_of)


def _scopes(table: Table, scope: Scope, scope_of: ScopeOf, *, first: int) -> tuple[str, str]:
    """Render a write's scope, and what it is read from: x, with parameters from `first` on; x.o counts from 1."""
    key = {} if scope_of == "body" else {column: f"k{n}" for n, column in enumerate(table.key)}
    typed = {column: f"CAST(x.{name} AS {table.columns[column].base_type})" for column, name in key.items()}
    arrays = [f"pg_catalog.unnest(${first + n}::text[])" for n in range(len(key))]
    names = list(key.values())
    if scope_of != "row":
        arrays.append(f"pg_catalog.unnest(${first + len(key)}::text[])")
        names.append("body")
    source = f"ROWS FROM ({', '.join(arrays)}) WITH ORDINALITY AS x({', '.join([*names, 'o'])})"
    if scope_of == "row":
        match = " AND ".join(f"r.{quote(c)} {operator(table.columns[c], '=')} {value}" for c, value in typed.items())
        return f"(SELECT {row_scope(table, scope)} FROM {table.sql_name} AS r WHERE {match})", source
    wanted = [column for column in scope.columns if column not in key]
    if wanted:
        reads = "json_to_recordset" if scope_of == "body" else "json_to_record"
        source += f" CROSS JOIN LATERAL {reads}(x.body::json) AS b({full_columns(table, wanted)})"
    parts = [(table.columns[c].base_name, typed.get(c, f"b.{quote(c)}")) for c in scope.columns]
    return resource_sql(scope.prefix, parts), source
