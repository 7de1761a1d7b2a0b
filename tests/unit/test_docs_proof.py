"""docs/proof.md names tests, commands and workloads that exist, and has the figures of docs/proof.json."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from tools import long_run

from fencepost.cli.main import main
from fencepost.torture.config import SOURCES
from fencepost.torture.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/proof.md").read_text()
COMMANDS = sorted(set(re.findall(r"`((?:\.venv/bin/|fencepost )[^`]+)`", PAGE)))
FILES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE)))


@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_named_exists(file: str) -> None:
    assert (ROOT / file).is_file()


@pytest.mark.parametrize("command", [command for command in COMMANDS if "pytest" in command])
def test_a_test_that_shows_a_bug_again_exists(command: str) -> None:
    program, node = shlex.split(command)
    assert program == ".venv/bin/pytest"
    file, test = node.split("::")
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert test in {each.name for each in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(each, functions)}


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("fencepost torture ")])
def test_a_run_has_options_that_exist(command: str) -> None:
    """A seed that is no number is the last thing that is looked at: every option before it exists."""
    words = shlex.split(command)[1:]
    known = CliRunner().invoke(main, ["torture", "--help"]).output
    assert [word for word in words if word.startswith("--") and word not in known] == []


def test_each_workload_on_each_source_is_a_part_of_the_long_run() -> None:
    parts = {(part.workload, part.source) for part in long_run.parts()}
    for workload in ("fenced-set", "unfenced-set", "mutex", "blocks", "register"):
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
