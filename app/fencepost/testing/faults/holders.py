"""Faults of who holds a lock: clocks that go wrong, holders that pause, leases that end."""

import http.client
import json
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Final, LiteralString, Protocol, runtime_checkable
from urllib.parse import quote, urlsplit

import psycopg

from fencepost.testing.faults.fault import FaultError, FaultUnavailableError, fault
from fencepost.testing.servers.gateway import database_of_the_gateway
from fencepost.testing.servers.lock_services import LockServiceServer, running_services

# A wall clock that steps, for processes that the harness starts.
#
# libfaketime stands between a process and its clock. It is loaded when the process starts (LD_PRELOAD), so the process
# must be started with the environment of a `SteppableClock`. What can be stepped so is the wall clock (CLOCK_REALTIME)
# of Python programs: time.time(), datetime.now(). What cannot: programs that ask the kernel without libc (Go: etcd,
# Kubernetes), Debian's Redis, which does not start with it, processes that run already, and the machine's clock, which
# takes rights that a test should not have. Monotonic clocks go on as before.

_PLACES: Final = ("/usr/lib/*/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime", "/usr/lib64/faketime")
_LIBRARY: Final = "libfaketimeMT.so.1"


class SteppableClock(AbstractContextManager["SteppableClock"]):
    """A clock for processes that are started with its `environment`, and for all that these start.

    Use it with `with`, or call `close`. FaultUnavailableError where libfaketime is not installed.
    """

    def __init__(self) -> None:
        library = _library()
        handle, name = tempfile.mkstemp(prefix="fencepost-clock-")
        os.close(handle)
        self._file = Path(name)
        self._file.chmod(0o644)  # PostgreSQL runs as another user
        self._library = library
        self._lock = threading.Lock()
        self._base = 0.0
        self._steps: list[float] = []
        self.step_to(0.0)

    @property
    def offset(self) -> float:
        """By how many seconds it is ahead now: where `step_to` has set it, and the steps of the open blocks."""
        return self._base + sum(self._steps)

    def environment(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Give the environment that a process needs to have this clock, over `base` (by default this process's)."""
        base = os.environ if base is None else base
        preload = " ".join(filter(None, [str(self._library), base.get("LD_PRELOAD")]))
        return {
            **base,
            "LD_PRELOAD": preload,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def step_to(self, offset: float) -> None:
        """Let the clock be ahead by exactly so many seconds from now on; negative: behind.

        Steps of blocks that are open are over with that.
        """
        with self._lock:
            self._base, self._steps = offset, []
            self._write()

    def step(self, seconds: float) -> None:
        with self._lock:
            self._steps.append(seconds)
            self._write()

    def step_back(self, seconds: float) -> None:
        """Take a step of so many seconds away, unless `step_to` has ended it."""
        with self._lock, suppress(ValueError):
            self._steps.remove(seconds)
            self._write()

    def _write(self) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{self.offset:+.6f}\n")
        fresh.chmod(0o644)
        fresh.replace(self._file)  # in one step: a process reads the file at each look at the clock

    def close(self) -> None:
        """Remove its file. Processes that still run with it have the machine's time again."""
        self._file.unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


@fault
def clock_stepped(clock: SteppableClock, seconds: float) -> Iterator[None]:
    """Let a wall clock be ahead by so many seconds, negative: behind, until the block ends.

    It steps at once, for all processes that have it. Steps that overlap add up. At the end it steps
    back, which is a step as well. ValueError for a step that is no number of seconds.
    """
    if not math.isfinite(seconds):
        raise ValueError(f"a clock steps by a number of seconds, not {seconds}")
    try:
        clock.step(seconds)
        yield
    finally:
        clock.step_back(seconds)


def _library() -> Path:
    for place in _PLACES:
        for folder in sorted(Path("/").glob(place.lstrip("/"))):
            if (folder / _LIBRARY).is_file():
                return folder / _LIBRARY
    raise FaultUnavailableError("no libfaketime, which steps the clock of a process: apt-get install faketime")


# The hold of a lock service is over at once: done in the service's own data, as the service does it at a TTL's end.
#
# Which keys and nodes these are is in docs/sources: programs may lock there past Fencepost. A hold is given by the
# text that the gateway keeps of it (`fencepost.source_leases.handle`), so another holder's is never taken. One that is
# gone already is no error.

_TIMEOUT: Final = 10.0
"""Seconds for each step of the conversation with a service."""
_NO_SUCH_LEASE: Final = 5
"""etcd's code (gRPC's NOT_FOUND)."""
_DELETE_OURS: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def end_hold(service: LockServiceServer, lock: str, handle: str) -> None:
    """Let a service forget the hold of a lock. FaultError when it cannot be asked."""
    _WAYS[service.name](service.url, lock, handle)


def _in_redis(url: str, lock: str, handle: str) -> None:
    from redis import Redis, RedisError  # noqa: PLC0415 - it is installed where Redis is used

    try:
        with closing(Redis.from_url(url, socket_timeout=_TIMEOUT)) as client:
            client.eval(_DELETE_OURS, 1, f"fencepost:lock:{lock}", handle)
    except RedisError as error:
        raise _failed("Redis", url, error) from error


def _in_etcd(url: str, _lock: str, handle: str) -> None:
    """Revoke the hold's lease, which takes its key away."""
    parts = urlsplit(url)
    lease = int(handle.partition(":")[0], 16)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request("POST", "/v3/lease/revoke", json.dumps({"ID": str(lease)}))
        answer = connection.getresponse()
        said = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _failed("etcd", url, error) from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK and said.get("code") != _NO_SUCH_LEASE:
        raise _failed("etcd", url, said)


def _in_zookeeper(url: str, lock: str, handle: str) -> None:
    """Delete the hold's node, as the end of its session does. Sessions are the gateway's, with all its other holds."""
    from kazoo.client import KazooClient  # noqa: PLC0415 - it is installed where ZooKeeper is used
    from kazoo.exceptions import KazooException, NoNodeError  # noqa: PLC0415
    from kazoo.handlers.threading import KazooTimeoutError  # noqa: PLC0415

    name = quote(lock, safe="")
    name = name if name.strip(".") else name.replace(".", "%2E")
    client = KazooClient(hosts=urlsplit(url).netloc)
    try:
        client.start(timeout=_TIMEOUT)
        with suppress(NoNodeError):
            client.delete(f"/fencepost/{name}/{json.loads(handle)['node']}")
    except (KazooException, KazooTimeoutError) as error:
        raise _failed("ZooKeeper", url, error) from error
    finally:
        client.stop()
        client.close()


def _failed(service: str, url: str, error: object) -> FaultError:
    return FaultError(f"{service} at {url} could not be asked to end the hold of a lock, and nothing was done: {error}")


_WAYS: Final[Mapping[str, Callable[[str, str, str], None]]] = {
    "redis": _in_redis,
    "etcd": _in_etcd,
    "zookeeper": _in_zookeeper,
}


# A lease that is over at once: the harness moves its end in the database; no test waits for a TTL.
#
# The lease's end is one column. It is changed under the locks that every grant takes, in their order: the rows of the
# lock names, then the row of the lease, which a renewal locks too. So a renewal that is under way comes before it or
# after it. Requests that wait for the lock are woken, as after a release.
#
# A lease of a lock service ends in the service (`end_hold`), and then in the database's record of it. In between a
# renewal is refused by the service, and a grant to another client ends the record itself.

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
