"""A gateway and a consumer whose log takes TLS only, each a process as an operator runs it."""

import pytest
from tests.robustness.queues.log_servers import SECURED
from tests.robustness.queues.submitters import Submitters
from tests.robustness.queues.world import world
from tests.support.violations import assert_none

from fencepost.testing.servers.launcher import Launcher

pytestmark = pytest.mark.long("storms of queued writes")

ENOUGH = 200


@pytest.mark.realtime  # a log that does not answer in two seconds is 503
@pytest.mark.parametrize("secured", SECURED)
async def test_writes_go_by_a_log_that_takes_tls_only(secured: str, launcher: Launcher, seed: int) -> None:
    async with world(secured, launcher=launcher) as house:
        submitters = Submitters(house.gateway.url, seed, lambda: submitters.acknowledged >= ENOUGH)
        await house.consumer("a")
        await submitters.submit()
        await house.end(submitters)
        wrong = await house.wrong(submitters.submissions)
        assert_none(wrong, f"FENCEPOST_STORM_SEED={seed}", house.logs())
        assert set(submitters.answers) == {"202"}
