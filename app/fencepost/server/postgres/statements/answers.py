"""What the answer of a write shows of its rows, and how many bytes it may have: `--max-answer-bytes`, as for reads.

PostgreSQL judges it, in the statement that writes, before a row leaves it. An answer that would be larger is an error
of the statement (`fencepost.too_large`), which undoes the write with all that belongs to it.

one row        its JSON has so many bytes, once it is made
several rows   the write keeps the columns that are shown, as they are stored; only behind it, one row after the other,
               they become JSON, which is added up: the row that makes it too much is the last one that is made
a column that `select` names several times, as it is, by paths or cast
               each of these has its JSON made first, one after the other, and counts as often as it is named: by names
               alone a short request could have PostgreSQL build a gigabyte of one row. Before that, what is cast
               counts with the text that the cast begins with: `varchar(1)` makes all of a jsonb's text
a text that is cast to jsonb, an array or a composite
               the digits of its numbers count before it is cast (`fencepost.digits`)

A batch (group_commit.py) gives each of its writes MOST_IN_A_BATCH. What is larger fails it, and is decided alone.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.postgres.statements.casts import may_expand
from fencepost.server.postgres.statements.parameters import Bound
from fencepost.server.postgres.statements.query import Field, QueryError, Select, Selected
from fencepost.server.postgres.statements.query_sql import render_select, render_value
from fencepost.server.postgres.statements.row_sql import json_row
from fencepost.server.postgres.tables.catalog import Table, quote

MOST_IN_A_BATCH: Final = 1_048_576
"""Bytes of one row in a batch, of which the gateway has up to 256 in its memory at once."""
JSON: Final = "json"


@dataclass(frozen=True, slots=True)
class Measured:
    """What is measured of a row before its JSON is made: SQL of numbers of bytes, to be added up."""

    rendered: tuple[str, ...] = ()
    """What casts make on their way: first, for it is cheap to know."""
    sent: tuple[str, ...] = ()
    """What is named of columns that are named more than once, as often as it is."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What an answer shows of rows, which are `r`."""

    targets: str
    """The SELECT list; empty for nothing."""
    columns: tuple[str, ...]
    """The columns that it reads, each once."""
    measured: "Measured"
    most: int
    """How many bytes of JSON the rows may have in all."""

    def one(self, *, batched: bool) -> str:
        """Make the JSON of the only row. Of no targets it is empty, and reads no column: who is not shown the row need
        not be allowed to see it.
        """
        if not self.targets:
            return "''::text"
        most = min(self.most, MOST_IN_A_BATCH) if batched else self.most
        if self.measured != Measured():
            made = f"SELECT {guarded(self.targets, self.measured, most)} AS json"
        else:  # the usual one: a node less to begin for each write
            made = f"SELECT pg_catalog.row_to_json(x.*)::text AS json FROM (SELECT {self.targets}) AS x"
        # OFFSET: the row is made into JSON once, not for each use.
        return (
            f"(SELECT CASE WHEN octet_length(j.json) <= {most} THEN j.json ELSE {_too_large(most)} END"
            f" FROM ({made} OFFSET 0) AS j)"
        )

    def kept(self) -> list[str]:
        """List the columns of a row as a write of several keeps them, for `several`."""
        return [f"r.{quote(column)} AS c{n}" for n, column in enumerate(self.columns)]

    def carried(self, alias: str) -> list[str]:
        """List them as they are handed on by what kept them."""
        return [f"{alias}.c{n}" for n, _ in enumerate(self.columns)]

    def several(self, source: str, names: Sequence[str]) -> str:
        """Select `names` of a source, a SELECT in the order of the answer that has the columns of `kept`; the name
        JSON is the JSON of the row.
        """
        if not self.targets:
            listed = ("''::text AS json" if name == JSON else f"w.{name}" for name in names)
            return f"SELECT {', '.join(listed)} FROM ({source}) AS w"
        others = "".join(f", w.{name}" for name in names if name != JSON)
        row = ", ".join(f"w.c{n} AS {quote(column)}" for n, column in enumerate(self.columns))
        json = guarded(self.targets, self.measured, self.most)
        made = f"SELECT {json} AS json{others} FROM ({source}) AS w CROSS JOIN LATERAL (SELECT {row}) AS r OFFSET 0"
        fits = f"CASE WHEN s.sent <= {self.most} THEN s.json ELSE {_too_large(self.most)} END AS json"
        listed = (fits if name == JSON else f"s.{name}" for name in names)
        return f"SELECT {', '.join(listed)} FROM ({added_up(made)}) AS s"


