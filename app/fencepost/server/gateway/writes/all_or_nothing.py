"""What writes of several rows under one token answer: all are written, or none (R10)."""

from collections.abc import Sequence

from fencepost.server.fence.problem_types import BODY_TOO_LARGE, NOT_ACCEPTABLE, SPENT_TOKEN, STALE_TOKEN
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.token import Token, shown_mark
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.writes.write import Write
from fencepost.server.postgres.many import ManyOutcome, ManyRefused, ManyWritten, TooManyRows
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import Table


def names_of(done: Done) -> Sequence[str]:
    """Name all that was written, where a seal has to be compared with it."""
    if done.resources is None or len(done.resources) != len(done.rows):
        raise RuntimeError("the names of what was written were not asked for")
    return done.resources


def answer_of_many(table: Table, write: Write, token: Token, outcome: ManyOutcome) -> Outcome:
    """Give the answer of a write of many rows."""
    exactly_one, most = write.exactly_one, write.preferences.most
    match outcome:
        case ManyWritten(rows) if exactly_one and not rows:
            return not_one(0)
        case TooManyRows() if exactly_one:
            return not_one(None)
        case ManyWritten(rows, names):
            return Done(rows, resources=names)
        case TooManyRows(limit) if limit == most:
            return more_than_wanted(most, "the filter matches more")
        case TooManyRows(limit):
            return too_many(limit, "the filter matches more")
        case ManyRefused(rows):
            return refused_by_marks(table, token, [(row.resource, row.mark) for row in rows])


def refused_by_marks(table: Table, token: Token, marks: Sequence[tuple[str, int]], of: str = "rows") -> Problem:
    """Give the answer when the marks of these resources, rows or scopes, refuse the token."""
    refusals = [
        Problem(SPENT_TOKEN if mark == token else STALE_TOKEN, "", resource=resource, current_token=mark)
        for resource, mark in marks
    ]
    return refused_rows(table, token, refusals, of)


def refused_by_scopes(table: Table, token: Token, by: Sequence[Entered]) -> Problem:
    """Give the answer when scopes were not entered."""
    return refused_by_marks(table, token, [(each.scope, each.refused_by or 0) for each in by], "scopes")


def refused_rows(table: Table, token: Token, refusals: list[Problem], of: str = "rows") -> Problem:
    """Give the answer when some rows, or scopes, refuse the token: no row was written (R10)."""
    stale = [p for p in refusals if p.type is STALE_TOKEN]
    kind = STALE_TOKEN if stale else SPENT_TOKEN
    first = (stale or refusals)[0]
    shows = (
        all(shown_mark(table.fence.rule, p.current_token or 0) is not None for p in refusals) if table.fence else True
    )
    return Problem(
        kind,
        f"Token {token} is {'stale' if stale else 'spent'} for {len(refusals)} of the {of} of {table.name} that this"
        f" request would write, {first.resource} among them: nothing was written.",
        hint="Do not retry with this token; `rows` lists who refused."
        if stale
        else "Each token writes a resource once: mint another.",
        resource=first.resource,
        presented_token=token,
        current_token=first.current_token,
        shows_mark=shows,
        extra={
            "rows": [
                {"resource": p.resource, "current_token": str(p.current_token) if shows else None} for p in refusals
            ]
        },
    )


def unfit_count(write: Write, count: int, max_rows: int) -> Problem | None:
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
