"""A connection: uvicorn's protocol, as strict about requests as RFC 9112 is, within the bounds of http/guard.py. What
is refused is answered with a problem, as all answers are.

- A head that is not whole is refused once more of it has come than it may have.
- What cannot be parsed is refused as 400. Answers to earlier requests that are still under way come first.
- A client that has closed its half of the connection still gets the answers to its whole requests.
- A client that does not read its answer is cut off.
- While an answer is not taken, or a request waits behind another one, nothing more is read, parsed or begun. So a
  connection keeps one answer and what one read brings (256 kB), however much its client pipelines; and what all of them
  keep has a bound. That the client has gone is seen also then, where a request wants to know it (`_Ends`).

What is refused here, a proxy could read otherwise:

- Trailers, the fields after the last chunk of a body, are refused. uvicorn appends them to the headers of the request,
  so that a field that no proxy has looked at would be a header here (RFC 9110 §6.5.1 forbids it).
- Blanks around a field's value are no part of it (RFC 9110 §5.5).
- `Transfer-Encoding` is `chunked` and nothing else, and HTTP/1.0 has none (RFC 9112 §6.1).
- A target with a # is refused. uvicorn leaves out what stands behind it, and a filter without its end writes more rows.
- A target that names a host (GET http://… HTTP/1.1, as to a proxy) names the same one as Host.
- `Upgrade` is ignored (RFC 9110 §7.8): the request is served, with its body.

How a connection ends when the gateway stops: no request of which a byte has arrived stays without an answer. HTTP/1.1
has one safe end of a connection that is kept alive: an answer with `Connection: close`, after which the client sends
nothing more. So from the moment that the server drains:

- answers that have not begun carry `Connection: close`: to requests in flight, to those of which a part has arrived,
  and to those that still come;
- a connection without a request may be used once more within GRACE seconds. Clients that send one request after
  another get their `Connection: close` in that time;
- then it is closed, unless bytes lie in its socket that were not read yet: these are a request, and come first.

What remains is a request that is on its way when its idle connection is closed: the client sees the connection end
without an answer, and the request was not looked at. No server can close an idle connection without that. The
keep-alive timeout closes connections in the same way. A connection that is still in the kernel's queue, because the
process has not come to accept it, ends with the listening socket.
"""

import asyncio
import logging
import select
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote
from weakref import WeakKeyDictionary

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from fencepost.server.fence.problem_types import HEAD_TOO_LARGE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.http.edge import NETWORK, caller_of, network_of
from fencepost.server.http.guard import ADMIN_GUARD, ARRIVAL, GUARD, WATCH, Arrival, ConnectionBounds, Guard
from fencepost.server.http.problems import problem_response

if TYPE_CHECKING:
    from starlette.types import Scope

