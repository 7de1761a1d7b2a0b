"""The URL of a token source, read strictly: SCHEME://[user:password@]host[:port][,host…][/path][?option=value&…].

A source declares what its URL may have, as a Form with Options; `read` checks all of it before anything is opened.

No message repeats a password, also not one that was not percent-encoded: that one spills into hosts, path or query, and
leaves an @ behind them. So hosts are never repeated, and path and options only where no @ follows.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from fencepost.server.locks.source import SourceConfigError

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
        """Give the value of an option, or its default."""
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
