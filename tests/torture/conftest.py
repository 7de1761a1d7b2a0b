"""A stage for each token source: its real server, a gateway that takes locks from it, and tables of a run."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.violations import assert_none, promised

from fencepost.testing.checker import Verdict
from fencepost.testing.servers.postgres import Databases
from fencepost.testing.servers.processes import server_directory
from fencepost.testing.torture import BadInputError, Config
from fencepost.testing.torture.assignment import Fenced
from fencepost.testing.torture.config import SOURCES
from fencepost.testing.torture.stages import Stage, own_stage

PREFIX = "torture_stepped"
FOUND = "planted bug"
"""The property of a test that says how a planted bug was found."""


def assert_valid(verdict: Verdict, seed: int | None = None) -> None:
    """Assert that the checker found nothing."""
    context = () if seed is None else (f"seed {seed}",)
    assert_none([f"{each.model}: {each.words}" for each in verdict.violations], *context)


def assert_ended_well(code: int, output: str) -> None:
    """Assert that `fencepost torture` found nothing, and did not break. What it prints has the seed."""
    promised(code != 1, output)
    assert code == 0, output


@dataclass(frozen=True)
class SourceStage:
    """What a stepped test plays on."""

    config: Config
    stage: Stage


@pytest.fixture(scope="package", params=SOURCES)
def source_stage(request: pytest.FixtureRequest, databases: Databases) -> Iterator[SourceStage]:
    """Run a source and a gateway for the stepped tests. Skips where the source's server is not installed."""
    database = databases.make()
    config = Config(out=Path("nowhere"), seed=1, source=request.param, database_url=database, gateways=1, faults="none")
    try:
        with server_directory() as directory:
            tables = [Fenced(PREFIX, "sets"), Fenced(PREFIX, "plain")]
            with own_stage(config, directory, PREFIX, tables) as stage:
                yield SourceStage(config, stage)
    except BadInputError as error:
        pytest.skip(str(error))
    finally:
        databases.drop(database)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List how each planted bug was found, for docs/proof.md."""
    passed = terminalreporter.stats.get("passed", [])
    if found := [words for report in passed for name, words in report.user_properties if name == FOUND]:
        terminalreporter.section(f"planted bugs that were found: {len(found)}")
        for words in sorted(found):
            terminalreporter.line(words)
