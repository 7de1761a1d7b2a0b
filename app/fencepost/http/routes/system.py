"""The routes that are the same for every database: claims, fences, health, metrics.

They are FastAPI's, so they document themselves.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from fencepost import wire
from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.resource import MalformedResourceError, Resource, parse_resource
from fencepost.gateway.claims.claim import Claim
from fencepost.gateway.explain import Explained
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.outcomes import Outcome
from fencepost.gateway.use_cases import claim, explain
from fencepost.gateway.writes.idempotency import IdempotentRequest, Replayed
from fencepost.http.openapi.answers import IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_PATTERN
from fencepost.http.problems.response import RequestError, problem_response
from fencepost.http.requests.bodies import read_json
from fencepost.http.requests.headers import payload_hash, read_idempotency_key, read_token
from fencepost.http.requests.query import query_pairs
from fencepost.http.requests.system import read_headers
from fencepost.http.responses.answers import fence_headers, replay, to_recorded
from fencepost.http.responses.raw import JSON, NO_STORE, RawResponse
from fencepost.observe.metrics import CONTENT_TYPE, Metrics
from fencepost.storage.statements.query import QueryError

TokenHeader = Annotated[
    str | None,
    Header(
        alias="X-Fence-Token",
        description="The token of your grant: a positive decimal integer. It is spent by the claim.",
        examples=["34"],
        # Documented, and not checked here: `read_token` does, and says FP004.
        json_schema_extra={"pattern": "^[1-9][0-9]{0,18}$"},
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
ResourceQuery = Annotated[str | None, Query(description="The resource: table/key.", examples=["orders/order-123"])]

_PROBLEM: dict[str, Any] = {
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
}


def problems(*statuses: tuple[int, str]) -> dict[int | str, dict[str, Any]]:
    """Document these errors of a route."""
    return {status: {"description": text, **_PROBLEM} for status, text in statuses}


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


def claim_routes(gateway: Callable[[], Gateway], max_body_bytes: int) -> APIRouter:
    """Give POST /v1/claims and GET /v1/fences."""
    router = APIRouter(tags=["fences"])

    @router.post(
        "/v1/claims",
        response_model=wire.ClaimAnswer,
        summary="Claim a resource: no older token can write to it from now on",
        openapi_extra=CLAIM_BODY,
        responses=problems(
            (400, "The body, the key or the token cannot be read."),
            (403, "The table is not protected."),
            (404, "There is no such table."),
            (409, "The token is stale or spent, or was never issued; or the Idempotency-Key is being worked on."),
            (413, "The body is too large."),
            (415, "The body is not JSON."),
            (422, "The Idempotency-Key was used for another request."),
            (428, "The claim carries no token."),
            (503, "The database cannot be asked, or its answer was lost."),
        ),
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
        responses=problems(
            (400, "The resource, the query or a header cannot be read."),
            (403, "The table is not protected."),
            (404, "There is no such table."),
            (503, "The database cannot be asked."),
        ),
    )
    async def get_fence(request: Request, _resource: ResourceQuery = None) -> Response:
        """Show a resource's mark, and what is known of how it came by it. A token in the request is not looked at."""
        return await answer_or_problem(_explain(gateway, request))

    return router


async def answer_or_problem(answer: Awaitable[Response]) -> Response:
    """Give the answer, or that of what the request lacks."""
    try:
        return await answer
    except RequestError as error:
        return problem_response(error.problem)


def json_response(body: object, headers: Sequence[tuple[bytes, bytes]] = ()) -> Response:
    """Build an answer of the system routes."""
    return RawResponse(200, [NO_STORE, *headers, JSON], orjson.dumps(body))


def _resource(name: str, where: str) -> Resource:
    try:
        return parse_resource(name)
    except MalformedResourceError as error:
        raise RequestError(bad_request(f"{where}: {error}")) from error


async def _claim(gateway: Callable[[], Gateway], limit: int, request: Request) -> Response:
    headers = read_headers(request, "claim", resources=True)
    token = read_token(request.scope["headers"])
    _, body = await read_json(headers, request.receive, limit)
    if not isinstance(body, dict) or set(body) != {"resource"} or not isinstance(body["resource"], str):
        raise RequestError(bad_request('body: a claim is {"resource": "orders/order-123"}, with nothing else'))
    key = read_idempotency_key(request.scope["headers"])
    once = (
        None
        if key is None
        else IdempotentRequest(
            key, payload_hash("claim", body["resource"]), lambda done: to_recorded(_claim_answer(done))
        )
    )
    outcome = await claim(gateway(), Claim(_resource(body["resource"], "body: resource"), token, once))
    return _claim_answer(outcome)


def _claim_answer(outcome: Outcome) -> Response:
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if isinstance(outcome, Replayed):
        return replay(outcome)
    row = orjson.Fragment(outcome.rows[0]) if outcome.rows else None
    body = {"resource": outcome.resource, "mark": str(outcome.mark), "row": row}
    return json_response(body, fence_headers(outcome))


def _resource_parameter(raw: bytes) -> Resource:
    """Read ?resource=, as strictly as every other query: FastAPI would let bad bytes pass, and take the last of two."""
    try:
        pairs = query_pairs(raw)
    except QueryError as error:
        raise RequestError(bad_request(str(error))) from error
    if [name for name, _ in pairs] != ["resource"]:
        raise RequestError(bad_request("query: this takes one parameter: ?resource=orders/order-123"))
    return _resource(pairs[0][1], "query: resource")


async def _explain(gateway: Callable[[], Gateway], request: Request) -> Response:
    read_headers(request, "look", query=True, resources=True)
    outcome = await explain(gateway(), _resource_parameter(request.scope["query_string"]))
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if not isinstance(outcome, Explained):
        raise TypeError(f"an explanation gave {outcome!r}")
    return json_response(outcome.body)


def health_routes(
    ready: Callable[[], Awaitable[wire.Readiness]], metrics: Metrics, measure: Callable[[], Awaitable[None]]
) -> APIRouter:
    """Give /healthz, /readyz and /metrics."""
    router = APIRouter(tags=["service"])

    @router.get("/healthz", response_model=wire.Liveness, summary="Whether the process is alive")
    async def healthz() -> Response:
        """Answer as long as the process can answer at all; it says nothing of the database."""
        return json_response({"status": "ok"})

    @router.get(
        "/readyz",
        response_model=wire.Readiness,
        summary="Whether requests can be served",
        responses={503: {"model": wire.Readiness, "description": "Something that requests depend on does not work."}},
    )
    async def readyz() -> Response:
        """Ask the database, and compare its schema with what this version works with."""
        state = await ready()
        response = json_response(state)
        response.status_code = 200 if state["status"] == "ready" else 503
        return response

    @router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def get_metrics() -> Response:
        """Give counts, times, the pool's state over all workers, and the locks of the whole database."""
        await measure()
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    return router
