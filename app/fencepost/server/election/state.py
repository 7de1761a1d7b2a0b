"""Who leads: a lock's state, seen as an election."""

from dataclasses import dataclass
from typing import Final

from fencepost.server.postgres.leases import LeaseId, LockState

PREFIX: Final = "election/"
"""What the locks of elections begin with, so that they meet no others."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads. Times are the database's, as ISO 8601 texts in UTC; `expires_at` is when the lease ends unless it
    is renewed, `remaining_ms` what was left of it.
    """

    owner: str
    lease_id: LeaseId
    since: str
    expires_at: str
    remaining_ms: int

    @property
    def term(self) -> int:
        """The number of the lease. It is no token: observers could write with one."""
        return self.lease_id.number


@dataclass(frozen=True, slots=True)
class Election:
    """An election as it stands. `candidates`: a JSON array of who waits, as far as PostgreSQL knows."""

    name: str
    source: str
    leader: Leader | None = None
    candidates: str = "[]"

    @property
    def led_by(self) -> LeaseId | None:
        """The leader's lease: another one is another term."""
        return None if self.leader is None else self.leader.lease_id


def lock_of(name: str) -> str:
    """Name the lock of an election."""
    return PREFIX + name


def election_of(source: str, state: LockState) -> Election | None:
    """See a lock as an election; None: it is not one."""
    name = state.name.removeprefix(PREFIX)
    if name in (state.name, ""):
        return None
    return Election(name, source, _leader(source, state), state.waiters)


def _leader(source: str, state: LockState) -> Leader | None:
    if state.lease_id is None:
        return None
    members = (state.owner, state.granted_at, state.expires_at, state.remaining_ms)
    owner, since, expires_at, remaining_ms = members
    if owner is None or since is None or expires_at is None or remaining_ms is None:
        raise RuntimeError(f"the lease of {state.name} lacks something: {members}")
    return Leader(owner, LeaseId(source, state.lease_id), since, expires_at, remaining_ms)
