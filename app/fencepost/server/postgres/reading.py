"""Statements that read rows: single ones by their keys, many in one statement; and those that filters choose."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.postgres.answers import added_up, guarded, key_texts, keys, measured
from fencepost.server.postgres.connection import OF_KEY, Bound, Connection, FencedRow, Key, Statement, compiled
from fencepost.server.postgres.errors import cancelled, map_errors
from fencepost.server.postgres.query import (
    Condition,
    Filter,
    Query,
    QueryError,
    Select,
    Selected,
    render_filters,
    render_order,
    render_select,
)
from fencepost.server.postgres.row_sql import MARK, json_row, literal, or_outdated, row_scope, same_table, the_row
from fencepost.server.postgres.tables import MARK_COLUMN, Column, ProtectedTable, Table, quote

# SELECT: rows as JSON, made by PostgreSQL.

_HIDDEN: Final = (
    MARK_COLUMN + ": {} is under the rule epoch, so that a row's mark is a token that is accepted still: it is not read"
)

PIECE: Final = 500
"""Rows that are fetched at a time."""


class TooManyBytesError(Exception):
    """The rows that were asked for have more bytes than an answer may have."""

    def __init__(self, most: int) -> None:
        super().__init__(f"The rows have more than {most} bytes.")


def check(table: Table, query: Query) -> None:
    """Raise QueryError for what the table does not have, before a connection is taken."""
    bound = Bound()
    check_select(table, query.select)
    render_filters(table, query.filters, bound)
    render_order(table, query.order, bound)
    if _hides_marks(table) and _asks_for_marks(query):
        raise QueryError(_HIDDEN.format(table.name))


def check_select(table: Table, select: Select) -> None:
    """Raise QueryError for what the table does not have, or does not show."""
    render_select(table, select, Bound())
    if _hides_marks(table) and _selects_marks(select):
        raise QueryError(_HIDDEN.format(table.name))


def check_filters(table: Table, filters: Sequence[Filter]) -> None:
    """Raise QueryError for filters of a write that ask for what is not shown: by its answer they would find it out."""
    if _hides_marks(table) and _asks_for_marks(Query(filters=tuple(filters))):
        raise QueryError(_HIDDEN.format(table.name))


def _hides_marks(table: Table) -> bool:
    """Whether a row's mark would be accepted as a token: then it is shown to no reader (decision 0032)."""
    return table.fence is not None and table.fence.rule == "epoch"


def _selects_marks(select: Select) -> bool:
    return any(isinstance(each, Selected) and each.field.column == MARK_COLUMN for each in select or ())


def _asks_for_marks(query: Query) -> bool:
    filters = list(query.filters)
    while filters:
        each = filters.pop()
        if not isinstance(each, Condition):
            filters += each.members
        elif each.field.column == MARK_COLUMN:
            return True
    return any(term.field.column == MARK_COLUMN for term in query.order)


@dataclass(frozen=True, slots=True)
class Most:
    """What a read may take: so many rows, so many bytes of JSON, and so many seconds."""

    rows: int
    bytes: int
    seconds: float


async def rows(
    connection: Connection, table: Table, query: Query, most: Most, *, count: bool
) -> tuple[list[str], int | None]:
    """Read rows as JSON texts, and how many match, if asked. Raises TooManyBytesError.

    More than PIECE rows are fetched piece by piece, so that PostgreSQL computes no more than one piece for nothing when
    they have too many bytes. It adds up itself what it sends, and sends no row that makes it too much.
    """
    limit = most.rows if query.limit is None else min(most.rows, query.limit)
    page = _page(table, query, limit, most.bytes)
    found: list[str] = []
    if limit <= PIECE:
        _take(await page.fetch(connection, None), most.bytes, found)
    else:
        await _in_pieces(connection, page, most, found)
    if not count:
        return found, None
    counted = Bound()
    condition = render_filters(table, query.filters, counted)
    total = compiled(f"SELECT count(*) FROM {table.sql_name} AS r WHERE {condition}", counted.parameters)
    return found, await total.value(connection, None)


