"""What is no history is refused, with file and line, what it means and what to do; nothing is left half-written."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fencepost.cli.main import main

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
        ({"time": 40}, '"event" is None'),
        ({"time": True, "event": "note", "text": "x"}, "'time' cannot be True"),
        ({**READ, "time": 40, "tokn": 5}, "an event of kind 'invoke' has no 'tokn'"),
        ({**READ, "time": 40, "token": 0}, "'token' cannot be 0: it must be a whole number above 0"),
        ({**READ, "time": 29}, "the clock goes backwards, from 30 to 29"),
        (
            {**READ, "time": 40},
            "operation 2 begins a second time before it ended: ids must be unique. It began in line 6",
        ),
        ({"time": 40, "event": "ok", "id": 1}, "operation 1 ends, and did not begin before"),
        ({"time": 40, "event": "ok", "id": 2}, "a read that is ok needs the value"),
        ({"time": 40, "event": "refused", "id": 2}, "a refusal needs a reason"),
        ({**READ, "time": 40, "id": 5, "token": 7}, "an operation read has no 'token': only write, delete, claim, acq"),
        ({"time": 40, "event": "ok", "id": 2, "value": "a", "expires": 50}, "the answer to a read has no 'expires'"),
        (
            {"time": 40, "event": "refused", "id": 2, "reason": "stale"},
            "operation 2 is refused as stale, which compares",
        ),
        ({"time": 40, "event": "healed", "id": 9}, "fault 9 is healed, and did not begin before"),
    ],
)
def test_a_line_that_is_no_event_is_named(path: Path, line: dict[str, Any] | str, message: str) -> None:
    save(path, HEADER, *FAULT, WRITE, DONE, READ, line)
    found = fencepost_check(path, "--porcupine", str(path.with_name("porcupine")))
    assert found.exit_code == 2, found.output
    assert f"{path}, line 7: {message}" in found.output
    assert [each.name for each in path.parent.iterdir()] == [path.name]


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


@pytest.mark.parametrize(
    ("lines", "models"),
    [
        ([], []),
        ([WRITE, UNKNOWN], []),
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
