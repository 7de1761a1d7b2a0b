"""uvicorn's protocol, as strict about requests as RFC 9112 is: what is refused here, a proxy could read otherwise. And
how its connections end when the gateway stops.

- A head has at most so many bytes.
- Trailers, the fields after the last chunk of a body, are refused. uvicorn appends them to the headers of the request,
  so that a field that no proxy has looked at would be a header here (RFC 9110 §6.5.1 forbids it).
- Blanks around a field's value are no part of it (RFC 9110 §5.5).
- `Transfer-Encoding` is `chunked` and nothing else, and HTTP/1.0 has none (RFC 9112 §6.1).
- A target with a # is refused. uvicorn leaves out what stands behind it, and a filter without its end writes more rows.
- A target that names a host (GET http://… HTTP/1.1, as to a proxy) names the same one as Host.
- `Upgrade` is ignored (RFC 9110 §7.8): the request is served, with its body.
"""

import asyncio
import select
from typing import Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fencepost.server.fence.problem_types import HEAD_TOO_LARGE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.http.guard import ConnectionBounds

# How a connection ends when the gateway stops: no request of which a byte has arrived stays without an answer.
#
# HTTP/1.1 has one safe end of a connection that is kept alive: an answer with `Connection: close`, after which the
# client sends nothing more. So from the moment that the server drains:
#
# - answers that have not begun carry `Connection: close`: to requests in flight, to those of which a part has arrived,
#   and to those that still come;
# - a connection without a request may be used once more within GRACE seconds. Clients that send one request after
#   another get their `Connection: close` in that time;
# - then it is closed, unless bytes lie in its socket that were not read yet: these are a request, and come first.
#
# What remains is a request that is on its way when its idle connection is closed: the client sees the connection end
# without an answer, and the request was not looked at. No server can close an idle connection without that. The
# keep-alive timeout closes connections in the same way. A connection that is still in the kernel's queue, because the
# process has not come to accept it, ends with the listening socket.

GRACE: Final = 1.0
"""Seconds in which an idle connection may be used once more after the server began to drain."""
_LOOKED_AGAIN: Final = 0.01
"""Seconds after which a socket with unread bytes is looked at again."""


class DrainingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with an end of its connections that loses no request."""

    _draining = False
    _arriving = False
    """Whether a part of a request's head has arrived."""
    _closer: asyncio.TimerHandle | None = None

    def shutdown(self) -> None:
        """Begin to drain. uvicorn calls this once, and waits until the connection has ended."""
        self._draining = True
        if self._idle:
            self._close_after(GRACE)
        else:
            self._announce_the_end()

    def on_message_begin(self) -> None:
        """A request begins to arrive."""
        self._arriving = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A request's head is there."""
        self._arriving = False
        super().on_headers_complete()
        if self._draining:
            self._announce_the_end()

    def on_response_complete(self) -> None:
        """An answer was sent. If it had begun before the server drained, it announced no end."""
        super().on_response_complete()
        if self._draining and self._idle:
            self._close_after(GRACE)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for long."""
        self._close_if_idle()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        if self._closer is not None:
            self._closer.cancel()
        super().connection_lost(exc)

    @property
    def _idle(self) -> bool:
        return not self._arriving and (self.cycle is None or self.cycle.response_complete)

    def _announce_the_end(self) -> None:
        """Put `Connection: close` into the last answer; it is too late for one that has begun."""
        last = self.pipeline[0][0] if self.pipeline else self.cycle
        if last is not None and not last.response_started:
            last.keep_alive = False

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


# What of a request is refused.

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


class RequestRefusedError(Exception):
    """Ends the parser's work; what is refused, and why, is in `problem`."""


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


