"""All that a gateway does with a source on Kubernetes."""

from collections.abc import Callable

from fencepost.server.locks.kubernetes import KubernetesLeases
from fencepost.server.locks.source import Grant, Holder

LOCK = "orders/order-123"
GATEWAY = {"token": "gateway-token"}
OURS = "fencepost"
"""The namespace of deploy/kubernetes."""


Make = Callable[[str], KubernetesLeases]


async def acquired(source: KubernetesLeases, lock: str = LOCK, wait_s: float = 0) -> Grant | Holder:
    return await source.acquire(lock, owner="somebody", ttl_ms=30_000, tokens=2, wait_s=wait_s)


async def works(source: KubernetesLeases, lock: str) -> bool:
    """Do all that a gateway does."""
    grant = await acquired(source, lock)
    assert isinstance(grant, Grant)
    assert isinstance(await acquired(source, lock, wait_s=0.5), Holder)
    assert await source.renew(lock, grant.handle, 30_000)
    assert await source.mint(lock, grant.handle, 1)
    assert await source.issued(grant.tokens[0])
    await source.release(lock, grant.handle)
    return await source.inspect(lock) is None and await source.advice() == []
