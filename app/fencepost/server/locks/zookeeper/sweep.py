"""Takes nodes of ours out of a queue, however long that takes.

The session of a gateway lives on, so a node that is not deleted would block its lock for ever: one whose create was
cancelled or given up, or whose delete could not be sent. The node is looked for by the guid in its name. That finds it
also where its create is still under way: on one connection ZooKeeper answers in order, and after a reconnection no
request of the old one is accepted any more. Before the look, `sync` lets the server catch up with what was accepted.
"""

import asyncio

import structlog
from kazoo.exceptions import NoNodeError

from fencepost.server.locks.source import REQUEST_TIMEOUT, SourceError, SourceUnavailableError
from fencepost.server.locks.zookeeper.session import ZooKeeperSession

log = structlog.stdlib.get_logger("fencepost.locks")


class Sweeper:
    """The removals that are under way."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def begin(self, lock: str, parent: str, guid: str) -> asyncio.Task[None]:
        """Remove what this guid has made, in the background, until it is done."""
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
