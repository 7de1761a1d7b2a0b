"""Locks that are Leases of Kubernetes (coordination.k8s.io/v1), as client-go's leader election keeps them.

Terms. A Lease names its holder; it is free when the name is empty, or when there is no such Lease. Every change is an
update with the precondition that the Lease is still the one that was read (locks/kubernetes_api.py): of two who are at
it at once, one is answered 409, and looks again.

Numbers. A token is the resourceVersion that such an update draws: etcd's revision, one counter for all of the cluster,
so tokens are ordered over all locks, and a Lease that is deleted and created again goes on above. `leaseTransitions`
would start again there, and stays put when one identity takes an expired Lease twice. Taking is an update itself, after
the last one of the holder before. A mint is one more update while we are the holder: check and draw are one step.

Time. No clock of another machine is read. A client that wants a held Lease takes it once it has itself seen it
unchanged for leaseDurationSeconds, by his own monotonic clock; a renewal and a mint change it. What was seen is kept
per lock, so that those who do not wait but ask now and then get there too.

What can fail. An identity is new for every acquisition, so that a Lease shows by itself whether an update whose answer
was lost has landed. A cancelled acquire lets its update come to an end, and gives back what it has got. An update that
is still on its way when we give up may land later: that hold expires, since it is not renewed.
"""

import asyncio
import re
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fencepost.server.locks import kubernetes_api
from fencepost.server.locks.kubernetes_api import LOCK_ANNOTATION, VERBS, KubernetesApi, LeaseObject, Names, parse
from fencepost.server.locks.leases import ServiceReleases
from fencepost.server.locks.source import MOST_NATIVE, Capabilities, Grant, Holder, SourceError, SourceUnavailableError

if TYPE_CHECKING:
    from fencepost.server.locks.source import SourceContext

TRIES: Final = 50
"""How often an update is tried that another client gets ahead of."""
REMEMBERED: Final = 10_000
"""Of how many locks a process remembers what it saw. Who is forgotten waits longer for an expired Lease."""
COMPARABLE_SINCE: Final = (1, 35)
"""The Kubernetes that promises that resourceVersions can be compared (KEP-5504). Older ones do it too, on etcd."""


@dataclass(frozen=True, slots=True)
class _Observed:
    """A Lease, and since when this process has seen it unchanged (the loop's time)."""

    lease: LeaseObject
    since: float


