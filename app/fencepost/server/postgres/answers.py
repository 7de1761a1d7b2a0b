"""What statements give back, and what a request gives them: a source that they join with."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from fencepost.server.postgres.connection import BODY, Bound, Key, Parameter
from fencepost.server.postgres.query import Field, QueryError, Select, Selected, may_expand, render_select, render_value
from fencepost.server.postgres.row_sql import ELEMENT, ORDINAL, json_row, literal, operator, resource_sql
from fencepost.server.postgres.tables import Column, Table, quote

# What the answer of a write shows of its rows, and how many bytes it may have: `--max-answer-bytes`, as for reads.
#
# PostgreSQL judges it, in the statement that writes, before a row leaves it. An answer that would be larger is an
# error of the statement (`fencepost.too_large`), which undoes the write with all that belongs to it.
#
# one row        its JSON has so many bytes, once it is made
# several rows   the write keeps the columns that are shown, as they are stored; only behind it, one row after the
#                other, they become JSON, which is added up: the row that makes it too much is the last one that is made
# a column that `select` names several times, as it is, by paths or cast
#                each of these has its JSON made first, one after the other, and counts as often as it is named: by
#                names alone a short request could have PostgreSQL build a gigabyte of one row. Before that, what is
#                cast counts with the text that the cast begins with: `varchar(1)` makes all of a jsonb's text
# a text that is cast to jsonb, an array or a composite
#                the digits of its numbers count before it is cast (`fencepost.digits`)
#
# A batch (group_commit.py) gives each of its writes MOST_IN_A_BATCH. What is larger fails it, and is decided alone.

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


# What a request gives, as a source that statements join with: rows by their keys, a JSON object, or the elements of a
# JSON array. Here alone a body becomes the values of columns.
#
# JSON has one null. json_to_record reads it as SQL's, and so does a nullable column; a json or jsonb column that
# cannot have that takes JSON's: else a row that has it could not be sent back as it came. A member that is not there
# stays SQL's null, which such a column refuses.

JSON_TYPES: Final = frozenset({"json", "jsonb"})


@dataclass(frozen=True, slots=True)
class Given:
    """`source` stands in a FROM; `values` are the SQL of the columns that it gives, typed as in the table."""

    source: str
    values: Mapping[str, str]
    place: str
    """The SQL of its number, from 1."""

    def match(self, table: Table) -> str:
        """Match the table's row `r` that has the key."""
        return " AND ".join(f"r.{quote(c)} {operator(table.columns[c], '=')} {self.values[c]}" for c in table.key)

    def resource(self, table: Table, prefix: str) -> str:
        """Name the resource with the key; null where a part of the key has no value."""
        return resource_sql(prefix, [(table.columns[c].base_name, self.values[c]) for c in table.key])

    def key_order(self, table: Table) -> str:
        """Order by the key as the table's own columns would: values from elsewhere have the database's collation."""
        ordered = []
        for column in table.key:
            collation = table.columns[column].collation
            ordered.append(self.values[column] + ("" if collation is None else f" COLLATE {collation}"))
        return ", ".join([*ordered, self.place])


@cache
def key_texts(position: int) -> Parameter[Sequence[Key]]:
    """Give the parameter for a column of several keys, counted from 0: an array of texts."""
    return Parameter(f"keys {position}", "text[]", lambda keys: [key[position] for key in keys])


@dataclass(frozen=True, slots=True)
class Unnested:
    """Arrays of texts side by side, as rows of `x`."""

    source: str
    texts: tuple[str, ...]
    """The SQL of each array's element."""
    place: str = "x.o"
    """The SQL of the row's number, from 1."""


def unnested(arrays: Sequence[Parameter[Any]]) -> Unnested:
    """Give the rows of arrays of equal lengths."""
    names = [f"k{n}" for n, _ in enumerate(arrays)]
    called = ", ".join(f"pg_catalog.unnest({array})" for array in arrays)
    source = f"ROWS FROM ({called}) WITH ORDINALITY AS x({', '.join([*names, 'o'])})"
    return Unnested(source, tuple(f"x.{name}" for name in names))


def keys(table: Table) -> Given:
    """Give rows by their keys; run for a sequence of keys."""
    rows = unnested([key_texts(n) for n, _ in enumerate(table.key)])
    return Given(rows.source, typed(table, rows.texts), rows.place)


def typed(table: Table, texts: Sequence[str]) -> dict[str, str]:
    """Cast the texts of a key to its columns' types."""
    return {c: f"CAST({text} AS {table.columns[c].base_type})" for c, text in zip(table.key, texts, strict=True)}


def body_record(table: Table, columns: Sequence[str], body: object = BODY) -> Given:
    """Give a body, a JSON object, as the row `b`; nothing to join with where no column is given."""
    source = (
        f"json_to_record({body_json(table, columns, body)}) AS b({body_columns(table, columns)})" if columns else ""
    )
    return Given(source, {c: body_value(table, c, f"b.{quote(c)}", body) for c in columns}, "1")


def elements(table: Table, columns: Sequence[str]) -> Given:
    """Give the elements of the body, a JSON array, as rows of `b`."""
    names = [quote(c) for c in columns] or ["ignored"]
    function = f"json_to_recordset({body_json(table, columns, BODY)}) AS ({body_columns(table, columns)})"
    if any(takes_json_null(table.columns[c]) for c in columns):
        names.append(ELEMENT)
        function += f", json_array_elements({BODY})"
    function = f"ROWS FROM ({function})" if columns else f"json_array_elements({BODY})"
    source = f"{function} WITH ORDINALITY AS b({', '.join(names)}, {ORDINAL})"
    values = {c: body_value(table, c, f"b.{quote(c)}", f"b.{ELEMENT}") for c in columns}
    return Given(source, values, f"b.{ORDINAL}")


def body_json(table: Table, columns: Sequence[str], body: object) -> str:
    """Give a body, an object or an array of them, as json_to_record and json_to_recordset read it."""
    columns = [name for name in columns if table.columns[name].with_hstores]
    if not columns:
        return str(body)
    names = ", ".join(literal(name) for name in columns)
    types = ", ".join(literal(table.columns[name].base_type) for name in columns)
    return (
        f"fencepost.hstores_as_text({body}, CAST(ARRAY[{names}] AS pg_catalog.text[]),"
        f" CAST(ARRAY[{types}] AS pg_catalog.regtype[]))"
    )


def body_columns(table: Table, columns: Sequence[str]) -> str:
    """List columns with their types, as json_to_record wants them.

    Without length, scale or domain: those are applied when the value is assigned, and so as the column has them then.
    """
    return ", ".join(f"{quote(name)} {table.columns[name].base_type}" for name in columns)


def body_value(table: Table, name: str, read: str, element: object) -> str:
    """Give a column's value. `read`: what json_to_record gives for it; `element`: the JSON object that it read."""
    column = table.columns[name]
    if not takes_json_null(column):
        return read
    member = f"{element} OPERATOR(pg_catalog.->) {literal(name)}::text"
    return f"coalesce({read}, CAST({member} AS {column.base_type}))"


def takes_json_null(column: Column) -> bool:
    """Whether null in a body is JSON's for this column, and not SQL's."""
    return not column.nullable and column.base_name in JSON_TYPES
