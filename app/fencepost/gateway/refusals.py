"""PostgreSQL's refusals, told as problems: which SQLSTATE is which status, and whose fault."""

import json
from typing import Final

from fencepost.fencing.problems import (
    BAD_REQUEST,
    CONSTRAINT_VIOLATION,
    DATABASE_BUSY,
    DATABASE_REFUSED,
    INTERNAL_ERROR,
    INVALID_VALUE,
    PERMISSION_DENIED,
    SPENT_TOKEN,
    STALE_TOKEN,
    TOKEN_REQUIRED,
    Problem,
    ProblemType,
)
from fencepost.fencing.token import Token
from fencepost.storage.errors import RefusedError

_EXACT: Final[dict[str, tuple[ProblemType, int]]] = {
    "23001": (CONSTRAINT_VIOLATION, 409),  # what PostgreSQL 18 says where others say 23503, ON DELETE RESTRICT
    "23503": (CONSTRAINT_VIOLATION, 409),
    "23505": (CONSTRAINT_VIOLATION, 409),
    "23P01": (CONSTRAINT_VIOLATION, 409),
    "428C9": (INVALID_VALUE, 400),
    "42501": (PERMISSION_DENIED, 403),
    "55P03": (DATABASE_BUSY, 503),
    "57014": (DATABASE_BUSY, 503),
    "40001": (DATABASE_BUSY, 503),
    "40P01": (DATABASE_BUSY, 503),
}
_CLASSES: Final[dict[str, tuple[ProblemType, int]]] = {
    "22": (INVALID_VALUE, 400),
    "23": (CONSTRAINT_VIOLATION, 400),
    "XX": (INTERNAL_ERROR, 500),
    "58": (INTERNAL_ERROR, 500),
    "F0": (INTERNAL_ERROR, 500),
}


def problem_of_refused(error: RefusedError) -> Problem:
    """Map an SQLSTATE. What the table does not name is 400: the statement was understood and refused."""
    if error.sqlstate in ("FP409", "FP428", "FP400"):
        return _of_trigger(error)
    kind, status = _EXACT.get(error.sqlstate) or _CLASSES.get(error.sqlstate[:2], (DATABASE_REFUSED, 400))
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
        details=error.detail,
        hint=error.hint,
        retry_after=1 if status == 503 else None,  # noqa: PLR2004 - an HTTP status
        extra=dict(named),
    )


def _of_trigger(error: RefusedError) -> Problem:
    """Read what the triggers of schema fencepost say: their DETAIL is JSON."""
    told = json.loads(error.detail) if error.detail else {}
    resource = told.get("resource")
    if error.sqlstate == "FP428":
        return Problem(TOKEN_REQUIRED, str(error), hint=error.hint, resource=resource)
    if error.sqlstate == "FP400":
        return Problem(BAD_REQUEST, str(error), hint=error.hint, resource=resource)
    presented, mark = Token(int(told["presented"])), int(told["mark"])
    return Problem(
        SPENT_TOKEN if presented == mark else STALE_TOKEN,
        str(error),
        hint=error.hint,
        resource=resource,
        presented_token=presented,
        current_token=mark,
    )
