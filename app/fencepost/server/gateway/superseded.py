"""R18: a 409 names who was refused, and who superseded that holder, when they can be known: whose token was presented,
and whose the mark is.

Asked after the refusal, in statements of their own, and only for tables that are pinned to a source: there a token was
given to some lease. The verdict does not wait for the answers, nor depend on them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import SPENT_TOKEN, STALE_TOKEN
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.observe.events import HolderUnknown
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import StorageError, map_errors
from fencepost.server.postgres.leases import Issued, issued_to
from fencepost.server.postgres.row_sql import encode_name
from fencepost.server.postgres.tables import Table

_UNKNOWN: Final = (
    "Whose tokens these are is not known: {0} takes those of any lock service. `fencepost protect {0} --source NAME`"
    " binds it to one that Fencepost knows: then a 409 names both holders."
)
_NAMED: Final = 3
"""How many locks the sentence names; `locks` has them all."""


async def with_holders(gateway: Gateway, table: Table | None, refused: Problem) -> Problem:
    """Add what is known of the presented token and of the mark's to a stale or spent refusal, if PostgreSQL says it
    soon (RequestTimes).
    """
    fence = table.fence if table is not None else None
    if fence is None or refused.type not in (STALE_TOKEN, SPENT_TOKEN):
        return refused
    if refused.resource is not None and not refused.resource.startswith(encode_name(fence.prefix) + "/"):
        return refused  # another table's trigger refused, and its marks may be another source's
    if not fence.pinned:
        return replace(refused, hint=f"{refused.hint or ''} {_UNKNOWN.format(fence.name)}".lstrip())
    tokens = dict.fromkeys(each for each in (refused.presented_token, refused.current_token) if each is not None)
    found: dict[int, Issued | None] = {}
    within = gateway.times.requests.explain_within
    try:
        async with asyncio.timeout(within), gateway.own_connection() as connection:
            for token in tokens:
                found[token] = await holder_of(connection, token, fence.source)
    except (StorageError, TimeoutError) as error:
        # The verdict is certain, for marks never fall; only its story is missing. Answering 503 instead would invite
        # the caller to try again, with a token that can never be accepted.
        gateway.emit(HolderUnknown(fence.name, str(error) or f"no answer within {within:g} s"))
        return refused
    seen = {token: by for token, by in found.items() if by is not None and is_visible(by, gateway.caller)}
    return _add_holders(refused, seen)


def is_visible(found: Issued, caller: Caller) -> bool:
    """Whether a caller may see who has, or had, these locks."""
    return all(caller.may_lock(name) for name in found.locks)


async def holder_of(connection: Connection, token: int, source: str) -> Issued | None:
    """Look up whose token of a source this is."""
    with map_errors(writing=False):
        return await issued_to(connection, token, source)


def _add_holders(refused: Problem, seen: Mapping[int, Issued]) -> Problem:
    """Spent is the caller's own token, or a copy of it: then both are one holder, and no news."""
    presented, mark = refused.presented_token, refused.current_token
    extra, said = dict(refused.extra), []
    if presented is not None and presented in seen:
        extra["presented_by"] = seen[presented].body()
        if mark != presented:
            said.append(f"Token {presented} was issued to {_sentence(seen[presented])}.")
    if mark is not None and mark in seen:
        extra["superseded_by"] = seen[mark].body()
        if mark != presented:
            said.append(f"The newer token was issued to {_sentence(seen[mark])}.")
    detail = refused.detail if refused.detail.endswith(".") else f"{refused.detail}."
    return replace(refused, detail=" ".join((detail, *said)), extra=extra) if extra != refused.extra else refused


def _sentence(by: Issued) -> str:
    named = ", ".join(by.locks[:_NAMED])
    more = f" and {len(by.locks) - _NAMED} more" if len(by.locks) > _NAMED else ""
    locks = f"the lock{'s' if len(by.locks) > 1 else ''} {named}{more}"
    return f"{by.holder}, who was granted {locks} at {by.granted_at}"
