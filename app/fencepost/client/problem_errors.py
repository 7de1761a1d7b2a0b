"""Which error of errors.py a problem is: by its code, by what it says of the write, by its status."""

import re
from typing import Final

from fencepost.client.errors import (
    ApiError,
    BadRequest,
    ConstraintViolated,
    Forbidden,
    LeaseLost,
    LockHeld,
    NotFound,
    OutcomeUnknown,
    RowNotFound,
    SealRefused,
    SourceFailed,
    SpentToken,
    StaleToken,
    TokenRequired,
    Unauthenticated,
    Unavailable,
    UnissuedToken,
    WrongTokenSource,
)
from fencepost.client.problem import Problem

_BY_CODE: Final[dict[str, type[ApiError]]] = {
    "FP001": StaleToken,
    "FP002": SpentToken,
    "FP003": TokenRequired,
    "FP006": RowNotFound,
    "FP008": WrongTokenSource,
    "FP009": OutcomeUnknown,
    "FP011": LockHeld,
    "FP012": LeaseLost,
    "FP013": OutcomeUnknown,
    "FP018": UnissuedToken,
    "FP025": SourceFailed,
    "FP027": OutcomeUnknown,
    "FP033": Unavailable,
    "FP041": SealRefused,
}
_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    400: BadRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: BadRequest,
    406: BadRequest,
    413: BadRequest,
    415: BadRequest,
    421: BadRequest,
    422: BadRequest,
    431: BadRequest,
}
_SERVER_FAILED: Final = 500
_UNAVAILABLE: Final = (429, 503)
_INTERNAL_ERROR: Final = "FP023"
_INTEGRITY = re.compile(r"23[0-9A-Z]{3}")


def error_of(problem: Problem, *, writes: bool = False) -> ApiError:
    """Give the error for a problem. `writes`: if the write may have been done, the error is OutcomeUnknown."""
    code = problem.code
    kind = _BY_CODE.get(code or "") or _by_extent(problem, writes=writes) or _BY_STATUS.get(problem.status, ApiError)
    if code and _INTEGRITY.fullmatch(code):
        kind = ConstraintViolated
    detail = problem.text("detail") or f"the answer was {problem.status}"
    return kind(f"{detail} ({code})" if code else detail, problem)


def _by_extent(problem: Problem, *, writes: bool) -> type[ApiError] | None:
    """Sort the gateway's failures: nothing was done, or it is unknown what was done."""
    if problem.code is not None and problem.status in _UNAVAILABLE and problem.retryable:
        return Unavailable
    if problem.status < _SERVER_FAILED or problem.code not in (None, _INTERNAL_ERROR):
        return None
    # The gateway's own failure, or a proxy's 502 or 504: the write may have been done.
    if writes:
        return OutcomeUnknown
    return Unavailable if problem.code is None else None
