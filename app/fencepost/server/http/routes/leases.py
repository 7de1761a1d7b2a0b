"""The routes of leases and locks: acquire, look, renew, mint, release, list."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Scope

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.leases import held as leases
from fencepost.server.gateway.leases.acquire import acquire_lease
from fencepost.server.http.caller import caller_of
from fencepost.server.http.hanging_up import hung_up, leaving, may_ask_again, refuse_if_over
from fencepost.server.http.openapi import leases as openapi
from fencepost.server.http.problems.response import RequestError, answer_or_problem, problem_response
from fencepost.server.http.requests.bodies import read_no_body
from fencepost.server.http.requests.leases import (
    read_acquire,
    read_lease_id,
    read_listing,
    read_mint,
    read_renew,
    require_secret,
)
from fencepost.server.http.requests.system import read_headers
from fencepost.server.http.responses.leases import grant_body, lock_body, mint_body, state_body
from fencepost.server.http.responses.raw import json_response


def lease_routes(gateway: Callable[[Scope], Gateway], max_body_bytes: int) -> APIRouter:
    """Give /v1/leases and /v1/locks."""
    router, routes = APIRouter(tags=["leases"]), LeaseRoutes(gateway, max_body_bytes)
    one = "/v1/leases/{lease_id}"
    router.add_api_route("/v1/leases", routes.post_lease, methods=["POST"], **openapi.ACQUIRE)
    router.add_api_route("/v1/leases", routes.delete_acquire, methods=["DELETE"], **openapi.WITHDRAW)
    router.add_api_route(one, routes.get_lease, methods=["GET"], **openapi.LOOK)
    router.add_api_route(f"{one}/renew", routes.post_renew, methods=["POST"], **openapi.RENEW)
    router.add_api_route(f"{one}/tokens", routes.post_tokens, methods=["POST"], **openapi.MINT)
    router.add_api_route(one, routes.delete_lease, methods=["DELETE"], **openapi.RELEASE)
    router.add_api_route("/v1/locks", routes.get_locks, methods=["GET"], **openapi.LIST)
    return router


class LeaseRoutes:
    """The endpoints. Their docstrings are what /docs shows."""

    def __init__(self, gateway: Callable[[Scope], Gateway], max_body_bytes: int) -> None:
        self._gateway = gateway
        self._max_body_bytes = max_body_bytes

    async def post_lease(self, request: Request) -> Response:
        """Lock all of `locks`, or nothing. With `wait_ms` wait in the queue, first come first served.

        `claim` raises the marks of resources in the same transaction: the holder before is fenced from the moment
        of the grant, and `claims` has the rows, which no older holder can change any more.
        """
        return await answer_or_problem(self._ask_for_lease(request))

    async def delete_acquire(self, request: Request) -> Response:
        """Withdraw an acquire with a secret of one's own, whatever has become of it: its lease is released, its place
        in the queue is free, and a request that is still under way is granted nothing. The secret is used up.
        """
        return await answer_or_problem(self._withdraw(request))

    async def get_lease(self, request: Request) -> Response:
        """Show the state of a live lease. It takes no secret and shows none."""
        return await answer_or_problem(self._look(request))

    async def post_renew(self, request: Request) -> Response:
        """Let the lease live for its TTL from now on. A lease whose time has run out cannot be renewed."""
        return await answer_or_problem(self._renew(request))

    async def post_tokens(self, request: Request) -> Response:
        """Draw fresh tokens, each good for one write of a resource under the rule strict."""
        return await answer_or_problem(self._mint(request))

    async def delete_lease(self, request: Request) -> Response:
        """Give the locks back and wake the first waiter. Harmless when the lease is over already."""
        return await answer_or_problem(self._release(request))

    async def get_locks(self, request: Request) -> Response:
        """List locks that are held or waited for, by name. Idle locks do not appear: nothing is kept of them."""
        return await answer_or_problem(self._list(request))

    async def _ask_for_lease(self, request: Request) -> Response:
        scope, gateway = request.scope, self._gateway(request.scope)
        wanted = await read_acquire(request, self._max_body_bytes, gateway.locks.limits)
        async with leaving(scope) if wanted.wait_ms else nullcontext(hung_up(scope)) as gone:
            outcome = await acquire_lease(gateway, wanted, gone, caller_of(scope), partial(may_ask_again, scope))
            refuse_if_over(scope, gone, gateway.report_if_forbidden)
        if isinstance(outcome, Problem):
            return problem_response(outcome)
        location = f"/v1/leases/{outcome.lease_id}".encode()
        response = json_response(grant_body(outcome, wanted.secret), [(b"location", location)])
        response.status_code = 201 if outcome.lease.verdict == "granted" else 200
        return response

    async def _withdraw(self, request: Request) -> Response:
        headers = read_headers(request, "lease")
        secret = require_secret(request.scope["headers"])
        await read_no_body(headers, request.receive, self._max_body_bytes)
        problem = await leases.withdraw(self._gateway(request.scope), secret)
        return _nothing() if problem is None else problem_response(problem)

    async def _look(self, request: Request) -> Response:
        read_headers(request, "look")
        lease_id = read_lease_id(request.path_params["lease_id"])
        found = await leases.inspect(self._gateway(request.scope), lease_id)
        return problem_response(found) if isinstance(found, Problem) else json_response(state_body(lease_id, found))

    async def _renew(self, request: Request) -> Response:
        read_headers(request, "lease")
        secret = require_secret(request.scope["headers"])
        ttl_ms = await read_renew(request, self._max_body_bytes, self._gateway(request.scope).locks.limits)
        lease_id = read_lease_id(request.path_params["lease_id"])
        found = await leases.renew(self._gateway(request.scope), lease_id, secret, ttl_ms)
        return problem_response(found) if isinstance(found, Problem) else json_response(state_body(lease_id, found))

    async def _mint(self, request: Request) -> Response:
        read_headers(request, "lease")
        secret = require_secret(request.scope["headers"])
        count = await read_mint(request, self._max_body_bytes, self._gateway(request.scope).locks.limits)
        lease_id = read_lease_id(request.path_params["lease_id"])
        found = await leases.mint(self._gateway(request.scope), lease_id, secret, count)
        if isinstance(found, Problem):
            return problem_response(found)
        return json_response(mint_body(lease_id, found))

    async def _release(self, request: Request) -> Response:
        headers = read_headers(request, "lease")
        secret = require_secret(request.scope["headers"])
        await read_no_body(headers, request.receive, self._max_body_bytes)
        try:
            number = read_lease_id(request.path_params["lease_id"])
        except RequestError:  # no lease of such an id can be held
            return _nothing()
        problem = await leases.release(self._gateway(request.scope), number, secret)
        return _nothing() if problem is None else problem_response(problem)

    async def _list(self, request: Request) -> Response:
        read_headers(request, "look", query=True)
        source, name, after, limit = read_listing(request.scope["query_string"])
        names = None if name is None else [name]
        found = await leases.locks(self._gateway(request.scope), source, names, after, limit)
        if isinstance(found, Problem):
            return problem_response(found)
        return json_response([lock_body(source, each) for each in found])


def _nothing() -> Response:
    return Response(status_code=204, headers={"Cache-Control": "no-store"})
