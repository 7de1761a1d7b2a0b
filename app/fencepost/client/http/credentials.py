"""The token or API key that requests carry, and when it is asked for again.

A callable is asked for the first request; again when a JWT that it gave ends soon, by its `exp` and this machine's
clock; and once when the gateway answers 401. All requests that need it at one time share the question.
"""

import asyncio
import base64
import binascii
import inspect
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from fencepost.client.clock import Clock
from fencepost.client.errors import Unavailable

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token or API key, or what gives one."""

TOKEN_VARIABLE: Final = "FENCEPOST_API_TOKEN"  # noqa: S105 - the variable's name
FILE_VARIABLE: Final = "FENCEPOST_API_TOKEN_FILE"
EARLY: Final = 30.0
"""Seconds before its end at which a JWT is renewed, or a fifth of what was left when it came, if that is less."""
_PARTS_OF_JWT: Final = 3

logger = logging.getLogger("fencepost.client")


def token_from_file(path: str | os.PathLike[str]) -> Callable[[], str]:
    """Give a token that is read from a file whenever it is asked for: the file may be replaced. Reading raises OSError,
    and ValueError for a file that has no token, or more than one; both name the file.
    """

    def read() -> str:
        try:
            found = Path(path).read_text("utf-8-sig").split()
        except UnicodeDecodeError as error:
            raise ValueError(f"{os.fspath(path)}: it is no text") from error
        if len(found) != 1:
            raise ValueError(f"{os.fspath(path)}: {'it has more than a token' if found else 'it is empty'}")
        try:
            return _checked(found[0])
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error

    return read


def token_from_environment() -> Token | None:
    """Give the token of FENCEPOST_API_TOKEN_FILE or FENCEPOST_API_TOKEN; None: neither is set. ValueError: both are."""
    file, token = os.environ.get(FILE_VARIABLE), os.environ.get(TOKEN_VARIABLE)
    if file and token:
        raise ValueError(f"{FILE_VARIABLE} and {TOKEN_VARIABLE} are both set: set one of them")
    return token_from_file(file) if file else token or None


class Credentials:
    """What the requests of one client carry."""

    def __init__(self, token: Token | None, clock: Clock, *, wall: Callable[[], float] = time.time) -> None:  # noqa: TID251 - `exp` is a time of day
        self._give = token if callable(token) else None
        self._current = None if token is None or callable(token) else _checked(token)
        self._clock = clock
        self._wall = wall
        self._renew_at: float | None = None
        self._asking = asyncio.Lock()

    async def current(self) -> str | None:
        """Return the token to send; None: there is none. Unavailable: it could not be had."""
        if self._give is None or (self._current is not None and not self._is_due()):
            return self._current
        async with self._asking:
            if self._current is None:
                await self._ask(self._give)
            elif self._is_due():
                await self._ask_early(self._give)
            return self._current

    async def replace(self, refused: str | None) -> bool:
        """Whether there is another token than the one that was refused, to send the request again with."""
        if self._give is None:
            return False
        async with self._asking:
            if self._current == refused:
                await self._ask(self._give)
            return self._current != refused

    def _is_due(self) -> bool:
        return self._renew_at is not None and self._clock.now() >= self._renew_at

    async def _ask_early(self, give: Callable[[], str | Awaitable[str]]) -> None:
        """Ask anew before the end. If that fails, the token that there is will do until then."""
        try:
            await self._ask(give)
        except Unavailable as error:
            logger.warning("%s; the present token is used until it ends", error)
            self._renew_at = self._clock.now() + 1.0

    async def _ask(self, give: Callable[[], str | Awaitable[str]]) -> None:
        try:
            # In a thread: renewals of leases must not wait while one that is not asynchronous asks the network.
            found = give() if inspect.iscoroutinefunction(give) else await asyncio.to_thread(give)
            token = _checked(await found if inspect.isawaitable(found) else found)
        except Exception as error:
            raise Unavailable(f"no token could be had, and nothing was sent: {_reason(error)}") from error
        self._current = token
        ends_in = None if (end := end_of(token)) is None else end - self._wall()
        # One that has ended by our clock is left to the gateway, whose clock counts.
        self._renew_at = None
        if ends_in is not None and ends_in > 0:
            self._renew_at = self._clock.now() + ends_in - min(EARLY, ends_in / 5)


def end_of(token: str) -> float | None:
    """Read when a JWT ends (seconds of Unix time); None for what is no JWT, or does not say. Nothing is verified."""
    parts = token.split(".")
    if len(parts) != _PARTS_OF_JWT:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        end = claims.get("exp") if isinstance(claims, dict) else None
        return None if end is None else float(end)
    except (ValueError, TypeError, OverflowError, binascii.Error, RecursionError):
        return None


def _checked(token: object) -> str:
    """Require what can stand in a header. ValueError, which does not show it."""
    if not isinstance(token, str):
        raise TypeError(f"a token is a str, not {type(token).__name__}")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("a token is printable ASCII without blanks, and not empty")
    return token


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
