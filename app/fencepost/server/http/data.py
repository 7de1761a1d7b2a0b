"""/v1/data: PostgREST's dialect over fenced tables: a request is read to the end, decided, and answered. Claims too.

`DataRoutes` is called before FastAPI's router and middleware (edge.py): the path must be split before it is decoded
(`%2F` is part of a key), and the hot path needs neither models nor dependencies. OpenAPI for it comes from the catalog.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import partial
from typing import Final

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.server.fence.caller import ASKING, CALLER, EVERYBODY, PEER, UNKNOWN
from fencepost.server.fence.problem_types import MALFORMED_TOKEN, METHOD_NOT_ALLOWED, NO_ROUTE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import (
    MalformedResourceError,
    Resource,
    decode_key,
    decode_segment,
    parse_resource,
)
from fencepost.server.fence.seal import Presented, SealedToken, parse_presented, quotable
from fencepost.server.fence.token import MalformedTokenError, parse_token
from fencepost.server.gateway.claims import Claim
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.idempotency import Replayed
from fencepost.server.gateway.read import ReadMany, ReadOne
from fencepost.server.gateway.use_cases import claim, read_many, read_one, report
from fencepost.server.gateway.use_cases import write as decide
from fencepost.server.gateway.write import (
    NO_BODY,
    NO_PREFERENCES,
    Body,
    IdempotencyKey,
    Listed,
    Matching,
    OneRow,
    Target,
    Verb,
    Write,
)
from fencepost.server.http.answers import (
    UNNAMEABLE,
    answer,
    fence_headers,
    json_response,
    list_answer,
    read_answer,
    replayed,
)
from fencepost.server.http.bodies import (
    Arriving,
    BodiesInHand,
    is_large,
    read_changes,
    read_no_body,
    read_object,
    read_rows,
    refuse_whole_table,
    require_form_of_patch,
)
from fencepost.server.http.edge import ASKS, NAMED, caller_of
from fencepost.server.http.headers import (
    IF_MATCH,
    IF_NONE_MATCH,
    JUDGED,
    KEY_HEADER,
    PROFILES,
    TOKEN_HEADER,
    Headers,
    RawHeaders,
    Route,
    by_name,
    read_if_match,
    read_preferences,
    refuse_headers,
    table_name,
    wants_one,
)
from fencepost.server.http.problems import RequestError, problem_response
from fencepost.server.http.query import only, parse_query
from fencepost.server.postgres.connection import Key
from fencepost.server.postgres.query import NO_QUERY, QueryError
from fencepost.server.queues.message import METHODS, WriteMessage

PREFIX: Final = b"/v1/data/"
COLLECTION_METHODS: Final = "GET, HEAD, POST, PATCH, DELETE"
ROW_METHODS: Final = "GET, HEAD, PATCH, PUT, DELETE"
_READING: Final = ("GET", "HEAD")
_OF_COLLECTIONS: Final = frozenset(COLLECTION_METHODS.split(", "))
_OF_ROWS: Final = frozenset(ROW_METHODS.split(", "))


@dataclass(slots=True)
class DataRequest:
    """A request under /v1/data/, as far as all read it that have one: the routes, queued messages, lines of batches."""

    method: str
    row: bytes
    """The key in the path, as it came."""
    query: bytes
    raw_headers: RawHeaders
    headers: Headers
    receive: Arriving


@dataclass
class Running:
    """What exists between the two ends of the application's lifespan."""

    gateway: Gateway | None = None

    def require(self) -> Gateway:
        """Return the gateway; it is there whenever a request is."""
        if self.gateway is None:
            raise RuntimeError("the application's lifespan has not begun")
        return self.gateway

    def of(self, scope: Scope) -> Gateway:
        """Give the gateway to the caller of a request, whose task this is."""
        caller, client, gateway = scope.get(CALLER, EVERYBODY), scope.get("client"), self.require()
        ASKING.set(scope.get(ASKS) or caller_of(scope))
        PEER.set(client[0] if client else UNKNOWN)
        return gateway if gateway.caller is caller else gateway.of(caller)


