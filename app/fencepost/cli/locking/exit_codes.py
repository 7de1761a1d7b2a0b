"""How `fencepost lock` and `fencepost mint` end when they do not end with a command's own exit code."""

from typing import Final

from fencepost.client import (
    ApiError,
    BadRequest,
    Forbidden,
    LeaseLost,
    LockHeld,
    NotFound,
    Unauthenticated,
    WrongTokenSource,
)

REFUSED: Final = 2  # click's, for bad usage; also what the gateway finds wrong with the request
UNREACHABLE: Final = 69  # EX_UNAVAILABLE
HELD: Final = 75  # EX_TEMPFAIL
LOST: Final = 79  # the first after those of sysexits.h
NOT_EXECUTABLE: Final = 126  # as shells do
NOT_FOUND: Final = 127
_SIGNALLED: Final = 128


def of_signal(number: int) -> int:
    """Give the exit code for an end by a signal."""
    return _SIGNALLED + number


def of_error(error: ApiError, *, held: int = HELD, lost: int = LOST) -> int:
    """Give the exit code for what the client raised. Every error without a code of its own counts as unreachable."""
    match error:
        case LockHeld():
            return held
        case LeaseLost():
            return lost
        case BadRequest() | Unauthenticated() | Forbidden() | NotFound() | WrongTokenSource():
            return REFUSED
        case _:
            return UNREACHABLE
