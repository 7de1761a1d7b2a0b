"""The storms' launcher: consumers and gateways start in a tenth of a second."""

import functools
import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.robustness.queues.world import KINDS, THREE, OneKafka

from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.processes import server_directory


@pytest.fixture(scope="package")
def launcher() -> Iterator[Launcher]:
    with Launcher() as running:
        yield running


@pytest.fixture(scope="package")
def one_kafka() -> Iterator[OneKafka]:
    """Give what starts a Kafka for this directory."""
    with server_directory() as directory, ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(Kafka(directory, 1)))


@pytest.fixture(params=[*KINDS, THREE] if os.environ.get("FENCEPOST_STORM_THREE") else KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Name each kind of log; with FENCEPOST_STORM_THREE=1 in the environment Kafka with three brokers, too."""
    found: str = request.param
    return found
