"""/healthz, /readyz and /metrics: on the main port, and in full on the admin port where there is one (admin.py)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Scope

from fencepost.server import wire
from fencepost.server.http.responses.raw import json_response
from fencepost.server.observe.metrics import CONTENT_TYPE, Metrics


@dataclass(frozen=True, slots=True)
class Health:
    """What wiring hands over: who knows whether requests can be served, and who has measured what."""

    ready: Callable[[], Awaitable[wire.Readiness]]
    metrics: Metrics
    measure: Callable[[], Awaitable[None]]


def health_routes(health: Health, *, figures: bool, details: Callable[[Scope], bool]) -> APIRouter:
    """Give the routes. `figures`: /metrics, too. `details`: whether /readyz shows this request more than the status."""
    router = APIRouter(tags=["service"])

    @router.get("/healthz", response_model=wire.Liveness, summary="Whether the process is alive")
    async def healthz(_request: Request) -> Response:
        """Answer as long as the process can answer at all; it does not look at the database."""
        return json_response({"status": "ok"})

    @router.get(
        "/readyz",
        response_model=wire.Readiness | wire.BareReadiness,
        summary="Whether requests can be served",
        responses={
            503: {
                "model": wire.Readiness | wire.BareReadiness,
                "description": "Something that requests depend on does not work.",
            }
        },
    )
    async def readyz(request: Request) -> Response:
        """Ask the database, and compare its schema with what this version works with.

        Where there is authentication, only known callers get more than the status; where there is an admin port, only
        requests to that.
        """
        state = await health.ready()
        response = json_response(state if details(request.scope) else wire.BareReadiness(status=state["status"]))
        response.status_code = 200 if state["status"] == "ready" else 503
        return response

    if figures:

        @router.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
        async def get_metrics(_request: Request) -> Response:
            """Give counts, times, the pool's state over all workers, and the locks of the whole database."""
            await health.measure()
            return Response(health.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    return router
