"""The token source etcd: the queue of its own recipe, and the revisions of its transactions as tokens.

Terms. Each hold, and each place in the queue, is one key `<prefix><lock>/<lease id in hex>`, attached to a lease of its
own: `etcdctl lock` and clientv3's Mutex do the same, so that they queue with us. The lock's owner is whose key was
created first. It stays that until its key is deleted, for a key that comes later has a higher create revision.

1. Grant a lease, create the key. If no key of the lock is older, that very transaction is the grant, and its revision
   the first token. Otherwise wait: watch the key just before ours be deleted, look, and again.
2. **A waiter's create revision is no token**: the owner before it has minted since. Once first, it mints.
3. A mint is a transaction that puts the key again, on condition that it is still the one that was created. Its revision
   is the token: no two transactions share one, over all locks. The put has `ignore_lease` and `ignore_value`. A plain
   one would detach the key from its lease, and it would never expire.

**Repeats.** A request may be done twice, or land late (etcd/api.py). A lease's id is chosen here, so granting it twice
is one lease. A key is created only where it does not exist, and only under its lease: once that is revoked, nothing
that lands late can bring the key back. A mint done twice leaves a gap. So giving back whatever a cancelled or failed
acquire may have got is one request: revoke the lease.

**The watch is for speed.** A waiter keeps its lease alive every third of its TTL, and looks again when it does.
"""

import asyncio
import secrets
from typing import Final

from fencepost.server.locks.etcd.api import EtcdApi
from fencepost.server.locks.etcd.keys import EtcdKey, Hold, Keys, PlaceLostError, seconds
from fencepost.server.locks.etcd.url import parse
from fencepost.server.locks.pending_releases import PendingReleases
from fencepost.server.locks.registry import SourceContext
from fencepost.server.locks.source import Capabilities, Grant, Holder, Source, SourceError, SourceUnavailableError

BEATS: Final = 3
"""How often within its TTL a waiter keeps its lease alive."""
RENEWALS: Final = 5
"""How often a renewal begins anew when the leader, or the key's lease, changes under it."""
FAULTY: Final = ((3, 5, 0), (3, 5, 2))
"""From this release to that one a node that crashed may lack what the others have."""


def from_url(url: str, context: SourceContext) -> Source:
    """Make the source of an etcd:// or etcds:// URL (docs/sources/etcd.md). Raises SourceConfigError."""
    return EtcdSource(EtcdApi(parse(url, context.name)))