class KubernetesLeases:
    """Acquires, renews, mints, releases; each by an update of a Lease."""

    capabilities: Final = Capabilities(order="source", fair=False, verifies=True, least_ttl_ms=1000)

    def __init__(self, api: KubernetesApi, names: Names) -> None:
        self._api, self._names = api, names
        self._seen: OrderedDict[str, _Observed] = OrderedDict()
        self._pending = ServiceReleases()

    async def open(self) -> None:
        """Do nothing: credentials are read with the first request, and again when they are refused."""

    async def close(self) -> None:
        await self._pending.drain()
        await self._api.close()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        identity = f"{owner}_{uuid.uuid4().hex}"
        lost = 0
        while lost < TRIES:
            lease = await self._look(lock)
            unexpired = self._left(lock, lease)
            if lease is None or unexpired <= 0:
                grant = await self._grant(lock, lease, identity, ttl_ms, tokens)
                if grant is not None:
                    return grant
                lost += 1
                continue
            left = deadline - loop.time()
            if left <= 0:
                return Holder(lease.owner, round(unexpired * 1000) or None)
            await self._api.wait_for_change(lease, min(left, unexpired))
            lost = 0
        raise self._overtaken_error(lock)

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        return await self._update(lock, handle, lambda lease: lease.renewed(ttl_ms)) is not None

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        """Draw numbers, one update each; see Source."""
        drawn: list[int] = []
        for _ in range(count):
            lease = await self._update(lock, handle, LeaseObject.renewed)
            if lease is None:
                return None
            drawn.append(lease.number)
        return tuple(drawn)

    async def release(self, lock: str, handle: str) -> None:
        await self._update(lock, handle, LeaseObject.released)

    async def inspect(self, lock: str) -> Holder | None:
        """Return who has a lock; the time is how long it lives at most unless it is renewed. See Source."""
        lease = await self._look(lock)
        if lease is None or not lease.holder:
            return None
        return Holder(lease.owner, max(0, round(self._left(lock, lease) * 1000)) or None)

    async def issued(self, number: int) -> bool:
        """Whether the cluster's counter has come to this number; see Source."""
        return await self._api.counter() >= number

    async def advice(self) -> list[str]:
        return [*await self._advice_of_version(), *await self._advice_of_permissions()]

    async def _grant(
        self, lock: str, lease: LeaseObject | None, identity: str, ttl_ms: int, tokens: int
    ) -> Grant | None:
        """Take a Lease that is free and draw tokens. None: another client was faster. Gives back what it leaves half
        done.
        """
        take = self._pending.begin(self._take(lock, lease, identity, ttl_ms))
        try:
            taken = await asyncio.shield(take)
            if taken is None:
                return None
            more = await self.mint(lock, identity, tokens - 1)
            return None if more is None else Grant(identity, (taken.number, *more))
        except BaseException:
            await self._pending.give_back(self._release_if_taken(lock, identity, take))
            raise

    async def _take(self, lock: str, lease: LeaseObject | None, identity: str, ttl_ms: int) -> LeaseObject | None:
        """Write ourselves into a Lease that is free. None: another client was faster.

        A lost answer, and a refusal too (something between us and the API server may send a request twice), leave it
        open whether the update has landed. Only we write this identity: the Lease itself shows it.
        """
        lost: SourceUnavailableError | None = None
        try:
            if lease is None:
                new = kubernetes_api.new_lease(self._name(lock), lock, identity, ttl_ms)
                taken = await self._api.create(new)
            else:
                taken = await self._api.update(lease.taken(identity, ttl_ms))
        except SourceUnavailableError as error:
            lost, taken = error, None
        if taken is not None:
            return self._remember(lock, taken)
        found = await self._look(lock)
        if found is not None and found.holder == identity:
            return found
        if lost is not None:
            raise lost
        return None

    async def _release_if_taken(self, lock: str, identity: str, take: asyncio.Task[LeaseObject | None]) -> None:
        """Release what will never be renewed, once it is known whether we have got it."""
        await asyncio.wait([take])
        if take.cancelled() or take.exception() is not None or take.result() is None:
            return  # not ours; or unknown, and then it expires
        await self.release(lock, identity)

    async def _update(
        self, lock: str, identity: str, change: Callable[[LeaseObject], dict[str, Any]]
    ) -> LeaseObject | None:
        """Update the Lease that `identity` holds. None: it does not.

        What was seen last saves the look: the update is refused if it is no longer true.
        """
        seen = self._seen.get(lock)
        lease = seen.lease if seen and seen.lease.holder == identity else await self._look(lock)
        for _ in range(TRIES):
            if lease is None or lease.holder != identity:
                return None
            updated = await self._api.update(change(lease))
            if updated is not None:
                return self._remember(lock, updated)
            lease = await self._look(lock)
        raise self._overtaken_error(lock)

    def _overtaken_error(self, lock: str) -> SourceUnavailableError:
        where = self._api.where(self._name(lock))
        return SourceUnavailableError(f"lock {lock}: others were faster to write {where} {TRIES} times: try again")

    async def _look(self, lock: str) -> LeaseObject | None:
        """Read the lock's Lease as it is now. None: there is none. Raises SourceError where it is another's."""
        name = self._name(lock)
        lease = await self._api.get(name)
        if lease is None:
            self._seen.pop(lock, None)
            return None
        if lease.lock_annotation != lock and not (lease.lock_annotation is None and name == lock):
            whose = (
                f"of lock {lease.lock_annotation}"
                if lease.lock_annotation
                else f"without the annotation {LOCK_ANNOTATION}"
            )
            raise SourceError(
                f"lock {lock}: {self._api.where(name)}, where its state belongs, is one {whose}: "
                "rename or delete that one"
            )
        return self._remember(lock, lease)

    def _remember(self, lock: str, lease: LeaseObject) -> LeaseObject:
        before = self._seen.get(lock)
        if before is None or before.lease.version != lease.version:
            self._seen[lock] = _Observed(lease, asyncio.get_running_loop().time())
        self._seen.move_to_end(lock)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return lease

    def _left(self, lock: str, lease: LeaseObject | None) -> float:
        """Return the seconds for which this Lease has yet to be seen unchanged before it may be taken."""
        if lease is None or not lease.holder:
            return 0.0
        seen = self._seen.get(lock)
        if seen is None or seen.lease.version != lease.version:
            return float(lease.seconds)
        return seen.since + lease.seconds - asyncio.get_running_loop().time()

    def _name(self, lock: str) -> str:
        own = kubernetes_api.own_name(lock) if self._names == "own" else None
        return own or kubernetes_api.hashed_name(lock)

    async def _advice_of_version(self) -> list[str]:
        found = await self._api.version()
        count = await self._api.counter()
        advice = []
        version = tuple(int(re.sub(r"\D.*", "", str(found.get(part, "0"))) or 0) for part in ("major", "minor"))
        if version < COMPARABLE_SINCE:
            advice.append(
                f"Kubernetes {found.get('gitVersion')} does not promise that resourceVersions can be compared, as 1.35 "
                "does: see that the cluster's storage is etcd, whose revisions can"
            )
        if count > MOST_NATIVE // 2:
            advice.append(
                f"the cluster's resourceVersion is {count}, more than half of what a token has room for: "
                "plan another source"
            )
        return advice

    async def _advice_of_permissions(self) -> list[str]:
        missing = []
        for verb in VERBS:
            resource = {"group": "coordination.k8s.io", "resource": "leases", "verb": verb}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"namespace": self._api.namespace, **resource}},
            }
            access = await self._api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            if not access["status"]["allowed"]:
                missing.append(verb)
        if not missing:
            return []
        return [
            f"{', '.join(missing)} on leases.coordination.k8s.io in namespace {self._api.namespace} is not allowed: "
            "see deploy/kubernetes/rbac.yaml"
        ]


def from_url(url: str, context: "SourceContext") -> KubernetesLeases:
    """Make the source of kubernetes://in-cluster/NAMESPACE or kubernetes://kubeconfig/NAMESPACE?file=…&context=….

    Raises SourceConfigError.
    """
    options = parse(url, context.name)
    return KubernetesLeases(KubernetesApi(options.access, options.namespace), options.names)
