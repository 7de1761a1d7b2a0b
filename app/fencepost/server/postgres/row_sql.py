"""Pieces of SQL that every fenced statement is made of: key predicates, resource names, JSON rows.

In each statement the table is `r`. Key values are bound as text, one parameter for each key column, and cast in SQL:
PostgreSQL alone reads values.

Statements run under the role's search_path, and there an operator or function of exactly the arguments' types is
preferred to one that needs a coercion: who may create in such a schema could make a `=` of two varchar, and the gateway
would run it. So columns are compared by `operator`, and functions are named in full, unless pg_catalog, which is
searched first, has the exact one: bigint < bigint, text || text.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import BUILTIN, EXTERNAL, Rule
from fencepost.server.postgres.connection import key_part
from fencepost.server.postgres.tables import DEFINITION, MARK_COLUMN, Column, Fence, Table, quote

MARK: Final = quote(MARK_COLUMN)

# Columns of our own that stand beside the table's, under names that no table is likely to have.
ORDINAL: Final = quote("fencepost ordinal")
ELEMENT: Final = quote("fencepost element")
FOUND_MARK: Final = quote("fencepost mark")

# Equal values with several texts, or a text that depends on the session: fencepost.canon spells them one way.
CANONICAL: Final = frozenset({"date", "timestamp", "timestamptz", "numeric", "bytea"})
# Types whose cast to text only a superuser could replace.
_CAST: Final = frozenset({"int2", "int4", "int8", "text", "varchar", "bpchar", "uuid", "bool"})


def key_text(base_name: str, expression: str) -> str:
    """Render a key value as its one text."""
    if base_name in CANONICAL:
        return f"fencepost.canon({expression})"
    if base_name not in _CAST:
        # An enum. The type's owner may define its cast to text, and triggers would run that as their functions'
        # owner: no role can replace the type's output function.
        return f'pg_catalog.textin(pg_catalog.enum_out({expression})) COLLATE pg_catalog."C"'
    # Two columns' collations must not meet in a name: COLLATE "C", whatever the column has.
    return f'({expression})::text COLLATE pg_catalog."C"'


def encode_name(name: str) -> str:
    """Percent-encode one part of a resource name: `fencepost.enc`, for names that are known beforehand."""
    return name.replace("%", "%25").replace("/", "%2F").replace(",", "%2C").replace(";", "%3B")


def literal(text: str) -> str:
    """Quote a constant."""
    return (
        "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
        if "\\" in text
        else "'" + text.replace("'", "''") + "'"
    )


def dollar(body: str) -> str:
    """Quote a function's body with a tag that the body does not contain: a table may be called anything."""
    tag = "$fn$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag}{body} {tag}"


def resource_sql(prefix: str, key: Iterable[tuple[str, str]]) -> str:
    """Render a resource name from (base type name, expression) pairs, in key order."""
    parts = " || ',' || ".join(f"fencepost.enc({key_text(base, expression)})" for base, expression in key)
    return f"{literal(encode_name(prefix) + '/')} || {parts}"


def issued_by(source: str) -> str:
    """Give the highest token that a source is known to have issued, null for an external one (R12)."""
    if source == EXTERNAL:
        return "NULL::bigint"
    return f"fencepost.issued({_source_argument(source)})"


def ceiling_of(fence: Fence) -> str:
    """List what bounds a token of the table, as it is now: `issued`, the highest token of its source, or the highest
    that an external table takes; and `max_jump`, null where there is none.
    """
    if fence.source != EXTERNAL:
        return f"{issued_by(fence.source)} AS issued, NULL::bigint AS max_jump"
    of_table = f"FROM fencepost.protected p WHERE p.name OPERATOR(pg_catalog.=) {literal(fence.name)}"
    return f"(SELECT p.max_token {of_table}) AS issued, (SELECT p.max_jump {of_table}) AS max_jump"


def oldest_of(source: str) -> str:
    """Give the oldest token of a source's present generation. Not for an external one."""
    return f"fencepost.oldest({_source_argument(source)})"


def require_issued(source: str, resource: str, token: str) -> str:
    """Call what refuses a token that a source has not issued, or voided. Not for an external one."""
    more = "" if source == BUILTIN else f", {literal(source)}"
    return f"fencepost.require_issued({resource}, {token}{more})"


def _source_argument(source: str) -> str:
    return "" if source == BUILTIN else literal(source)


def is_builtin(column: Column) -> bool:
    """Whether PostgreSQL's own operators are those of the column's type: all that lie in pg_catalog, and enums."""
    return "." not in column.base_type or bool(column.enum_labels)


def operator(column: Column, symbol: str) -> str:
    """Write an operator on a column's values: PostgreSQL's own, in full; or, for a type of an extension (citext,
    ltree), what the search_path finds.
    """
    return f"OPERATOR(pg_catalog.{symbol})" if is_builtin(column) else symbol


def same_table(table: Table) -> list[str]:
    """Compare what names mean now with what was looked at: nothing keeps an owner from renaming a table and giving its
    name to another one, or from making another key of the same columns, and no notification reports it. PostgreSQL
    reads the constants when it plans the statement, and plans it again when the table was changed or its name means
    another one.
    """
    named = [(table.sql_name, table.oid)]
    if table.key_constraint is not None and table.key_index is not None:
        named.append((f"{quote(table.schema)}.{quote(table.key_constraint)}", table.key_index))
    same = [f"{literal(name)}::pg_catalog.regclass OPERATOR(pg_catalog.=) {oid}::oid" for name, oid in named]
    if table.key:
        fence = table.fence
        columns = table.key + (() if fence is None else fence.scope.columns if fence.scope else (MARK_COLUMN,))
        known = [name for name in columns if name in table.columns]
        numbers = ", ".join(str(table.columns[name].number) for name in known)
        names = ", ".join(literal(name) for name in known)
        same.append(f"fencepost.are_called({table.oid}::oid, ARRAY[{numbers}], ARRAY[{names}])")
    return same


