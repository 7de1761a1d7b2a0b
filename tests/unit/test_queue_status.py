"""How queues stand, by what was noted and what a log in memory (a mock) says: what is not known has no sample."""

from dataclasses import replace

import pytest
from tests.support.consuming import MockQueue, message

from fencepost.server.consuming.deciding import Progress
from fencepost.server.health import look_at_queue, publish
from fencepost.server.observe.metrics import Metrics
from fencepost.server.postgres.queues import KnownPartition, KnownQueue
from fencepost.server.queues.log import DeadLetter, LogUnavailableError, Position, Received
from fencepost.server.queues.redis import seconds_of
from fencepost.testing.servers.processes import PATIENCE


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
    log = MockQueue()
    log.failing["state"] = LogUnavailableError("away")
    for asked in (log, None):
        status = await look_at_queue(known(*partitions), asked, 5000.0, PATIENCE)
        assert (status.lags, status.ages, status.lag) == (lags, ages, lags[-1])


@pytest.mark.parametrize(("at", "age"), [(4900.0, 100.0), (5001.0, None), (None, None)])
async def test_the_age_of_a_message_is_what_the_log_says_unless_its_time_is_to_come(
    monkeypatch: pytest.MonkeyPatch, at: float | None, age: float | None
) -> None:
    log, metrics = MockQueue(), Metrics()
    await log.append(message("t/a"))

    async def oldest() -> list[float | None]:
        return [at, at]

    monkeypatch.setattr(log, "oldest", oldest)
    status = await look_at_queue(known(), log, 5000.0, PATIENCE)
    assert (status.lags, status.ages, status.oldest_s) == ((1, 1), (age, age), age)
    publish([status], {}, metrics)
    log.failing["decided"] = LogUnavailableError("away")
    publish([await look_at_queue(known(), log, 5000.0, PATIENCE)], {}, metrics)
    shown = metrics.exposition().decode()
    assert not [line for line in shown.splitlines() if line.startswith(("fencepost_queue_lag{", "fencepost_queue_old"))]


@pytest.mark.parametrize("content", [b"nan", b"inf", b"-1", b"1e300", b"soon"])
def test_a_time_that_is_none_is_not_known(content: bytes) -> None:
    assert (seconds_of(content), seconds_of(b"12.5")) == (0.0, 12.5)
    progress = Progress()
    progress.taken([Received(Position(0, 0), message("t/a"), seconds_of(content))])
    assert [each.oldest for each in progress.collect(5000.0)] == [None]


async def test_what_servers_say_is_a_line_in_which_nothing_is_for_a_terminal() -> None:
    log = MockQueue()
    log.failing["state"] = LogUnavailableError("a\nb\x1b[2J")
    paused = replace(known(), paused="eu-1: c\rd")
    status = await look_at_queue(paused, log, 5000.0, PATIENCE)
    assert status.faults() == [r"paused: eu-1: c\x0dd", r"its log: a\x0ab\x1b[2J"]


async def test_letters_that_are_of_no_partition_have_their_number_only() -> None:
    log, metrics = MockQueue(), Metrics()
    await log.dead.put(DeadLetter("x", "", Position(-1, 0), message("t/a"), 0.0))
    publish([await look_at_queue(known(), log, 5000.0, PATIENCE)], {}, metrics)
    shown = [line for line in metrics.exposition().decode().splitlines() if 'partition="-1"' in line]
    assert shown == ['fencepost_queue_dead{partition="-1",queue="kafka:q"} 1.0']
