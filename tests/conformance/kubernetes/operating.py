"""Leases as an operator reads and changes them, and a source on them."""

from collections.abc import Callable
from typing import Any

from fencepost.server.locks.kubernetes import KubernetesLeases
from fencepost.server.locks.kubernetes_api import KubernetesApi, hashed_name
from fencepost.server.locks.source import Grant
from fencepost.testing.servers.kubernetes import NAMESPACE, Cluster

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


LOCK = "orders/order-123"
Make = Callable[..., KubernetesLeases]


class Leases:
    """What an operator sees and does."""

    def __init__(self, kube: Cluster, url: str) -> None:
        self._kube = kube
        self._path = LEASES.replace(NAMESPACE, url.partition("?")[0].rpartition("/")[2])

    def get(self, lock: str, name: str | None = None) -> dict[str, Any]:
        answer = self._kube.ask("GET", f"{self._path}/{name or hashed_name(lock)}")
        return answer.json() if answer.is_success else {}

    def put(self, lease: dict[str, Any]) -> dict[str, Any]:
        answer = self._kube.ask("PUT", f"{self._path}/{lease['metadata']['name']}", lease)
        assert answer.is_success, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def post(self, lease: dict[str, Any]) -> dict[str, Any]:
        answer = self._kube.ask("POST", self._path, lease)
        assert answer.is_success, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def delete(self, lock: str) -> None:
        assert self._kube.ask("DELETE", f"{self._path}/{hashed_name(lock)}").is_success


async def granted(source: KubernetesLeases, lock: str = LOCK, *, ttl_ms: int = 1000, **how: Any) -> Grant:
    wanted = {"owner": "somebody", "tokens": 1, "wait_s": 0.0, **how}
    grant = await source.acquire(lock, ttl_ms=ttl_ms, **wanted)
    assert isinstance(grant, Grant), grant
    return grant


def elected(name: str, identity: str, seconds: int = 1) -> dict[str, Any]:
    """Write a Lease as client-go's leader election does."""
    spec = {"holderIdentity": identity, "leaseDurationSeconds": seconds, "leaseTransitions": 3}
    return {"kind": "Lease", "metadata": {"name": name, "labels": {"their": "own"}}, "spec": spec}


def api_of(source: KubernetesLeases) -> KubernetesApi:
    return source._api  # noqa: SLF001 - to break the line at one place
