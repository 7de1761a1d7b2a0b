"""The lines of a batch: split from its body, read, and answered with a verdict each. A line is a write or a claim.

    {"method": "PATCH", "path": "orders/order-1?select=status", "token": 34, "body": {"status": "paid"}}
    {"claim": "orders/order-1", "token": 34}

The members stand for what a request has: `path` for what follows /v1/data/ and the query, as they are sent; `token`,
`idempotency_key` and `prefer` for their headers. The body goes on as it came (docs/decisions/0004): so the line is
taken apart with the place of each value, which orjson does not give.
"""

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson
from starlette.responses import Response

from fencepost.server.fence.problem_types import BODY_TOO_LARGE, METHOD_NOT_ALLOWED
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.write import ConflictKey, place_of, place_of_claim
from fencepost.server.http.bodies import may_repeat
from fencepost.server.http.data import (
    DataRequest,
    body_of,
    claim_answer,
    read_idempotency_key,
    read_resource,
    read_token,
    read_write,
    require_nameable,
    split_path,
    write_answer,
)
from fencepost.server.http.headers import KEY_HEADER, TOKEN_HEADER, RawHeaders
from fencepost.server.http.problems import RequestError
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import Key
from fencepost.server.postgres.tables import Catalog

# Splits a body into its lines, as it arrives. Of a line that is too long nothing is kept.


class Splitter:
    """`longest`: bytes that a line may have, without its end."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._line = bytearray()
        self._too_long = False

    @property
    def begun(self) -> int:
        """Bytes of the line whose end has not come."""
        return len(self._line)

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Take a part of the body, and give the lines that end in it; None for one that is too long."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end])
            start = end + 1
            yield self._take()
        self._keep(data[start:])

    def end(self) -> Iterator[bytes | None]:
        """Give the last line, if it has no end of its own."""
        if self._line or self._too_long:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._line) + len(part) > self._longest:
            self._line.clear()
            self._too_long = True
        else:
            self._line += part

    def _take(self) -> bytes | None:
        line = None if self._too_long else bytes(self._line)
        self._line.clear()
        self._too_long = False
        return line


_WRITE: Final = ("method", "path", "token", "idempotency_key", "prefer", "body")
_CLAIM: Final = ("claim", "token", "idempotency_key")
_KNOWN: Final = (*_WRITE, "claim")
_OF_ROWS: Final = ("PATCH", "PUT", "DELETE")
_OF_COLLECTIONS: Final = ("POST", "PATCH", "DELETE")
_BLANKS: Final = re.compile(r"[ \t\r]*")
_UNSENDABLE: Final = re.compile(r"[\x00-\x20\x7f#]")
"""What no target of a request has as it stands: a # would be its end."""
_BODY: Final = re.compile(rb'(?<!\\)"body"[ \t\r]*:')
_WHOLE: Final = re.compile(r"-?[0-9]+")
_ESCAPED: Final = re.compile(r'(["\\])')


def _no_constant(name: str) -> object:
    raise ValueError(name)


# Numbers count as their text only, which may have thousands of digits.
_DECODER: Final = json.JSONDecoder(parse_int=float, parse_constant=_no_constant)

Members = dict[str, tuple[object, str]]
"""The values of a line's members, and the texts of those that are no strings."""


@dataclass(slots=True)
class WriteLine:
    """A write: what the routes of tables have read of a request when its path is split."""

    table: str
    key: Key | None
    request: DataRequest


@dataclass(slots=True)
class ClaimLine:
    """A claim: what POST /v1/claims has read of a request."""

    resource: str
    headers: RawHeaders


def read_line(raw: bytes) -> WriteLine | ClaimLine:
    """Read a line. Raises RequestError for one that is neither a write nor a claim."""
    members = _members(raw)
    known = _CLAIM if "claim" in members else _WRITE
    if unknown := [name for name in members if name not in known]:
        raise _bad(f"{unknown[0][:100]!r} is no member of a {'claim' if known is _CLAIM else 'write'}", known)
    headers = _headers(members)
    if known is _CLAIM:
        return ClaimLine(_text(members, "claim"), headers)
    if lacking := [name for name in ("method", "path") if name not in members]:
        raise _bad(f"it has no {lacking[0]}, and is no claim", known)
    path, _, query = _sendable(_text(members, "path")).partition(b"?")
    table, key, row = split_path(path)
    method = _text(members, "method")
    allowed = _OF_COLLECTIONS if key is None else _OF_ROWS
    if method not in allowed:
        detail = f"method: {method[:40]!r} is not for this path: a line writes, by {', '.join(allowed)}."
        raise RequestError(Problem(METHOD_NOT_ALLOWED, detail))
    require_nameable(key)
    body = members["body"][1].encode() if "body" in members else b""
    return WriteLine(table, key, DataRequest(method, row, query, headers, dict(headers), body_of(body)))


def _bad(detail: str, known: tuple[str, ...] = ()) -> RequestError:
    return RequestError(bad_request(f"line: {detail}.", f"It takes {', '.join(known)}." if known else None))


def _members(raw: bytes) -> Members:
    try:
        return read_quickly(raw) or taken_apart(raw.decode())
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, nested too deeply
        raise _bad(f"not JSON: {str(error)[:200]}") from error


