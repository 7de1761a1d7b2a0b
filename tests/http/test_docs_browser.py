"""/docs in a real browser: it works without the internet, and its "Try it out" shows the fence at work."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from playwright.async_api import ConsoleMessage, Page, Request, async_playwright, expect
from tests.http.conftest import StartGateway

from fencepost.storage.protecting.protect import protect
from fencepost.testing.servers.waiting import PATIENCE

CHROMIUM = Path("/usr/bin/chromium")
expect.set_options(timeout=PATIENCE * 1000)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    pytest.mark.long("tests in a browser"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium: apt-get install chromium"),
    # What the browser sees does not depend on PostgreSQL's version.
    pytest.mark.parametrize("postgres", ["embedded-18"], indirect=True),
]


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


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = await browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        yield page
        await browser.close()


@pytest.fixture
async def demo_url(demo_database: str, start_gateway: StartGateway) -> str:
    return await start_gateway(demo_database, demo=True)


async def test_trying_the_same_write_twice_shows_200_and_then_409(page: Page, demo_url: str) -> None:
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


async def test_a_write_to_a_real_table_cannot_be_sent_from_the_page(
    page: Page, demo_database: str, start_gateway: StartGateway
) -> None:
    connection = await asyncpg.connect(demo_database)
    await connection.execute("CREATE TABLE public.bills (id int PRIMARY KEY, paid bool)")
    await protect(connection, "bills")
    await cannot_be_sent(page, await start_gateway(demo_database, demo=False), "orders", claims=0)
    await cannot_be_sent(page, await start_gateway(demo_database, demo=True), "bills", claims=1)
    await connection.execute("COMMENT ON TABLE public.orders IS 'what our customers want'")  # no demo any more
    await connection.close()
    await cannot_be_sent(page, await start_gateway(demo_database, demo=True), "orders", claims=0)


async def cannot_be_sent(page: Page, url: str, table: str, *, claims: int) -> None:
    """Look for buttons that send a write of this table, or a claim; reads can be sent."""
    await page.goto(f"{url}/docs")
    for operation in (f"update_{table}_row", f"delete_{table}_where", f"insert_{table}", f"put_{table}_row"):
        block = page.locator(f"#operations-{table}-{operation}")
        await block.locator(".opblock-summary-control").click()
        await expect(block.locator(".opblock-section").first).to_be_visible()
        await expect(block.get_by_role("button", name="Execute")).to_have_count(0)
        await expect(block.get_by_role("button", name="Try it out")).to_have_count(0)
        await expect(block.locator("textarea")).to_have_count(0)
    reading = page.locator(f"#operations-{table}-list_{table}")
    await reading.locator(".opblock-summary-control").click()
    await reading.get_by_role("button", name="Execute").click()
    await expect(reading.locator(".live-responses-table .response .response-col_status")).to_have_text("200")
    claim = page.locator("#operations-fences-post_claim_v1_claims_post")
    await claim.locator(".opblock-summary-control").click()
    await expect(claim.locator(".opblock-section").first).to_be_visible()
    await expect(claim.get_by_role("button", name="Execute")).to_have_count(claims)
