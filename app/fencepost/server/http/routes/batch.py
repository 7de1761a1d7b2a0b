"""POST /v1/batch: many writes and claims in one request, a line each, and a verdict for each.

A plain ASGI application, as that of tables (data.py): body and answer are streams, both at the same time.
"""

from collections.abc import Callable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fencepost.server.fence.caller import ANONYMOUS, CALLER
from fencepost.server.fence.problem_types import METHOD_NOT_ALLOWED, NOT_ACCEPTABLE, UNSUPPORTED_MEDIA_TYPE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.http.batches.atomic import atomic_answer
from fencepost.server.http.batches.running import Batch
from fencepost.server.http.batches.verdict import NDJSON
from fencepost.server.http.batches.window import Window
from fencepost.server.http.caller import caller_of, network_of
from fencepost.server.http.guard import arrival_of
from fencepost.server.http.hanging_up import STANDING
from fencepost.server.http.problems.response import RequestError, problem_response
from fencepost.server.http.rate_limits import Pace, RateLimits
from fencepost.server.http.requests.bodies import BodiesInHand
from fencepost.server.http.requests.header_rules import JUDGED, refuse_headers
from fencepost.server.http.requests.headers import KEY_HEADER, TOKEN_HEADER, Headers, by_name, media_ranges
from fencepost.server.http.requests.query import query_pairs
from fencepost.server.postgres.query import QueryError

PATH: Final = b"/v1/batch"
_OF_LINES: Final = {TOKEN_HEADER: "token", KEY_HEADER: "idempotency_key", b"prefer": "prefer"}
_OF_PATHS: Final = (b"accept-profile", b"content-profile")
_ATOMIC: Final = frozenset({"true", "false"})
_ACCEPTED: Final = frozenset({"*/*", "application/*", NDJSON.decode()})


class BatchRoute:
    """The route."""

    def __init__(
        self, gateway: Callable[[Scope], Gateway], max_body_bytes: int, limits: RateLimits, bodies: BodiesInHand
    ) -> None:
        self._gateway, self._max_body_bytes, self._limits, self._bodies = gateway, max_body_bytes, limits, bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._whole(scope, receive)
        except RequestError as error:
            response = problem_response(error.problem)
        if response is not None:
            await response(scope, receive, send)
            return
        gateway, standing = self._gateway(scope), scope.get(STANDING)
        arrival = arrival_of(scope)
        with self._bodies.room(caller_of(scope)) as room:
            window = Window(gateway.batches.lines, room, arrival.keep)
            batch = Batch(gateway, self._max_body_bytes, receive, send, window, arrival, standing, self._pace(scope))
            try:
                await batch.run(expects=b"expect" in by_name(scope["headers"]))
            finally:
                arrival.kept = 0

    async def _whole(self, scope: Scope, receive: Receive) -> Response | None:
        """Answer what is no stream: a batch that lands as a whole, or another method's. None: it is one. Raises
        RequestError.
        """
        if scope["method"] != "POST":
            problem = Problem(METHOD_NOT_ALLOWED, f"{scope['method']} is not for this path: POST is.")
            return problem_response(problem, {"Allow": "POST"})
        headers = _read(scope)
        if not _is_atomic(scope["query_string"]):
            return None
        gateway, standing = self._gateway(scope), scope.get(STANDING)
        async with self._bodies.counting(caller_of(scope), headers, receive) as counted:
            return await atomic_answer(gateway, headers, counted, self._max_body_bytes, self._pace(scope), standing)

    def _pace(self, scope: Scope) -> Pace | None:
        """Give how fast lines may come. Without authentication nobody's are counted."""
        if STANDING not in scope:
            return None
        caller = scope[CALLER]
        return self._limits.pace(caller, network_of(scope) if caller.name == ANONYMOUS else None)


def _read(scope: Scope) -> Headers:
    """Read the headers, and refuse what concerns lines, or is not done."""
    headers = by_name(scope["headers"])
    if not JUDGED.isdisjoint(headers):
        refuse_headers(headers, writing=True)
    for name, member in _OF_LINES.items():
        if name in headers:
            raise RequestError(
                bad_request(
                    f"{name.decode().title()}: a batch has none, but each of its lines.",
                    f"The member {member} of a line.",
                )
            )
    for name in _OF_PATHS:
        if name in headers:
            raise RequestError(
                bad_request(f"{name.decode().title()}: the path of a line names its schema.", "sales.orders/order-1")
            )
    _require_ndjson(headers)
    return headers


def _is_atomic(query: bytes) -> bool:
    """Read the query: whether the batch is to land as a whole."""
    try:
        pairs = query_pairs(query)
    except QueryError as error:
        raise RequestError(bad_request(str(error))) from error
    for name, value in pairs:
        if name != "atomic":
            raise RequestError(bad_request(f"query: {name[:100]}: a batch takes atomic only."))
        if value not in _ATOMIC or len(pairs) > 1:
            raise RequestError(bad_request(f"query: atomic={value[:100]}: it is true or false, and given once."))
    return pairs == [("atomic", "true")]


def _require_ndjson(headers: Headers) -> None:
    kind, *parameters = [part.strip().lower() for part in headers.get(b"content-type", b"").split(b";")]
    if kind != NDJSON or any(parameter not in (b"charset=utf-8", b'charset="utf-8"') for parameter in parameters):
        shown = headers.get(b"content-type", b"none")[:100].decode("latin-1")
        raise RequestError(Problem(UNSUPPORTED_MEDIA_TYPE, f"Content-Type: {shown}: a batch is {NDJSON.decode()}."))
    accept = headers.get(b"accept", b"*/*").decode("latin-1")
    if _ACCEPTED.isdisjoint(media_ranges(accept)):
        raise RequestError(
            Problem(NOT_ACCEPTABLE, f"Accept: {accept[:100]}: the answers of a batch are {NDJSON.decode()}.")
        )
