"""What is no history is refused, with file and line, what it means and what to do; nothing is left half-written."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost.cli.main import main
from fencepost.testing import assert_exactly_once, assert_fenced, assert_mutual_exclusion
from fencepost.testing.checker import NothingToCheckError, check
from fencepost.testing.history import BadHistoryError, End, Event, History, Invoke, Recorder, read
from fencepost.testing.history.porcupine import export

HEADER: dict[str, Any] = {"history": "fencepost/1"}
WRITE: dict[str, Any] = {
    "time": 10,
    "event": "invoke",
    "id": 1,
    "process": "w1",
    "op": "write",
    "resource": "orders/7",
    "token": 33,
    "value": "a",
}
DONE: dict[str, Any] = {"time": 20, "event": "ok", "id": 1}
FAULT: list[dict[str, Any]] = [
    {"time": 5, "event": "fault", "id": 8, "kind": "paused", "target": "w1"},
    {"time": 6, "event": "healed", "id": 8},
]
READ: dict[str, Any] = {"time": 30, "event": "invoke", "id": 2, "process": "w1", "op": "read", "resource": "orders/7"}


def fencepost_check(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["check", str(path), *options])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.jsonl"


def save(path: Path, *lines: dict[str, Any] | str) -> None:
    spelled = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{line}\n" for line in spelled), "utf-8")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"time": 40, "event": "ok", "id":', "this is not JSON"),
        ("[1]", "this is JSON, but no object"),
        ({"time": 40}, '"event" is None'),
        ({"time": 40, "event": "fine", "id": 1}, "\"event\" is 'fine'"),
        ({"time": 40, "event": "ok"}, "an event of kind 'ok' needs id"),
        (
            {"time": "40", "event": "note", "text": "x"},
            "'time' cannot be '40': it must be a whole number, not negative and",
        ),
        ({"time": True, "event": "note", "text": "x"}, "'time' cannot be True"),
        ({"time": 2**63, "event": "note", "text": "x"}, "'time' cannot be"),
        ({**READ, "time": 40, "tokn": 5}, "an event of kind 'invoke' has no 'tokn'"),
        ({**READ, "time": 40, "token": 0}, "'token' cannot be 0: it must be a whole number above 0"),
        ({**READ, "time": 40, "op": "steal"}, "'op' cannot be 'steal': it must be one of write, delete, read,"),
        ({**READ, "time": 40, "id": 5, "op": "add"}, "an operation add needs a value"),
        ({**READ, "time": 29}, "the clock goes backwards, from 30 to 29"),
        (
            {**READ, "time": 40},
            "operation 2 begins a second time before it ended: ids must be unique. It began in line 6",
        ),
        ({"time": 40, "event": "ok", "id": 3}, "operation 3 ends, and did not begin before: a broken clock"),
        ({"time": 40, "event": "ok", "id": 1}, "operation 1 ends, and did not begin before"),
        ({"time": 40, "event": "ok", "id": 2}, "a read that is ok needs the value"),
        ({"time": 40, "event": "refused", "id": 2}, "a refusal needs a reason"),
        ({**READ, "time": 40, "id": 5, "token": 7}, "an operation read has no 'token': only write, delete, claim, acq"),
        ({**READ, "time": 40, "id": 5, "value": "a"}, "an operation read has no 'value': only write, add have one"),
        ({**READ, "time": 40, "id": 5, "op": "acquire", "rule": "epoch"}, "an operation acquire has no 'rule'"),
        ({**READ, "time": 40, "id": 5, "op": "read_set", "key": "k"}, "an operation read_set has no 'key'"),
        ({"time": 40, "event": "ok", "id": 2, "value": "a", "expires": 50}, "the answer to a read has no 'expires'"),
        ({"time": 40, "event": "ok", "id": 2, "value": "a", "mark": 5}, "an event of kind 'ok' has no 'mark'"),
        ({"time": 40, "event": "unknown", "id": 2, "value": "a"}, "an event of kind 'unknown' has no 'value'"),
        (
            {"time": 40, "event": "refused", "id": 2, "reason": "stale"},
            "operation 2 is refused as stale, which compares",
        ),
        ({"time": 40, "event": "healed", "id": 9}, "fault 9 is healed, and did not begin before"),
        ({"time": 40, "event": "fault", "id": 8, "kind": "paused", "target": "w1"}, "fault 8 begins a second time"),
    ],
)
def test_a_line_that_is_no_event_is_named(path: Path, line: dict[str, Any] | str, message: str) -> None:
    save(path, HEADER, *FAULT, WRITE, DONE, READ, line)
    found = fencepost_check(path, "--porcupine", str(path.with_name("porcupine")))
    assert found.exit_code == 2, found.output
    assert f"{path}, line 7: {message}" in found.output
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the file is empty"),
        ("GET / HTTP/1.1\n", "line 1: this is not JSON"),
        ('{"history": "fencepost/2"}\n', "line 1: this is no history of a format that is known here"),
        ('{"history": "fence', "line 1: the file ends in the middle of this line"),
    ],
)
def test_the_first_line_says_that_it_is_a_history(path: Path, text: str, message: str) -> None:
    path.write_text(text, "utf-8")
    found = fencepost_check(path)
    assert found.exit_code == 2
    assert message in found.output


def test_a_history_that_was_cut_off_is_checked_without_its_last_line_when_asked(path: Path) -> None:
    save(path, HEADER, WRITE, DONE, READ)
    with path.open("a") as file:
        file.write('{"time": 40, "event": "ok", "i')
    found = fencepost_check(path)
    assert found.exit_code == 2
    assert f"{path}, line 5: the file ends in the middle of this line" in found.output
    assert "--cut-off-last-line" in found.output
    shorter = fencepost_check(path, "--cut-off-last-line")
    assert shorter.exit_code == 0
    assert "2 operations on 1 resources, 1 accepted, 0 refused, 1 unknown" in shorter.output


def test_a_violation_ends_with_1_and_its_words(path: Path) -> None:
    save(path, HEADER, WRITE, DONE, READ, {"time": 40, "event": "ok", "id": 2, "value": None})
    found = fencepost_check(path)
    assert found.exit_code == 1
    assert "[register] w1 read no row in orders/7" in found.output
    assert "VIOLATED: 2 operations on 1 resources" in found.output
    assert fencepost_check(path, "--model", "once", "--model", "register").exit_code == 1


UNKNOWN: dict[str, Any] = {"time": 20, "event": "unknown", "id": 1}
REFUSED: dict[str, Any] = {"time": 20, "event": "refused", "id": 1, "reason": "missing"}


@pytest.mark.parametrize(
    ("lines", "models"),
    [
        ([], []),
        ([WRITE], []),
        ([WRITE, UNKNOWN], []),
        ([WRITE, REFUSED], []),
        ([{**WRITE, "op": "add"}, DONE], []),
        ([WRITE, DONE], ["mutex"]),
        ([WRITE, DONE], ["plain_mutex", "once", "set"]),
    ],
)
def test_a_history_with_nothing_to_check_is_not_valid(
    path: Path, lines: list[dict[str, Any]], models: list[str]
) -> None:
    save(path, HEADER, *lines)
    found = fencepost_check(path, *(word for model in models for word in ("--model", model)))
    assert found.exit_code == 2
    assert f"nothing to check: the history has {len(lines[:1])} operations" in found.output
    assert "valid:" not in found.output
    assert all(f"{model}: " in found.output for model in models)


def test_assertions_about_nothing_fail() -> None:
    recorder = Recorder()
    recorder.invoke(process="w1", op="add", resource="set", value="1").ok()
    for assertion in (assert_fenced, assert_exactly_once, assert_mutual_exclusion):
        with pytest.raises(NothingToCheckError):
            assertion(recorder.history)


def test_ids_are_unique(path: Path) -> None:
    save(path, HEADER, WRITE, DONE, {**READ, "id": 1}, {"time": 40, "event": "ok", "id": 1, "value": "a"})
    found = fencepost_check(path)
    assert found.exit_code == 2
    assert f"{path}, line 4: the id 1 belongs to two operations" in found.output
    assert "The other one began in line 2" in found.output


def test_ids_of_a_history_in_memory_are_unique() -> None:
    write = Invoke(1, 7, "w", "write", "orders/7", 5, "a")
    events: list[Event] = [write, End(2, 7, "ok"), dataclasses.replace(write, time=3)]
    with pytest.raises(BadHistoryError, match=r"the history, event 3: the id 7 .* began in event 1"):
        check(History({}, lambda: events))


def test_writes_with_tokens_and_without_are_not_mixed(path: Path) -> None:
    bare = {key: value for key, value in WRITE.items() if key != "token"}
    save(path, HEADER, WRITE, DONE, {**bare, "time": 30, "id": 2, "value": "b"})
    found = fencepost_check(path)
    assert found.exit_code == 2
    assert "orders/7 is written with tokens and without" in found.output


def test_too_many_orders_are_an_answer_of_their_own(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.testing.checker.frontier.MOST_STATES", 10)
    lines = [{**WRITE, "id": number, "value": str(number), "rule": "epoch"} for number in range(12)]
    save(path, HEADER, *lines, *({**DONE, "id": number} for number in range(12)))
    found = fencepost_check(path)
    assert found.exit_code == 2
    assert "orders/7 cannot be judged" in found.output
    assert "more than 10 states" in found.output


def test_a_recording_is_never_written_over(path: Path) -> None:
    with Recorder(path):
        pass
    with pytest.raises(FileExistsError):
        Recorder(path)


def test_an_operation_has_one_outcome() -> None:
    operation = Recorder().invoke(process="w1", op="claim", resource="orders/7", token=5)
    operation.ok()
    with pytest.raises(ValueError, match="operation 1 has ended already"):
        operation.unknown("no answer")


def test_the_history_for_porcupine_is_written_when_asked(path: Path) -> None:
    save(path, HEADER, WRITE, READ, {"time": 30, "event": "ok", "id": 2, "value": None})
    target = path.with_name("porcupine")
    assert fencepost_check(path, "--porcupine", str(target)).exit_code == 0
    first = json.loads(target.read_text("utf-8").splitlines()[1])
    assert first["Input"]["token"] == 33
    assert (first["Call"], first["Return"]) == (10, 2**63 - 1)


def test_a_history_is_not_written_over_by_its_own_export(path: Path) -> None:
    save(path, HEADER, WRITE, DONE)
    before = path.read_bytes()
    found = fencepost_check(path, "--porcupine", str(path.parent / "." / path.name))
    assert (found.exit_code, "is the history itself" in found.output) == (2, True)
    assert path.read_bytes() == before


def test_an_export_that_cannot_be_written_is_named(path: Path) -> None:
    save(path, HEADER, WRITE, DONE)
    found = fencepost_check(path, "--porcupine", str(path.parent / "nowhere" / "porcupine"))
    assert (found.exit_code, "the file of --porcupine" in found.output) == (2, True)


def test_an_export_is_complete_or_not_there(path: Path) -> None:
    save(path, HEADER, WRITE, DONE, {"time": 5, "event": "note", "text": "back in time"})
    with pytest.raises(BadHistoryError, match="goes backwards"):
        export(read(path), path.with_name("porcupine"))
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Its events would be gone when they are read, and a history without events keeps every promise."""
    pipe = tmp_path / "run.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(BadHistoryError, match="no regular file"):
        read(pipe)


