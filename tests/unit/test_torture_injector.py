"""A fault that could not be brought about is none: the history has a note of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.testing.history import Note, Recorder
from fencepost.testing.servers.ports import free_port
from fencepost.torture.faults import KINDS
from fencepost.torture.injector import Injector
from fencepost.torture.schedule import Planned
from fencepost.torture.stages.stage import Stage


@pytest.mark.parametrize("name", ["expire-leases", "step-clock"])
def test_a_fault_in_a_database_that_cannot_be_reached_does_not_count(name: str, tmp_path: Path) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    crew: Any = SimpleNamespace(holders=[SimpleNamespace(name="w1")])
    recorder = Recorder()
    injector = Injector(Stage(("http://g",), "builtin", url, tmp_path), crew, recorder, "torture_1")
    held: list[float] = []

    injector.inject(Planned(KINDS[name], after=0.0, lasts=0.0, target=0.0), held.append)

    assert [type(event) for event in recorder.history] == [Note]
    assert injector.injected == set()
    assert held == []
