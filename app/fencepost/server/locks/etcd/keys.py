"""The keys and leases of locks in etcd, and the transactions on them. source.py has the protocol."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.server.locks.etcd.api import NO_PRECONDITION, NOT_FOUND, EtcdApi, EtcdRefusedError
from fencepost.server.locks.source import SourceError

_FIRST: Final = {"sort_target": "CREATE", "sort_order": "ASCEND", "limit": "1"}
_LAST: Final = {**_FIRST, "sort_order": "DESCEND"}


class PlaceLostError(Exception):
    """Our key is gone before the lock was ours: its lease ended while we were paused, or it was deleted."""


@dataclass(frozen=True, slots=True)
class EtcdKey:
    """A key as etcd shows it. `encoded` is its name as the gateway writes it; `lease` 0 is none."""

    encoded: str
    created: int
    lease: int
    owner: str | None

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> "EtcdKey":
        """Read one of the answer's `kvs`."""
        owner = b64decode(shown.get("value", "")).decode(errors="replace")  # etcdctl lock leaves it empty
        return cls(shown["key"], int(shown["create_revision"]), int(shown.get("lease", 0)), owner or None)

    @property
    def name(self) -> str:
        return b64decode(self.encoded).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Hold:
    """A key of ours: the lease that its name has, and the revision that created it. Its text is the handle."""

    lease: int
    created: int

    @classmethod
    def of(cls, lock: str, handle: str) -> "Hold":
        """Read a handle. Raises SourceError."""
        lease, _, created = handle.partition(":")
        try:
            return cls(int(lease, 16), int(created))
        except ValueError:
            raise SourceError(f"the handle stored for lock {lock} is not etcd's: another source granted it") from None

    def __str__(self) -> str:
        return f"{self.lease:x}:{self.created}"


