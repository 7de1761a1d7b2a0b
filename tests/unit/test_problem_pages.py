"""The pages under /problems/, the index page, and the shell of /docs."""

import html
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from tools import problems_page

from fencepost.fencing.problem_type import ProblemType
from fencepost.fencing.problem_types import PROBLEM_TYPES
from fencepost.http.problems.examples import example_problem
from fencepost.http.problems.pages import problem_page, problem_routes
from fencepost.http.routes import docs
from fencepost.http.routes.docs import docs_routes
from fencepost.storage.tables.catalog import Catalog, Fence, Table

NASTY = "<script>alert('x')</script>&\""


def nasty_table() -> Table:
    fence = Fence(NASTY, "strict", "external", "f", intact=True)
    return Table(1, "public", NASTY, NASTY, "table", f"A comment {NASTY}", False, {}, (), fence)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    catalog = Catalog(1, {NASTY: nasty_table()})
    app = Starlette(routes=[*problem_routes(), *docs_routes(lambda: catalog, version="1.2.3", demo=False)])
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
        assert example.detail != f"{kind.title}.", f"{kind.slug} has no example in http/problems/examples.py"
        assert json.dumps(example.body())


def test_the_page_in_docs_is_what_the_tool_writes() -> None:
    assert problems_page.PAGE.read_text("utf-8") == problems_page.render(), "run `make format`"


def test_the_page_in_docs_has_every_problem() -> None:
    page = problems_page.PAGE.read_text("utf-8")
    for kind in PROBLEM_TYPES:
        section = page.partition(f"\n## {kind.slug}\n")[2].partition("\n## ")[0]
        for part in (kind.title, kind.meaning, kind.action, str(kind.status), kind.code or "SQLSTATE"):
            assert part in " ".join(section.split()), kind.slug


def test_a_type_without_an_example_is_shown_by_its_title() -> None:
    kind = ProblemType("FP999", 418, "teapot", "A teapot", "It is short.", "Make `tea`.")
    assert example_problem(kind).detail == "A teapot."
    assert "<code>tea</code>" in bytes(problem_page(kind).body).decode()


def test_texts_are_escaped() -> None:
    page = bytes(problem_page(ProblemType(NASTY, 400, NASTY, NASTY, NASTY, NASTY)).body).decode()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 4


async def test_pages_need_no_script_and_fetch_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    for path in ("/", "/problems", "/problems/stale-token"):
        page = await client.get(path)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<script" not in page.text
        assert "://" not in page.text


async def test_the_list_has_every_problem(client: httpx.AsyncClient) -> None:
    listing = (await client.get("/problems")).text
    for kind in PROBLEM_TYPES:
        assert f'href="problems/{kind.slug}"' in listing


async def test_an_unknown_problem_is_a_problem(client: httpx.AsyncClient) -> None:
    answer = await client.get("/problems/no-such")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "FP019"


async def test_the_index_escapes_table_names(client: httpx.AsyncClient) -> None:
    page = await client.get("/")
    assert page.status_code == 200
    assert "A comment &lt;script&gt;" in page.text
    assert 'href="v1/data/%3Cscript%3E' in page.text


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


async def test_head_is_answered_wherever_get_is(client: httpx.AsyncClient) -> None:
    for path in ("/", "/docs", "/docs/assets/docs.js", "/problems", "/problems/stale-token"):
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b""), path


def test_the_vendored_version_is_the_one_named() -> None:
    readme = Path(docs.__file__).parents[1] / "static" / "swagger-ui" / "README.md"
    assert f"version {docs.SWAGGER_UI_VERSION} " in readme.read_text()
