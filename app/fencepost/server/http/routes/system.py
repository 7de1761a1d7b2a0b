"""The routes that are the same for every database: claims and fences.

They are FastAPI's, so they document themselves.
"""

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response
from pydantic import TypeAdapter
from starlette.types import Scope

from fencepost.server import wire
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource
from fencepost.server.gateway.explain import Explained
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.use_cases import explain
from fencepost.server.http.caller import caller_of
from fencepost.server.http.openapi.problems import problems
from fencepost.server.http.openapi.shared_parameters import IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_PATTERN, TOKEN_PATTERN
from fencepost.server.http.problems.response import RequestError, answer_or_problem, problem_response
from fencepost.server.http.requests.bodies import read_json
from fencepost.server.http.requests.headers import read_token
from fencepost.server.http.requests.query import query_pairs
from fencepost.server.http.requests.system import read_headers
from fencepost.server.http.responses.raw import json_response
from fencepost.server.http.writes.claiming import claim_answer, read_resource
from fencepost.server.postgres.query import QueryError

TokenHeader = Annotated[
    str | None,
    Header(
        alias="X-Fence-Token",
        description="The token of your grant: a positive decimal integer, with its seal if it has one. It is spent by"
        " the claim.",
        examples=["34"],
        # Documented, and not checked here: `read_token` does, and answers FP004.
        json_schema_extra={"pattern": TOKEN_PATTERN},
    ),
]
KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description=IDEMPOTENCY_KEY,
        json_schema_extra={"pattern": IDEMPOTENCY_KEY_PATTERN},  # as above: `read_idempotency_key` checks
    ),
]
# Read by `_resource_parameter`.
_RESOURCE: Final[dict[str, Any]] = {
    "name": "resource",
    "in": "query",
    "required": True,
    "description": "The resource: table/key.",
    "schema": {"type": "string"},
    "example": "orders/order-123",
}

CLAIM_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": TypeAdapter(wire.ClaimRequest).json_schema(),
                "example": {"resource": "orders/order-123"},
            }
        },
    }
}
_CLAIM_PROBLEMS: Final = problems(
    (400, "The body, the key or the token cannot be read."),
    (403, "The table is not protected, or the token's seal is not for the resource."),
    (404, "There is no such table."),
    (409, "The token is stale or spent, or was never issued; or the Idempotency-Key is being worked on."),
    (413, "The body is too large."),
    (415, "The body is not JSON."),
    (422, "The Idempotency-Key was used for another request."),
    (428, "The claim carries no token, or one without the seal that the table wants."),
    (503, "The database cannot be asked, or its answer was lost."),
)
_FENCE_PROBLEMS: Final = problems(
    (400, "The resource, the query or a header cannot be read."),
    (403, "The table is not protected."),
    (404, "There is no such table."),
    (503, "The database cannot be asked."),
)


def claim_routes(gateway: Callable[[Scope], Gateway], max_body_bytes: int) -> APIRouter:
    """Give POST /v1/claims and GET /v1/fences."""
    router = APIRouter(tags=["fences"])

    @router.post(
        "/v1/claims",
        response_model=wire.ClaimAnswer,
        summary="Claim a resource: no older token can write to it from now on",
        openapi_extra=CLAIM_BODY,
        responses=_CLAIM_PROBLEMS,
    )
    async def post_claim(request: Request, _token: TokenHeader = None, _key: KeyHeader = None) -> Response:
        """Raise the resource's mark to your token without writing data, and read the row from the same statement.

        Do this first when you have acquired a lock: what you read then can no longer be changed by an older holder.
        A key without a row is claimed too; `row` is null then.
        """
        return await answer_or_problem(_claim(gateway, max_body_bytes, request))

    @router.get(
        "/v1/fences",
        response_model=wire.FenceAnswer,
        summary="What is known of a resource: mark, rule, source",
        openapi_extra={"parameters": [_RESOURCE]},
        responses=_FENCE_PROBLEMS,
    )
    async def get_fence(request: Request) -> Response:
        """Show a resource's mark, and what is known of how it came by it. A token in the request is not looked at."""
        return await answer_or_problem(_explain(gateway, request))

    return router


async def _claim(gateway: Callable[[Scope], Gateway], limit: int, request: Request) -> Response:
    headers = read_headers(request, "claim", resources=True)
    token = read_token(request.scope["headers"])
    _, body = await read_json(headers, request.receive, limit)
    if not isinstance(body, dict) or set(body) != {"resource"} or not isinstance(body["resource"], str):
        raise RequestError(bad_request('body: a claim is {"resource": "orders/order-123"}, with nothing else'))
    return await claim_answer(gateway(request.scope), body["resource"], token, request.scope["headers"])


def _resource_parameter(raw: bytes) -> Resource:
    """Read ?resource=, as strictly as every other query: FastAPI would let bad bytes pass, and take the last of two."""
    try:
        pairs = query_pairs(raw)
    except QueryError as error:
        raise RequestError(bad_request(str(error))) from error
    if [name for name, _ in pairs] != ["resource"]:
        raise RequestError(bad_request("query: this takes one parameter: ?resource=orders/order-123"))
    return read_resource(pairs[0][1], "query: resource")


async def _explain(gateway: Callable[[Scope], Gateway], request: Request) -> Response:
    read_headers(request, "look", query=True, resources=True)
    scope = request.scope
    outcome = await explain(gateway(scope), _resource_parameter(scope["query_string"]), caller_of(scope))
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if not isinstance(outcome, Explained):
        raise TypeError(f"an explanation gave {outcome!r}")
    return json_response(outcome.body)
