"""An answer whose headers are bytes already: what Starlette's own does to them costs more than the rest of it."""

from collections.abc import Sequence

import orjson
from starlette.responses import Response

Header = tuple[bytes, bytes]
NO_STORE: Header = (b"cache-control", b"no-store")
JSON: Header = (b"content-type", b"application/json")


class RawResponse(Response):
    """A response from its status, its body, and headers in lower case; the length is added, where there is a body."""

    def __init__(self, status: int, headers: list[Header], body: bytes = b"") -> None:
        self.status_code = status
        self.body = body
        self.background = None
        if body:
            headers.append((b"content-length", b"%d" % len(body)))
        self.raw_headers = headers


def json_response(body: object, headers: Sequence[Header] = ()) -> Response:
    """Build an answer of the system routes."""
    return RawResponse(200, [NO_STORE, *headers, JSON], orjson.dumps(body))
