"""The Lease object of a lock: its name, what is written into it, what is read out of it.

Nothing here talks to the API server. The object is kept as the JSON it came as, so that an update gives back what
newer versions of Kubernetes have added to it.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fencepost.server.locks.source import MOST_NATIVE, SourceError

LOCK_ANNOTATION: Final = "fencepost/lock"
"""Carries the lock's full name: the Lease's own name has room for less."""
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "fencepost"}
DEFAULT_SECONDS: Final = 15
"""How long a Lease without leaseDurationSeconds is taken to live: the default of client-go."""
MOST_TRANSITIONS: Final = 2**31 - 1
"""leaseTransitions is an int32, and only people read it here."""

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_NAME: Final = 253
_READABLE: Final = 64  # characters of the lock's name that its Lease's name repeats
_VERSION: Final = re.compile(r"[1-9][0-9]*")
_OURS: Final = re.compile(r"(.*)_[0-9a-f]{32}", re.DOTALL)
_MICROSECOND: Final = timedelta(microseconds=1)


def hashed_name(lock: str) -> str:
    """Name the Lease of a lock: a part for people, and 128 bits of the full name's SHA-256."""
    readable = re.sub(r"[^a-z0-9]+", "-", lock.lower())[:_READABLE].strip("-")
    digest = hashlib.sha256(lock.encode()).hexdigest()[:32]
    return "-".join(part for part in ("fencepost", readable, digest) if part)


def own_name(lock: str) -> str | None:
    """Return the lock's name if a Lease can have it, else None."""
    return lock if len(lock) <= _LONGEST_NAME and _SUBDOMAIN.fullmatch(lock) else None


@dataclass(frozen=True, slots=True)
class LeaseObject:
    """One state of a Lease object, as the API server answered it."""

    body: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def version(self) -> tuple[str, str]:
        """What differs between any two states: the object's uid and its resourceVersion."""
        metadata = self.body["metadata"]
        return metadata["uid"], metadata["resourceVersion"]

    @property
    def _spec(self) -> dict[str, Any]:
        return self.body.get("spec") or {}

    @property
    def holder(self) -> str:
        """The identity that holds it; empty when it is free."""
        return self._spec.get("holderIdentity") or ""

    @property
    def owner(self) -> str:
        """The holder as people know it: without what makes an identity of ours new for every acquisition."""
        ours = _OURS.fullmatch(self.holder)
        return ours[1] if ours else self.holder

    @property
    def seconds(self) -> int:
        """How long it has to be seen unchanged before another client may take it."""
        return self._spec.get("leaseDurationSeconds") or DEFAULT_SECONDS

    @property
    def lock_annotation(self) -> str | None:
        """The full name of the lock that it belongs to, where its annotation has it."""
        found = (self.body["metadata"].get("annotations") or {}).get(LOCK_ANNOTATION)
        return None if found is None else str(found)

    @property
    def number(self) -> int:
        """Its resourceVersion as a token. Raises SourceError where that is none."""
        return number(self.version[1], f"Lease {self.name}")

    def taken(self, identity: str, ttl_ms: int) -> dict[str, Any]:
        """Write the object that gives it to `identity`."""
        now = self._later()
        transitions = min((self._spec.get("leaseTransitions") or 0) + 1, MOST_TRANSITIONS)
        return self._with(
            holderIdentity=identity,
            leaseDurationSeconds=whole_seconds(ttl_ms),
            acquireTime=now,
            renewTime=now,
            leaseTransitions=transitions,
        )

    def renewed(self, ttl_ms: int | None = None) -> dict[str, Any]:
        """Write the object that its holder draws a new resourceVersion with; `ttl_ms` None leaves the duration."""
        seconds = self.seconds if ttl_ms is None else whole_seconds(ttl_ms)
        return self._with(renewTime=self._later(), leaseDurationSeconds=seconds)

    def released(self) -> dict[str, Any]:
        """Write the object that frees it, the same as client-go's ReleaseOnCancel does."""
        return self._with(holderIdentity="", leaseDurationSeconds=1, renewTime=self._later())

    def _with(self, **spec: Any) -> dict[str, Any]:
        # uid and resourceVersion stay in metadata: they are the precondition of the update. The uid counts too, since
        # the API server creates a Lease that is updated and not there.
        return {**self.body, "spec": {**self._spec, **spec}}

    def _later(self) -> str:
        """Give the time for renewTime, another one than is written there: an update that changes nothing is no write
        to the API server, and draws no number.
        """
        now = wall_clock()
        return now if now != self._spec.get("renewTime") else _text(datetime.fromisoformat(now) + _MICROSECOND)


def new_lease(name: str, lock: str, identity: str, ttl_ms: int) -> dict[str, Any]:
    """Write the object of a lock that was never taken before."""
    now = wall_clock()
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": MANAGED_BY, "annotations": {LOCK_ANNOTATION: lock}},
        "spec": {
            "holderIdentity": identity,
            "leaseDurationSeconds": whole_seconds(ttl_ms),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        },
    }


def number(version: str, what: str) -> int:
    """Read a resourceVersion as a number. Raises SourceError where it cannot be a token."""
    if not _VERSION.fullmatch(version):
        raise SourceError(f"{what} has the resourceVersion {version!r}, which is no number: it cannot be a token")
    found = int(version)
    if found > MOST_NATIVE:
        raise SourceError(
            f"{what} has the resourceVersion {found}, above 2^48-1: this cluster's storage does not count as etcd "
            "does, and cannot be a source of tokens; take another one"
        )
    return found


def whole_seconds(ttl_ms: int) -> int:
    """Round a TTL up to what leaseDurationSeconds can hold."""
    return max(1, math.ceil(ttl_ms / 1000))


def wall_clock() -> str:
    """Give the time as the API writes it, for people who look at the Lease. Nothing is decided by it."""
    return _text(datetime.now(UTC))  # noqa: TID251 - for people only; who waits measures on its own monotonic clock


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
