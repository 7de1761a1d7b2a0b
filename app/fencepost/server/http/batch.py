"""One batch: reads lines, has each decided in its turn, and sends the verdicts in the order of the lines.

    {"method": "PATCH", "path": "orders/order-1?select=status", "token": 34, "body": {"status": "paid"}}
    {"claim": "orders/order-1", "token": 34}

1. A line is read when fewer than `most` are in hand, which are those whose verdicts are not sent (`Window`). So a
   client that does not read its answer is not read either, and a batch of any length needs the same memory.
2. A line that can be understood is given its turn (`Order`) before the next one is read. Then it waits, for its turn
   and for room for its verdict, and is decided as a request is (http/data.py), with what batches have of
   this process (gateway/gateway.py).
3. Its verdict waits until those before it are sent.
4. Where the client has gone, no more is read, and what was read is decided. Where the process is asked to stop, the
   caller's token ends, or too much is to be sent again, no more is read either, and a last line says how far it came.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import orjson
import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from fencepost.server.fence.caller import ANONYMOUS, CALLER
from fencepost.server.fence.problem_types import (
    BODY_TOO_LARGE,
    EARLIER_LINE_FIRST,
    INTERNAL_ERROR,
    INVALID_CREDENTIAL,
    METHOD_NOT_ALLOWED,
    NOT_ACCEPTABLE,
    UNSUPPORTED_MEDIA_TYPE,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource
from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.refusals import unavailable
from fencepost.server.gateway.write import OneRow, Write, is_spelled_so
from fencepost.server.http.answers import NO_STORE, RawResponse
from fencepost.server.http.bodies import (
    LINE_OF_CLAIM,
    LINE_OF_WRITE,
    BodiesInHand,
    Members,
    bad_line,
    read_body,
    read_members,
)
from fencepost.server.http.data import (
    claim_answer,
    read_idempotency_key,
    read_line,
    read_resource,
    read_token,
    write_answer,
)
from fencepost.server.http.edge import ASKS, NAMED, Pace, RateLimits, caller_of, network_of
from fencepost.server.http.guard import ARRIVAL, STANDING, Arrival
from fencepost.server.http.headers import (
    IF_MATCH,
    JUDGED,
    KEY_HEADER,
    TOKEN_HEADER,
    Headers,
    by_name,
    media_ranges,
    refuse_headers,
)
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.query import query_pairs
from fencepost.server.identity.authenticator import Standing
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.tables import Catalog, ProtectedTable, Table, is_canonical

# What a line concerns, as far as the picture of the tables tells.
#
# That is its row, or its scope, where it is known without a database; else any row of its table. Any row is what these
# lines concern:
#
# - filters, arrays, a POST that does not name its key, and names that only PostgreSQL can tell;
# - those of tables with triggers or defaults of others' making, which may write to any row; and of tables of which a
#   foreign key leads from rows to others of them (`Catalog.entangled`).


@dataclass(slots=True)
class ConflictKey:
    """What a line concerns: `row` of `table`; `group` are the tables that foreign keys, or a scope, join with it, over
    others too.
    """

    group: Hashable
    table: Hashable
    """The tables that share a scope's template count as one table."""
    row: Hashable | None
    """A row of the table, or a scope of the template; None: any of them."""


_UNKNOWN: Final = ConflictKey(None, None, None)
"""Of all tables that the picture does not have. They are refused, or there since a moment, maybe by two names."""


def conflict_of_write(catalog: Catalog, write: Write) -> ConflictKey:
    """Find what a write concerns."""
    table = catalog.find(write.table)
    if not isinstance(table, ProtectedTable):
        return _UNKNOWN
    if isinstance(write.target, OneRow):
        return _conflict(catalog, table, table.key, write.target.key)
    body, named = write.body, _named_by(table)[1]
    values = [body.values.get(name) if name in body.columns else None for name in named]
    known = write.single and all(is_spelled_so(value) for value in values)
    return _conflict(catalog, table, named, [str(value) for value in values] if known else ())


def conflict_of_claim(catalog: Catalog, resource: Resource) -> ConflictKey:
    """Find what a claim concerns."""
    table = catalog.find_or_scope(resource.table)
    if not isinstance(table, ProtectedTable):
        return _UNKNOWN
    columns = _named_by(table)[1] if resource.table == table.fence.prefix else table.key
    return _conflict(catalog, table, columns, resource.key)


def _conflict(catalog: Catalog, table: ProtectedTable, columns: Sequence[str], values: Sequence[str]) -> ConflictKey:
    """Find the row, or the scope, of which these columns have these values. Not where they may be stored as others."""
    whose, named = _named_by(table)
    row: tuple[str, ...] | None = None
    if named and len(values) == len(columns) and table.oid not in catalog.entangled:
        given = dict(zip(columns, values, strict=True))
        if all(name in given for name in named):
            row = tuple([given[name] for name in named])
            lengths = [table.columns[name].max_length for name in named]
            too_long = any(most is not None and len(text) > most for most, text in zip(lengths, row, strict=True))
            if too_long or not is_canonical(table, row, named):
                row = None
    return ConflictKey(catalog.related[table.oid], whose, row)


