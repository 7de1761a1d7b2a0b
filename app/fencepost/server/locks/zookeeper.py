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
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

import structlog
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create2

from fencepost.server.locks.source import (
    MOST_NATIVE,
    REQUEST_TIMEOUT,
    Capabilities,
    Grant,
    Holder,
    SourceError,
    SourceUnavailableError,
)
from fencepost.server.locks.zookeeper_session import LostAnswerError, ZooKeeperSession, ZooKeeperUrl, parse

if TYPE_CHECKING:
    from fencepost.server.locks.source import SourceContext


# The nodes of a lock in ZooKeeper: their names, their order, and what is kept of one's own.
#
#     /fencepost                                              persistent
#     /fencepost/orders%2Forder-123                           one lock: a container, which ZooKeeper removes when empty
#     /fencepost/orders%2Forder-123/<guid>__lock__0000000007  the holder or a waiter: ephemeral, sequential
#
# That is the layout of kazoo's recipes Lock, WriteLock (`__lock__`) and ReadLock (`__rlock__`), so programs that use
# these recipes on the same path take part in the same queue.

_MARK: Final = "__lock__"
_PLACE: Final = re.compile(r".*__r?lock__(-?\d{9,10})", re.DOTALL)
_ALL: Final = 2**32
_HALF: Final = 2**31


def parent_of(root: str, lock: str) -> str:
    """Name the node of a lock. Different locks have different nodes, and each is one step below the root."""
    name = quote(lock, safe="")
    return f"{root}/{name if name.strip('.') else name.replace('.', '%2E')}"


def in_order(lock: str, children: Iterable[str]) -> list[str]:
    """Sort who has the lock and who waits, first come first.

    The number at the end of a name is the parent's counter, signed and of 32 bits: after 2147483647 comes -2147483648.
    So it is compared as serial numbers are, by distance, which is right as long as the first and the last of a queue
    are less than 2^31 places apart. (kazoo's own recipe compares texts, and is wrong there.) It never is a token.

    Raises SourceError where something is among them that has no place in a queue: it could be another program's lock.
    """
    numbers: dict[str, int] = {}
    for child in children:
        if (found := _PLACE.fullmatch(child)) is None:
            raise SourceError(
                f"the node of lock {lock!r} in ZooKeeper has a child {child!r} that is no place in a queue: "
                "if another program locks there, give Fencepost a chroot of its own, otherwise delete it"
            )
        numbers[child] = int(found[1])
    if not numbers:
        return []
    some = next(iter(numbers.values()))
    return sorted(numbers, key=lambda child: (numbers[child] - some + _HALF) % _ALL)


@dataclass(frozen=True, slots=True)
class QueueNode:
    """An owner's node. `czxid`: the transaction that created it. `session`: the session that it lives by."""

    node: str
    czxid: int
    session: int
    owner: str

    @property
    def guid(self) -> str:
        return self.node.partition(_MARK)[0]

    @property
    def handle(self) -> str:
        """All that another process needs."""
        return json.dumps({**asdict(self), "session": f"{self.session % 2**64:x}"})

    @classmethod
    def from_handle(cls, lock: str, handle: str) -> "QueueNode":
        """Read a handle. Raises SourceError."""
        try:
            fields = json.loads(handle)
            session = int(fields["session"], 16)
            place = cls(fields["node"], int(fields["czxid"]), session - (session >> 63) * 2**64, fields["owner"])
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"the stored handle of lock {lock!r} was not made by a ZooKeeper source") from error
        if "/" in place.node or _PLACE.fullmatch(place.node) is None:
            raise SourceError(f"the stored handle of lock {lock!r} names no node of a queue")
        return place


def token(lock: str, zxid: int) -> int:
    """Take a transaction's number as a token. Its upper half is the epoch, which rises with each election."""
    if zxid > MOST_NATIVE:
        raise SourceError(
            f"ZooKeeper's transaction number {zxid:#x} is too large for a token of lock {lock!r}: its epoch is above "
            "65535; move the locks to a new ensemble and raise the source's generation"
        )
    return zxid


# Takes nodes of ours out of a queue, however long that takes.
#
# The session of a gateway lives on, so a node that is not deleted would block its lock for ever: one whose create was
# cancelled or given up, or whose delete could not be sent. The node is looked for by the guid in its name. That finds
# it also where its create is still under way: on one connection ZooKeeper answers in order, and after a reconnection
# no request of the old one is accepted any more. Before the look, `sync` lets the server catch up with what was
# accepted.

log = structlog.stdlib.get_logger("fencepost.locks")


