"""What a link reads in the bytes that pass: which of them ask for a commit, and which answer that it was done.

A conversation cuts both streams of one connection into pieces. Bytes that it cannot read yet stay in it until it can.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import h11


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

    def from_client(self, data: bytes) -> Iterator[Piece]:
        """Take what the client has sent."""
        ...

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """Take what the server has sent."""
        ...


class PlainConversation:
    """A protocol that the link does not read."""

    problem: str | None = "it is neither PostgreSQL nor HTTP: make the link with protocol="

    def from_client(self, data: bytes) -> Iterator[Piece]:
        """Pass on."""
        yield Piece(data)

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """Pass on."""
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
        """Find the ends of requests."""
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
        """What was sent so far."""
        return (self._head + self._body).decode(errors="replace")
