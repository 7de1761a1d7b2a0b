"""A connection that faults look into: HTTP and PostgreSQL's protocol, byte for byte, and where it is cut."""

import asyncio
import contextlib
import re
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import h11

from fencepost.testing.servers.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence


# What a link reads in the bytes that pass: which of them ask for a commit, and which answer that it was done.
#
# A conversation cuts both streams of one connection into pieces. Bytes that it cannot read yet stay in it until it
# can.


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are sent on together.

    `commits`, of a client's piece: the server commits when it has this; the texts of what it commits (SQL
    statements, or the HTTP request). `reads`: it is a request that writes nothing, such as GET. `concludes`, of a
    server's piece: it answers the last of these, and the commit was done.
    """

    data: bytes
    commits: tuple[str, ...] = ()
    reads: bool = False
    concludes: bool = False


class Conversation(Protocol):
    """Both streams of one connection."""

    problem: str | None
    """Why commits cannot be found in it; None: they can."""

    def from_client(self, data: bytes) -> Iterator[Piece]: ...

    def from_server(self, data: bytes) -> Iterator[Piece]: ...


class PlainConversation:
    """A protocol that the link does not read."""

    problem: str | None = "it is neither PostgreSQL nor HTTP: make the link with protocol="

    def from_client(self, data: bytes) -> Iterator[Piece]:
        yield Piece(data)

    def from_server(self, data: bytes) -> Iterator[Piece]:
        yield Piece(data)


_READS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE"})
_INTERIM: Final = re.compile(rb"HTTP/1\.\d 1\d\d.*?\r?\n\r?\n", re.DOTALL)
"""An answer before the answer, such as 100 Continue."""
_STATUS: Final = re.compile(rb"HTTP/1\.\d ([2-9])")
_SHORTEST: Final = len(b"HTTP/1.1 2")
_LARGEST_HEAD: Final = 1_000_000  # bytes


class HttpConversation:
    """HTTP/1.1, one request after the other. A gateway answers a write after its COMMIT: 2xx says that it was done.

    What has come of a request is sent on at once; the piece with its end, without which the server does nothing, has
    the text of all of it: the head as it was sent, and the body without the sizes of its chunks.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        self._asked = False
        self._answer = b""
        """What has come of an answer whose status is not known yet."""
        self._request = _Request()

    def from_client(self, data: bytes) -> Iterator[Piece]:
        while data and self.problem is None:
            try:
                rest = self._request.take(data)
            except h11.RemoteProtocolError as error:
                self.problem = f"it is not HTTP/1.1: {error}"
                break
            if rest is None:
                break
            self._asked = True
            ended, self._request = self._request, _Request()
            yield Piece(data[: len(data) - len(rest)], commits=(ended.text,), reads=ended.method in _READS)
            data = rest
        if data:
            yield Piece(data)

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """Find the answers to these: the first digit of the status says whether it was done."""
        done = False
        if self._asked:
            self._answer += data
            while interim := _INTERIM.match(self._answer):
                self._answer = self._answer[interim.end() :]
            status = _STATUS.match(self._answer)
            if status or (len(self._answer) >= _SHORTEST and not self._answer.startswith(b"HTTP/1")):
                done = status is not None and status[1] == b"2"
                self._asked, self._answer = False, b""
        yield Piece(data, concludes=done)


class _Request:
    """One request, of which more comes."""

    def __init__(self) -> None:
        self.method = b""
        self._reader = h11.Connection(h11.SERVER, max_incomplete_event_size=_LARGEST_HEAD)
        self._head, self._body = b"", b""

    def take(self, data: bytes) -> bytes | None:
        """Take what was sent; returns what is left after the end of the request, None while there is none."""
        if not self.method:
            self._head += data
        self._reader.receive_data(data)
        while (event := self._reader.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Request):
                self.method = event.method
                self._head = self._head[: len(self._head) - len(self._reader.trailing_data[0])]
            elif isinstance(event, h11.Data):
                self._body += event.data
            else:
                return self._reader.trailing_data[0]
        return None

    @property
    def text(self) -> str:
        return (self._head + self._body).decode(errors="replace")


When = Literal["before-commit", "after-commit", "after-bytes"]
_WRITE: Final = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE|POST|PUT|PATCH)\b", re.IGNORECASE)


@dataclass(eq=False)
class Cutter:
    """One armed `cut`. `left`: how many connections it will still cut. `matching`: of commits of what it cuts.

    `bytes_left`, with after-bytes: how many bytes pass to the server before the cut. `half_open`: the server's side of
    the connection stays open, as in networks that fail without a word.
    """

    when: When
    left: int = 1
    matching: str | None = None
    bytes_left: int = 0
    half_open: bool = False
    times: int = 0
    """How many connections it has cut."""
    _happened: threading.Condition = field(default_factory=threading.Condition)

    def wants(self, when: When, piece: Piece) -> bool:
        """Whether it cuts at such a commit of what a piece commits."""
        if when != self.when or not self.left:
            return False
        if self.matching is not None:
            return any(self.matching in text for text in piece.commits)
        return not piece.reads and any(_WRITE.search(text) for text in piece.commits)

    def count(self) -> None:
        with self._happened:
            self.left -= 1
            self.times += 1
            self._happened.notify_all()

    def wait(self, seconds: float = PATIENCE) -> None:
        """Return once it has cut a connection; TimeoutError after so many seconds."""
        with self._happened:
            if not self._happened.wait_for(lambda: self.times, seconds):
                raise TimeoutError(f"no connection was cut {self.when} within {seconds} s")


