"""Reads a request's body. It is read to know its keys, and goes to PostgreSQL as it came (docs/decisions/0004)."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from fencepost.server.fence.problem_types import BODY_TOO_LARGE, UNSUPPORTED_MEDIA_TYPE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.refusals import unavailable
from fencepost.server.gateway.write import UNREAD, Body
from fencepost.server.http.headers import Headers
from fencepost.server.http.problems import RequestError
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.pool import Quota, most_of
from fencepost.server.postgres.query import Query

Arriving = Receive | bytes
"""How a request's body is received; or the body, where it is there already: that of a line, or of a message."""


async def read_body(headers: Headers, receive: Arriving, limit: int) -> bytes:
    """Read the whole body, refusing as soon as it is known to be too large."""
    if isinstance(receive, bytes):
        if len(receive) > limit:
            raise RequestError(_too_large(limit))
        return receive
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


class BodiesInHand:
    """Large bodies in the memory of this process, while they arrive and while their requests wait: so many bytes at
    most, of one caller three quarters. Small ones are not counted: their number is, at other places.
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._largest = max_body_bytes
        most = MOST_BODIES * max(max_body_bytes, 1 << 20)
        setting = f"bytes of bodies, {MOST_BODIES} times FENCEPOST_MAX_BODY_BYTES"
        self._bytes = Quota(most, most_of(most), setting, f"{setting}, and three quarters of it a caller")

    @asynccontextmanager
    async def counting(self, caller: str, headers: Headers, receive: Receive) -> AsyncIterator[Receive]:
        """Count the body of a request for the block; it is received by what this gives. RequestError: there is no
        room for it.
        """
        announced = headers.get(b"content-length", b"")
        taken = min(int(announced), self._largest) if announced.isdigit() else 0
        if taken:
            self._take(caller, taken)
        arrived = 0

        async def counted() -> Message:
            nonlocal taken, arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > SMALL and not taken:
                self._take(caller, self._largest)
                taken = self._largest
            return message

        try:
            yield counted
        finally:
            if taken:
                self._bytes.give_back(caller, taken)

    @property
    def bytes(self) -> int:
        return self._bytes.count

    def _take(self, caller: str, size: int) -> None:
        full = self._bytes.take(caller, size)
        if full is not None:
            raise RequestError(unavailable(UnavailableError(f"there is no room for this body: there are {full}")))

    def takes_lines(self, caller: str, size: int) -> bool:
        """Take room for so many bytes of a batch's lines and verdicts, or say that there is none."""
        return self._bytes.take(caller, size) is None

    def give_back(self, caller: str, size: int) -> None:
        self._bytes.give_back(caller, size)


def is_large(headers: Headers) -> bool:
    """Whether a request's body counts, or may do so: its length is not announced, or has five digits or more."""
    return b"transfer-encoding" in headers or len(headers.get(b"content-length", b"")) > _DIGITS


def _too_large(limit: int) -> Problem:
    return Problem(BODY_TOO_LARGE, f"The body has more than {limit} bytes.", hint="FENCEPOST_MAX_BODY_BYTES sets it.")


async def read_json(headers: Headers, receive: Arriving, limit: int) -> tuple[bytes, Any]:
    """Read a JSON body: the bytes, and their value, in which a number past all floats, as 1e400, is infinite."""
    kind = headers.get(b"content-type")
    if kind != _APPLICATION_JSON and kind is not None:
        _require_json(kind)
    raw = await read_body(headers, receive, limit)
    if kind is None and raw:
        raise RequestError(_NO_TYPE)
    try:
        value = orjson.loads(raw)
        # Each member has a colon, so none is there twice; and the value is not deep.
        if isinstance(value, dict) and len(value) == raw.count(b":") and raw.count(b"[") < _DEEP:
            return raw, value
        if may_repeat(raw, value):
            value = _carefully(raw)
    except orjson.JSONDecodeError as error:
        try:
            value = _carefully(raw)
        except (ValueError, RecursionError) as other:
            # At a number that is too large orjson stops; that would do, and what is wrong comes after it.
            fault = other if str(error).startswith("number") else error
            raise RequestError(bad_request(f"body: not JSON: {fault}")) from error
    except RecursionError as error:
        raise RequestError(bad_request("body: arrays and objects are nested too deeply in it")) from error
    for each in value if isinstance(value, list) else (value,):
        if isinstance(each, _Repeating):
            raise RequestError(bad_request(f"body: {each.repeated[:100]!r} is given twice; which one counts?"))
    return raw, value


def may_repeat(raw: bytes, value: object) -> bool:
    """Whether an object may have a member twice, of which orjson keeps one: then fewer colons are left. A colon may
    also be in a string, there as an escape that orjson writes as a colon.
    """
    try:
        return b"\\u003" in raw or raw.count(b":") != orjson.dumps(value).count(b":")
    except orjson.JSONEncodeError:  # it reads deeper than it writes
        return True