def _named_by(table: Table) -> tuple[int | str, tuple[str, ...]]:
    """Give the table's oid and its key, or the prefix of its scope's template and the columns of that."""
    scope = table.fence.scope if table.fence is not None else None
    return (table.oid, table.key) if scope is None else (scope.prefix, scope.columns)


def tables_of(catalog: Catalog) -> set[Hashable]:
    """List the tables of a picture, and the templates of scopes: in another one, rows of the same are named alike."""
    return {_named_by(table)[0] for table in catalog.tables.values() if table.fence}


# The order in which the lines of a batch take effect: a line begins when those are decided that it must wait for.
#
# Lines on one row, or under one Idempotency-Key, follow each other. Of each group of tables there is a phase: lines of
# one table, each of which names its row; or one line that may concern any row of its table. A line that does not belong
# to the phase begins a new one, and waits for all lines of the phase before.
#
# A line that is to be sent again, because it is not known whether it landed or it found no connection, would take
# effect after those behind it. So later lines on its row, or under its key, are not done either.

Waited = list["asyncio.Future[None] | asyncio.Future[list[None]]"]


@dataclass(slots=True, eq=False)
class _Phase:
    table: Hashable | None
    """The table whose rows its lines name; None: it has one line, of any rows."""
    before: Waited
    """What is done once all lines of the phase before are decided."""
    undecided: "set[asyncio.Future[None]]" = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Turn:
    """A line's turn."""

    number: int
    row: tuple[Hashable, Hashable]
    """Table and row."""
    key: str | None
    """Its Idempotency-Key."""
    phase: _Phase
    decided: "asyncio.Future[None]"
    earlier: Waited = field(default_factory=list)
    """What is done once the lines are decided that it must wait for."""

    @property
    def names(self) -> tuple[Hashable, ...]:
        """What it concerns."""
        return (self.row,) if self.key is None else (self.row, self.key)


class Order:
    """The lines of a batch that are not decided, and what lines concern that are to be sent again."""

    def __init__(self) -> None:
        self._last: dict[Hashable, asyncio.Future[None]] = {}
        """Of each row and key the last line, until it is decided."""
        self._phases: dict[Hashable, _Phase] = {}
        """Of each group of tables the last phase."""
        self.again: dict[Hashable, int] = {}
        """Rows and keys of lines that are to be sent again, with the first of these lines."""
        self.tables_again: dict[Hashable, int] = {}
        """The same of tables."""

    def enter(self, number: int, conflict: ConflictKey, key: str | None) -> Turn:
        """Give the next line its turn. `key`: its Idempotency-Key."""
        phase = self._phases.get(conflict.group)
        if phase is None or conflict.row is None or conflict.table != phase.table:
            before: Waited = [asyncio.gather(*phase.undecided)] if phase is not None and phase.undecided else []
            phase = _Phase(None if conflict.row is None else conflict.table, before)
            self._phases[conflict.group] = phase
        turn = Turn(number, (conflict.table, conflict.row), key, phase, asyncio.get_running_loop().create_future())
        turn.earlier += phase.before
        for name in turn.names:
            if name in self._last:
                turn.earlier.append(self._last[name])
            self._last[name] = turn.decided
        phase.undecided.add(turn.decided)
        return turn

    async def come(self, turn: Turn) -> int | None:
        """Wait until all lines are decided that a line must wait for. Gives the one that is to be sent again before it,
        if there is one: then it is not to be done.
        """
        if undecided := [each for each in turn.earlier if not each.done()]:
            await asyncio.wait(undecided)  # others wait for them too: they are not to be cancelled
        table, row = turn.row
        if turn.key in self.again:
            return self.again[turn.key]
        if row is None:
            return self.tables_again.get(table)
        return self.again.get(turn.row, self.again.get((table, None)))

    def leave(self, turn: Turn, *, again: bool) -> None:
        """Let those begin that wait for a line which is decided. `again`: it is to be sent again."""
        for name in turn.names:
            if again:
                self.again.setdefault(name, turn.number)
            if self._last.get(name) is turn.decided:
                del self._last[name]
        if again:
            self.tables_again.setdefault(turn.row[0], turn.number)
        turn.phase.undecided.discard(turn.decided)
        turn.decided.set_result(None)

    async def all_decided(self) -> None:
        """Wait until no line is left."""
        while undecided := [each for phase in self._phases.values() for each in phase.undecided]:
            await asyncio.wait(undecided)


