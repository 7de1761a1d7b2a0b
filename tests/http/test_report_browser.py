"""The report of a torture run in a real browser, with the network switched off."""

import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from playwright.async_api import Locator, Page, async_playwright, expect
from tests.http.test_docs_browser import ARGUMENTS, CHROMIUM, Seen
from tests.support.report_histories import large, paused_holder

from fencepost.testing.checker import Verdict, Violation, check
from fencepost.testing.history import End, Invoke, read
from fencepost.testing.servers.waiting import PATIENCE
from fencepost.torture.report import write_report

pytestmark = [
    pytest.mark.long("tests in a browser"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium: apt-get install chromium"),
]
# WCAG 2.2: of text, and of marks and lines that mean something.
TEXT_CONTRAST, MARK_CONTRAST = 4.5, 3.0


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        context = await browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        page = await context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        yield page
        await browser.close()


@pytest.fixture
def broken(tmp_path: Path) -> str:
    """Give the address of a report with one violation."""
    history = paused_holder(fenced=False).write(tmp_path / "h.jsonl")
    write_report(history, check(read(history)), tmp_path / "report.html")
    return (tmp_path / "report.html").as_uri()


@pytest.fixture
def long_one(tmp_path: Path) -> str:
    """Give the address of a report with two resources, each with a violation far from its beginning."""
    history = large(tmp_path / "h.jsonl", 1_000, resources=2)
    pairs: dict[str, list[Invoke | End]] = {"orders/0": [], "orders/1": []}
    invokes: dict[int, Invoke] = {}
    for event in read(history):
        if isinstance(event, Invoke):
            invokes[event.id] = event
        elif isinstance(event, End) and event.id in range(500, 520):
            pairs[invokes[event.id].resource] += [invokes[event.id], event]
    violations = tuple(Violation("register", name, f"Words on {name}.", tuple(own[:4])) for name, own in pairs.items())
    write_report(history, Verdict(False, violations, 1_000, 0, 0, 0, 2), tmp_path / "report.html")
    return (tmp_path / "report.html").as_uri()


async def view(chart: Locator) -> tuple[float, float]:
    """Give the left edge and the width of what a timeline shows."""
    x, _, width, _ = (await chart.get_attribute("viewBox") or "").split()
    return float(x), float(width)


async def test_the_page_loads_without_a_network_and_complains_of_nothing(page: Page, broken: str) -> None:
    seen = Seen(page)
    await page.goto(broken)
    await expect(page.locator("html")).to_have_class("live")  # the script ran: the policy lets it
    assert await page.locator(".strip").first.evaluate("e => getComputedStyle(e).opacity") == "0.45"  # so did the style
    assert seen.complaints == []
    assert seen.urls == [broken]
    # The policy stops what is not of the page.
    await page.evaluate(
        "() => { const s = document.createElement('script'); s.text = 'window.ran = 1'; document.body.append(s) }"
    )
    await page.evaluate("() => { const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i) }")
    assert await page.evaluate("window.ran") is None
    assert len([complaint for complaint in seen.complaints if "Content Security Policy" in complaint]) == 2


async def test_the_violation_is_visible_at_load_with_its_words(page: Page, broken: str) -> None:
    await page.goto(broken)
    await expect(page.get_by_role("heading", level=1)).to_have_text(
        re.compile("Not valid: 1 violation in 10 operations")
    )
    for place in (
        ".card >> nth=0",
        ".chart .halo >> nth=0",
        ".chart .halo >> nth=1",
        ".arrow >> nth=0",
        ".badge >> nth=1",
    ):
        await expect(page.locator(place)).to_be_in_viewport(ratio=0.9)
    await expect(page.locator(".chart .halo")).to_have_count(2)
    assert [await badge.text_content() for badge in await page.locator(".badge").all()] == ["A1", "A2"]
    # The question mark shows the keys.
    await expect(page.get_by_role("dialog")).to_be_hidden()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_contain_text("zoom in, zoom out")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_be_hidden()
    # A narrow window scrolls nothing sideways.
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.goto(broken)
    assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


async def test_a_long_timeline_begins_at_its_violation(page: Page, long_one: str) -> None:
    await page.goto(long_one)
    window = await page.locator(".chart").first.bounding_box()
    assert window is not None
    assert (await view(page.locator(".chart").first))[0] > 0
    for halo in await page.locator("article").first.locator(".halo").all():
        box = await halo.bounding_box()
        assert box is not None
        assert window["x"] <= box["x"] <= box["x"] + box["width"] <= window["x"] + window["width"]


async def test_keys_zoom_and_move_and_bring_everything_back(page: Page, broken: str) -> None:
    await page.goto(broken)
    chart = page.locator(".chart").first
    whole = await view(chart)
    await chart.focus()
    await page.keyboard.press("+")
    x, width = await view(chart)
    assert width == pytest.approx(whole[1] / 1.5, rel=0.01)
    mark = await page.locator(".m.write").first.bounding_box()
    assert mark is not None
    assert mark["width"] == pytest.approx(mark["height"], rel=0.1), "marks stay round"
    await page.keyboard.press("ArrowRight")
    assert await view(chart) == pytest.approx((x + 0.2 * width, width), abs=0.1)
    await page.keyboard.press("ArrowLeft")
    assert (await view(chart))[0] == pytest.approx(x, abs=0.1)
    await page.keyboard.press("-")
    assert await view(chart) == pytest.approx(whole, abs=0.1)
    for _ in range(30):
        await page.keyboard.press("+")
        await page.keyboard.press("ArrowLeft")
    assert (await view(chart))[0] >= 0
    assert (await view(chart))[1] >= 20
    await page.keyboard.press("Home")
    assert await view(chart) == whole


async def test_the_mouse_zooms_and_moves_too(page: Page, broken: str) -> None:
    await page.goto(broken)
    chart = page.locator(".chart").first
    whole = await view(chart)
    box = await chart.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 300, box["y"] + 50)
    await page.keyboard.down("Control")
    await page.mouse.wheel(0, -100)
    await page.keyboard.up("Control")
    await expect(chart).not_to_have_attribute("viewBox", f"0 0 {whole[1]:.0f} {box['height']:.0f}")
    x, width = await view(chart)
    assert width < whole[1]
    await page.mouse.down()
    await page.mouse.move(box["x"] + 200, box["y"] + 50)
    await page.mouse.up()
    assert (await view(chart))[0] > x
    await page.get_by_role("button", name="Show all, orders/7").click()
    assert await view(chart) == whole


