"""Each workload, bounded: seconds, with the faults that need no process to start again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.torture.conftest import assert_valid

from fencepost.testing.torture import Config, run
from fencepost.testing.torture.workloads import WORKLOADS

FAULTS = "pause-holder,kill-holder,cut-after-commit,cut-before-commit,partition-client,delay-database"


OPERATIONS = {"register": 1500, "blocks": 10_000, "mutex": 1500, "idempotent": 1500}
"""Of the quick workloads: as many as keep them busy for some seconds. The others do 300."""


def bounded(database: str, out: Path, workload: str) -> Config:
    return Config(
        out=out,
        seed=1,
        workload=workload,
        database_url=database,
        faults=FAULTS if WORKLOADS[workload].trusts else f"{FAULTS},expire-leases",
        minutes=1.0,
        operations=OPERATIONS.get(workload, 300),
        gateways=1,
        loaders=1,
        holders=1,
        resources=3,
    )


def quick_or_long(name: str) -> Any:
    """Leave all but one workload to `make test-all`."""
    return name if name == "register" else pytest.param(name, marks=pytest.mark.long("torture"))


@pytest.mark.parametrize("workload", [quick_or_long(name) for name, each in WORKLOADS.items() if not each.loses])
def test_a_run_finds_nothing(workload: str, database: str, tmp_path: Path) -> None:
    verdict = run(bounded(database, tmp_path / "out", workload))
    assert_valid(verdict, seed=1)
    assert verdict.accepted > 100
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"history.jsonl", "report.html"}


@pytest.mark.long("torture")
def test_the_control_without_a_fence_loses_what_it_has_acknowledged(database: str, tmp_path: Path) -> None:
    """Whether a fault meets a holder that goes on to write is chance: one of some runs loses a member."""
    lost: set[str] = set()
    for seed in range(1, 6):
        config = replace(bounded(database, tmp_path / f"{seed}", "unfenced-set"), seed=seed)
        if lost := {violation.model for violation in run(config).violations}:
            break
    assert lost == {"set"}
