"""Eight producers, and three consumers that come and go: each acknowledged submission has one effect, in the order of
its row.

FENCEPOST_STORM_MESSAGES=100000 makes it a long run, FENCEPOST_STORM_SEED repeats one.
"""

import asyncio
import random

import pytest
from tests.robustness.queues.log_servers import OneKafka
from tests.robustness.queues.submitters import Submitters
from tests.robustness.queues.world import World, messages, world
from tests.support.violations import assert_none

from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("storms of queued writes")

CHANGES = 8
"""How often a consumer leaves or comes during a storm."""


async def come_and_go(house: World, submitters: Submitters, total: int, seed: int) -> None:
    """Let consumers leave, in order, and others come: one each time that so many more were acknowledged."""
    chance = random.Random(seed)
    away: str | None = None
    for change in range(1, CHANGES + 1):

        async def far_enough(wanted: int = total * change // (CHANGES + 1)) -> bool:
            return submitters.acknowledged >= wanted

        await eventually(far_enough, within=30 + total / 50, what=f"more submissions {submitters.answers}")
        if away is not None:
            await house.consumer(away)
            away = None
        else:
            away = chance.choice(sorted(house.consumers))
            await asyncio.to_thread(house.consumers[away].stop)


async def test_three_consumers_that_come_and_go_apply_each_write_once_and_in_order(
    kind: str, launcher: Launcher, one_kafka: OneKafka, seed: int
) -> None:
    total = messages(1200)
    async with world(kind, launcher=launcher, one_kafka=one_kafka) as house:
        for member in ("c1", "c2", "c3"):
            await house.consumer(member)
        submitters = Submitters(house.gateway.url, seed, lambda: submitters.acknowledged >= total)
        submitting = asyncio.create_task(submitters.submit())
        try:
            await come_and_go(house, submitters, total, seed)
            await submitting
        finally:
            submitting.cancel()
        await house.end(submitters)
        wrong = await house.wrong(submitters.submissions)
        found = f"FENCEPOST_STORM_SEED={seed} {dict(submitters.answers)}"
        assert_none(wrong, found, house.logs())
        assert set(submitters.answers) == {"202"}, found