def shown(table: Table, select: Select, most: int) -> Shown:
    """Read what a write's answer shows. Raises QueryError, UnknownColumnError."""
    # Plans are kept, and so may have no values of a request: only a JSON path in `select` has any.
    bound = Bound()
    targets = render_select(table, select, bound)
    if bound.values:
        raise QueryError("select: a JSON path can be selected in GET only, not in the answer of a write")
    columns = dict.fromkeys(field.column for field, _ in _named(table, select))
    return Shown(targets, tuple(columns), measured(table, select, bound), most)


def nothing(most: int) -> Shown:
    """Show no column."""
    return Shown("", (), Measured(), most)


def measured(table: Table, select: Select, bound: Bound) -> Measured:
    """Find out what is to be measured of a row."""
    if select is None or not (len(select) > 1 or any(isinstance(each, Selected) and each.cast for each in select)):
        return Measured()
    named = _named(table, select)
    of_column: Counter[str] = Counter()
    casts: Counter[Field] = Counter()
    expanding: Counter[Field] = Counter()
    for (field, cast), times in named.items():
        of_column[field.column] += times
        if cast is not None:
            casts[field] += times
            if may_expand(cast) and (_is_text(field) or not table.columns[field.column].expands):
                expanding[field] += times
    rendered = [
        _times(count, f"pg_catalog.octet_length(({render_value(table, field, None, bound)})::text)")
        for field, count in casts.items()
        if of_column[field.column] > 1
    ]
    rendered += [
        _times(count, f"fencepost.digits(({render_value(table, field, None, bound)})::text)")
        for field, count in expanding.items()
    ]
    sent = [
        _times(times, f"pg_catalog.octet_length(pg_catalog.to_json({render_value(table, field, cast, bound)})::text)")
        for (field, cast), times in named.items()
        if of_column[field.column] > 1
    ]
    return Measured(tuple(rendered), tuple(sent))


def _is_text(field: Field) -> bool:
    return bool(field.path) and field.path[-1].as_text


def _times(count: int, size: str) -> str:
    return f"({count}::bigint * coalesce({size}, 0))"


def _named(table: Table, select: Select) -> Counter[tuple[Field, str | None]]:
    named: Counter[tuple[Field, str | None]] = Counter()
    for item in ("*",) if select is None else select:
        if isinstance(item, Selected):
            named[item.field, item.cast] += 1
        else:
            named.update((Field(column), None) for column in table.visible)
    return named


def guarded(targets: str, sizes: Measured, most: int) -> str:
    """Make the JSON of the row `r`, unless what is measured has too many bytes by itself."""
    json = f"{json_row(targets)}::text"
    # VALUES: PostgreSQL forgets the text of one before it makes that of the next.
    for measured in (sizes.sent, sizes.rendered):
        if measured:
            bytes_ = f"(SELECT pg_catalog.sum(v.size)::bigint FROM (VALUES {', '.join(measured)}) AS v(size))"
            json = f"CASE WHEN {bytes_} <= {most}::bigint THEN {json} ELSE {_too_large(most)} END"
    return json


def added_up(rows: str) -> str:
    """Add up the bytes of what has the column `json`, in its order: `sent` is the sum up to and with each row."""
    return (
        "SELECT p.*, CAST(pg_catalog.sum(pg_catalog.octet_length(p.json)::bigint) OVER (ROWS UNBOUNDED PRECEDING)"
        f" AS bigint) AS sent FROM ({rows}) AS p"
    )


def _too_large(most: int) -> str:
    return f"fencepost.too_large({most})"
