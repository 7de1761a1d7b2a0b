"""The application: FastAPI around the routes, with every error in one form."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fencepost import __version__, wire
from fencepost.fencing.problem_types import BAD_REQUEST, METHOD_NOT_ALLOWED, NO_ROUTE
from fencepost.fencing.problems import Problem, bad_request
from fencepost.gateway.gateway import Gateway
from fencepost.http.edge import Edge, RequestDone
from fencepost.http.openapi.document import build_openapi
from fencepost.http.problems.pages import problem_routes
from fencepost.http.problems.response import problem_response
from fencepost.http.routes.data import PREFIX, DataRoutes
from fencepost.http.routes.docs import docs_routes
from fencepost.http.routes.elections import election_routes
from fencepost.http.routes.leases import lease_routes
from fencepost.http.routes.system import claim_routes, health_routes
from fencepost.observe.metrics import Metrics
from fencepost.storage.tables.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Parts:
    """What wiring hands over. `gateway` may be called once the lifespan has begun."""

    gateway: Callable[[], Gateway]
    ready: Callable[[], Awaitable[wire.Readiness]]
    metrics: Metrics
    measure: Callable[[], Awaitable[None]]
    done: RequestDone
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]
    max_body_bytes: int
    access_log: bool
    demo: bool = False
    """Whether /docs may send writes to the demo's table. Elsewhere it sends reads only."""


class Application(FastAPI):
    """FastAPI, with OpenAPI made from the tables as they are now."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(
            title="Fencepost",
            version=__version__,
            lifespan=parts.lifespan,
            openapi_tags=[
                {"name": "fences", "description": "Claims, and what is known of a resource."},
                {"name": "leases", "description": "Locks with tokens, from the protected database itself."},
                {"name": "elections", "description": "Who leads. To campaign is to acquire the lock `election/NAME`."},
                {"name": "service", "description": "Health and metrics."},
            ],
            docs_url=None,
            redoc_url=None,
            # One would turn the DELETE of a row with an empty key into one of many rows.
            redirect_slashes=False,
        )
        self._parts = parts
        self._documented: tuple[int, dict[str, Any]] | None = None
        self.include_router(claim_routes(parts.gateway, parts.max_body_bytes))
        leases = lease_routes(parts.gateway, parts.max_body_bytes)
        self.include_router(leases)
        self.include_router(election_routes(parts.gateway))
        self.include_router(health_routes(parts.ready, parts.metrics, parts.measure))
        # Clients that work under locks ask these often: FastAPI documents them, and plain routes to the same functions
        # answer them, which take the bare request.
        plain = [Route(r.path, r.endpoint, methods=r.methods) for r in leases.routes if isinstance(r, APIRoute)]
        self.router.routes[:0] = plain
        self.router.routes.extend(docs_routes(self._catalog, version=__version__, demo=parts.demo))
        self.router.routes.extend(problem_routes())
        self.add_middleware(Edge, done=parts.done, access_log=parts.access_log)
        self._data = Edge(DataRoutes(parts.gateway, parts.max_body_bytes), done=parts.done, access_log=parts.access_log)
        self.add_exception_handler(HTTPException, _http_problem)
        self.add_exception_handler(RequestValidationError, _validation_problem)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer: what concerns users' tables past FastAPI's router and middleware, which cost more than the write."""
        if scope["type"] == "http" and scope.get("raw_path", b"").startswith(PREFIX):
            await self._data(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def _catalog(self) -> Catalog:
        return self._parts.gateway().catalog.current

    def openapi(self) -> dict[str, Any]:
        """Build the document for the current catalog; kept until the catalog changes."""
        catalog = self._catalog()
        if self._documented is None or self._documented[0] != catalog.version:
            system = get_openapi(title=self.title, version=self.version, routes=self.routes, tags=self.openapi_tags)
            self._documented = (catalog.version, build_openapi(catalog, system, version=self.version))
        return self._documented[1]


async def _http_problem(request: Request, error: Exception) -> Response:
    """Give Starlette's own refusals the one form."""
    if not isinstance(error, HTTPException):
        raise error
    headers = dict(error.headers or {})
    if error.status_code == METHOD_NOT_ALLOWED.status:
        return problem_response(Problem(METHOD_NOT_ALLOWED, f"{request.method} is not for this path."), headers)
    if error.status_code == NO_ROUTE.status:
        return problem_response(Problem(NO_ROUTE, f"There is no route {request.url.path}."), headers)
    return problem_response(Problem(BAD_REQUEST, str(error.detail), status=error.status_code), headers)


async def _validation_problem(_request: Request, error: Exception) -> Response:
    """Answer FastAPI's validation errors as the rest: 400, naming what and where."""
    if not isinstance(error, RequestValidationError):
        raise error
    found = "; ".join(f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in error.errors())
    return problem_response(bad_request(found))
