"""The checker and Porcupine come to the same verdict (tests/porcupine has the program and its models).

Porcupine is a checker by other people, in Go, which knows a register only by a function of one step. The program is
built once, into a cache, by the first test that needs it.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.histories import RIGHT, wrong

from fencepost.testing.checker import NothingToCheckError, check
from fencepost.testing.history import Event, History
from fencepost.testing.history.history import export
from fencepost.testing.servers.processes import PATIENCE
from fencepost.testing.servers.server import made_once

SOURCES = Path(__file__).parents[1] / "porcupine"


@pytest.fixture(scope="session")
def porcupine() -> Path:
    """The program; skips where there is no Go to build it with."""
    go = shutil.which("go", path=f"{os.environ['PATH']}:/usr/local/go/bin")
    if go is None:
        pytest.skip("no Go, which builds Porcupine: install golang-go, or put another one on the PATH")
    parts = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))

    def build(program: Path) -> None:
        environment = {**os.environ, "CGO_ENABLED": "0"}
        subprocess.run([go, "build", "-mod=readonly", "-o", program, "."], cwd=SOURCES, check=True, env=environment)

    return made_once(f"porcupine-{hashlib.sha256(parts).hexdigest()[:12]}", build)


def history(events: list[Event]) -> History:
    return History({}, lambda: events)


def valid(events: list[Event]) -> bool:
    """Ask the checker; Porcupine calls a history with nothing to check valid."""
    try:
        return check(history(events)).valid
    except NothingToCheckError:
        return True


def verdicts(program: Path, directory: Path, histories: list[list[Event]]) -> list[bool]:
    """Ask Porcupine about each history."""
    paths = [directory / f"{number}.jsonl" for number in range(len(histories))]
    for path, events in zip(paths, histories, strict=True):
        export(history(events), path)
    found = subprocess.run([program, *paths], check=True, capture_output=True, text=True, timeout=10 * PATIENCE)
    return [line.endswith(" valid") for line in found.stdout.splitlines()]


@pytest.mark.long("comparisons with Porcupine")
@pytest.mark.parametrize("kind", RIGHT)
def test_they_agree_on_right_histories_and_on_wrong_ones(kind: str, porcupine: Path, tmp_path: Path) -> None:
    histories = [RIGHT[kind](seed) for seed in range(150)]
    planted = [wrong(seed, events) for seed, events in enumerate(histories)]
    ours = [valid(events) for events in (*histories, *planted)]
    assert all(ours[: len(histories)])
    assert not all(ours)
    assert ours == verdicts(porcupine, tmp_path, [*histories, *planted])