class _Repeating(dict[str, Any]):
    """An object that has a member twice."""

    repeated: str


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeating, times = _Repeating(members), Counter(name for name, _ in pairs)
    repeating.repeated = next(name for name in times if times[name] > 1)
    return repeating


def _carefully(raw: bytes) -> object:
    """Read JSON in which there may be numbers that orjson refuses, and nothing else that it refuses; and see members
    that are there twice. Within a value of a column they may be: json, other than jsonb, has both.
    """
    value: object = json.loads(
        raw.decode(), parse_int=_integer, parse_float=float, parse_constant=_no_constant, object_pairs_hook=_object_of
    )
    json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is no character
    return value


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < _MOST_DIGITS else float(digits)


def _no_constant(name: str) -> object:
    raise ValueError(name)


_MOST_DIGITS = 300
_SHORT = 3_000
"""Characters of the longest text that is kept beside the body's bytes. No index has a longer key."""
_DEEP = 100
"""Arrays in a body that is looked at more closely: orjson takes more of them in each other than a body may have."""
_TINY = 512
"""Bytes of a body whose objects take little room, whatever they are."""
_MOST_COLUMNS = 1_600
"""PostgreSQL's own limit."""
MOST_BODIES = 256
"""So many of the largest bodies have room in a process."""
SMALL = 65_536
"""Bytes of a body without an announced length, and of a batch's lines, that are not counted."""
_DIGITS = 4
"""Digits of a length that is not counted."""
_APPLICATION_JSON = b"application/json"
_NO_TYPE = Problem(
    UNSUPPORTED_MEDIA_TYPE,
    "The body has no Content-Type.",
    hint="Send Content-Type: application/json. A page of any site could send a body without one.",
)
_PATCHES = frozenset({"application/json-patch+json", "application/merge-patch+json"})
"""Documents that describe how to change another: read as an object or array of columns they would do something else."""
_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii"})