class Keys:
    """Reads and writes them. Every method raises SourceError."""

    def __init__(self, api: EtcdApi) -> None:
        self._api = api

    async def enter(self, lock: str, lease: int, owner: str) -> tuple[Hold, bool]:
        """Create our key: its hold, and whether that made us the owner, so that its revision is a token.

        Raises PlaceLostError.
        """
        key = self._key(lock, lease)
        answer = await self._txn(
            [_created(key, 0)],
            [
                {"request_put": {"key": key, "value": _encode(owner), "lease": str(lease)}},
                {"request_range": {**self._folder(lock), **_FIRST}},
            ],
            [{"request_range": {"key": key}}],
        )
        shown = EtcdKey.of(answer["responses"][-1]["response_range"]["kvs"][0])
        if not answer.get("succeeded"):  # we have asked twice, the first one landed, and others may have come since
            return Hold(lease, shown.created), False
        return Hold(lease, _revision(answer)), shown.encoded == key

    async def touch(self, lock: str, hold: Hold) -> int | None:
        """Put the key again as it is, and return the revision of that; None: it is gone."""
        key = self._key(lock, hold.lease)
        put = {"request_put": {"key": key, "ignore_value": True, "ignore_lease": True}}
        answer = await self._txn([_created(key, hold.created)], [put])
        return _revision(answer) if answer.get("succeeded") else None

    async def attach(self, lock: str, hold: Hold, old: int, new: int) -> bool:
        """Attach the key to another lease; False: it is gone, or not attached to `old`, or `new` has ended."""
        key = self._key(lock, hold.lease)
        attached = {"key": key, "target": "LEASE", "lease": str(old)}
        put = {"request_put": {"key": key, "ignore_value": True, "lease": str(new)}}
        try:
            answer = await self._txn([_created(key, hold.created), attached], [put], [{"request_range": {"key": key}}])
        except PlaceLostError:
            return False
        if answer.get("succeeded"):
            return True
        # Asked twice, and the first one landed? To deny it would make the caller revoke the lease, key and all.
        shown = answer["responses"][-1]["response_range"].get("kvs")
        return bool(shown) and EtcdKey.of(shown[0]).lease == new

    async def delete(self, lock: str, hold: Hold) -> None:
        """Delete the key, if it is still the one that was created."""
        key = self._key(lock, hold.lease)
        await self._txn([_created(key, hold.created)], [{"request_delete_range": {"key": key}}])

    async def look(self, lock: str, before: int | None = None) -> tuple[EtcdKey | None, int]:
        """Read the key of the lock's owner, or the one just before the place created at `before`; and the revision
        at which it was so.
        """
        which = _FIRST if before is None else {**_LAST, "max_create_revision": str(before - 1)}
        answer = await self._api.ask("kv/range", {**self._folder(lock), **which})
        shown = answer.get("kvs")
        return EtcdKey.of(shown[0]) if shown else None, _revision(answer)

    async def read(self, lock: str, hold: Hold) -> tuple[EtcdKey | None, int]:
        """Read the key of a hold, if it is still the one that was created, and the raft term at which it was so."""
        answer = await self._api.ask("kv/range", {"key": self._key(lock, hold.lease)})
        shown = answer.get("kvs")
        key = EtcdKey.of(shown[0]) if shown else None
        return key if key is not None and key.created == hold.created else None, _term(answer)

    async def revision(self) -> int:
        """Read etcd's revision, as most of its nodes know it."""
        nothing = {"key": _encode(self._api.where.prefix), "count_only": True}
        return _revision(await self._api.ask("kv/range", nothing))

    async def grant(self, lease: int, ttl: int) -> None:
        """Make a lease of `ttl` seconds with this id."""
        try:
            await self._api.ask("lease/grant", {"ID": str(lease), "TTL": str(ttl)})
        except EtcdRefusedError as error:
            # It exists: we have asked twice. No other client chooses this one of 2^62 ids.
            if error.code != NO_PRECONDITION:
                raise

    async def keep_alive(self, lease: int) -> tuple[int, int]:
        """Return the seconds that the lease lives from now on (0: it has ended), and the raft term."""
        result = (await self._api.ask("lease/keepalive", {"ID": str(lease)}))["result"]
        return int(result.get("TTL", 0)), _term(result)

    async def left_ms(self, lease: int) -> int | None:
        """How long the lease has left, exact to a second, upwards; None: it has ended."""
        answer = await self._api.ask("lease/timetolive", {"ID": str(lease)})
        left, granted = int(answer.get("TTL", 0)), int(answer.get("grantedTTL", 0))
        return None if left < 0 else min(left + 1, granted) * 1000

    async def revoke(self, lease: int) -> None:
        """End the lease, if it is there, and delete what is attached to it."""
        try:
            await self._api.ask("lease/revoke", {"ID": str(lease)})
        except EtcdRefusedError as error:
            if error.code != NOT_FOUND:
                raise

    def _key(self, lock: str, lease: int) -> str:
        return _encode(f"{self._path(lock)}{lease:x}")

    def _folder(self, lock: str) -> dict[str, str]:
        folder = self._path(lock)
        return {"key": _encode(folder), "range_end": _encode(folder[:-1] + chr(ord("/") + 1))}

    def _path(self, lock: str) -> str:
        """Without a slash in it, no lock's name begins with another lock's folder."""
        return f"{self._api.where.prefix}{lock.replace('%', '%25').replace('/', '%2F')}/"

    async def _txn(
        self, compare: list[dict[str, Any]], then: list[dict[str, Any]], otherwise: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Raise PlaceLostError where the lease of a put has ended."""
        try:
            return await self._api.ask("kv/txn", {"compare": compare, "success": then, "failure": otherwise or []})
        except EtcdRefusedError as error:
            if error.code == NOT_FOUND:
                raise PlaceLostError from error
            raise


def seconds(ttl_ms: int) -> int:
    """Leases have whole seconds."""
    return max(1, -(-ttl_ms // 1000))


def _encode(text: str) -> str:
    return b64encode(text.encode()).decode()


def _created(key: str, revision: int) -> dict[str, str]:
    return {"key": key, "target": "CREATE", "create_revision": str(revision)}


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _term(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["raft_term"])
