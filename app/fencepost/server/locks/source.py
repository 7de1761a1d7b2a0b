"""The Protocol of a token source: a lock service whose locks Fencepost takes on its clients' behalf (R12).

A source knows locks by name, and nothing of tables, leases or secrets: those are the business of
`locks/source_leases.py`, which keeps each lease in PostgreSQL and asks the source. Any process of the gateway
may be asked to renew, mint or release what another one acquired: all that is needed for it is in the Grant's `handle`,
a text that is stored.

What every source keeps to, and `tests/conformance` checks on its real server:

1. Mutual exclusion as far as the service can give it, and tokens that rise with each grant whatever it cannot.
2. **The first act of an owner is a mint.** Services that queue number a waiter's node before the owner's later mints:
   a token is drawn once the lock is owned, never taken from the moment of queueing.
3. `mint` draws only while the lock is held, decided by the service in one step with the draw. A client that has lost
   the lock gets None, and so does `renew` (False). Neither is an error; that the service cannot be asked is one.
4. `release` ends only the owner's own hold, and may be repeated.
5. A cancelled `acquire` leaves the queue, and gives back what it may have been granted; what it cannot give back
   expires by itself within the TTL.
6. Nothing waits longer for an answer than REQUEST_TIMEOUT: an unreachable service is SourceUnavailableError.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

REQUEST_TIMEOUT: Final = 3.0
"""Seconds that one request to a lock service may take."""
MOST_NATIVE: Final = 2**48 - 1
"""A token is generation * 2^48 + the service's own number (R12)."""


class SourceError(Exception):
    """A source could not do what was asked. The message is one sentence for the caller of the gateway."""


class SourceUnavailableError(SourceError):
    """The service cannot be asked, or its answer got lost. Whatever it may have granted expires by itself."""


class SourceQuarantinedError(SourceError):
    """The source's numbers went backwards, and nothing is taken from it until its generation is raised (R12)."""


class SourceNameError(SourceError):
    """The service cannot have a lock of this name: the caller has to ask for another. The message says which it has."""


class SourceConfigError(SourceError):
    """The source's URL is wrong, or a library is missing. The message names the remedy."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a source promises; the conformance suite skips by these and nothing else.

    order: how far its numbers can be compared. `source`: over all its locks. `lock`: within one lock. `database`: it
        has no number of its own that rises; `locks/source_leases.py` draws tokens in PostgreSQL after the
        grant.
    fair: waiters are served first come, first served.
    verifies: `issued` knows whether a number was handed out.
    least_ttl_ms: the shortest TTL; a shorter one is lengthened to it.
    ttl_from_server: the service itself ends a hold whose TTL has run out. Otherwise the hold lives as long as a session
        of the process that acquired it, and that process ends it when the lease is over.
    """

    order: Literal["source", "lock", "database"]
    fair: bool
    verifies: bool
    least_ttl_ms: int = 1
    ttl_from_server: bool = True


@dataclass(frozen=True, slots=True)
class Grant:
    """A lock that is ours. `tokens` are the service's own numbers, rising, as many as were asked for; none where
    Capabilities.order is `database`.
    """

    handle: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a lock, as far as the service shows it. `expires_ms`: time that is left, where it is known."""

    owner: str | None = None
    expires_ms: int | None = None


class Source(Protocol):
    """A lock service. One object per process and configured source, for one event loop."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def open(self) -> None:
        """Get ready. Does not need the service to be there: a gateway starts without it."""
        ...

    async def close(self) -> None:
        """Close connections. Holds stay until their TTL ends, or with the session that they live by."""
        ...

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        """Take a lock, waiting for it at most `wait_s`; 0 tries once. A Holder in place of a Grant is who has it.

        lock: any text of 1 to 512 bytes without control characters, slashes included. owner: for people who look into
        the service. Raises SourceError; SourceNameError where the service has further rules for names.
        """
        ...

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        """Let the hold live for `ttl_ms` from now on. False: it is lost. Raises SourceError."""
        ...

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        """Draw more tokens under a hold, each higher than any before. None: it is lost. Raises SourceError."""
        ...

    async def release(self, lock: str, handle: str) -> None:
        """End the hold, if it is there. Raises SourceError."""
        ...

    async def inspect(self, lock: str) -> Holder | None:
        """Return who has the lock; None: it is free. Raises SourceError."""
        ...

    async def issued(self, number: int) -> bool:
        """Whether the service has handed out this number, or a higher one. Only where `verifies`."""
        ...

    async def advice(self) -> list[str]:
        """List what in the service's settings makes its tokens repeat or its locks unsafe, one sentence each, for
        `fencepost doctor`. Raises SourceError.
        """
        ...


