"""The gateway's JSON as values: tokens are int, times are datetime. Unknown members are ignored."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from fencepost.client.fence_token import FenceToken, read_tokens
from fencepost.client.problem import as_time, as_token

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
        """Read an answer's member."""
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

    @classmethod
    def read(cls, body: Mapping[str, Any], *, sent: float, received: float, repeated: bool) -> "GrantAnswer":
        """Read the answer to a request, given when it was sent and when answered."""
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
        )
