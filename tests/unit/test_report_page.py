"""The report as a file: what it says, that it loads nothing, and that nothing of a history is taken for HTML."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.report_histories import Script, large, paused_holder

from fencepost.cli.main import main
from fencepost.testing.checker import UndecidedError, Verdict, Violation, check
from fencepost.testing.history import BadHistoryError, read
from fencepost.torture.report import write_report
from fencepost.torture.report.markup import Markup, element, join, visible
from fencepost.torture.report.page import letters

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


def test_the_words_of_a_violation_and_the_timeline_count_from_the_same_moment(tmp_path: Path) -> None:
    story = Script()
    story.fault(1000, 1100, "paused", "w9")
    story.did(2500, 2510, "w1", "write", "orders/7", token=3, value="new")
    story.did(2520, 2530, "w2", "write", "orders/7", token=2, value="old")
    page, words = report(story.write(tmp_path / "h.jsonl"), tmp_path)
    assert "asked at 1.500 s" in words
    assert "1.500000 s" in page


def test_a_valid_history_says_so(tmp_path: Path) -> None:
    page, words = report(paused_holder().write(tmp_path / "h.jsonl"), tmp_path)
    assert "Valid: no violation in 10 operations" in page
    assert words.startswith("Valid: no violation in 10 operations\n")
    assert "Violation A" not in page
    assert "stale" in page


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


def test_the_page_loads_nothing_and_its_policy_names_its_own_style_and_script(tmp_path: Path) -> None:
    page, _ = report(paused_holder(fenced=False).write(tmp_path / "h.jsonl"), tmp_path)
    attributes = Elements(page).attributes
    assert not [name for name, _ in attributes if name.startswith("on") or name in ("style", "src", "xlink:href")]
    assert all(value and value.startswith("#") for name, value in attributes if name == "href")
    assert "url(" not in page
    (policy,) = [value for name, value in attributes if name == "content" and value and "default-src" in value]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    named = " ".join(
        value or "" for name, value in attributes if name in ("aria-labelledby", "aria-describedby")
    ).split()
    assert set(named) <= set(ids)


def test_more_violations_than_have_room_are_given_in_words(tmp_path: Path) -> None:
    history = large(tmp_path / "h.jsonl", 3_000, resources=30)
    invokes = {event.resource: event for event in read(history) if hasattr(event, "resource")}
    violations = tuple(Violation("register", name, f"words on {name}.", (event,)) for name, event in invokes.items())
    twice = (*violations, *violations[:1] * 9)
    write_report(history, Verdict(False, twice, 3_000, 0, 0, 0, 30), tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count('class="card"') == 20 + 2, "20 resources, and three violations of one of them"
    assert "17 more violations, without a timeline" in page
    assert all(f"words on {name}." in page for name in invokes)


def test_a_report_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = paused_holder().write(tmp_path / "h.jsonl")
    verdict, destination = check(read(history)), tmp_path / "report.html"
    destination.write_text("the one before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("os.fchmod", full)
        with pytest.raises(OSError, match="No space left"):
            write_report(history, verdict, destination)
    assert destination.read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.jsonl", "report.html"]
    write_report(history, verdict, destination)
    assert destination.read_text("utf-8").endswith("</html>\n")


def test_an_empty_history_has_no_report(tmp_path: Path) -> None:
    empty = run(Script().write(tmp_path / "h.jsonl"))
    assert empty.exit_code == 2
    assert "nothing to check" in empty.output
    assert not (tmp_path / "h.html").exists()


def test_a_history_that_ends_in_the_middle_of_a_line_gives_no_report(tmp_path: Path) -> None:
    history = paused_holder().write(tmp_path / "h.jsonl")
    verdict = check(read(history))
    history.write_bytes(history.read_bytes()[:-10])
    with pytest.raises(BadHistoryError):
        write_report(history, verdict, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_the_command_prints_the_verdict_and_its_exit_code_is_the_verdict(tmp_path: Path) -> None:
    good = paused_holder().write(tmp_path / "good.jsonl")
    result = run(good)
    assert (result.exit_code, result.output.splitlines()[0]) == (0, "Valid: no violation in 10 operations")
    assert (tmp_path / "good.html").exists()
    bad = paused_holder(fenced=False).write(tmp_path / "bad.jsonl")
    result = run(bad, "-o", tmp_path / "named.html")
    assert (result.exit_code, result.output.splitlines()[0]) == (1, "Not valid: 1 violation in 10 operations")
    assert result.output.endswith(f"The report: {tmp_path / 'named.html'}\n")


def test_the_command_says_what_is_wrong_and_writes_nothing(tmp_path: Path) -> None:
    history = paused_holder().write(tmp_path / "h.jsonl")
    itself = run(history, "-o", history)
    assert itself.exit_code == 2
    assert "is the history itself" in itself.output
    nowhere = run(history, "-o", tmp_path / "no such folder" / "r.html")
    assert nowhere.exit_code == 2
    assert "could not be written" in nowhere.output
    whole = history.read_bytes()
    history.write_bytes(whole[:-10])
    cut = run(history)
    assert cut.exit_code == 2
    assert "--cut-off-last-line" in cut.output
    assert not (tmp_path / "h.html").exists()
    assert run(history, "--cut-off-last-line").exit_code == 0
    history.write_bytes(b"no history\n")
    assert run(history).exit_code == 2


def test_a_history_that_cannot_be_judged_is_not_reported_as_a_violation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def undecided(*_: object) -> None:
        raise UndecidedError("r/1", 1000)

    monkeypatch.setattr("fencepost.cli.report.check", undecided)
    result = run(paused_holder().write(tmp_path / "h.jsonl"))
    assert result.exit_code == 2
    assert "r/1 cannot be judged" in result.output
    assert not (tmp_path / "h.html").exists()


def test_markup_escapes_what_is_no_markup() -> None:
    assert element("p", "<b>", Markup("<i></i>"), title='"&') == '<p title="&quot;&amp;">&lt;b&gt;<i></i></p>'
    assert join(["<", Markup("<")]) == "&lt;<"
    assert visible(EVIL) == r"<script>alert(1)</script>" + "\"'&" + r"\u202e\x00\ud800"
    assert visible("a" * 200, 10) == "aaaaaaaaa…"


def test_violations_are_named_by_letters() -> None:
    assert [letters(i) for i in (0, 1, 25, 26, 27, 702)] == ["A", "B", "Z", "AA", "AB", "AAA"]
