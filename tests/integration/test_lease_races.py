"""The product survives every interleaving of the lease_scenarios (R9)."""

import pytest
from tests.interleave import Connect
from tests.lease_racing import open_lease_race
from tests.lease_scenarios import SCENARIOS, LeaseScenario
from tests.lease_scenarios_clock import CLOCK_SCENARIOS
from tests.lease_scenarios_queue import QUEUE_SCENARIOS
from tests.lease_scenarios_secrets import SECRET_SCENARIOS
from tests.lease_scenarios_sweep import SWEEP_SCENARIOS

ALL = SCENARIOS + SECRET_SCENARIOS + SWEEP_SCENARIOS + QUEUE_SCENARIOS + CLOCK_SCENARIOS


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
async def test_the_token_source_survives(scenario: LeaseScenario, connect: Connect) -> None:
    await scenario(await open_lease_race(connect))
