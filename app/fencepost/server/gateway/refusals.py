"""Errors of PostgreSQL and of lock services as problems: which SQLSTATE is which status, and whose fault."""

import asyncio
import json
import re
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from fencepost.server.fence.caller import ANONYMOUS, Caller
from fencepost.server.fence.problem_types import (
    BAD_REQUEST,
    DATABASE_REFUSED,
    DATABASE_UNAVAILABLE,
    PERMISSION_DENIED,
    ROLE_NOT_ALLOWED,
    SOURCE_FAILED,
    SOURCE_QUARANTINED,
    SOURCE_UNAVAILABLE,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNPROTECTED_TABLE,
    of_sqlstate,
)
from fencepost.server.fence.problems import Problem, bad_request, problem_of
from fencepost.server.fence.token import BUILTIN, EXTERNAL, BeyondCeiling, Rule, Token, Unissued, shown_mark
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.locks.source import SourceError, SourceNameError, SourceQuarantinedError, SourceUnavailableError
from fencepost.server.observe.events import HolderUnknown
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.errors import (
    LOCK_NOT_AVAILABLE,
    QuarantinedError,
    RefusedError,
    RoleError,
    StorageError,
    UnavailableError,
)
from fencepost.server.postgres.leases import Issued, issued_to
from fencepost.server.postgres.row_sql import encode_name
from fencepost.server.postgres.tables import MARK_CHECK, Table

# Whether the gateway acts as a caller's role: decided before anything of the request is sent to the database.

T = TypeVar("T")


async def acting(gateway: Gateway, work: Coroutine[Any, Any, T]) -> T | Problem:
    """Do what acts as the caller on users' tables, if the gateway acts as its role. Raises UnavailableError, and what
    the work raises.
    """
    role = gateway.caller.role
    if role is None:
        return await work
    try:
        reason = await gateway.roles.why_not(gateway.database, role)
        return await work if reason is None else _not_allowed(role, reason)
    except RoleError as error:  # it was allowed a moment ago
        gateway.roles.forget()
        return _not_allowed(role, str(error))
    finally:
        work.close()


def _not_allowed(role: str, reason: str) -> Problem:
    return Problem(ROLE_NOT_ALLOWED, f"The role {role[:63]} is not one that this gateway acts as: {reason}.")


# R18: a 409 names who was refused, and who superseded that holder, when they can be known: whose token was presented,
# and whose the mark is.
#
# Asked after the refusal, in statements of their own, and only for tables that are pinned to a source: there a token
# was given to some lease. The verdict does not wait for the answers, nor depend on them.

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


async def holder_of(connection: Session, token: int, source: str) -> Issued | None:
    """Look up whose token of a source this is."""
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


# Names the prepared transaction that a write waited for in vain: pg_stat_activity does not show it.
#
# Asked after a lock timeout only. The answer does not depend on it.


async def with_blocker(gateway: Gateway, table: Table | None, refused: Problem) -> Problem:
    """Add to a lock timeout which prepared transactions hold locks on the table, or where to look for others. Without
    a table: on any table, for a grant may have claimed rows of several.
    """
    if refused.name != LOCK_NOT_AVAILABLE:
        return refused
    hint = f"A transaction has held the row, or a lock on the table, all the while: see {upkeep.WHERE_TO_LOOK}."
    name = table.fence.name if table is not None and table.fence is not None else None
    try:
        async with asyncio.timeout(gateway.times.requests.explain_within), gateway.own_connection() as connection:
            found = await upkeep.lock_holders(connection, name)
    except (StorageError, TimeoutError):  # too busy: no more can be found out
        found = []
    if not found:
        return replace(refused, hint=hint)
    gids = [each.gid for each in found]
    return replace(refused, hint=upkeep.describe_holders(found), extra={**refused.extra, "prepared_transactions": gids})


# SQLSTATEs, and errors of lock services, as problems.

RETRY_AFTER: Final = 1
"""Seconds that a caller is asked to wait when the database could not be asked."""

_UNKNOWN_RULE: Final[Rule] = "epoch"
"""As which a table counts whose rule is not known here: under it fewer numbers are shown."""

