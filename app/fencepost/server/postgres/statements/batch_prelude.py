"""What comes before the writes of a batch (group_commit.py), in one statement and in the order of R20: Idempotency-Keys
are looked up (R16), then the scopes of those that are new are found and entered (R8).

It leaves alone what another transaction holds, but for what fencepost.enter_each waits for, a moment
(migrations/schema/scopes.sql). Scopes are read from rows without a lock, as marks.py says.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from fencepost.server.fence.scope import Scope
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.statements.given import Given, typed, unnested
from fencepost.server.postgres.statements.idempotency import Recorded, State, read_state
from fencepost.server.postgres.statements.keyed import Batch
from fencepost.server.postgres.statements.parameters import (
    MOST_KEY_COLUMNS,
    OF_WRITES,
    Parameter,
    RowWrite,
    Statement,
    compiled,
)
from fencepost.server.postgres.statements.row_sql import literal, resource_sql, row_scope
from fencepost.server.postgres.statements.scope_names import full_columns
from fencepost.server.postgres.tables.catalog import Table, quote

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
        return [Opened(read_state(row), row[4] or "", row[5], row[6]) for row in rows]


def _of_each(name: str, type_: str, read: Callable[[RowWrite], object]) -> Parameter[Batch]:
    return Parameter(name, f"{type_}[]", lambda batch: [read(write) for write in batch])


_KEYS: Final = _of_each("idempotency keys", "text", attrgetter("idempotency_key"))
_HASHES: Final = _of_each("payload hashes", "bytea", attrgetter("payload_hash"))
_TOKENS: Final = _of_each("tokens", "bigint", attrgetter("token"))
_BODIES: Final = _of_each("bodies", "text", attrgetter("body"))
_KEY_PARTS: Final = tuple(_of_each(each.name, "text", each.read) for each in OF_WRITES[:MOST_KEY_COLUMNS])
_PARAMETERS: Final = (_KEYS, _HASHES, _TOKENS, *_KEY_PARTS, _BODIES)


def prelude(table: Table, scope: Scope | None, scope_of: ScopeOf, caller: str | None) -> Prelude | None:
    """Write the statement; None: nothing comes before the writes. `caller`: whose Idempotency-Keys are looked up; None:
    none are.
    """
    idempotent = caller is not None
    if scope is None and not idempotent:
        return None
    whose: Parameter[Batch] = Parameter("caller", "text", lambda _: caller)
    parameters = (whose, *_PARAMETERS)
    begun_keys = f"fencepost.gateway_idem_begin_each({whose}, {_KEYS}, {_HASHES})"
    known = "k.state, k.status, k.headers, k.answer"
    if scope is None:
        text = f"SELECT {known} FROM {begun_keys} AS k ORDER BY k.number"
        return Prelude(compiled(text, parameters), idempotent, scoped=False)
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
    return Prelude(compiled(text, parameters), idempotent, scoped=True)


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