GRACE: Final = 1.0
"""Seconds in which an idle connection may be used once more after the server began to drain."""
_LOOKED_AGAIN: Final = 0.01
"""Seconds after which a socket with unread bytes is looked at again."""
_AT_ONCE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: on, for no time."""
_LINGERS: Final = 1.0
"""Seconds for which a connection stays open after a refusal. What comes is not looked at."""

_OF_BODY: Final = (b"content-length", b"transfer-encoding")
_VERSIONS: Final = ("1.1", "1.0")
_SCHEMES: Final = (b"http", b"https")
_FIELD: Final = 4
"""Bytes of a field beside its name and value."""
_END_OF_HEAD: Final = b"\r\n\r\n"
_BEFORE_IT: Final = len(b"GET / HTTP/1.1")
"""Bytes of the shortest head before its end."""
_AT_LEAST_OF_BODY: Final = 1024
"""Bytes of a body that the parser gets at once: what ends a head may stand in a body very often."""
_NO_FIELD_HAS: Final = bytes([*range(9), *range(10, 32), 127])
"""What neither a status line has nor a field, but for their ends."""


class RequestRefusedError(Exception):
    """Ends the parser's work; what is refused, and why, is in `problem`."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    flow: "_Flow"
    problem: Problem | None = None
    """What was refused, when the parser was ended for it."""
    most_of_head = ConnectionBounds().head_bytes
    _head = 0
    """Bytes of the head that is arriving: of its whole fields."""
    _chunked = False
    _arriving = False
    """Whether a part of a request's head has arrived."""

    arrived = b""
    """What has arrived, as long as a part of it is not parsed."""
    _parsed = 0
    """How much of it is."""

    _draining = False
    _closer: asyncio.TimerHandle | None = None
    _idle_since: float | None = None
    """When the last answer was sent (the event loop's clock), if nothing has arrived since."""

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

    # The connection begins and ends.

    def connection_made(self, transport: Any) -> None:
        """Begin, unless there are too many connections."""
        self.arrival = Arrival()
        self._hung_up: asyncio.Future[None] = self.loop.create_future()
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self.app = getattr(self.app, "front", self.app)
        self._of_all: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": self.root_path,
            WATCH: self._watch,
            ARRIVAL: self._arrival,
        }
        """What the scopes of all its requests have."""
        self._raw_root = self.root_path.encode("ascii")
        self._of_all[NETWORK] = network_of(self._of_all)
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
        if self._closer is not None:
            self._closer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self.pipeline.clear()  # its requests know the connection: only a search for garbage would find them
        self._of_all = {}  # the same
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

    # Reading requests.

    def data_received(self, data: bytes) -> None:
        """Parse what arrived. What is left of it without an end has a clock."""
        if self._refused:
            return
        self.arrived += data
        self._parse()
        if self.arrived:
            self._note_kept()

    def _parse(self) -> None:
        """Parse what has arrived, until a request waits behind another one: so no connection has many requests as
        objects, which need a hundred times the memory of their bytes.

        The parser cannot be stopped behind a request. It is given no more than one end of a head at a time; where a
        body ends, some fifty of the shortest ones may come with it.
        """
        # As uvicorn does it, but that this logs each refusal, without limit and without the peer.
        self._idle_since = None
        data, at = self.arrived, self._parsed
        began = at
        try:
            while at < len(data) and not self._untaken and not self.pipeline:
                in_body = not self._arriving and self.cycle is not None and self.cycle.more_body
                end = data.find(_END_OF_HEAD, at + (_AT_LEAST_OF_BODY if in_body else _BEFORE_IT))
                is_last = end < 0 or data.find(_END_OF_HEAD, end + len(_END_OF_HEAD)) < 0
                self._parsed = len(data) if is_last else end + len(_END_OF_HEAD)
                try:
                    self.parser.feed_data(data[at : self._parsed])
                except httptools.HttpParserUpgrade as stopped:
                    self._feed_body(data[at + stopped.args[0] : self._parsed])
                at = self._parsed
        except httptools.HttpParserError:
            problem, self.problem = self.problem, None
            self.refuse(problem or bad_request("The request is no HTTP/1.1: the parser stopped in it."))
            return
        if at == len(data):
            self.arrived, self._parsed = b"", 0
        if self._arriving:
            arrival = self.arrival
            if arrival.since is None:
                arrival.since, arrival.bytes = self.loop.time(), 0
            else:
                arrival.bytes += at - began
                if arrival.bytes > self.most_of_head:
                    self.refuse(self._head_too_large())
        if self.arrived:
            self._read_no_more()
        elif self.cycle is not None and self._idle and not self.arrival.in_body:
            self._wait_for_a_request()  # what came was the rest of a body, or an empty line

    def _feed_body(self, data: bytes) -> None:
        """Give the parser what follows a head with `Upgrade`, or of CONNECT. Behind such a head it stops: it takes what
        follows for another protocol. Nothing is upgraded here, so that is the request's body; another parser reads it.
        """
        while True:
            of_body = [each for each in self.headers if each[0] in _OF_BODY]
            of_body.append((b"connection", b"keep-alive" if self.parser.should_keep_alive() else b"close"))
            version = self.parser.get_http_version().encode()
            self.parser = httptools.HttpRequestParser(_Rest(self))
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's first one
            fields = b"".join(b"%b: %b\r\n" % each for each in of_body)
            self.parser.feed_data(b"POST / HTTP/%b\r\n%b\r\n" % (version, fields))
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
            else:
                return

    def _read_no_more(self) -> None:
        self.flow.waits = True
        self.flow.pause_reading()

    def on_message_begin(self) -> None:
        """A request begins to arrive."""
        self._arriving = True
        self._head, self._chunked = 0, False
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._head += len(url)
        if self._head > self.most_of_head:
            self._stop(self._head_too_large())

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field. It is of the head, or a trailer."""
        if not self._arriving:
            shown = name[:60].decode("latin-1")
            self._stop(
                bad_request(
                    f"{shown}: a field after the body (a trailer) is not taken.",
                    "Send it before the body, as a header.",
                )
            )
        name = name.lower()
        self._head += len(name) + len(value) + _FIELD
        if self._head > self.most_of_head:
            self._stop(self._head_too_large())
        value = value.rstrip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        elif name == b"transfer-encoding":
            if self._chunked or value.lower() != b"chunked":
                self._stop(bad_request(f"Transfer-Encoding: {value[:60].decode('latin-1')!r} is not chunked alone."))
            self._chunked = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A request's head is there: the application begins with it, unless it waits behind another one. Its body
        begins to arrive.
        """
        url = self.url
        if b"#" in url:
            shown = url[:200].decode("latin-1")
            self._stop(
                bad_request(
                    f"The target {shown!r} has a #, which no request may have (RFC 9112 §3.2).", "In a value it is %23."
                )
            )
        if url[:1] != b"/":
            self._require_same_host()
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            self._stop(bad_request(f"HTTP/{version}: the gateway speaks HTTP/1.1."))
        if version == "1.0":
            if self._chunked:
                self._stop(bad_request("Transfer-Encoding: a request of HTTP/1.0 has none (RFC 9112 §6.1)."))
            self.expect_100_continue = False  # it knows no 100 Continue (RFC 9110 §10.1.1)
        self._arriving = False
        target = httptools.parse_url(url)
        path = target.path.decode("ascii")
        scope = {
            **self._of_all,
            "http_version": version,
            "method": self.parser.get_method().decode("ascii"),
            "path": self.root_path + (unquote(path) if "%" in path else path),
            "raw_path": self._raw_root + target.path,
            "query_string": target.query or b"",
            "headers": self.headers,
            "state": self.app_state.copy(),
        }
        before = self.cycle
        self.cycle = (_UntilItsEnd if version == "1.0" else _Cycle)(self, scope)
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        if self._draining:
            self._announce_the_end()
        arrival = self.arrival
        arrival.since, arrival.bytes, arrival.in_body = self.loop.time(), 0, True

    def _require_same_host(self) -> None:
        """Refuse a target in absolute form whose host is another one than that of Host (RFC 9112 §3.2.2)."""
        scheme, _, rest = self.url.partition(b"://")
        authority = rest.partition(b"/")[0].partition(b"?")[0].lower()
        hosts = [value.lower() for name, value in self.headers if name == b"host"]
        if scheme and rest and (hosts != [authority] or scheme.lower() not in _SCHEMES):
            self._stop(bad_request("The target names another host than Host does.", "Send the path alone."))

    def _head_too_large(self) -> Problem:
        return Problem(
            HEAD_TOO_LARGE,
            f"The request's head has more than {self.most_of_head} bytes.",
            hint="FENCEPOST_MAX_HEAD_BYTES sets how many it may have.",
        )

    def _stop(self, problem: Problem) -> None:
        self.problem = problem
        raise RequestRefusedError

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._under_way = cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        self.arrival.bytes += len(body)
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """A request has arrived; or its head has, of which the parser knows no more."""
        if self.parser.should_upgrade():
            return
        if self.arrival.by_lines:  # who reads it may do so still, and what arrives next is another request
            self.arrival = Arrival()
        self.arrival.since, self.arrival.in_body = None, False
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

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

    # An answer was sent, or cannot be.

    def on_response_complete(self) -> None:
        """An answer was sent; what comes after it waits until its client has taken it. If it was the last one before
        something that was refused, that is answered now. If it had begun before the server drained, it announced no
        end.
        """
        is_closing = self.transport.is_closing()
        self._untaken = self.flow.write_paused and not is_closing
        if self._untaken:
            self._read_no_more()
            return
        self.flow.waits = bool(self.arrived)
        self.server_state.total_requests += 1
        if not is_closing:
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
            else:
                self._wait_for_a_request()
        if self._draining and self._idle:
            self._close_after(GRACE)
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

    # The server drains, or the connection has been idle for long.

    def shutdown(self) -> None:
        """Begin to drain. uvicorn calls this once, and waits until the connection has ended."""
        self._draining = True
        if self._idle:
            self._close_after(GRACE)
        else:
            self._announce_the_end()

    @property
    def _idle(self) -> bool:
        return not self._untaken and not self._arriving and (self.cycle is None or self.cycle.response_complete)

    def _announce_the_end(self) -> None:
        """Put `Connection: close` into the last answer, unless more has arrived, or that answer has begun."""
        last = self.pipeline[0][0] if self.pipeline else self.cycle
        if self._parsed == len(self.arrived) and last is not None and not last.response_started:
            last.keep_alive = False

    def _wait_for_a_request(self) -> None:
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for long; else look again when it may be so. A timer for each
        request would cost more.
        """
        self.timeout_keep_alive_task = None
        if self._idle_since is None:  # the next answer begins anew
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            self._close_if_idle()

    def _close_after(self, seconds: float) -> None:
        if self._closer is not None:
            self._closer.cancel()
        self._closer = self.loop.call_later(seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.transport.is_closing() or not self._idle:
            return
        if self._has_unread_bytes():
            self._close_after(_LOOKED_AGAIN)
        else:
            self.transport.close()

    def _has_unread_bytes(self) -> bool:
        """Whether the kernel has something that the event loop has not read; the end of the stream is nothing."""
        connection = self.transport.get_extra_info("socket")
        if connection is None or connection.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN | select.POLLRDHUP)
        found = poll.poll(0)
        return bool(found) and found[0][1] & (select.POLLIN | select.POLLRDHUP | select.POLLHUP) == select.POLLIN

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


class _Cycle(RequestResponseCycle):
    """A request and its answer. What is the same at first for all of them is the class's."""

    logger = logging.getLogger("uvicorn.error")
    access_logger = logging.getLogger("uvicorn.access")
    access_log = False
    disconnected = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0

    def __init__(self, connection: GuardedProtocol, scope: Any) -> None:
        self.scope = scope
        self.transport = connection.transport
        self.flow = connection.flow
        self.default_headers = connection.server_state.default_headers
        self.message_event = asyncio.Event()
        self.on_response = connection.on_response_complete
        self.keep_alive = scope["http_version"] != "1.0" and connection.parser.should_keep_alive()
        self.waiting_for_100_continue = connection.expect_100_continue
        self.body = bytearray()

    async def send_whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        """Send an answer whose body is there: as `send` would, in one step. Names are in lower case; there is a length,
        or no body and a status that has none.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_started:
            raise RuntimeError("an answer was sent already")
        self.response_started = True
        self.waiting_for_100_continue = False
        parts = [STATUS_LINE[status]]
        for name, value in (*self.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        ends = len(headers) + len(self.default_headers) + 1
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
            ends += 1
        head = b"".join(parts)
        if len(head.translate(None, _NO_FIELD_HAS)) != len(head) - 2 * ends:
            raise RuntimeError("Invalid HTTP header value.")
        if self.scope["method"] == "HEAD":
            body = b""
        if len(body) > HIGH_WATER_LIMIT:
            self.transport.write(head + b"\r\n")
            self.transport.write(body)
        else:
            self.transport.write(b"%b\r\n%b" % (head, body))
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class _UntilItsEnd(_Cycle):
    """An answer to HTTP/1.0, which knows no chunks: one without a length ends with its connection."""

    _has_length = True

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            self.chunked_encoding = None if self._has_length else False
        elif not self._has_length:
            self.expected_content_length = len(message.get("body", b"")) + message.get("more_body", False)
        await super().send(message)


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


class _Rest:
    """What a parser calls that reads the rest of a request: nothing for the head, which it gets again, and then all."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self._protocol = protocol
        self._head = True
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if not self._head:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._head:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._head:
            self._head = False
        else:
            self._protocol.on_headers_complete()


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