def _require_json(content_type: bytes) -> None:
    if not content_type:
        raise RequestError(_NO_TYPE)
    kind, *parameters = [part.strip().lower() for part in content_type.decode("latin-1").split(";")]
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise RequestError(Problem(UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {kind[:100]}: bodies are application/json."))
    if kind in _PATCHES:
        raise RequestError(
            Problem(UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {kind}: a PATCH takes an object of columns and values.")
        )
    for name, _, value in (parameter.partition("=") for parameter in parameters):
        if name == "charset" and value.strip('"') not in _CHARSETS:
            raise RequestError(Problem(UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {value[:40]}: JSON is UTF-8."))


async def read_no_body(headers: Headers, receive: Arriving, limit: int) -> None:
    """Read the body of a DELETE. PostgREST's clients send {}, which is empty; any other body is refused."""
    raw = await read_body(headers, receive, limit)
    if not raw:
        return
    _require_json(headers.get(b"content-type", b""))
    if raw == b"{}" or not raw.strip():
        return
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = None
    if value not in ({}, []):
        raise RequestError(bad_request("body: a DELETE takes none, or {}: the path or the query names its rows."))


async def read_object(
    headers: Headers, receive: Arriving, limit: int, columns: tuple[str, ...] | None, *, complete: bool = False
) -> Body:
    """Read the JSON object of a PATCH or PUT. `columns` (?columns=) restricts what counts; `complete`: see
    Preferences.
    """
    raw, value = await read_json(headers, receive, limit)
    if not isinstance(value, dict):
        raise RequestError(bad_request(f"body: {_kind(value)}, where one JSON object is expected"))
    return _object(raw, value, columns, complete=complete)


async def read_rows(
    headers: Headers, receive: Arriving, limit: int, columns: tuple[str, ...] | None, *, complete: bool = False
) -> tuple[Body, int]:
    """Read the JSON object or array of a POST, and count it; the body's text is always an array."""
    raw, value = await read_json(headers, receive, limit)
    if isinstance(value, dict):
        return _object(b"[%b]" % raw, value, columns, complete=complete), 1
    return _array(raw, value, columns, complete=complete)


async def read_changes(
    headers: Headers, receive: Arriving, limit: int, columns: tuple[str, ...] | None, *, complete: bool = False
) -> tuple[Body, int | None]:
    """Read the body of a PATCH of several rows: one JSON object for all of them (None), or an array, and count it."""
    raw, value = await read_json(headers, receive, limit)
    if isinstance(value, dict):
        return _object(raw, value, columns, complete=complete), None
    return _array(raw, value, columns, complete=complete)


def _object(raw: bytes, value: dict[str, Any], columns: tuple[str, ...] | None, *, complete: bool) -> Body:
    if columns is not None and complete:
        _require_all(value, columns, 0)
    return _body(raw, value, columns)


def _body(raw: bytes, first: dict[str, Any], columns: tuple[str, ...] | None) -> Body:
    """Make a body of its JSON and of its object, or of the first of its objects."""
    if columns is None and len(first) > _MOST_COLUMNS:
        raise RequestError(
            bad_request(f"body: an object has {len(first)} members; a table has {_MOST_COLUMNS} columns at most.")
        )
    if columns is not None and len(first) > _MOST_COLUMNS:
        first = {name: first[name] for name in columns if name in first}
    if len(raw) <= _TINY or all(map(_is_short, first.values())):
        return Body(raw, tuple(first) if columns is None else columns, first)
    short = {name: value if _is_short(value) else UNREAD for name, value in first.items()}
    return Body(raw, tuple(first) if columns is None else columns, short)


def _is_short(value: object) -> bool:
    return len(value) <= _SHORT if isinstance(value, str) else not isinstance(value, list | dict)


def _require_all(row: dict[str, Any], columns: tuple[str, ...], number: int) -> None:
    if lacking := [name for name in columns if name not in row]:
        raise RequestError(
            bad_request(
                f"Prefer: missing=default is not supported: element {number} of the body lacks {', '.join(lacking)},"
                " which ?columns= names, and would get null.",
                "Leave the key out of every object, or give all objects a value for it.",
            )
        )


def require_form_of_patch(query: Query, count: int | None) -> None:
    """Refuse a PATCH of a collection that selects its rows twice, or not at all. `count`: as read_changes."""
    if count is None and not query.filters:
        raise RequestError(refuse_whole_table("PATCH"))
    if count is not None and query.filters:
        raise RequestError(
            bad_request(
                "query: filters and an array body: each object of an array names its row by its key, and filters would"
                " name others.",
                "An object with filters, or an array without.",
            )
        )


def refuse_whole_table(method: str) -> Problem:
    """Refuse a write that names no rows."""
    array = " For many rows, each with changes of its own: an array of objects that have their keys."
    return bad_request(
        f"query: {method} of a whole table is refused: name the rows by a filter.",
        f"?status=eq.new; for one row, its key in the path.{array if method == 'PATCH' else ''}",
    )


def _array(raw: bytes, value: object, columns: tuple[str, ...] | None, *, complete: bool) -> tuple[Body, int]:
    if not isinstance(value, list):
        raise RequestError(bad_request(f"body: {_kind(value)}, where a JSON object or an array of them is expected"))
    first = value[0] if value else {}
    for number, row in enumerate(value):
        if not isinstance(row, dict):
            raise RequestError(bad_request(f"body: element {number} is {_kind(row)}, where a JSON object is expected"))
        if columns is not None and complete:
            _require_all(row, columns, number)
        if columns is None and row.keys() != first.keys():
            differing = ", ".join(sorted(row.keys() ^ first.keys()))
            raise RequestError(
                bad_request(
                    f"body: element {number} has other keys than element 0 ({differing}); all must have the same",
                    "?columns=a,b names the columns to take; a key that is missing is null then.",
                )
            )
    return _body(raw, first, columns), len(value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


# A line of a batch (http/batch.py), taken apart with the text of each value, which orjson does not give: the body of a
# write goes on as it came.

LINE_OF_WRITE: Final = ("method", "path", "token", "idempotency_key", "prefer", "if_match", "body")
LINE_OF_CLAIM: Final = ("claim", "token", "idempotency_key")
_KNOWN: Final = (*LINE_OF_WRITE, "claim")
_BLANKS: Final = re.compile(r"[ \t\r]*")
_BODY: Final = re.compile(rb'(?<!\\)"body"[ \t\r]*:')
# Numbers count as their text only, which may have thousands of digits.
_DECODER: Final = json.JSONDecoder(parse_int=float, parse_constant=_no_constant)

Members = dict[str, tuple[object, str]]
"""The values of a line's members, and the texts of those that are no strings."""


def bad_line(detail: str, known: tuple[str, ...] = ()) -> RequestError:
    """Refuse a line of a batch. `known`: the members that it takes."""
    return RequestError(bad_request(f"line: {detail}.", f"It takes {', '.join(known)}." if known else None))


def read_members(raw: bytes) -> Members:
    """Take a line apart. Raises RequestError."""
    try:
        return read_quickly(raw) or taken_apart(raw.decode())
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, nested too deeply
        raise bad_line(f"not JSON: {str(error)[:200]}") from error


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
        raise bad_line("it begins with a UTF-8 byte order mark (BOM)" if has_mark else "it is no JSON object")
    at = _after_blanks(text, at + 1)
    while text[at : at + 1] != "}" or found:
        name, at = _DECODER.raw_decode(text, at)
        at = _after_blanks(text, at)
        if not isinstance(name, str) or text[at : at + 1] != ":":
            raise ValueError(f"a member is written as a string, a colon and a value: character {at}")
        begin = _after_blanks(text, at + 1)
        value, at = _DECODER.raw_decode(text, begin)
        if name in found:
            raise bad_line(f"{name[:100]!r} is given twice; which one counts?")
        if name not in _KNOWN:
            raise bad_line(f"{name[:100]!r} is no member of a line", _KNOWN)
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
