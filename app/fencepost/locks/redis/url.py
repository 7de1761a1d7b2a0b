"""The URLs of sources that live in Redis: `redis://user:password@host:6379/0?prefix=…`, for Redlock several hosts.

Parsed strictly. No message quotes the part that may hold a password, and a password that was not percent-encoded can
spill into any part of a URL.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fencepost.locks.source import SourceConfigError

DEFAULT_PORT: Final = 6379
DEFAULT_PREFIX: Final = "fencepost:"
_HOST: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_PREFIX: Final = re.compile(r"[!-~]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """One Redis server, and how to log in. `ca`: a file of certificates to trust instead of the system's."""

    host: str
    port: int
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """What a URL says. `name`: what the source is called in the settings."""

    name: str
    addresses: tuple[Address, ...]
    options: Mapping[str, str]

    @property
    def prefix(self) -> str:
        """What all keys begin with."""
        prefix = self.options.get("prefix", DEFAULT_PREFIX)
        if not _PREFIX.fullmatch(prefix):
            raise SourceConfigError(
                f"source {self.name}: prefix= in the URL takes 1 to 64 ASCII characters without spaces"
            )
        return prefix

    def whole(self, option: str, default: int, least: int, most: int) -> int:
        """Return the number that an option gives."""
        text = self.options.get(option, str(default))
        if not re.fullmatch("[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            raise SourceConfigError(
                f"source {self.name}: {option}={text} in the URL is no whole number from {least} to {most}"
            )
        return int(text)


def parsed(url: str, name: str, known: Iterable[str]) -> RedisUrl:
    """Parse a URL whose query may have the options `known`. Raises SourceConfigError."""
    parts = _split(url, name)
    options = _options(parts.query, name, frozenset(known))
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    if not re.fullmatch(r"/?|/[0-9]{1,4}", parts.path, re.ASCII):
        raise SourceConfigError(f"source {name}: the path of its URL is not /DB, the number of a database")
    return RedisUrl(
        name,
        tuple(
            Address(
                *_host(text, number, name),
                db=int(parts.path.lstrip("/") or 0),
                username=unquote(username) or None,
                password=unquote(password) or None,
                tls=parts.scheme == "rediss",
                ca=options.get("ca"),
            )
            for number, text in enumerate(hosts.split(","), 1)
        ),
        options,
    )


def _split(url: str, name: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        # Not chained: its message quotes the part of the URL that has the password.
        raise SourceConfigError(f"source {name}: its URL cannot be parsed") from None
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise SourceConfigError(
            f"source {name}: its URL has an @ behind the host; in a password write / ? # and @ as %2F %3F %23 and %40"
        )
    if parts.fragment:
        raise SourceConfigError(f"source {name}: its URL has a #; in a password write it as %23")
    return parts


def _options(query: str, name: str, known: frozenset[str]) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise SourceConfigError(f"source {name}: behind the ? of its URL something is not name=value") from None
    options = dict(pairs)
    for option in options:
        if option not in known:
            raise SourceConfigError(
                f"source {name}: its URL has an unknown option {option}; there are {', '.join(sorted(known))}"
            )
    if len(options) < len(pairs):
        raise SourceConfigError(f"source {name}: its URL gives an option twice")
    return options


def _host(text: str, number: int, name: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port < 2**16:
        # Not quoted: without its @, a password stands here.
        raise SourceConfigError(f"source {name}: host {number} in its URL is not HOST or HOST:PORT")
    return found["host"].strip("[]"), port
