"""What commands that ask a gateway share: its URL, the caller's token, exit codes."""

import os
from collections.abc import Mapping
from typing import Final

import click

from fencepost.client import (
    ApiError,
    BadRequest,
    Forbidden,
    LeaseLost,
    LockHeld,
    NotFound,
    Token,
    Unauthenticated,
    WrongTokenSource,
    token_from_environment,
    token_from_file,
)
from fencepost.client.http import FILE_VARIABLE, TOKEN_VARIABLE

api_token_option: Final = click.option(
    "--api-token-file",
    metavar="FILE",
    help="File with a token or API key for the gateway; read again when it is renewed."
    f"  [{FILE_VARIABLE}; or {TOKEN_VARIABLE} has the token itself]",
)


def read_api_token(file: str | None) -> Token | None:
    """Give what the client takes; None: there is none. UsageError if a file cannot be read, or two are given."""
    try:
        token = token_from_environment() if file is None else token_from_file(file)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not callable(token):
        return token
    named = file if file is not None else os.environ.get(FILE_VARIABLE)
    try:
        token()  # a file that is not there is better known now than after a wait for the lock
    except OSError as error:
        raise click.UsageError(f"the token's file {named} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"the token's file {error}") from error
    return token


def environment_for_command(file: str | None) -> Mapping[str, str]:
    """Give our environment for a command that we run: the file's name is in it, the token itself is not."""
    kept = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    return kept if file is None else {**kept, FILE_VARIABLE: os.path.abspath(file)}  # noqa: PTH100 - the command may change its directory


# How `fencepost lock` and `fencepost mint` end when they do not end with a command's own exit code.

REFUSED: Final = 2  # click's, for bad usage; also what the gateway finds wrong with the request
UNREACHABLE: Final = 69  # EX_UNAVAILABLE
HELD: Final = 75  # EX_TEMPFAIL
LOST: Final = 79  # the first after those of sysexits.h
NOT_EXECUTABLE: Final = 126  # as shells do
NOT_FOUND: Final = 127
_SIGNALLED: Final = 128
DEFAULT_URL: Final = "http://127.0.0.1:8080"

lost_exit_code_option: Final = click.option(
    "--lost-exit-code",
    type=click.IntRange(0, 255),
    default=LOST,
    show_default=True,
    metavar="N",
    help="When the lock was lost.",
)


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
