"""What tests of the source etcd ask of it and of its server."""

from tests.conformance.etcd_bench import EtcdBench

from fencepost.server.locks.source import Grant, Source
from fencepost.testing.servers.processes import PATIENCE, eventually

TTL = 60_000
"""No hold ends by itself while a test looks: a test has `etcdctl` revoke its lease."""


async def granted(source: Source, lock: str, *, wait_s: float = PATIENCE, ttl_ms: int = TTL, tokens: int = 1) -> Grant:
    grant = await source.acquire(lock, owner="somebody", ttl_ms=ttl_ms, tokens=tokens, wait_s=wait_s)
    assert isinstance(grant, Grant), grant
    return grant


async def queued(bench: EtcdBench, lock: str, count: int = 1) -> None:
    async def waits() -> bool:
        return await bench.waiting(lock) == count

    await eventually(waits, what=f"{count} waiters")


async def leases(bench: EtcdBench) -> set[str]:
    """Look up which leases there are, in hex."""
    return {f"{lease['id']:x}" for lease in (await bench.ctl("lease", "list")).get("leases") or ()}
