"""What the storms have in common."""

import os
import random
from pathlib import Path

import pytest
from tests.support.postgres import SERVERS, server_bin_dir


@pytest.fixture
def seed() -> int:
    """Give the storm's seed: a new one each time, or FENCEPOST_STORM_SEED to see one again."""
    return int(os.environ.get("FENCEPOST_STORM_SEED") or random.SystemRandom().randrange(10**6))


@pytest.fixture(params=SERVERS)
def bin_dir(request: pytest.FixtureRequest) -> Path:
    """Give the programs of each PostgreSQL, for tests that run servers of their own."""
    return server_bin_dir(request.param)
