"""Who sends a request. The authenticator finds it out (identity/); use cases go by it."""

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal

Access = Literal["read", "write", "lock"]
"""What a request wants: to read rows, to write rows or claim them, or to see and take locks."""

EVERY_ACCESS: Final[frozenset[Access]] = frozenset({"read", "write", "lock"})


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """One identity, as its token or key says. Requests under one token share the object, as long as it is kept.

    `name` is unique among identities, and stays the same when a token is renewed: leases and Idempotency-Keys belong
    to it.
    """

    name: str
    role: str | None = None
    """The database role of its statements; None: the role that the gateway logs in as."""
    claims: str = ""
    """The token's claims, a JSON object, for policies and triggers (`request.jwt.claims`); empty: there are none."""
    access: frozenset[Access] = EVERY_ACCESS
    """What it may ask for. Whether the role may do it, PostgreSQL decides."""
    locks: tuple[str, ...] | None = None
    """Patterns of the locks and elections that it may see and take (`orders/*`); None: all."""
    ends: float | None = None
    """When its token ends (the event loop's clock); None: it does not. Streams and waits end then."""

    def may_lock(self, name: str) -> bool:
        return self.locks is None or any(matches(pattern, name) for pattern in self.locks)

    def may_do_what(self, other: "Caller") -> bool:
        """Whether it is the same identity, and has all rights of the other: its access, and each of its patterns. What
        a database role may do is not known here, so role and claims must be the same.
        """
        if (self.name, self.role, self.claims) != (other.name, other.role, other.claims):
            return False
        every_lock = self.locks is None or (other.locks is not None and set(self.locks) >= set(other.locks))
        return self.access >= other.access and every_lock

    def within(self, seconds: float, now: float) -> float:
        """Shorten a wait that begins `now` (the event loop's clock) to the time that is left of its token."""
        return seconds if self.ends is None else max(min(seconds, self.ends - now), 0.0)

    def is_over(self, now: float) -> bool:
        """Whether its token has ended."""
        return self.ends is not None and self.ends <= now


EVERYBODY: Final = Caller("")
"""The caller of each request where there is no authentication."""
ANONYMOUS: Final = "anonymous"
"""The name of the caller of requests without a credential, where there is authentication."""
ANYBODY: Final = "anybody"
"""What refusals are recorded under where there is no authentication."""
CALLER: Final = "fencepost.caller"
"""Under which name the ASGI scope of a request has its Caller."""

# Whom places and turns are counted for (postgres/pool.py): the name of who asks, or the address of the connection
# (http/edge.py).

UNKNOWN: Final = "?"
"""The caller where there is no connection: of what the gateway asks for itself."""
ASKING: Final[ContextVar[str]] = ContextVar("ASKING", default=UNKNOWN)
"""Who asks, in the task of a request."""
PEER: Final[ContextVar[str | None]] = ContextVar("PEER", default=None)
"""The address of its connection; None: it came by none, as a queued write does."""


# Patterns of lock names: `orders/*` is every name that begins with `orders/`; without a `*` at its end it is one name.
#
# A pattern is read, and refused where it is none, by `read_patterns` (identity/jwt.py).

_LIKE: Final = str.maketrans({"\\": r"\\", "%": r"\%", "_": r"\_"})


def matches(pattern: str, name: str) -> bool:
    """Whether a lock of this name is one of those that the pattern names."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def likes(patterns: Sequence[str] | None) -> list[str] | None:
    """Write patterns as SQL's LIKE has them."""
    if patterns is None:
        return None
    return [p[:-1].translate(_LIKE) + "%" if p.endswith("*") else p.translate(_LIKE) for p in patterns]
