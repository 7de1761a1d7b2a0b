"""Decides a write that was read, at once or by its queue, and answers it: that of a request, or of a batch's line."""

from functools import partial
from typing import Final

from starlette.responses import Response

from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.use_cases import write as decide
from fencepost.server.gateway.writes.write import NO_BODY, Write
from fencepost.server.http.requests.data import DataRequest
from fencepost.server.http.requests.headers import KEY_HEADER
from fencepost.server.http.responses.answers import answer, kept_answer
from fencepost.server.queues.message import METHODS, WriteMessage

_PLAIN: Final = (b"*/*", b"application/json")
"""What Accept and Content-Type mean anyway."""


async def write_answer(gateway: Gateway, request: DataRequest, write: Write) -> Response:
    """Decide a write, or put it into its queue; `request` is what it was read from."""
    outcome = await decide(
        gateway, write, partial(kept_answer, gateway, write), as_message=partial(_as_message, request, write)
    )
    return answer(write, outcome)


def _as_message(request: DataRequest, write: Write) -> WriteMessage:
    """Say what the request says, as a message does. The preferences are those that count when it is applied."""
    accept, content_type = request.headers.get(b"accept"), request.headers.get(b"content-type")
    return WriteMessage(
        "",
        METHODS[request.method.encode()],
        _body(write),
        request.query,
        write.preferences.applied or None,
        None if accept in _PLAIN else accept,
        None if content_type in _PLAIN else content_type,
        next((value for name, value in request.raw_headers if name == KEY_HEADER), None),
    )


def _body(write: Write) -> bytes | None:
    if write.body is NO_BODY:
        return None
    # That of a POST is an array by now; a message has the object.
    return write.body.raw.strip()[1:-1] if write.verb == "post" else write.body.raw
