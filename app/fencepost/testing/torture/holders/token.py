"""The token or API key of a run against a gateway that runs already. Worker processes share the environment with us."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from fencepost.client.http import FILE_VARIABLE, TOKEN_VARIABLE

READ_EVERY: Final = 5.0
"""Seconds after which the file is read again: a token that is renewed replaces it."""


def run_token() -> Callable[[], str] | None:
    """Give what returns the token for each request; None: the environment has none."""
    file = os.environ.get(FILE_VARIABLE)
    if file:
        return _File(Path(file)).read
    token = os.environ.get(TOKEN_VARIABLE)
    return (lambda: token) if token else None


class _File:
    """A file with a token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._token, self._read_at = "", -READ_EVERY

    def read(self) -> str:
        if (now := time.monotonic()) - self._read_at >= READ_EVERY:
            self._read_at = now
            try:
                self._token = self._path.read_text("utf-8").strip()
            except OSError:  # it is just being replaced
                if not self._token:
                    raise
        return self._token
