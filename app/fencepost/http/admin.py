"""The admin port: metrics and the details of readiness, and nothing else. It is for those who run the gateway, wants no
credential, and has an address of its own to listen on.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi.routing import APIRoute
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fencepost.http.problems.response import http_problem
from fencepost.http.routes.health import Health, health_routes
from fencepost.http.sites import Sites


@dataclass(frozen=True, slots=True)
class Admin:
    """`port`: by which the gateway knows a request of it. `sites`: by which names it is reached."""

    port: int
    sites: Sites


def admin_app(health: Health, edge: Callable[[ASGIApp], ASGIApp]) -> ASGIApp:
    """Give what answers on it."""
    found = health_routes(health, figures=True, details=lambda _scope: True).routes
    routes = [Route(each.path, each.endpoint, methods=["GET"]) for each in found if isinstance(each, APIRoute)]
    app = Starlette(routes=routes, exception_handlers={HTTPException: http_problem})
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
