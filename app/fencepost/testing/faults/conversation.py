"""What a link reads in the bytes that pass: which of them ask for a commit, and which answer that it was done.

A conversation cuts both streams of one connection into pieces. Bytes that it cannot read yet stay in it until it can.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that are sent on together.

    `commits`, of a client's piece: the server commits when it has this; the texts of what it commits (SQL
    statements, or the HTTP request). `concludes`, of a server's piece: it answers the last of these, and the commit
    was done.
    """

    data: bytes
    commits: tuple[str, ...] = ()
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


_WRITES: Final = re.compile(rb"(POST|PUT|PATCH|DELETE) /")
_DONE: Final = re.compile(rb"HTTP/1\.\d 2")


class HttpConversation:
    """HTTP/1.1, one request after the other. A gateway answers a write after its COMMIT: 2xx says that it was done."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self._asked = False

    def from_client(self, data: bytes) -> Iterator[Piece]:
        """Find requests that write: POST, PUT, PATCH and DELETE, at the beginning of what was sent."""
        if _WRITES.match(data):
            self._asked = True
            yield Piece(data, commits=(data.decode(errors="replace"),))
        else:
            yield Piece(data)

    def from_server(self, data: bytes) -> Iterator[Piece]:
        """Find the answers to these."""
        done = self._asked and _DONE.match(data) is not None
        self._asked = False
        yield Piece(data, concludes=done)
