"""The audit of dependencies: an advisory fails it, and what was not audited never counts as clean."""

from typing import Any

import pytest
from tools.audit import say

CLEAN: dict[str, Any] = {"name": "clean", "version": "1.0", "vulns": []}
BAD: dict[str, Any] = {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"]}]}
SKIPPED: dict[str, Any] = {"name": "new", "skip_reason": "Dependency not found on PyPI: new (3.0)"}


@pytest.mark.parametrize(
    ("dependencies", "code", "said"),
    [
        ([CLEAN, CLEAN], 0, "no advisory is known for any of 2 packages"),
        ([CLEAN, BAD], 1, "bad 2.0: PYSEC-1 (fixed in 2.1)"),
        ([SKIPPED, BAD], 1, "bad 2.0"),
        ([CLEAN, SKIPPED], 1, "1 packages could not be audited: Dependency not found"),
        ([SKIPPED, SKIPPED], 0, "skipped: pypi.org's advisories cannot be had here (Dependency not found"),
        (None, 0, "skipped: pypi.org's advisories cannot be had here (no network)"),
        ([], 0, "skipped"),
    ],
)
def test_what_was_not_audited_is_named(
    dependencies: list[dict[str, Any]] | None,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FENCEPOST_NO_SKIPS", raising=False)
    assert say(dependencies, "no network") == code
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("dependencies", [None, [], [SKIPPED]])
def test_where_nothing_may_be_skipped_it_fails(
    dependencies: list[dict[str, Any]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_NO_SKIPS", "1")
    assert say(dependencies, "no network") == 1
