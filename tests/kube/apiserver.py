"""A real kube-apiserver for tests that are skipped where there is none. Built by `.ci/kube-apiserver`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencepost.testing.servers.kubernetes import Cluster
from fencepost.testing.servers.lock_services import MissingServerError


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Run a cluster; skips where no kube-apiserver is installed."""
    try:
        made = Cluster(directory)
    except MissingServerError as error:
        pytest.skip(str(error))
    with made:
        yield made