# The lines of a batch that are in hand, for their verdicts are not sent: so many at most, and of so many bytes.
#
# Some lines are in hand in any case. For more the batch takes room among the bodies in this process's memory
# (http/bodies.py). Where there is none it goes on with as few: no batch waits for another one's room.

MOST_BYTES: Final = 8_388_608
"""Bytes that lines and verdicts in hand may have before no more lines are read, and none is begun but the first."""
_LITTLE: Final = 65_536
"""As many as a batch may have before it takes room for MOST_BYTES, and where there is no room."""
LONG: Final = _LITTLE
"""A line that is longer is taken where there is room only."""
_SENT_AT_ONCE: Final = 65_536
"""Bytes of verdicts that are sent as one message. A longer one is sent by itself."""

# What they take in memory.
OF_A_LINE: Final = 8_192
"""Bytes of a line that is not decided, beside its text: its task, the write, and what waits for the database."""
OF_A_MEMBER: Final = 96
"""Bytes of each member of its body."""
OF_A_TERM: Final = 224
"""Bytes of each term of its query."""
OF_A_VERDICT: Final = 256
"""Bytes of a verdict, beside its text."""


@dataclass(slots=True, eq=False)
class Entry:
    """A line in hand. `verdict` None: it is not decided. `size`: bytes that it takes in memory, or its verdict does."""

    size: int
    begun: bool = False
    verdict: bytes | None = None


