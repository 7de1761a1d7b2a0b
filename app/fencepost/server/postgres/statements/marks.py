"""Marks of keys without a row: claiming one."""

from typing import Final

from fencepost.server.fence.token import BUILTIN, EXTERNAL, Token, accepts
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.statements.asking import exists
from fencepost.server.postgres.statements.parameters import Key
from fencepost.server.postgres.tables.catalog import ProtectedTable


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
