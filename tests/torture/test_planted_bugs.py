"""A bounded run finds each planted bug, finds nothing in the product, and docs/torture.md lists what is found."""

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from tests.torture.bugs import PLANTED
from tests.torture.conftest import assert_valid
from tests.torture.planted import Planted, Setting, config, plant, protecting

from fencepost.torture import run

SEEDS = (1, 2, 3)
"""A bug has to be found with one of these, and mostly is with the first."""
SETTINGS = list({planted.setting.name: planted.setting for planted in PLANTED}.values())
PAGE = Path(__file__).parents[2] / "docs" / "torture.md"


@pytest.mark.long("planted bugs")
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_bug_is_found(planted: Planted, database: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as connection:
        plant(connection, planted)
    for seed in SEEDS:
        with protecting(planted), planted.harness(), planted.setting.around():
            verdict = run(config(planted.setting, tmp_path / str(seed), seed, database, planted.name))
        if planted.model in {violation.model for violation in verdict.violations}:
            return
    pytest.fail(f"no run with a seed of {SEEDS} has found it")


@pytest.mark.long("planted bugs")
@pytest.mark.parametrize("seed", SEEDS[:1])
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_product_passes_the_same_runs(setting: Setting, seed: int, database: str, tmp_path: Path) -> None:
    with setting.around():
        verdict = run(config(setting, tmp_path / "out", seed, database))
    assert_valid(verdict, seed)
    assert verdict.accepted > 100


CHANGE_ALL = """
from tests.torture.bugs import PLANTED
for planted in PLANTED:
    for change in filter(None, (planted.gateway, planted.worker)):
        change()
"""


def test_the_lines_that_are_to_be_broken_are_there(database: str) -> None:
    """Without a run. So a line that is rewritten is missed in `make test`, and not by the long tests alone."""
    with psycopg.connect(database) as connection:
        for planted in PLANTED:
            plant(connection, planted)
            connection.rollback()
    subprocess.run([sys.executable, "-c", CHANGE_ALL], check=True, cwd=PAGE.parents[1])


def test_the_page_lists_the_planted_bugs() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (\w+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [row for row in rows if row[2] in {"register", "mutex", "set", "once"}] == [
        (planted.name, planted.setting.words, planted.model) for planted in PLANTED
    ]
