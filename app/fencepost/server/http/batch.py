"""One batch: reads lines, has each decided in its turn, and sends the verdicts in the order of the lines.

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
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
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
from fencepost.server.gateway.atomic import Undone, atomically
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.refusals import unavailable
from fencepost.server.gateway.write import ConflictKey, units_of
from fencepost.server.http.answers import NO_STORE, RawResponse
from fencepost.server.http.batch_lines import (
    LINES_IN_A_ROW,
    NDJSON,
    Splitter,
    Understood,
    last_line,
    too_long,
    understand,
    verdict_of,
)
from fencepost.server.http.bodies import BodiesInHand, read_body
from fencepost.server.http.edge import Pace, RateLimits, caller_of, network_of
from fencepost.server.http.guard import STANDING, Arrival, arrival_of
from fencepost.server.http.headers import (
    JUDGED,
    KEY_HEADER,
    TOKEN_HEADER,
    Headers,
    by_name,
    media_ranges,
    refuse_headers,
)
from fencepost.server.http.problems import RequestError, answer_or_problem, problem_response
from fencepost.server.http.query import query_pairs
from fencepost.server.identity.authenticator import Standing
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.query import QueryError

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
OF_A_LINE: Final = 4_096
"""Bytes that a line takes in memory beside its own."""
_SENT_AT_ONCE: Final = 65_536
"""Bytes of verdicts that are sent as one message. A longer one is sent by itself."""


@dataclass(slots=True, eq=False)
class Entry:
    """A line in hand. `verdict` None: it is not decided; empty: it gets none. `size` is the line's."""

    size: int
    verdict: bytes | None = None