class Window:
    """`most` lines are in hand at most. `take` takes room for MOST_BYTES, or says that there is none; `arrival` counts
    the bytes of verdicts that are not sent.
    """

    def __init__(self, most: int, take: Callable[[int], bool], arrival: Arrival) -> None:
        self._most, self._take, self._arrival = most, take, arrival
        self._entries: deque[Entry] = deque()
        self.bytes = 0
        """What lines and verdicts in hand take in memory, within a factor of two."""
        self._limit = _LITTLE
        self._begun = 0
        """Lines that are begun, and not decided."""
        self._expected = 0
        """Bytes that each of their verdicts may have: those of the largest ones of late."""
        self._complete = False
        self._moved = asyncio.Event()
        """The first line is decided, or there are no more."""
        self._room = asyncio.Event()

    @property
    def is_wide(self) -> bool:
        """Whether the batch has taken room for MOST_BYTES."""
        return self._limit == MOST_BYTES

    def widens(self) -> bool:
        """Whether the batch has room for more than a few lines, which is taken if it is there."""
        if not self.is_wide and self._take(MOST_BYTES):
            self._limit = MOST_BYTES
        return self.is_wide

    def _fits(self, size: int) -> bool:
        return size <= self._limit or (self.widens() and size <= self._limit)

    def lets_in(self) -> bool:
        """Whether a line may be read now. One is always let in."""
        return not self._entries or (len(self._entries) < self._most and self._fits(self.bytes))

    async def room(self) -> None:
        """Wait until a line may be read."""
        while not self.lets_in():
            self._room.clear()
            await self._room.wait()

    def enter(self, size: int) -> Entry:
        """Take a line in hand, behind the others, which takes so many bytes."""
        entry = Entry(size)
        self._entries.append(entry)
        self.bytes += size
        return entry

    async def begin(self, entry: Entry) -> None:
        """Wait until the line may be decided: there is room for what its verdict takes beyond the line, which it is in
        place of; or it is the first.
        """
        while entry is not self._entries[0]:
            more = (self._begun + 1) * max(self._expected - OF_A_LINE, 0)
            if not more or self._fits(self.bytes + more):
                break
            self._room.clear()
            await self._room.wait()
        entry.begun = True
        self._begun += 1

    def decide(self, entry: Entry, verdict: bytes) -> None:
        """Give a line its verdict, which is all that is left of it."""
        size = OF_A_VERDICT + len(verdict)
        self.bytes += size - entry.size
        self._begun -= entry.begun
        entry.verdict, entry.size = verdict, size
        self._expected = max(len(verdict), self._expected * 15 // 16)
        self._arrival.kept += len(verdict)
        if len(verdict) > _LITTLE:
            self._arrival.noted()
        if entry is self._entries[0]:
            self._moved.set()
        self._room.set()

    def complete(self) -> None:
        self._complete = True
        self._moved.set()

    async def next(self) -> list[bytes]:
        """Wait for the verdicts that are next, in the order of their lines. None of them: all were sent."""
        while not self._entries or self._entries[0].verdict is None:
            if self._complete and not self._entries:
                return []
            self._moved.clear()
            await self._moved.wait()
        ready: list[bytes] = []
        size = 0
        for entry in self._entries:
            size += len(entry.verdict or b"")
            if entry.verdict is None or (ready and size > _SENT_AT_ONCE):
                break
            ready.append(entry.verdict)
        return ready

    def sent(self, verdicts: list[bytes]) -> None:
        """Hand out the room of lines whose verdicts were sent."""
        for verdict in verdicts:
            self.bytes -= self._entries.popleft().size
            self._arrival.kept -= len(verdict)
        self._room.set()


# A line: split from the body, understood, and answered with its verdict, which is the answer that a request would have
# got, as one line of JSON.

LINES_IN_A_ROW: Final = 16
"""Lines that are read before others have their turn in the event loop."""
NDJSON: Final = b"application/x-ndjson"
MEMBERS: Final = {
    b"x-fence-mark": b"mark",
    b"x-fence-scope": b"scope",
    b"location": b"location",
    b"content-range": b"content_range",
    b"preference-applied": b"preference_applied",
    b"idempotent-replayed": b"replayed",
    b"retry-after": b"retry_after",
}
"""The headers of answers that verdicts have, and the names of the members that they become."""
_PLAIN: Final = frozenset({b"replayed", b"retry_after"})
"""Members that are JSON as they stand: true, and a number. The others are strings."""
_TERM: Final = re.compile(rb",|&|->|%2[cC]|-%3[eE]|%2[dD](?:>|%3[eE])")
"""What stands before a term of a query, an element of a list, or a step into JSON."""
_UNSENDABLE: Final = re.compile(r"[\x00-\x20\x7f#]")
"""What no target of a request has as it stands: a # would be its end."""
_WHOLE: Final = re.compile(r"-?[0-9]+")
_ESCAPED: Final = re.compile(r'(["\\])')


class Splitter:
    """Splits a body into its lines, as it arrives. `longest`: bytes that a line may have, without its end. Of a line
    that is too long nothing is kept.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._line = bytearray()
        self._too_long = False

    @property
    def begun(self) -> int:
        """Bytes of the line whose end has not come."""
        return len(self._line)

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Take a part of the body, and give the lines that end in it; None for one that is too long."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end])
            start = end + 1
            yield self._take()
        self._keep(data[start:])

    def end(self) -> Iterator[bytes | None]:
        """Give the last line, if it has no end of its own."""
        if self._line or self._too_long:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._line) + len(part) > self._longest:
            self._line.clear()
            self._too_long = True
        else:
            self._line += part

    def _take(self) -> bytes | None:
        line = None if self._too_long else bytes(self._line)
        self._line.clear()
        self._too_long = False
        return line


@dataclass(slots=True)
class Line:
    """A line that can be decided."""

    conflict: ConflictKey
    key: str | None
    """Its Idempotency-Key."""
    size: int
    """Bytes that it takes in memory."""
    answer: Callable[[Gateway], Awaitable[Response]]
    """Decides it, as a request; raises RequestError, QueryError."""

    async def decide(self, gateway: Gateway) -> Response:
        """Decide it, and give the answer or the refusal."""
        try:
            return await self.answer(gateway)
        except RequestError as error:
            return problem_response(error.problem)
        except QueryError as error:
            return problem_response(bad_request(str(error)))


async def understand(raw: bytes, catalog: Catalog, max_body_bytes: int) -> Line | Problem:
    """Read a line, or say what is wrong with it: that it is neither a write nor a claim, for example."""
    try:
        members = read_members(raw)
        known = LINE_OF_CLAIM if "claim" in members else LINE_OF_WRITE
        if unknown := [name for name in members if name not in known]:
            raise bad_line(
                f"{unknown[0][:100]!r} is no member of a {'claim' if known is LINE_OF_CLAIM else 'write'}", known
            )
        headers = _headers(members)
        size = OF_A_LINE + 2 * len(raw)
        if known is LINE_OF_CLAIM:
            return _claim(catalog, _text(members, "claim"), headers, size)
        if lacking := [name for name in ("method", "path") if name not in members]:
            raise bad_line(f"it has no {lacking[0]}, and is no claim", known)
        path, body = _sendable(_text(members, "path")), members["body"][1].encode() if "body" in members else b""
        request, write = await read_line(_text(members, "method"), path, headers, body, max_body_bytes)
    except RequestError as error:
        return error.problem
    except QueryError as error:
        return bad_request(str(error))
    if write.preferences.queued:
        return bad_request(
            "prefer: respond-async means nothing in a batch: each line is decided before its verdict.",
            "To queue a write, send it as a request.",
        )
    size += OF_A_MEMBER * len(write.body.values) + OF_A_TERM * len(_TERM.findall(path))
    key = None if write.idempotency_key is None else write.idempotency_key.text
    return Line(conflict_of_write(catalog, write), key, size, lambda gateway: write_answer(gateway, request, write))


def _claim(catalog: Catalog, name: str, headers: Headers, size: int) -> Line:
    sent = tuple(headers.items())
    token, resource = read_token(headers, sent), read_resource(name, "claim")
    answer = partial(claim_answer, name=name, token=token, headers=headers, raw_headers=sent)
    return Line(conflict_of_claim(catalog, resource), read_idempotency_key(headers, sent), size, answer)


def _text(members: Members, name: str) -> str:
    value, _ = members[name]
    if not isinstance(value, str):
        raise bad_line(f"{name} is a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad_line(f"{name} has half of a character") from error
    return value


def _number(members: Members, name: str) -> str:
    value, text = members[name]
    if isinstance(value, float) and _WHOLE.fullmatch(text):
        return text
    if not isinstance(value, str):
        raise bad_line(f"{name} is a whole number, or a string")
    return _text(members, name)


def _sendable(path: str) -> bytes:
    if (wrong := _UNSENDABLE.search(path)) is not None:
        raise bad_line(f"path: {wrong[0]!r} is percent-encoded there")
    if path.startswith("/"):
        raise bad_line(f"path: {path[:100]!r} begins with a slash; it is what follows /v1/data/, as orders/order-1")
    return path.encode()


def _headers(members: Members) -> Headers:
    """Give the headers that mean the same in a request."""
    headers: dict[bytes, bytes] = {}
    if "token" in members:
        headers[TOKEN_HEADER] = _number(members, "token").encode()
    if "if_match" in members:
        mark = _number(members, "if_match")
        headers[IF_MATCH] = (mark if mark == "*" else f'"{mark}"').encode()
    if "idempotency_key" in members:
        quoted = _ESCAPED.sub(r"\\\1", _text(members, "idempotency_key"))
        headers[KEY_HEADER] = f'"{quoted}"'.encode()
    if "prefer" in members:
        headers[b"prefer"] = _text(members, "prefer").encode()
    if "body" in members:
        headers[b"content-type"] = b"application/json"
    return headers


def verdict_of(number: int, response: Response) -> bytes:
    """Write a verdict, with the end of its line. The body is as it was made, but for ends of lines: PostgreSQL keeps
    those of a json column, where they are blanks.
    """
    parts = [b'{"number":%d,"status":%d' % (number, response.status_code)]
    for name, value in response.raw_headers:
        member = MEMBERS.get(name)
        if member is not None:
            shown = value if member in _PLAIN else orjson.dumps(value.decode("latin-1"))
            parts.append(b',"%b":%b' % (member, shown))
    body = bytes(response.body)
    if b"\n" in body or b"\r" in body:
        body = body.replace(b"\n", b" ").replace(b"\r", b" ")
    parts.append(b',"body":%b}\n' % (body or b"null"))
    return b"".join(parts)


def _too_long(limit: int) -> Problem:
    return Problem(
        BODY_TOO_LARGE,
        f"The line has more than {limit} bytes: it was skipped.",
        hint="FENCEPOST_MAX_BODY_BYTES sets it.",
    )


# The batch itself: it reads lines while it may, and sends their verdicts.

_STOPPING: Final = "The gateway is stopping."
_OVER: Final = "The caller's token or key is to be shown again."
_TOO_MANY_AGAIN: Final = "Too many lines are to be sent again; their verdicts have the reasons."
_NO_ROOM: Final = f"There is no room now for the line that follows, which has more than {LONG} bytes."
_NEW_PICTURE: Final = "A table has changed that lines concern which are to be sent again: their place is not known now."

MOST_AGAIN: Final = 1000
"""Rows and keys of lines that are to be sent again: where there are more, PostgreSQL is away; no more is read."""
_REFUSALS: Final = 400
_FAILURES: Final = 500
_RETRY_AFTER: Final = "retry-after"
_FAILED: Final = Problem(INTERNAL_ERROR, "The gateway failed; its log has more.")
log = structlog.stdlib.get_logger("fencepost.http")


class Batch:
    """A batch. `gateway` is that of its caller; `window` has the lines in hand; `arrival`: how its body stands with the
    guard of connections; `standing`: how the caller's credential stands, where there is authentication; `pace`: how
    fast its lines may come.
    """

    def __init__(
        self,
        gateway: Gateway,
        max_body_bytes: int,
        receive: Receive,
        send: Send,
        window: Window,
        arrival: Arrival,
        standing: Standing | None,
        pace: Pace | None = None,
    ) -> None:
        self._gateway = gateway.for_batch()
        self._stopping = asyncio.create_task(gateway.batches.stopping.wait())
        self._receive, self._send = receive, send
        self._arrival, self._standing, self._pace = arrival, standing, pace
        self._max_body_bytes = max_body_bytes
        self._splitter = Splitter(max_body_bytes)
        self._order, self._window = Order(), window
        self._version = gateway.catalog.current.version
        self._lines = 0
        self._stopped: str | None = None
        """Why it was not read to its end."""
        self._gone = False

    async def run(self, *, expects: bool) -> None:
        """Answer it. `expects`: the client sends its body when it is told that it may. Raises ClientDisconnect."""
        self._arrival.by_lines = self._arrival.held = True
        try:
            first = await self._arriving() if expects else None
            headers = [(b"content-type", NDJSON), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(tasks, first))
                while verdicts := await self._window.next():
                    await self._send({"type": "http.response.body", "body": b"".join(verdicts), "more_body": True})
                    self._window.sent(verdicts)
        finally:
            self._stopping.cancel()
        if self._gone:
            raise ClientDisconnect
        end = b""
        if self._stopped is not None:  # all lines that were read have their verdicts
            end = orjson.dumps({"stopped": True, "lines": self._lines, "reason": self._stopped}) + b"\n"
        await self._send({"type": "http.response.body", "body": end, "more_body": False})

    async def _read(self, tasks: asyncio.TaskGroup, message: Message | None) -> None:
        try:
            while (message := message or await self._arriving()) is not None:
                self._gone = message["type"] == "http.disconnect"
                for raw in () if self._gone else self._splitter.feed(message.get("body", b"")):
                    if not await self._take(raw, tasks):
                        return
                if self._splitter.begun > LONG and not self._window.widens():
                    self._stopped = _NO_ROOM
                    return
                if not message.get("more_body", False):
                    for raw in () if self._gone else self._splitter.end():
                        await self._take(raw, tasks)
                    return
                message = None
        finally:
            self._window.complete()

    async def _arriving(self) -> Message | None:
        """Wait for more of the body; None: no more is to be read."""
        ends = self._gateway.caller.ends
        receiving = asyncio.ensure_future(self._receive())
        self._arrival.held = False
        within = None if ends is None else max(ends - asyncio.get_running_loop().time(), 0)
        try:
            await asyncio.wait((receiving, self._stopping), timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if not self._is_to_stop() and not receiving.done():
                self._stopped = _OVER  # in this moment
            return None if self._stopped is not None else receiving.result()
        finally:
            self._arrival.held = True
            receiving.cancel()

    def _is_to_stop(self) -> bool:
        ends = self._gateway.caller.ends
        if self._gateway.batches.stopping.is_set():
            self._stopped = _STOPPING
        elif ends is not None and ends <= asyncio.get_running_loop().time():
            self._stopped = _OVER
        elif len(self._order.again) > MOST_AGAIN:
            self._stopped = _TOO_MANY_AGAIN
        return self._stopped is not None

    async def _take(self, raw: bytes | None, tasks: asyncio.TaskGroup) -> bool:
        """Take a line in hand, once there is room; False: it is to be read no more."""
        await self._window.room()
        if not self._lines % LINES_IN_A_ROW:
            await asyncio.sleep(0)
        blank = raw is not None and not raw.strip(b" \t\r")
        if not await self._may_go_on() or not (blank or self._pace is None or await self._in_pace(self._pace)):
            return False
        self._lines += 1
        self._arrival.since = None if self._arrival.since is None else asyncio.get_running_loop().time()
        if blank:
            return True
        number, longest = self._lines, self._max_body_bytes
        line = _too_long(longest) if raw is None else await understand(raw, self._gateway.catalog.current, longest)
        if isinstance(line, Problem):
            self._window.decide(self._window.enter(OF_A_VERDICT), verdict_of(number, problem_response(line)))
        else:
            turn = self._order.enter(number, line.conflict, line.key)
            tasks.create_task(self._decide(self._window.enter(line.size), turn, line))
        return True

    async def _in_pace(self, pace: Pace) -> bool:
        """Wait until the caller may send one more line; False: it is to be read no more."""
        look_every = self._gateway.times.edge.look_every
        while seconds := pace.take():
            await asyncio.wait((self._stopping,), timeout=min(seconds, look_every))
            if not await self._may_go_on():
                return False
        return True

    async def _may_go_on(self) -> bool:
        """Look at what ends it, and at what may have changed since the line before: the caller's credential, and the
        picture of the tables. Places of before cannot be compared with those of a new one.
        """
        if self._is_to_stop():
            return False
        if self._standing is not None and not await self._standing.is_good():
            self._stopped = _OVER
        version = self._gateway.catalog.current.version
        if version != self._version:
            await self._order.all_decided()
            self._version = version
            if not self._order.tables_again.keys() <= tables_of(self._gateway.catalog.current):
                self._stopped = _NEW_PICTURE
        return self._stopped is None

    async def _decide(self, entry: Entry, turn: Turn, line: Line) -> None:
        response: Response | None = None
        try:
            first = await self._order.come(turn)
            if first is not None:
                response = problem_response(_behind(first))
            else:
                await self._window.begin(entry)
                response = await line.decide(self._gateway)
        except Exception:
            log.exception("line failed", number=turn.number)
        finally:
            response = response or problem_response(_FAILED)
            self._order.leave(turn, again=_is_to_be_sent_again(response))
        self._window.decide(entry, verdict_of(turn.number, response))


def _is_to_be_sent_again(response: Response) -> bool:
    status = response.status_code
    return status >= _FAILURES or (status >= _REFUSALS and _RETRY_AFTER in response.headers)


def _behind(number: int) -> Problem:
    return Problem(
        EARLIER_LINE_FIRST,
        f"Line {number} is to be sent again, and concerns the same row or key: this line was not done.",
        hint=f"Send line {number} again, and then this one.",
    )


# POST /v1/batch?atomic=true: lines that land all, or none.
#
# The whole body is read first, so that no lock waits for a slow client. The answer is that of all lines, or the
# refusal of the first one that is refused, with its number.

MOST_LINES: Final = 1000
"""Lines that land as a whole. Each Idempotency-Key is a lock until the end, and PostgreSQL has room for 64 locks per
connection that it allows, for all of its sessions.
"""


async def atomic_answer(
    gateway: Gateway,
    headers: Headers,
    receive: Receive,
    max_body_bytes: int,
    pace: Pace | None,
    standing: Standing | None,
) -> Response:
    """Read all lines, and decide them in one transaction. Raises RequestError."""
    body = await read_body(headers, receive, max_body_bytes)
    try:
        async with gateway.batches.whole():
            over = gateway.caller.is_over(asyncio.get_running_loop().time())
            if over or not (standing is None or await standing.is_good()):
                refused = Problem(INVALID_CREDENTIAL, "The caller's token ended while the batch waited.")
                gateway.report_if_forbidden(refused)
                raise RequestError(refused)
            lines = await _understood(gateway, body, max_body_bytes)
            if isinstance(lines, Response):
                return lines
            too_fast = None if pace is None else pace.refusal(len(lines))
            return await _decided(gateway, lines) if too_fast is None else problem_response(too_fast)
    except UnavailableError as error:
        return problem_response(unavailable(error))


async def _decided(gateway: Gateway, lines: Sequence[tuple[int, Line]]) -> Response:
    async def use(part: Gateway) -> Response:
        verdicts, size = [], 0
        for number, line in lines:
            response = await line.decide(part)
            if response.status_code >= _REFUSALS:
                raise Undone(_refused(number, response))
            verdicts.append(verdict_of(number, response))
            size += len(verdicts[-1])
            if size > gateway.max_answer_bytes:
                raise Undone(_refused(number, problem_response(_answer_too_large(gateway.max_answer_bytes))))
        return RawResponse(200, [NO_STORE, (b"content-type", NDJSON)], b"".join(verdicts))

    answer = await atomically(gateway, use)
    return problem_response(answer) if isinstance(answer, Problem) else answer


async def _understood(gateway: Gateway, body: bytes, max_body_bytes: int) -> Sequence[tuple[int, Line]] | Response:
    lines: list[tuple[int, Line]] = []
    most = min(MOST_LINES, gateway.max_rows)
    for number, raw in enumerate(body.split(b"\n"), 1):
        if not number % LINES_IN_A_ROW:
            await asyncio.sleep(0)
        if not raw.strip(b" \t\r"):
            continue
        if len(lines) == most:
            raise RequestError(
                Problem(
                    BODY_TOO_LARGE,
                    f"The batch has more than {most} lines, and is to land as a whole.",
                    hint=f"It may have {MOST_LINES}, or less if FENCEPOST_MAX_ROWS is less.",
                )
            )
        line = await understand(raw, gateway.catalog.current, max_body_bytes)
        if isinstance(line, Problem):
            return _refused(number, problem_response(line))
        lines.append((number, line))
    return lines


def _answer_too_large(most_bytes: int) -> Problem:
    return bad_request(
        f"with it the answer has more than {most_bytes} bytes.",
        "Prefer: return=minimal, or ?select= with fewer columns; FENCEPOST_MAX_ANSWER_BYTES.",
    )


def _refused(number: int, response: Response) -> Response:
    """Name the line in its refusal, which is the batch's."""
    problem = orjson.loads(response.body)
    detail = f"Line {number}: {problem['detail']}"
    problem |= {"detail": detail, "message": detail, "line": number}
    headers = [(name, value) for name, value in response.raw_headers if name != b"content-length"]
    return RawResponse(response.status_code, headers, orjson.dumps(problem))


# POST /v1/batch: many writes and claims in one request, a line each, and a verdict for each.
#
# A plain ASGI application, as that of tables (data.py): body and answer are streams, both at the same time.

PATH: Final = b"/v1/batch"
_OF_LINES: Final = {TOKEN_HEADER: "token", KEY_HEADER: "idempotency_key", b"prefer": "prefer"}
_OF_PATHS: Final = (b"accept-profile", b"content-profile")
_ATOMIC: Final = frozenset({"true", "false"})
_ACCEPTED: Final = frozenset({"*/*", "application/*", NDJSON.decode()})


class BatchRoute:
    """The route."""

    def __init__(
        self, gateway: Callable[[Scope], Gateway], max_body_bytes: int, limits: RateLimits, bodies: BodiesInHand
    ) -> None:
        self._gateway, self._max_body_bytes, self._limits, self._bodies = gateway, max_body_bytes, limits, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._whole(scope, receive)
        except RequestError as error:
            response = problem_response(error.problem)
        if response is not None:
            await response(scope, receive, send)
            return
        gateway, asks, find_arrival = self._gateway(scope), scope.get(ASKS) or caller_of(scope), scope.get(ARRIVAL)
        # A body that is there already, or under another server, has no clock.
        arrival: Arrival = Arrival() if find_arrival is None else find_arrival()
        window = Window(gateway.batches.lines, partial(self._bodies.takes_lines, asks), arrival)
        bounds = self._max_body_bytes, receive, send, window, arrival
        batch = Batch(gateway, *bounds, scope.get(STANDING), self._pace(scope))
        try:
            await batch.run(expects=b"expect" in _named(scope))
        finally:
            arrival.kept = 0
            if window.is_wide:
                self._bodies.give_back(asks, MOST_BYTES)

    async def _whole(self, scope: Scope, receive: Receive) -> Response | None:
        """Answer what is no stream: a batch that lands as a whole, or another method's. None: it is one. Raises
        RequestError.
        """
        if scope["method"] != "POST":
            problem = Problem(METHOD_NOT_ALLOWED, f"{scope['method']} is not for this path: POST is.")
            return problem_response(problem, {"Allow": "POST"})
        headers = _read(scope)
        if not _is_atomic(scope["query_string"]):
            return None
        gateway, standing = self._gateway(scope), scope.get(STANDING)
        async with self._bodies.counting(caller_of(scope), headers, receive) as counted:
            return await atomic_answer(gateway, headers, counted, self._max_body_bytes, self._pace(scope), standing)

    def _pace(self, scope: Scope) -> Pace | None:
        """Give how fast lines may come. Without authentication nobody's are counted."""
        if STANDING not in scope:
            return None
        caller = scope[CALLER]
        return self._limits.pace(caller, network_of(scope) if caller.name == ANONYMOUS else None)


def _named(scope: Scope) -> Headers:
    return scope.get(NAMED) or by_name(scope["headers"])


def _read(scope: Scope) -> Headers:
    """Read the headers, and refuse what concerns lines, or is not done."""
    headers = _named(scope)
    if not JUDGED.isdisjoint(headers):
        refuse_headers(headers, writing=True)
    for name, member in _OF_LINES.items():
        if name in headers:
            raise RequestError(
                bad_request(
                    f"{name.decode().title()}: a batch has none, but each of its lines.",
                    f"The member {member} of a line.",
                )
            )
    for name in _OF_PATHS:
        if name in headers:
            raise RequestError(
                bad_request(f"{name.decode().title()}: the path of a line names its schema.", "sales.orders/order-1")
            )
    _require_ndjson(headers)
    return headers


def _is_atomic(query: bytes) -> bool:
    """Read the query: whether the batch is to land as a whole."""
    try:
        pairs = query_pairs(query) if query else []
    except QueryError as error:
        raise RequestError(bad_request(str(error))) from error
    for name, value in pairs:
        if name != "atomic":
            raise RequestError(bad_request(f"query: {name[:100]}: a batch takes atomic only."))
        if value not in _ATOMIC or len(pairs) > 1:
            raise RequestError(bad_request(f"query: atomic={value[:100]}: it is true or false, and given once."))
    return pairs == [("atomic", "true")]


def _require_ndjson(headers: Headers) -> None:
    kind, *parameters = [part.strip().lower() for part in headers.get(b"content-type", b"").split(b";")]
    if kind != NDJSON or any(parameter not in (b"charset=utf-8", b'charset="utf-8"') for parameter in parameters):
        shown = headers.get(b"content-type", b"none")[:100].decode("latin-1")
        raise RequestError(Problem(UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {shown}: a batch is {NDJSON.decode()}."))
    accept = headers.get(b"accept", b"*/*").decode("latin-1")
    if accept not in _ACCEPTED and _ACCEPTED.isdisjoint(media_ranges(accept)):
        raise RequestError(
            Problem(NOT_ACCEPTABLE, f"Accept: {accept[:100]}: the answers of a batch are {NDJSON.decode()}.")
        )
