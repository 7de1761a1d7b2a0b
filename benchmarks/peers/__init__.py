"""What Fencepost is compared with, apart from PostgreSQL itself: what each needs, and how durable its writes are.

Every peer does the same fenced write: one atomic step that takes the new value only if the token is above the stored
one. One that keeps no rows of PostgreSQL's is a module with the functions of `Store`, imported when it is used.
"""

import importlib
import importlib.util
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

from benchmarks.cells import Cell, Driver
from benchmarks.compiled import BUILD
from benchmarks.database import Marks
from benchmarks.load import Result
from benchmarks.walk import ROWS

Write = Callable[[int, int], Awaitable[bool]]
"""Write the row of this key with this token; True: it was accepted."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What must be there, how to get it, and its durability."""

    programs: tuple[str, ...]
    files: tuple[str, ...]
    modules: tuple[str, ...]
    enable: str
    durability: str
    store: str = ""
    """The module of its `Store`."""
    rows: int = ROWS
    own_tool: bool = False
    """Whether the load is that of the system's own tool, and not of Python clients."""
    go_module: str = ""
    """What `setup` built a program from; its version is pinned in a go.mod beside this file."""


class Store(Protocol):
    """A module of a system that has keys of its own. `serving` gives the port."""

    def serving(self, directory: Path) -> AbstractContextManager[int]:
        """Run the server; its data stays in the directory from cell to cell."""

    def open_writers(self, port: int, count: int) -> AbstractAsyncContextManager[Sequence[Write]]:
        """Connect the usual Python client, so many times."""

    def marks_above(self, port: int, token: int) -> Marks:
        """Look at the keys whose stored token is above this one."""

    def version(self) -> str:
        """Name the server's version."""

    def own_tool(self, cell: Cell, port: int, seconds: float, first_token: int) -> tuple[Result, list[str]]:
        """Let the system's own tool put the load on; return also what was not as it must be."""


_DEBIAN: Final = "benchmarks/setup as root, or apt-get install"
_COMMIT: Final = "PostgreSQL's: the commit's WAL is flushed before the answer"
_AOF: Final = (
    "appendonly yes, appendfsync always: fsync before the answer, one for all commands of an event loop's turn"
)
_RAFT: Final = "one node; the write-ahead log is fsynced before the answer, one fsync for a batch of proposals"
_PEERS: Final[dict[Driver, Peer]] = {
    "usual handler": Peer((), (), (), "", _COMMIT),
    "prest": Peer(
        (str(BUILD / "prestd"),),
        (),
        (),
        "benchmarks/setup, which builds it with Go (1.21 or newer)",
        _COMMIT,
        go_module="github.com/prest/prest",
    ),
    "redis": Peer(("redis-server",), (), ("redis",), f"{_DEBIAN} redis-server", _AOF, "redis"),
    "redis-benchmark": Peer(
        ("redis-server", "redis-benchmark"),
        (),
        ("redis",),
        f"{_DEBIAN} redis-server redis-tools",
        _AOF,
        "redis",
        own_tool=True,
    ),
    "etcd": Peer(("etcd",), (), ("httpx",), f"{_DEBIAN} etcd-server", _RAFT, "etcd"),
    "etcd-benchmark": Peer(
        ("etcd", str(BUILD / "etcd-benchmark")),
        (),
        ("httpx",),
        f"{_DEBIAN} etcd-server; the tool: benchmarks/setup, which builds it with Go (1.21 or newer)",
        _RAFT,
        "etcd",
        own_tool=True,
        go_module="go.etcd.io/etcd/v3",
    ),
    "zookeeper": Peer(
        ("java",),
        ("/usr/share/java/zookeeper.jar",),
        ("kazoo",),
        f"{_DEBIAN} libzookeeper-java default-jre-headless; pip install kazoo (`make bench` does both)",
        "one node, forceSync=yes: the transaction log is fsynced before the answer, one fsync for those that wait",
        "zookeeper",
        rows=10_000,
    ),
}


def peer(driver: Driver) -> Peer | None:
    """Return a peer; None for Fencepost and pgbench."""
    return _PEERS.get(driver)


def store(module: str) -> Store:
    """Import a peer's module, which imports its client."""
    return cast("Store", importlib.import_module(f"{__name__}.{module}"))


def missing(driver: Driver) -> str | None:
    """Return what a driver lacks on this machine and how to get it; None when it can run."""
    needs = _PEERS.get(driver)
    if needs is None:
        return None
    lacks = [program for program in needs.programs if shutil.which(program) is None]
    lacks += [file for file in needs.files if not Path(file).exists()]
    lacks += [f"Python's {module}" for module in needs.modules if importlib.util.find_spec(module) is None]
    return f"no {', '.join(Path(lack).name for lack in lacks)}: {needs.enable}" if lacks else None


def about_peers(cells: Iterable[Cell]) -> dict[str, dict[str, str]]:
    """Return for the peers in these cells which versions they have, and what they do before they answer."""
    used = {cell.driver: needs for cell in cells if (needs := _PEERS.get(cell.driver)) is not None}
    return {driver: {"version": _version(needs), "durability": needs.durability} for driver, needs in used.items()}


def _version(needs: Peer) -> str:
    versions = [store(needs.store).version()] if needs.store else []
    if needs.go_module:
        pinned = re.compile(rf"{re.escape(needs.go_module)} v\S+")
        pins = [file.read_text() for file in Path(__file__).parent.glob("*/go.mod")]
        versions += [found[0] for text in pins if (found := pinned.search(text)) is not None]
    return ", ".join(versions)
