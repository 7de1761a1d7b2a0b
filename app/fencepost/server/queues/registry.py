"""Finds the log that a queue's URL names: kafka://h1:9092,h2:9092/TOPIC?…, redis://h:6379/STREAM?…, and the one of the
protected database, which has no URL.
"""

import importlib
import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from fencepost.server.queues.log import Log, LogConfigError
from fencepost.server.queues.message import QUEUE_NAME

DEFAULT: Final = "postgres:default"
"""The queue that is always there."""

# Scheme, the module of this package that has a function `from_url`, and the extra that brings its library.
KINDS: Final[dict[str, tuple[str, str]]] = {
    "kafka": ("fencepost.server.queues.kafka", "kafka"),
    "redis": ("fencepost.server.queues.redis", "redis"),
    "rediss": ("fencepost.server.queues.redis", "redis"),
}
_KIND: Final = {"rediss": "redis"}

FromUrl = Callable[[str], Log]

_LAST_PART: Final = re.compile(r"[A-Za-z0-9._-]{1,48}")


def name_of(url: str) -> str:
    """Give the name of the queue that a URL stands for: kafka:TOPIC, redis:STREAM. Raises LogConfigError, which does
    not quote the URL: there may be a password in it.
    """
    try:
        split = urlsplit(url)
        scheme, path = split.scheme, split.path
    except ValueError:
        raise LogConfigError("a URL cannot be read") from None
    if scheme not in KINDS:
        known = ", ".join(f"{kind}://" for kind in KINDS)
        raise LogConfigError(f"{scheme or 'no scheme'}:// is no queue that can be configured: {known}")
    last = path.removeprefix("/")
    if not _LAST_PART.fullmatch(last):
        raise LogConfigError(
            f"{scheme}://: after the servers comes /NAME, 1 to 48 letters, digits, dots, underscores and hyphens"
        )
    return f"{_KIND.get(scheme, scheme)}:{last}"


def require_name(name: str) -> str:
    """Return the name of a queue. Raises LogConfigError for what is none."""
    if not QUEUE_NAME.fullmatch(name) or (name.startswith("postgres:") and name != DEFAULT):
        raise LogConfigError(f"{name!r} is no queue: {DEFAULT}, kafka:TOPIC or redis:STREAM")
    return name


def make(url: str) -> Log:
    """Make the log that a URL names, not opened yet. Raises LogConfigError."""
    name_of(url)
    scheme = urlsplit(url).scheme
    module, extra = KINDS[scheme]
    try:
        from_url: FromUrl = importlib.import_module(module).from_url
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("fencepost"):
            raise
        raise LogConfigError(
            f"{scheme}:// needs the library {error.name}: pip install '.[{extra}]' in the clone of Fencepost"
        ) from error
    return from_url(url)