# PostgreSQL's protocol (version 3), as far as a link needs it to find commits.
#
# A commit is a COMMIT, or the end of a statement outside of a transaction block: the message Query, or Sync after
# Bind. The server's ReadyForQuery ends its answer and says whether a transaction block is open. Connections with TLS
# cannot be read.

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102
_COMMIT: Final = re.compile(r"(?:^|;)\s*(?:COMMIT|END)\b", re.IGNORECASE)
_BEGIN: Final = re.compile(r"(?:^|;)\s*(?:BEGIN|START\s+TRANSACTION)\b", re.IGNORECASE)
_KEPT: Final = 1000  # statements of one transaction whose texts are kept


class PostgresConversation:
    """One connection, from its startup packet on."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._client, self._server = b"", b""
        self._started = False
        self._encryption_asked = 0
        self._idle = True  # no transaction block is open, as of the last ReadyForQuery
        self._prepared: dict[str, str] = {}
        self._statements: list[str] = []  # of this transaction
        self._awaited = self._failed = False

    def from_client(self, data: bytes) -> Iterator[Piece]:
        """Take whole messages; a message that has not come to its end waits for the rest."""
        if self.problem is not None:
            yield Piece(data)
            return
        self._client += data
        while (message := self._next_from_client()) is not None:
            kind, body, raw = message
            commits = self._read(kind, body) if self._started else ()
            if kind == b"" and not self._encryption_asked:
                self._started = True
            if commits:
                self._awaited, self._failed = True, False
            yield Piece(raw, commits=commits)

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """Take whole messages; those that answer a commit come as one piece."""
        if self._encryption_asked:
            self._encryption_asked -= 1
            answer, data = data[:1], data[1:]
            yield Piece(answer)
            if answer == b"S":
                self.problem = "it is a PostgreSQL connection with TLS: add sslmode=disable to the URL"
        if self.problem is not None:
            yield Piece(data)
            return
        self._server += data
        end = 0
        while (found := self._next_from_server(end)) is not None:
            kind, body, end = found
            if kind == b"E":
                self._failed = True
            if kind == b"Z":
                self._idle = body == b"I"
                if self._idle:
                    self._statements = []
                concludes = self._awaited and not self._failed
                self._awaited = self._failed = False
                whole, self._server, end = self._server[:end], self._server[end:], 0
                yield Piece(whole, concludes=concludes)
        if end and not self._awaited:
            whole, self._server = self._server[:end], self._server[end:]
            yield Piece(whole)

    def _next_from_client(self) -> tuple[bytes, bytes, bytes] | None:
        """Cut off one message: its kind (empty: a packet before the startup is done), its body, and all of it."""
        head = 1 if self._started else 0
        if len(self._client) < head + 4:
            return None
        size = head + struct.unpack_from("!i", self._client, head)[0]
        if len(self._client) < size:
            return None
        raw, self._client = self._client[:size], self._client[size:]
        if not self._started and struct.unpack_from("!i", raw, 4)[0] in (_SSL, _GSS):
            self._encryption_asked += 1
        return raw[:head], raw[head + 4 :], raw

    def _next_from_server(self, begin: int) -> tuple[bytes, bytes, int] | None:
        if len(self._server) < begin + 5:
            return None
        end = begin + 1 + struct.unpack_from("!i", self._server, begin + 1)[0]
        if len(self._server) < end:
            return None
        return self._server[begin : begin + 1], self._server[begin + 5 : end], end

    def _read(self, kind: bytes, body: bytes) -> tuple[str, ...]:
        """Remember the statements of a message; return those that it commits."""
        if kind == b"P":
            name, text = body.split(b"\0", 2)[:2]
            self._prepared[name.decode()] = text.decode(errors="replace")
        elif kind == b"B":
            self._add(self._prepared.get(body.split(b"\0", 2)[1].decode(), ""))
        elif kind == b"Q":
            self._add(body.rstrip(b"\0").decode(errors="replace"))
        if kind not in (b"Q", b"S") or not self._statements:
            return ()
        last = self._statements[-1]
        if _COMMIT.search(last) or (self._idle and not _BEGIN.search(last)):
            committed, self._statements = tuple(self._statements), []
            return committed
        return ()

    def _add(self, statement: str) -> None:
        if len(self._statements) < _KEPT:
            self._statements.append(statement)
        else:
            self._statements[-1] = statement


# One connection through a link: two streams, each with its delay, its gate, and the places where it is cut.

_CHUNK = 65536  # bytes
_UNDER_WAY = 1024  # chunks that a delay may keep back; then the sender has to wait

_Queue: TypeAlias = "asyncio.Queue[tuple[float, bytes | None]]"
"""What is under way: when it arrives, by the loop's clock, and the bytes: empty at the end, None where it broke off."""


