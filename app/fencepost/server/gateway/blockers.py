"""Names the prepared transaction that a write waited for in vain: pg_stat_activity does not show it.

Asked after a lock timeout only. The answer does not depend on it.
"""

import asyncio
from dataclasses import replace
from typing import Final

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.errors import StorageError, map_errors
from fencepost.server.postgres.tables import Table

_LOCK_NOT_AVAILABLE: Final = "55P03"


async def with_blocker(gateway: Gateway, table: Table | None, refused: Problem) -> Problem:
    """Add to a lock timeout which prepared transactions hold locks on the table, or where to look for others. Without
    a table: on any table, for a grant may have claimed rows of several.
    """
    if refused.name != _LOCK_NOT_AVAILABLE:
        return refused
    hint = f"A transaction has held the row, or a lock on the table, all the while: see {upkeep.WHERE_TO_LOOK}."
    name = table.fence.name if table is not None and table.fence is not None else None
    try:
        async with asyncio.timeout(gateway.times.requests.explain_within), gateway.own_connection() as connection:
            with map_errors(writing=False):
                found = await upkeep.lock_holders(connection, name)
    except (StorageError, TimeoutError):  # too busy: no more can be found out
        found = []
    if not found:
        return replace(refused, hint=hint)
    gids = [each.gid for each in found]
    return replace(refused, hint=upkeep.describe_holders(found), extra={**refused.extra, "prepared_transactions": gids})