class DataRoutes:
    """Everything under /v1/data/, dispatched by the raw path. What is asked for is answered by a value."""

    def __init__(self, running: Running, max_body_bytes: int, bodies: BodiesInHand) -> None:
        self._running = running
        self._max_body_bytes, self._bodies = max_body_bytes, bodies

    async def __call__(self, scope: Scope, receive: Receive, _send: Send) -> Response:
        try:
            name, key, raw_key = split_path(scope["raw_path"][len(PREFIX) :])
            method = scope["method"]
            if method not in (_OF_COLLECTIONS if key is None else _OF_ROWS):
                allowed = COLLECTION_METHODS if key is None else ROW_METHODS
                problem = Problem(METHOD_NOT_ALLOWED, f"{method} is not for this path: {allowed} are.")
                return problem_response(problem, {"Allow": allowed})
            require_nameable(key)
            raw_headers = scope["headers"]
            headers = scope.get(NAMED) or by_name(raw_headers)
            if not JUDGED.isdisjoint(headers):
                writing = method not in _READING
                refuse_headers(headers, writing=writing, takes=IF_MATCH if writing and key is not None else b"")
            asked = DataRequest(method, raw_key, scope["query_string"], raw_headers, headers, receive)
            gateway = self._running.of(scope)
            if method in _READING:
                return await (_read_rows(gateway, asked, name) if key is None else _read_row(gateway, asked, name, key))
            if not is_large(headers):
                return await write_answer(gateway, asked, await read_write(asked, name, key, self._max_body_bytes))
            async with self._bodies.counting(ASKING.get(), headers, receive) as asked.receive:
                return await write_answer(gateway, asked, await read_write(asked, name, key, self._max_body_bytes))
        except RequestError as error:
            if error.problem.type is MALFORMED_TOKEN:  # other refusals of tokens are found, and reported, by a use case
                verb = (_OF_COLLECTION if key is None else _OF_ROW)[method][0]
                report(gateway, gateway.catalog.current.find(name), verb, error.problem)
            return problem_response(error.problem)
        except QueryError as error:
            return problem_response(bad_request(str(error)))


async def _read_row(gateway: Gateway, request: DataRequest, name: str, key: Key) -> Response:
    """GET /v1/data/{table}/{key}."""
    headers = request.headers
    if b"accept" in headers:
        wants_one(headers)
    query = only(parse_query(request.query), "select") if request.query else NO_QUERY
    preferences = read_preferences(headers[b"prefer"], "row") if b"prefer" in headers else NO_PREFERENCES
    table = name if PROFILES.isdisjoint(headers) else table_name(headers, name, writing=False)
    outcome = await read_one(gateway, ReadOne(table, key, query.select, ASKING.get()))
    return read_answer(outcome, preferences, headers.get(IF_NONE_MATCH))


async def _read_rows(gateway: Gateway, request: DataRequest, name: str) -> Response:
    """GET /v1/data/{table}."""
    singular = wants_one(request.headers)
    query = only(parse_query(request.query), "select", "filters", "order", "limit", "offset")
    preferences = read_preferences(request.headers.get(b"prefer"), "list")
    table = table_name(request.headers, name, writing=False)
    outcome = await read_many(gateway, ReadMany(table, query, preferences.count, ASKING.get()))
    return list_answer(outcome, query.offset, preferences, singular=singular)


_AS_IT_STANDS: Final = re.compile(rb"([^/%\x00\x80-\xff]+)/([^/%,\x00\x80-\xff]*)")
"""A table and a key of one value, in which nothing is encoded."""


def split_path(path: bytes) -> tuple[str, Key | None, bytes]:
    """Split what follows /v1/data/, before it is decoded: %2F is part of a key. Gives the table, the key (None: it is
    the path of a collection), and the key as it came. Raises RequestError.
    """
    if (plain := _AS_IT_STANDS.fullmatch(path)) is not None:
        plain_table, plain_key = plain.groups()
        return plain_table.decode(), (plain_key.decode(),), plain_key
    table, slash, raw_key = path.partition(b"/")
    if b"/" in raw_key or not table:
        raise RequestError(
            Problem(NO_ROUTE, "The path is /v1/data/{table} or /v1/data/{table}/{key}; a / inside a name is %2F.")
        )
    try:
        return decode_segment(table), decode_key(raw_key) if slash else None, raw_key
    except MalformedResourceError as error:
        raise RequestError(bad_request(f"path: {error}")) from error


