"""What the gateway answers, as values: rows, claims, fences, locks; the names of resources; tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import quote, unquote
from uuid import UUID

from fencepost.client.errors import as_time, as_token

# Rows' keys in paths and in resource names: values joined by `,`, each percent-encoded.

Scalar: TypeAlias = str | int | UUID
Key: TypeAlias = Scalar | tuple[Scalar, ...]
"""A row's primary key; a composite one is a tuple, in the key's column order."""

_NOT_IN_PATHS = ("", ".", "..")


def resource_of(table: str, key: Key) -> str:
    """Return the name of a row, `orders/order-1`: what its lock is called, and what is claimed."""
    values = key if isinstance(key, tuple) else (key,)
    return f"{quote(table, safe='')}/{','.join(_encode(value) for value in values)}"


def collection_path(table: str) -> str:
    """Return a table's path. ValueError for names that a URL cannot carry."""
    if table in _NOT_IN_PATHS:
        raise ValueError(f"table {table!r}: cannot stand in a path")
    return f"/v1/data/{quote(table, safe='')}"


def row_path(table: str, key: Key) -> str:
    """Return a row's path. ValueError for a key that a URL cannot carry: such a row is named by a filter."""
    encoded = resource_of(table, key).partition("/")[2]
    if encoded in _NOT_IN_PATHS:
        raise ValueError(
            f"key {key!r}: cannot stand in a path; name the row by a filter: select(), patch_where(), delete_where()"
        )
    return f"{collection_path(table)}/{encoded}"


def canonical(resource: str) -> str:
    """Spell a resource name as `resource_of` does, so that one row has one name within this client."""
    table, slash, key = resource.partition("/")
    if not slash:
        return resource
    return resource_of(unquote(table), tuple(unquote(value) for value in key.split(",")))


def _encode(value: Scalar) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise TypeError(f"key value {value!r}: a key is made of str, int or UUID")
    return quote(str(value), safe="")


class FenceToken(int):
    """A fencing token: its number, for comparing and for SQL; and `text`, what is presented to the gateway.

    Where the gateway seals tokens, the text is the number with its seal, and the number alone may not be enough.
    """

    sealed: str | None
    """The number with its seal; None: it has none."""

    def __new__(cls, number: int, sealed: str | None = None) -> Self:
        """Make one of its number, and its text if that is sealed."""
        token = super().__new__(cls, number)
        token.sealed = sealed
        return token

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what was passed on as text, FENCE_SEALED_TOKEN for example. ValueError if it is no token."""
        number, dot, _ = text.partition(".")
        if not (number.isascii() and number.isdigit()):
            raise ValueError("a token begins with its number")
        return cls(int(number), text if dot else None)

    @property
    def text(self) -> str:
        """What is presented: X-Fence-Token."""
        return self.sealed if self.sealed is not None else str(int(self))


def read_tokens(body: Mapping[str, Any]) -> tuple[FenceToken, ...]:
    """Read the tokens of a grant or a mint, with their seals if they have them."""
    numbers: Sequence[str] = body["tokens"]
    sealed: Sequence[str | None] = body.get("sealed_tokens") or [None] * len(numbers)
    return tuple(FenceToken(int(number), seal) for number, seal in zip(numbers, sealed, strict=True))


# The gateway's JSON as values: tokens are int, times are datetime. Unknown members are ignored.

Row: TypeAlias = dict[str, Any]
"""A row: columns by name, values as JSON has them."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """An accepted claim. `row` is None where the key has no row; the mark is raised all the same. It is None where the
    answer was repeated to another token than the one that made it.
    """

    resource: str
    mark: int | None
    row: Row | None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "Claimed":
        return cls(body["resource"], as_token(body["mark"]), body["row"])


@dataclass(frozen=True, slots=True)
class StoryEvent:
    """One thing that is known of a resource. `at` is None where only the token is kept. `token` is None where the rule
    accepts it still: then the gateway does not show it.
    """

    event: str
    token: int | None
    at: datetime | None


@dataclass(frozen=True, slots=True)
class FenceState:
    """What is known of a resource. The mark of one that was never written is 0; under the rule epoch any other
    is None: it equals a token that is accepted still. `tables`: those of a scope.
    """

    resource: str
    mark: int | None
    rule: Literal["strict", "epoch"]
    source: str
    row_exists: bool
    story: tuple[StoryEvent, ...]
    tables: tuple[str, ...] = ()
    sealed: bool = False
    """Whether only sealed tokens may write it."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "FenceState":
        """Read GET /v1/fences."""
        story = tuple(
            StoryEvent(each["event"], as_token(each["token"]), as_time(each.get("at"))) for each in body["story"]
        )
        tables = tuple(body.get("tables", ()))
        return cls(
            body["resource"],
            as_token(body["mark"]),
            body["rule"],
            body["source"],
            body["row_exists"],
            story,
            tables,
            body.get("sealed", False),
        )


@dataclass(frozen=True, slots=True)
class Waiter:
    """A client in a lock's queue."""

    owner: str
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock that is held or waited for. Times are the database's; `remaining` is seconds."""

    name: str
    held: bool
    lease_id: str | None
    owner: str | None
    granted_at: datetime | None
    expires_at: datetime | None
    remaining: float | None
    waiters: tuple[Waiter, ...]

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> "LockState":
        """Read an element of GET /v1/locks."""
        remaining = body.get("remaining_ms")
        waiters = (
            Waiter(found["owner"], as_time(found["since"]), as_time(found["until"])) for found in body["waiters"]
        )
        return cls(
            name=body["name"],
            held=body["held"],
            lease_id=body.get("lease_id"),
            owner=body.get("owner"),
            granted_at=as_time(body.get("granted_at")),
            expires_at=as_time(body.get("expires_at")),
            remaining=None if remaining is None else remaining / 1000,
            waiters=tuple(waiters),
        )


@dataclass(frozen=True, slots=True)
class GrantAnswer:
    """POST /v1/leases, answered. `repeated`: an earlier answer was lost, and the grant may be older than the request.

    `started` is when the request that was answered was sent, on the client's clock, plus its wait in the gateway.
    """

    lease_id: str
    locks: tuple[str, ...]
    owner: str
    ttl: float
    tokens: tuple[FenceToken, ...]
    granted_at: datetime | None
    expires_at: datetime | None
    claims: tuple[Claimed, ...]
    started: float
    repeated: bool
    attempt: int | None = None
    """How often the row was taken, this time included; None: it is no lease of the next row of a table."""

    @classmethod
    def read(cls, body: Mapping[str, Any], *, sent: float, received: float, repeated: bool) -> "GrantAnswer":
        waited = body["waited_ms"] / 1000
        return cls(
            lease_id=body["lease_id"],
            locks=tuple(body["locks"]),
            owner=body["owner"],
            ttl=body["ttl_ms"] / 1000,
            tokens=read_tokens(body),
            granted_at=as_time(body["granted_at"]),
            expires_at=as_time(body["expires_at"]),
            claims=tuple(Claimed.read(claim) for claim in body["claims"]),
            # A wait longer than the whole exchange was measured by a clock that jumped: count from the sending.
            started=sent + waited if waited <= received - sent else sent,
            repeated=repeated,
            attempt=body.get("attempt"),
        )
