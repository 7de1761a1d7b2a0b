"""A real browser, and what a page did in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import ConsoleMessage, Page, Request, async_playwright, expect

from fencepost.testing.servers.processes import PATIENCE

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
in_a_browser = [
    pytest.mark.long("tests in a browser"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason="no Chromium: apt-get install chromium"),
]
"""Marks of these tests."""
expect.set_options(timeout=PATIENCE * 1000)


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
