"""R18: a 409 names who superseded the caller, when that can be known: whose token the mark is.

Asked after the refusal, in a statement of its own, and only for tables that are pinned to a source: there a mark is a
token that some lease was given. The verdict does not wait for it, nor depend on it.
"""

import asyncio
from dataclasses import replace
from typing import Final

from fencepost.fencing.caller import Caller
from fencepost.fencing.problem_types import SPENT_TOKEN, STALE_TOKEN
from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.observe.events import HolderUnknown
from fencepost.storage.connections.connection import Connection
from fencepost.storage.errors import StorageError, map_errors
from fencepost.storage.leases.issued import Issued, issued_to
from fencepost.storage.statements.row_sql import encode_name
from fencepost.storage.tables.catalog import Table

_NAMED: Final = 3
"""How many locks the sentence names; `locks` has them all."""


async def with_holder(gateway: Gateway, table: Table | None, refused: Problem) -> Problem:
    """Add what is known of the mark's token to a stale or spent refusal, if PostgreSQL says it soon (RequestTimes)."""
    mark = refused.current_token
    fence = table.fence if table is not None else None
    if fence is None or not fence.pinned or refused.type not in (STALE_TOKEN, SPENT_TOKEN) or mark is None:
        return refused
    if not (refused.resource or "").startswith(encode_name(fence.prefix) + "/"):
        return refused  # another table's trigger refused, and its marks may be another source's
    within = gateway.times.requests.explain_within
    try:
        async with asyncio.timeout(within), gateway.own_connection() as connection:
            found = await holder_of(connection, mark, fence.source)
    except (StorageError, TimeoutError) as error:
        # The verdict is certain, for marks never fall; only its story is missing. Answering 503 instead would invite
        # the caller to try again, with a token that can never be accepted.
        gateway.emit(HolderUnknown(fence.name, str(error) or f"no answer within {within:g} s"))
        return refused
    return refused if found is None or not is_visible(found, gateway.caller) else _add_holder(refused, found)


def is_visible(found: Issued, caller: Caller) -> bool:
    """Whether a caller may see who has, or had, these locks."""
    return all(caller.may_lock(name) for name in found.locks)


async def holder_of(connection: Connection, token: int, source: str) -> Issued | None:
    """Look up whose token of a source this is."""
    with map_errors(writing=False):
        return await issued_to(connection, token, source)


def _add_holder(refused: Problem, by: Issued) -> Problem:
    extra = {**refused.extra, "superseded_by": by.body()}
    if refused.type is SPENT_TOKEN:  # it is the caller's own, or a copy of it
        return replace(refused, extra=extra)
    detail = refused.detail if refused.detail.endswith(".") else f"{refused.detail}."
    return replace(refused, detail=f"{detail} {_sentence(by)}", extra=extra)


def _sentence(by: Issued) -> str:
    named = ", ".join(by.locks[:_NAMED])
    more = f" and {len(by.locks) - _NAMED} more" if len(by.locks) > _NAMED else ""
    locks = f"the lock{'s' if len(by.locks) > 1 else ''} {named}{more}"
    return f"The newer token was issued to {by.holder}, who was granted {locks} at {by.granted_at}."
