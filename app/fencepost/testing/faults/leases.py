"""A lease that is over at once: the harness moves its end in the database; no test waits for a TTL.

The lease's end is one column. It is changed under the locks that every grant takes, in their order: the rows of the
lock names, then the row of the lease, which a renewal locks too. So a renewal that is under way comes before it or
after it. Requests that wait for the lock are woken, as after a release.

A lease of a lock service ends in the service (holds.py), and then in the database's record of it. In between a renewal
is refused by the service, and a grant to another client ends the record itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString, Protocol, runtime_checkable

import psycopg

from fencepost.testing.faults.errors import FaultError
from fencepost.testing.faults.fault import fault
from fencepost.testing.faults.holds import end_hold
from fencepost.testing.servers.gateway import database_of_the_gateway
from fencepost.testing.servers.lock_services import running_services

_FIND = """
SELECT x.lease_id, x.names FROM fencepost.locks k JOIN fencepost.leases x ON x.lease_id = k.lease_id
 WHERE k.name = %s AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()"""
_NAMES = "SELECT x.lease_id, x.names FROM fencepost.leases x WHERE x.lease_id = %s"
_LOCK_NAMES = """
SELECT FROM fencepost.locks k WHERE k.name = ANY (%s) ORDER BY k.name COLLATE "C" FOR UPDATE"""
_LOCK_LEASE = "SELECT FROM fencepost.leases x WHERE x.lease_id = %s FOR UPDATE"
_HELD = """
SELECT x.expires_at FROM fencepost.leases x
 WHERE x.lease_id = %s AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()"""
_EXPIRE = """
UPDATE fencepost.leases x SET expires_at = clock_timestamp() - interval '1 ms' WHERE x.lease_id = %s
RETURNING x.expires_at"""
_WAKE = "SELECT fencepost.wake(%s, NULL)"
_RESTORE = """
UPDATE fencepost.leases x SET expires_at = %s WHERE x.lease_id = %s AND x.ended_at IS NULL AND x.expires_at = %s"""

_LIVE_OF_A_SERVICE = """
SELECT x.lease_id, x.source, x.lock, x.handle FROM fencepost.source_leases x
 WHERE (x.lock = %(lock)s OR x.source = %(source)s AND x.lease_id = %(lease_id)s)
   AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()"""
_EXPIRE_OF_A_SERVICE = """
UPDATE fencepost.source_leases x SET expires_at = clock_timestamp() - interval '1 ms'
 WHERE x.lease_id = %s AND x.ended_at IS NULL AND x.expires_at > clock_timestamp()"""


@runtime_checkable
class HasLeaseId(Protocol):
    """A lease of `fencepost.client`, synchronous or not."""

    @property
    def id(self) -> str:
        """Its public id."""
        ...


@fault
def lease_expired(lease: HasLeaseId | str, *, database: str | None = None) -> Iterator[None]:
    """Let a lease be over in this block, without waiting.

    `lease`: one of the client's, or the name of a lock: then the lease that has it now. Its holder finds out as
    after any expiry. `database`: the PostgreSQL URL; by default that of the one gateway that the harness runs in
    this process. If no other lease has the lock at the end of the block, one of the built-in source has its old end
    again; one of a lock service, which must be a server of the fixture `lock_service`, stays over. FaultError when it
    is not held.
    """
    url = database or database_of_the_gateway()
    moved = None
    try:
        moved = _expire(url, lease)
        yield
    finally:
        if moved is not None:
            with psycopg.connect(url) as connection:
                connection.execute(_LOCK_NAMES, (moved.names,))
                connection.execute(_RESTORE, (moved.end, moved.lease_id, moved.expired))


@dataclass(frozen=True, slots=True)
class _Moved:
    """A lease whose end was moved: what it was, and what it is now."""

    lease_id: int
    names: list[str]
    end: datetime
    expired: datetime


def _expire(url: str, lease: HasLeaseId | str) -> _Moved | None:
    """Give what is to be undone; None where that is nothing."""
    with psycopg.connect(url) as connection:
        question = _question(lease)
        found = connection.execute(*question).fetchone() if question else None
        if found is not None:
            lease_id, names = found
            connection.execute(_LOCK_NAMES, (names,))
            connection.execute(_LOCK_LEASE, (lease_id,))
            held = connection.execute(_HELD, (lease_id,)).fetchone()  # the clock is read when the locks are held
            if held is not None:
                expired = connection.execute(_EXPIRE, (lease_id,)).fetchone()
                connection.execute(_WAKE, (names,))
                return _Moved(lease_id, names, held[0], expired[0] if expired else held[0])
        _expire_at_a_service(connection, lease)
    return None


def _question(lease: HasLeaseId | str) -> tuple[LiteralString, tuple[str | int]] | None:
    """Ask for it among the leases of the built-in source. None: it is one of a lock service, `SOURCE-NUMBER`."""
    if isinstance(lease, str):
        return _FIND, (lease,)
    return None if "-" in lease.id else (_NAMES, (int(lease.id),))


def _expire_at_a_service(connection: psycopg.Connection, lease: HasLeaseId | str) -> None:
    name = lease if isinstance(lease, str) else f"lease {lease.id}"
    lock, source, lease_id = (lease, None, None) if isinstance(lease, str) else (None, *_parts(lease.id))
    asked = {"lock": lock, "source": source, "lease_id": lease_id}
    found = connection.execute(_LIVE_OF_A_SERVICE, asked).fetchall()
    if not found:
        raise FaultError(f"{name} is not held in this database: it is free, or its end has come")
    if len(found) > 1:
        sources = ", ".join(sorted(row[1] for row in found))
        raise FaultError(f"several lock services have granted {name} ({sources}): give the lease, and not the name")
    number, source, lock, handle = found[0]
    if source not in running_services:
        raise FaultError(
            f"{name} ends in the lock service {source}, which this run has not started: use the fixture lock_service,"
            " or pause the holder for longer than the TTL"
        )
    end_hold(running_services[source], lock, handle)
    connection.execute(_EXPIRE_OF_A_SERVICE, (number,))


def _parts(lease_id: str) -> tuple[str | None, int]:
    """Split a lease's public id: the source, None for the built-in one, and the number."""
    source, _, number = lease_id.rpartition("-")
    return source or None, int(number)
