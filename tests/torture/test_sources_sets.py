"""The workloads by which Jepsen showed etcd's locks to be unsafe, on each token source's real server.

A holder is stopped between its reading and its writing until its lease has passed on and the next holder has written:
step by step, and so in every run. With a fence nothing is lost. Under the lock alone, which is the control, the member
of the next holder is.
"""

import asyncio
from pathlib import Path

import pytest
from tests.torture.conftest import PREFIX, SourceStage, assert_valid

from fencepost.testing.checker import Verdict, check
from fencepost.testing.history import End, History, Invoke, Recorder
from fencepost.testing.servers.processes import PATIENCE
from fencepost.testing.torture import workloads
from fencepost.testing.torture.assignment import Assignment, Tally
from fencepost.testing.torture.holders import Actor, HeldLease, HolderDatabase
from fencepost.testing.torture.merging import read_all
from fencepost.testing.torture.workloads import WORKLOADS

pytestmark = pytest.mark.long("torture")

PAUSED, NEXT = 0, 1
WITHIN = 2 * PATIENCE  # seconds: the lease of the slowest source, on a busy machine


class Steps:
    """The paused holder waits between reading and writing until the next one has added a member."""

    def __init__(self) -> None:
        self.has_read, self.goes_on = asyncio.Event(), asyncio.Event()

    async def lapse(self, actor: Actor, _lease: HeldLease, _database: HolderDatabase | None) -> bool:
        """Stand in for a lapse by dice."""
        if actor.name == f"w0.{PAUSED}":
            self.has_read.set()
            await self.goes_on.wait()
        return False


async def played(on: SourceStage, workload: str, tally: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    """Let one holder add a member, be paused, lose its lease to the next one, and write; then read the set."""
    steps, recorder, stage, chosen = Steps(), Recorder(), on.stage, WORKLOADS[workload]
    monkeypatch.setattr(workloads, "lapse", steps.lapse)
    made = Assignment(
        *(1, 0, 2, stage.urls, workload, PREFIX, "", ""),
        source=on.stage.source, resources=1, ttl_ms=on.config.ttl_ms, database_url=stage.database_url,
    )  # fmt: skip
    database = HolderDatabase(stage.database_url or "", PREFIX)
    actors = [Actor(number, made, recorder, Tally.create(tally)) for number in (PAUSED, NEXT)]
    paused, following = (chosen.play(actor, database) for actor in actors)
    try:
        async with asyncio.timeout(WITHIN):
            one = asyncio.create_task(paused.turn())
            await steps.has_read.wait()
            while not added(recorder.history, NEXT):
                await following.turn()
            steps.goes_on.set()
            await one
    finally:
        await database.close()
        for actor in actors:
            actor.close()
    await read_all(stage.urls, PREFIX, chosen, recorder, (), database_url=stage.database_url)
    return recorder.history


def ended(history: History, process: int) -> list[End]:
    """Give how the adds of a holder ended."""
    events = list(history)
    asked = {
        each.id for each in events if isinstance(each, Invoke) and (each.op, each.process) == ("add", f"w0.{process}")
    }
    return [each for each in events if isinstance(each, End) and each.id in asked]


def added(history: History, process: int) -> bool:
    return any(end.event == "ok" for end in ended(history, process))


def judged(on: SourceStage, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Verdict, History]:
    history = asyncio.run(played(on, workload, tmp_path / "tally", monkeypatch))
    return check(history), history


def test_with_a_fence_the_paused_holder_is_refused_and_nothing_is_lost(
    source_stage: SourceStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, history = judged(source_stage, "fenced-set", tmp_path, monkeypatch)
    assert_valid(verdict)
    assert [end.reason for end in ended(history, PAUSED)] == ["stale"]


def test_without_a_fence_the_paused_holder_overwrites_what_the_next_one_added(
    source_stage: SourceStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, history = judged(source_stage, "unfenced-set", tmp_path, monkeypatch)
    assert added(history, PAUSED)
    assert [violation.model for violation in verdict.violations] == ["set"]
    assert "misses 1 that were certainly in the set before: 'w0.1-" in verdict.violations[0].words