class Sweeper:
    """The removals that are under way."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(self, lock: str, parent: str, guid: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._until_swept(lock, parent, guid))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def sweep(self, lock: str, parent: str, guid: str) -> None:
        """Remove it, and wait for that for at most REQUEST_TIMEOUT. Being cancelled does not end the removal."""
        await asyncio.wait([self.begin(lock, parent, guid)], timeout=REQUEST_TIMEOUT)

    async def close(self) -> None:
        """Give up. The session ends next, and with it all that could be left."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _until_swept(self, lock: str, parent: str, guid: str) -> None:
        while not self._closed:
            try:
                await self._once(lock, parent, guid)
            except SourceUnavailableError:  # after REQUEST_TIMEOUT, so this does not spin
                continue
            except SourceError as error:
                log.warning("zookeeper_node_left", lock=lock, parent=parent, guid=guid, error=str(error))
            return

    async def _once(self, lock: str, parent: str, guid: str) -> None:
        await self._session.ask(lock, lambda client: client.sync_async(parent))
        try:
            children = await self._session.ask(lock, lambda client: client.get_children_async(parent))
        except NoNodeError:
            return
        for path in (f"{parent}/{child}" for child in children if child.startswith(guid)):
            await self.delete(lock, path)

    async def delete(self, lock: str, path: str) -> None:
        """Delete a node, if it is there. Its name has a guid, so nothing else ever has this path."""
        try:
            await self._session.ask(lock, lambda client: client.delete_async(path))
        except NoNodeError:
            return


# What `fencepost doctor` looks at: each server's own word, by its commands of four letters, and the permissions.

_ANYBODY: Final = ("world", "anyone")
_LATE_EPOCH: Final = 60_000
_MOST_EPOCH: Final = 65_535


async def advice(settings: ZooKeeperUrl, session: ZooKeeperSession) -> list[str]:
    """List what is unsafe, one sentence each. Raises SourceError where the ensemble cannot be asked."""
    found = await _permissions(settings, session)
    answer = await asyncio.gather(*(_server(host, port) for host, port in settings.hosts))
    for (host, port), text in zip(settings.hosts, answer, strict=True):
        found += [f"ZooKeeper at {host}:{port} {what}." for what in _judge_server(text)]
    conf = await asyncio.gather(*(_server(host, port, b"conf") for host, port in settings.hosts))
    for (host, port), text in zip(settings.hosts, conf, strict=True):
        found += [f"ZooKeeper at {host}:{port} {what}." for what in _limits(text or "", settings.session_timeout_s)]
    return found


async def _permissions(settings: ZooKeeperUrl, session: ZooKeeperSession) -> list[str]:
    try:
        acls, _ = await session.ask("*", lambda client: client.get_acls_async(settings.root))
    except NoNodeError:
        return []
    if any((acl.id.scheme, acl.id.id) == _ANYBODY and acl.perms & ~1 for acl in acls):
        return [
            f"Any client that reaches ZooKeeper can delete or change what is under {settings.root}, and so end a hold: "
            "put user:password@ into the URL, which makes new nodes its own."
        ]
    return []


async def _server(host: str, port: int, command: bytes = b"srvr") -> str | None:
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(command)
                return (await reader.read()).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None


def _judge_server(answer: str | None) -> list[str]:
    if answer is None:
        return ["does not answer: with a majority of servers down nothing can be acquired"]
    if "not currently serving" in answer:
        return ["is up and does not serve: it sees no majority"]
    found = []
    if "Mode: standalone" in answer:
        found.append("is a single server: when its disk is lost, numbers start over; run three")
    if (zxid := re.search(r"^Zxid: 0x([0-9a-f]+)", answer, re.MULTILINE)) and (int(zxid[1], 16) >> 32) > _LATE_EPOCH:
        epoch = int(zxid[1], 16) >> 32
        found.append(f"is in epoch {epoch}, and tokens end with epoch {_MOST_EPOCH}: plan to move to a new ensemble")
    return found


def _limits(conf: str, session_timeout_s: float) -> list[str]:
    """Judge the answer to `conf`, which servers only give where 4lw.commands.whitelist has it."""
    limits = {key: int(ms) / 1000 for key, ms in re.findall(r"^(m(?:in|ax)SessionTimeout)=(\d+)", conf, re.MULTILINE)}
    least, most = limits.get("minSessionTimeout", 0.0), limits.get("maxSessionTimeout", float("inf"))
    if not least <= session_timeout_s <= most:
        return [
            f"changes session_timeout_s={session_timeout_s:g} to {least if session_timeout_s < least else most:g} s"
        ]
    return []


def from_url(url: str, context: "SourceContext") -> "ZooKeeperSource":
    """Make a source from zookeeper://h1:2181,h2:2181/chroot. Raises SourceConfigError."""
    return ZooKeeperSource(parse(url, context.name))


class ZooKeeperSource:
    """Locks of one ensemble, through one session."""

    capabilities = Capabilities(order="source", fair=True, verifies=True, ttl_from_server=False)

    def __init__(self, settings: ZooKeeperUrl) -> None:
        self._settings = settings
        self._session = ZooKeeperSession(settings)
        self._sweeper = Sweeper(self._session)

    async def open(self) -> None:
        await self._session.open()

    async def close(self) -> None:
        await self._sweeper.close()
        await self._session.close()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:  # noqa: ARG002 - sessions only
        """Queue for a lock, anew where the place got lost: by the end of the session, or by an operator."""
        now = asyncio.get_running_loop().time
        deadline = now() + wait_s
        patience = max(deadline, now() + REQUEST_TIMEOUT)
        parent = self._parent(lock)
        while True:
            guid = uuid4().hex  # the node is found again by it where the answer to its create got lost
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
        return await advice(self._settings, self._session)

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
            path = f"{parent}/{guid}{_MARK}"
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