class ParsingProtocol(DrainingProtocol):
    """One connection, as far as it reads requests."""

    problem: Problem | None = None
    """What was refused, when the parser was ended for it."""
    most_of_head = ConnectionBounds().head_bytes
    _head = 0
    """Bytes of the head that is arriving: of its whole fields."""
    _chunked = False

    arrived = b""
    """What has arrived, as long as a part of it is not parsed."""
    _parsed = 0
    """How much of it is."""

    def parse(self) -> int:
        """Parse what has arrived, until a request waits behind another one, and give how many bytes that were: so no
        connection has many requests as objects, which need a hundred times the memory of their bytes. Raises
        HttpParserError: it is no HTTP/1.1, or `problem` says what is refused.

        The parser cannot be stopped behind a request. It is given no more than one end of a head at a time; where a
        body ends, some fifty of the shortest ones may come with it.
        """
        data, at = self.arrived, self._parsed
        began = at
        while at < len(data) and not self.waits:
            in_body = not self._arriving and self.cycle is not None and self.cycle.more_body
            end = data.find(_END_OF_HEAD, at + (_AT_LEAST_OF_BODY if in_body else _BEFORE_IT))
            is_last = end < 0 or data.find(_END_OF_HEAD, end + len(_END_OF_HEAD)) < 0
            self._parsed = len(data) if is_last else end + len(_END_OF_HEAD)
            self._feed(data[at : self._parsed])
            at = self._parsed
        if at == len(data):
            self.arrived, self._parsed = b"", 0
        return at - began

    @property
    def waits(self) -> bool:
        """Whether what arrives now is behind a request that waits for the answer to another."""
        return bool(self.pipeline)

    def _feed(self, data: bytes) -> None:
        """Give it to the parser.

        Behind the head of a request with `Upgrade`, or of CONNECT, the parser stops: it takes what follows for another
        protocol. Nothing is upgraded here, so that is the request's body; another parser reads it.
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
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's first one
            fields = b"".join(b"%b: %b\r\n" % each for each in of_body)
            self.parser.feed_data(b"POST / HTTP/%b\r\n%b\r\n" % (version, fields))

    def on_message_begin(self) -> None:
        """A request begins to arrive."""
        self._head, self._chunked = 0, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self.url += url
        self._count(len(url))

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
        self._count(len(name) + len(value) + _FIELD)
        value = value.rstrip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        elif name == b"transfer-encoding":
            if self._chunked or value.lower() != b"chunked":
                self._stop(bad_request(f"Transfer-Encoding: {value[:60].decode('latin-1')!r} is not chunked alone."))
            self._chunked = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A request's head is there; its body begins."""
        if b"#" in self.url:
            shown = self.url[:200].decode("latin-1")
            self._stop(
                bad_request(
                    f"The target {shown!r} has a #, which no request may have (RFC 9112 §3.2).", "In a value it is %23."
                )
            )
        if self.url[:1] != b"/":
            self._require_same_host()
        version = self.parser.get_http_version()
        if version not in _VERSIONS:
            self._stop(bad_request(f"HTTP/{version}: the gateway speaks HTTP/1.1."))
        if self._chunked and version == "1.0":
            self._stop(bad_request("Transfer-Encoding: a request of HTTP/1.0 has none (RFC 9112 §6.1)."))
        if version == "1.0":  # it knows no 100 Continue (RFC 9110 §10.1.1)
            self.expect_100_continue = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request has arrived; or its head has, of which the parser knows no more."""
        if not self.parser.should_upgrade():
            self.on_request_complete()

    def on_request_complete(self) -> None:
        super().on_message_complete()

    def _require_same_host(self) -> None:
        """Refuse a target in absolute form whose host is another one than that of Host (RFC 9112 §3.2.2)."""
        scheme, _, rest = self.url.partition(b"://")
        authority = rest.partition(b"/")[0].partition(b"?")[0].lower()
        hosts = [value.lower() for name, value in self.headers if name == b"host"]
        if scheme and rest and (hosts != [authority] or scheme.lower() not in _SCHEMES):
            self._stop(bad_request("The target names another host than Host does.", "Send the path alone."))

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > self.most_of_head:
            self._stop(self.head_too_large())

    def head_too_large(self) -> Problem:
        return Problem(
            HEAD_TOO_LARGE,
            f"The request's head has more than {self.most_of_head} bytes.",
            hint="FENCEPOST_MAX_HEAD_BYTES sets how many it may have.",
        )

    def _stop(self, problem: Problem) -> None:
        self.problem = problem
        raise RequestRefusedError
