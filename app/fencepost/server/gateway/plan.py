"""What is known of a write before the database is asked: whether it may be done, and by which statements.

A write is checked in one order, whatever it writes:

1. the table is protected, and its fence holds (403);
2. the request fits the table: its key, filters, columns and what it wants to see (400), and how many rows it has;
3. it has an Idempotency-Key, where the table wants one (400);
4. it has a token (428), whose seal holds, where it has one or the table wants one (403).

What depends on the table and the shape of a request alone is a Plan: made once, and kept with the table's picture.
"""

from dataclasses import dataclass
from typing import NamedTuple

from fencepost.server.fence.problem_types import BODY_TOO_LARGE, NOT_ACCEPTABLE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.seal import SealedToken
from fencepost.server.gateway.attempt import Statements, statements_of
from fencepost.server.gateway.batches import WriteQueues, queues_of
from fencepost.server.gateway.idempotency import IdempotentRequest, Keeping, keeping
from fencepost.server.gateway.refusals import require_columns, require_key, require_once, require_protected, target_of
from fencepost.server.gateway.write import Listed, Matching, OneRow, Verb, Write
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.query import QueryError, Select, render_filters
from fencepost.server.postgres.reading import check_filters
from fencepost.server.postgres.row_sql import Bound
from fencepost.server.postgres.tables import ProtectedTable, Table


class PlanKey(NamedTuple):
    """All of a write that shapes its SQL: a plan is made of it and the table alone, and kept under it."""

    verb: Verb
    by_key: bool
    """Whether it is of the row whose key the path has."""
    single: bool
    """Whether it is of one row."""
    columns: tuple[str, ...]
    select: Select
    shown: bool
    preferences: frozenset[str]
    """Those that change statements."""
    keeping: Keeping
    named: bool
    """Whether the answer names the rows that were written, as they were stored: a seal is compared with them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all writes of one PlanKey."""

    table: ProtectedTable
    change: Change
    statements: Statements | None
    """Of a row by its key, for a write that is decided alone; None: it is of no such row."""
    queues: WriteQueues | None
    """Its batches; None: it is never in one."""
    names_key: bool
    """Whether the body gives key columns, too."""


def plan_of(found: Table, write: Write, once: IdempotentRequest | None, max_rows: int, most: int) -> Plan | Problem:
    """Check a write but for its token, and give its plan. `max_rows`: how many rows a request may write; `most`: how
    many bytes an answer may have. Raises QueryError.
    """
    table, target = require_protected(found), write.target
    if isinstance(table, Problem):
        return table
    if isinstance(target, OneRow):
        require_key(table, target.key)
    elif isinstance(target, Matching):
        render_filters(table, target.filters, Bound())
        check_filters(table, target.filters)
        if key := [column for column in write.body.columns if column in table.key]:
            raise QueryError(f"body: {', '.join(key)} is the primary key, which a write cannot change")
    plan: Plan = table.kept(_plan, _key_of(table, write, once), most)
    if isinstance(target, Listed):
        if target.count and write.verb == "patch":
            _require_key_columns(table, write.body.columns)
        if (unfit := _unfit_count(write, target.count, max_rows)) is not None:
            return unfit
    return require_once(table.fence, write.idempotency_key if once is None else once) or plan


def _key_of(table: ProtectedTable, write: Write, once: IdempotentRequest | None) -> PlanKey:
    by_key, single = isinstance(write.target, OneRow), write.single
    # Under a seal a PUT answers which row it has made, for a trigger may have given it another key; writes of several
    # rows answer which they have met. A scope is known anyway. What a POST has made is always answered.
    named = isinstance(write.token, SealedToken) and (
        write.verb == "put" if by_key else write.verb != "post" and table.fence.scope is None
    )
    kept = keeping(once) if single and table.shares_transactions else None  # it differs in batches only
    body, preferences = write.body, write.preferences.in_sql
    return PlanKey(write.verb, by_key, single, body.columns, write.select, write.shown, preferences, kept, named)


def _plan(table: ProtectedTable, key: PlanKey, most_bytes: int) -> Plan:
    require_columns(table, key.columns)
    target = target_of(table, key.select, most_bytes, shown=key.shown)
    given, verb = key.columns, key.verb
    if verb != "post":
        given = tuple(column for column in given if column not in table.key)
    defaults = replaceable(table, given) if verb == "put" else ()
    change = Change(given, target, key.preferences, defaults, key.named, deletes=verb == "delete")
    statements = statements_of(table, verb, change, "block") if key.by_key else None
    queues = queues_of(table, verb, change, key.keeping) if key.single else None
    return Plan(table, change, statements, queues, len(given) < len(key.columns))


def replaceable(table: Table, given: tuple[str, ...]) -> tuple[str, ...]:
    """Columns that PUT sets to their defaults."""
    return tuple(
        name
        for name in table.visible
        if name not in given
        and name not in table.key
        and not table.columns[name].generated
        and table.columns[name].identity != "always"
    )


def _require_key_columns(table: ProtectedTable, columns: tuple[str, ...]) -> None:
    """Refuse an array whose objects do not name their rows."""
    if lacking := [column for column in table.key if column not in columns]:
        raise QueryError(
            f"body: without {', '.join(lacking)}: every object names its row of {table.name} by the key,"
            f" {', '.join(table.key)}"
        )


# How many rows a request may write: what the gateway allows, and what the request itself wants.


def _unfit_count(write: Write, count: int, max_rows: int) -> Problem | None:
    """Refuse a body of `count` rows that the gateway, or the request itself, does not want."""
    most = write.preferences.most
    what = f"the body has {count} rows"
    if count > max_rows:
        return too_many(max_rows, what)
    if write.exactly_one and count != 1:
        return not_one(count)
    return more_than_wanted(most, what) if most is not None and count > most else None


def not_one(count: int | None) -> Problem:
    """Refuse what was to concern exactly one row; None: more than one. Nothing was written."""
    there = "there are more" if count is None else f"there are {count}"
    return Problem(NOT_ACCEPTABLE, f"The Accept header wants exactly one row, and {there}. Nothing was written.")


def more_than_wanted(most: int, what: str) -> Problem:
    """Refuse what would write more rows than its caller wants to."""
    return bad_request(
        f"Prefer: max-affected={most}: {what}. Nothing was written.",
        "Narrow the request, or allow it more rows.",
    )


def too_many(limit: int, what: str) -> Problem:
    """Refuse what would write more rows than one request may."""
    return Problem(
        BODY_TOO_LARGE,
        f"One request writes at most {limit} rows, and {what}. Nothing was written.",
        hint="Write in smaller parts, or raise FENCEPOST_MAX_ROWS.",
    )
