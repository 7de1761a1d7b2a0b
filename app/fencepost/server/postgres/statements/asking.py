"""What is known of keys: R5's question, which follows a write that reached no row, and what surrounds it.

Each is a statement of its own, on a snapshot of its own: the one that found no row reads an older one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.fence.token import NO_MARK
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.statements.given import Given, elements, key_texts, keys
from fencepost.server.postgres.statements.parameters import BODY, OF_KEY, Key, Parameter, Statement, compiled
from fencepost.server.postgres.statements.row_sql import (
    MARK,
    ceiling_of,
    key_match,
    literal,
    or_outdated,
    parameter_resource,
    row_scope,
    same_table,
)
from fencepost.server.postgres.tables.catalog import ProtectedTable, Table


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
    rows = await statement.fetch(connection, asked)
    return [_key_state(row) for row in rows]


async def ask_elements(connection: Connection, table: ProtectedTable, body: str) -> list[ElementState]:
    """Ask about the key of every element of a JSON array, and answer in key order."""
    statement = table.kept(question_of_elements)
    rows = await statement.fetch(connection, body)
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
    ).fetch(connection, body)
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
    ).fetch(connection, asked)
    return [(row["position"], row["resource"]) for row in rows]


async def exists(connection: Connection, table: Table, key: Key) -> bool:
    """Look whether there is a row now, in a statement of its own."""
    text = f"SELECT EXISTS (SELECT FROM {table.sql_name} AS r WHERE {key_match(table)})"
    found: bool = await compiled(text, OF_KEY).value(connection, key)
    return found


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
