"""Marks in statements: how a token is compared with one, and what only PostgreSQL knows of keys and values."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import asyncpg

from fencepost.server.fence.token import BUILTIN, EXTERNAL, NO_MARK, Token, accepts
from fencepost.server.postgres.answers import Given, body_columns, body_json, elements, key_texts, keys
from fencepost.server.postgres.connection import (
    BODY,
    OF_KEY,
    SCOPE,
    SCOPES,
    TOKEN,
    Bound,
    Connection,
    Key,
    Parameter,
    Statement,
    ask_value,
    compiled,
)
from fencepost.server.postgres.database import savepoint
from fencepost.server.postgres.errors import VIOLATION, RefusedError
from fencepost.server.postgres.row_sql import (
    FOUND_MARK,
    MARK,
    ceiling_of,
    comparison,
    key_match,
    key_parameter,
    literal,
    of_types,
    operator,
    or_outdated,
    or_unfenced,
    parameter_resource,
    row_scope,
    same_table,
)
from fencepost.server.postgres.tables import HAS_RULES, ProtectedTable, Table, quote

# How a statement names the mark that judges a row: the row's own (R1, R2), or that of its scope (R8).
#
# A row's mark is compared and stored by the statement itself. A scope's mark was judged and raised before, by
# `fencepost.enter`: the statement is bound to rows of the scopes that were entered.


class Mark(NamedTuple):
    """Pieces of SQL about the row `r`."""

    same_table: str
    """The table's name still means the table that the catalog has seen, its key is the one, and the columns that are
    given have the types; raises FP000 where that is not so (R13)."""
    passes: str
    """The write of one row may go on."""
    within: tuple[str, ...]
    """What else the rows have in common that a write of several may meet: terms of an AND."""
    refuses: str
    """Of a row that was met and locked, with its mark as FOUND_MARK: the write must not go on."""
    shown: str
    """The mark as the write has left it; 0 where it is the scope's."""
    may_insert: str
    """The same as `same_table`, of an INSERT, which only a trigger judges: raises FP005 where that does not fire. A
    partition's is looked at by the trigger that gives the row its token (table_functions.sql)."""
    stored: tuple[tuple[str, str], ...]
    """What an UPDATE or INSERT stores beside the row's other columns, as (column, value): -t, which is a token and no
    echo of the column (R14). The triggers judge it and store t. Where there are none, the table's check refuses -t: the
    table was unprotected, and we have not heard of it (R13), or it only looks like the protected one."""


def mark_of(table: ProtectedTable, given: Collection[str] = (), *, deletes: bool = False) -> Mark:
    """Give the pieces for a table. `given`: the columns that the body gives values of."""
    rule, scope = table.fence.rule, table.fence.scope
    same = or_outdated(table.fence.name, [*same_table(table), *of_types(table, given)])
    if deletes or not table.updates_reach_further.isdisjoint(given):
        same = " AND ".join((same, *_reached_fences(table)))
    name, oid = table.fence.name, table.oid
    if scope is not None:
        # Its trigger keeps a row from changing its scope, which no check would refuse.
        same = f"{same} AND {or_unfenced(name, oid, 'scope')}"
        named = row_scope(table, scope)
        within = (same, f"{named} = ANY ({SCOPES})")
        return Mark(same, f"{same} AND {named} = {SCOPE}", within, "false", "0::bigint", same, ())
    lets_pass = f"{comparison(rule)} {TOKEN}"
    judged = f" AND {or_unfenced(name, oid, 'insmark')}" if table.kind == "table" else ""
    return Mark(
        same_table=same,
        passes=f"{same} AND r.{MARK} {lets_pass}",
        within=(same,),
        refuses=f"NOT {FOUND_MARK} {lets_pass}",
        shown=f"r.{MARK}",
        may_insert=f"{same}{judged}",
        stored=((MARK, f"-{TOKEN}"),),
    )


def _reached_fences(table: ProtectedTable) -> Iterator[str]:
    """Look at the fences of the tables to which foreign keys' actions lead: PostgreSQL writes to these by itself."""
    for oid, name, scoped in table.reached:
        for trigger in ("scope",) if scoped else ("del", "upd"):
            yield or_unfenced(name, oid, trigger, each_time=True)


# What is known of keys: R5's question, which follows a write that reached no row, and what surrounds it.
#
# Each is a statement of its own, on a snapshot of its own: the one that found no row reads an older one.


