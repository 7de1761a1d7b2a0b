"""docs/proof.md names tests, commands and workloads that exist, and has the figures of docs/proof.json."""

import json
import re
import shlex
from pathlib import Path

from click.testing import CliRunner
from tools import long_run

from fencepost.cli.main import main
from fencepost.testing.torture.config import SOURCES
from fencepost.testing.torture.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/proof.md").read_text()
COMMANDS = sorted(set(re.findall(r"`((?:\.venv/bin/|fencepost )[^`]+)`", PAGE)))


def test_commands_that_show_a_bug_again_can_be_run() -> None:
    """Tests that are named with their file exist: tests/unit/test_docs_names.py."""
    known = CliRunner().invoke(main, ["torture", "--help"]).output
    for command in COMMANDS:
        program, *words = shlex.split(command)
        if "pytest" in command:
            assert program == ".venv/bin/pytest"
            assert re.fullmatch(r"tests/\S+\.py::\w+", words[0]), command
            assert len(words) == 1, command
        if command.startswith("fencepost torture "):
            assert [word for word in words if word.startswith("--") and word not in known] == []


def test_each_workload_on_each_source_is_a_part_of_the_long_run() -> None:
    parts = {(part.workload, part.source) for part in long_run.parts()}
    for workload in ("fenced-set", "unfenced-set", "mutex", "blocks", "register", "client", "client-set"):
        assert {(workload, source) for source in SOURCES} <= parts
    assert ("idempotent", "builtin") in parts
    assert len({part.seed for part in long_run.parts()}) == len(long_run.parts())


def test_the_tables_are_those_of_the_figures() -> None:
    rows = json.loads(long_run.FIGURES.read_text())
    written = PAGE.split(long_run.BEGIN)[1].split(long_run.END)[0].strip()
    assert written == long_run.tables(rows)


def test_the_figures_are_of_a_long_run_that_came_to_what_it_should() -> None:
    rows = json.loads(long_run.FIGURES.read_text())
    assert sum(row["operations"] for row in rows) >= 1_000_000
    assert len({kind for row in rows for kind in row["faults"]}) >= 10
    assert [row["command"] for row in rows if not long_run.is_as_promised(row)] == []
    assert {row["workload"] for row in rows} <= set(WORKLOADS)


def test_fresh_rows_take_the_places_of_those_of_the_same_parts_and_tell_their_day() -> None:
    before = json.loads(long_run.FIGURES.read_text())
    fresh = {**before[0], "operations": 7, "date": "2027-01-02"}
    gone = {**before[0], "seed": 9_999}
    rows = long_run.merged([*before, gone], [fresh])
    assert rows == [fresh, *before[1:]]
    assert f"Played 2027-01-02: the seeds {fresh['seed']}." in long_run.tables(rows)
