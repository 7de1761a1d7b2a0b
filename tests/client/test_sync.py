"""The client for code that is not asynchronous."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from textwrap import dedent

import httpx
import pytest
from tests.client.transports import Counting

from fencepost import LeaseLost, LockHeld, StaleToken, SyncClient, SyncLease
from fencepost.testing.servers.processes import PATIENCE

ORDER = "orders/order-123"


@pytest.fixture
def client(gateway_url: str) -> Iterator[SyncClient]:
    with SyncClient(gateway_url, owner="worker-a") as client:
        yield client


def test_the_story(client: SyncClient) -> None:
    with client.lock(ORDER, ttl=30, wait=5, claim=True) as lease:
        assert lease.trusted
        assert 0 < lease.remaining < 30
        assert lease.row is not None
        assert lease.row["status"] == "new"
        assert (lease.lock, lease.owner, lease.claims[0].resource) == (ORDER, "worker-a", ORDER)
        assert lease.secret not in repr(lease)
        assert client.patch("orders", "order-123", {"status": "paid"}, lease=lease)["status"] == "paid"
        assert client.put("orders", "n", {"status": "new"}, lease=lease)["order_id"] == "n"
        assert client.post("orders", {"order_id": "p", "status": "new"}, lease=lease)["order_id"] == "p"
        assert len(client.post("orders", [{"order_id": "q", "status": "new"}], lease=lease)) == 1
        assert len(client.patch_where("orders", {"order_id": "in.(p,q)"}, {"status": "paid"}, lease=lease)) == 2
        rows = [{"order_id": "q", "status": "new"}, {"order_id": "p", "status": "paid"}]
        assert [row["status"] for row in client.patch_rows("orders", rows, lease=lease)] == ["new", "paid"]
        assert len(client.delete_where("orders", {"order_id": "in.(p,q)"}, lease=lease)) == 2
        client.delete("orders", "n", lease=lease)
        assert client.claim("orders/order-124", lease=lease).row is not None
        assert lease.claim("orders/nobody") is None
        with lease.operation(ORDER) as token:
            assert token > (client.fence(ORDER).mark or 0)
        assert lease.next_token() > token
        assert [state.owner for state in client.locks(ORDER)] == ["worker-a"]
        assert client.get("orders", "order-123", select="status") == {"status": "paid"}
        assert len(client.select("orders", {"status": "eq.paid"}, order="order_id", limit=1)) == 1
        lease.check()
    assert client.locks() == []
    with pytest.raises(LeaseLost, match="released"):
        client.patch("orders", "order-123", {"status": "paid"}, lease=lease)


def test_errors_come_through_and_the_lock_is_released(client: SyncClient) -> None:
    def work() -> None:
        with client.lock("job"):
            with pytest.raises(LockHeld) as held:
                client.lock("job").__enter__()
            assert held.value.holder == "worker-a"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert client.locks() == []
    client.claim(ORDER, token=5000)
    with pytest.raises(StaleToken):
        client.patch("orders", "order-123", {"status": "paid"}, token=4000)


def _renewals(counting: Counting, lease: SyncLease) -> int:
    return counting.requests.count(f"POST /v1/leases/{lease.id}/renew")


def test_the_lease_is_renewed_while_its_holder_computes(gateway_url: str) -> None:
    """The main thread never gives up the processor by itself."""
    counting = Counting()
    with SyncClient(gateway_url, transport=counting) as client, client.lock("job", ttl=10) as lease:
        primes = (n for n in range(2, 100_000_000) if all(n % divisor for divisor in range(2, int(n**0.5) + 1)))
        while _renewals(counting, lease) < 2:
            next(primes)
            assert lease.trusted
        assert client.locks("job")[0].lease_id == lease.id


def test_a_loss_is_seen_in_any_thread(client: SyncClient, gateway_url: str) -> None:
    with client.lock("job", ttl=10) as lease:
        assert lease.wait_lost(0.001) is None
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(lease.wait_lost)
            httpx.delete(
                f"{gateway_url}/v1/leases/{lease.id}", headers={"X-Lease-Secret": lease.secret}, trust_env=False
            )
            lost = waiting.result(PATIENCE)
        assert lost is not None
        assert lost.reason == "gone"
        assert not lease.trusted
        with pytest.raises(LeaseLost):
            lease.check()


def test_many_threads_write_under_one_lease(client: SyncClient) -> None:
    with client.lock(ORDER, tokens=1) as lease, ThreadPoolExecutor(8) as threads:
        written = list(
            threads.map(lambda n: client.patch("orders", "order-123", {"amount": n}, lease=lease), range(60))
        )
        assert len(written) == 60


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Give what makes the next wait for a result end as Ctrl-C ends it: before the result is there, or just after."""
    real = Future.result
    strikes: list[bool] = []

    def interrupted(self: "Future[object]", timeout: float | None = None) -> object:
        if strikes:
            if strikes.pop():
                real(self, timeout)
            raise KeyboardInterrupt
        return real(self, timeout)

    monkeypatch.setattr(Future, "result", interrupted)
    return strikes.append


def test_an_interrupt_while_waiting_for_the_lock_leaves_the_queue(
    client: SyncClient, ctrl_c: Callable[[bool], None]
) -> None:
    with client.lock("job"):
        ctrl_c(False)
        with pytest.raises(KeyboardInterrupt):
            client.lock("job", wait=None).__enter__()
        assert not client.locks("job")[0].waiters
    assert client.locks() == []


def test_an_interrupt_when_the_lock_has_been_granted_gives_it_back(
    client: SyncClient, ctrl_c: Callable[[bool], None]
) -> None:
    ctrl_c(True)
    with pytest.raises(KeyboardInterrupt):
        client.lock("job").__enter__()
    assert client.locks() == []


def test_a_client_that_is_not_open_reports_it(gateway_url: str) -> None:
    client = SyncClient(gateway_url)
    with pytest.raises(RuntimeError, match="not open"):
        client.get("orders", 1)
    with client, pytest.raises(RuntimeError, match="already open"):
        client.__enter__()
    with pytest.raises(RuntimeError, match="not open"):
        client.locks()


def test_a_forked_process_that_exits_within_a_lock_has_its_own_exit_code(gateway_url: str) -> None:
    exits = dedent("""
        import os, sys
        from fencepost import SyncClient
        with SyncClient(sys.argv[1], retry=None) as client, client.lock("a") as lease:
            child = os.fork()
            if child == 0:
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lease.trusted)
    """)
    command = [sys.executable, "-c", exits, gateway_url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.stdout, ran.stderr) == ("3 True\n", "")
