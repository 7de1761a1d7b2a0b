"""What `make check` makes of pip-audit's report: a vulnerability fails it, and so does half an audit."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support import selection
from tools import audit

CLEAN: dict[str, Any] = {"name": "orjson", "version": "3.11", "vulns": []}
BAD: dict[str, Any] = {**CLEAN, "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.12"]}]}
SKIPPED: dict[str, Any] = {"name": "orjson", "skip_reason": "no advisories here"}

NOT_DONE = "not done: "
NOT_COMPARED = "the dependencies were not compared with known vulnerabilities: pypi.org's list cannot be had here"
NO_NETWORK = "requests.exceptions.ProxyError: HTTPSConnectionPool(host='pypi.org', port=443): Max retries exceeded"


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        ([CLEAN, CLEAN], 0, "no advisory is known for any of 2 packages"),
        ([CLEAN, BAD], 1, "orjson 3.11: PYSEC-1 (fixed in 3.12)"),
        ([SKIPPED, BAD], 1, "PYSEC-1"),
        ([CLEAN, SKIPPED], 1, "1 packages could not be audited: no advisories here"),
        ([SKIPPED], 0, f"{NOT_DONE}{NOT_COMPARED} (no advisories here)"),
        (None, 0, f"{NOT_DONE}{NOT_COMPARED} ({NO_NETWORK})"),
        ([], 1, "no report"),
    ],
)
def test_what_is_known_fails_and_what_is_not_is_named(
    found: list[dict[str, Any]] | None,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file, lines = tmp_path / "not-audited", list[str]()
    monkeypatch.setattr(audit, "NOT_AUDITED", file)
    monkeypatch.setattr(selection, "NOT_AUDITED", file)
    file.write_text("of an earlier audit")
    monkeypatch.delenv("FENCEPOST_NO_SKIPS", raising=False)
    errors = f"Traceback\n{NO_NETWORK}\n" if found is None else ""
    assert audit.say(found, errors) == code
    assert said in capsys.readouterr().out
    reporter: Any = SimpleNamespace(stats={}, section=lines.append, line=lines.append)
    config: Any = SimpleNamespace(stash={selection.LEFT: {}}, option=SimpleNamespace(all=True))
    selection.pytest_terminal_summary(reporter, config)
    ended = [f"the audit of dependencies: {said.removeprefix(NOT_DONE)}"] if said.startswith(NOT_DONE) else []
    assert lines[1:] == ended, "what did not run is named at the end of make test-all"
    monkeypatch.setenv("FENCEPOST_NO_SKIPS", "1")
    assert audit.say(found, errors) == (0 if said.startswith("no advisory") else 1), "nothing may be skipped"


@pytest.mark.parametrize("errors", ["ERROR:pip_audit._cli:invalid requirements input: x", ""])
def test_where_pypi_can_be_reached_an_audit_that_was_not_made_fails(
    errors: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(audit, "NOT_AUDITED", tmp_path / "not-audited")
    monkeypatch.delenv("FENCEPOST_NO_SKIPS", raising=False)
    assert audit.say(None, errors) == 1
