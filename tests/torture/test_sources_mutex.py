"""The lock by itself, on each token source's real server: what it promises, and what no lease can promise.

A holder that is paused beyond its lease believes that it holds the lock, while another one does. So mutual exclusion,
as the plain mutex model has it, does not hold by itself; that the next holder's token is higher does.
"""

import asyncio
from pathlib import Path

import pytest
from tests.torture.conftest import PREFIX, SourceStage, assert_valid

from fencepost.testing.checker import check
from fencepost.testing.history import End, History, Invoke, Recorder
from fencepost.testing.servers.processes import PATIENCE
from fencepost.testing.torture.assignment import Assignment, Tally
from fencepost.testing.torture.holders import Actor, acquire, release

pytestmark = pytest.mark.long("torture")

WITHIN = 2 * PATIENCE  # seconds: the lease of the slowest source, on a busy machine


async def handed_on(on: SourceStage, tally: Path) -> History:
    """Let one holder take the lock and do nothing until the next one has it; then both give it back."""
    recorder = Recorder()
    made = Assignment(
        *(1, 0, 2, on.stage.urls, "mutex", PREFIX, "", ""), source=on.stage.source, ttl_ms=on.config.ttl_ms
    )
    paused, following = (Actor(number, made, recorder, Tally.create(tally)) for number in (0, 1))
    try:
        async with asyncio.timeout(WITHIN):
            first = await acquire(paused, "mutex")
            assert first is not None
            while (second := await acquire(following, "mutex")) is None:
                pass  # a request waits by itself until the lock is free, or for some time
            await release(paused, first)
            await release(following, second)
    finally:
        paused.close()
        following.close()
    return recorder.history


def test_two_believe_that_they_hold_the_lock_and_the_later_one_has_the_higher_token(
    source_stage: SourceStage, tmp_path: Path
) -> None:
    history = asyncio.run(handed_on(source_stage, tmp_path / "tally"))
    assert_valid(check(history, ["mutex"]))
    assert [found.model for found in check(history, ["plain_mutex"]).violations] == ["plain_mutex"]
    events = list(history)
    asked = {each.id for each in events if isinstance(each, Invoke) and each.op == "acquire"}
    first, second = (each.token for each in events if isinstance(each, End) and each.id in asked and each.token)
    assert first < second
