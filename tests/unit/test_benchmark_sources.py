"""What a run over the token sources reports, and that docs/sources.md has the same."""

import json

from benchmarks import source_report
from benchmarks.source_clients import BUILTIN
from benchmarks.source_services import KINDS

from fencepost.locks.registry import KINDS as REGISTERED
from fencepost.locks.registry import kind_of


def test_every_registered_source_is_measured() -> None:
    measured = {kind.name.replace("_", "-") for kind in KINDS}
    registered = {kind_of(f"{scheme}://x") for scheme in REGISTERED}
    assert measured == registered | {BUILTIN}, "benchmarks/source_services.py: KINDS has each source"


def test_the_page_shows_the_figures_that_are_kept() -> None:
    kept = json.loads(source_report.KEPT.read_text())
    page = source_report.PAGE.read_text("utf-8")
    assert source_report.inserted(page, source_report.markdown(kept)) == page, "python -m benchmarks.source_report"