def require_nameable(key: Key | None) -> None:
    """Refuse a key that clients and proxies would read as another path."""
    if key in UNNAMEABLE:
        raise RequestError(
            bad_request(f"path: the key {key[0]!r} cannot stand in a path.", "Name the row by a filter: ?column=eq.")
        )


# A write, read: what is to be written to which rows, and how that is to be answered. It is the one place that does so.
#
# A write is either done at once, or read in the same way when it is put into a queue, and again when it is taken from
# there: so it has the same meaning, and the same answer, either way.


_OF_ROW: Final[dict[str, tuple[Verb, Route, tuple[str, ...]]]] = {
    "PATCH": ("patch", "patch", ("select", "columns")),
    "PUT": ("put", "put", ("select", "columns")),
    "DELETE": ("delete", "delete", ("select",)),
}
_OF_COLLECTION: Final[dict[str, tuple[Verb, Route, tuple[str, ...]]]] = {
    "POST": ("post", "post", ("select", "columns")),
    "PATCH": ("patch", "patch-rows", ("select", "columns", "filters")),
    "DELETE": ("delete", "delete-rows", ("select", "filters")),
}
"""What a method is on the path of a row, and of a collection, and the parameters that it takes there."""


async def read_write(request: DataRequest, name: str, key: Key | None, max_body_bytes: int) -> Write:
    """Read a write of the table `name`: of the row with this key, or (None) of the collection. The method must be one
    that the path takes. Raises RequestError, QueryError for what cannot be understood.
    """
    verb, route, parameters = (_OF_COLLECTION if key is None else _OF_ROW)[request.method]
    headers, receive, limit = request.headers, request.receive, max_body_bytes
    preferences = read_preferences(headers[b"prefer"], route) if b"prefer" in headers else NO_PREFERENCES
    token = read_token(headers, request.raw_headers)
    one = b"accept" in headers and wants_one(headers)
    query = only(parse_query(request.query), *parameters) if request.query else NO_QUERY
    columns, complete = query.columns, preferences.complete
    target: Target
    if verb == "delete":  # PostgREST's clients send a body of {}, which is empty
        if key is None and not query.filters:
            raise RequestError(refuse_whole_table("DELETE"))
        await read_no_body(headers, receive, limit)
        body, target = NO_BODY, Matching(query.filters) if key is None else OneRow(key)
    elif key is not None:
        body, target = await read_object(headers, receive, limit, columns, complete=complete), OneRow(key)
    elif verb == "post":
        body, made = await read_rows(headers, receive, limit, columns, complete=complete)
        target = Listed(made)
    else:  # an object, for the rows that match the filters; or an array without them
        body, changed = await read_changes(headers, receive, limit, columns, complete=complete)
        require_form_of_patch(query, changed)
        target = Matching(query.filters) if changed is None else Listed(changed)
    table = name if PROFILES.isdisjoint(headers) else table_name(headers, name, writing=True)
    idempotency_key = _read_idempotency_key(request, table, body) if KEY_HEADER in headers else None
    if_match = read_if_match(headers[IF_MATCH]) if IF_MATCH in headers else None
    return Write(verb, table, target, token, body, query.select, preferences, one, idempotency_key, if_match)


async def read_line(
    method: str, path: bytes, headers: Headers, body: bytes, max_body_bytes: int
) -> tuple[DataRequest, Write]:
    """Read a write that is a line of a batch. `path`: what follows /v1/data/, with its query. Raises what read_write
    does.
    """
    path, _, query = path.partition(b"?")
    table, key, row = split_path(path)
    allowed = _OF_COLLECTION if key is None else _OF_ROW
    if method not in allowed:
        detail = f"method: {method[:40]!r} is not for this path: a line writes, by {', '.join(allowed)}."
        raise RequestError(Problem(METHOD_NOT_ALLOWED, detail))
    require_nameable(key)
    if IF_MATCH in headers and key is None:
        refuse_headers(headers, writing=True)
    request = DataRequest(method, row, query, tuple(headers.items()), headers, body)
    write = await read_write(request, table, key, max_body_bytes)
    request.receive = b""  # its body is in `write` now, once
    return request, write