@dataclass(frozen=True, slots=True)
class KeyState:
    """The answer to R5's question about one key: its name, the live row's mark, the mark of a key without a row, and
    what bounds the tokens of its table (R12): `issued`, the newest of its source, or the highest that an external table
    takes, and `max_jump`, how far one may be above the mark.
    """

    resource: str
    live: int | None
    without_row: int | None
    issued: int | None = None
    max_jump: int | None = None


_BODY: Final[Parameter[str]] = Parameter(BODY.name, BODY.type, str)


@dataclass(frozen=True, slots=True)
class ElementState:
    """What is known of one element's key. The resource is empty when the element has no value for a part of it."""

    element: int
    standing: KeyState


@dataclass(frozen=True, slots=True)
class ElementScope:
    """An element's resource, as above, and the scope of its row; None without a row."""

    element: int
    resource: str
    scope: str | None


def _question(table: ProtectedTable, given: Given, order: str) -> str:
    """Write R5's question. What was issued never falls, so the same statement may ask it: a later draw only helps."""
    name = table.fence.name
    return (
        f"SELECT {given.place} AS place, n.resource,"
        f" (SELECT r.{MARK} FROM {table.sql_name} AS r WHERE {given.match(table)}) AS live,"
        f" fencepost.gateway_mark_without_row({literal(name)}, n.resource) AS without_row, c.issued, c.max_jump"
        f" FROM {given.source} CROSS JOIN LATERAL (SELECT {given.resource(table, name)} AS resource) AS n"
        f" CROSS JOIN (SELECT {ceiling_of(table.fence)}) AS c ORDER BY {order}"
    )


def question_of_keys(table: ProtectedTable) -> Statement[Sequence[Key]]:
    """Write the question about keys, to be answered in their order."""
    given = keys(table)
    return _of_keys(table, _question(table, given, given.place))


def question_of_elements(table: ProtectedTable) -> Statement[str]:
    """Write the question about the elements of a JSON array, to be answered in key order."""
    given = elements(table, table.key)
    return _of_body(_question(table, given, given.key_order(table)))


def _key_state(row: asyncpg.Record) -> KeyState:
    return KeyState(row[1] or "", row[2], row[3], row[4], row[5])


async def ask(connection: Connection, table: ProtectedTable, asked: Sequence[Key]) -> list[KeyState]:
    """Ask about keys, and answer in their order."""
    statement = table.kept(question_of_keys)
    rows = await statement.ask(connection, asked)
    return [_key_state(row) for row in rows]


async def ask_elements(connection: Connection, table: ProtectedTable, body: str) -> list[ElementState]:
    """Ask about the key of every element of a JSON array, and answer in key order."""
    statement = table.kept(question_of_elements)
    rows = await statement.ask(connection, body)
    return [ElementState(row[0] - 1, _key_state(row)) for row in rows]


def _of_keys(table: Table, text: str) -> Statement[Sequence[Key]]:
    return compiled(text, [key_texts(n) for n, _ in enumerate(table.key)])


def _of_body(text: str) -> Statement[str]:
    return compiled(text, [_BODY])


async def place_elements(connection: Connection, table: ProtectedTable, body: str) -> list[ElementScope]:
    """Read which scopes the elements' rows are in, in key order and without a lock: its columns never change."""
    if table.fence.scope is None:
        raise ValueError(f"{table.fence.name} has no scope")
    given = elements(table, table.key)
    rows = await _of_body(
        f"SELECT {given.place} AS place, {given.resource(table, table.fence.name)} AS resource,"
        f" {row_scope(table, table.fence.scope)} AS scope FROM {given.source}"
        f" LEFT JOIN {table.sql_name} AS r ON {given.match(table)} ORDER BY {given.key_order(table)}"
    ).ask(connection, body)
    return [ElementScope(row["place"] - 1, row["resource"] or "", row["scope"]) for row in rows]


async def in_key_order(connection: Connection, table: ProtectedTable, asked: Sequence[Key]) -> list[tuple[int, str]]:
    """Order keys as everybody takes rows, by their typed values and in their columns' collations: (position among
    `asked`, the resource's name). Another order than that of a multi-row write would invite deadlocks (R20).

    Two spellings of one key have one name.
    """
    given = keys(table)
    rows = await _of_keys(
        table,
        f"SELECT {given.place}::int - 1 AS position, {given.resource(table, table.fence.name)} AS resource"
        f" FROM {given.source} ORDER BY {given.key_order(table)}",
    ).ask(connection, asked)
    return [(row["position"], row["resource"]) for row in rows]


async def exists(connection: Connection, table: Table, key: Key) -> bool:
    """Look whether there is a row now, in a statement of its own."""
    text = f"SELECT EXISTS (SELECT FROM {table.sql_name} AS r WHERE {key_match(table)})"
    ((found,),) = await compiled(text, OF_KEY).ask(connection, key)
    return bool(found)


