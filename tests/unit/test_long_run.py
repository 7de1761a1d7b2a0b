"""The row that a part of the long run comes to."""

from pathlib import Path

import pytest
from tools import long_run

from fencepost.testing.checker import check
from fencepost.testing.history import Recorder

PART = long_run.Part(3, "unfenced-set", "builtin")


def recorded(*, last: tuple[str, ...]) -> Recorder:
    """Two members are acknowledged, a third one may have been added; `last` is what is read in the end."""
    recorder = Recorder()
    for value in ("a", "b"):
        recorder.invoke(process="w1", op="add", resource="s", value=value).ok()
    recorder.invoke(process="w1", op="add", resource="s", value="c").unknown("cut")
    recorder.fault("pause-holder", "w1").healed()
    recorder.invoke(process="last", op="read_set", resource="s").ok(values=last)
    return recorder


def row(recorder: Recorder) -> dict[str, object]:
    return long_run.row_of(PART, check(recorder.history), recorder.history)


def test_members_that_were_acknowledged_and_are_gone_are_counted() -> None:
    found = row(recorded(last=("b",)))
    assert (found["lost"], found["violations"], found["faults"]) == (1, 1, {"pause-holder": 1})
    assert long_run.is_as_promised(found)


@pytest.mark.parametrize("last", [("a", "b"), ("a", "b", "c")])
def test_a_control_that_loses_nothing_is_no_control(last: tuple[str, ...]) -> None:
    found = row(recorded(last=last))
    assert found["lost"] == 0
    assert not long_run.is_as_promised(found)


def test_the_page_is_written_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, figures = tmp_path / "proof.md", tmp_path / "proof.json"
    page.write_text(f"above\n{long_run.BEGIN}\nbefore this run\n{long_run.END}\nbelow\n")
    monkeypatch.setattr(long_run, "PAGE", page)
    monkeypatch.setattr(long_run, "FIGURES", figures)
    long_run.write([row(recorded(last=("b",)))])
    text = page.read_text()
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    assert "before this run" not in text
    assert "| unfenced-set | builtin | 3 | 4 | 3 | 0 | 1 | 1 | 1 | 1 |" in text