@pytest.mark.parametrize("reason", ["stale", "spent"])
def test_a_refusal_that_compares_tokens_needs_one(path: Path, reason: str) -> None:
    bare = {key: value for key, value in WRITE.items() if key != "token"}
    answer = {"time": 20, "event": "refused", "id": 1, "reason": reason}
    save(path, HEADER, bare, answer, READ, {"time": 40, "event": "ok", "id": 2, "value": None})
    found = fencepost_check(path)
    assert found.exit_code == 2
    assert f"{path}, line 3: operation 1 is refused as {reason}, which compares its token with the mark" in found.output
    save(path, HEADER, bare, {**answer, "reason": "other"}, READ, {"time": 40, "event": "ok", "id": 2, "value": None})
    assert fencepost_check(path).exit_code == 0


def test_an_answer_shows_only_what_is_checked(path: Path) -> None:
    save(path, HEADER, WRITE, {**DONE, "value": "a"})
    found = fencepost_check(path)
    assert found.exit_code == 2
    assert f"{path}, line 3: the answer to a write has no 'value': only answers to read, claim have one" in found.output


def test_a_replayed_answer_needs_a_key() -> None:
    events: list[Event] = [Invoke(1, 1, "w", "write", "orders/7", 5, "a"), End(2, 1, "ok", replayed=True)]
    with pytest.raises(BadHistoryError, match="has no key"):
        list(History({}, lambda: events))
