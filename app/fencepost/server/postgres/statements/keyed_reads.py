"""SELECT of single rows by their keys, many in one statement: what gathered reads send (gateway/gathered_reads.py).

What could keep neighbours waiting is left out of it, and read alone: PostgreSQL makes no row into JSON that is large,
or may become large, and sends no more than MOST_JSON of each. Nothing is left out because a row is missing: a table
whose row security the catalog has not heard of yet says so itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.postgres.batches.batch_queue import ALONE, Alone
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.statements.given import key_texts, keys
from fencepost.server.postgres.statements.keyed import FencedRow
from fencepost.server.postgres.statements.parameters import Bound, Key, Statement, compiled
from fencepost.server.postgres.statements.query import Select, Selected
from fencepost.server.postgres.statements.query_sql import render_select
from fencepost.server.postgres.statements.reading import mark_of
from fencepost.server.postgres.statements.row_sql import json_row, literal, or_outdated, same_table
from fencepost.server.postgres.tables.catalog import Column, ProtectedTable, Table, quote

MOST_JSON: Final = 16_384
"""Bytes of JSON of a row."""
MOST_STORED: Final = 8192
"""Bytes that a row has in its columns, not compressed."""
MOST_OF_OTHERS: Final = 512
"""The same of columns whose values may be far longer as text than they are stored: numeric, arrays, jsonb."""
_FIXED: Final = frozenset(
    {"int2", "int4", "int8", "float4", "float8", "bool", "uuid", "date", "time", "timestamp", "timestamptz", "interval"}
)
"""Types whose values are a few bytes, whatever they are. So are enums'."""
_AS_STORED: Final = frozenset({"text", "varchar", "bpchar", "json", "bytea"})
"""Types whose values are about as long in JSON as they are stored."""


@dataclass(frozen=True, slots=True)
class KeyedReads:
    """The statement for reads of a table's rows that show the same columns."""

    statement: Statement[Sequence[Key]]

    async def run(self, connection: Connection, wanted: Sequence[Key]) -> "list[FencedRow | Alone | None]":
        """Read a row for each key, in their order: None where there is none, ALONE where it is not read in company."""
        with map_errors(writing=False):
            rows = await self.statement.fetch(connection, wanted)
        if rows and rows[0]["hides"]:
            return [ALONE] * len(wanted)
        found: list[FencedRow | Alone | None] = [None] * len(wanted)
        for number, json, mark, there, _ in rows:
            if there:
                found[number - 1] = ALONE if json is None else FencedRow(json, mark)
        return found


def shown(table: Table, select: Select) -> tuple[str, ...] | None:
    """Name the columns that `select` shows; None: it shows more than columns as they are, each once. A large one that
    is compressed well would be made into JSON as often as it is named (answers.py).
    """
    names: list[str] = []
    for each in ("*",) if select is None else select:
        if not isinstance(each, Selected):
            names += table.visible
        elif each.cast is None and not each.field.path and each.field.column in table.columns:
            names.append(each.field.column)
        else:
            return None
    return None if len(set(names)) < len(names) else tuple(names)


def keyed_reads(
    table: ProtectedTable, select: Select, columns: Iterable[str], most_answer_bytes: int = MOST_JSON
) -> KeyedReads:
    """Compose it. Each row is looked up by its key, as a read that goes alone does. `columns`: those that are shown.
    `most_answer_bytes`: how many bytes the answer to one may have.
    """
    given, same = keys(table), or_outdated(table.name, same_table(table))
    made = f"{json_row(render_select(table, select, Bound()))}::text"
    # OFFSET: each row is looked up by itself, and made into JSON once, not for each use.
    row = (
        f"(SELECT CASE WHEN octet_length(j.json) <= {min(MOST_JSON, most_answer_bytes)} THEN j.json END"
        f" FROM (SELECT {made} AS json OFFSET 0) AS j)"
    )
    if small := _is_small([table.columns[name] for name in columns]):
        row = f"CASE WHEN {small} THEN {row} END"
    return KeyedReads(
        compiled(
            f"SELECT {given.place}::int4, p.json, p.mark, p.there,"
            f" (SELECT pg_catalog.row_security_active({literal(table.sql_name)}::text)) AS hides FROM {given.source}"
            f" LEFT JOIN LATERAL (SELECT {row} AS json, {mark_of(table)} AS mark, true AS there"
            f" FROM {table.sql_name} AS r WHERE {given.match(table)} AND {same} OFFSET 0) AS p ON true",
            [key_texts(n) for n, _ in enumerate(table.key)],
        )
    )


def _is_small(columns: Iterable[Column]) -> str:
    """Render whether a row is small, in what is known of it without reading what is stored apart."""
    varying = [each for each in columns if each.base_name not in _FIXED and not each.enum_labels]
    others = [each for each in varying if each.base_name not in _AS_STORED]
    terms = [f"pg_catalog.pg_column_compression(r.{quote(each.name)}) IS NULL" for each in varying]
    for each, most in ((varying, MOST_STORED), (others, MOST_OF_OTHERS)):
        if each:
            sizes = " + ".join(f"coalesce(pg_catalog.pg_column_size(r.{quote(column.name)}), 0)" for column in each)
            terms.append(f"{sizes} <= {most}")
    return " AND ".join(terms)