def or_unfenced(table: str, oid: int | str, trigger: str, *, each_time: bool = False) -> str:
    """Give a term of an AND that is true where a trigger of the fence fires, in this session, on the table with this
    oid and on all that take its rows, and raises FP005 elsewhere. `table`: its name, as it was protected.

    PostgreSQL looks when it plans the statement, which costs nothing when it runs, and plans again when the table was
    altered. That a partition, or another table, is altered it may not see; there it looks each time that the statement
    runs (`each_time`).
    """
    arguments = f"{oid}::oid, 'zzz_fencepost_{trigger}'"
    fires = f"(SELECT fencepost.fires({arguments}))" if each_time else f"fencepost.fires_as_planned({arguments})"
    return f"({fires} OR fencepost.unfenced({literal(table)}) IS NULL)"


def of_types(table: Table, columns: Iterable[str]) -> list[str]:
    """Compare the types that columns have now, which PostgreSQL learns when it plans the statement, with those that it
    was written for: a value that was read as a date would be stored in a column of timestamps without its hour.
    """
    row = f"(CAST(NULL AS {table.sql_name}))"
    return [
        f"pg_catalog.pg_typeof({row}.{quote(c)}) OPERATOR(pg_catalog.=) {table.columns[c].type_oid}::oid"
        for c in columns
    ]


def or_changed_code(table: Table) -> str:
    """Give terms of an AND, ending in one, that are true where the triggers of the table, which see their own row only,
    do what was read of them, and raise FP000 elsewhere; nothing where it has none. PostgreSQL looks once for each run,
    before the first row, at the functions as they are at that moment, whatever the statement's snapshot is. Where the
    owner vouches for the triggers, no other row's may have left a token by which the fence would judge this one.
    """
    if not (table.trigger_functions or table.triggers_are_vouched_for):
        return ""
    name = table.name if table.fence is None else table.fence.name
    same = [
        f"pg_catalog.md5({DEFINITION.format(f'{function}::oid')}) OPERATOR(pg_catalog.=) {literal(md5)}"
        for function, md5 in table.trigger_functions
    ]
    return f"{or_outdated(name, same or [_NOTHING_LEFT])} AND "


_NOTHING_LEFT: Final = (
    "pg_catalog.concat(pg_catalog.current_setting('fencepost.token', true),"
    " pg_catalog.current_setting('fencepost.break_glass', true)) OPERATOR(pg_catalog.=) ''"
)


def or_outdated(name: str, terms: Sequence[str]) -> str:
    """Give a term of an AND that is true where all of these are, and raises FP000 elsewhere."""
    same = terms[0] if len(terms) == 1 else f"({' AND '.join(terms)})"
    return f"({same} OR fencepost.outdated({literal(name)}) IS NULL)"


def key_order(table: Table, alias: str) -> str:
    """Order by the key as the table's own column would: values from elsewhere have the database's collation."""
    return ", ".join(
        f"{alias}.{quote(c)}" + ("" if (collation := table.columns[c].collation) is None else f" COLLATE {collation}")
        for c in table.key
    )


def key_parameter(table: Table, position: int) -> str:
    """Cast the parameter of a key column, counted from 0, to the column's type, without length or domain."""
    return f"CAST({key_part(position)} AS {table.columns[table.key[position]].base_type})"


def key_match(table: Table) -> str:
    """Match the row whose key the parameters give."""
    return " AND ".join(
        f"r.{quote(name)} {operator(table.columns[name], '=')} {key_parameter(table, position)}"
        for position, name in enumerate(table.key)
    )


def the_row(table: Table) -> str:
    """Match the row whose key the parameters give, for statements that only read it: raises FP000 where the table's
    name or its key means another one by now.
    """
    return f"{key_match(table)} AND {or_outdated(table.name, same_table(table))}"


def parameter_resource(table: Table, prefix: str) -> str:
    """Name the resource whose key the parameters give."""
    return resource_sql(
        prefix,
        [(table.columns[name].base_name, key_parameter(table, n)) for n, name in enumerate(table.key)],
    )


def row_scope(table: Table, scope: Scope, alias: str = "r") -> str:
    """Render a row's scope."""
    return resource_sql(
        scope.prefix, [(table.columns[name].base_name, f"{alias}.{quote(name)}") for name in scope.columns]
    )


def row_resource(table: Table, prefix: str, alias: str = "r") -> str:
    """Name the resource of a row."""
    return resource_sql(prefix, [(table.columns[name].base_name, f"{alias}.{quote(name)}") for name in table.key])


def json_row(selected: str, alias: str = "x") -> str:
    """Build a row's JSON from a target list: an object of any width (json_build_object stops at 50 columns)."""
    # x.* and not x, which would be a column of that name.
    return f"(SELECT pg_catalog.row_to_json({alias}.*) FROM (SELECT {selected}) AS {alias})"


def comparison(rule: Rule) -> str:
    """Name the operator by which a mark lets a token pass (R1, R2): the rule of `accepts` (fence/token.py), and of
    `fencepost.accepts`, for the WHERE of statements.
    """
    return "<" if rule == "strict" else "<="


def lock_clause(table: Table, verb: Literal["update", "delete"], columns: Iterable[str]) -> str:
    """Lock as the write itself will: a weaker lock first would invite a deadlock on the way up."""
    strong = verb == "delete" or not table.unique_columns.isdisjoint(columns)
    return "FOR UPDATE OF r" if strong else "FOR NO KEY UPDATE OF r"
