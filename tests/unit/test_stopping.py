"""How much time is left for the end."""

import pytest
from tests.support.manual_clock import ManualClock

from fencepost.server.startup import LEAST, Stopping


async def test_time_counts_from_the_first_signal() -> None:
    clock = ManualClock()
    stopping = Stopping(30, clock.now)
    await clock.advance(100)
    assert stopping.left() == 30, "no stop was requested"
    stopping.ask()
    await clock.advance(10)
    stopping.ask()
    assert stopping.left() == pytest.approx(20)
    await clock.advance(100)
    assert stopping.left() == LEAST
