"""`/` and `/docs`: Swagger UI served by the gateway itself, so that it works without the internet.

The page loads nothing from elsewhere, and its Content-Security-Policy holds it to that. Links are relative: the
pages also work behind a proxy that puts them under a path.
"""

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, Response

from fencepost.server.fence.problem_types import NO_ROUTE
from fencepost.server.fence.problems import Problem
from fencepost.server.http.admission import is_named, is_nobody
from fencepost.server.http.html_page import page
from fencepost.server.http.openapi.secured import before
from fencepost.server.http.problems.response import problem_response
from fencepost.server.ops.demo import COMMENTS, is_demo
from fencepost.server.postgres.tables import Catalog, Table

SWAGGER_UI_VERSION: Final = "5.35.0"

_STATIC: Final = Path(__file__).parents[1] / "static"

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
