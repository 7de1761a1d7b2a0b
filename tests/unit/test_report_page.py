"""The report as a file: what it says, that it loads nothing, and that nothing of a history is taken for HTML."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.histories import Script, paused_holder

from fencepost.cli.main import main
from fencepost.testing.checker import check
from fencepost.testing.history import read
from fencepost.testing.torture.report import write_report

EVIL = "<script>alert(1)</script>\"'&\u202e\x00\ud800"


class Elements(HTMLParser):
    """Collects the elements of a page and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def report(history: Path, folder: Path) -> tuple[str, str]:
    words = write_report(history, check(read(history)), folder / "report.html")
    return (folder / "report.html").read_text("utf-8"), words


def test_a_violation_is_at_the_top_with_the_checkers_words_and_the_command(tmp_path: Path) -> None:
    history = paused_holder(fenced=False).write(tmp_path / "h.jsonl")
    page, words = report(history, tmp_path)
    (violation,) = check(read(history)).violations
    text = " ".join(Elements(page).words)
    for expected in (
        "Not valid: 1 violation in 10 operations",
        "workload register, source builtin, seed 7, 5.21 s, 1 resource",
        "9 accepted, 0 refused, 1 unknown",
        "Faults: paused 1",
        "fencepost torture --seed 7 --workload register --source builtin",
        violation.words.splitlines()[0],
    ):
        assert expected in text
        assert expected in words
    assert "the lock's TTL is 5 s" in text


def test_text_of_a_history_is_shown_and_never_run(tmp_path: Path) -> None:
    evil = EVIL.removesuffix("\ud800")  # JSON in UTF-8 cannot have it
    story = Script(seed=evil, workload=evil, source=evil, command=f"x {evil}", **{evil: evil})
    story.fault(0, 5, evil, evil)
    story.note(1, evil)
    story.did(2, 3, evil, "write", evil, token=9, value=evil, key=evil)
    story.did(4, 6, evil, "write", evil, token=8, value=f"{evil}2", key=evil)
    story.did(7, 8, evil, "read", evil, answer_value=evil)
    story.did(9, 10, evil, "read", evil, event="unknown", answer_why=evil)
    page, _ = report(story.write(tmp_path / "h.jsonl"), tmp_path)
    plain = report(paused_holder(fenced=False).write(tmp_path / "plain.jsonl"), tmp_path)[0]
    elements = Elements(page)
    assert set(elements.names) <= set(Elements(plain).names)
    assert elements.names.count("script") == 1
    assert "<script>alert(1)</script>" in " ".join(elements.words)
    assert not re.search("[\u202e\x00]", page)
    assert r"\u202e\x00" in page, "they are written out"


def run(*arguments: str | Path, command: str = "report") -> Result:
    return CliRunner().invoke(main, [command, *map(str, arguments)])


def test_the_command_prints_the_verdict_and_its_exit_code_is_the_verdict(tmp_path: Path) -> None:
    good = paused_holder().write(tmp_path / "good.jsonl")
    result = run(good)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "Valid: no violation in 10 operations")
    assert (tmp_path / "good.html").exists()
    bad = paused_holder(fenced=False).write(tmp_path / "bad.jsonl")
    result = run(bad, "-o", tmp_path / "named.html")
    assert (result.exit_code, result.output.splitlines()[0]) == (1, "Not valid: 1 violation in 10 operations")
    assert result.output.endswith(f"The report: {tmp_path / 'named.html'}\n")


@pytest.mark.parametrize(("command", "option"), [("report", "-o"), ("check", "--porcupine")])
def test_a_history_is_not_written_over_and_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, command: str, option: str
) -> None:
    history = paused_holder().write(tmp_path / "h.jsonl")
    before = history.read_bytes()
    itself = run(history, option, tmp_path / "." / "h.jsonl", command=command)
    assert (itself.exit_code, "is the history itself" in itself.output) == (2, True)
    nowhere = run(history, option, tmp_path / "no such folder" / "r", command=command)
    assert (nowhere.exit_code, "could not be written to" in nowhere.output) == (2, True)
    assert ([each.name for each in tmp_path.iterdir()], history.read_bytes()) == (["h.jsonl"], before)
