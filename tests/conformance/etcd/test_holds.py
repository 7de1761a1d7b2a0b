"""What ends a hold and what does not: leases and keys that an operator or another program changes."""

import pytest
from tests.conformance.etcd.asking import TTL, granted, leases
from tests.conformance.etcd_bench import EtcdBench

from fencepost.server.locks.source import Source, SourceError

pytestmark = pytest.mark.long("tests of etcd")


async def test_a_mint_leaves_the_key_attached_to_its_lease(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock, tokens=3)
    assert await source.mint(lock, grant.handle, 2) is not None
    (key,) = await node.keys(lock)
    lease = f"{key['lease']:x}"
    assert lease == grant.handle.partition(":")[0]
    await node.ctl("lease", "revoke", lease)
    assert await node.keys(lock) == [], "it goes with its lease"


async def test_another_programs_put_onto_the_owners_key_is_mended_by_the_next_renewal(
    node: EtcdBench, source: Source, lock: str
) -> None:
    grant = await granted(source, lock)
    (key,) = await node.keys(lock)
    name = f"{node.lock_name(lock)}/{grant.handle.partition(':')[0]}"
    await node.ctl("put", name, "mine now")
    with pytest.raises(SourceError, match="has no lease") as blocked:
        await granted(source, lock, wait_s=0)
    assert name in str(blocked.value)
    assert await source.mint(lock, grant.handle, 1) is not None, "it is ours still"
    assert await source.renew(lock, grant.handle, TTL) is True
    (mended,) = await node.keys(lock)
    assert mended["create_revision"] == key["create_revision"]
    assert mended["lease"] != 0
    assert await source.renew(lock, grant.handle, TTL) is True, "now by the lease that it has"
    await node.ctl("lease", "revoke", f"{mended['lease']:x}")
    assert await node.keys(lock) == [], "it goes with its lease"


@pytest.mark.parametrize("harm", ["revoked", "deleted", "put again"])
async def test_a_hold_that_an_operator_ends_is_lost(node: EtcdBench, source: Source, lock: str, harm: str) -> None:
    """Also where its lease lives, and where another key of its name is there."""
    grant = await granted(source, lock)
    lease = grant.handle.partition(":")[0]
    if harm == "revoked":
        await node.ctl("lease", "revoke", lease)
    else:
        await node.ctl("del", f"{node.lock_name(lock)}/{lease}")
    if harm == "put again":
        await node.ctl("put", f"--lease={lease}", f"{node.lock_name(lock)}/{lease}", "again")
    assert await source.mint(lock, grant.handle, 1) is None
    assert await source.renew(lock, grant.handle, TTL) is False
    if harm == "put again":
        await node.ctl("lease", "revoke", lease)
    await granted(source, lock, wait_s=0)


async def test_a_renewal_for_longer_than_granted_gets_it(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    assert await source.renew(lock, grant.handle, 10 * TTL) is True
    held = await source.inspect(lock)
    assert held is not None
    assert held.expires_ms is not None
    assert held.expires_ms > 5 * TTL
    assert held.owner == "somebody"
    more = await source.mint(lock, grant.handle, 1)
    assert more is not None
    assert more[0] > grant.tokens[0]
    assert await source.renew(lock, grant.handle, TTL) is True
    assert grant.handle.partition(":")[0] not in await leases(node), "it is not needed any more"
    await source.release(lock, grant.handle)
    assert await source.inspect(lock) is None


async def test_a_handle_of_another_source_is_refused(source: Source, lock: str) -> None:
    with pytest.raises(SourceError, match=lock):
        await source.mint(lock, '{"of": "redis"}', 1)
