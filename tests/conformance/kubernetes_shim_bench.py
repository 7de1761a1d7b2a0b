"""Leases of a SHIM (tests/kube/shim.py), which is no Kubernetes: kubernetes_bench.py runs on the real one."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fencepost.locks.kubernetes.lease import hashed_name
from fencepost.testing.servers.ports import free_port, listens
from fencepost.testing.servers.server import Server

ROOT = Path(__file__).parents[2]


class KubernetesShimBench:
    """See Bench."""

    name = "kubernetes_shim"
    dsn = ""

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self._at = f"http://127.0.0.1:{port}"
        command = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.kube.shim", str(port))
        self.server = Server((*command, directory / "leases.db"), directory / "shim.log", lambda: listens(port))
        config = directory / "kubeconfig"
        context = {"name": "shim", "context": {"cluster": "shim", "user": "shim", "namespace": "locks"}}
        users, clusters = [{"name": "shim", "user": {}}], [{"name": "shim", "cluster": {"server": self._at}}]
        output = {"current-context": "shim", "contexts": [context], "clusters": clusters, "users": users}
        config.write_text(json.dumps(output))
        self.url = f"kubernetes://kubeconfig?file={config}"

    async def crash(self) -> None:
        self.server.crash()

    async def restart(self) -> None:
        self.server.start()
        await self.server.serves()

    async def pause(self) -> None:
        self.server.pause()

    async def resume(self) -> None:
        self.server.resume()
        await self.server.serves()

    async def spoil(self, lock: str) -> None:
        lease = {"metadata": {"name": hashed_name(lock)}, "spec": {"holderIdentity": "another program's"}}
        async with httpx.AsyncClient(base_url=self._at, trust_env=False) as client:
            answer = await client.post("/apis/coordination.k8s.io/v1/namespaces/locks/leases", json=lease)
        assert answer.is_success, answer.text

    async def waiting(self, lock: str) -> int:
        raise NotImplementedError(f"no client queues for {lock}: the source is not fair")


@contextmanager
def running(directory: Path) -> Iterator[KubernetesShimBench]:
    """Run the shim."""
    bench = KubernetesShimBench(directory)
    bench.server.start()
    try:
        bench.server.wait()
        yield bench
    finally:
        bench.server.stop()
