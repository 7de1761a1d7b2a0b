"""Locks of ZooKeeper: the recipe of ephemeral sequential nodes, where each waiter watches the one before it.

1. To take a lock, make a node in its queue. Then look: the first has the lock, and each other one waits until
   the node before its own is deleted. The look needs no `sync`: the answer to the create shows that this server has all
   that came before.
2. Tokens are transaction numbers (zxids). They rise over all locks, and through elections of a leader. A waiter's node
   was created before the owner's later mints, so the number of its creation is no token: the first act of an owner is
   a mint.
3. A mint is a setData on the owner's node, and the token is that transaction's number. The leader decides in one step
   whether the node is there, and it is there exactly as long as the session that made it lives and nobody has deleted
   it. The answer names who made the node (czxid, ephemeralOwner), and only one's own counts. Every process can do it.
4. The setData carries no version. The guid in a node's name makes that its path never means another node, and a version
   would have to be read before, from a server that may be behind and answer that the node is not there.
5. A hold lives as long as the session of the process that acquired it. The servers end that session when the process is
   dead, or paused for longer than session_timeout_s.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create2

from fencepost.server.locks.source import REQUEST_TIMEOUT, Capabilities, Grant, Holder, SourceUnavailableError
from fencepost.server.locks.zookeeper import advice as zookeeper_advice
from fencepost.server.locks.zookeeper.nodes import QueueNode, in_order, new_guid, parent_of, prefix_of, token
from fencepost.server.locks.zookeeper.session import LostAnswerError, ZooKeeperSession
from fencepost.server.locks.zookeeper.sweep import Sweeper
from fencepost.server.locks.zookeeper.url import ZooKeeperUrl, parse

if TYPE_CHECKING:
    from fencepost.server.locks.registry import SourceContext

_CAPABILITIES: Final = Capabilities(order="source", fair=True, verifies=True, ttl_from_server=False)


def from_url(url: str, context: "SourceContext") -> "ZooKeeperSource":
    """Make a source from zookeeper://h1:2181,h2:2181/chroot. Raises SourceConfigError."""
    return ZooKeeperSource(parse(url, context.name))


