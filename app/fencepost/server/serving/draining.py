"""How a connection ends when the gateway stops: no request of which a byte has arrived stays without an answer.

HTTP/1.1 has one safe end of a connection that is kept alive: an answer with `Connection: close`, after which the client
sends nothing more. So from the moment that the server drains:

- answers that have not begun carry `Connection: close`: to requests in flight, to those of which a part has arrived,
  and to those that still come;
- a connection without a request may be used once more within GRACE seconds. Clients that send one request after another
  get their `Connection: close` in that time;
- then it is closed, unless bytes lie in its socket that were not read yet: these are a request, and come first.

What remains is a request that is on its way when its idle connection is closed: the client sees the connection end
without an answer, and the request was not looked at. No server can close an idle connection without that. The
keep-alive timeout closes connections in the same way. A connection that is still in the kernel's queue, because the
process has not come to accept it, ends with the listening socket.
"""

import asyncio
import select
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
