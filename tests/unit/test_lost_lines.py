"""Which lines count as lost: those that ran before, wherever they stood, and do not now."""

import json
from pathlib import Path

import pytest
from tools import lost_lines


def checkout(root: Path, file: str, text: str, executed: list[int], missing: list[int]) -> Path:
    (root / file).parent.mkdir(parents=True)
    (root / file).write_text(text)
    report = {"files": {file: {"executed_lines": executed, "missing_lines": missing}}}
    (root / lost_lines.REPORT).write_text(json.dumps(report))
    return root


def test_a_line_that_moved_and_is_not_run_any_more_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = checkout(tmp_path / "before", "app/old/a.py", "one()\ntwo()\nthree()\n", [1, 2], [3])
    after = checkout(tmp_path / "after", "app/new/a.py", "one()\n\nif x:\n    two()\n    three()\n", [1], [4, 5])
    assert lost_lines.main(before, after) == 1
    assert capsys.readouterr().out == "app/new/a.py:4: two()\n"
    assert lost_lines.main(before, before) == 0
