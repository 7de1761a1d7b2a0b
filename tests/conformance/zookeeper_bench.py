"""ZooKeeper for the conformance suite: one server, with ticks so short that sessions end within two seconds."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry
from tests.support.servers import or_skipped

from fencepost.server.locks.zookeeper import parent_of
from fencepost.testing.servers.lock_services import zookeeper
from fencepost.testing.servers.processes import free_port


def admin(port: int, command: str) -> str:
    """Ask a server with one of its commands of four letters; nothing where it does not answer."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as asked:
        asked.sendall(command.encode())
        return b"".join(iter(lambda: asked.recv(65536), b"")).decode()
    return ""


@contextmanager
def client(port: int, **how: Any) -> Iterator[Any]:
    """Connect as another program would; kazoo has no types."""
    connected = KazooClient(f"127.0.0.1:{port}", connection_retry=KazooRetry(max_tries=-1, max_delay=0.5), **how)
    connected.start(timeout=30)
    try:
        yield connected
    finally:
        connected.stop()
        connected.close()


class ZooKeeperBench:
    """One standalone server."""

    name = "zookeeper"
    dsn = ""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.port = free_port()
        service = zookeeper(directory, port=self.port)
        self.url, self.server = service.url, service.server

    async def crash(self) -> None:
        await asyncio.to_thread(self.server.crash)

    async def restart(self) -> None:
        self.server.start()
        await self.server.serves()

    async def pause(self) -> None:
        self.server.pause()

    async def resume(self) -> None:
        self.server.resume()
        await self.server.serves()

    async def spoil(self, lock: str) -> None:
        def spoil() -> None:
            with client(self.port) as other:
                other.create(f"{parent_of('/fencepost', lock)}/config", b"theirs", makepath=True)

        await asyncio.to_thread(spoil)

    async def children(self, lock: str) -> list[str]:
        """Look who has the lock and who waits, in no order."""

        def look() -> list[str]:
            with client(self.port) as other, suppress(NoNodeError):
                return list(other.get_children(parent_of("/fencepost", lock)))
            return []

        return await asyncio.to_thread(look)

    async def waiting(self, lock: str) -> int:
        return max(0, len(await self.children(lock)) - 1)


@contextmanager
def running(directory: Path) -> Iterator[ZooKeeperBench]:
    """Run a server of our own."""
    with or_skipped():
        bench = ZooKeeperBench(directory)
    bench.server.start()
    try:
        bench.server.wait()
        yield bench
    finally:
        bench.server.stop()
