"""A user's project: the same test on each lock service, with its server killed."""

from types import SimpleNamespace

import psycopg
import pytest

from fencepost import StaleToken, SyncClient
from fencepost.testing import FaultError, killed, lease_expired
from fencepost.testing.fixtures.gateway import LockService, OwnGateway
from fencepost.testing.fixtures.tables import FencedTables

ORDERS = "CREATE TABLE orders (order_id text PRIMARY KEY, status text)"
GRANT_ELSEWHERE = """
INSERT INTO fencepost.source_leases
  (source, lock, secret_hash, owner, claims, claimed, handle, tokens, last_token, ttl_ms, granted_at, expires_at)
SELECT 'elsewhere', lock, '\\x00', owner, claims, claimed, handle, tokens, last_token, ttl_ms, granted_at, expires_at
  FROM fencepost.source_leases"""
each = pytest.mark.parametrize("lock_service", ["builtin", "redis", "etcd", "zookeeper"], indirect=True)


@each
def test_a_holder_writes_and_its_lease_is_over_at_once(
    lock_service: LockService, fenced_table: FencedTables, fencepost_client: SyncClient
) -> None:
    orders = fenced_table(ORDERS, rows=[{"order_id": "7", "status": "new"}], source=lock_service.name)
    with lock_service.lock("orders/7", wait=10, claim=True) as lease:
        fencepost_client.patch("orders", "7", {"status": "paid"}, lease=lease)
        if lock_service.name == "redis":
            with killed(lock_service.server):
                fencepost_client.patch("orders", "7", {"status": "packed"}, lease=lease)
    for by_name in (False, True):
        with lock_service.lock("orders/7", ttl=60, wait=10, claim=True) as late:
            with lease_expired("orders/7" if by_name else late):
                assert fencepost_client.locks("orders/7", source=lock_service.source) == []
                with lock_service.lock("orders/7", ttl=60, wait=0, claim=True) as new:  # free: nothing to wait for
                    fencepost_client.patch("orders", "7", {"status": f"shipped {by_name}"}, lease=new)
            with pytest.raises(StaleToken):
                fencepost_client.patch("orders", "7", {"status": "cancelled"}, lease=late)
            with pytest.raises(FaultError, match="is not held in this database"), lease_expired(late):
                pass
        assert orders.rows()[0]["status"] == f"shipped {by_name}"


@pytest.mark.parametrize("lock_service", ["redis", "etcd"], indirect=True)
def test_a_service_that_does_not_answer_is_named(
    lock_service: LockService, fenced_table: FencedTables, fencepost_client: SyncClient
) -> None:
    fenced_table(ORDERS, source=lock_service.name)
    with lock_service.lock("orders/8", ttl=60, wait=10) as lease:
        with killed(lock_service.server), pytest.raises(FaultError, match="could not be asked"), lease_expired(lease):
            pass
        assert [held.name for held in fencepost_client.locks("orders/8", source=lock_service.source)] == ["orders/8"]


@pytest.mark.parametrize("lock_service", ["redis"], indirect=True)
def test_a_service_that_runs_elsewhere(
    lock_service: LockService, fenced_table: FencedTables, fencepost_gateway: OwnGateway
) -> None:
    fenced_table(ORDERS, source=lock_service.name)
    with lock_service.lock("orders/9", ttl=60, wait=10) as lease:
        with psycopg.connect(fencepost_gateway.database) as connection:
            connection.execute("SELECT fencepost.source_register('elsewhere', 'redis', 'source', true)")
            connection.execute(GRANT_ELSEWHERE)
        with pytest.raises(FaultError, match=r"several .* orders/9 \(elsewhere, redis\)"), lease_expired("orders/9"):
            pass
        number = int(lease.id.removeprefix("redis-")) + 1
        there = SimpleNamespace(id=f"elsewhere-{number}")
        with pytest.raises(FaultError, match="elsewhere, which this run has not started"), lease_expired(there):
            pass


@pytest.mark.parametrize("lock_service", ["builtin"], indirect=True)
def test_the_built_in_service_has_no_server(lock_service: LockService) -> None:
    with pytest.raises(ValueError, match="use fencepost_gateway"):
        _ = lock_service.server