def _page(table: Table, query: Query, limit: int, most_bytes: int) -> Statement[None]:
    bound = Bound()
    target = render_select(table, query.select, bound)
    condition = render_filters(table, query.filters, bound)
    order = render_order(table, query.order, bound)
    # Bound, not spelled out: each page would be a statement of its own to prepare.
    most = bound.add(limit, "bigint")
    json = guarded(target, measured(table, query.select, bound), most_bytes)
    made = (
        f"SELECT {json} AS json, {bound.add(most_bytes, 'bigint')} AS most FROM {table.sql_name} AS r WHERE {condition}"
        f"{f' ORDER BY {order}' if order else ''} LIMIT {most} OFFSET {bound.add(query.offset, 'bigint')}"
    )
    return compiled(
        "SELECT CASE WHEN s.sent OPERATOR(pg_catalog.<=) s.most THEN s.json END AS json, s.sent"
        f" FROM ({added_up(made)}) AS s",
        bound.parameters,
    )


async def _in_pieces(connection: Connection, page: Statement[None], most: Most, found: list[str]) -> None:
    """Fetch by a cursor. PostgreSQL's time limit is for each piece; the one here is for all, and raises the same."""
    try:
        async with asyncio.timeout(most.seconds), connection.transaction():
            with map_errors():  # a cursor is none of the session's statements
                cursor = await connection.cursor(page.sql, *page.arguments(None))
                while _take(await cursor.fetch(PIECE), most.bytes, found):
                    pass
    except TimeoutError:
        raise cancelled(f"the read took more than {most.seconds:g} s") from None


def _take(piece: Sequence[asyncpg.Record], most_bytes: int, found: list[str]) -> bool:
    """Add a piece's rows; whether another one may follow. Raises TooManyBytesError."""
    if piece and piece[-1]["sent"] > most_bytes:
        raise TooManyBytesError(most_bytes)
    found += [row["json"] for row in piece]
    return len(piece) == PIECE


def mark_of(table: Table) -> str:
    """Render the mark of a row of the table, 0 where it has none."""
    fence = table.fence
    if fence is None or not fence.intact:
        return "0::bigint"
    if fence.scope is None:
        return f"r.{MARK}"
    scope = row_scope(table, fence.scope)
    return f"coalesce(fencepost.gateway_mark_without_row({literal(fence.scope.prefix)}, {scope}), 0)"


async def row(connection: Connection, table: Table, key: Key, select: Select, most_bytes: int) -> FencedRow | None:
    """Read a row by its key, with its mark (0 where the table has none). Raises TooManyBytesError."""
    bound = Bound()
    target = render_select(table, select, bound)
    mark = mark_of(table)
    most = bound.add(most_bytes, "bigint")
    json = guarded(target, measured(table, select, bound), most_bytes)
    # PostgreSQL sends no row that is too large: it would have to fit into the memory of the gateway.
    found = await compiled(
        f"SELECT CASE WHEN pg_catalog.octet_length(p.json) OPERATOR(pg_catalog.<=) {most} THEN p.json END AS json,"
        f" p.mark FROM (SELECT {json} AS json, {mark} AS mark FROM {table.sql_name} AS r"
        f" WHERE {the_row(table)} OFFSET 0) AS p",  # OFFSET: the row is made into JSON once, not for each use
        (*OF_KEY, *bound.parameters),
    ).fetch(connection, key)
    if not found:
        return None
    if found[0]["json"] is None:
        raise TooManyBytesError(most_bytes)
    return FencedRow(found[0]["json"], found[0]["mark"])


# SELECT of single rows by their keys, many in one statement: what gathered reads send (gateway/read.py).
#
# What could keep neighbours waiting is left out of it, and read alone: PostgreSQL makes no row into JSON that is
# large, or may become large, and sends no more than MOST_JSON of each. Nothing is left out because a row is missing: a
# table whose row security the catalog has not heard of yet says so itself.

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


UNREAD: Final = FencedRow("", 0)
"""Stands for a row that was not read."""


@dataclass(frozen=True, slots=True)
class KeyedReads:
    """The statement for reads of a table's rows that show the same columns."""

    statement: Statement[Sequence[Key]]

    async def run(self, connection: Connection, wanted: Sequence[Key]) -> list[FencedRow | None] | None:
        """Read a row for each key, in their order: None where there is none, UNREAD where it is too large to be read in
        company. None: row security hides rows, and each is read alone.
        """
        rows = await self.statement.fetch(connection, wanted)
        if rows and rows[0]["hides"]:
            return None
        found: list[FencedRow | None] = [None] * len(wanted)
        for number, json, mark, there, _ in rows:
            if there:
                found[number - 1] = UNREAD if json is None else FencedRow(json, mark)
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
