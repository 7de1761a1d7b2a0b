"""The fenced statements as a batch runs them (group_commit.py): one Execute for each write, and one Sync.

They are those of fenced.py and fenced_insert.py with two differences: each answer carries the number of its write,
since writes that the fence refuses answer nothing; and a row that somebody else holds is skipped, not waited for. Nor
is a duplicate key an error: it would undo the neighbours. Whatever answers nothing is a question (R5): `ask` tells
marks that refuse, and what it cannot tell is decided alone.

For tables only whose writes run nobody else's code (Table.shares_transactions): several operations share a transaction
here, and a trigger that reads or sets something of the transaction would see its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from fencepost.fencing.token import Token
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.fenced import Change, FencedRow, Key, Standing
from fencepost.storage.statements.row_sql import (
    MARK,
    ORDINAL,
    body_columns,
    ceiling_of,
    comparison,
    json_row,
    key_match,
    key_parameter,
    literal,
    lock_clause,
    operator,
    resource_sql,
    row_resource,
    stored_token,
)
from fencepost.storage.tables.catalog import ProtectedTable, Table, quote


@dataclass(slots=True)
class RowWrite:
    """One write of a batch: to the row `key`, or, where that is empty, of the one row in `body`, a JSON array."""

    key: Key
    token: Token
    body: str = "{}"
    idempotency_key: str = ""
    """Its Idempotency-Key, and the hash of what that stands for (batch_prelude.py)."""
    payload_hash: bytes = b""
    scope: str = ""
    """The scope that was entered for it, or is known to be needed."""


Batch = Sequence[RowWrite]


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of batches, written once. Parameters: key, token (or scope, if `by_scope`), body (if
    `with_body`), and the number of the write.
    """

    sql: str
    with_body: bool
    by_scope: bool = False

    async def run(self, connection: Connection, batch: Batch) -> list[FencedRow | None]:
        """Run it for each write; None where nothing came back."""
        fences: list[int | str] = [w.scope for w in batch] if self.by_scope else [w.token for w in batch]
        if self.with_body:
            arguments = [(*w.key, fence, w.body, n) for n, (w, fence) in enumerate(zip(batch, fences, strict=True))]
        else:
            arguments = [(*w.key, fence, n) for n, (w, fence) in enumerate(zip(batch, fences, strict=True))]
        return numbered(await connection.fetchmany(self.sql, arguments), len(batch))


def numbered(rows: Sequence[asyncpg.Record], count: int) -> list[FencedRow | None]:
    """Put answers in the order of their writes. Columns by position: a name's look-up costs more."""
    found: list[FencedRow | None] = [None] * count
    for row in rows:
        found[row[0]] = FencedRow(row[1], row[2], row[3])
    return found


def held(table: Table, passes: str, lock: str) -> str:
    """Lock the row, if nobody else has. It depends on parameters only, so it is evaluated once, before the rest."""
    return f"EXISTS (SELECT FROM {table.sql_name} AS r WHERE {passes} {lock} SKIP LOCKED)"


def update(table: ProtectedTable, change: Change) -> Statement:
    """Write the UPDATE of one row; `change.body` does not matter."""
    token, body, number = f"${len(table.key) + 1}::bigint", len(table.key) + 2, len(table.key) + 2
    sets = [f"{quote(c)} = b.{quote(c)}" for c in change.columns]
    sets += [f"{quote(c)} = DEFAULT" for c in change.defaults]
    sets.append(f"{MARK} = {stored_token(table.fence.rule, token)}")
    source = ""
    if change.columns:
        source = f" FROM json_to_record(${body}::json) AS b({body_columns(table, change.columns)})"
        number += 1
    passes = f"{key_match(table)} AND r.{MARK} {comparison(table.fence.rule)} {token}"
    unheld = held(table, passes, lock_clause(table, "update", (*change.columns, *change.defaults)))
    return Statement(
        f"UPDATE {table.sql_name} AS r SET {', '.join(sets)}{source} WHERE {passes} AND {unheld}"
        f" RETURNING ${number}::int, {json_row(change.target)}::text, r.{MARK}, ''",
        bool(change.columns),
    )


