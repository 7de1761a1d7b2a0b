"""A link: a TCP proxy before a server, where the harness delays, holds back or cuts what passes.

Its loop runs in a thread of its own, so it works for tests with asyncio, anyio and plain threads alike, also while the
test itself computes or waits. Its methods can be called from any thread; each returns when it has taken effect.
"""

import asyncio
import socket
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final, Literal, Self, TypeVar
from urllib.parse import urlsplit

from fencepost.testing.faults.connection import Connection, Direction
from fencepost.testing.faults.conversation import Conversation, HttpConversation, PlainConversation
from fencepost.testing.faults.cutter import Cutter
from fencepost.testing.faults.postgresql import PostgresConversation
from fencepost.testing.servers.waiting import PATIENCE

T = TypeVar("T")

Protocol = Literal["postgresql", "http"]
_CONVERSATIONS: Final[dict[Protocol | None, Callable[[], Conversation]]] = {
    "postgresql": PostgresConversation,
    "http": HttpConversation,
    None: PlainConversation,
}
_DEFAULT_PORTS: Final = {"http": 80, "postgresql": 5432, "redis": 6379, "etcd": 2379, "zookeeper": 2181}

_open: "weakref.WeakSet[Link]" = weakref.WeakSet()


class Link:
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

    def __enter__(self) -> Self:
        return self

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
            connection = Connection(self, writer, far_writer, self._conversation())
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


def links_between(a: object, b: object) -> list[Link]:
    """Return the open links between two ends, in either direction."""
    return [link for link in _open if link.between in ((a, b), (b, a))]
