"""Marks of keys without a row: claiming one, and what is known about a resource."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.fencing.token import BUILTIN, EXTERNAL, Token, accepts
from fencepost.storage.connections.connection import Connection
from fencepost.storage.statements.fenced import Key
from fencepost.storage.statements.row_sql import MARK, key_match, parameter_resource, resource_sql
from fencepost.storage.tables.catalog import ProtectedTable


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
"""The last look of a claim without a row: whether the table is the one that was looked at (its key says which it is),
and has its name, key, rule and ceiling, and marks for its rows; and the source of now, not the catalog's. The statement
before it has taken the table's lock: who protects the table otherwise either has done it, and is seen here, or waits
until this mark can be seen.
"""


async def claim_absent(
    connection: Connection, table: ProtectedTable, key: Key, token: Token, resource: str
) -> int | Appeared | None:
    """Raise the mark of a key without a row: None when raised, else the mark that refused, or Appeared.

    Raising waits for whoever is inserting or deleting the key. Only then, in a statement of its own and so with a later
    snapshot, can it be seen whether there is a row now; the same statement would miss it (R7). And whether the table is
    protected as the catalog has it, and the token was ever issued, or is not above the table's ceiling (R12): no
    trigger of the table sees a claim without a row. Raises asyncpg's error FP000 when the catalog is outdated.
    """
    try:
        async with connection.transaction():
            ceiling = table.fence.ceiling
            if ceiling is not None and ceiling.may_refuse(token):
                await connection.execute(
                    "SELECT fencepost.meet_ceiling($1, $2, $3, $4, $5)",
                    table.fence.name, resource, token, ceiling.max_token, ceiling.max_jump,
                )  # fmt: skip
            refused: int | None = await connection.fetchval(
                "SELECT fencepost.raise_mark($1, $2, $3, true)", resource, token, table.fence.rule
            )
            # After the mark, in a statement of its own: a floor read before the wait could be too old (R6).
            floor: int | None = await connection.fetchval("SELECT fencepost.floor_of($1)", table.fence.name)
            if floor is not None and not accepts(table.fence.rule, floor, token):
                raise _BelowFloor(floor)  # noqa: TRY301 - leaving the block is what gives the mark back
            if await connection.fetchval(
                f"SELECT EXISTS (SELECT FROM {table.sql_name} AS r WHERE {key_match(table)})", *key
            ):
                raise Appeared  # noqa: TRY301 - leaving the block is what gives the mark back
            await connection.execute(
                _STILL_PROTECTED,
                resource,
                token,
                table.sql_name,
                table.fence.name,
                table.fence.key,
                table.fence.rule,
                BUILTIN,
                EXTERNAL,
                None if ceiling is None else ceiling.max_token,
                None if ceiling is None else ceiling.max_jump,
            )
            return refused
    except Appeared as appeared:
        return appeared
    except _BelowFloor as below:
        return below.floor


@dataclass(frozen=True, slots=True)
class Known:
    """What the database knows of a resource: its name, the live row's mark, and what fencepost.marks has of it."""

    resource: str
    live: int | None
    recorded: int | None
    row_absent: bool | None
    changed_at: str | None


async def known(connection: Connection, table: ProtectedTable, key: Key) -> Known:
    """Look a resource up, in one snapshot."""
    row = await connection.fetchrow(
        f"SELECT n.resource, (SELECT r.{MARK} FROM {table.sql_name} AS r WHERE {key_match(table)}) AS live,"
        f" m.last_fence_token AS recorded, m.row_absent,"
        f" pg_catalog.to_json(m.changed_at) OPERATOR(pg_catalog.#>>) '{{}}' AS changed_at"
        f" FROM (SELECT {parameter_resource(table, table.fence.name)} AS resource) AS n"
        f" LEFT JOIN LATERAL fencepost.mark_record(n.resource) AS m ON true",
        *key,
    )
    if row is None:
        raise RuntimeError("a SELECT without WHERE gave no row")
    return Known(row["resource"], row["live"], row["recorded"], row["row_absent"], row["changed_at"])


async def in_key_order(connection: Connection, table: ProtectedTable, keys: Sequence[Key]) -> list[tuple[int, str]]:
    """Order keys as everybody takes rows, by their typed values and in their columns' collations: (position among
    `keys`, the resource's name). Another order than that of a multi-row write would invite deadlocks.

    Two spellings of one key have one name.
    """
    names = [f"k{n}" for n in range(len(table.key))]
    values = [f"CAST(x.{name} AS {table.columns[c].base_type})" for name, c in zip(names, table.key, strict=True)]
    resource = resource_sql(
        table.fence.name, [(table.columns[c].base_name, value) for c, value in zip(table.key, values, strict=True)]
    )
    order = [
        value if (collation := table.columns[c].collation) is None else f"{value} COLLATE {collation}"
        for c, value in zip(table.key, values, strict=True)
    ]
    arrays = ", ".join(f"pg_catalog.unnest(${n}::text[])" for n in range(1, len(names) + 1))
    rows = await connection.fetch(
        f"SELECT x.o::int - 1 AS position, {resource} AS resource"
        f" FROM ROWS FROM ({arrays}) WITH ORDINALITY AS x({', '.join(names)}, o) ORDER BY {', '.join(order)}, x.o",
        *([key[n] for key in keys] for n in range(len(names))),
    )
    return [(row["position"], row["resource"]) for row in rows]
