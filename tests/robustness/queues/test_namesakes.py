"""Two processes with the same --member, by mistake: nothing is applied twice or lost, and one of them says why it does
not consume.
"""

import asyncio
import random

import pytest
from tests.robustness.queues.log_servers import OneKafka
from tests.robustness.queues.submitters import Submitters
from tests.robustness.queues.world import ConsumerServer, World, messages, world
from tests.support.violations import assert_none

from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("storms of queued writes")

MEMBER = "worker-1"
SAYS = f"another process takes as member {MEMBER}: give each its own --member"


def namesakes(house: World) -> list[ConsumerServer]:
    """Give two consumers with the same name, not started yet."""
    return [
        ConsumerServer(
            *(house.database, house.log.queue, MEMBER, house.directory / f"{which}.log", house.settings),
            house.launcher,
        )
        for which in ("older", "younger")
    ]


async def test_two_consumers_with_one_name_apply_each_write_once_and_one_says_that_there_are_two(
    kind: str, launcher: Launcher, one_kafka: OneKafka, seed: int
) -> None:
    total = messages(800)
    async with world(kind, launcher=launcher, one_kafka=one_kafka) as house:
        older, younger = namesakes(house)
        house.consumers.update(older=older, younger=younger)
        older.start()
        await older.serves()
        submitters = Submitters(house.gateway.url, seed, lambda: submitters.acknowledged >= total)
        submitting = asyncio.create_task(submitters.submit())
        try:
            at = random.Random(seed).randrange(total // 10, total // 2)

            async def far_enough() -> bool:
                return submitters.acknowledged >= at

            await eventually(far_enough, within=2 * PATIENCE, what="the first half of the submissions")
            younger.start()

            async def says_so() -> bool:
                return any(SAYS in each.log_text() for each in (older, younger))

            await eventually(says_so, within=2 * PATIENCE, what="why one of them does not consume")
            await submitting
            await house.settle(submitters)
        except Exception as error:
            error.add_note(f"FENCEPOST_STORM_SEED={seed}\n{house.logs()}")
            raise
        finally:
            submitting.cancel()
        await house.end(submitters)
        wrong = await house.wrong(submitters.submissions)
        assert_none(wrong, f"FENCEPOST_STORM_SEED={seed}", house.logs())
