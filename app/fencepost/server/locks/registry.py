"""Finds a token source by the scheme of its URL: those of this package, and third parties' through entry points.

[project.entry-points."fencepost.sources"]
acme = "acme_locks.fencepost:open_source"      # acme://… ; takes the URL and a SourceContext, returns a Source
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final
from urllib.parse import urlsplit

from fencepost.server.locks.source import Source, SourceConfigError

ENTRY_POINTS: Final = "fencepost.sources"

# Scheme, the module of this package that has a function `from_url`, and the extra that brings its library.
KINDS: Final[dict[str, tuple[str, str | None]]] = {
    "redis": ("fencepost.server.locks.redis.source", "redis"),
    "rediss": ("fencepost.server.locks.redis.source", "redis"),
    "redlock": ("fencepost.server.locks.redis.redlock", "redis"),
    "zookeeper": ("fencepost.server.locks.zookeeper.source", "zookeeper"),
    "etcd": ("fencepost.server.locks.etcd.source", "etcd"),
    "etcds": ("fencepost.server.locks.etcd.source", "etcd"),
    "kubernetes": ("fencepost.server.locks.kubernetes.source", "kubernetes"),
    "postgres-advisory": ("fencepost.server.locks.advisory.source", None),
}


_SAME: Final = {"rediss": "redis", "etcds": "etcd"}


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a source may need beside its URL. `dsn`: the gateway's own PostgreSQL."""

    name: str
    dsn: str


FromUrl = Callable[[str, SourceContext], Source]


def make(url: str, context: SourceContext) -> Source:
    """Make the source that a URL names, not opened yet. Raises SourceConfigError."""
    scheme = scheme_of(url)
    if (kind := KINDS.get(scheme)) is not None:
        module, extra = kind
        try:
            from_url: FromUrl = importlib.import_module(module).from_url
        except ModuleNotFoundError as error:
            if extra is None or (error.name is not None and error.name.startswith("fencepost")):
                raise
            raise SourceConfigError(
                f"{scheme}:// needs the library {error.name}: pip install '.[{extra}]' in the clone of Fencepost"
            ) from error
        return from_url(url, context)
    return _third_party(scheme)(url, context)


def scheme_of(url: str) -> str:
    """Give a URL's scheme. Raises SourceConfigError, without the URL: there may be a password in it."""
    try:
        return urlsplit(url).scheme
    except ValueError:
        raise SourceConfigError("the URL cannot be read") from None


def kind_of(url: str) -> str:
    """Give the kind of service that a URL names, with TLS or without. Raises SourceConfigError."""
    scheme = scheme_of(url)
    return _SAME.get(scheme, scheme)


def _third_party(scheme: str) -> FromUrl:
    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        try:
            loaded: FromUrl = entry.load()
        except ImportError as error:
            raise SourceConfigError(
                f"the entry point {entry.value} for {scheme}:// cannot be loaded: {error}"
            ) from error
        return loaded
    known = ", ".join(f"{kind}://" for kind in sorted({*KINDS, *entry_points(group=ENTRY_POINTS).names}))
    raise SourceConfigError(f"{scheme or 'no scheme'}:// is no token source that is installed: {known}")
