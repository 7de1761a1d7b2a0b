"""ZooKeeper: a row is a znode; a conditional setData takes the new value only over the version that the writer expects.

ZooKeeper compares versions and nothing else, so a writer that does not know the version reads it first. Here each
knows it: no other client writes its rows. There is no load tool in ZooKeeper's packages (its BenchMain measures data
structures inside one JVM).
"""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError

from benchmarks.cells import Cell
from benchmarks.database import Marks
from benchmarks.load import HOST, Result
from benchmarks.peers import Write, peer
from benchmarks.processes import BenchmarkError, running
from benchmarks.walk import FIRST_KEY, MARK_AT_FIRST
from fencepost.testing.servers.processes import free_port

_JAR: Final = Path("/usr/share/java/zookeeper.jar")
_TOKEN_DIGITS: Final = 19
_WITHIN: Final = 30.0  # seconds
_POLL: Final = 0.05  # seconds
_CONFIGURATION: Final = """
dataDir={data}
clientPort={port}
clientPortAddress={host}
tickTime=2000
admin.enableServer=false
4lw.commands.whitelist=srvr
forceSync=yes
"""


def _paths() -> list[str]:
    needs = peer("zookeeper")
    rows = needs.rows if needs is not None else 0
    return [f"/order-{key}" for key in range(FIRST_KEY, FIRST_KEY + rows)]


@contextmanager
def serving(directory: Path) -> Iterator[int]:
    """Run one server on the rows of every cell before."""
    data = directory / "zookeeper"
    new = not data.exists()
    data.mkdir(exist_ok=True)
    port = free_port()
    configuration = directory / "zoo.cfg"
    configuration.write_text(_CONFIGURATION.format(data=data, port=port, host=HOST))
    command = [
        *("java", "-Xmx512m", "-cp", str(_JAR)),
        *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)),
    ]
    with running(command, directory / "zookeeper.log", ""):  # it prints nothing when it is ready
        _wait(port)
        if new:
            with _client(port) as client:
                value = f"{MARK_AT_FIRST:0{_TOKEN_DIGITS}} new".encode()
                _all([client.create_async(path, value) for path in _paths()])
        yield port


def _wait(port: int) -> None:
    deadline = time.monotonic() + _WITHIN
    while not _serves(port):
        if time.monotonic() > deadline:
            raise BenchmarkError("ZooKeeper does not serve")
        time.sleep(_POLL)


def _serves(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1) as asked:
        asked.sendall(b"srvr")
        return b"Mode: standalone" in asked.recv(4096)
    return False


@contextmanager
def _client(port: int) -> Iterator[Any]:
    """Connect; kazoo has no types."""
    client = KazooClient(hosts=f"{HOST}:{port}")
    client.start(timeout=_WITHIN)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def _all(asked: Sequence[Any]) -> list[Any]:
    """Wait for answers that were asked for in one go."""
    return [one.get(timeout=_WITHIN) for one in asked]


@asynccontextmanager
async def open_writers(port: int, count: int) -> AsyncIterator[Sequence[Write]]:
    """Start one kazoo client, which has one connection for everybody, and learn all versions."""
    with _client(port) as client:
        paths = _paths()
        found = await asyncio.to_thread(_all, [client.exists_async(path) for path in paths])
        versions = {path: stat.version for path, stat in zip(paths, found, strict=True)}
        yield [_writer(client, versions)] * count


def _writer(client: Any, versions: dict[str, int]) -> Write:
    loop = asyncio.get_running_loop()

    async def write(key: int, token: int) -> bool:
        path, answer = f"/order-{key}", loop.create_future()
        asked = client.set_async(path, f"{token:0{_TOKEN_DIGITS}} paid".encode(), version=versions[path])
        # Called in a thread of kazoo's.
        asked.rawlink(lambda done: loop.call_soon_threadsafe(answer.set_result, done))
        done = await answer
        if isinstance(done.exception, BadVersionError):
            return False
        versions[path] = done.get().version
        return True

    return write


def marks_above(port: int, token: int) -> Marks:
    """Look at all rows."""
    with _client(port) as client:
        found = _all([client.get_async(path) for path in _paths()])
    above = [int(value[:_TOKEN_DIGITS]) - token for value, _ in found]
    return Marks(sum(one > 0 for one in above), sum(one for one in above if one > 0))


def version() -> str:
    """Read it off the names in the package."""
    found = [re.fullmatch(r"zookeeper-([\d.]+)\.jar", file.name) for file in _JAR.parent.glob("zookeeper-*.jar")]
    return f"ZooKeeper {next((one[1] for one in found if one is not None), '?')}"


def own_tool(cell: Cell, port: int, seconds: float, first_token: int) -> tuple[Result, list[str]]:  # noqa: ARG001
    """Return that there is none."""
    raise BenchmarkError("ZooKeeper has no load tool of its own")
