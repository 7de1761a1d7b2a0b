"""Faults of networks, on links: a partition, a delay, and connections that are cut at the worst moment."""

import asyncio
import math
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Final, Literal, Self, TypeVar, get_args
from urllib.parse import urlsplit

from fencepost.testing.faults.connection import (
    Connection,
    Conversation,
    Cutter,
    Direction,
    HttpConversation,
    PlainConversation,
    PostgresConversation,
    When,
)
from fencepost.testing.faults.fault import FaultError, fault
from fencepost.testing.servers.processes import PATIENCE

# A link: a TCP proxy before a server, where the harness delays, holds back or cuts what passes.
#
# Its loop runs in a thread of its own, so it works for tests with asyncio, anyio and plain threads alike, also while
# the test itself computes or waits. Its methods can be called from any thread; each returns when it has taken effect.

T = TypeVar("T")

Protocol = Literal["postgresql", "http"]
_CONVERSATIONS: Final[dict[Protocol | None, Callable[[], Conversation]]] = {
    "postgresql": PostgresConversation,
    "http": HttpConversation,
    None: PlainConversation,
}
_DEFAULT_PORTS: Final = {"http": 80, "postgresql": 5432, "redis": 6379, "etcd": 2379, "zookeeper": 2181}

_open: "weakref.WeakSet[Link]" = weakref.WeakSet()


class Link(AbstractContextManager["Link"]):
    """A road to the server at `host` and `port`, from a free port of loopback.

    `protocol`: what is spoken, for `cut(…, when="before-commit")`. `between`: the two ends by whatever objects the test
    knows them, for `partitioned(a, b)`. Use it with `with`, or call `close`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        protocol: Protocol | None = None,
        between: tuple[object, object] | None = None,
    ) -> None:
        self.host, self.between = "127.0.0.1", between
        self._target = (host, port)
        self._url = ""
        self._conversation = _CONVERSATIONS[protocol]
        self.protocol = protocol
        self.to_server, self.to_client = Direction(), Direction()
        self.cutters: list[Cutter] = []
        self._connections: set[Connection] = set()
        self._accepted: set[socket.socket] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server((self.host, 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"link to {host}:{port}", daemon=True)
        self._thread.start()
        self.call(lambda: None)
        _open.add(self)

    @classmethod
    def to(cls, url: str, *, between: tuple[object, object] | None = None) -> Self:
        """Make a link to the server of a URL; `link.url` is the same URL by way of the link."""
        parts = urlsplit(url)
        scheme = parts.scheme.partition("+")[0]
        protocol: Protocol | None = None
        if scheme in ("postgresql", "postgres"):
            protocol = "postgresql"
        elif scheme == "http":
            protocol = "http"
        port = parts.port or _DEFAULT_PORTS.get(scheme)
        if not parts.hostname or port is None:
            raise ValueError(f"a link needs a URL with host and port, not {url!r}")
        link = cls(parts.hostname, port, protocol=protocol, between=between)
        login, at, _ = parts.netloc.rpartition("@")
        link._url = parts._replace(netloc=f"{login}{at}{link.host}:{link.port}").geturl()
        return link

    @property
    def url(self) -> str:
        """The URL that `to` was given, by way of this link. ValueError when the link was made without one."""
        if not self._url:
            raise ValueError("this link was made from host and port: use link.port, or make it with Link.to(url)")
        return self._url

    def lead_to(self, host: str, port: int, *, hang_up: bool = True) -> None:
        """Lead new connections to another server, as a virtual IP that moves does, and hang up those that are open, by
        default.
        """

        def turn() -> None:
            self._target = (host, port)
            if hang_up:
                self._hang_up()

        self.call(turn)

    def disarm(self, cutter: Cutter) -> None:
        """Let a cutter cut nothing more. In the link's loop."""
        if cutter in self.cutters:
            self.cutters.remove(cutter)

    def unreadable(self) -> list[str]:
        """Return why commits cannot be found on connections that are open, a text for each of these."""
        return self.call(lambda: [each.problem for each in self._connections if each.problem is not None])

    def hang_up(self) -> None:
        """Cut all connections that are open now, on both sides."""
        self.call(self._hang_up)

    def close(self) -> None:
        """Hang up, and close the port. Closing twice is harmless."""
        if not self._thread.is_alive():
            return
        _open.discard(self)
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(PATIENCE)

    def call(self, work: Callable[[], T]) -> T:
        """Run a function in the link's loop, and return what it returns. After `close` it is run at once."""
        if not self._thread.is_alive():
            return work()
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again where it was called
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(PATIENCE)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._stopping = asyncio.Event()
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        self._loop.add_reader(self._listener, self._accept)
        await self._stopping.wait()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        for near in self._accepted:  # the task of such a one was cancelled before its first step
            near.close()

    def _accept(self) -> None:
        """Take a client's connection. asyncio's server leaves one open when it is closed just after accepting it."""
        try:
            near, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client has hung up already
            return
        self._accepted.add(near)
        carrying = self._loop.create_task(self._carry(near))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)

    async def _carry(self, near: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=near)
        self._accepted.discard(near)
        try:
            await self.to_server.open.wait()  # a partition lets no connection be made either
            try:
                far_reader, far_writer = await asyncio.open_connection(*self._target)
            except OSError:
                return
            connection = Connection(
                writer, far_writer, self._conversation(), (self.to_server, self.to_client), self.cutters
            )
            self._connections.add(connection)
            try:
                await connection.carry(reader, far_reader)
            finally:
                self._connections.discard(connection)
        finally:
            writer.transport.abort()

    def _hang_up(self) -> None:
        for connection in list(self._connections):
            connection.cut()


