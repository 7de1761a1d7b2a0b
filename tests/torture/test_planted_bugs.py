"""A bounded run finds each planted bug, finds nothing in the product, and docs/torture.md lists what is found."""

import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import psycopg
import pytest
from tests.torture.bugs import PLANTED, Planted, Setting, config, plant
from tests.torture.conftest import FOUND, assert_valid

from fencepost.testing.torture import run

SEEDS = (1, 2, 3)
"""A bug has to be found with one of these, and mostly is with the first."""
SIX = frozenset({
    "`<=` for `<` in fencepost.accepts", "DELETE leaves no mark", "check, then write", "answer before commit",
    "any request is answered with what its Idempotency-Key was answered", "tokens are drawn before the lock is taken",
})  # fmt: skip
"""Of `make test-all`. `make torture-mutants` runs all."""
assert {planted.name for planted in PLANTED} >= SIX
SETTINGS = {planted.setting.name: planted.setting for planted in PLANTED}
OF_TEST_ALL = {"crashes", "generations"}
"""Of `make test-all`: those that crash and promote a PostgreSQL, which no other test of torture does. That the product
passes the workloads of the others is shown by test_torture.py, with more faults.
"""
assert SETTINGS.keys() >= OF_TEST_ALL
PAGE = Path(__file__).parents[2] / "docs" / "torture.md"


def each_of(named: Mapping[str, object], chosen: Collection[str]) -> list[Any]:
    """Leave all but the chosen ones to a command of their own."""
    elsewhere = pytest.mark.long("planted bugs", by="make torture-mutants")
    long = pytest.mark.long("planted bugs")
    return [pytest.param(value, marks=long if name in chosen else elsewhere, id=name) for name, value in named.items()]


@pytest.mark.parametrize("planted", each_of({planted.name: planted for planted in PLANTED}, SIX))
def test_a_planted_bug_is_found(
    planted: Planted, database: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with psycopg.connect(database) as connection:
        plant(connection, planted)
    for seed in SEEDS:
        with planted.harness(), planted.setting.around():
            verdict = run(config(planted.setting, tmp_path / str(seed), seed, database, planted.name))
        if planted.model in {violation.model for violation in verdict.violations}:
            record_property(FOUND, f"{planted.name}: seed {seed}, {verdict.accepted} operations accepted")
            return
    pytest.fail(f"no run with a seed of {SEEDS} has found it")


@pytest.mark.parametrize("setting", each_of(SETTINGS, OF_TEST_ALL))
def test_the_product_passes_the_same_runs(setting: Setting, database: str, tmp_path: Path) -> None:
    with setting.around():
        verdict = run(config(setting, tmp_path / "out", SEEDS[0], database))
    assert_valid(verdict, SEEDS[0])
    assert verdict.accepted > 100


def test_the_lines_that_are_to_be_broken_are_there(database: str) -> None:
    """Without a run. So a line that is rewritten is missed in `make test`, and not by the long tests alone."""
    with psycopg.connect(database) as connection:
        for planted in PLANTED:
            plant(connection, planted)
            connection.rollback()
    change_all = dedent("""
        from tests.torture.bugs import PLANTED
        for planted in PLANTED:
            for change in filter(None, (planted.gateway, planted.worker)):
                change()
    """)
    subprocess.run([sys.executable, "-c", change_all], check=True, cwd=PAGE.parents[1])


def test_the_page_lists_the_planted_bugs() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (\w+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [row for row in rows if row[2] in {"register", "mutex", "set", "once"}] == [
        (planted.name, planted.setting.words, planted.model) for planted in PLANTED
    ]