class Window:
    """`most` lines are in hand at most. `take` takes room for so many bytes, or says that there is none; `keep` counts
    so many more bytes of verdicts that are not sent.
    """

    def __init__(self, most: int, take: Callable[[int], bool], keep: Callable[[int], None] = lambda _: None) -> None:
        self._most, self._take, self._keep, self._limit = most, take, keep, _LITTLE
        self._entries: deque[Entry] = deque()
        self._held = self._bytes = self._begun = 0
        self._expected = 0
        """Bytes that a verdict may have which is not there yet: those of the largest ones of late."""
        self._complete = False
        self._moved = asyncio.Event()
        """The first line is decided, or there are no more."""
        self._room = asyncio.Event()

    def lets_in(self) -> bool:
        """Whether a line may be read now. Where it needs more room than the batch has, that is taken."""
        return self._held < self._most and self._fits(self._bytes)

    def widens(self) -> bool:
        """Whether the batch has room for more than a few lines, which is taken if it is there."""
        if self._limit != MOST_BYTES and self._take(MOST_BYTES):
            self._limit = MOST_BYTES
        return self._limit == MOST_BYTES

    def _fits(self, size: int) -> bool:
        return size <= self._limit or (self.widens() and size <= self._limit)

    async def room(self) -> None:
        """Wait until a line may be read. One is always let in."""
        while self._held and not self.lets_in():
            self._room.clear()
            await self._room.wait()

    def enter(self, size: int) -> Entry:
        """Take a line of so many bytes in hand, behind the others."""
        size += OF_A_LINE
        entry = Entry(size)
        self._entries.append(entry)
        self._held += 1
        self._bytes += size
        return entry

    async def begin(self, entry: Entry) -> bool:
        """Wait until the line may be decided: there is room for its verdict, or it is the first. True."""
        while entry is not self._entries[0] and not self._fits(self._bytes + (self._begun + 1) * self._expected):
            self._room.clear()
            await self._room.wait()
        self._begun += 1
        return True

    def decide(self, entry: Entry, verdict: bytes, *, begun: bool = False) -> None:
        """Give a line its verdict. `begun`: `begin` has let it."""
        entry.verdict = verdict
        self._bytes += len(verdict)
        self._keep(len(verdict))
        self._begun -= begun
        self._expected = max(len(verdict), self._expected * 15 // 16)
        if entry is self._entries[0]:
            self._moved.set()

    def complete(self) -> None:
        self._complete = True
        self._moved.set()

    async def next(self) -> list[Entry]:
        """Wait for the verdicts that are next, in the order of their lines. None of them: all were given out."""
        while not self._entries or self._entries[0].verdict is None:
            if self._complete and not self._entries:
                return []
            self._moved.clear()
            await self._moved.wait()
        ready: list[Entry] = []
        size = 0
        while self._entries and (verdict := self._entries[0].verdict) is not None:
            size += len(verdict)
            if ready and size > _SENT_AT_ONCE:
                break
            ready.append(self._entries.popleft())
        return ready

    def sent(self, entries: list[Entry]) -> None:
        """Hand out the room of lines whose verdicts were sent."""
        verdicts = sum(len(entry.verdict or b"") for entry in entries)
        self._held -= len(entries)
        self._bytes -= sum(entry.size for entry in entries) + verdicts
        self._keep(-verdicts)
        self._room.set()


# The order in which the lines of a batch take effect: a line begins when those are decided that it must wait for.
#
# Of each group of tables there is a phase: lines of one table, each of which names its row. They begin once the phase
# before them is over, and of one row one after the other. A line of another table, or one that may concern any row of
# its table, begins a new phase; the latter has a phase to itself. Lines under one Idempotency-Key wait for each other,
# too, whatever they concern: the first one is done.
#
# A line that is to be sent again, because it is not known whether it landed or it found no connection, would take
# effect after those behind it. So later lines on its row, or under its key, are not done either (`Behind`).


class Behind(Exception):  # noqa: N818 - no error: it says where a line stands
    """The line is not to be done: line `number` is on its row, and to be sent again first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(slots=True, eq=False)
class _Phase:
    unit: Hashable | None
    """The table whose rows its lines name; None: it has one line, of any rows."""
    before: "asyncio.Future[None] | None"
    over: "asyncio.Future[None]"
    undecided: int = 0
    rows: "dict[Hashable, asyncio.Future[None]]" = field(default_factory=dict)
    """Of each row, when its last line is decided."""


@dataclass(slots=True, eq=False)
class Turn:
    """A line's turn. `decided` is to be called once, however it ends."""

    number: int
    place: ConflictKey
    key: str | None
    _order: "Order"
    _phase: _Phase
    _earlier: "tuple[asyncio.Future[None] | None, ...]"
    _decided: "asyncio.Future[None]"

    async def come(self) -> None:
        """Wait until all is decided that the line must wait for. Raises Behind."""
        for earlier in self._earlier:
            if earlier is not None and not earlier.done():
                await asyncio.wait((earlier,))  # others wait for it too: it is not to be cancelled
        if (number := self._order.first_of(self.place, self.key)) is not None:
            raise Behind(number)

    def decided(self, *, again: bool) -> None:
        """Let those begin that wait for the line. `again`: it is to be sent again."""
        if again:
            self._order.hold_back(self)
        self._decided.set_result(None)
        self._order.leave(self, self._phase, self._decided)


class Order:
    """The lines of a batch that are not decided, and what lines concern that are to be sent again."""

    def __init__(self) -> None:
        self._phases: dict[Hashable, _Phase] = {}
        """Of each group of tables, the last one."""
        self._keys: dict[str, asyncio.Future[None]] = {}
        """Of each Idempotency-Key, when its last line is decided."""
        self._again: dict[Hashable, dict[Hashable, int]] = {}
        """Of each table, the rows of lines that are to be sent again, and the first of these lines."""
        self._again_keys: dict[str, int] = {}
        self.again = 0
        """How many rows and keys of such lines are kept."""

    def enter(self, number: int, place: ConflictKey, key: str | None) -> Turn:
        """Give the next line its turn. `key`: its Idempotency-Key."""
        loop = asyncio.get_running_loop()
        phase = self._phases.get(place.group)
        if phase is None or place.row is None or phase.unit != place.unit:
            before = None if phase is None else phase.over
            unit = None if place.row is None else place.unit
            phase = self._phases[place.group] = _Phase(unit, before, loop.create_future())
        phase.undecided += 1
        decided: asyncio.Future[None] = loop.create_future()
        earlier = phase.before, phase.rows.get(place.row), None if key is None else self._keys.get(key)
        phase.rows[place.row] = decided
        if key is not None:
            self._keys[key] = decided
        return Turn(number, place, key, self, phase, earlier, decided)

    def leave(self, turn: Turn, phase: _Phase, decided: "asyncio.Future[None]") -> None:
        """Forget a line that is decided."""
        if phase.rows.get(turn.place.row) is decided:
            del phase.rows[turn.place.row]
        if turn.key is not None and self._keys[turn.key] is decided:
            del self._keys[turn.key]
        phase.undecided -= 1
        if phase.undecided:
            return
        phase.over.set_result(None)
        if self._phases[turn.place.group] is phase:
            del self._phases[turn.place.group]

    def hold_back(self, turn: Turn) -> None:
        """Keep what a line concerns that is to be sent again."""
        rows = self._again.setdefault(turn.place.unit, {})
        self.again += turn.place.row not in rows
        rows.setdefault(turn.place.row, turn.number)
        if turn.key is not None:
            self.again += turn.key not in self._again_keys
            self._again_keys.setdefault(turn.key, turn.number)

    @property
    def units_again(self) -> AbstractSet[Hashable]:
        """The tables, and templates of scopes, that these lines concern."""
        return self._again.keys()

    def first_of(self, place: ConflictKey, key: str | None) -> int | None:
        """Find a line that is to be sent again before one of this place and key is done."""
        if key is not None and key in self._again_keys:
            return self._again_keys[key]
        rows = self._again.get(place.unit)
        if rows is None:
            return None
        return next(iter(rows.values())) if place.row is None else rows.get(place.row, rows.get(None))

    async def all_decided(self) -> None:
        """Wait until no line is left."""
        while self._phases:
            await asyncio.wait([phase.over for phase in self._phases.values()])


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
        self._gateway, self._batches = gateway.for_batch(), gateway.batches
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
        first = await self._arriving() if expects else None
        headers = [(b"content-type", NDJSON), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read(tasks, first))
            while entries := await self._window.next():
                await self._say(b"".join([entry.verdict or b"" for entry in entries]))
                self._window.sent(entries)
        if self._gone:
            raise ClientDisconnect
        end = b"" if self._stopped is None else last_line(self._lines, self._stopped)
        await self._send({"type": "http.response.body", "body": end, "more_body": False})

    async def _say(self, verdicts: bytes) -> None:
        if verdicts:
            await self._send({"type": "http.response.body", "body": verdicts, "more_body": True})

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
        caller, loop = self._gateway.caller, asyncio.get_running_loop()
        receiving = asyncio.ensure_future(self._receive())
        self._arrival.held = False
        within = None if caller.ends is None else max(caller.ends - loop.time(), 0)
        try:
            await asyncio.wait((receiving, self._batches.stopping), timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if not self._is_to_stop() and not receiving.done():
                self._stopped = _OVER  # in this moment
            return None if self._stopped is not None else receiving.result()
        finally:
            self._arrival.held = True
            receiving.cancel()

    def _is_to_stop(self) -> bool:
        if self._batches.stopping.done():
            self._stopped = _STOPPING
        elif self._gateway.caller.is_over(asyncio.get_running_loop().time()):
            self._stopped = _OVER
        elif self._order.again > MOST_AGAIN:
            self._stopped = _TOO_MANY_AGAIN
        return self._stopped is not None

    async def _take(self, raw: bytes | None, tasks: asyncio.TaskGroup) -> bool:
        """Take a line in hand, once there is room; False: it is to be read no more."""
        if not self._window.lets_in():
            await self._window.room()
        if not self._lines % LINES_IN_A_ROW:
            await asyncio.sleep(0)
        blank = raw is not None and not raw.strip(b" \t\r")
        if not await self._may_go_on() or not (blank or await self._in_pace()):
            return False
        self._lines += 1
        self._arrival.since = None if self._arrival.since is None else asyncio.get_running_loop().time()
        if blank:
            return True
        entry = self._window.enter(0 if raw is None else len(raw))
        number, longest = self._lines, self._max_body_bytes
        line = too_long(longest) if raw is None else await understand(raw, self._gateway.catalog.current, longest)
        if isinstance(line, Problem):
            self._window.decide(entry, verdict_of(number, problem_response(line)))
        else:
            tasks.create_task(self._decide(entry, self._order.enter(number, line.place, line.key), line))
        return True

    async def _in_pace(self) -> bool:
        """Wait until the caller may send one more line; False: it is to be read no more."""
        look_every = self._gateway.times.edge.look_every
        while self._pace is not None and (seconds := self._pace.take()):
            await asyncio.wait((self._batches.stopping,), timeout=min(seconds, look_every))
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
            if self._order.again and not self._order.units_again <= units_of(self._gateway.catalog.current):
                self._stopped = _NEW_PICTURE
        return self._stopped is None

    async def _decide(self, entry: Entry, turn: Turn, line: Understood) -> None:
        response: Response | None = None
        begun = False
        try:
            await turn.come()
            begun = await self._window.begin(entry)
            response = await answer_or_problem(line.decide(self._gateway))
        except Behind as behind:
            response = problem_response(_behind(behind.number))
        except Exception:
            log.exception("line failed", number=turn.number)
        finally:
            response = response or problem_response(_FAILED)
            turn.decided(again=_is_to_be_sent_again(response))
        self._window.decide(entry, verdict_of(turn.number, response), begun=begun)


def _is_to_be_sent_again(response: Response) -> bool:
    status = response.status_code
    return status >= _FAILURES or (status >= _REFUSALS and _RETRY_AFTER in response.headers)


def _behind(number: int) -> Problem:
    return Problem(
        EARLIER_LINE_FIRST,
        f"Line {number} is to be sent again, and concerns the same row or key: this line was not done.",
        hint=f"Send line {number} again, and then this one.",
        retry_after=1,
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


async def _decided(gateway: Gateway, lines: Sequence[tuple[int, Understood]]) -> Response:
    async def use(part: Gateway) -> Response:
        verdicts, size = [], 0
        for number, line in lines:
            response = await answer_or_problem(line.decide(part))
            if response.status_code >= _REFUSALS:
                raise Undone(_refused(number, response))
            verdicts.append(verdict_of(number, response))
            size += len(verdicts[-1])
            if size > gateway.max_answer_bytes:
                raise Undone(_refused(number, problem_response(_answer_too_large(gateway.max_answer_bytes))))
        return RawResponse(200, [NO_STORE, (b"content-type", NDJSON)], b"".join(verdicts))

    answer = await atomically(gateway, use)
    return problem_response(answer) if isinstance(answer, Problem) else answer


async def _understood(
    gateway: Gateway, body: bytes, max_body_bytes: int
) -> Sequence[tuple[int, Understood]] | Response:
    lines: list[tuple[int, Understood]] = []
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
        gateway, standing = self._gateway(scope), scope.get(STANDING)
        arrival = arrival_of(scope)
        with self._bodies.room(caller_of(scope)) as room:
            window = Window(gateway.batches.lines, room, arrival.keep)
            batch = Batch(gateway, self._max_body_bytes, receive, send, window, arrival, standing, self._pace(scope))
            try:
                await batch.run(expects=b"expect" in by_name(scope["headers"]))
            finally:
                arrival.kept = 0

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


def _read(scope: Scope) -> Headers:
    """Read the headers, and refuse what concerns lines, or is not done."""
    headers = by_name(scope["headers"])
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
        pairs = query_pairs(query)
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
    if _ACCEPTED.isdisjoint(media_ranges(accept)):
        raise RequestError(
            Problem(NOT_ACCEPTABLE, f"Accept: {accept[:100]}: the answers of a batch are {NDJSON.decode()}.")
        )
