"""Makes docs/images/report.png anew: what a report shows of the paused holder, without a fence.

Run it in the clone, where Chromium is installed: `.venv/bin/python tools/report_picture.py`.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import sync_playwright

ROOT: Final = Path(__file__).resolve().parent.parent
PICTURE: Final = ROOT / "docs/images/report.png"
CHROMIUM: Final = Path("/usr/bin/chromium")
WIDTH: Final = 1200


def main() -> None:
    """Write the history, its report, and a picture of the report's top."""
    sys.path.insert(0, str(ROOT))
    from tests.support.histories import paused_holder  # noqa: PLC0415 - the tests are no package

    from fencepost.testing.checker import check  # noqa: PLC0415 - beside the tests
    from fencepost.testing.history import read  # noqa: PLC0415
    from fencepost.testing.torture.report import write_report  # noqa: PLC0415

    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        history = paused_holder(fenced=False).write(Path(folder) / "history.jsonl")
        page_file = Path(folder) / "report.html"
        write_report(history, check(read(history)), page_file)
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.goto(page_file.as_uri())
        timeline = page.locator(".timeline").first.bounding_box()
        assert timeline is not None  # noqa: S101 - for the type
        height = timeline["y"] + timeline["height"] + 16
        page.screenshot(path=PICTURE, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        browser.close()


if __name__ == "__main__":
    main()
