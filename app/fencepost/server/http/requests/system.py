"""What the system routes have in common: which headers and parameters they take. All others that ask for something are
refused by name.
"""

from starlette.requests import Request

from fencepost.server.fence.problems import bad_request
from fencepost.server.http.problems.response import RequestError
from fencepost.server.http.requests.header_rules import JUDGED, refuse_headers
from fencepost.server.http.requests.headers import KEY_HEADER, TOKEN_HEADER, Headers, by_name, refuse_profile
from fencepost.server.http.requests.preferences import READS, Route, read_preferences
from fencepost.server.http.requests.query import query_pairs
from fencepost.server.postgres.query import QueryError


def read_headers(request: Request, route: Route, *, query: bool = False, resources: bool = False) -> Headers:
    """Read the headers, and refuse what this route does not do. `query`: it takes one, and reads it itself.
    `resources`: it takes names of resources, to which a profile would have to be applied.
    """
    headers = by_name(request.scope["headers"])
    if not JUDGED.isdisjoint(headers):
        refuse_headers(headers, writing=route not in READS)
    read_preferences(headers.get(b"prefer"), route)
    if route == "lease":
        _refuse_token_and_key(headers)
    if not query and request.scope["query_string"]:
        _refuse_query(request.scope["query_string"])
    if resources:
        refuse_profile(headers)
    return headers


def _refuse_token_and_key(headers: Headers) -> None:
    if TOKEN_HEADER in headers:
        raise RequestError(
            bad_request(
                "X-Fence-Token: a lease is not judged by a token, nor changed under one.",
                "X-Lease-Secret proves whose the lease is.",
            )
        )
    if KEY_HEADER in headers:
        raise RequestError(
            bad_request(
                "Idempotency-Key: this route keeps no answers.",
                "To repeat an acquire safely, send it with an X-Lease-Secret of your own: it gives the same lease.",
            )
        )


def _refuse_query(raw: bytes) -> None:
    try:
        names = [name for name, _ in query_pairs(raw)]
    except QueryError as error:
        raise RequestError(bad_request(str(error))) from error
    if names:
        raise RequestError(bad_request(f"query: {', '.join(names)[:100]}: this route takes no parameters."))
