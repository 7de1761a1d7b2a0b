"""The system routes: claims and fences, health and metrics, the pages of the documentation."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import FileResponse
from pydantic import Field
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

# Pydantic reads these, and wants typing_extensions' TypedDict before Python 3.12.
from typing_extensions import TypedDict

from fencepost.server.fence.problem_types import NO_ROUTE
from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.read import Explained
from fencepost.server.gateway.use_cases import explain, report
from fencepost.server.http.answers import ClaimAnswer, declared, json_response
from fencepost.server.http.data import claim_answer, read_resource, read_token
from fencepost.server.http.edge import caller_of, is_named, is_nobody
from fencepost.server.http.openapi import before
from fencepost.server.http.openapi_parts import PARAMETERS, parameter
from fencepost.server.http.problems import RequestError, page, problem_response
from fencepost.server.http.routes import Answered, Asked, NoQuery, Route, Says, Taken
from fencepost.server.observe.metrics import CONTENT_TYPE, Metrics
from fencepost.server.ops.demo import COMMENTS, is_demo
from fencepost.server.postgres.tables import Catalog, Table

# Claims and fences.


class ClaimRequest(Taken):
    """What to claim."""

    resource: Annotated[str, Says("a string like orders/order-123 is expected")] = Field(examples=["orders/order-123"])


@declared
class TokenHolder(TypedDict):
    """To whom a token of the table's source was issued, under which lease of which locks. The token itself may be one
    that writes are still accepted with, and is not shown.
    """

    holder: str
    lease_id: str
    locks: list[str]
    granted_at: str
    issued_at: str
    source: str


@declared
class StoryEvent(TypedDict):
    """One thing that is known of a resource. `at` is null where only the token is kept. `token` is null where the
    rule accepts it still.

    `by` is null where it is not known whose token it is: another source's, or too long ago.
    """

    event: str
    token: str | None
    at: str | None
    by: TokenHolder | None


@declared
class FenceAnswer(TypedDict):
    """What is known of a resource. The mark of one that was never written is "0". Under the rule epoch any other is
    null: it equals a token that is accepted still.

    `tables` is there for scopes: the tables whose rows share this mark. Of a row in one of them, its scope is shown.
    `max_token` and `max_jump` are there where the source is external: the highest token that is taken, and how far one
    may be above the mark (null: any distance). `sealed`: only sealed tokens are taken.
    """

    resource: str
    mark: str | None
    rule: Literal["strict", "epoch"]
    source: str
    sealed: bool
    row_exists: bool
    story: list[StoryEvent]
    tables: NotRequired[list[str]]
    max_token: NotRequired[str]
    max_jump: NotRequired[str | None]


async def post_claim(asked: Asked[NoQuery, ClaimRequest]) -> Response:
    """Raise the resource's mark to your token without writing data, and read the row from the same statement.

    Do this first when you have acquired a lock: what you read then can no longer be changed by an older holder.
    A key without a row is claimed too; `row` is null then. The token is spent by the claim.
    """
    raw_headers = asked.scope["headers"]
    try:
        token = read_token(asked.headers, raw_headers)
    except RequestError as error:
        report(asked.gateway, None, "claim", error.problem)
        raise
    return await claim_answer(asked.gateway, asked.body.resource, token, asked.headers, raw_headers)


class FenceQuery(Taken):
    """Which resource."""

    resource: str = Field(description="The resource: table/key.", examples=["orders/order-123"])


async def get_fence(asked: Asked[FenceQuery, None]) -> Response:
    """Show a resource's mark, and what is known of how it came by it. A token in the request is not looked at."""
    resource = read_resource(asked.query.resource, "query: resource")
    outcome = await explain(asked.gateway, resource, caller_of(asked.scope))
    if isinstance(outcome, Problem):
        return problem_response(outcome)
    if not isinstance(outcome, Explained):
        raise TypeError(f"an explanation gave {outcome!r}")
    return json_response(outcome.body)


FENCES: Final = (
    Route(
        *("POST", "/v1/claims", post_claim, "Claim a resource: no older token can write to it from now on", "fences"),
        needs="write",
        kind="claim",
        names_resources=True,
        body=ClaimRequest,
        example={"resource": "orders/order-123"},
        parameters=({**PARAMETERS["FenceToken"], "required": False}, parameter("IdempotencyKey")),
        answers={200: Answered("The claim is made.", ClaimAnswer)},
        refusals=(
            (400, "The body, the key or the token cannot be read."),
            (403, "The table is not protected, or the token's seal is not for the resource."),
            (404, "There is no such table."),
            (409, "The token is stale or spent, or was never issued; or the Idempotency-Key is being worked on."),
            (413, "The body is too large."),
            (415, "The body is not JSON."),
            (422, "The Idempotency-Key was used for another request."),
            (428, "The claim carries no token, or one without the seal that the table wants."),
            (503, "The database cannot be asked, or its answer was lost."),
        ),
    ),
    Route(
        *("GET", "/v1/fences", get_fence, "What is known of a resource: mark, rule, source", "fences"),
        needs="read",
        names_resources=True,
        query=FenceQuery,
        answers={200: Answered("The resource.", FenceAnswer)},
        refusals=(
            (400, "The resource, the query or a header cannot be read."),
            (403, "The table is not protected."),
            (404, "There is no such table."),
            (503, "The database cannot be asked."),
        ),
    ),
)


