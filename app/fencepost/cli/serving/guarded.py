"""uvicorn's protocol within the bounds of http/guard.py, whose refusals are problems, as all answers are.

- A head has at most HEAD_BYTES. What is not whole is refused once more than that has come.
- Trailers, the fields after the last chunk of a body, are refused. uvicorn appends them to the headers of the request,
  so that a field that no proxy has looked at would be a header here (RFC 9110 §6.5.1 forbids it).
- A target with a # is refused. uvicorn leaves out what stands behind it, and a filter without its end writes more rows.
- A target that names a host (GET http://… HTTP/1.1, as to a proxy) names the same one as Host.
- What cannot be parsed is refused as 400. Answers to earlier requests that are still under way come first.
- A client that has closed its half of the connection still gets the answers to its whole requests.
"""

from typing import TYPE_CHECKING, Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from fencepost.cli.serving.draining import DrainingProtocol
from fencepost.fencing.edge_problem_types import HEAD_TOO_LARGE
from fencepost.fencing.problems import Problem, bad_request
from fencepost.http.guard import ADMIN_GUARD, GUARD, HEAD_BYTES, Arrival, Guard
from fencepost.http.hanging_up import HUNG_UP
from fencepost.http.problems.response import problem_response

if TYPE_CHECKING:
    import asyncio

_LINGERS: Final = 1.0
"""Seconds for which a connection stays open after a refusal. What comes is not looked at."""
_OF_BODY: Final = (b"content-length", b"transfer-encoding")
_FIELD: Final = 4
"""Bytes of a field beside its name and value."""


class _RefusedError(Exception):
    """Ends the parser's work; what is refused, and why, is in `_problem`."""


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


