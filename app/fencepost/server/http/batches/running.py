"""One batch: reads lines, has each decided in its turn, and sends the verdicts in the order of the lines.

1. A line is read when fewer than `most` are in hand, which are those whose verdicts are not sent (window.py). So a
   client that does not read its answer is not read either, and a batch of any length needs the same memory.
2. A line that can be understood is given its turn (order.py) before the next one is read. Then it waits, for its turn
   and for room for its verdict, and is decided as a request is (http/writes/deciding.py), with what batches have of
   this process (gateway/batches.py).
3. Its verdict waits until those before it are sent.
4. Where the client has gone, no more is read, and what was read is decided. Where the process is asked to stop, the
   caller's token ends, or too much is to be sent again, no more is read either, and a last line says how far it came.
"""

import asyncio
from typing import Final

import structlog
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Send

from fencepost.server.fence.problem_types import EARLIER_LINE_FIRST, INTERNAL_ERROR
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.writes.places import units_of
from fencepost.server.http.batches.order import Behind, Order, Turn
from fencepost.server.http.batches.splitting import Splitter
from fencepost.server.http.batches.understanding import LINES_IN_A_ROW, Understood, too_long, understand
from fencepost.server.http.batches.verdict import NDJSON, last_line, verdict_of
from fencepost.server.http.batches.window import LONG, Entry, Window
from fencepost.server.http.guard import Arrival
from fencepost.server.http.problems.response import answer_or_problem, problem_response
from fencepost.server.http.rate_limits import Pace
from fencepost.server.identity.authenticator import Standing

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
