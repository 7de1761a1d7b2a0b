"""The URL of a ZooKeeper source: zookeeper://user:password@h1:2181,h2:2181/chroot?session_timeout_s=10 for example."""

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from fencepost.locks.source import SourceConfigError

PORT: Final = 2181
SESSION_TIMEOUT: Final = 10.0
"""Seconds that the servers keep the session, and with it the locks, of a process that is silent."""
SHORTEST_SESSION: Final = 1.0
LONGEST_SESSION: Final = 600.0
ROOT: Final = "/fencepost"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a URL says. `root`: the node that has one child per lock. `credentials`: user:password, for digest."""

    hosts: tuple[tuple[str, int], ...]
    root: str = ROOT
    session_timeout_s: float = SESSION_TIMEOUT
    credentials: str | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """The servers, as kazoo wants them and as people read them; never a password."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)


def parse(url: str, name: str) -> Settings:
    """Read a URL strictly. `name`: the source's. Raises SourceConfigError, which never shows a password."""
    try:
        return _settings(url)
    except ValueError as error:
        raise SourceConfigError(
            f"the URL of token source {name!r} is wrong: {error} "
            "(zookeeper://[user:password@]host[:port][,host…][/chroot][?session_timeout_s=seconds])"
        ) from None


def _settings(url: str) -> Settings:
    try:
        parts = urlsplit(url)
    except ValueError:  # its message quotes what could not be read, which may be a password
        raise ValueError("its hosts cannot be read") from None
    if "@" in parts.path + parts.query or parts.fragment:
        raise ValueError("it has an @ after its hosts or a # (in a password, write / ? # @ as %2F %3F %23 %40)")
    user, _, hosts = parts.netloc.rpartition("@")
    return Settings(
        tuple(_host(one) for one in hosts.split(",")),
        _chroot(unquote(parts.path)) + ROOT,
        _session_timeout(parts.query),
        _credentials(unquote(user)),
    )


def _host(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or text.endswith(":") or port == 0 or "@" in text:
        raise ValueError("one of its hosts is empty, or has no port between 1 and 65535 after its colon")
    return host, port or PORT


def _chroot(path: str) -> str:
    chroot = path.rstrip("/")
    if chroot and any(part in ("", ".", "..") for part in chroot[1:].split("/")):
        raise ValueError(f"the chroot {path} has an empty, '.' or '..' part")
    if not chroot.isprintable():
        raise ValueError("the chroot has a character that cannot be printed")
    return chroot


def _credentials(text: str) -> str | None:
    user, _, password = text.partition(":")
    if text and not (user and password):
        raise ValueError("it has a user without a password, or a password without a user")
    return text or None


def _session_timeout(query: str) -> float:
    options = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    if unknown := [key for key, _ in options if key != "session_timeout_s"]:
        raise ValueError(f"it has no option {unknown[0]!r}, only session_timeout_s")
    if len(options) > 1:
        raise ValueError("session_timeout_s is there more than once")
    if not options:
        return SESSION_TIMEOUT
    value = options[0][1]
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_SESSION <= seconds <= LONGEST_SESSION:
        raise ValueError(f"session_timeout_s={value} is not between {SHORTEST_SESSION:g} and {LONGEST_SESSION:g}")
    return seconds
