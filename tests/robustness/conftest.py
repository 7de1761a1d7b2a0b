"""What the storms have in common."""

import os
import random

import pytest


@pytest.fixture
def seed() -> int:
    """Give the storm's seed: a new one each time, or FENCEPOST_STORM_SEED to see one again."""
    return int(os.environ.get("FENCEPOST_STORM_SEED") or random.SystemRandom().randrange(10**6))
