"""A paused gateway, a killed one, and a clock that steps."""

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from fencepost.testing.faults import (
    FaultError,
    FaultUnavailableError,
    Link,
    SteppableClock,
    clock_stepped,
    cut,
    holders,
    killed,
    lease_expired,
    partitioned,
    paused,
)
from fencepost.testing.faults.fault import Fault
from fencepost.testing.servers.gateway import GatewayServer
from fencepost.testing.servers.processes import alive, wait_until
from fencepost.testing.servers.server import ServerError

pytestmark = pytest.mark.long("faults of processes")

CLOCK = "import sys, time\nfor line in sys.stdin: print(time.time(), time.monotonic(), flush=True)"


def silent(gateway: GatewayServer) -> bool:
    try:
        httpx.get(f"{gateway.url}/healthz", timeout=0.2, trust_env=False)
    except httpx.TimeoutException:
        return True
    return False


def test_a_paused_gateway_answers_after_the_pause_and_not_after_one_within_it(gateway: GatewayServer) -> None:
    pause = paused(gateway)

    def interrupted() -> None:
        with pause:
            with paused(gateway.pid):
                pass
            assert silent(gateway)
            raise KeyboardInterrupt

    for _ in range(2):  # it can be used again
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert httpx.get(f"{gateway.url}/healthz", trust_env=False).is_success


def test_a_process_that_died_in_its_pause_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with paused(process):
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("harm", "reaped"), [(paused, True), (killed, False)])
def test_a_process_that_has_ended_already_is_refused(harm: Callable[[Any], Fault[None]], *, reaped: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: not alive(process.pid))
    if reaped:
        process.wait()
    with pytest.raises(FaultError, match=f"process {process.pid} has ended already"), harm(process):
        pass
    process.wait()


def test_what_is_no_process_is_refused() -> None:
    nothing: Any = "w3"
    with pytest.raises(TypeError, match="a process is a pid"), paused(nothing):
        pass


def test_a_killed_gateway_serves_again_at_the_same_url(gateway: GatewayServer) -> None:
    before = gateway.pid
    with killed(gateway):
        assert not alive(before)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{gateway.url}/healthz", trust_env=False)
    assert gateway.pid != before
    assert httpx.get(f"{gateway.url}/healthz", trust_env=False).is_success


def test_a_server_that_a_thread_killed_outlives_the_thread(gateway: GatewayServer) -> None:
    def kill() -> None:
        with killed(gateway):
            pass

    thread = threading.Thread(target=kill)
    thread.start()
    task = Path(f"/proc/self/task/{thread.native_id}")
    thread.join()
    wait_until(lambda: not task.exists())
    assert httpx.get(f"{gateway.url}/healthz", trust_env=False).is_success


def test_words_that_select_no_moment_and_no_direction_are_refused() -> None:
    word: Any = "before_commit"
    with Link("127.0.0.1", 9, protocol="http") as link:
        with pytest.raises(ValueError, match="when is one of before-commit"), cut(link, when=word):
            pass
        with pytest.raises(ValueError, match="direction is one of both"), partitioned(link, direction=word):
            pass


class Needy:
    """A server that cannot start without another one."""

    def __init__(self, needs: "Needy | None" = None) -> None:
        self._needs = needs
        self.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def crash(self) -> None:
        self._process.communicate()

    def start(self) -> None:
        if self._needs is not None and not self._needs.running:
            raise ServerError("what it needs does not run")
        command = [sys.executable, "-c", "input()"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        assert self.running


def test_servers_that_were_killed_in_any_order_run_again() -> None:
    first = Needy()
    second = Needy(first)
    third = Needy(second)
    with pytest.raises(KeyboardInterrupt), killed(first), killed(second), killed(third):
        raise KeyboardInterrupt
    assert [each.running for each in (first, second, third)] == [True, True, True]
    first.crash()
    second.crash()
    third.crash()


def grant(gateway: GatewayServer, owner: str, **more: object) -> httpx.Response:
    body = {"lock": "orders/7", "owner": owner, "claim": ["orders/7"], **more}
    return httpx.post(f"{gateway.url}/v1/leases", json=body, trust_env=False, timeout=30)


def test_a_lease_is_over_at_once_and_its_holder_is_fenced(gateway: GatewayServer) -> None:
    with pytest.raises(FaultError, match="orders/7 is not held in this database"), lease_expired("orders/7"):
        pass
    first = grant(gateway, "a").json()
    assert grant(gateway, "b").status_code == 423
    with lease_expired("orders/7"):
        assert grant(gateway, "b").is_success
    write = httpx.patch(
        f"{gateway.url}/v1/data/orders/7",
        json={"status": "paid"},
        headers={"X-Fence-Token": first["token"]},
        trust_env=False,
    )
    assert write.json()["code"] == "FP001"


def test_a_lease_that_no_client_took_goes_on_after_the_block(gateway: GatewayServer) -> None:
    first = grant(gateway, "a", ttl_ms=60_000).json()
    with psycopg.connect(gateway.database, autocommit=True) as connection:
        end = "SELECT expires_at FROM fencepost.leases WHERE ended_at IS NULL"
        before = connection.execute(end).fetchone()
        with lease_expired("orders/7"):
            assert connection.execute(end).fetchone() != before
        assert connection.execute(end).fetchone() == before
    secret = {"X-Lease-Secret": first["secret"]}
    renewed = httpx.post(f"{gateway.url}/v1/leases/{first['lease_id']}/renew", headers=secret, trust_env=False)
    assert renewed.is_success


def readings(process: subprocess.Popen[str]) -> tuple[float, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    wall, monotonic = map(float, process.stdout.readline().split())
    return wall, monotonic


def test_a_wall_clock_steps_and_steps_back() -> None:
    try:
        clock = SteppableClock()
    except FaultUnavailableError as missing:
        pytest.skip(str(missing))
    with clock:
        process = subprocess.Popen(
            [sys.executable, "-c", CLOCK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clock.environment(),
        )
        wall, monotonic = readings(process)
        with clock_stepped(clock, 3600):
            ahead, later = readings(process)
        back, _ = readings(process)
        with clock_stepped(clock, -3600):
            behind, _ = readings(process)
        process.communicate()
    assert 3600 <= ahead - wall < 3700
    assert 0 <= later - monotonic < 100
    assert 0 <= back - wall < 100
    assert -3600 <= behind - wall < -3500


def test_without_libfaketime_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(holders, "_PLACES", (str(tmp_path),))
    with pytest.raises(FaultUnavailableError, match="apt-get install faketime"):
        SteppableClock()


def test_a_killed_process_stays_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with killed(process):
        assert process.returncode == -9
    process.communicate()


def test_a_server_that_cannot_be_started_again_is_an_error_when_no_block_is_open() -> None:
    first = Needy()
    second = Needy(first)
    with pytest.raises(ServerError, match="what it needs does not run"), killed(second):
        first.crash()
    assert not second.running
