"""One gateway process's session with ZooKeeper, through kazoo, which runs in threads of its own.

SUSPENDED: the connection is gone. Nothing can be asked, but the session, and so every hold, may live; kazoo looks for
another server. LOST: the session is over, and with it every ephemeral node; kazoo opens a new session by itself. Both
only wake those who wait here: each of them looks again, and finds its node or does not.

A request whose answer got lost is asked again within the same REQUEST_TIMEOUT where repeating does no harm. One that
was given up may still land, since kazoo may send it on the next connection: code that creates nodes has to look for
them.

A session asks for servers that have come as far as it has seen. Servers that lost their data, or were restored from a
backup, refuse it for ever (kazoo does not learn why). So a connection that is gone for longer than the session timeout
is sought by a second client too, which has seen nothing. If that one stands for a session timeout, and the first one
is still refused, the first session has ended on the servers' side, if they know it at all: the second takes its place.
"""

import asyncio
import logging
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from kazoo import exceptions as kz
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from fencepost.server.locks.source import (
    REQUEST_TIMEOUT,
    Form,
    Host,
    Option,
    SourceError,
    SourceUnavailableError,
    read,
    seconds,
)

# The URL of a ZooKeeper source: zookeeper://user:password@h1:2181,h2:2181/chroot?session_timeout_s=10 for example.

SESSION_TIMEOUT: Final = Option("session_timeout_s", seconds(1, 600), 10.0)
"""Seconds that the servers keep the session, and with it the locks, of a process that is silent."""
ROOT: Final = "/fencepost"

_FORM: Final = Form(
    "zookeeper://[user:password@]host[:port][,host…][/chroot][?session_timeout_s=seconds]",
    (SESSION_TIMEOUT,),
    re.compile(r"(/(?!\.\.?(/|$))[^/]+)*/?"),  # the chroot: no empty part, no . and no ..
    port=2181,
    most=99,
    credentials="both",
)


@dataclass(frozen=True, slots=True)
class ZooKeeperUrl:
    """What a URL has. `root`: the node that has one child per lock. `credentials`: user:password, for digest."""

    hosts: tuple[Host, ...]
    root: str = ROOT
    session_timeout_s: float = SESSION_TIMEOUT.default
    credentials: str | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """The servers, as kazoo wants them and as people read them; never a password."""
        return ",".join(map(str, self.hosts))


def parse(url: str, name: str) -> ZooKeeperUrl:
    """Read the URL of the source of this name. Raises SourceConfigError."""
    found = read(url, name, _FORM)
    credentials = None if found.user is None else f"{found.user}:{found.password}"
    return ZooKeeperUrl(found.hosts, found.path.rstrip("/") + ROOT, found[SESSION_TIMEOUT], credentials)


Begin = Callable[[Any], Any]
"""Sends a request: takes a KazooClient, returns its AsyncResult. kazoo has no types."""