def delete(table: ProtectedTable, target: str) -> Statement:
    """Write the DELETE of one row, which leaves the token as the key's mark."""
    values = ", ".join(key_parameter(table, n) for n in range(1, len(table.key) + 1))
    token, number = f"${len(table.key) + 1}::bigint", len(table.key) + 2
    passes = f"{key_match(table)} AND r.{MARK} {comparison(table.fence.rule)} {token}"
    unheld = held(table, passes, lock_clause(table, "delete", ()))
    return Statement(
        f"SELECT ${number}::int, {json_row(target)}::text, {token}, ''"
        f" FROM {table.fence.delete_function}({values}, {token}, {bool(target)}) AS r WHERE {unheld}",
        with_body=False,
    )


def insert(table: ProtectedTable, columns: tuple[str, ...], target: str) -> Statement:
    """Write the INSERT of the one row in a JSON array. A key that is there already answers nothing."""
    names = "".join(f"{quote(c)}, " for c in columns)
    source = (
        f"json_to_recordset($2::json) AS b({body_columns(table, columns)})"
        if columns
        else f"json_array_elements($2::json) AS b({ORDINAL})"
    )
    return Statement(
        f"INSERT INTO {table.sql_name} AS r ({names}{MARK}) SELECT {names}-$1::bigint FROM {source}"
        f" ON CONFLICT DO NOTHING"
        f" RETURNING $3::int, {json_row(target)}::text, r.{MARK}, {row_resource(table, table.fence.name)}",
        with_body=True,
    )


def create(table: Table, change: Change) -> Statement:
    """Write the INSERT of the row that a PUT names; nothing comes back when it is there already."""
    names = ", ".join([*(quote(c) for c in table.key), *(quote(c) for c in change.columns), MARK])
    values = [key_parameter(table, n) for n in range(1, len(table.key) + 1)]
    values += [f"b.{quote(c)}" for c in change.columns]
    token_at = number = len(table.key) + 1
    source = ""
    if change.columns:
        number += 1
        source = f" FROM json_to_record(${number}::json) AS b({body_columns(table, change.columns)})"
    return Statement(
        f"INSERT INTO {table.sql_name} AS r ({names}) SELECT {', '.join(values)}, -${token_at}::bigint{source}"
        f" ON CONFLICT DO NOTHING RETURNING ${number + 1}::int, {json_row(change.target)}::text, r.{MARK}, ''",
        bool(change.columns),
    )


async def ask(connection: Connection, table: ProtectedTable, keys: Sequence[Key]) -> list[Standing]:
    """R5's question for many keys, in one statement and on a snapshot of its own."""
    names = [f"k{n}" for n in range(len(table.key))]
    values = [f"CAST(x.{name} AS {table.columns[c].base_type})" for name, c in zip(names, table.key, strict=True)]
    resource = resource_sql(
        table.fence.name, [(table.columns[c].base_name, value) for c, value in zip(table.key, values, strict=True)]
    )
    match = " AND ".join(
        f"r.{quote(c)} {operator(table.columns[c], '=')} {value}" for c, value in zip(table.key, values, strict=True)
    )
    arrays = ", ".join(f"pg_catalog.unnest(${n}::text[])" for n in range(1, len(names) + 1))
    rows = await connection.fetch(
        f"SELECT n.resource, (SELECT r.{MARK} FROM {table.sql_name} AS r WHERE {match}) AS live,"
        f" fencepost.mark_without_row({literal(table.fence.name)}, n.resource) AS without_row, c.issued, c.max_jump"
        f" FROM ROWS FROM ({arrays}) WITH ORDINALITY AS x({', '.join(names)}, o)"
        f" CROSS JOIN LATERAL (SELECT {resource} AS resource) AS n"
        f" CROSS JOIN (SELECT {ceiling_of(table.fence)}) AS c ORDER BY x.o",
        *([key[n] for key in keys] for n in range(len(names))),
    )
    return [Standing(*row) for row in rows]