# /healthz, /readyz and /metrics: on the main port, and in full on the admin port where there is one (`admin_app`).


@declared
class Liveness(TypedDict):
    """The process is alive."""

    status: Literal["ok"]


@declared
class BareReadiness(TypedDict):
    """Whether requests can be served, for all who ask."""

    status: Literal["ready", "not ready"]


@declared
class Readiness(TypedDict):
    """Whether requests can be served, and each thing that this depends on."""

    status: Literal["ready", "not ready"]
    database: str
    schema: str
    origin: str
    catalog: str
    fences: dict[str, str]
    """Of the tables whose fence does not hold, by their names: why."""
    keys: str
    """Whether there are keys to verify JWTs by: `known`, `not fetched` where they are none of a JWKS, or why not."""
    sources: dict[str, str]
    queues: dict[str, str]


@dataclass(frozen=True, slots=True)
class ShownHealth:
    """What serve.py hands over: who knows whether requests can be served, and who has measured what."""

    ready: Callable[[], Awaitable[Readiness]]
    metrics: Metrics
    measure: Callable[[], Awaitable[None]]


def health_routes(health: ShownHealth, *, figures: bool, details: Callable[[Scope], bool]) -> list[Route]:
    """Give the routes. `figures`: /metrics, too. `details`: whether /readyz shows this request more than the status."""

    async def healthz(_: Asked[NoQuery, None]) -> Response:
        """Answered as long as the process can answer at all; it does not look at the database."""
        return json_response({"status": "ok"})

    async def readyz(asked: Asked[NoQuery, None]) -> Response:
        """Ask the database, and compare its schema with what this version works with.

        Where there is authentication, only known callers get more than the status; where there is an admin port, only
        requests to that.
        """
        state = await health.ready()
        response = json_response(state if details(asked.scope) else BareReadiness(status=state["status"]))
        response.status_code = 200 if state["status"] == "ready" else 503
        return response

    async def get_metrics(_: Asked[NoQuery, None]) -> Response:
        """Give counts, times, the pool's state over all workers, and the locks of the whole database."""
        await health.measure()
        return Response(health.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})

    readiness = Readiness | BareReadiness
    shown = {
        200: Answered("They can.", readiness),
        503: Answered("Something that requests depend on does not work.", readiness),
    }
    alive = {200: Answered("It is.", Liveness)}
    measured = {200: Answered("The figures.", media="text/plain")}
    routes = [
        Route("GET", "/healthz", healthz, "Whether the process is alive", "service", "nothing", alive, kind=None),
        Route(
            *("GET", "/readyz", readyz, "Whether requests can be served", "service"),
            *("more for callers", shown),
            kind=None,
        ),
        Route("GET", "/metrics", get_metrics, "Metrics for Prometheus", "service", "a name", measured, kind=None),
    ]
    return routes if figures else routes[:-1]


# `/` and `/docs`: Swagger UI served by the gateway itself, so that it works without the internet.
#
# The page loads nothing from elsewhere, and its Content-Security-Policy holds it to that. Links are relative: the
# pages also work behind a proxy that puts them under a path.

SWAGGER_UI_VERSION: Final = "5.35.0"

_STATIC: Final = Path(__file__).parent / "static"

# Served by name: the folders also hold licences and a README, which are for readers of the source.
_ASSETS: Final = {
    "swagger-ui-bundle.js": _STATIC / "swagger-ui" / "swagger-ui-bundle.js",
    "swagger-ui.css": _STATIC / "swagger-ui" / "swagger-ui.css",
    "favicon-32x32.png": _STATIC / "swagger-ui" / "favicon-32x32.png",
    "docs.js": _STATIC / "docs" / "docs.js",
    "docs.css": _STATIC / "docs" / "docs.css",
}

# Swagger UI sets style attributes and has its icons in data: URLs; scripts are files only.
_DOCS_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}

_MOST_TABLES: Final = 200
"""How many tables the index page lists; /docs has them all."""

_DEMO_WRITES: Final = "/v1/data/orders /v1/data/accounts /v1/claims /v1/leases"
"""The paths, and all under them, to which /docs sends writes in the demo: what it fills in names the demo's rows."""

_ALL_WRITES: Final = "/v1/data /v1/claims /v1/leases"


