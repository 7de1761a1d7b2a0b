"""When the keeper of holds looks whether leases are over, on a clock that the test moves; and how it ends."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.manual_clock import ManualClock, settled

from fencepost.server.locks.source import SourceUnavailableError
from fencepost.server.locks.source_leases import HoldWatch
from fencepost.server.postgres import sources
from fencepost.server.times import TIMES, Times


class Stage:
    """A keeper between a service that only notes what is released, and a database that knows when leases are over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.over_at: dict[int, float] = {}
        self.released: list[str] = []
        self.ended: list[int] = []
        self.looks: list[float] = []
        self.troubles: list[str] = []
        self.hanging: set[str] = set()
        monkeypatch.setattr(sources, "due_in", self._over)
        monkeypatch.setattr(sources, "end", self._end)
        self.keeper = HoldWatch(
            self,  # type: ignore[arg-type]
            self._ask,
            self.troubles.append,
            Times(clock=self.clock),
        )

    def hold(self, lease_id: int, seconds: float) -> None:
        self.over_at[lease_id] = self.clock.now() + seconds
        self.keeper.keep(lease_id, f"lock-{lease_id}", "", round(seconds * 1000))

    async def release(self, lock: str, _handle: str) -> None:
        if lock in self.hanging:
            await asyncio.get_running_loop().create_future()
        self.released.append(lock)

    async def _ask(self, statement: Callable[[Any], Awaitable[Any]]) -> Any:
        return await statement(None)

    async def _over(self, _connection: None, leases: list[int]) -> dict[int, int]:
        self.looks.append(self.clock.now())
        return {each: max(round((self.over_at[each] - self.clock.now()) * 1000), 0) for each in leases}

    async def _end(self, _connection: None, lease_id: int, *, by: str | None) -> None:
        assert by is None
        self.ended.append(lease_id)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


async def test_a_short_lease_is_ended_on_time_beside_a_long_one(stage: Stage) -> None:
    stage.hold(1, 3600)
    await stage.clock.advance(2 * TIMES.sources.look_at_least_every + 1)
    looked = len(stage.looks)
    stage.hold(2, 0.5)
    await settled()
    assert len(stage.looks) == looked, "a grant costs no look"
    await stage.clock.advance(0.49)
    assert stage.released == []
    await stage.clock.advance(0.01)
    assert (stage.released, stage.ended) == (["lock-2"], [2])
    await stage.keeper.close(1)


async def test_a_renewal_that_shortens_a_lease_is_heeded(stage: Stage) -> None:
    stage.hold(1, 3600)
    await stage.clock.advance(TIMES.sources.look_at_least_every + 1)
    stage.over_at[1] = stage.clock.now() + 0.2
    stage.keeper.due(1, 200)
    await stage.clock.advance(0.2)
    assert stage.released == ["lock-1"]
    stage.keeper.due(1, 200)
    await settled()
    assert len(stage.looks) == 2, "nothing is held any more"


async def test_a_lease_that_was_renewed_elsewhere_is_not_ended(stage: Stage) -> None:
    stage.hold(1, 1)
    stage.over_at[1] += 10
    await stage.clock.advance(2)
    assert stage.released == []
    await stage.clock.advance(9)
    assert stage.released == ["lock-1"]


async def test_a_lease_that_was_ended_elsewhere_is_seen_by_the_next_look(stage: Stage) -> None:
    stage.hold(1, 3600)
    stage.over_at[1] = 0
    await stage.clock.advance(TIMES.sources.look_at_least_every - 0.01)
    assert stage.released == []
    await stage.clock.advance(0.01)
    assert stage.released == ["lock-1"]


async def test_the_end_releases_all_at_once_and_names_those_that_it_could_not(stage: Stage) -> None:
    for lease_id in range(1, 21):
        stage.hold(lease_id, 3600)
    stage.hanging = {"lock-7", "lock-3"}
    await stage.keeper.close(0.05)
    assert len(stage.released) == 18
    assert [trouble.partition("its locks")[2] for trouble in stage.troubles] == [
        ", which stay held until its session has ended: lock-3, lock-7"
    ]


async def test_a_service_that_refuses_a_release_is_named_as_well(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_lock: str, _handle: str) -> None:
        raise SourceUnavailableError("it hangs")

    stage.hold(1, 3600)
    monkeypatch.setattr(stage, "release", refuse)
    await stage.keeper.close(1)
    assert "lock-1" in stage.troubles[0]
