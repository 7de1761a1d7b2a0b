"""Leases of a real kube-apiserver."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kube.apiserver import cluster

from fencepost.server.locks.kubernetes_api import hashed_name
from fencepost.testing.servers.kubernetes import ADMIN, NAMESPACE, Cluster

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class KubernetesBench:
    """See Bench. etcd is never harmed: it is not who a source talks to."""

    name = "kubernetes"
    dsn = ""

    def __init__(self, running: Cluster) -> None:
        self.cluster = running
        self.url = f"kubernetes://kubeconfig?file={running.kubeconfig('admin', {'token': ADMIN})}"

    async def crash(self) -> None:
        self.cluster.apiserver.crash()

    async def restart(self) -> None:
        self.cluster.apiserver.start()
        await self.cluster.apiserver.serves()

    async def pause(self) -> None:
        self.cluster.apiserver.pause()

    async def resume(self) -> None:
        self.cluster.apiserver.resume()
        await self.cluster.apiserver.serves()

    async def spoil(self, lock: str) -> None:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": hashed_name(lock)},
            "spec": {"holderIdentity": "another program's controller"},
        }
        assert self.cluster.ask("POST", LEASES, body).is_success

    async def waiting(self, lock: str) -> int:
        raise NotImplementedError(f"no client queues for {lock}: the source is not fair")


@contextmanager
def running(directory: Path) -> Iterator[KubernetesBench]:
    """Run a kube-apiserver; skips where it has not been built."""
    with cluster(directory) as made:
        yield KubernetesBench(made)
