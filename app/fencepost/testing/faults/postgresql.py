"""PostgreSQL's protocol (version 3), as far as a link needs it to find commits.

A commit is a COMMIT, or the end of a statement outside of a transaction block: the message Query, or Sync after
Bind. The server's ReadyForQuery ends its answer and says whether a transaction block is open. Connections with TLS
cannot be read.
"""

import re
import struct
from collections.abc import Iterator
from typing import Final

from fencepost.testing.faults.conversation import Piece

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
