"""What happens in the gateway, as typed events. Logs and metrics subscribe; the gateway knows neither."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Verb = Literal["patch", "put", "post", "delete", "claim", "read"]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A write or claim was committed. `rows` were written."""

    table: str
    verb: Verb
    rows: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A write, claim or read was refused. `code` is FPnnn or an SQLSTATE."""

    table: str
    verb: Verb
    code: str
    detail: str
    resource: str | None
    presented: int | None
    current: int | None


@dataclass(frozen=True, slots=True)
class CatalogLoaded:
    """A new picture of the database is in use."""

    version: int
    tables: int
    protected: int


@dataclass(frozen=True, slots=True)
class ListenerLost:
    """The connection that hears of DDL changes broke; it is made anew."""

    reason: str


Event = Accepted | Refused | CatalogLoaded | ListenerLost
Emit = Callable[[Event], None]