def read_quickly(raw: bytes) -> Members | None:
    """Read a line as most are, in a tenth of the time: no value but the body is an object, and the body is last. So the
    first `"body":` is its name, and its text is all from there to the last brace. None: it is to be taken apart.
    """
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(line, dict) or may_repeat(raw, line):
        return None
    found: Members = {}
    for name, value in line.items():
        if (
            name not in _KNOWN
            or "body" in found
            or not (name == "body" or isinstance(value, str) or (type(value) is int and value > 0))
        ):
            return None  # zero may be a minus zero
        if name == "body":
            begin = _BODY.search(raw)
            if begin is None:  # its name is written with escapes
                return None
            found[name] = value, raw[begin.end() : raw.rindex(b"}")].strip(b" \t\r").decode()
        else:
            found[name] = (value, "") if isinstance(value, str) else (float(value), str(value))
    return found


def taken_apart(text: str) -> Members:
    """Read any line. Raises RequestError, ValueError, RecursionError."""
    found: Members = {}
    at = _after_blanks(text, 0)
    if text[at : at + 1] != "{":
        has_mark = text.startswith("\ufeff")
        raise _bad("it begins with a UTF-8 byte order mark (BOM)" if has_mark else "it is no JSON object")
    at = _after_blanks(text, at + 1)
    while text[at : at + 1] != "}" or found:
        name, at = _DECODER.raw_decode(text, at)
        at = _after_blanks(text, at)
        if not isinstance(name, str) or text[at : at + 1] != ":":
            raise ValueError(f"a member is written as a string, a colon and a value: character {at}")
        begin = _after_blanks(text, at + 1)
        value, at = _DECODER.raw_decode(text, begin)
        if name in found:
            raise _bad(f"{name[:100]!r} is given twice; which one counts?")
        if name not in _KNOWN:
            raise _bad(f"{name[:100]!r} is no member of a line", _KNOWN)
        found[name] = value, text[begin:at]
        at = _after_blanks(text, at)
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise ValueError(f"a comma or the end of the object is expected: character {at}")
        at = _after_blanks(text, at + 1)
    if _after_blanks(text, at + 1) != len(text):
        raise ValueError(f"something follows the object: character {at + 1}")
    return found


def _after_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return at if found is None else found.end()


def _text(members: Members, name: str) -> str:
    value, _ = members[name]
    if not isinstance(value, str):
        raise _bad(f"{name} is a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _bad(f"{name} has half of a character") from error
    return value


def _sendable(path: str) -> bytes:
    if (wrong := _UNSENDABLE.search(path)) is not None:
        raise _bad(f"path: {wrong[0]!r} is percent-encoded there")
    if path.startswith("/"):
        raise _bad(f"path: {path[:100]!r} begins with a slash; it is what follows /v1/data/, as orders/order-1")
    return path.encode()


def _headers(members: Members) -> RawHeaders:
    """Give the headers that mean the same in a request."""
    headers: list[tuple[bytes, bytes]] = []
    if "token" in members:
        value, text = members["token"]
        if not (isinstance(value, str) or (isinstance(value, float) and _WHOLE.fullmatch(text))):
            raise _bad("token is a whole number, or a string")
        headers.append((TOKEN_HEADER, (text if isinstance(value, float) else _text(members, "token")).encode()))
    if "idempotency_key" in members:
        quoted = _ESCAPED.sub(r"\\\1", _text(members, "idempotency_key"))
        headers.append((KEY_HEADER, f'"{quoted}"'.encode()))
    if "prefer" in members:
        headers.append((b"prefer", _text(members, "prefer").encode()))
    if "body" in members:
        headers.append((b"content-type", b"application/json"))
    return headers


# The verdict of a line: the answer that a request would have got, as one line of JSON.

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


# What a line of a batch asks for: its place among the others, and what decides it.

LINES_IN_A_ROW: Final = 16
"""Lines that are read before others have their turn in the event loop."""


@dataclass(slots=True)
class Understood:
    """A line that can be decided."""

    place: ConflictKey
    key: str | None
    """Its Idempotency-Key."""
    decide: Callable[[Gateway], Awaitable[Response]]
    """Decides it, as a request; raises RequestError, QueryError."""


async def understand(raw: bytes, catalog: Catalog, max_body_bytes: int) -> Understood | Problem:
    """Read a line, or say what is wrong with it."""
    try:
        return await _understood(raw, catalog, max_body_bytes)
    except RequestError as error:
        return error.problem
    except QueryError as error:
        return bad_request(str(error))


async def _understood(raw: bytes, catalog: Catalog, max_body_bytes: int) -> Understood:
    line = read_line(raw)
    if isinstance(line, ClaimLine):
        sent, headers, name = line.headers, dict(line.headers), line.resource
        token = read_token(headers, sent)
        place = place_of_claim(catalog, read_resource(name, "claim"))
        key = read_idempotency_key(headers, sent)
        return Understood(place, key, lambda gateway: claim_answer(gateway, name, token, headers, sent))
    request = line.request
    write = await read_write(request, line.table, line.key, max_body_bytes)
    if write.preferences.queued:
        raise RequestError(
            bad_request(
                "prefer: respond-async means nothing in a batch: each line is decided before its verdict.",
                "To queue a write, send it as a request.",
            )
        )
    request.receive = body_of(b"")  # its body is in `write` now, once
    key = None if write.idempotency_key is None else write.idempotency_key.text
    return Understood(place_of(catalog, write), key, lambda gateway: write_answer(gateway, request, write))


def too_long(limit: int) -> Problem:
    """Refuse a line that has more bytes than a body may have."""
    return Problem(
        BODY_TOO_LARGE,
        f"The line has more than {limit} bytes: it was skipped.",
        hint="FENCEPOST_MAX_BODY_BYTES sets it.",
    )
