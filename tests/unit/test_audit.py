"""What `make check` makes of pip-audit's report: a vulnerability fails it, and so does half an audit."""

from typing import Any

import pytest
from tools.audit import say

CLEAN: dict[str, Any] = {"name": "orjson", "version": "3.11", "vulns": []}
BAD: dict[str, Any] = {**CLEAN, "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.12"]}]}
SKIPPED: dict[str, Any] = {"name": "orjson", "skip_reason": "no advisories here"}


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([CLEAN, CLEAN], 0, "no advisory is known for any of 2 packages"),
        ([CLEAN, BAD], 1, "orjson 3.11: PYSEC-1 (fixed in 3.12)"),
        ([SKIPPED, BAD], 1, "PYSEC-1"),
        ([CLEAN, SKIPPED], 1, "1 packages could not be audited: no advisories here"),
        ([SKIPPED], 0, "skipped: pypi.org's advisories cannot be had here (no advisories here)"),
        (None, 0, "skipped: pypi.org's advisories cannot be had here (no network)"),
        ([], 0, "skipped"),
    ],
)
def test_what_is_known_fails_and_what_is_not_is_named(
    found: list[dict[str, Any]] | None,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("FENCEPOST_NO_SKIPS", raising=False)
    assert say(found, "no network") == code
    assert said in capsys.readouterr().out
    monkeypatch.setenv("FENCEPOST_NO_SKIPS", "1")
    assert say(found, "no network") == (0 if said.startswith("no advisory") else 1), "nothing may be skipped"
