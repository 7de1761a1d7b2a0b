"""What a request says: token, preferences, media types and body. Whatever cannot be read raises RequestError."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fencepost.fencing.problem_types import BODY_TOO_LARGE, MALFORMED_TOKEN, NOT_ACCEPTABLE, UNSUPPORTED_MEDIA_TYPE
from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.token import MalformedTokenError, Token, parse_token
from fencepost.gateway.plans import Body
from fencepost.http.problem_response import RequestError
from fencepost.storage.query import Query

TOKEN_HEADER = b"x-fence-token"
KEY_HEADER = b"idempotency-key"
LONGEST_KEY = 255
# RFC 8941's string, and what clients send who never heard of it.
_QUOTED = re.compile(rb'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_ESCAPED = re.compile(rb'\\(["\\])')
_BARE = re.compile(rb"[\x21\x23-\x7e]+")
SINGULAR = "application/vnd.pgrst.object+json"
_JSON = frozenset({"application/json", "application/*", "*/*", SINGULAR, "application/vnd.pgrst.array+json"})


RawHeaders = Sequence[tuple[bytes, bytes]]
"""A request's headers as they came: names in lower case."""
Headers = Mapping[bytes, bytes]
"""The same by their names. Of several the first counts; lists are joined (RFC 9110 §5.3)."""


def by_name(raw_headers: RawHeaders) -> Headers:
    """Read headers by their names."""
    headers = dict(raw_headers)
    if len(headers) < len(raw_headers):
        headers = dict(reversed(raw_headers))
        for name in _LISTS & headers.keys():
            headers[name] = b", ".join(value for each, value in raw_headers if each == name)
    return headers


_LISTS = frozenset({b"accept", b"prefer"})


def read_token(raw_headers: Iterable[tuple[bytes, bytes]]) -> Token | None:
    """Read X-Fence-Token (R11); None when there is none. Two headers are one too many."""
    values = [value for name, value in raw_headers if name == TOKEN_HEADER]
    if not values:
        return None
    if len(values) > 1:
        raise RequestError(
            Problem(MALFORMED_TOKEN, f"X-Fence-Token: {len(values)} headers, and a write has one token.")
        )
    try:
        return parse_token(values[0])
    except MalformedTokenError as error:
        shown = values[0][:40].decode("latin-1")
        raise RequestError(Problem(MALFORMED_TOKEN, f"X-Fence-Token: {shown!r}: {error}.")) from error


