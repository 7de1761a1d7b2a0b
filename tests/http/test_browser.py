"""Real browsers: /docs without the internet, pages of other sites, the report of a torture run."""

import http.server
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import ConsoleMessage, Page, Request, async_playwright, expect
from tests.http.conftest import Start
from tests.support.asking import SECRET, token
from tests.support.gateways import FOR_ALL
from tests.support.histories import paused_holder
from tests.support.interleave import connection_to

from fencepost.server.ops.protect import protect
from fencepost.server.postgres import api_keys
from fencepost.testing.checker import check
from fencepost.testing.history import read
from fencepost.testing.servers.processes import PATIENCE
from fencepost.testing.torture.report import write_report

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
pytestmark = [
    pytest.mark.long("tests in a browser"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium: apt-get install chromium"),
]
expect.set_options(timeout=PATIENCE * 1000)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "postgres" in metafunc.fixturenames:
        metafunc.definition.add_marker(pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True))


class Seen:
    """What a page did: the addresses it asked for, and what it complained about."""

    def __init__(self, page: Page) -> None:
        self.urls: list[str] = []
        self.complaints: list[str] = []
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _request(self, request: Request) -> None:
        self.urls.append(request.url)

    def _console(self, message: ConsoleMessage) -> None:
        # Chromium reports an answer of 4xx as an error: a 409 is what the page is there to show.
        if message.type in ("error", "warning") and "status of 409" not in message.text:
            self.complaints.append(message.text)


@asynccontextmanager
async def browser_page(**context: Any) -> AsyncIterator[Page]:
    """Open a page until the block ends."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = await (await browser.new_context(**context)).new_page()
        page.set_default_timeout(PATIENCE * 1000)
        yield page
        await browser.close()


# /docs without the internet.

STATUS = ".live-responses-table .response .response-col_status"


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with browser_page() as page:
        yield page


async def test_trying_the_same_write_twice_shows_200_and_then_409(
    page: Page, demo_database: str, start_gateway: Start
) -> None:
    demo_url = await start_gateway(demo_database, demo=True)
    seen = Seen(page)
    await page.goto(f"{demo_url}/docs")
    operation = page.locator("#operations-orders-update_orders_row")
    await operation.locator(".opblock-summary-control").click()
    status = operation.locator(".live-responses-table .response .response-col_status")

    await operation.get_by_role("button", name="Execute").click()
    await expect(status).to_have_text("200")
    await expect(operation.locator(".live-responses-table")).to_contain_text('"order_id": "order-123"')

    await operation.get_by_role("button", name="Execute").click()
    await expect(status).to_contain_text("409")
    await expect(operation.locator(".live-responses-table")).to_contain_text("spent-token")

    assert seen.complaints == []
    assert all(url.startswith((f"{demo_url}/", "data:")) for url in seen.urls)
    assert sum(url == f"{demo_url}/v1/data/orders/order-123" for url in seen.urls) == 2


async def test_the_demo_opens_with_a_token_that_it_takes_and_a_write_without_one_is_sent(
    page: Page, demo_database: str, start_gateway: Start
) -> None:
    url = await start_gateway(demo_database, demo=True)
    seen = Seen(page)
    headers = {"X-Fence-Token": "77", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=url) as http:
        (await http.patch("/v1/data/orders/order-123", json={"status": "paid"}, headers=headers)).raise_for_status()
    await page.goto(f"{url}/docs")
    operation = page.locator("#operations-orders-update_orders_row")
    await operation.locator(".opblock-summary-control").click()
    field = operation.get_by_role("row", name="X-Fence-Token").locator("input")
    await expect(field).to_have_value("78")
    await operation.get_by_role("button", name="Execute").click()
    await expect(operation.locator(STATUS)).to_have_text("200")
    await field.fill("")
    await operation.get_by_role("button", name="Execute").click()
    await expect(operation.locator(STATUS)).to_contain_text("428")
    assert [each for each in seen.complaints if "428" not in each] == []


async def test_authorize_takes_a_jwt_or_an_api_key_and_keeps_neither_longer_than_the_page(
    page: Page, demo_database: str, start_gateway: Start
) -> None:
    url = await start_gateway(demo_database, demo=True, jwt_secret=SECRET, jwt_role_claim_key="", api_keys=True)
    async with connection_to(demo_database) as connection:
        _, key = await api_keys.create(connection, FOR_ALL)
    seen = Seen(page)
    await page.goto(f"{url}/docs")
    await page.get_by_role("button", name="Authorize", exact=True).click()
    await authorize(page, token())
    await expect(page.get_by_text("Logout")).to_be_visible()
    await page.locator(".auth-btn-wrapper .btn-done").click()
    write, read = page.locator("#operations-orders-update_orders_row"), page.locator("#operations-orders-list_orders")
    await write.locator(".opblock-summary-control").click()
    await write.get_by_role("button", name="Execute").click()
    await expect(write.locator(STATUS)).to_have_text("200")
    assert seen.complaints == []

    await page.locator(".btn.authorize").click()
    await page.get_by_text("Logout").click()
    await expect(write).to_have_count(0)
    await authorize(page, token(exp=1))
    await expect(page.locator(".auth-container .errors")).to_contain_text("it has expired")
    await expect(write).to_have_count(0)
    await authorize(page, f" {key} ")
    await page.locator(".auth-btn-wrapper .btn-done").click()
    await read.locator(".opblock-summary-control").click()
    await read.get_by_role("button", name="Execute").click()
    await expect(read.locator(STATUS)).to_have_text("200")

    assert await page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    asked = sum("openapi.json" in each for each in seen.urls)
    await page.reload()
    await expect(page.locator(".btn.authorize")).to_be_visible()
    assert sum("openapi.json" in each for each in seen.urls) == asked == 3, "it is asked for with a token only"


async def authorize(page: Page, credential: str) -> None:
    """Give Swagger UI's open dialog a credential, of which it shows nothing."""
    field = page.get_by_label("auth-bearer-value")
    await expect(field).to_have_attribute("type", "password")
    await field.fill(credential)
    await page.locator(".auth-btn-wrapper .authorize").click()