LOST_ANSWER: Final = (
    kz.ConnectionLoss,
    kz.SessionExpiredError,
    kz.SessionMovedError,
    kz.UnknownSessionError,
    kz.OperationTimeoutError,
    kz.RequestTimeoutError,
    kz.ThrottledOpError,
    kz.NotReadOnlyCallError,
    KazooTimeoutError,
)
"""Errors after which asking again may help. ConnectionClosedError is a SessionExpiredError."""
ABSENT: Final = (kz.NoNodeError, kz.NodeExistsError)
"""Answers that callers of `ask` expect."""
_REFUSALS: Final[dict[type[Exception], str]] = {
    kz.NoAuthError: "these credentials have no permission for its node",
    kz.NoChildrenForEphemeralsError: "its node is another program's: ephemeral, so it cannot have children",
    kz.AuthFailedError: "the servers do not take these credentials",
    kz.QuotaExceededError: "a quota is used up",
}
_ENDED: Final = (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
# At DEBUG kazoo writes each request, and the password is one.
_log = logging.getLogger("fencepost.locks.kazoo")
_log.setLevel(logging.WARNING)
_events = structlog.stdlib.get_logger("fencepost.locks")
_PAUSE: Final = 0.02  # seconds before a request is repeated
_LONGEST_PAUSE: Final = 0.5  # seconds between two attempts to connect


class LostAnswerError(SourceUnavailableError):
    """The connection broke before the answer to a request that must not be repeated blindly."""


class ZooKeeperSession:
    """A session, which is opened anew whenever it is lost."""

    def __init__(self, settings: ZooKeeperUrl) -> None:
        self.settings = settings
        self.acl = OPEN_ACL_UNSAFE if settings.credentials is None else CREATOR_ALL_ACL
        self._connected = asyncio.Event()
        self._sleepers: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._endings: set[asyncio.Future[None]] = set()
        self._closing = False
        self._client: Any = None
        self._second: Any = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._start()

    async def close(self) -> None:
        """End the session and with it all of its holds, where the servers can be reached; else they end by its
        timeout.
        """
        self._closing = True
        self._stop_seeking()
        if self._client is not None:
            self._end(self._client)
        await asyncio.gather(*self._endings)

    def _start(self) -> None:
        self._stop_seeking()
        self._started = self._loop.time()
        self._client = self._make_client()

    def _make_client(self) -> Any:
        settings = self.settings
        client = KazooClient(
            hosts=settings.where,
            timeout=settings.session_timeout_s,
            auth_data=[("digest", settings.credentials)] if settings.credentials else None,
            logger=_log,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=_LONGEST_PAUSE),
        )
        client.add_listener(lambda state: self._soon(self._on_state, client, state))
        client.start_async()
        return client

    def _end(self, client: Any) -> None:
        """Close a client's session. While the servers hang this takes its session timeout, or longer: in a thread that
        the process does not wait for at its end.
        """
        ended = self._loop.create_future()

        def end() -> None:
            try:
                client.stop()
                client.close()
            finally:
                self._soon(settle)

        def settle() -> None:
            if not ended.done():
                ended.set_result(None)

        self._endings.add(ended)
        ended.add_done_callback(self._endings.discard)
        threading.Thread(target=end, daemon=True).start()

    def _soon(self, do: Callable[..., None], *what: Any) -> None:
        """Go from a thread of kazoo's to the loop."""
        with suppress(RuntimeError):  # the loop has been closed, and no task waits any more
            self._loop.call_soon_threadsafe(do, *what)

    def _on_state(self, client: Any, state: str) -> None:
        stands = state == KazooState.CONNECTED
        if client is self._client:
            (self._connected.set if stands else self._connected.clear)()
            if stands or self._closing:
                self._stop_seeking()
            elif self._timer is None and self._second is None:
                self._timer = self._later(self._seek)
        elif client is self._second:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._later(self._replace if stands else self._seek)
        self._wake_all()

    def _later(self, do: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(self.settings.session_timeout_s, do)

    def _seek(self) -> None:
        """Look for the servers without a past."""
        self._stop_seeking()
        self._second = self._make_client()

    def _stop_seeking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._second is not None:
            self._end(self._second)
        self._timer = self._second = None

    def _replace(self) -> None:
        """Go on with the second client."""
        first, self._client, self._second, self._timer = self._client, self._second, None, None
        _events.warning(
            "zookeeper refuses the session of this gateway and takes a new one, as after its data was lost or restored",
            servers=self.settings.where,
            seen=first.last_zxid,
        )
        self._end(first)
        self._connected.set()
        self._wake_all()

    def _wake_all(self) -> None:
        for woken in (one for events in self._sleepers.values() for one in events):
            woken.set()

    @property
    def newest(self) -> int:
        """The highest transaction number that an answer has shown."""
        newest: int = self._client.last_zxid
        return newest

    async def _ready(self) -> Any:
        """Wait for a connection. kazoo's thread ends for good when a server answers something that it does not know."""
        if self._closing or self._client is None:
            raise SourceUnavailableError("this gateway has closed its session with ZooKeeper")
        if self._client.client_state in _ENDED and self._loop.time() - self._started > REQUEST_TIMEOUT:
            self._connected.clear()
            self._end(self._client)
            self._start()
        await self._connected.wait()
        return self._client

    async def ask(self, lock: str, begin: Begin, *, again: bool = True) -> Any:
        """Ask the servers, and return the answer.

        again: whether the request may be repeated when its answer got lost; if not, that is LostAnswerError.
        Raises what ABSENT lists, SourceUnavailableError after REQUEST_TIMEOUT, SourceError.
        """
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                while True:
                    client = await self._ready()
                    try:
                        return await self._answer(begin(client))
                    except LOST_ANSWER as error:
                        if not again:
                            raise LostAnswerError(
                                f"the connection to ZooKeeper at {self.settings.where} broke while lock {lock!r} "
                                "was asked for; try again"
                            ) from error
                        await asyncio.sleep(_PAUSE)  # kazoo reports an end of the session a moment later
        except TimeoutError as error:
            state = "the connection stands" if self._connected.is_set() else "no connection"
            raise SourceUnavailableError(
                f"ZooKeeper at {self.settings.where} did not answer within {REQUEST_TIMEOUT:g} s about lock {lock!r} "
                f"({state}); try again, and look whether a majority of its servers is up"
            ) from error
        except ABSENT:
            raise
        except kz.KazooException as error:
            why = _REFUSALS.get(type(error), type(error).__name__)
            raise SourceError(f"ZooKeeper at {self.settings.where} refused what lock {lock!r} needs: {why}") from error

    async def _answer(self, asked: Any) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settle(done: Any) -> None:
            if answer.done():  # given up
                return
            if done.exception is None:
                answer.set_result(done.value)
            else:
                answer.set_exception(done.exception)

        asked.rawlink(lambda done: self._soon(settle, done))
        return await answer

    @contextmanager
    def woken(self, path: str) -> Iterator[asyncio.Event]:
        """Give an event that is set when a watch on this path fires (see `on_watch`), or when the connection turns."""
        event = asyncio.Event()
        self._sleepers[path].add(event)
        try:
            yield event
        finally:
            self._sleepers[path].discard(event)
            if not self._sleepers[path]:
                del self._sleepers[path]

    def on_watch(self, event: Any) -> None:
        """Take a watch's event, in a thread of kazoo's. One function for all, so kazoo keeps it once for a path."""
        self._soon(self._wake, event.path)

    def _wake(self, path: str | None) -> None:
        for woken in self._sleepers.get(path or "", ()):
            woken.set()
