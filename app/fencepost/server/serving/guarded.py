"""A connection within the bounds of http/guard.py. What is refused is answered with a problem, as all answers are.

- A head that is not whole is refused once more of it has come than it may have.
- What cannot be parsed is refused as 400. Answers to earlier requests that are still under way come first.
- A client that has closed its half of the connection still gets the answers to its whole requests.
- A client that does not read its answer is cut off.
- While an answer is not taken, or a request waits behind another one, nothing more is read, parsed or begun. So a
  connection keeps one answer and what one read brings (256 kB), however much its client pipelines; and what all of them
  keep has a bound. That the client has gone is seen also then, where a request wants to know it (`_Ends`).
"""

import asyncio
import select
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.http.edge import caller_of
from fencepost.server.http.guard import ADMIN_GUARD, ARRIVAL, GUARD, WATCH, Arrival, Guard
from fencepost.server.http.problems import problem_response
from fencepost.server.serving.parsing import ParsingProtocol

if TYPE_CHECKING:
    from starlette.types import Scope

_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time."""
_LINGERS: Final = 1.0
"""Seconds for which a connection stays open after a refusal. What comes is not looked at."""


class _Flow(FlowControl):
    """Reading, which nobody turns on again while something waits."""

    waits = False
    on_pause: "Callable[[], None] | None" = None
    """Called when reading stops: a request wants to know when its client has gone."""

    def pause_reading(self) -> None:
        super().pause_reading()
        if self.on_pause is not None:
            self.on_pause()

    def resume_reading(self) -> None:
        """Read on, unless something waits."""
        if not self.waits:
            super().resume_reading()


class _UntilItsEnd(RequestResponseCycle):
    """An answer to HTTP/1.0, which knows no chunks: one without a length ends with its connection."""

    _has_length = True

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self.chunked_encoding = None if self._has_length else False
        elif not self._has_length:
            self.expected_content_length = len(message.get("body", b"")) + message.get("more_body", False)
        await super().send(message)


class _Ends:
    """The connections of one event loop of which a request wants to know the end while they are not read.

    The event loop finds out that a client has closed its connection, or its half of it, when it reads; and while a
    request waits behind another one, nothing is read. Linux tells it without reading (EPOLLRDHUP). So an epoll of our
    own is asked for that alone, and the event loop watches the epoll: that costs nothing until a connection ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._epoll = select.epoll()
        self._reports: dict[int, Callable[[], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._report)

    def watch(self, descriptor: int, report: Callable[[], None]) -> None:
        """Call this once the client of a connection sends nothing more, which it may have said already."""
        self._reports[descriptor] = report
        self._epoll.register(descriptor, select.EPOLLRDHUP)

    def forget(self, descriptor: int) -> None:
        """Watch it no longer, before it is closed: its number may be another's then."""
        if self._reports.pop(descriptor, None) is not None:
            with suppress(OSError):
                self._epoll.unregister(descriptor)

    def _report(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            report = self._reports.get(descriptor)
            self.forget(descriptor)
            if report is not None:
                report()


_OF: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Ends]" = WeakKeyDictionary()


def _ends_of(loop: asyncio.AbstractEventLoop) -> _Ends:
    found = _OF.get(loop)
    if found is None:
        found = _OF[loop] = _Ends(loop)
    return found


class GuardedProtocol(ParsingProtocol):
    """One connection."""

    flow: _Flow
    _untaken = False
    """Whether an answer is whole, and its client has not taken most of it."""
    _address = ""
    _guard: Guard | None = None
    _refused = False
    """Whether something was refused: nothing that comes after it is looked at."""
    _last_word: Problem | None = None
    """What was refused, as long as earlier requests are not answered."""
    _by_lines: RequestResponseCycle | None = None
    """The last request that was read by lines: its answer may begin before it has arrived, and has an end."""
    _made: Arrival | None = None
    """What that request keeps of its answer."""
    _watched: int | None = None
    """The descriptor by which its end is looked for beside reading."""
    _under_way: RequestResponseCycle | None = None
    """The request that the application works on, or has answered last; later ones are in `pipeline`."""

    def connection_made(self, transport: Any) -> None:
        """Begin, unless there are too many connections."""
        self.arrival = Arrival()
        self._hung_up: asyncio.Future[None] = self.loop.create_future()
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._guard = self.app_state.get(GUARD)
        admin = self.app_state.get(ADMIN_GUARD)
        if admin is not None and self.server is not None and self.server[1] == admin[0]:
            self._guard = admin[1]
        if self._guard is not None:
            self.most_of_head = self._guard.bounds.head_bytes
            self._address = self.client[0] if self.client else "?"
            problem = self._guard.opened(self, self._address, self.loop)
            if problem is not None:
                self.refuse(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        if self._guard is not None:
            self._guard.closed(self, self._address)
        if self._watched is not None:
            _ends_of(self.loop).forget(self._watched)
        self._report_the_end()
        if self._under_way is not None and not self._under_way.response_complete:
            self._under_way.disconnected = True
            self._under_way.message_event.set()
        super().connection_lost(exc)
        self.pipeline.clear()  # its requests know the connection: only a search for garbage would find them
        self.arrived = b""

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more: it has gone, or reads on. True: the connection stays until it is answered."""
        self._report_the_end()
        if self.arrival.in_body and not self._drop_the_last():
            return False
        # TLS has no half of a connection; and an answer without an end (a stream) would go on for nobody.
        if (
            self.cycle is None
            or self._idle
            or (self.cycle.response_started and self.cycle is not self._by_lines)
            or self.transport.get_extra_info("ssl_object") is not None
        ):
            return False
        if not self._refused:
            self._refused = True
            self._announce_the_end()
        return True

    def data_received(self, data: bytes) -> None:
        """Parse what arrived. What is left of it without an end has a clock."""
        if self._refused:
            return
        self.arrived += data
        self._parse()
        if self.arrived:
            self._note_kept()

    def _parse(self) -> None:
        """Parse what has arrived, as far as nothing waits."""
        # As uvicorn does it, but that this logs each refusal, without limit and without the peer.
        self._unset_keepalive_if_required()
        try:
            parsed = self.parse()
        except httptools.HttpParserError:
            problem, self.problem = self.problem, None
            self.refuse(problem or bad_request("The request is no HTTP/1.1: the parser stopped in it."))
            return
        if self._arriving:
            arrival = self.arrival
            if arrival.since is None:
                arrival.since, arrival.bytes = self.loop.time(), 0
            else:
                arrival.bytes += parsed
                if arrival.bytes > self.most_of_head:
                    self.refuse(self.head_too_large())
        if self.arrived:
            self._read_no_more()

    def _read_no_more(self) -> None:
        self.flow.waits = True
        self.flow.pause_reading()

    @property
    def waits(self) -> bool:
        """Whether what arrives now is behind an answer, or a request, that waits."""
        return self._untaken or super().waits

    @property
    def _idle(self) -> bool:
        return not self._untaken and super()._idle

    def _announce_the_end(self) -> None:
        """Put `Connection: close` into the last answer, unless more has arrived."""
        if self._parsed == len(self.arrived):
            super()._announce_the_end()

    def on_message_begin(self) -> None:
        """A request begins to arrive."""
        super().on_message_begin()
        self.scope[WATCH] = self._watch  # type: ignore[typeddict-unknown-key]
        self.scope[ARRIVAL] = self._arrival  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """A request's head is there; its body begins."""
        super().on_headers_complete()
        self.arrival.since, self.arrival.bytes, self.arrival.in_body = self.loop.time(), 0, True

    def on_body(self, body: bytes) -> None:
        self.arrival.bytes += len(body)
        super().on_body(body)

    def on_request_complete(self) -> None:
        if self.arrival.by_lines:  # who reads it may do so still, and what arrives next is another request
            self.arrival = Arrival()
        self.arrival.since, self.arrival.in_body = None, False
        super().on_request_complete()

    @property
    def gives_way(self) -> bool:
        """Whether no whole request of it is under way, and no answer."""
        if self._refused or self.unsent:
            return False
        of_one_that_arrives = self.arrival.in_body and not self.pipeline
        return self.cycle is None or self.cycle.response_complete or of_one_that_arrives

    @property
    def held_up(self) -> bool:
        """Whether the gateway does not read what arrives, for now."""
        return self.flow.read_paused or self.arrival.held

    @property
    def unsent(self) -> int:
        """How many bytes of answers the client has not taken yet."""
        return self.transport.get_write_buffer_size()

    @property
    def kept(self) -> int:
        """How many bytes it keeps: of answers, and of requests behind them."""
        return self.unsent + len(self.arrived) + (self._made.kept if self._made is not None else 0)

    @property
    def caller(self) -> str:
        return self._address if self._under_way is None else caller_of(cast("Scope", self._under_way.scope))

    def abort(self) -> None:
        """Cut the connection off. What the client has not taken is lost, also the megabytes that the kernel has of it,
        and would keep for minutes.
        """
        connection = self.transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()

    def on_response_complete(self) -> None:
        """An answer was sent; what comes after it waits until its client has taken it. If it was the last one before
        something that was refused, that is answered now.
        """
        self._untaken = self.flow.write_paused and not self.transport.is_closing()
        if self._untaken:
            self._read_no_more()
            return
        self.flow.waits = bool(self.arrived)
        super().on_response_complete()
        if self.arrived and not self.transport.is_closing():
            self._parse()
            if not self.arrived:
                self.flow.waits = False
                self.flow.resume_reading()
                self._let_go()
        if not self._refused or not self.cycle.response_complete:
            return
        problem, self._last_word = self._last_word, None
        if problem is not None and not self.transport.is_closing():
            self._say(problem)
        else:
            self.transport.close()

    def refuse(self, problem: Problem) -> None:
        """Answer what arrives with this problem, and close; after the answers to earlier requests, if there are any."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self.arrived, self._parsed, self.flow.waits = b"", 0, False
        if self._guard is not None:
            self._guard.refused(problem, self._address)
        cycle = self.cycle  # the newest
        if self.arrival.in_body and not self._drop_the_last():
            if cycle.response_started:
                self._end()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        elif cycle is not None and not self.cycle.response_complete:
            self._last_word = problem
            return
        self._say(problem)

    def _drop_the_last(self) -> bool:
        """Drop the request whose body is arriving, if it waits behind others; these are answered."""
        if not self.pipeline or self._under_way is None:
            return False
        self.pipeline.popleft()
        self.cycle = self.pipeline[0][0] if self.pipeline else self._under_way
        return True

    def _say(self, problem: Problem) -> None:
        """Write the answer, and close a little later: if unread bytes lie in the socket when it is closed, the client
        gets an error of the connection, and may lose the answer.
        """
        headers = {"Connection": "close", "X-Content-Type-Options": "nosniff"}
        if self._guard is not None:
            origin = next((value for name, value in self.headers or () if name == b"origin"), None)
            headers |= self._guard.for_page(origin)
        response = problem_response(problem, headers)
        head = b"".join(b"%b: %b\r\n" % each for each in response.raw_headers)
        still_unsent = self.unsent
        body = b"" if self._arriving and self.parser.get_method() == b"HEAD" else response.body
        self.transport.write(b"".join((STATUS_LINE[response.status_code], head, b"\r\n", body)))
        self.flow.resume_reading()
        self.transport.write_eof()
        if still_unsent:  # of earlier answers: the connection counts until they are taken, or the guard cuts it off
            self.loop.call_later(_LINGERS, self.transport.close)
        else:
            self._end()

    def _end(self) -> None:
        """End the connection in a moment, whatever the client does."""
        if self._guard is None or self._guard.ends(self, self._address):
            self.loop.call_later(_LINGERS, self.transport.abort)
        else:
            self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._under_way = cycle
        if cycle.scope["http_version"] == "1.0":
            cycle.__class__ = _UntilItsEnd
        super()._start_asgi_task(cycle, app)

    def _watch(self) -> "asyncio.Future[None]":
        """Give what is done once the client has gone. To see that, the gateway goes on reading; where it may not, or
        has to stop, the end is looked for without.
        """
        self.flow.on_pause = self._look_for_the_end
        self.flow.resume_reading()
        if self.flow.read_paused:
            self._look_for_the_end()
        return self._hung_up

    def _look_for_the_end(self) -> None:
        connection = self.transport.get_extra_info("socket")
        if self._watched is not None or self._hung_up.done() or connection is None or connection.fileno() < 0:
            return
        self._watched = connection.fileno()
        _ends_of(self.loop).watch(self._watched, self._report_the_end)

    def _arrival(self) -> Arrival:
        """Give how the body of the request arrives that is worked on, and is read by lines; one that is there has no
        clock.
        """
        self._by_lines = self._under_way
        made = self.arrival if self.arrival.in_body and self.cycle is self._under_way else Arrival()
        made.noted = self._note_kept
        self._made = made
        return made

    def _note_kept(self) -> None:
        if self._guard is not None and not self.transport.is_closing():
            self._guard.keeps(self, self._address)

    def pause_writing(self) -> None:
        """The client has not taken what was written."""
        super().pause_writing()
        self._note_kept()

    def resume_writing(self) -> None:
        """The client has taken most of what was written."""
        super().resume_writing()
        self._let_go()
        if self._untaken:
            self.on_response_complete()

    def _let_go(self) -> None:
        if self._guard is not None:
            self._guard.reads_on(self)

    def _report_the_end(self) -> None:
        if not self._hung_up.done():
            self._hung_up.set_result(None)
