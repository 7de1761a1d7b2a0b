"""The application: what answers which path, FastAPI for pages and OpenAPI, and every error in one form."""

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from fencepost import __version__
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.http.batch import PATH, BatchRoute
from fencepost.server.http.bodies import BodiesInHand
from fencepost.server.http.data import PREFIX, DataRoutes, Running
from fencepost.server.http.edge import (
    ANSWERED_HEADERS,
    ASKED_HEADERS,
    Admission,
    Edge,
    Paths,
    RateLimits,
    RequestDone,
    Sites,
    is_named,
)
from fencepost.server.http.elections import ELECTIONS
from fencepost.server.http.leases import LEASES
from fencepost.server.http.openapi import build_openapi
from fencepost.server.http.problems import http_problem, problem_routes
from fencepost.server.http.queued import WRITES
from fencepost.server.http.routes import SystemRoutes, needed, router_of
from fencepost.server.http.system import FENCES, ShownHealth, docs_routes, health_routes
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.observe.events import Emit
from fencepost.server.postgres.tables import Catalog

# The admin port: metrics and the details of readiness, and nothing else. It is for those who run the gateway, wants no
# credential, and has an address of its own to listen on.


@dataclass(frozen=True, slots=True)
class Admin:
    """`port`: by which the gateway knows a request of it. `sites`: by which names it is reached."""

    port: int
    sites: Sites


def admin_app(health: ShownHealth, gateway: Callable[[Scope], Gateway], edge: Callable[..., Edge]) -> ASGIApp:
    """Give what answers on it."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    routes = health_routes(health, figures=True, details=lambda _scope: True)
    app.include_router(router_of(routes))
    app.add_exception_handler(HTTPException, http_problem)
    app.add_middleware(edge)
    return edge(app, paths=Paths(map(SystemRoutes(gateway, 0, BodiesInHand(0)).entry, routes), {}))


def by_port(admin: Admin, app: ASGIApp, others: ASGIApp) -> ASGIApp:
    """Give what has `app` answer requests to the admin port. The port is that of the gateway's end of the connection:
    nothing that a client sends has a part in it.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        to_admin = scope["type"] == "http" and scope["server"][1] == admin.port
        await (app if to_admin else others)(scope, receive, send)

    return answer


# The main port. FastAPI makes OpenAPI of the system routes, and is asked for none of them.

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
TAGS: Final = [
    {"name": "fences", "description": "Claims, and what is known of a resource."},
    {"name": "leases", "description": "Locks with tokens, from the protected database itself."},
    {"name": "elections", "description": "Who leads. To campaign is to acquire the lock `election/NAME`."},
    {"name": "writes", "description": "What became of writes that were queued."},
    {"name": "service", "description": "Health and metrics."},
]
"""The sections of OpenAPI."""
SYSTEM: Final = (*FENCES, *LEASES, *ELECTIONS, *WRITES)
"""The system routes, but for those of health."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What serve.py hands over."""

    running: Running
    health: ShownHealth
    done: RequestDone
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[Mapping[str, object]]]
    max_body_bytes: int
    access_log: bool
    sites: Sites
    emit: Emit
    authenticator: Authenticator | None = None
    """None: each program that reaches the port is served."""
    limits: RateLimits = field(default_factory=RateLimits)
    admin: Admin | None = None
    """None: metrics and the details of readiness are on the main port."""
    demo: bool = False
    """Whether /docs may send writes to the demo's table. Elsewhere it sends reads only."""
    try_writes: bool = False
    """Whether it may send writes to all tables."""


class Application(FastAPI):
    """FastAPI, with OpenAPI made from the tables as they are now."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(
            title="Fencepost",
            version=__version__,
            lifespan=parts.lifespan,
            openapi_tags=TAGS,
            docs_url=None,
            redoc_url=None,
            # One would turn the DELETE of a row with an empty key into one of many rows.
            redirect_slashes=False,
        )
        self._parts = parts
        self.gateway = parts.running.require
        self._documented: tuple[int, dict[str, Any]] | None = None
        details: Callable[[Scope], bool] = is_named if parts.admin is None else lambda _scope: False
        service = health_routes(parts.health, figures=parts.admin is None, details=details)
        routes = (*SYSTEM, *service)
        docs = docs_routes(self._catalog, version=__version__, demo=parts.demo, try_writes=parts.try_writes)
        for router in (router_of(routes), docs, problem_routes()):
            # `include_router` would build each route again at the first request, and ask its router each time.
            self.router.routes.extend(router.routes)
        needs = needed(routes)
        self._needs = needs if parts.authenticator else None
        layer = functools.partial(Edge, done=parts.done, access_log=parts.access_log, emit=parts.emit)
        admission = Admission(parts.authenticator, parts.limits, needs) if parts.authenticator else None
        edge = functools.partial(layer, sites=parts.sites, admission=admission)
        bodies = BodiesInHand(parts.max_body_bytes)
        self.add_middleware(edge)
        data = DataRoutes(parts.running, parts.max_body_bytes, bodies)
        batch = BatchRoute(parts.running.of, parts.max_body_bytes, parts.limits, bodies)
        system = SystemRoutes(parts.running.of, parts.max_body_bytes, bodies)
        paths = Paths(map(system.entry, routes), {PREFIX: data, PATH: batch})
        self.front = _with_cors(edge(super().__call__, paths=paths), parts.sites)
        """What a connection asks (serving/protocol.py)."""
        if parts.admin is not None:
            app = admin_app(parts.health, parts.running.of, functools.partial(layer, sites=parts.admin.sites))
            self.front = by_port(parts.admin, app, self.front)
        self.add_exception_handler(HTTPException, http_problem)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.front(scope, receive, send)

    def _catalog(self) -> Catalog:
        return self.gateway().catalog.current

    def openapi(self) -> dict[str, Any]:
        """Build the document for the current catalog; kept until the catalog changes."""
        catalog = self._catalog()
        if self._documented is None or self._documented[0] != catalog.version:
            system = get_openapi(title=self.title, version=self.version, routes=self.routes, tags=self.openapi_tags)
            document = build_openapi(catalog, system, version=self.version, needs=self._needs)
            self._documented = (catalog.version, document)
        return self._documented[1]


def _with_cors(app: ASGIApp, sites: Sites) -> ASGIApp:
    """Let pages of the sites that the operator allows use it."""
    if not sites.origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=sorted(sites.origins),
        allow_methods=METHODS,
        allow_headers=ASKED_HEADERS,
        expose_headers=ANSWERED_HEADERS,
    )