SUPPRESSED: Final = "FP403"
UNISSUED: Final = "FP018"
UNFENCED: Final = "FP005"

_DETAIL_MEMBERS: Final[dict[str, frozenset[str]]] = {
    "FP400": frozenset(),
    "FP409": frozenset({"presented", "mark"}),
    "FP428": frozenset(),
    UNISSUED: frozenset({"resource", "presented", "issued"}),
}
"""What the functions of the schema fencepost raise, and what of it their DETAIL must have."""

_OUR_TRIGGER: Final = re.compile(r'(?:^|\s)fencepost\.(?:"(?:[^"]|"")+"|\w+)\(\)')
"""One of our trigger functions in an error's context, in any language."""


def problem_of_refused(error: RefusedError, table: Table | None = None) -> Problem:
    """Map an SQLSTATE. What the mapping does not name is 400: the statement was understood and refused. `table`: the
    request's own.
    """
    if error.sqlstate in _DETAIL_MEMBERS and (members := _read_detail(error)) is not None:
        if error.sqlstate == "FP428" and table is not None and _is_moved(error, table, members.get("resource")):
            return _moved_problem(error, table, members["resource"])
        return _of_trigger(error, members, _rule_of(table, members.get("resource")))
    if error.schema == "fencepost" and error.constraint == "draws_pkey":
        return Problem(
            SOURCE_QUARANTINED,
            "A token was drawn that had been drawn before: the sequence fencepost.tokens is behind what is recorded, as"
            " after a restore of one and not of the other. Nothing was granted.",
            hint="fencepost generation raise --reason …",
        )
    if error.sqlstate == UNFENCED or (error.constraint == MARK_CHECK and error.sqlstate == "23514"):
        return _unfenced(error, table)
    kind, status = of_sqlstate(error.sqlstate)
    named = {
        name: value
        for name, value in (
            ("table", error.table),
            ("column", error.column),
            ("constraint", error.constraint),
        )
        if value
    }
    return Problem(
        kind,
        str(error),
        code=error.sqlstate,
        status=status,
        details=None if error.shows_a_row else error.detail,
        hint=error.hint,
        extra=dict(named),
    )


def _unfenced(error: RefusedError, table: Table | None) -> Problem:
    """Refuse what a fence does not watch, though the catalog has it whole: a trigger of the table's own has switched it
    off, or one of another table's; or the session fires none.
    """
    hint = "`fencepost doctor` shows what is wrong."
    if error.sqlstate == UNFENCED:
        return Problem(UNPROTECTED_TABLE, f"{error}.", hint=error.hint or hint)
    name = error.table or (table.name if table is not None else "the table")
    detail = (
        f"The fence of {name} did not fire: its triggers are missing, disabled, or fire in no session of this login."
    )
    return Problem(UNPROTECTED_TABLE, detail, hint=hint)


def as_for(caller: Caller, problem: Problem) -> Problem:
    """Give a refusal as this caller gets it: who sent no credential, and lacks a privilege, may have it with one
    (PostgREST's 401).
    """
    if caller.name != ANONYMOUS or problem.type is not PERMISSION_DENIED:
        return problem
    return replace(problem, status=401, hint=problem.hint or "Authorization: Bearer …, with a JWT or an API key.")


def _read_detail(error: RefusedError) -> dict[str, str] | None:
    """Read the members that our functions put into DETAIL; None: other code raised this SQLSTATE."""
    try:
        members = json.loads(error.detail or "{}")
    except ValueError:
        return None
    return members if isinstance(members, dict) and _DETAIL_MEMBERS[error.sqlstate] <= members.keys() else None


def _is_moved(error: RefusedError, table: Table, resource: str | None) -> bool:
    """Whether it is a row of the request that belongs to a scope which the gateway has not entered; and none that a
    cascade or a trigger writes: then that is what our trigger was called from.
    """
    scope = table.fence.scope if table.fence is not None else None
    if scope is None or resource is None or not resource.startswith(f"{encode_name(scope.prefix)}/"):
        return False
    outermost = error.context.rstrip().rpartition("\n")[2]
    return _OUR_TRIGGER.search(outermost) is not None