@dataclass(frozen=True, slots=True)
class ResourceState:
    """What the database knows of a resource: its name, the live row's mark, and what fencepost.marks has of it."""

    resource: str
    live: int | None
    recorded: int | None
    row_absent: bool | None
    changed_at: str | None

    @property
    def mark(self) -> int:
        """The row's mark, or that of the key without a row."""
        known = self.recorded if self.live is None and self.row_absent else self.live
        return NO_MARK if known is None else known


async def read_resource(connection: Connection, table: ProtectedTable, key: Key) -> ResourceState:
    """Look a resource up, in one snapshot."""
    rows = await compiled(
        f"SELECT n.resource, (SELECT r.{MARK} FROM {table.sql_name} AS r WHERE {key_match(table)}) AS live,"
        f" m.last_fence_token AS recorded, m.row_absent,"
        f" pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{{}}' AS changed_at"
        f" FROM (SELECT {parameter_resource(table, table.fence.name)} AS resource) AS n"
        f" LEFT JOIN LATERAL fencepost.gateway_mark_record(n.resource) AS m ON true"
        # Not beside the key: where no partition can have the row, PostgreSQL drops the whole condition unread.
        f" WHERE {or_outdated(table.name, same_table(table))}",
        OF_KEY,
    ).fetch(connection, key)
    return ResourceState(*rows[0])


# Marks of keys without a row: claiming one.


class Appeared(Exception):  # noqa: N818 - it is not an error; it rolls a transaction back
    """The key has a row after all."""


class _BelowFloor(Exception):  # noqa: N818 - the same
    """Marks up to the floor may have been forgotten, and the token is not above it."""

    def __init__(self, floor: int) -> None:
        super().__init__(floor)
        self.floor = floor


_STILL_PROTECTED: Final = """
SELECT CASE WHEN p.relation IS NULL THEN fencepost.outdated($4) WHEN p.source = $8 THEN
              CASE WHEN p.max_token IS DISTINCT FROM $9 OR p.max_jump IS DISTINCT FROM $10
                   THEN fencepost.outdated($4) END
            WHEN p.source = $7 THEN fencepost.require_issued($1, $2)
            ELSE fencepost.require_issued($1, $2, p.source) END
  FROM (SELECT pg_catalog.to_regclass($3) AS named) AS t
  LEFT JOIN fencepost.protected p ON p.relation OPERATOR(pg_catalog.=) t.named AND p.name = $4
        AND fencepost.key_of(p.relation)::text = $5 AND p.rule = $6 AND p.scope IS NULL"""
"""The last look of a claim without a row: whether the table is the one that was looked at (its key identifies it),
and has its name, key, rule and ceiling, and marks for its rows; and the source of now, not the catalog's. The statement
before it has taken the table's lock: who protects the table otherwise either has done it, and is seen here, or waits
until this mark can be seen.
"""


async def claim_absent(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, resource: str
) -> int | Appeared | None:
    """Raise the mark of a key without a row: None when raised, else the mark that refused, or Appeared.

    Raising waits for a transaction that is inserting or deleting the key. Only then, in a statement of its own and so
    with a later snapshot, can it be seen whether there is a row now; the same statement would miss it (R7). And
    whether the table is protected as the catalog has it, and the token was ever issued, or is not above the table's
    ceiling (R12): no trigger of the table sees a claim without a row. Raises asyncpg's error FP000 when the catalog is
    outdated.
    """
    try:
        async with connection.transaction():
            ceiling = table.fence.ceiling
            if ceiling is not None and ceiling.may_refuse(token):
                await connection.execute(
                    "SELECT fencepost.gateway_meet_ceiling($1, $2, $3, $4, $5)",
                    table.fence.name, resource, token, ceiling.max_token, ceiling.max_jump,
                )  # fmt: skip
            refused: int | None = await connection.fetchval(
                "SELECT fencepost.gateway_raise_mark($1, $2, $3, true)", resource, token, table.fence.rule
            )
            # After the mark, in a statement of its own: a floor read before the wait could be too old (R6).
            floor: int | None = await connection.fetchval("SELECT fencepost.gateway_floor_of($1)", table.fence.name)
            if floor is not None and not accepts(table.fence.rule, floor, token):
                raise _BelowFloor(floor)  # noqa: TRY301 - leaving the block is what gives the mark back
            if await exists(connection, table, key):
                raise Appeared  # noqa: TRY301 - leaving the block is what gives the mark back
            await _require_still_protected(connection, table, token, resource)
            return refused
    except Appeared as appeared:
        return appeared
    except _BelowFloor as below:
        return below.floor