def docs_routes(catalog: Callable[[], Catalog], *, version: str, demo: bool, try_writes: bool = False) -> APIRouter:
    """Give the routes `/`, `/docs` and `/docs/assets/{name}`. `catalog` returns the current picture; `demo`: the demo's
    table was asked for; `try_writes`: the page is to send writes to all tables.
    """

    async def index(request: Request) -> Response:
        return index_page(catalog() if is_named(request.scope) else None, version)

    async def docs(request: Request) -> Response:
        of_demo = demo and all(is_demo(catalog().find(name)) for name in COMMENTS)
        writes = _ALL_WRITES if try_writes else _DEMO_WRITES if of_demo else ""
        unknown = before(version) if is_nobody(request.scope) else None
        return docs_page(version, writes=writes, before=unknown, demo=of_demo)

    router = APIRouter(include_in_schema=False)
    router.add_api_route("/", index)
    router.add_api_route("/docs", docs)
    router.add_api_route("/docs/assets/{name}", _asset)
    return router


def docs_page(version: str, *, writes: str, before: dict[str, Any] | None, demo: bool = False) -> HTMLResponse:
    """Show Swagger UI on /openapi.json. Its forms are filled in with examples, so on real tables "Execute" is offered
    for reads only; `writes` are the paths, separated by blanks, where it is offered for writes too. `before`: who asks
    may not see /openapi.json; this document is shown until "Authorize" has got a JWT or API key that may. `demo`: forms
    are filled in with a token that the demo's orders still take.
    """
    # Assets are cached for a day; another version of either is another address.
    query = escape(f"?v={version}-{SWAGGER_UI_VERSION}")
    document = json.dumps(before) if before else ""
    return HTMLResponse(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>Fencepost API</title>"
        '<link rel="icon" href="docs/assets/favicon-32x32.png">'
        f'<link rel="stylesheet" href="docs/assets/swagger-ui.css{query}">'
        f'<link rel="stylesheet" href="docs/assets/docs.css{query}"></head>'
        f'<body><div id="swagger-ui" data-writes="{escape(writes)}" data-before="{escape(document)}"'
        f"{' data-demo' if demo and not before else ''}></div>"
        '<noscript>This page needs JavaScript; <a href="openapi.json">'
        "openapi.json</a> has the same contents.</noscript>"
        f'<script src="docs/assets/swagger-ui-bundle.js{query}"></script>'
        f'<script src="docs/assets/docs.js{query}"></script></body></html>\n',
        headers=_DOCS_HEADERS,
    )


def index_page(catalog: Catalog | None, version: str) -> HTMLResponse:
    """Show where everything is: the documentation, the tables, the health of the gateway. None: no tables."""
    tables = catalog.shown if catalog else ()
    rows = "".join(_table_row(table) for table in tables[:_MOST_TABLES])
    if len(tables) > _MOST_TABLES:
        more = len(tables) - _MOST_TABLES
        rows += f'<tr><td colspan="2" class="soft">and {more} more, in the documentation</td></tr>'
    why = (
        "None that the gateway can see." if catalog else "For known callers: the documentation takes a JWT or API key."
    )
    listing = f"<table><tbody>{rows}</tbody></table>" if rows else f'<p class="soft">{why}</p>'
    return page(
        "Gateway",
        f'<nav class="soft">Fencepost {escape(version)}</nav><h1>Every write carries its fencing token</h1>'
        "<p>This gateway checks the token of each write against the newest one that the row has accepted. "
        "A holder whose lock was taken over gets a 409, and nothing is changed.</p>"
        f'<p><a href="docs">Documentation</a> · {_link("openapi.json", catalog)}<a href="problems">problems</a></p>'
        f"<h2>Tables</h2>{listing}"
        f'<h2>Service</h2><p>{_link("metrics", catalog)}<a href="healthz">healthz</a> · '
        '<a href="readyz">readyz</a></p>',
        home="./",
    )


def _link(name: str, catalog: Catalog | None) -> str:
    """Link what is for known callers, for them only: a browser would get a 401 there."""
    return f'<a href="{name}">{name}</a> · ' if catalog else ""


def _table_row(table: Table) -> str:
    if table.fence is None:
        badge = '<span class="badge soft">read only</span>'
    elif table.fence.intact:
        badge = f'<span class="badge go">protected, {escape(table.fence.rule)}</span>'
    else:
        badge = '<span class="badge stop">fence damaged</span>'
    comment = f'<br><span class="soft">{escape(table.comment)}</span>' if table.comment else ""
    link = f"v1/data/{quote(table.name, safe='')}?limit=20"
    return f'<tr><td><a href="{escape(link)}">{escape(table.name)}</a>{comment}</td><td>{badge}</td></tr>'


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    path = _ASSETS.get(name)
    if path is None:
        return problem_response(Problem(NO_ROUTE, f"/docs/assets has no {name}."))
    # The ETag lets a browser ask again cheaply once the day is over.
    caching = {"Cache-Control": "public, max-age=86400"}
    return FileResponse(path, headers=caching)
