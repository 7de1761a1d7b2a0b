"""The verdict of a line: the answer that a request would have got, as one line of JSON."""

from typing import Final

import orjson
from starlette.responses import Response

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


def last_line(lines: int, reason: str) -> bytes:
    """Write what ends the answer of a batch that was not read to its end: `lines` were, and have their verdicts."""
    return orjson.dumps({"stopped": True, "lines": lines, "reason": reason}) + b"\n"
