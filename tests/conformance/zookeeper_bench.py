"""ZooKeeper for the conformance suite: one server, with ticks so short that sessions end within two seconds."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.retry import KazooRetry

from fencepost.server.locks.zookeeper import parent_of
from fencepost.testing.servers.processes import free_port
from fencepost.testing.servers.server import Server

JAR = Path("/usr/share/java/zookeeper.jar")
SESSION_S = 2
_CONFIGURATION = """
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=200
maxSessionTimeout=60000
admin.enableServer=false
4lw.commands.whitelist=*
{more}
"""


def admin(port: int, command: str) -> str:
    """Ask a server with one of its commands of four letters; nothing where it does not answer."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as asked:
        asked.sendall(command.encode())
        return b"".join(iter(lambda: asked.recv(65536), b"")).decode()
    return ""


def server(directory: Path, port: int, more: str = "", jvm: tuple[str, ...] = ()) -> Server:
    """Set up a server, not started yet. `more`: lines of its configuration."""
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    configuration = directory / "zoo.cfg"
    configuration.write_text(_CONFIGURATION.format(data=data, port=port, more=more))
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = ["java", "-Xmx128m", *jvm, "-cp", str(JAR), main, str(configuration)]
    return Server(command, directory / "zookeeper.log", lambda: "Mode: " in admin(port, "srvr"))


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
        self.url = f"zookeeper://127.0.0.1:{self.port}?session_timeout_s={SESSION_S}"
        self.server = server(directory, self.port)

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


def needs_zookeeper() -> None:
    """Skip where it is not installed."""
    if not JAR.exists():
        pytest.skip(f"no {JAR}: apt-get install libzookeeper-java")


@contextmanager
def running(directory: Path) -> Iterator[ZooKeeperBench]:
    """Run a server of our own."""
    needs_zookeeper()
    bench = ZooKeeperBench(directory)
    bench.server.start()
    try:
        bench.server.wait()
        yield bench
    finally:
        bench.server.stop()
