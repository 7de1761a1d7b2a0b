"""The report of a torture run in a real browser, with the network switched off."""

import re
from pathlib import Path

from playwright.async_api import Page, expect
from tests.http.browser import Seen, browser_page, in_a_browser
from tests.support.histories import paused_holder

from fencepost.testing.checker import check
from fencepost.testing.history import read
from fencepost.testing.torture.report import write_report

pytestmark = in_a_browser

SOME_IN_THEIR_CHART = """halos => halos.some((halo) => {
  const mark = halo.getBoundingClientRect(), view = halo.closest(".chart").getBoundingClientRect();
  return mark.right > view.left && mark.left < view.right;
})"""


async def test_the_page_shows_its_violation_without_a_network_and_its_policy_stops_what_is_not_of_it(
    tmp_path: Path,
) -> None:
    async with browser_page(offline=True, viewport={"width": 1280, "height": 900}) as page:
        await shows_and_stops(page, tmp_path)


async def shows_and_stops(page: Page, tmp_path: Path) -> None:
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
    await page.keyboard.press("n")
    for _ in range(12):
        await page.keyboard.press("+")
    assert await page.locator(".chart .halo").evaluate_all(SOME_IN_THEIR_CHART)
    await page.evaluate(
        "() => { const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s) }"
    )
    assert await page.evaluate("window.ran") is None
    assert any("Content Security Policy" in complaint for complaint in seen.complaints)
