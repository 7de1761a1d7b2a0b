"""The first signal asks for an end, a later one does not wait; two at once are one."""

import pytest

from fencepost.torture.interruption import Interruption


def test_a_signal_that_comes_twice_at_once_is_one_and_a_later_one_does_not_wait() -> None:
    now = [100.0]
    interruption = Interruption(lambda: now[0])
    assert not interruption.asked
    interruption.heed(2, None)
    assert interruption.asked
    now[0] = 100.5
    interruption.heed(2, None)
    now[0] = 101.5
    with pytest.raises(KeyboardInterrupt):
        interruption.heed(2, None)