async def _require_still_protected(connection: Connection, table: ProtectedTable, token: Token, resource: str) -> None:
    fence, ceiling = table.fence, table.fence.ceiling
    await connection.execute(
        _STILL_PROTECTED,
        resource,
        token,
        table.sql_name,
        fence.name,
        fence.key,
        fence.rule,
        BUILTIN,
        EXTERNAL,
        None if ceiling is None else ceiling.max_token,
        None if ceiling is None else ceiling.max_jump,
    )


# What only PostgreSQL knows of keys and values: whether two spellings are one key, and what a column can store.


async def same_key(connection: Connection, table: Table, key: Key, named: tuple[str, ...], body: str) -> bool:
    """Whether the key columns that the body names have the path's values: compared as their types, not as text."""
    bound = Bound()
    source = f"json_to_record({body_json(table, named, bound.add(body, 'json'))}) AS b({body_columns(table, named)})"
    tests = " AND ".join(
        # Not IS NOT DISTINCT FROM, which looks for its `=` along the search_path.
        f"(b.{quote(name)} {operator(table.columns[name], '=')} {key_parameter(table, table.key.index(name))}) IS TRUE"
        for name in named
    )
    statement = compiled(f"SELECT {tests} FROM {source}", (*bound.parameters, *OF_KEY))
    ((same,),) = await statement.ask(connection, key)
    return bool(same)


async def fits(connection: Connection, table: Table, key: Key) -> bool:
    """Whether the path's key values survive storing: 1.234 would become 1.23 in numeric(5,2), another row's key."""
    tests = " AND ".join(
        f"{key_parameter(table, n)} {operator(table.columns[name], '=')}"
        f" CAST({key_parameter(table, n)} AS {table.columns[name].type})"
        for n, name in enumerate(table.key)
    )
    ((same,),) = await compiled(f"SELECT {tests}", OF_KEY).ask(connection, key)
    return bool(same)


async def converts_key(connection: Connection, table: Table, position: int, value: str) -> bool:
    """Whether a key value can be read as its column's type."""
    bound = Bound()
    return await _runs(connection, f"SELECT CAST({bound.add(value)} AS {_key_type(table, position)})", bound)


async def converts_value(connection: Connection, table: Table, column: str, body: str) -> bool:
    """Whether every value that the body (an object, or an array of them) has for a column can be read as its type."""
    bound = Bound()
    function = "json_to_recordset" if body.lstrip().startswith("[") else "json_to_record"
    return await _runs(
        connection,
        f"SELECT pg_catalog.count(b.{quote(column)})"
        f" FROM {function}({body_json(table, (column,), bound.add(body, 'json'))})"
        f" AS b({quote(column)} {table.columns[column].type})",
        bound,
    )


async def converts_text(connection: Connection, table: Table, column: str, value: str | tuple[str, ...]) -> bool:
    """Whether what a filter compares a column with can be read as its type: a text, or each of several."""
    bound, type_ = Bound(), table.columns[column].base_type
    texts = bound.add([value] if isinstance(value, str) else list(value), "text[]")
    read = f"SELECT pg_catalog.count(CAST(v AS {type_})) FROM pg_catalog.unnest({texts}) AS v"
    return await _runs(connection, read, bound)


def _key_type(table: Table, position: int) -> str:
    return table.columns[table.key[position]].base_type


async def _runs(connection: Connection, text: str, bound: Bound) -> bool:
    statement: Any = compiled(text, bound.parameters)
    try:
        async with savepoint(connection):
            await statement.ask(connection, None)
    except RefusedError as error:
        if not error.may_be_of_a_value and not error.sqlstate.startswith(VIOLATION):  # a domain's CHECK is the latter
            raise
        return False
    return True


_REKEYS: Final = f"""
WITH RECURSIVE part(oid) AS (
  SELECT $1::text::regclass::oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
SELECT EXISTS (SELECT FROM part c WHERE {HAS_RULES})
    OR EXISTS (SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
                WHERE NOT t.tgisinternal AND t.tgtype::int & 7 = 7 AND t.tgenabled <> 'D'
                  AND NOT pg_catalog.starts_with(t.tgname::text, 'zzz_fencepost_'))"""
"""The first three bits of tgtype are ROW, BEFORE and INSERT."""


async def keys_may_change(connection: Connection, table: Table) -> bool:
    """Whether a trigger or rule that is not ours may store a row under another key than was sent."""
    return bool(await ask_value(connection, _REKEYS, table.sql_name))
