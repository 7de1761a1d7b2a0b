"""A real kube-apiserver for tests that are skipped where there is none. Built by `.ci/kube-apiserver`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import or_skipped

from fencepost.testing.servers.kubernetes import Cluster


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Run a cluster; skips where no kube-apiserver is installed."""
    with or_skipped():
        made = Cluster(directory)
    with made:
        yield made