async def test_tab_goes_through_the_violations_and_shows_each(page: Page, long_one: str) -> None:
    await page.goto(long_one)
    first, second = page.locator("article").first, page.locator("article").nth(1)
    at_first = await view(first.locator(".chart"))
    await first.locator(".chart").focus()
    await page.keyboard.press("Home")
    await page.keyboard.press("Tab")
    await expect(first.locator(".violation")).to_be_focused()
    assert await view(first.locator(".chart")) == at_first, "the violation is back in view"
    await page.keyboard.press("n")
    await expect(second.locator(".violation")).to_be_focused()
    await expect(second.locator(".halo").first).to_be_in_viewport()
    await page.keyboard.press("p")
    await expect(first.locator(".violation")).to_be_focused()


@pytest.fixture
def long_tokens(tmp_path: Path) -> str:
    """Give the address of a report with a violation, whose tokens are those of a later generation: of 18 digits."""
    history = large(tmp_path / "h.jsonl", 1_000, resources=2, planted=1)
    lines = [orjson.loads(line) for line in history.read_bytes().splitlines()]
    for each in lines:
        each.update({name: 2**58 + each[name] for name in ("token", "mark") if name in each})
    history.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in lines))
    write_report(history, check(read(history)), tmp_path / "report.html")
    return (tmp_path / "report.html").as_uri()