def _moved_problem(error: RefusedError, table: Table, resource: str) -> Problem:
    # The gateway enters the scopes that the request names, and no other: who holds one need not hold the other.
    return Problem(
        DATABASE_REFUSED,
        f"A trigger of {table.name} moved the row to the scope {resource}, which is none that the request names: the"
        " gateway cannot write such rows.",
        code=error.sqlstate,
        status=409,
        details=str(error),
        hint=f"Name the scope {resource} in the row itself, or write it in SQL, with a token for that scope.",
        resource=resource,
    )


def _rule_of(table: Table | None, resource: str | None) -> Rule:
    """Give the rule of the request's own table, where the resource is of it; a cascade may have met another table."""
    fence = table.fence if table is not None else None
    if fence is None or resource is None:
        return _UNKNOWN_RULE
    return fence.rule if resource.startswith(f"{encode_name(fence.prefix)}/") else _UNKNOWN_RULE


def _of_trigger(error: RefusedError, members: dict[str, str], rule: Rule) -> Problem:
    resource = members.get("resource")
    if error.sqlstate == "FP428":
        # The request had a token, or it would not have come this far: a cascade or a trigger writes to another table.
        return Problem(
            DATABASE_REFUSED,
            f"The request also writes to {resource or 'another protected table'}, by a cascade or a trigger of its"
            " table, and its token is not for that.",
            code=error.sqlstate,
            status=409,
            details=str(error),
            hint="Write the other rows first, each with a token of its own.",
            resource=resource,
        )
    if error.sqlstate == "FP400":
        return Problem(BAD_REQUEST, str(error), hint=error.hint, resource=resource)
    if error.sqlstate == UNISSUED:
        return problem_of(_unissued(members), _UNKNOWN_RULE)
    presented, mark = Token(int(members["presented"])), int(members["mark"])
    detail, of_a_mark = str(error), f": its mark is {mark}"
    # What is void since a generation was raised (bounds.sql) is no mark, and no token either.
    hidden = presented != mark and shown_mark(rule, mark) is None and detail.endswith(of_a_mark)
    return Problem(
        SPENT_TOKEN if presented == mark else STALE_TOKEN,
        f"{detail.removesuffix(of_a_mark)}: a newer one has been accepted since." if hidden else detail,
        hint=error.hint,
        resource=resource,
        presented_token=presented,
        current_token=mark,
        shows_mark=not hidden,
    )


def _unissued(members: dict[str, str]) -> Unissued | BeyondCeiling:
    resource, presented, issued = members["resource"], Token(int(members["presented"])), int(members["issued"])
    source, jump = members.get("source", BUILTIN), members.get("max_jump")
    if source == EXTERNAL:
        return BeyondCeiling(resource, presented, issued, None if jump is None else int(jump))
    return Unissued(resource, presented, issued, source)


def unavailable(error: UnavailableError) -> Problem:
    """The problem when nothing was done."""
    if isinstance(error, QuarantinedError):
        return Problem(SOURCE_QUARANTINED, f"{error}.", extra=dict(error.members))
    return Problem(DATABASE_UNAVAILABLE, f"{error}")


def no_such_source(gateway: Gateway, source: str, where: str) -> Problem:
    """Refuse a source that is not configured here."""
    known = ", ".join([BUILTIN, *sorted(gateway.sources)])
    return bad_request(
        f"{where}: source: there is no source {source[:40]} at this gateway: {known}",
        "fencepost serve --sources NAME=URL configures one (FENCEPOST_SOURCES).",
    )


def source_problem(error: SourceError, source: str) -> Problem:
    """The problem when a lock service gave nothing."""
    detail = f"{error}" if f"{error}".endswith(".") else f"{error}."
    match error:
        case SourceQuarantinedError():
            hint = f"When it counts on from a number that is vouched for: `fencepost source raise {source} --reason …`."
            return Problem(SOURCE_QUARANTINED, detail, hint=hint)
        case SourceNameError():
            return bad_request(detail)
        case SourceUnavailableError():
            return Problem(SOURCE_UNAVAILABLE, detail, extra={"source": source})
        case _:
            return Problem(SOURCE_FAILED, detail, extra={"source": source})