# The URL of a token source, read strictly: SCHEME://[user:password@]host[:port][,host…][/path][?option=value&…].
#
# A source declares what its URL may have, as a Form with Options; `read` checks all of it before anything is opened.
#
# No message repeats a password, also not one that was not percent-encoded: that one spills into hosts, path or query,
# and leaves an @ behind them. So hosts are never repeated, and path and options only where no @ follows.

T = TypeVar("T")

_HOST: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._%-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One `name=value` behind the ?. `read` makes the value of its text, or raises ValueError with what it takes.

    only: what a URL begins with that may have it; any, if empty.
    """

    name: str
    read: Callable[[str], T]
    default: T
    only: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """What the URL of a kind of source may have. `shown` stands in every message.

    port: of hosts without one. least, most: how many hosts. path: which paths fit, decoded. places: words that stand
    in place of hosts, without port and credentials. credentials: `both` user and password, or neither; or `any` of
    them. of: what has such a URL, a source or a queue, for messages.
    """

    shown: str
    options: tuple[Option[Any], ...]
    path: re.Pattern[str]
    port: int = 0
    least: int = 1
    most: int = 1
    places: tuple[str, ...] = ()
    credentials: Literal["both", "any"] = "any"
    of: str = "source"


class Host(NamedTuple):
    """One server. An IPv6 address has no brackets here."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True)
class SourceUrl:
    """What a URL has. `source`: what the settings call it. `place`: which one of Form.places. `path` is decoded, and
    `given` has the values of the options that are there.
    """

    source: str
    form: Form
    scheme: str
    place: str
    hosts: tuple[Host, ...]
    user: str | None
    password: str | None = field(repr=False)
    path: str
    given: Mapping[str, Any]

    def __getitem__(self, option: Option[T]) -> T:
        value: T = self.given.get(option.name, option.default)
        return value

    def __contains__(self, option: Option[Any]) -> bool:
        return option.name in self.given

    def wrong(self, what: str) -> SourceConfigError:
        """Make the error for something that the form cannot express: `has a= and no b=`."""
        return _wrong(self.source, self.form, what)


def read(url: str, source: str, form: Form) -> SourceUrl:
    """Read the URL of the source of this name. Raises SourceConfigError."""
    try:
        return _read(url, source, form)
    except ValueError as error:
        raise _wrong(source, form, str(error)) from None


def text(pattern: str = ".+", takes: str = "some text") -> Callable[[str], str]:
    """Read a text of this pattern."""

    def reads(value: str) -> str:
        if not re.fullmatch(pattern, value, re.ASCII | re.DOTALL):
            raise ValueError(f"takes {takes}")
        return value

    return reads


def one_of(*values: str) -> Callable[[str], str]:
    """Read one of these words."""

    def reads(value: str) -> str:
        if value not in values:
            raise ValueError(f"is one of {', '.join(values)}")
        return value

    return reads


