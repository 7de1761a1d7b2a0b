"""Reads a request's headers: token, key, media types and schema. What cannot be read raises RequestError."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence

from fencepost.server.fence.problem_types import MALFORMED_TOKEN, NOT_ACCEPTABLE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, decode_segment
from fencepost.server.fence.seal import Presented, parse_presented, quotable
from fencepost.server.fence.token import MalformedTokenError
from fencepost.server.http.problems.response import RequestError

TOKEN_HEADER = b"x-fence-token"
KEY_HEADER = b"idempotency-key"
LONGEST_KEY = 255
# RFC 8941's string, and what clients send that do not know it.
_QUOTED = re.compile(rb'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_ESCAPED = re.compile(rb'\\(["\\])')
_BARE = re.compile(rb"[\x21\x23-\x7e]+")
_UUID = re.compile(rb"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_OF_A_UUID = (
    "This is a UUID, as redis-py's lock has: it tells holders apart, and not which of two grants came later. Draw a"
    " number in the script that takes the lock: docs/getting-started.md."
)
SINGULAR = "application/vnd.pgrst.object+json"
_JSON = frozenset({"", "application/json", "application/*", "*/*", SINGULAR, "application/vnd.pgrst.array+json"})


RawHeaders = Sequence[tuple[bytes, bytes]]
"""A request's headers as they came: names in lower case."""
Headers = Mapping[bytes, bytes]
"""The same by their names. Lists are joined (RFC 9110 §5.3); of several others the first counts, where any may."""
_LISTS = frozenset({b"accept", b"prefer", b"content-encoding", b"expect"})
_ONCE = frozenset({b"content-type", b"accept-profile", b"content-profile"})


def by_name(raw_headers: RawHeaders) -> Headers:
    """Read headers by their names."""
    headers = dict(raw_headers)
    if len(headers) == len(raw_headers):
        return headers
    first = dict(reversed(raw_headers))
    for name in _ONCE & headers.keys():
        if first[name] != headers[name]:
            raise RequestError(bad_request(f"{name.decode('ascii').title()}: two headers with different values."))
    for name in _LISTS & headers.keys():
        first[name] = b", ".join(value for each, value in raw_headers if each == name)
    return first


def read_token(raw_headers: Iterable[tuple[bytes, bytes]]) -> Presented | None:
    """Read X-Fence-Token (R11), with its seal if it has one; None when there is none. Two headers are one too many."""
    values = [value for name, value in raw_headers if name == TOKEN_HEADER]
    if not values:
        return None
    if len(values) > 1:
        raise RequestError(
            Problem(MALFORMED_TOKEN, f"X-Fence-Token: {len(values)} headers, and a write has one token.")
        )
    try:
        return parse_presented(values[0])
    except MalformedTokenError as error:
        shown = quotable(values[0])[:40].decode("latin-1")
        hint = _OF_A_UUID if _UUID.fullmatch(values[0]) else None
        raise RequestError(Problem(MALFORMED_TOKEN, f"X-Fence-Token: {shown!r}: {error}.", hint=hint)) from error


def read_idempotency_key(raw_headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Read Idempotency-Key (R16): a quoted string, as in the IETF draft, or bare. None when there is none."""
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


def wants_one(headers: Headers) -> bool:
    """Check Accept; True when PostgREST's single-object form is asked for."""
    accept = headers.get(b"accept")
    if accept is None or accept == b"*/*":
        return False
    text = accept.decode("latin-1")
    types = media_ranges(text)
    if SINGULAR in types:
        return True
    if not any(kind in _JSON for kind in types):
        raise RequestError(Problem(NOT_ACCEPTABLE, f"Accept: {text[:100]}: answers are application/json."))
    return False


def media_ranges(accept: str) -> "list[str | None]":
    """Read Accept: its media ranges, without parameters; None for one that is excluded by q=0. Raises RequestError."""
    return [_media_range(part, accept) for part in accept.split(",")]


def _media_range(part: str, accept: str) -> str | None:
    kind, *parameters = [each.strip().lower() for each in part.split(";")]
    for parameter in parameters:
        name, _, value = (each.strip() for each in parameter.partition("="))
        if name == "nulls":
            raise RequestError(
                bad_request(
                    f"Accept: {accept[:100]}: nulls={value} is not supported: answers have every column, null or not.",
                    "?select= names the columns to return.",
                )
            )
        if name == "q" and not value.strip("0."):
            return None
    return kind


def table_name(headers: Headers, name: str, *, writing: bool) -> str:
    """Apply PostgREST's profile, the schema of a table: Accept-Profile of reads, Content-Profile of writes. The other
    of the two is taken where both have the same schema.
    """
    reads, writes = headers.get(b"accept-profile"), headers.get(b"content-profile")
    if reads is None and writes is None:
        return name
    counts, other = ("Content-Profile", "Accept-Profile") if writing else ("Accept-Profile", "Content-Profile")
    stated, also = (writes, reads) if writing else (reads, writes)
    schema = _schema(counts, stated)
    if also is not None and _schema(other, also) != schema:
        raise RequestError(
            bad_request(
                f"{other}: {also[:60].decode('latin-1')}: the schema of a {'write' if writing else 'read'} is named by"
                f" {counts}, which names {schema if stated is not None else 'no schema: that is public'}.",
                f"Send {counts}.",
            )
        )
    return name if schema == "public" else f"{schema}.{name}"


def refuse_profile(headers: Headers) -> None:
    """Refuse a profile where resources are named: a resource's name has its schema."""
    for name in ("Accept-Profile", "Content-Profile"):
        value = headers.get(name.lower().encode("ascii"))
        if value is not None and (schema := _schema(name, value)) != "public":
            raise RequestError(
                bad_request(f"{name}: {schema}: a resource names its schema itself.", f'"{schema}.table/key"')
            )


def _schema(header: str, value: bytes | None) -> str:
    """Read a schema's name: UTF-8, percent-encoded where need be, as the names in a path."""
    if value is None:
        return "public"
    try:
        schema = decode_segment(value)
    except MalformedResourceError as error:
        raise RequestError(
            bad_request(f"{header}: {error}", "Percent-encode the name as in a path: caf%C3%A9, 100%25.")
        ) from error
    if not schema:
        raise RequestError(bad_request(f"{header}: names no schema.", "Leave the header out, or name one."))
    return schema
