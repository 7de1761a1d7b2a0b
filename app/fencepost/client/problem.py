"""An error's body, read: RFC 9457's members, PostgREST's, and what Fencepost adds (R18).

Reading never raises: an answer that is not quite a problem still has to become an error with what it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Superseded:
    """Whose a token is, as far as it is known: the built-in source and those that a gateway asks know it."""

    holder: str | None
    lease_id: str | None
    locks: tuple[str, ...]
    granted_at: datetime | None
    issued_at: datetime | None
    source: str | None


@dataclass(frozen=True, slots=True)
class Problem:
    """One `application/problem+json`. `members` has all of it; the rest are its best-known members, typed."""

    members: Mapping[str, Any]
    status: int
    retry_after: float | None = None

    @property
    def code(self) -> str | None:
        """FPnnn, or PostgreSQL's SQLSTATE; None when something else than Fencepost answered."""
        return self.text("code")

    @property
    def retryable(self) -> bool:
        """Whether the same request may be sent again, by the gateway's answer."""
        return self.members.get("retryable") is True

    @property
    def superseded_by(self) -> Superseded | None:
        """Who came after the caller."""
        found = self.members.get("superseded_by")
        return _read_superseded(found) if isinstance(found, Mapping) else None

    @property
    def presented_by(self) -> Superseded | None:
        """Whose token the caller has presented."""
        found = self.members.get("presented_by")
        return _read_superseded(found) if isinstance(found, Mapping) else None

    def text(self, name: str) -> str | None:
        """Return a member that is a string, or None."""
        found = self.members.get(name)
        return found if isinstance(found, str) else None

    def token(self, name: str) -> int | None:
        """Return a member that is a token (a decimal string), or None."""
        return as_token(self.members.get(name))

    def time(self, name: str) -> datetime | None:
        """Return a member that is a time, or None."""
        return as_time(self.members.get(name))


def as_token(found: object) -> int | None:
    """Read a token out of JSON."""
    return int(found) if isinstance(found, str) and found.isascii() and found.isdigit() else None


def as_time(found: object) -> datetime | None:
    """Read an ISO 8601 time out of JSON."""
    try:
        return datetime.fromisoformat(found) if isinstance(found, str) else None
    except ValueError:
        return None


def _read_superseded(found: Mapping[str, Any]) -> Superseded:
    def text(name: str) -> str | None:
        return found[name] if isinstance(found.get(name), str) else None

    locks = found.get("locks")
    return Superseded(
        holder=text("holder"),
        lease_id=text("lease_id"),
        locks=tuple(str(name) for name in locks) if isinstance(locks, list) else (),
        granted_at=as_time(found.get("granted_at")),
        issued_at=as_time(found.get("issued_at")),
        source=text("source"),
    )
