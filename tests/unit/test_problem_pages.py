"""The pages under /problems/, the index page, and the shell of /docs."""

import html
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI
from starlette.responses import Response
from tools import problems_page

from fencepost.server.fence.problem_types import PROBLEM_TYPES
from fencepost.server.http.problem_examples import example_problem
from fencepost.server.http.problems import problem_page, problem_routes
from fencepost.server.http.system import docs_routes
from fencepost.server.postgres.tables import Catalog, Fence, Table

NASTY = "<script>alert('x')</script>&\""


def nasty_table() -> Table:
    fence = Fence(NASTY, "strict", "external", "f", broken="")
    return Table(1, "public", NASTY, NASTY, "table", f"A comment {NASTY}", False, {}, (), fence)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    nasty = nasty_table()
    harmed = replace(nasty, name="harmed", fence=Fence("harmed", "strict", "external", "f", broken="a trigger is gone"))
    catalog = Catalog(1, {NASTY: nasty, "free": replace(nasty, name="free", fence=None), "harmed": harmed})
    app = FastAPI(docs_url=None)
    app.include_router(problem_routes())
    app.include_router(docs_routes(lambda: catalog, version="1.2.3", demo=False))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


def text_of(response: Response) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", bytes(response.body).decode()))


def test_every_problem_has_a_complete_page_with_an_example_of_its_own() -> None:
    for kind in PROBLEM_TYPES:
        text = text_of(problem_page(kind))
        for part in (kind.title, kind.meaning, kind.action, str(kind.status), f'"type": "/problems/{kind.slug}"'):
            assert part.replace("`", "") in text, kind.slug
        assert (kind.code or "SQLSTATE") in text, kind.slug
        assert ("may be retried" in text) == kind.retryable, kind.slug
        example = example_problem(kind)
        assert example.type is kind
        assert example.detail != f"{kind.title}.", f"{kind.slug} has no example in http/problem_examples.py"
        assert json.dumps(example.body())


def test_the_page_in_docs_is_what_the_tool_writes() -> None:
    assert problems_page.PAGE.read_text("utf-8") == problems_page.render(), "run `make format`"


async def test_the_index_escapes_table_names(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.status_code == 200
    assert "A comment &lt;script&gt;" in page.text
    assert 'href="v1/data/%3Cscript%3E' in page.text


async def test_the_index_shows_how_each_table_is_protected(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    badges = re.findall(r'>([^<]+)</a><br>.*?class="badge \w+">([^<]+)<', page.text)
    assert badges[1:] == [("free", "read only"), ("harmed", "fence damaged")]
    assert badges[0][1] == "protected, strict"


async def test_a_problem_that_there_is_not(client: httpx.AsyncClient) -> None:
    answer = await client.get("/problems/none")
    assert (answer.status_code, answer.json()["hint"]) == (404, "GET /problems lists them.")


async def test_docs_come_from_the_gateway_alone(client: httpx.AsyncClient) -> None:
    page = await client.get("/docs")
    assert "://" not in page.text
    assert "script-src 'self';" in page.headers["content-security-policy"]
    for asset in re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text):
        answer = await client.get(f"/{asset}")
        assert answer.status_code == 200
        assert "max-age" in answer.headers["cache-control"]


async def test_only_named_assets_are_served(client: httpx.AsyncClient) -> None:
    for name in ("README.md", "LICENSE", "nothing", "..%2Fdocs.py"):
        assert (await client.get(f"/docs/assets/{name}")).status_code == 404, name