async def test_a_write_to_a_real_table_cannot_be_sent_from_the_page(
    page: Page, demo_database: str, start_gateway: Start
) -> None:
    async with connection_to(demo_database) as connection:
        await connection.execute("CREATE TABLE public.bills (id int PRIMARY KEY, paid bool)")
        await protect(connection, "bills")
        await cannot_be_sent(page, await start_gateway(demo_database, demo=False), "orders", claims=0)
        await cannot_be_sent(page, await start_gateway(demo_database, demo=True), "bills", claims=1)
        await connection.execute("COMMENT ON TABLE public.orders IS 'what our customers want'")  # no demo any more
    changed = await start_gateway(demo_database, demo=True)
    async with httpx.AsyncClient() as http:
        assert 'data-writes=""' in (await http.get(f"{changed}/docs")).text


async def cannot_be_sent(page: Page, url: str, table: str, *, claims: int) -> None:
    """Look for buttons that send a write of this table, or a claim; reads can be sent."""
    await page.goto(f"{url}/docs")
    for operation in (f"update_{table}_row", f"insert_{table}"):
        block = page.locator(f"#operations-{table}-{operation}")
        await block.locator(".opblock-summary-control").click()
        await expect(block.locator(".opblock-section").first).to_be_visible()
        await expect(block.get_by_role("button", name="Execute")).to_have_count(0)
        await expect(block.get_by_role("button", name="Try it out")).to_have_count(0)
        await expect(block.locator("textarea")).to_have_count(0)
        await expect(block.locator(".why-not")).to_contain_text("fencepost serve --try-writes")
    reading = page.locator(f"#operations-{table}-list_{table}")
    await reading.locator(".opblock-summary-control").click()
    await reading.get_by_role("button", name="Execute").click()
    await expect(reading.locator(".live-responses-table .response .response-col_status")).to_have_text("200")
    claim = page.locator("#operations-fences-post_claim_v1_claims_post")
    await claim.locator(".opblock-summary-control").click()
    await expect(claim.locator(".opblock-section").first).to_be_visible()
    await expect(claim.get_by_role("button", name="Execute")).to_have_count(claims)


async def test_writes_to_all_tables_can_be_sent_where_the_operator_says_so_and_errors_are_folded(
    page: Page, demo_database: str, start_gateway: Start
) -> None:
    """A click that sends nothing leaves no answer of the click before."""
    url = await start_gateway(demo_database, try_writes=True)
    await page.goto(f"{url}/docs")
    block = page.locator("#operations-orders-update_orders_row")
    await block.locator(".opblock-summary-control").click()
    await expect(block.locator(".why-not")).to_have_count(0)
    await block.get_by_role("button", name="Execute").click()
    await expect(block.locator(STATUS)).to_have_text("200")
    height = await block.evaluate("block => block.scrollHeight")
    assert height < 4000, "it had 8,157 pixels, most of them examples of errors"
    await block.get_by_role("button", name="The token is stale").first.click()
    await expect(block.locator(".responses-table .response").filter(has_text="FP001")).to_be_visible()
    await block.get_by_role("row", name="order_id").locator("input").fill("")
    await block.get_by_role("button", name="Execute").click()
    await expect(block.locator(".validation-errors li").first).to_contain_text("Required field")
    await expect(block.locator(STATUS)).to_have_count(0)