class GuardedProtocol(DrainingProtocol):
    """One connection."""

    _head = 0
    """Bytes of the head that is arriving: of its whole fields."""
    _problem: Problem | None = None
    _address = ""
    _guard: Guard | None = None
    _refused = False
    """Whether something was refused: nothing that comes after it is looked at."""
    _last_word: Problem | None = None
    """What was refused, as long as earlier requests are not answered."""
    _under_way: RequestResponseCycle
    """The request that the application works on; later ones are in `pipeline`."""

    def connection_made(self, transport: Any) -> None:
        """Begin, unless there are too many connections."""
        self.arrival = Arrival()
        self._hung_up: asyncio.Future[None] = self.loop.create_future()
        super().connection_made(transport)
        self._guard = self.app_state.get(GUARD)
        admin = self.app_state.get(ADMIN_GUARD)
        if admin is not None and self.server is not None and self.server[1] == admin[0]:
            self._guard = admin[1]
        if self._guard is not None:
            self._address = self.client[0] if self.client else "?"
            problem = self._guard.opened(self, self._address, self.loop)
            if problem is not None:
                self.refuse(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        if self._guard is not None:
            self._guard.closed(self, self._address)
        self._tell_of_the_end()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more: it has gone, or reads on. True: the connection stays until it is answered."""
        self._tell_of_the_end()
        if self.arrival.in_body and not self._drop_the_last():
            return False
        # TLS has no half of a connection; and an answer without an end (a stream) would go on for nobody.
        if self._idle or self.cycle.response_started or self.transport.get_extra_info("ssl_object") is not None:
            return False
        if not self._refused:
            self._refused = True
            self._announce_the_end()
        return True

    def data_received(self, data: bytes) -> None:
        """Parse what arrived. What is left of it without an end has a clock."""
        if self._refused:
            return
        # As uvicorn does it, but that this logs each refusal, without limit and without the peer.
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            problem, self._problem = self._problem, None
            self.refuse(problem or bad_request("The request is no HTTP/1.1: the parser stopped in it."))
            return
        if self._arriving:
            arrival = self.arrival
            if arrival.since is None:
                arrival.since, arrival.bytes = self.loop.time(), 0
            else:
                arrival.bytes += len(data)
                if arrival.bytes > HEAD_BYTES:
                    self.refuse(_head_too_large())

    def _parse(self, data: bytes) -> None:
        """Parse it. Behind the head of a request with `Upgrade`, or of CONNECT, the parser stops: it takes what follows
        for another protocol. Nothing is upgraded here, so that is the request's body (RFC 9110 §7.8); another parser
        reads it.
        """
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
            else:
                return
            of_body = [each for each in self.headers if each[0] in _OF_BODY]
            of_body.append((b"connection", b"keep-alive" if self.parser.should_keep_alive() else b"close"))
            version = self.parser.get_http_version().encode()
            self.parser = httptools.HttpRequestParser(_Rest(self))
            fields = b"".join(b"%b: %b\r\n" % each for each in of_body)
            self.parser.feed_data(b"POST / HTTP/%b\r\n%b\r\n" % (version, fields))

    def on_message_begin(self) -> None:
        """A request begins to arrive."""
        self._head = 0
        super().on_message_begin()
        self.scope[HUNG_UP] = self._watch  # type: ignore[typeddict-unknown-key]

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field. It is of the head, or a trailer."""
        if not self._arriving:
            shown = name[:60].decode("latin-1")
            self._end(
                bad_request(
                    f"{shown}: a field after the body (a trailer) is not taken.",
                    "Send it before the body, as a header.",
                )
            )
        name = name.lower()
        self._count(len(name) + len(value) + _FIELD)
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A request's head is there; its body begins."""
        if b"#" in self.url:
            shown = self.url[:200].decode("latin-1")
            self._end(
                bad_request(
                    f"The target {shown!r} has a #, which no request may have (RFC 9112 §3.2).", "In a value it is %23."
                )
            )
        if self.url[:1] != b"/":
            self._require_same_host()
        super().on_headers_complete()
        self.arrival.since, self.arrival.bytes, self.arrival.in_body = self.loop.time(), 0, True

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self.arrival.bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has arrived; or its head has, of which the parser knows no more."""
        if self.parser.should_upgrade():
            return
        self.arrival.since, self.arrival.in_body = None, False
        super().on_message_complete()

    @property
    def gives_way(self) -> bool:
        """Whether no whole request of it is under way."""
        return self._idle or self.arrival.since is not None

    @property
    def held_up(self) -> bool:
        """Whether the gateway does not read what arrives, for now."""
        return self.flow.read_paused

    def on_response_complete(self) -> None:
        """An answer was sent. If it was the last one before something that was refused, that is answered now."""
        super().on_response_complete()
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
        if self._guard is not None:
            self._guard.closed(self, self._address)
            self._guard.refused(problem, self._address)
        cycle = self.cycle  # the newest
        if self.arrival.in_body and not self._drop_the_last():
            if cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        elif cycle is not None and not self.cycle.response_complete:
            self._last_word = problem
            return
        self._say(problem)

    def _drop_the_last(self) -> bool:
        """Drop the request whose body is arriving, if it waits behind others; these are answered."""
        if not self.pipeline:
            return False
        self.pipeline.popleft()
        self.cycle = self.pipeline[0][0] if self.pipeline else self._under_way
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._under_way = cycle
        super()._start_asgi_task(cycle, app)

    def _watch(self) -> "asyncio.Future[None]":
        """Give what is done once the client has gone. To see that, the gateway goes on reading."""
        self.flow.resume_reading()
        return self._hung_up

    def _tell_of_the_end(self) -> None:
        if not self._hung_up.done():
            self._hung_up.set_result(None)

    def _say(self, problem: Problem) -> None:
        """Write the answer, and close a little later: if unread bytes lie in the socket when it is closed, the client
        gets an error of the connection, and may lose the answer.
        """
        response = problem_response(problem, {"Connection": "close", "X-Content-Type-Options": "nosniff"})
        head = b"".join(b"%b: %b\r\n" % each for each in response.raw_headers)
        self.transport.write(b"".join((STATUS_LINE[response.status_code], head, b"\r\n", response.body)))
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(_LINGERS, self.transport.close)

    def _require_same_host(self) -> None:
        """Refuse a target in absolute form whose host is another one than that of Host (RFC 9112 §3.2.2)."""
        scheme, _, rest = self.url.partition(b"://")
        authority = rest.partition(b"/")[0].partition(b"?")[0].lower()
        hosts = [value.lower() for name, value in self.headers if name == b"host"]
        if scheme and rest and hosts != [authority]:
            self._end(bad_request("The target names another host than Host does.", "Send the path alone."))

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > HEAD_BYTES:
            self._end(_head_too_large())

    def _end(self, problem: Problem) -> None:
        self._problem = problem
        raise _RefusedError


def _head_too_large() -> Problem:
    return Problem(HEAD_TOO_LARGE, f"The request's head has more than {HEAD_BYTES} bytes.")