class Direction:
    """One direction of all connections of a link. While `open` is not set, nothing passes.

    It is open again when `reopen` was called as often as `close`: partitions may overlap. So may delays.
    """

    def __init__(self) -> None:
        self._delays: list[float] = []
        self.open = asyncio.Event()
        self.open.set()
        self._closed = 0

    @property
    def delay(self) -> float:
        """By how many seconds what passes arrives later: the sum of the delays."""
        return sum(self._delays)

    def slow_down(self, seconds: float) -> None:
        """Add a delay. In the link's loop."""
        self._delays.append(seconds)

    def speed_up(self, seconds: float) -> None:
        """Take such a delay back. In the link's loop."""
        with contextlib.suppress(ValueError):  # it was interrupted before it began
            self._delays.remove(seconds)

    def close(self) -> None:
        """Let nothing pass from now on. In the link's loop."""
        self._closed += 1
        self.open.clear()

    def reopen(self) -> None:
        """Take one `close` back. In the link's loop."""
        self._closed = max(0, self._closed - 1)
        if not self._closed:
            self.open.set()


class Connection:
    """A client's side (near) and the server's (far)."""

    def __init__(
        self,
        near: asyncio.StreamWriter,
        far: asyncio.StreamWriter,
        conversation: Conversation,
        ways: tuple[Direction, Direction],
        cutters: "Sequence[Cutter]",
    ) -> None:
        self._near, self._far, self._conversation = near, far, conversation
        self._server_way, self._client_way = ways
        self._cutters = cutters
        self._asked = Piece(b"")  # the commit that was sent last
        self._was_cut = False
        self._hung_up = asyncio.Event()

    async def carry(self, from_client: asyncio.StreamReader, from_server: asyncio.StreamReader) -> None:
        to_server: _Queue = asyncio.Queue(_UNDER_WAY)
        to_client: _Queue = asyncio.Queue(_UNDER_WAY)
        takers = [
            asyncio.create_task(self._take(from_client, to_server, self._server_way)),
            asyncio.create_task(self._take(from_server, to_client, self._client_way)),
        ]
        try:
            await asyncio.gather(
                self._give(to_server, self._far, self._server_way, to_the_server=True),
                self._give(to_client, self._near, self._client_way, to_the_server=False),
            )
        finally:
            for task in takers:
                task.cancel()
            self.cut()

    @property
    def problem(self) -> str | None:
        """Why what passes cannot be read; None where it can."""
        return self._conversation.problem

    def cut(self, *, half_open: bool = False) -> None:
        """Reset the client's side, and the server's unless `half_open`."""
        self._was_cut = True
        self._near.transport.abort()
        if not half_open:
            self._far.transport.abort()
            self._hung_up.set()

    @staticmethod
    async def _take(reader: asyncio.StreamReader, queue: _Queue, direction: Direction) -> None:
        loop = asyncio.get_running_loop()
        data: bytes | None = b"-"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = None
            await queue.put((loop.time() + direction.delay, data))

    async def _give(
        self, queue: _Queue, writer: asyncio.StreamWriter, direction: Direction, *, to_the_server: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        read = self._conversation.from_client if to_the_server else self._conversation.from_server
        send = self._to_server if to_the_server else self._to_client
        with contextlib.suppress(OSError):  # this side has hung up; what the other still sends is thrown away
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await direction.open.wait()
                if not data and self._was_cut and to_the_server:
                    await self._hung_up.wait()  # a half-open connection: the server learns nothing of the cut
                    return
                if data is None:
                    writer.transport.abort()
                    return
                if not data:
                    writer.write_eof()
                    return
                for piece in read(data):
                    if self._was_cut:
                        continue
                    writer.write(send(piece))
                await writer.drain()

    def _to_server(self, piece: Piece) -> bytes:
        if piece.commits:
            if self._cut_at(cutter for cutter in self._cutters if cutter.wants("before-commit", piece)):
                return b""
            self._asked = piece
        for cutter in self._cutters:
            if cutter.when == "after-bytes" and cutter.left:
                whole = len(piece.data)
                if whole >= cutter.bytes_left:
                    passed = piece.data[: cutter.bytes_left]
                    self._far.write(passed)
                    self._cut_at(iter([cutter]))
                    return b""
                cutter.bytes_left -= whole
        return piece.data

    def _to_client(self, piece: Piece) -> bytes:
        if piece.concludes and self._cut_at(c for c in self._cutters if c.wants("after-commit", self._asked)):
            return b""
        return piece.data

    def _cut_at(self, wanting: Iterator[Cutter]) -> bool:
        cutter = next(wanting, None)
        if cutter is None:
            return False
        self.cut(half_open=cutter.half_open)
        cutter.count()
        return True