async def test_labels_do_not_cover_each_other_at_any_zoom(page: Page, long_tokens: str) -> None:
    await page.goto(long_tokens)
    chart = page.locator(".chart").first
    await chart.focus()
    for key in ("Home", "+", "+", "+"):
        await page.keyboard.press(key)
        boxes = await chart.locator(".t:not(.off) text").evaluate_all(
            "all => all.map(e => { const b = e.getBoundingClientRect(); return [b.x, b.y, b.right, b.bottom]; })"
        )
        lines: dict[float, list[tuple[float, float]]] = {}
        for left, top, right, _ in boxes:
            lines.setdefault(round(top), []).append((left, right))
        for spans in lines.values():
            ordered = sorted(spans)
            assert all(a[1] <= b[0] + 4 for a, b in pairwise(ordered)), key


CONTRASTS = """() => {
  const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => {
    const [more, less] = [light(a), light(b)].sort((p, q) => q - p);
    return (more + 0.05) / (less + 0.05);
  };
  const paper = rgb(getComputedStyle(document.body).backgroundColor);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return rgb(colour);
    }
    return paper;
  };
  const found = [];
  for (const e of document.querySelectorAll("h1, h2, h3, h4, p, th, td, caption, li, button, code, svg text")) {
    if (e.closest(".symbols, dialog")) continue;
    const style = getComputedStyle(e);
    const colour = rgb(e instanceof SVGElement ? style.fill : style.color);
    found.push([e.outerHTML.slice(0, 80), contrast(colour, behind(e)), "text"]);
  }
  for (const e of document.querySelectorAll(".halo, .arrow, .span, .m")) {
    const style = getComputedStyle(e);
    const used = e.matches(".m.write, .m.claim, .m.acquire") ? style.fill : style.stroke;
    found.push([e.getAttribute("class"), contrast(rgb(used), paper), "mark"]);
  }
  return [found, light(paper)];
}"""


async def test_colours_follow_the_scheme_and_have_contrast(page: Page, broken: str) -> None:
    least = {"text": TEXT_CONTRAST, "mark": MARK_CONTRAST}
    for dark in (False, True):
        await page.emulate_media(color_scheme="dark" if dark else "light")
        await page.goto(broken)
        found, paper = await page.evaluate(CONTRASTS)
        assert (paper < 0.1) == dark
        assert [each for each in found if each[1] < least[each[2]]] == [], dark


async def test_everything_has_a_name_and_focus_is_visible(page: Page, broken: str) -> None:
    await page.goto(broken)
    assert await page.locator("html").get_attribute("lang") == "en"
    levels = await page.locator("main :is(h1, h2, h3, h4)").evaluate_all("all => all.map(e => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in pairwise(levels)), "no level of headings is left out"
    nameless = await page.locator("button, a, [tabindex], [role=img]").evaluate_all(
        "all => all.filter(e => !e.textContent.trim() && !e.ariaLabel && !e.getAttribute('aria-labelledby'))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    await expect(page.get_by_role("img", name=re.compile("Violation A: "))).to_have_count(1)
    await expect(page.locator(".m").first.locator("title")).to_contain_text("acquire")
    for _ in range(12):
        await page.keyboard.press("Tab")
        shown = await page.evaluate(
            "() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return e === document.body || s.outlineStyle !== 'none' || e.matches('.violation'); }"
        )
        assert shown, await page.evaluate("document.activeElement.outerHTML.slice(0, 100)")


async def test_without_script_the_timeline_is_still_there(page: Page, broken: str) -> None:
    browser = page.context.browser
    assert browser is not None
    still = await (await browser.new_context(java_script_enabled=False)).new_page()
    await still.goto(broken)
    await expect(still.locator(".chart .halo")).to_have_count(2)
    box = await still.locator(".chart .halo").first.bounding_box()
    assert box is not None
    assert box["width"] == pytest.approx(box["height"], rel=0.1)
