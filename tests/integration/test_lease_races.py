"""The product survives every interleaving of tests/scenarios/leases.py (R9)."""

import pytest
from tests.scenarios.leases import SCENARIOS, LeaseScenario
from tests.scenarios.leases_clock import CLOCK_SCENARIOS
from tests.scenarios.leases_queue import QUEUE_SCENARIOS
from tests.scenarios.leases_secrets import SECRET_SCENARIOS
from tests.scenarios.leases_sweep import SWEEP_SCENARIOS
from tests.support.interleave import Connect
from tests.support.lease_gateways import let_gateways_be_silent
from tests.support.lease_racing import open_lease_race
from tests.support.violations import judging

ALL = SCENARIOS + SECRET_SCENARIOS + SWEEP_SCENARIOS + QUEUE_SCENARIOS + CLOCK_SCENARIOS


@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.__name__)
async def test_the_token_source_survives(scenario: LeaseScenario, connect: Connect) -> None:
    race = await open_lease_race(connect)
    if scenario in QUEUE_SCENARIOS + CLOCK_SCENARIOS:
        await let_gateways_be_silent(race.observer)
    with judging():
        await scenario(race)