def _read_idempotency_key(request: DataRequest, table: str, body: Body) -> IdempotencyKey | None:
    text = read_idempotency_key(request.headers, request.raw_headers)
    if text is None:
        return None
    written = b"" if body is NO_BODY else body.raw
    payload = payload_hash(request.method, table.removeprefix("public."), request.row, request.query, written)
    return IdempotencyKey(text, payload)


# Token and Idempotency-Key of a write or claim.

LONGEST_KEY = 255
# RFC 8941's string, and what clients send that do not know it.
_QUOTED_KEY = re.compile(rb'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_ESCAPED = re.compile(rb'\\(["\\])')
_BARE = re.compile(rb"[\x21\x23-\x7e]+")
_UUID = re.compile(rb"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
_OF_A_UUID = (
    "This is a UUID, as redis-py's lock has: it tells holders apart, and not which of two grants came later. Draw a"
    " number in the script that takes the lock: docs/getting-started.md."
)


def read_token(headers: Headers, raw_headers: RawHeaders) -> Presented | None:
    """Read X-Fence-Token (R11), with its seal if it has one; None when there is none. Two headers are one too many."""
    value = headers.get(TOKEN_HEADER)
    if value is None:
        return None
    if len(headers) != len(raw_headers) and (count := _count(TOKEN_HEADER, raw_headers)) > 1:
        raise RequestError(Problem(MALFORMED_TOKEN, f"X-Fence-Token: {count} headers, and a write has one token."))
    try:
        return parse_presented(value) if b"." in value else parse_token(value)
    except MalformedTokenError as error:
        shown = quotable(value)[:40].decode("latin-1")
        hint = _OF_A_UUID if _UUID.fullmatch(value) else None
        raise RequestError(Problem(MALFORMED_TOKEN, f"X-Fence-Token: {shown!r}: {error}.", hint=hint)) from error


def _count(header: bytes, raw_headers: RawHeaders) -> int:
    return sum(name == header for name, _ in raw_headers)


def read_idempotency_key(headers: Headers, raw_headers: RawHeaders) -> str | None:
    """Read Idempotency-Key (R16): a quoted string, as in the IETF draft, or bare. None when there is none."""
    value = headers.get(KEY_HEADER)
    if value is None:
        return None
    if len(headers) != len(raw_headers) and (count := _count(KEY_HEADER, raw_headers)) > 1:
        raise RequestError(bad_request(f"Idempotency-Key: {count} headers, and a request has one key."))
    quoted = _QUOTED_KEY.fullmatch(value)
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


# Decides a write that was read, at once or by its queue, and answers it: that of a request, or of a batch's line.

_PLAIN: Final = (b"*/*", b"application/json")
"""What Accept and Content-Type mean anyway."""


async def write_answer(gateway: Gateway, request: DataRequest, write: Write) -> Response:
    """Decide a write, or put it into its queue; `request` is what it was read from."""
    return answer(write, await decide(gateway, write, as_message=partial(_as_message, request, write)))


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


# Claims: what POST /v1/claims and the lines of batches have in common.


def read_resource(name: str, where: str) -> Resource:
    """Read the name of a resource. Raises RequestError."""
    try:
        return parse_resource(name)
    except MalformedResourceError as error:
        raise RequestError(bad_request(f"{where}: {error}")) from error


async def claim_answer(
    gateway: Gateway, name: str, token: Presented | None, headers: Headers, raw_headers: RawHeaders
) -> Response:
    """Claim the resource of this name, and answer. Raises RequestError."""
    text = read_idempotency_key(headers, raw_headers)
    key = None if text is None else IdempotencyKey(text, payload_hash("claim", name))
    asked = Claim(read_resource(name, "body: resource"), token, key)
    outcome = await claim(gateway, asked)
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    row = orjson.Fragment(outcome.rows[0]) if outcome.rows else None
    body = {"resource": outcome.resource, "mark": str(outcome.mark), "row": row}
    if not isinstance(outcome, Replayed):
        return json_response(body, fence_headers(outcome))
    if outcome.mark != (token.number if isinstance(token, SealedToken) else token):
        body["mark"] = None  # that of another token than this request's: it may be good for writes still
    outcome.mark = None
    of_scope = fence_headers(outcome)
    if outcome.preferences.applied:  # kept without its row
        del body["row"]
        of_scope.append((b"preference-applied", outcome.preferences.applied))
    return replayed(json_response(body, of_scope))