Ways = Literal["both", "to-server", "to-client"]


@fault
def partitioned(a: object, b: object = None, *, direction: Ways = "both") -> Iterator[None]:
    """Let nothing pass between `a` and `b` until the block ends. Connections stay open; what was sent arrives
    afterwards.

    `a` is a Link; or `a` and `b` are the ends that links were made with (`Link.to(url, between=(a, b))`): all open
    links between them are meant. With `direction`, only one way is blocked. A new connection is accepted, as by a
    kernel's queue, and stays silent. FaultError when there is no link between the ends.
    """
    links = [a] if isinstance(a, Link) and b is None else [each for each in _open if each.between in ((a, b), (b, a))]
    if not links:
        raise FaultError(
            f"no link leads from {a!r} to {b!r}: make one with Link.to(url, between=(a, b)), and use its url in the one"
            " to reach the other"
        )
    ways = [(link, way) for link in links for way in _ways(link, direction)]
    closed: list[tuple[Link, Direction]] = []
    try:
        for link, way in ways:
            closed.append((link, way))
            link.call(way.close)
        yield
    finally:
        for link, way in closed:
            link.call(way.reopen)


@fault
def delayed(link: Link, seconds: float, *, direction: Ways = "both") -> Iterator[None]:
    """Let all that passes a link arrive so much later, in its order, until the block ends; a round trip takes twice
    that.

    Delays that overlap add up, and each ends with its own block. What is under way then still arrives late.
    """
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a delay is 0 s or more, and ends some time; it cannot be {seconds}")
    ways = _ways(link, direction)
    begun: list[Direction] = []
    try:
        for way in ways:
            begun.append(way)
            link.call(partial(way.slow_down, seconds))
        yield
    finally:
        for way in begun:
            link.call(partial(way.speed_up, seconds))


@fault
def cut(
    link: Link,
    when: When = "after-commit",
    *,
    times: int = 1,
    matching: str | None = None,
    bytes_to_server: int | None = None,
    half_open: bool = False,
) -> Iterator[Cutter]:
    """Cut the next `times` connections of a link, each at a certain moment. Gives what counts them: `.times`,
    `.wait()`.

    - `before-commit`: the client has asked for a commit, and the server has not received it. Nothing was written.
    - `after-commit`: the server has committed, and its answer is lost.
    - `after-bytes`: when `bytes_to_server` more bytes have passed to the server.

    The link must speak PostgreSQL or HTTP for the first two (`Link.to` knows by the URL). Meant are commits of INSERT,
    UPDATE, DELETE and MERGE, and requests other than GET; `matching`: instead those whose SQL, or HTTP request of any
    method (its head or its body, in whatever packets they come), has this text. `half_open`: the server's side stays
    open until the block ends. ValueError for arguments that select nothing, or nothing at such a moment. FaultError at
    the end of a block in which nothing was cut because a connection could not be read.
    """
    _check_cut(when, times, matching, bytes_to_server)
    if when != "after-bytes" and link.protocol is None:
        raise FaultError(f"cut(…, {when!r}) must read what passes: make the link with protocol='postgresql' or 'http'")
    cutter = Cutter(when, times, matching, bytes_to_server or 0, half_open)
    try:
        link.call(lambda: link.cutters.append(cutter))
        yield cutter
    finally:
        link.call(lambda: link.disarm(cutter))
        if half_open:
            link.hang_up()
    if not cutter.times and when != "after-bytes" and (problems := link.unreadable()):
        raise FaultError(f"nothing was cut {when}: a connection cannot be read, {problems[0]}")


def _check_cut(when: When, times: int, matching: str | None, bytes_to_server: int | None) -> None:
    """ValueError for what would be ignored."""
    if when not in get_args(When):
        raise ValueError(f"when is one of {', '.join(get_args(When))}, not {when!r}")
    if times < 1:
        raise ValueError(f"times is 1 or more, not {times}: nothing would be cut")
    if bytes_to_server is not None and when != "after-bytes":
        raise ValueError(f"bytes_to_server belongs to when='after-bytes', and not to {when!r}")
    if bytes_to_server is not None and bytes_to_server < 0:
        raise ValueError(f"bytes_to_server is 0 or more, not {bytes_to_server}")
    if matching is not None and when == "after-bytes":
        raise ValueError("matching belongs to commits, and not to when='after-bytes', which reads nothing")


def _ways(link: Link, direction: Ways) -> list[Direction]:
    if direction not in get_args(Ways):
        raise ValueError(f"direction is one of {', '.join(get_args(Ways))}, not {direction!r}")
    both = {"to-server": link.to_server, "to-client": link.to_client}
    return list(both.values()) if direction == "both" else [both[direction]]
