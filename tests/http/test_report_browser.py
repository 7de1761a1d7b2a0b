"""The report of a torture run in a real browser, with the network switched off."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect
from tests.http.test_docs_browser import ARGUMENTS, CHROMIUM, Seen
from tests.support.report_histories import paused_holder

from fencepost.testing.checker import check
from fencepost.testing.history import read
from fencepost.testing.servers.waiting import PATIENCE
from fencepost.torture.report import write_report

pytestmark = [
    pytest.mark.long("tests in a browser"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium: apt-get install chromium"),
]


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        context = await browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        yield page
        await browser.close()


async def test_the_page_shows_its_violation_without_a_network_and_its_policy_stops_what_is_not_of_it(
    page: Page, tmp_path: Path
) -> None:
    history = paused_holder(fenced=False).write(tmp_path / "h.jsonl")
    write_report(history, check(read(history)), tmp_path / "report.html")
    report, seen = (tmp_path / "report.html").as_uri(), Seen(page)
    await page.goto(report)
    await expect(page.locator("html")).to_have_class("live")  # the script ran: the policy lets it
    assert await page.locator(".strip").first.evaluate("e => getComputedStyle(e).opacity") == "0.45"  # so did the style
    assert (seen.complaints, seen.urls) == ([], [report])
    words = re.compile("Not valid: 1 violation in 10 operations")
    await expect(page.get_by_role("heading", level=1)).to_have_text(words)
    for place in (".card >> nth=0", ".chart .halo >> nth=0", ".chart .halo >> nth=1", ".arrow >> nth=0"):
        await expect(page.locator(place)).to_be_in_viewport(ratio=0.9)
    await page.evaluate(
        "() => { const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s) }"
    )
    assert await page.evaluate("window.ran") is None
    assert any("Content Security Policy" in complaint for complaint in seen.complaints)