def refuse_token(raw_headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a token on a read: a claim changes state, and a GET may be repeated by any proxy."""
    if any(name == TOKEN_HEADER for name, _ in raw_headers):
        raise RequestError(
            bad_request("X-Fence-Token: reads carry no token.", "To fence older holders off, POST /v1/claims.")
        )


def read_idempotency_key(raw_headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Read Idempotency-Key (R16): a quoted string, as the IETF draft says, or bare. None when there is none."""
    values = [value for name, value in raw_headers if name == KEY_HEADER]
    if not values:
        return None
    if len(values) > 1:
        raise RequestError(bad_request(f"Idempotency-Key: {len(values)} headers, and a request has one key."))
    value = values[0]
    quoted = _QUOTED.fullmatch(value)
    key = _ESCAPED.sub(rb"\1", quoted[1]) if quoted else value
    if not (quoted or _BARE.fullmatch(value)) or not 1 <= len(key) <= LONGEST_KEY:
        raise RequestError(
            bad_request(
                f"Idempotency-Key: {value[:40].decode('latin-1')!r}: a key is 1 to {LONGEST_KEY} visible ASCII"
                ' characters, "in quotes" or bare.',
                "A UUID is a good one.",
            )
        )
    return key.decode("ascii")


def payload_hash(*parts: bytes | str) -> bytes:
    """Hash what a request wants: method, table, key, query, body. Each part is hashed with its length."""
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return hashlib.sha256(b"".join([b"%d:%b" % (len(part), part) for part in raw])).digest()


@dataclass(frozen=True, slots=True)
class Preferences:
    """`Prefer`, as far as it is known; the rest is ignored, as RFC 7240 says."""

    answer: Literal["minimal", "representation", "headers-only"] | None = None
    count: bool = False


def read_preferences(headers: Headers) -> Preferences:
    """Read every Prefer header."""
    prefer = headers.get(b"prefer")
    if prefer is None:
        return _NO_PREFERENCES
    answer: Literal["minimal", "representation", "headers-only"] | None = None
    count = False
    for token in prefer.decode("latin-1").replace(";", ",").split(","):
        match token.strip().lower():
            case "return=minimal":
                answer = "minimal"
            case "return=representation":
                answer = "representation"
            case "return=headers-only":
                answer = "headers-only"
            case "count=exact" | "count=planned" | "count=estimated":
                count = True
            case _:
                pass
    return Preferences(answer, count)


_NO_PREFERENCES = Preferences()


def wants_one(headers: Headers) -> bool:
    """Check Accept; True when PostgREST's single-object form is asked for."""
    accept = headers.get(b"accept")
    if accept is None or accept == b"*/*":
        return False
    text = accept.decode("latin-1")
    types = [part.split(";")[0].strip().lower() for part in text.split(",")]
    if SINGULAR in types:
        return True
    if not any(kind in _JSON or not kind for kind in types):
        raise RequestError(Problem(NOT_ACCEPTABLE, f"Accept: {text[:100]}: answers are application/json."))
    return False


def table_name(headers: Headers, name: str, *, writing: bool) -> str:
    """Apply PostgREST's Accept-Profile or Content-Profile: the schema of an unqualified table."""
    profile = headers.get(b"content-profile" if writing else b"accept-profile")
    return name if profile is None or profile == b"public" else f"{profile.decode('latin-1')}.{name}"


async def read_body(headers: Headers, receive: Receive, limit: int) -> bytes:
    """Read the whole body, refusing as soon as it is known to be too large."""
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > limit:
        raise RequestError(_too_large(limit))
    message = await receive()
    body: bytes = message.get("body", b"")
    while message["type"] == "http.request" and message.get("more_body", False) and len(body) <= limit:
        message = await receive()
        body += message.get("body", b"")
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    if len(body) > limit:
        raise RequestError(_too_large(limit))
    return body


def _too_large(limit: int) -> Problem:
    return Problem(BODY_TOO_LARGE, f"The body has more than {limit} bytes.", hint="FENCEPOST_MAX_BODY_BYTES sets it.")


async def read_json(headers: Headers, receive: Receive, limit: int) -> tuple[bytes, Any]:
    """Read a JSON body: the bytes, and what they say."""
    kind = headers.get(b"content-type", _APPLICATION_JSON)
    if kind != _APPLICATION_JSON:
        _require_json(kind)
    raw = await read_body(headers, receive, limit)
    try:
        return raw, orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(bad_request(f"body: not JSON: {error}")) from error


_APPLICATION_JSON = b"application/json"


def _require_json(content_type: bytes) -> None:
    kind = content_type.decode("latin-1").split(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise RequestError(Problem(UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {kind[:100]}: bodies are application/json."))


async def read_object(headers: Headers, receive: Receive, limit: int, columns: tuple[str, ...] | None) -> Body:
    """Read the JSON object of a PATCH or PUT. `columns` (?columns=) restricts what counts."""
    raw, value = await read_json(headers, receive, limit)
    if not isinstance(value, dict):
        raise RequestError(bad_request(f"body: {_kind(value)}, where one JSON object is expected"))
    return Body(raw.decode(), columns if columns is not None else tuple(value), value)


async def read_rows(
    headers: Headers, receive: Receive, limit: int, columns: tuple[str, ...] | None
) -> tuple[Body, int]:
    """Read the JSON object or array of a POST, and count it; the body's text is always an array."""
    raw, value = await read_json(headers, receive, limit)
    if isinstance(value, dict):
        return Body(f"[{raw.decode()}]", columns if columns is not None else tuple(value), value), 1
    return _array(raw, value, columns)


async def read_changes(
    headers: Headers, receive: Receive, limit: int, columns: tuple[str, ...] | None
) -> tuple[Body, int | None]:
    """Read the body of a PATCH of several rows: one JSON object for all of them (None), or an array, and count it."""
    raw, value = await read_json(headers, receive, limit)
    if isinstance(value, dict):
        return Body(raw.decode(), columns if columns is not None else tuple(value), value), None
    return _array(raw, value, columns)


def require_form_of_patch(query: Query, count: int | None) -> None:
    """Refuse a PATCH of a collection that says twice which rows it means, or not at all. `count`: as read_changes."""
    if count is None and not query.filters:
        raise RequestError(whole_table("PATCH"))
    if count is not None and query.filters:
        raise RequestError(
            bad_request(
                "query: filters and an array body: each object of an array names its row by its key, and filters would"
                " name others.",
                "An object with filters, or an array without.",
            )
        )


def whole_table(method: str) -> Problem:
    """Refuse a write that names no rows."""
    array = " For many rows, each with changes of its own: an array of objects that have their keys."
    return bad_request(
        f"query: {method} of a whole table is refused: name the rows by a filter.",
        f"?status=eq.new; for one row, its key in the path.{array if method == 'PATCH' else ''}",
    )


def _array(raw: bytes, value: object, columns: tuple[str, ...] | None) -> tuple[Body, int]:
    if not isinstance(value, list):
        raise RequestError(bad_request(f"body: {_kind(value)}, where a JSON object or an array of them is expected"))
    first = value[0] if value else {}
    for number, row in enumerate(value):
        if not isinstance(row, dict):
            raise RequestError(bad_request(f"body: element {number} is {_kind(row)}, where a JSON object is expected"))
        if columns is None and row.keys() != first.keys():
            differing = ", ".join(sorted(row.keys() ^ first.keys()))
            raise RequestError(
                bad_request(
                    f"body: element {number} has other keys than element 0 ({differing}); all must have the same",
                    "?columns=a,b names the columns to take; a key that is missing is null then.",
                )
            )
    return Body(raw.decode(), columns if columns is not None else tuple(first), first), len(value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