class ZooKeeperSource:
    """Locks of one ensemble, through one session."""

    def __init__(self, settings: ZooKeeperUrl) -> None:
        self._settings = settings
        self._session = ZooKeeperSession(settings)
        self._sweeper = Sweeper(self._session)

    @property
    def capabilities(self) -> Capabilities:
        """Numbers over all locks, served in order; a hold lives by the acquiring process's session."""
        return _CAPABILITIES

    async def open(self) -> None:
        await self._session.open()

    async def close(self) -> None:
        """End the session, and with it the holds of this process."""
        await self._sweeper.close()
        await self._session.close()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:  # noqa: ARG002 - sessions only
        """Queue for a lock, anew where the place got lost: by the end of the session, or by an operator."""
        now = asyncio.get_running_loop().time
        deadline = now() + wait_s
        patience = max(deadline, now() + REQUEST_TIMEOUT)
        parent = self._parent(lock)
        while True:
            guid = new_guid()
            try:
                outcome = await self._stand_in_line(lock, guid, owner, tokens, deadline)
            except SourceUnavailableError:
                self._sweeper.begin(lock, parent, guid)
                raise
            except BaseException:
                await self._sweeper.sweep(lock, parent, guid)
                raise
            if isinstance(outcome, Grant):
                return outcome
            await self._sweeper.sweep(lock, parent, guid)
            if isinstance(outcome, Holder):
                return outcome
            if now() > patience:
                raise SourceUnavailableError(
                    f"the place in the queue of lock {lock!r} got lost, with the session or by an operator's hand; "
                    "try again"
                )

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:  # noqa: ARG002 - sessions only
        """Return whether the hold is there. A read could be stale, so this is a mint whose token is not used."""
        return await self._draw(lock, QueueNode.from_handle(lock, handle), 1) is not None

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        """Draw tokens by writing on the owner's node."""
        return await self._draw(lock, QueueNode.from_handle(lock, handle), count)

    async def release(self, lock: str, handle: str) -> None:
        """Delete the owner's node. Where no server can be reached for that, this process tries on: no other does."""
        place = QueueNode.from_handle(lock, handle)
        parent = self._parent(lock)
        try:
            await self._sweeper.delete(lock, f"{parent}/{place.node}")
        except (SourceUnavailableError, asyncio.CancelledError):
            self._sweeper.begin(lock, parent, place.guid)
            raise

    async def inspect(self, lock: str) -> Holder | None:
        """Return who is first in the queue."""
        parent = self._parent(lock)
        await self._session.ask(lock, lambda client: client.sync_async(parent))
        while queue := await self._queue(lock):
            if (holder := await self._read_owner(lock, queue[0])) is not None:
                return holder
        return None

    async def issued(self, number: int) -> bool:
        """Whether ZooKeeper has come as far as this number. What it skips at elections, or counts for other programs,
        is issued too.
        """
        if number <= self._session.newest:
            return True
        root = self._settings.root
        await self._session.ask("*", lambda client: client.sync_async(root))
        if number <= self._session.newest:
            return True
        # A leader that is deposed and does not know it yet answers a sync, but no write: only after a write it is a no.
        try:
            stat = await self._session.ask("*", lambda client: client.set_async(root, b""))
        except NoNodeError:
            await self._make_root("*")
            stat = await self._session.ask("*", lambda client: client.set_async(root, b""))
        return bool(number <= stat.mzxid)

    async def advice(self) -> list[str]:
        """Look at the servers, one by one, and at who may delete nodes."""
        return await zookeeper_advice.advice(self._settings, self._session)

    def _parent(self, lock: str) -> str:
        return parent_of(self._settings.root, lock)

    async def _stand_in_line(
        self, lock: str, guid: str, owner: str, tokens: int, deadline: float
    ) -> Grant | Holder | None:
        """Take a place, and wait until it is first. None: it got lost."""
        place = await self._join(lock, guid, owner)
        while place is not None:
            queue = await self._queue(lock)
            if place.node not in queue:
                break
            if queue[0] == place.node:
                drawn = await self._draw(lock, place, tokens)
                return None if drawn is None else Grant(place.handle, drawn)
            ahead = queue[queue.index(place.node) - 1]
            if not await self._gone(lock, ahead, deadline):
                return await self._read_owner(lock, queue[0]) or Holder()
        return None

    async def _join(self, lock: str, guid: str, owner: str) -> QueueNode | None:
        """Make a node at the end of the queue. None: it may have been made, or its parent has just gone."""
        parent = self._parent(lock)

        def create(client: Any) -> Any:
            path = f"{parent}/{prefix_of(guid)}"
            return client.create_async(
                path, owner.encode(), self._session.acl, ephemeral=True, sequence=True, include_data=True
            )

        try:
            try:
                path, stat = await self._session.ask(lock, create, again=False)
            except NoNodeError:
                await self._make_parent(lock)
                path, stat = await self._session.ask(lock, create, again=False)
        except (LostAnswerError, NoNodeError):
            return None
        return QueueNode(path.rpartition("/")[2], stat.czxid, stat.ephemeralOwner, owner)

    async def _make_parent(self, lock: str) -> None:
        parent, acl = self._parent(lock), self._session.acl

        def create_container(client: Any) -> Any:
            asked = client.handler.async_result()
            client._call(_CreateContainer(parent, b"", acl, _CONTAINER), asked)  # noqa: SLF001 - kazoo has no containers
            return asked

        try:
            try:
                await self._session.ask(lock, create_container)
            except NoNodeError:
                await self._make_root(lock)
                await self._session.ask(lock, create_container)
        except NodeExistsError:
            return

    async def _make_root(self, lock: str) -> None:
        await self._session.ask(lock, lambda client: client.ensure_path_async(self._settings.root, self._session.acl))

    async def _queue(self, lock: str) -> list[str]:
        parent = self._parent(lock)
        try:
            return in_order(lock, await self._session.ask(lock, lambda client: client.get_children_async(parent)))
        except NoNodeError:
            return []

    async def _gone(self, lock: str, node: str, deadline: float) -> bool:
        """Wait for the end of a node, or for anything that makes it worth to look again. False: the time is over."""
        if asyncio.get_running_loop().time() >= deadline:
            return False
        path = f"{self._parent(lock)}/{node}"
        with self._session.woken(path) as woken:
            try:
                # On its children, of which it has none: such a watch fires when the node goes, and not at each mint.
                await self._session.ask(lock, lambda client: client.get_children_async(path, self._session.on_watch))
            except NoNodeError:
                return True
            try:
                async with asyncio.timeout_at(deadline):
                    await woken.wait()
            except TimeoutError:
                return False
        return True

    async def _read_owner(self, lock: str, node: str) -> Holder | None:
        path = f"{self._parent(lock)}/{node}"
        try:
            data, _ = await self._session.ask(lock, lambda client: client.get_async(path))
        except NoNodeError:
            return None
        return Holder(data.decode(errors="replace") or None)

    async def _draw(self, lock: str, place: QueueNode, count: int) -> tuple[int, ...] | None:
        """Write on the owner's node `count` times, all sent at once. Not in one transaction: that has one number."""
        path, data = f"{self._parent(lock)}/{place.node}", place.owner.encode()
        try:
            stats = await asyncio.gather(
                *(self._session.ask(lock, lambda client: client.set_async(path, data)) for _ in range(count))
            )
        except NoNodeError:
            return None
        if any((stat.czxid, stat.ephemeralOwner) != (place.czxid, place.session) for stat in stats):
            return None
        # Sorted: one whose answer got lost was drawn again, after others.
        return tuple(sorted(token(lock, stat.mzxid) for stat in stats))


_CONTAINER: Final = 4
"""The flag of ZooKeeper's CreateMode.CONTAINER."""


class _CreateContainer(Create2):  # type: ignore[misc]  # kazoo has no types
    """The request that makes a container node, which the server removes once its last child has gone."""

    type = 19
