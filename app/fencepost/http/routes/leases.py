"""The routes of leases and locks: acquire, look, renew, mint, release, list."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import TypeAdapter

from fencepost import wire
from fencepost.fencing.problems import Problem
from fencepost.gateway.gateway import Gateway
from fencepost.gateway.leases import verbs as leases
from fencepost.gateway.leases.acquire import Granted, acquire
from fencepost.http.problems.response import RequestError, problem_response
from fencepost.http.requests.bodies import read_no_body
from fencepost.http.requests.leases import (
    MOST_LISTED,
    read_acquire,
    read_lease_id,
    read_listing,
    read_mint,
    read_renew,
    require_secret,
)
from fencepost.http.requests.system import read_headers
from fencepost.http.routes.system import answer_or_problem, json_response, problems
from fencepost.storage.leases.builtin import Lease, LeaseId, LockState

# The endpoints take the bare request, and document their parameters here: FastAPI's reading of one header and one path
# parameter would cost as much as everything else that the gateway does for a lease.
_SECRET: Final[dict[str, Any]] = {
    "name": "X-Lease-Secret",
    "in": "header",
    "description": "The lease's secret: 22 to 256 visible ASCII characters with 128 random bits or more.",
    "schema": {"type": "string", "minLength": 22, "maxLength": 256, "pattern": "^[!-~]*$"},
}
_ID: Final[dict[str, Any]] = {
    "name": "lease_id",
    "in": "path",
    "required": True,
    "description": "The lease's id.",
    "schema": {"type": "string"},
    "example": "41",
}
_REQUIRED: Final = {**_SECRET, "required": True}
_LISTING: Final[list[dict[str, Any]]] = [
    {
        "name": "source",
        "in": "query",
        "description": "The token source whose locks to list; builtin without it.",
        "schema": {"type": "string"},
    },
    {"name": "name", "in": "query", "description": "Only this lock.", "schema": {"type": "string"}},
    {"name": "after", "in": "query", "description": "Only names after this one.", "schema": {"type": "string"}},
    {
        "name": "limit",
        "in": "query",
        "description": "At most so many.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_LISTED},
    },
]

_BAD = (400, "The body or the secret cannot be read.")
_NO_BODY = ((413, "The body is too large."), (415, "The body is not JSON."))
_LOST = (410, "The lease is lost, unknown, or another client's.")
_AWAY = (503, "The database or the lock service cannot be asked, or whether it was done is not known.")
_FAILED = (502, "The lock service answered, and would not do it.")


def _takes(
    *parameters: dict[str, Any], body: Any = None, example: dict[str, object] | None = None, required: bool = False
) -> dict[str, Any]:
    taken: dict[str, Any] = {"parameters": list(parameters)}
    if body is not None:
        schema = {**TypeAdapter(body).json_schema(), "additionalProperties": False}
        content = {"application/json": {"schema": schema, "example": example}}
        taken["requestBody"] = {"required": required, "content": content}
    return taken


def lease_routes(gateway: Callable[[], Gateway], max_body_bytes: int) -> APIRouter:
    """Give /v1/leases and /v1/locks."""
    router = APIRouter(tags=["leases"])

    @router.post(
        "/v1/leases",
        status_code=201,
        response_model=wire.LeaseAnswer,
        summary="Acquire a lock, or several, with a lease and its tokens",
        openapi_extra=_takes(
            _SECRET,
            body=wire.LeaseRequest,
            example={"lock": "orders/order-123", "owner": "worker-a", "ttl_ms": 30000},
            required=True,
        ),
        responses=problems(
            _BAD,
            (403, "A claimed table is not protected."),
            (404, "A claimed table does not exist."),
            (409, "A claimed resource takes the tokens of another source."),
            (413, "The body is too large."),
            (415, "The body is not JSON."),
            (423, "Another client holds a lock, or has been waiting for it longer."),
            _FAILED,
            _AWAY,
        )
        | {200: {"model": wire.LeaseAnswer, "description": "The same secret again: the same lease."}},
    )
    async def post_lease(request: Request) -> Response:
        """Lock all of `locks`, or nothing. With `wait_ms` wait in the queue, first come first served.

        `claim` raises the marks of resources in the same transaction: the holder before is fenced from the moment
        of the grant, and `claims` has the rows, which no older holder can change any more.
        """
        return await answer_or_problem(_acquire(gateway(), max_body_bytes, request))

    @router.get(
        "/v1/leases/{lease_id}",  # noqa: FAST003 - the endpoints take the bare request
        response_model=wire.LeaseState,
        summary="Look at a lease",
        openapi_extra=_takes(_ID),
        responses=problems((400, "The request has parameters or headers that this route does not take."), _LOST, _AWAY),
    )
    async def get_lease(request: Request) -> Response:
        """Show the state of a live lease. It takes no secret and shows none."""
        return await answer_or_problem(_look(gateway(), request))

    @router.post(
        "/v1/leases/{lease_id}/renew",  # noqa: FAST003
        response_model=wire.LeaseState,
        summary="Keep a lease alive",
        openapi_extra=_takes(_ID, _REQUIRED, body=wire.RenewRequest, example={"ttl_ms": 30000}),
        responses=problems(
            _BAD, _LOST, (413, "The body is too large."), (415, "The body is not JSON."), _FAILED, _AWAY
        ),
    )
    async def post_renew(request: Request) -> Response:
        """Let the lease live for its TTL from now on. A lease whose time has run out cannot be renewed."""
        return await answer_or_problem(_renew(gateway(), max_body_bytes, request))

    @router.post(
        "/v1/leases/{lease_id}/tokens",  # noqa: FAST003
        response_model=wire.MintAnswer,
        summary="Mint more tokens under a lease",
        openapi_extra=_takes(_ID, _REQUIRED, body=wire.MintRequest, example={"count": 10}),
        responses=problems(
            _BAD, _LOST, (413, "The body is too large."), (415, "The body is not JSON."), _FAILED, _AWAY
        ),
    )
    async def post_tokens(request: Request) -> Response:
        """Draw fresh tokens, each good for one write of a resource under the rule strict."""
        return await answer_or_problem(_mint(gateway(), max_body_bytes, request))

    @router.delete(
        "/v1/leases/{lease_id}",  # noqa: FAST003
        status_code=204,
        response_class=Response,
        summary="Release a lease",
        openapi_extra=_takes(_ID, _REQUIRED),
        responses=problems(_BAD, (410, "The lease is held, and the secret is not its holder's."), _FAILED, _AWAY),
    )
    async def delete_lease(request: Request) -> Response:
        """Give the locks back and wake the first waiter. Harmless when the lease is over already."""
        return await answer_or_problem(_release(gateway(), max_body_bytes, request))

    @router.get(
        "/v1/locks",
        response_model=list[wire.LockAnswer],
        summary="Who holds locks, and who waits",
        openapi_extra=_takes(*_LISTING),
        responses=problems((400, "The query or a header cannot be read."), _AWAY),
    )
    async def get_locks(request: Request) -> Response:
        """List locks that are held or waited for, by name. Idle locks do not appear: nothing is kept of them."""
        return await answer_or_problem(_list(gateway(), request))

    return router


async def _acquire(gateway: Gateway, limit: int, request: Request) -> Response:
    wanted = await read_acquire(request, limit, gateway.locks.limits)
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # Only a waiting client may hang up; others are answered at once.
    watch = asyncio.create_task(_hang_up(request, gone)) if wanted.wait_ms else None
    try:
        outcome = await acquire(gateway, wanted, gone)
    finally:
        if watch is not None:
            watch.cancel()
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    response = json_response(
        _grant_answer(outcome, wanted.secret), [(b"location", f"/v1/leases/{outcome.lease_id}".encode())]
    )
    response.status_code = 201 if outcome.lease.verdict == "granted" else 200
    return response


async def _hang_up(request: Request, gone: "asyncio.Future[None]") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set_result(None)


def _grant_answer(granted: Granted, secret: str) -> dict[str, object]:
    lease = granted.lease
    tokens = [str(token) for token in lease.tokens]
    return {
        "lease_id": str(granted.lease_id),
        "source": granted.source,
        "secret": secret,
        **_names(granted.locks),
        "owner": lease.owner,
        "ttl_ms": lease.ttl_ms,
        "token": tokens[0],
        "tokens": tokens,
        "granted_at": lease.granted_at,
        "expires_at": lease.expires_at,
        "remaining_ms": lease.due_ms,
        "waited_ms": granted.waited_ms,
        "claims": [
            {
                "resource": claim.resource,
                "mark": str(claim.mark),
                "row": orjson.Fragment(claim.rows[0]) if claim.rows else None,
            }
            for claim in granted.claims
        ],
    }


def _names(names: tuple[str, ...]) -> dict[str, object]:
    return {"lock": names[0] if len(names) == 1 else None, "locks": list(names)}


def _state(lease_id: LeaseId, lease: Lease) -> wire.LeaseState:
    return {
        "lease_id": str(lease_id),
        "source": lease_id.source,
        "lock": lease.names[0] if len(lease.names) == 1 else None,
        "locks": list(lease.names),
        "owner": lease.owner,
        "ttl_ms": lease.ttl_ms,
        "token": str(lease.last_token),
        "granted_at": lease.granted_at,
        "expires_at": lease.expires_at,
        "remaining_ms": lease.remaining_ms,
        "claims": list(lease.claims),
    }


async def _look(gateway: Gateway, request: Request) -> Response:
    read_headers(request, "look")
    lease_id = read_lease_id(request.path_params["lease_id"])
    found = await leases.inspect(gateway, lease_id)
    return problem_response(found) if isinstance(found, Problem) else json_response(_state(lease_id, found))


async def _renew(gateway: Gateway, limit: int, request: Request) -> Response:
    read_headers(request, "lease")
    secret = require_secret(request.scope["headers"])
    ttl_ms = await read_renew(request, limit, gateway.locks.limits)
    lease_id = read_lease_id(request.path_params["lease_id"])
    found = await leases.renew(gateway, lease_id, secret, ttl_ms)
    return problem_response(found) if isinstance(found, Problem) else json_response(_state(lease_id, found))


async def _mint(gateway: Gateway, limit: int, request: Request) -> Response:
    read_headers(request, "lease")
    secret = require_secret(request.scope["headers"])
    count = await read_mint(request, limit, gateway.locks.limits)
    lease_id = read_lease_id(request.path_params["lease_id"])
    found = await leases.mint(gateway, lease_id, secret, count)
    if isinstance(found, Problem):
        return problem_response(found)
    tokens = [str(token) for token in found.minted]
    answer = {"lease_id": str(lease_id), "token": tokens[0], "tokens": tokens, "expires_at": found.expires_at}
    return json_response(answer)


async def _release(gateway: Gateway, limit: int, request: Request) -> Response:
    headers = read_headers(request, "lease")
    secret = require_secret(request.scope["headers"])
    await read_no_body(headers, request.receive, limit)
    try:
        number = read_lease_id(request.path_params["lease_id"])
    except RequestError:  # no lease of such an id can be held
        return Response(status_code=204, headers={"Cache-Control": "no-store"})
    problem = await leases.release(gateway, number, secret)
    if problem is not None:
        return problem_response(problem)
    return Response(status_code=204, headers={"Cache-Control": "no-store"})


async def _list(gateway: Gateway, request: Request) -> Response:
    read_headers(request, "look", query=True)
    source, name, after, limit = read_listing(request.scope["query_string"])
    found = await leases.locks(gateway, source, name, after, limit)
    if isinstance(found, Problem):
        return problem_response(found)
    return json_response([_lock(source, each) for each in found])


def _lock(source: str, state: LockState) -> dict[str, object]:
    return {
        "name": state.name,
        "source": source,
        "held": state.lease_id is not None,
        "lease_id": None if state.lease_id is None else str(LeaseId(source, state.lease_id)),
        "owner": state.owner,
        "token": None if state.last_token is None else str(state.last_token),
        "granted_at": state.granted_at,
        "expires_at": state.expires_at,
        "remaining_ms": state.remaining_ms,
        "waiters": orjson.Fragment(state.waiters),
    }
