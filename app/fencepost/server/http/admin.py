"""The admin port: metrics and the details of readiness, and nothing else. It is for those who run the gateway, wants no
credential, and has an address of its own to listen on.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from fencepost.server.http.problems.response import http_problem
from fencepost.server.http.routes.health import Health, health_routes
from fencepost.server.http.sites import Sites


@dataclass(frozen=True, slots=True)
class Admin:
    """`port`: by which the gateway knows a request of it. `sites`: by which names it is reached."""

    port: int
    sites: Sites


def admin_app(health: Health, edge: Callable[[ASGIApp], ASGIApp]) -> ASGIApp:
    """Give what answers on it."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.include_router(health_routes(health, figures=True, details=lambda _scope: True))
    app.add_exception_handler(HTTPException, http_problem)
    app.add_middleware(edge)
    return app


def by_port(admin: Admin, app: ASGIApp, others: ASGIApp) -> ASGIApp:
    """Give what has `app` answer requests to the admin port. The port is that of the gateway's end of the connection:
    nothing that a client sends has a part in it.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        to_admin = scope["type"] == "http" and scope["server"][1] == admin.port
        await (app if to_admin else others)(scope, receive, send)

    return answer
