"""What the guard of connections does as time passes: those that are too slow end, and nobody else."""

from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from typing import Any

from tests.support.manual_clock import Due, ManualClock

from fencepost.fencing.problems import Problem
from fencepost.http.guard import MOST_ENDING, Arrival, Bounds, Guard
from fencepost.settings import Settings
from fencepost.times import EdgeTimes

TIMES = EdgeTimes(look_every=1)


class Loop(ManualClock):
    """The event loop, as the guard sees it."""

    time = ManualClock.monotonic

    def call_later(self, seconds: float, call: Callable[..., object], *arguments: object) -> Due:
        return super().call_later(seconds, partial(call, *arguments))


class Connection:
    """A mock of a connection."""

    def __init__(self, *, held_up: bool = False, unsent: int = 0) -> None:
        self.arrival, self.gives_way, self.held_up, self.unsent = Arrival(), False, held_up, unsent
        self.refused: Problem | None = None
        self.aborted = False

    def refuse(self, problem: Problem) -> None:
        self.refused = problem

    def abort(self) -> None:
        self.aborted = True


def opened(*connections: Connection) -> tuple[Guard, Any]:
    guard, loop = Guard(Bounds(), lambda _: None, TIMES), Loop()
    as_loop: Any = loop
    for each in connections:
        assert guard.opened(each, "peer", as_loop) is None
    return guard, loop


async def test_a_head_that_the_gateway_does_not_read_is_not_slow() -> None:
    slow, waits = Connection(), Connection(held_up=True)
    _, loop = opened(slow, waits)
    for each in (slow, waits):
        each.arrival.since = loop.time()
    await loop.advance(12)
    assert slow.refused is not None
    assert waits.refused is None


async def test_who_does_not_read_the_answer_is_cut_off_and_who_does_is_not() -> None:
    stuck, trickles, reads, grows = [Connection(unsent=2_000_000) for _ in range(4)]
    _, loop = opened(stuck, trickles, reads, grows)
    for _ in range(150):
        await loop.advance(1)
        trickles.unsent -= 100
        reads.unsent -= 2000
        grows.unsent += 2000  # a stream: the gateway stops writing, and it stands still then
    assert [each.aborted for each in (stuck, trickles, reads, grows)] == [True, True, False, False]
    await loop.advance(150)
    assert grows.aborted


def test_the_bounds_are_those_of_the_settings() -> None:
    names = ["connections", "connections_per_address", "head_bytes"]
    of_settings = [f"max_{name}" for name in names] + ["head_timeout", "body_timeout", "least_rate"]
    assert [Settings.model_fields[name].default for name in of_settings] == [*astuple(Bounds())]


async def test_refused_connections_that_linger_are_bounded() -> None:
    connections = [Connection() for _ in range(MOST_ENDING + 2)]
    guard, _ = opened(*connections)
    assert [guard.ends(each, "peer") for each in connections] == [True] * MOST_ENDING + [False] * 2
    guard.closed(connections[0], "peer")
    assert guard.ends(connections[-1], "peer")