class EtcdSource:
    """Locks in etcd."""

    capabilities = Capabilities(order="source", fair=True, verifies=True, least_ttl_ms=1000)

    def __init__(self, api: EtcdApi) -> None:
        self._api, self._keys = api, Keys(api)
        self._pending = PendingReleases()

    async def open(self) -> None:
        """Read the certificates. Raises SourceConfigError."""
        await self._api.open()

    async def close(self) -> None:
        """Close connections, once cancelled acquires have given back what they had."""
        await self._pending.drain()
        await self._api.close()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        """See Source. Who does not wait, and sees that the lock is held, writes nothing to etcd."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + wait_s
        if wait_s <= 0 and (held := await self._other_holder(lock)) is not None:
            return held
        while True:
            lease = secrets.randbits(62) + 1
            try:
                await self._keys.grant(lease, seconds(ttl_ms))
                outcome = await self._queue(lock, lease, owner, tokens, ends, ttl_ms)
            except PlaceLostError as error:
                await self._leave(lease)
                if loop.time() >= ends:
                    raise SourceUnavailableError(
                        f"lock {lock} was lost while {self._api.where} granted it: try again"
                    ) from error
            except SourceUnavailableError:
                self._leave(lease)  # not awaited: the caller has waited long enough, and the TTL stands behind it
                raise
            except BaseException:
                await self._leave(lease)
                raise
            else:
                if isinstance(outcome, Holder):
                    await self._leave(lease)
                return outcome

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        """See Source. A lease's TTL cannot change: for a longer one the key gets another lease; a shorter one is not
        followed, and the hold lives for the longer.
        """
        hold = Hold.of(lock, handle)
        lease = hold.lease
        for _ in range(RENEWALS):
            ttl, term = await self._keys.keep_alive(lease)
            key, term_after = await self._keys.read(lock, hold)
            if key is None:
                return False
            if key.lease not in {lease, 0}:
                lease = key.lease  # an earlier renewal has moved it
            elif key.lease == 0 or 0 < ttl < seconds(ttl_ms):
                if await self._move(lock, hold, key.lease, ttl_ms):
                    return True
            elif ttl == 0:
                return False
            elif term == term_after:
                # A leader that others have deposed answers keepalives as before. The read went through the
                # majority: in the same term, the keepalive was the true leader's.
                return True
        raise SourceUnavailableError(f"lock {lock} was not renewed, {self._api.where} changes its leader: try again")

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        hold = Hold.of(lock, handle)
        drawn = []
        for _ in range(count):
            if (revision := await self._keys.touch(lock, hold)) is None:
                return None
            drawn.append(revision)
        return tuple(drawn)

    async def release(self, lock: str, handle: str) -> None:
        """See Source. The key first, which frees the lock whatever lease it has by now."""
        hold = Hold.of(lock, handle)
        await self._keys.delete(lock, hold)
        await self._keys.revoke(hold.lease)

    async def inspect(self, lock: str) -> Holder | None:
        """See Source. `expires_ms` is exact to a second, upwards."""
        first, _ = await self._keys.look(lock)
        return None if first is None else await self._holder(first)

    async def issued(self, number: int) -> bool:
        """Whether etcd's revision has come so far. Revisions that are no lock's tokens cannot be distinguished."""
        return 0 < number <= await self._keys.revision()

    async def advice(self) -> list[str]:
        found: list[str] = []
        clusters: set[str] = set()
        for number, endpoint in enumerate(self._api.where.endpoints):
            try:
                status = await self._api.ask("maintenance/status", {}, number)
            except SourceUnavailableError:
                found.append(f"{endpoint} cannot be asked: locks survive the loss of less than half of the nodes.")
                continue
            clusters.add(status["header"]["cluster_id"])
            found += [f"{endpoint} reports {error}: see etcdctl alarm list." for error in status.get("errors", ())]
            release = tuple(int(part) for part in status["version"].partition("-")[0].split("."))
            if FAULTY[0] <= release <= FAULTY[1]:
                found.append(f"{endpoint} runs {status['version']}, which may lose writes: install 3.5.3 or newer.")
        if len(clusters) > 1:
            found.append(f"{self._api.where} is {len(clusters)} clusters: a lock could be held in each; name one only.")
        members = (await self._api.ask("cluster/member/list", {})).get("members", ())
        if len(members) == 1:
            found.append(
                f"{self._api.where} has one node: with its disk revisions are lost and tokens repeat; run three."
            )
        return found

    async def _queue(self, lock: str, lease: int, owner: str, tokens: int, ends: float, ttl_ms: int) -> Grant | Holder:
        """Create our key and wait for our turn. Raises PlaceLostError."""
        hold, granted = await self._keys.enter(lock, lease, owner)
        drawn = (hold.created,) if granted else ()
        if not drawn and (held := await self._turn(lock, hold, ends, ttl_ms)) is not None:
            return held
        more = await self.mint(lock, str(hold), max(tokens, 1) - len(drawn))
        if more is None:
            raise PlaceLostError
        return Grant(str(hold), (drawn + more)[:tokens])

    async def _turn(self, lock: str, hold: Hold, ends: float, ttl_ms: int) -> Holder | None:
        """Wait until no older key is before ours: None. After `ends`, return who has the lock."""
        loop = asyncio.get_running_loop()
        while True:
            before, revision = await self._keys.look(lock, before=hold.created)
            if before is None:
                return None
            self._refuse_foreign(lock, before)
            left = ends - loop.time()
            if left <= 0:
                if (held := await self._other_holder(lock, but=hold)) is not None:
                    return held
                continue
            await self._api.deleted(before.encoded, revision + 1, min(left, seconds(ttl_ms) / BEATS))
            if (await self._keys.keep_alive(hold.lease))[0] == 0:
                raise PlaceLostError

    async def _other_holder(self, lock: str, but: Hold | None = None) -> Holder | None:
        """Return who has the lock, unless it is free or held by `but`. Raises SourceError for a foreign key."""
        first, _ = await self._keys.look(lock)
        if first is None or (but is not None and first.created == but.created):
            return None
        self._refuse_foreign(lock, first)
        return await self._holder(first)

    async def _holder(self, key: EtcdKey) -> Holder:
        if key.lease == 0:
            return Holder(key.owner)
        return Holder(key.owner, await self._keys.left_ms(key.lease))

    def _refuse_foreign(self, lock: str, key: EtcdKey) -> None:
        """A key that never expires keeps every client from the lock."""
        if key.lease == 0:
            raise SourceError(
                f"lock {lock} is blocked by the key {key.name!r} of {self._api.where}, which has "
                "no lease and never expires: the one that put it there must delete it (etcdctl del)"
            )

    async def _move(self, lock: str, hold: Hold, old: int, ttl_ms: int) -> bool:
        """Attach the key to a new lease. False: not from the lease `old`, look again.

        If no answer comes the new lease is left alone, for the key may be attached to it.
        """
        lease = secrets.randbits(62) + 1
        await self._keys.grant(lease, seconds(ttl_ms))
        moved = await self._keys.attach(lock, hold, old, lease)
        await self._leave(old if moved else lease)
        return moved

    def _leave(self, lease: int) -> "asyncio.Future[None]":
        """Revoke a lease, and with it delete its key."""
        return self._pending.give_back(self._keys.revoke(lease))