async def test_what_the_page_sends_as_it_stands_is_right(page: Page, demo_database: str, start_gateway: Start) -> None:
    """Every "Execute" of a fresh demo: done, or refused for what the rows and the fence are by then. It is never the
    request that is wrong: a parameter without its name or its example, a body that is none.
    """
    url = await start_gateway(demo_database, demo=True)
    await page.goto(f"{url}/docs")
    await expect(page.locator(".opblock").first).to_be_visible()
    answered: dict[str, str] = {}
    stream = "operations-elections-get_events"
    for number in range(await page.locator(".opblock").count()):
        operation = page.locator(".opblock").nth(number)
        name = str(await operation.get_attribute("id"))
        await operation.locator(".opblock-summary-control").click()
        await expect(operation.locator(".opblock-section").first).to_be_visible()
        execute = operation.get_by_role("button", name="Execute")
        if not name.startswith(stream) and await execute.count():
            await execute.click()
            shown = operation.locator(f"{STATUS}, .validation-errors li").first
            await expect(shown).to_contain_text(re.compile(r"\d{3}|Required field"))
            answered[name] = await shown.inner_text()
        await operation.locator(".opblock-summary-control").click()  # the next one is drawn sooner
    assert len(answered) > 20
    assert {name for name, said in answered.items() if said.startswith(("400", "422", "5"))} == set()
    assert answered["operations-fences-get_fence_v1_fences_get"] == "200"


# A page of another site, in a real browser: it takes no lease and writes no row.


class _Empty(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>another site</title>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def another_site() -> Iterator[str]:
    """Serve a page whose site is localhost; the gateway's is 127.0.0.1."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Empty)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


async def locks(url: str) -> list[str]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        return [lock["name"] for lock in (await client.get("/v1/locks")).json()]


async def test_a_page_of_another_site_takes_a_lease_only_where_its_site_is_allowed(
    page: Page, demo_database: str, start_gateway: Start, another_site: str
) -> None:
    url = await start_gateway(demo_database)
    await page.goto(another_site)
    lease = '{"lock": "nightly", "owner": "a page", "ttl_ms": 3600000}'
    attacks = """async ([url, body]) => {
        const said = [];
        const json = new Blob([body], {type: 'application/json'});
        for (const sent of [body, new Blob([body]), json, new URLSearchParams({a: body})])
            for (const mode of ['no-cors', 'cors'])
                said.push(await fetch(url, {method: 'POST', mode, body: sent}).then(a => a.status, e => e.name));
        return said;
    }"""
    said = await page.evaluate(attacks, [f"{url}/v1/leases", lease])
    assert set(said) == {0, "TypeError"}, "the page does not learn what became of them"
    assert await locks(url) == []
    # DNS rebinding: for the browser it is the page's own site.
    answer = await page.goto(url.replace("127.0.0.1", "page.localhost") + "/v1/data/orders")
    assert answer is not None
    assert answer.status == 421
    allowed = await start_gateway(demo_database, cors_origins=another_site.rstrip("/"))
    await page.goto(another_site)
    asks = """async ([url, body]) => {
        const headers = {'Content-Type': 'application/json'};
        return (await fetch(url, {method: 'POST', body, headers})).status;
    }"""
    assert await page.evaluate(asks, [f"{allowed}/v1/leases", lease]) == 201
    assert await locks(url) == ["nightly"]
    await page.goto(f"{url}/docs")
    assert await page.evaluate(asks, ["/v1/leases", lease.replace("nightly", "daily")]) == 201
    assert sorted(await locks(url)) == ["daily", "nightly"]


# The report of a torture run in a real browser, with the network switched off.


async def test_the_page_shows_its_violation_without_a_network_and_its_policy_stops_the_rest(tmp_path: Path) -> None:
    history = paused_holder(fenced=False).write(tmp_path / "h.jsonl")
    write_report(history, check(read(history)), tmp_path / "report.html")
    report = (tmp_path / "report.html").as_uri()
    some_in_their_chart = """halos => halos.some((halo) => {
      const mark = halo.getBoundingClientRect(), view = halo.closest(".chart").getBoundingClientRect();
      return mark.right > view.left && mark.left < view.right;
    })"""
    async with browser_page(offline=True, viewport={"width": 1280, "height": 900}) as page:
        seen = Seen(page)
        await page.goto(report)
        await expect(page.locator("html")).to_have_class("live")  # the script ran: the policy lets it
        assert (
            await page.locator(".strip").first.evaluate("e => getComputedStyle(e).opacity") == "0.45"
        )  # so did the style
        assert (seen.complaints, seen.urls) == ([], [report])
        words = re.compile("Not valid: 1 violation in 10 operations")
        await expect(page.get_by_role("heading", level=1)).to_have_text(words)
        for place in (".card >> nth=0", ".chart .halo >> nth=0", ".chart .halo >> nth=1", ".arrow >> nth=0"):
            await expect(page.locator(place)).to_be_in_viewport(ratio=0.9)
        await page.keyboard.press("n")
        for _ in range(12):
            await page.keyboard.press("+")
        assert await page.locator(".chart .halo").evaluate_all(some_in_their_chart)
        await page.evaluate(
            "() => { const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s) }"
        )
        assert await page.evaluate("window.ran") is None
        assert any("Content Security Policy" in complaint for complaint in seen.complaints)
