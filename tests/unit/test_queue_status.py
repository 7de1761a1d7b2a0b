"""How queues stand, by what was noted where logs do not answer. Where they do: integration/test_commands.py."""

import pytest

from fencepost.server.consuming.deciding import Progress
from fencepost.server.health import look_at_queue
from fencepost.server.postgres.queues import KnownPartition, KnownQueue
from fencepost.server.queues.log import Message, Position, Received
from fencepost.server.queues.redis import from_url, seconds_of
from fencepost.testing.servers.processes import PATIENCE, free_port


def known(*partitions: KnownPartition) -> KnownQueue:
    return KnownQueue("kafka:q", "kafka", 0, None, None, "x", 0, partitions)


def noted(number: int, decided: int | None, oldest_s: float | None, noted_s: float) -> KnownPartition:
    return KnownPartition(number, 9, decided, oldest_s, 0, 0, 0, 0, noted_s)


@pytest.mark.parametrize(
    ("partitions", "lags", "ages"),
    [
        ([noted(0, 9, None, 1.0)], (0,), (0.0,)),
        ([noted(0, 9, None, 3600.0)], (0,), (None,)),
        ([noted(0, 4, 3700.0, 3600.0)], (5,), (3700.0,)),
        ([noted(0, None, None, 1.0), noted(1, 4, 12.0, 1.0)], (None, 5), (None, 12.0)),
        ([noted(1, 4, -2.0, 1.0)], (None, 5), (None, None)),
    ],
    ids=["none waits", "none did an hour ago", "one waits since", "of another partition", "from a time to come"],
)
async def test_what_was_noted_has_to_do_where_the_log_does_not_answer(
    partitions: list[KnownPartition], lags: tuple[int | None, ...], ages: tuple[float | None, ...]
) -> None:
    away = from_url(f"redis://127.0.0.1:{free_port()}/q")
    for log in (away, None):
        status = await look_at_queue(known(*partitions), log, 5000.0, PATIENCE)
        assert (status.lags, status.ages, status.lag) == (lags, ages, lags[-1])
    await away.close()


@pytest.mark.parametrize("content", [b"nan", b"inf", b"-1", b"1e300", b"soon"])
def test_a_time_that_is_none_is_not_known(content: bytes) -> None:
    assert (seconds_of(content), seconds_of(b"12.5")) == (0.0, 12.5)
    progress = Progress()
    progress.taken([Received(Position(0, 0), Message(b"t/a", None), seconds_of(content))])
    assert [each.oldest for each in progress.collect(5000.0)] == [None]