def whole(least: int, most: int) -> Callable[[str], int]:
    """Read a whole number, in ASCII digits."""

    def reads(value: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", value, re.ASCII) or not least <= int(value) <= most:
            raise ValueError(f"takes a whole number from {least} to {most}")
        return int(value)

    return reads


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Read a number of seconds, with a fraction or without."""

    def reads(value: str) -> float:
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", value, re.ASCII) or not least <= float(value) <= most:
            raise ValueError(f"takes seconds from {least:g} to {most:g}")
        return float(value)

    return reads


def _wrong(source: str, form: Form, what: str) -> SourceConfigError:
    return SourceConfigError(f"the URL of {form.of} {source} {what} ({form.shown})")


def _read(url: str, source: str, form: Form) -> SourceUrl:
    parts = _split(url, form)
    signed, _, hosts = parts.netloc.rpartition("@")
    user, _, password = (unquote(part) for part in signed.partition(":"))
    if form.credentials == "both" and bool(user) != bool(password):
        raise ValueError("has a user without a password, or a password without a user")
    path = unquote(parts.path)
    if not form.path.fullmatch(path) or not path.isprintable():
        raise ValueError(f"has the path {path!r}, which does not fit")
    return SourceUrl(
        source,
        form,
        parts.scheme,
        hosts if form.places else "",
        () if form.places or (form.least == 0 and not parts.netloc) else _hosts(hosts, form),
        user or None,
        password or None,
        path,
        _options(parts.query, f"{parts.scheme}://{parts.netloc if form.places else ''}", form),
    )


def _split(url: str, form: Form) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:  # its message repeats what may be a password
        raise ValueError("cannot be read: check the brackets and signs of its hosts") from None
    if form.places:
        if parts.netloc not in form.places:
            raise ValueError(f"has something else than {' or '.join(form.places)} behind {parts.scheme}://")
    elif "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError("has an @ after its hosts: in a password write / ? # and @ as %2F %3F %23 and %40")
    if "#" in url:
        raise ValueError("has a #: write it as %23")
    return parts


def _hosts(text_of_hosts: str, form: Form) -> tuple[Host, ...]:
    found = tuple(_host(each, number, form.port) for number, each in enumerate(text_of_hosts.split(","), 1))
    if len(found) < form.least:
        raise ValueError(f"has {len(found)} hosts: it takes {form.least} or more different hosts")
    if len(found) > form.most:
        raise ValueError(f"has {len(found)} hosts: it takes one host" if form.most == 1 else "has too many hosts")
    return found


def _host(each: str, number: int, default_port: int) -> Host:
    found = _HOST.fullmatch(each)
    port = int(found["port"] or default_port) if found else 0
    if found is None or not 0 < port < 2**16:
        raise ValueError(f"is wrong at host {number}: it is not host, host:port or [IPv6]:port, with a port to 65535")
    return Host(found["host"].strip("[]"), port)


def _options(query: str, begins: str, form: Form) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise ValueError("has something behind the ? that is not name=value") from None
    known = {option.name: option for option in form.options if begins.startswith(option.only)}
    elsewhere = {option.name: option.only for option in form.options}
    found: dict[str, Any] = {}
    for name, value in pairs:
        option = known.get(name)
        if option is None and name in elsewhere:
            raise ValueError(f"has the option {name}, which is for {elsewhere[name]} only")
        if option is None:
            raise ValueError(f"has the unknown option {name}: there are {', '.join(sorted(known))}")
        if name in found:
            raise ValueError(f"has the option {name} twice")
        if not value:
            raise ValueError(f"has the option {name} without a value")
        try:
            found[name] = option.read(value)
        except ValueError as error:
            raise ValueError(f"has {name}={value}: it {error}") from None
    return found


# Finds a token source by the scheme of its URL: those of this package, and third parties' through entry points.

ENTRY_POINTS: Final = "fencepost.sources"
"""The group of a third party's entry point: its name is the scheme; its object takes the URL and a SourceContext, and
returns a Source."""

# Scheme, the module of this package that has a function `from_url`, and the extra that brings its library.
KINDS: Final[dict[str, tuple[str, str | None]]] = {
    "redis": ("fencepost.server.locks.redis", "redis"),
    "rediss": ("fencepost.server.locks.redis", "redis"),
    "redlock": ("fencepost.server.locks.redlock", "redis"),
    "zookeeper": ("fencepost.server.locks.zookeeper", "zookeeper"),
    "etcd": ("fencepost.server.locks.etcd", "etcd"),
    "etcds": ("fencepost.server.locks.etcd", "etcd"),
    "kubernetes": ("fencepost.server.locks.kubernetes", "kubernetes"),
    "postgres-advisory": ("fencepost.server.locks.advisory", None),
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
