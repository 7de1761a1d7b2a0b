"""A real kube-apiserver with the manifests of deploy/kubernetes, and sources on it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.conformance.kubernetes_access.using import OURS, Make
from tests.kube.manifests import objects

from fencepost.server.locks.kubernetes import KubernetesLeases, from_url
from fencepost.server.locks.source import SourceContext
from fencepost.testing.servers.kubernetes import Cluster


@pytest.fixture(scope="module")
def kube(apiserver: Cluster) -> Cluster:
    apiserver.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OURS}}, *objects("rbac.yaml"))
    return apiserver


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        def one(url: str) -> KubernetesLeases:
            source = from_url(url, SourceContext("kube", ""))
            stack.push_async_callback(source.close)
            return source

        yield one
