"""A namespace of a real kube-apiserver for each test, and sources on it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.conformance.kubernetes.operating import Leases, Make

from fencepost.server.locks.kubernetes import KubernetesLeases, from_url
from fencepost.server.locks.source import SourceContext
from fencepost.testing.servers.kubernetes import ADMIN, Cluster


@pytest.fixture
def kube(apiserver: Cluster) -> Cluster:
    return apiserver


@pytest.fixture
def url(kube: Cluster) -> str:
    """Of a namespace of the test's own."""
    made = kube.ask("POST", "/api/v1/namespaces", {"kind": "Namespace", "metadata": {"generateName": "test-"}})
    return (
        f"kubernetes://kubeconfig/{made.json()['metadata']['name']}?file={kube.kubeconfig('admin', {'token': ADMIN})}"
    )


@pytest.fixture
async def make(url: str) -> AsyncIterator[Make]:
    """Give a function that makes a source, as another worker would."""
    async with AsyncExitStack() as stack:

        def one(options: str = "") -> KubernetesLeases:
            source = from_url(url + options, SourceContext("kube", ""))
            stack.push_async_callback(source.close)
            return source

        yield one


@pytest.fixture
def leases(kube: Cluster, url: str) -> Leases:
    return Leases(kube, url)
