"""Faults of the harness: cuts, links, processes that stop, and the launcher."""

import contextlib
import dataclasses
import gc
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import psycopg
import pytest

from fencepost.testing import paused
from fencepost.testing.faults import (
    FaultError,
    FaultUnavailableError,
    Link,
    SteppableClock,
    clock_stepped,
    cut,
    delayed,
    holders,
    killed,
    lease_expired,
    partitioned,
)
from fencepost.testing.faults.connection import HttpConversation
from fencepost.testing.faults.fault import Fault
from fencepost.testing.servers.gateway import GatewayServer, gateway_environment, is_ready
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.processes import (
    PATIENCE,
    KnownProcess,
    alive,
    continue_all,
    descendants,
    free_port,
    kill_tree,
    pid_of,
    stop_tree,
    wait_until,
)
from fencepost.testing.servers.server import ServerError

# Connections that are cut before and after a commit: on the gateway's side and on the database's.

UPDATE = "UPDATE plain SET status = %s WHERE order_id = '7'"


@pytest.fixture
def plain(database: str) -> str:
    """Make a table without a fence. Gives the database's URL."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE plain (order_id text PRIMARY KEY, status text)")
        connection.execute("INSERT INTO plain VALUES ('7', 'new')")
    return database


def status(url: str, table: str = "plain") -> str:
    with psycopg.connect(url) as connection:
        row = connection.execute(f"SELECT status FROM {table} WHERE order_id = '7'".encode()).fetchone()
    assert row is not None
    return str(row[0])


@pytest.mark.parametrize(
    ("when", "stored", "autocommit"), [("before-commit", "new", True), ("after-commit", "paid", False)]
)
def test_the_answer_is_lost_and_the_commit_done_or_not(plain: str, when: str, stored: str, *, autocommit: bool) -> None:
    with Link.to(plain) as link, psycopg.connect(link.url, autocommit=autocommit) as connection:
        connection.execute("SELECT 1")
        with cut(link, when=when) as done, pytest.raises(psycopg.OperationalError):  # type: ignore[arg-type]
            pay(connection)
        assert done.times == 1
    assert status(plain) == stored


def pay(connection: psycopg.Connection) -> None:
    connection.execute(UPDATE, ["paid"])
    connection.commit()


def test_reads_failed_commits_and_such_as_do_not_match_are_not_meant(plain: str) -> None:
    with Link.to(plain) as link, cut(link, when="after-commit", matching="'paid'") as done:
        with psycopg.connect(link.url, autocommit=True) as connection:
            connection.execute("SELECT * FROM plain")
            with pytest.raises(psycopg.errors.UndefinedColumn):
                connection.execute("UPDATE plain SET nothing = 1")
            connection.execute("UPDATE plain SET status = 'usual'")
            assert done.times == 0
            with contextlib.suppress(psycopg.OperationalError):
                connection.execute("UPDATE plain SET status = 'paid'")
        assert (done.times, status(plain)) == (1, "paid")


@pytest.mark.parametrize(("when", "stored"), [("before-commit", "new"), ("after-commit", "paid")])
def test_a_request_whose_answer_is_lost_was_done_or_not(gateway: GatewayServer, when: str, stored: str) -> None:
    lease = httpx.post(f"{gateway.url}/v1/leases", json={"lock": "orders/7"}, trust_env=False).json()
    with Link.to(gateway.url) as link, cut(link, when=when) as done, pytest.raises(httpx.TransportError):  # type: ignore[arg-type]
        httpx.patch(
            f"{link.url}/v1/data/orders/7",
            json={"status": "paid"},
            headers={"X-Fence-Token": lease["token"]},
            trust_env=False,
        )
    assert done.times == 1
    assert status(gateway.database, "orders") == stored


HEAD = b"PATCH /v1/data/orders/7 HTTP/1.1\r\nHost: localhost\r\nX-Fence-Token: 1\r\nContent-Type: application/json\r\n"
LENGTH = (HEAD + b"Content-Length: 17\r\n\r\n", b'{"status":"pa', b'id"}')
CHUNKED = (HEAD + b"Transfer-Encoding: chunked\r\n\r", b'\nd\r\n{"status":"pa\r\n4\r\ni', b'd"}\r\n0\r\n', b"\r\n")


@pytest.mark.parametrize("packets", [LENGTH, CHUNKED, [bytes([each]) for each in b"".join(CHUNKED)]])
def test_a_request_is_read_whole_whatever_its_packets(packets: Sequence[bytes]) -> None:
    conversation = HttpConversation()
    *before, last = [piece for packet in (*packets, *packets) for piece in conversation.from_client(packet)]
    assert b"".join(piece.data for piece in (*before, last)) == b"".join(packets) * 2
    assert last.commits[0].endswith('{"status":"paid"}')
    assert [piece for piece in before if piece.commits] == [dataclasses.replace(last, data=packets[-1])]


@pytest.mark.parametrize("status", [200, 409])
def test_an_answer_is_read_whatever_comes_before_it_and_in_whatever_packets(status: int) -> None:
    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 %d It\r\n\r\n" % status
    )
    for packets in ([answer], [bytes([each]) for each in answer], [answer[:25], answer[25:]]):
        conversation = HttpConversation()
        for packet in LENGTH:
            list(conversation.from_client(packet))
        pieces = [piece for packet in packets for piece in conversation.from_server(packet)]
        assert b"".join(piece.data for piece in pieces) == answer
        assert sum(piece.concludes for piece in pieces) == (status < 300)


@pytest.mark.parametrize(
    "packets", [LENGTH, (b"GET /v1/data/orders?status=eq.paid HTTP/1.1\r\nHost: localhost\r\n\r\n",)]
)
def test_a_request_of_any_method_is_matched(gateway: GatewayServer, packets: Sequence[bytes]) -> None:
    with Link.to(gateway.url) as link, socket.create_connection((link.host, link.port)) as client:
        with cut(link, when="before-commit", matching="paid") as done:
            client.sendall(b"".join(packets))
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert (done.times, status(gateway.database, "orders")) == (1, "new")


def test_a_half_open_connection_keeps_its_transaction_open_until_the_block_ends(plain: str) -> None:
    open_backends = (
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND datname = current_database()"
    )
    with Link.to(plain) as link, psycopg.connect(plain, autocommit=True) as observer:
        with cut(link, when="before-commit", half_open=True), psycopg.connect(link.url) as connection:
            with pytest.raises(psycopg.OperationalError):
                pay(connection)
            assert observer.execute(open_backends.encode()).fetchone() == (1,)
        assert status(plain) == "new"


# Links on real sockets: partitions, delays, cuts by bytes.


class Echo:
    """A server that sends everything back."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.got = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                self.got += data
                connection.sendall(data)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def link(echo: Echo) -> Iterator[Link]:
    with Link("127.0.0.1", echo.port, between=("client", "echo")) as link:
        yield link


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as client:
        yield client


def silent(client: socket.socket) -> bool:
    """Whether nothing comes for a tenth of a second."""
    before = client.gettimeout()
    client.settimeout(0.1)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(before)
    return False


def rest(client: socket.socket) -> bytes:
    """Return what still comes before the connection ends."""
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: client.recv(65536), b""))
    return b""


def test_what_is_sent_in_a_partition_arrives_after_it(client: socket.socket, echo: Echo) -> None:
    with partitioned("client", "echo"), partitioned("echo", "client"):
        client.sendall(b"now")
        assert silent(client)
    assert client.recv(3) == b"now"
    assert echo.got == b"now"


def test_one_direction_alone_can_be_blocked(client: socket.socket, echo: Echo, link: Link) -> None:
    with partitioned(link, direction="to-client"):
        client.sendall(b"now")
        assert silent(client)
        assert echo.got == b"now"
    assert client.recv(3) == b"now"


def test_ends_without_a_link_are_named() -> None:
    with (
        pytest.raises(FaultError, match=r"no link leads from 'a' to 'b': make one with Link\.to"),
        partitioned("a", "b"),
    ):
        pass


def test_a_delay_is_there_in_each_direction_and_ends(client: socket.socket, link: Link) -> None:
    with delayed(link, 0.15):
        begun = time.monotonic()
        client.sendall(b"now")
        assert client.recv(3) == b"now"
        assert time.monotonic() - begun >= 0.3
    assert link.to_server.delay == link.to_client.delay == 0.0


def end_in_the_order_of_their_beginning(first: Fault[None], second: Fault[None]) -> None:
    """As two threads may."""
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)


def test_delays_that_overlap_add_up_and_each_ends_with_its_block(link: Link) -> None:
    first, second = delayed(link, 0.1), delayed(link, 0.2)
    end_in_the_order_of_their_beginning(first, second)
    assert link.to_server.delay == link.to_client.delay == 0.2
    second.__exit__(None, None, None)
    assert link.to_server.delay == link.to_client.delay == 0


def test_one_fault_in_two_threads_ends_in_each_for_itself(link: Link) -> None:
    fault = cut(link, "after-bytes", bytes_to_server=10**6)
    with ThreadPoolExecutor(1) as other:
        of_the_other = other.submit(fault.__enter__).result()
        with fault as ours:
            other.submit(fault.__exit__, None, None, None).result()
            assert link.cutters == [ours] != [of_the_other]
    assert link.cutters == []


def test_steps_of_a_clock_that_overlap_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libfaketimeMT.so.1").touch()
    monkeypatch.setattr(holders, "_PLACES", (str(tmp_path),))
    with SteppableClock() as clock:
        file = Path(clock.environment({})["FAKETIME_TIMESTAMP_FILE"])
        first, second = clock_stepped(clock, 10), clock_stepped(clock, 100)
        end_in_the_order_of_their_beginning(first, second)
        assert file.read_text() == "+100.000000\n"
        second.__exit__(None, None, None)
        assert (clock.offset, file.read_text()) == (0, "+0.000000\n")


def test_a_connection_is_cut_after_so_many_bytes(client: socket.socket, link: Link, echo: Echo) -> None:
    with cut(link, when="after-bytes", bytes_to_server=5) as done:
        client.sendall(b"123")
        assert client.recv(3) == b"123"
        client.sendall(b"4567")
        done.wait()
        assert rest(client) == b""
    assert done.times == 1
    assert echo.got in {b"123", b"12345"}  # the reset may overtake what was sent just before it


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        (lambda link: cut(link, "after-bytes", times=0), "times is 1 or more, not 0"),
        (lambda link: cut(link, "after-bytes", times=-1), "times is 1 or more, not -1"),
        (lambda link: cut(link, "after-bytes", bytes_to_server=-3), "bytes_to_server is 0 or more, not -3"),
        (lambda link: cut(link, "before-commit", bytes_to_server=9), "bytes_to_server belongs to when='after-bytes'"),
        (lambda link: cut(link, "after-bytes", matching="x"), "matching belongs to commits"),
        (lambda link: delayed(link, math.nan), "it cannot be nan"),
        (lambda link: delayed(link, math.inf), "it cannot be inf"),
        (lambda _: clock_stepped(None, math.nan), "a clock steps by a number of seconds, not nan"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_would_be_ignored_are_refused(
    link: Link, fault: Callable[[Link], Fault[object]], named: str
) -> None:
    with pytest.raises(ValueError, match=named), fault(link):
        pass


def test_a_commit_cannot_be_found_in_an_unknown_protocol(link: Link) -> None:
    with pytest.raises(FaultError, match="protocol='postgresql' or 'http'"), cut(link, when="before-commit"):
        pass


def test_a_link_can_lead_elsewhere(link: Link) -> None:
    other = Echo()
    link.lead_to("127.0.0.1", other.port)
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as client:
        client.sendall(b"now")
        assert client.recv(3) == b"now"
    assert other.got == b"now"
    other.close()


def test_the_url_by_way_of_a_link(echo: Echo) -> None:
    with Link.to(f"postgresql://user:p%40ss@127.0.0.1:{echo.port}/db?sslmode=disable") as link:
        assert link.url == f"postgresql://user:p%40ss@127.0.0.1:{link.port}/db?sslmode=disable"


def test_a_link_that_is_closed_leaves_no_socket_open(echo: Echo) -> None:
    """Not even that of a client which has connected at this moment."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(50):
            with Link("127.0.0.1", echo.port) as link, socket.create_connection(("127.0.0.1", link.port), timeout=10):
                pass
        gc.collect()
    assert [str(each.message) for each in warned] == []


def test_a_link_that_was_closed_inside_a_fault_is_no_error(echo: Echo) -> None:
    link = Link("127.0.0.1", echo.port)
    with partitioned(link), delayed(link, 1), cut(link, when="after-bytes"):
        link.close()
    link.close()


def test_a_connection_that_a_partition_keeps_waiting_ends_with_its_link(echo: Echo) -> None:
    link = Link("127.0.0.1", echo.port)
    with partitioned(link), socket.create_connection(("127.0.0.1", link.port), timeout=10) as client:
        for _ in range(3):
            link.call(lambda: None)  # its loop has taken the connection by then
        link.close()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


# Signals to a process and all below it.

FAMILY = """
import subprocess, sys, threading
child = "import threading; threading.Event().wait()"
# A session of its own, as PostgreSQL's backends have; forked by a thread that is not the first.
start = lambda: print(subprocess.Popen([sys.executable, "-c", child], start_new_session=True).pid, flush=True)
forker = threading.Thread(target=lambda: (start(), threading.Event().wait()))
forker.start()
"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a process with a child in another session. Gives both."""
    parent = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    yield parent, child
    if alive(child):
        os.kill(child, 9)
    parent.kill()
    parent.communicate()


def states(pid: int) -> set[str]:
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()}


def test_all_below_a_process_stop_and_go_on(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    assert descendants(parent.pid) == [child]
    stopped = stop_tree(parent.pid)
    assert states(parent.pid) == {"T"}
    assert states(child) == {"T"}
    continue_all(stopped)
    wait_until(lambda: "T" not in states(parent.pid) | states(child))


def test_a_process_that_two_blocks_pause_goes_on_after_the_last(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    first, second, of_the_child = paused(parent), paused(parent), paused(child)
    for block in (first, of_the_child, second):
        block.__enter__()
    for block in (first, second):  # in the order in which threads may end them
        block.__exit__(None, None, None)
    assert states(child) == {"T"}
    assert "T" not in states(parent.pid)
    of_the_child.__exit__(None, None, None)
    assert "T" not in states(child)


@pytest.mark.parametrize(
    ("number", "where", "status"),
    [
        (signal.SIGTERM, "main", -signal.SIGTERM),
        (signal.SIGHUP, "thread", -signal.SIGHUP),
        (signal.SIGTERM, "handles", 7),
    ],
)
def test_a_signal_that_ends_the_harness_continues_what_it_has_stopped(
    family: tuple[subprocess.Popen[str], int], number: signal.Signals, where: str, status: int
) -> None:
    parent, child = family
    pauses = dedent("""
        import os, signal, sys, threading
        from fencepost.testing import paused
        def pause():
            with paused(int(sys.argv[1])):
                print("paused", flush=True)
                threading.Event().wait()
        if sys.argv[2] == "handles":
            signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        if sys.argv[2] == "thread":
            threading.Thread(target=pause, daemon=True).start()
            threading.Event().wait()
        pause()
    """)
    command = [sys.executable, "-c", pauses, str(parent.pid), where]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == b"paused\n"
        harness.send_signal(number)
        assert harness.wait(PATIENCE) == status
    assert "T" not in states(parent.pid) | states(child)


def test_all_below_a_process_are_killed(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, child = family
    kill_tree(parent.pid)
    assert not alive(parent.pid)
    assert not alive(child)


def test_a_pid_that_was_given_to_another_process_gets_no_signal(family: tuple[subprocess.Popen[str], int]) -> None:
    parent, _ = family
    KnownProcess(parent.pid, started=1).signal(signal.SIGKILL)
    assert alive(parent.pid)


def test_the_harness_does_not_stop_itself() -> None:
    for pid in (os.getpid(), os.getppid(), 1):
        with pytest.raises(ValueError, match="one above it"):
            pid_of(pid)


# A paused gateway, a killed one, and a clock that steps.

CLOCK = "import sys, time\nfor line in sys.stdin: print(time.time(), time.monotonic(), flush=True)"


def mute(gateway: GatewayServer) -> bool:
    try:
        httpx.get(f"{gateway.url}/healthz", timeout=0.2, trust_env=False)
    except httpx.TimeoutException:
        return True
    return False


@pytest.mark.long("faults of processes")
def test_a_paused_gateway_answers_after_the_pause_and_not_after_one_within_it(gateway: GatewayServer) -> None:
    pause = paused(gateway)

    def interrupted() -> None:
        with pause:
            with paused(gateway.pid):
                pass
            assert mute(gateway)
            raise KeyboardInterrupt

    for _ in range(2):  # it can be used again
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert httpx.get(f"{gateway.url}/healthz", trust_env=False).is_success


@pytest.mark.long("faults of processes")
def test_a_process_that_died_in_its_pause_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with paused(process):
        process.kill()
        process.communicate()


@pytest.mark.long("faults of processes")
@pytest.mark.parametrize(("harm", "reaped"), [(paused, True), (killed, False)])
def test_a_process_that_has_ended_already_is_refused(harm: Callable[[Any], Fault[None]], *, reaped: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: not alive(process.pid))
    if reaped:
        process.wait()
    with pytest.raises(FaultError, match=f"process {process.pid} has ended already"), harm(process):
        pass
    process.wait()


@pytest.mark.long("faults of processes")
def test_what_is_no_process_is_refused() -> None:
    nothing: Any = "w3"
    with pytest.raises(TypeError, match="a process is a pid"), paused(nothing):
        pass


@pytest.mark.long("faults of processes")
def test_a_killed_gateway_serves_again_at_the_same_url(gateway: GatewayServer) -> None:
    before = gateway.pid
    with killed(gateway):
        assert not alive(before)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{gateway.url}/healthz", trust_env=False)
    assert gateway.pid != before
    assert httpx.get(f"{gateway.url}/healthz", trust_env=False).is_success


@pytest.mark.long("faults of processes")
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


@pytest.mark.long("faults of processes")
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


@pytest.mark.long("faults of processes")
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


@pytest.mark.long("faults of processes")
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


@pytest.mark.long("faults of processes")
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


@pytest.mark.long("faults of processes")
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


@pytest.mark.long("faults of processes")
def test_without_libfaketime_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(holders, "_PLACES", (str(tmp_path),))
    with pytest.raises(FaultUnavailableError, match="apt-get install faketime"):
        SteppableClock()


@pytest.mark.long("faults of processes")
def test_a_killed_process_stays_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with killed(process):
        assert process.returncode == -9
    process.communicate()


@pytest.mark.long("faults of processes")
def test_a_server_that_cannot_be_started_again_is_an_error_when_no_block_is_open() -> None:
    first = Needy()
    second = Needy(first)
    with pytest.raises(ServerError, match="what it needs does not run"), killed(second):
        first.crash()
    assert not second.running


# The launcher: commands of `fencepost` in forks of a process that has loaded them.


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def test_a_command_that_fails_gives_its_message(launcher: Launcher) -> None:
    environment = gateway_environment("postgresql://nobody:secret@127.0.0.1:9/none")
    with pytest.raises(ServerError, match=r"fencepost status failed: Error: .*127\.0\.0\.1"):
        launcher.run(["status"], environment)


def test_what_it_started_ends_with_it(database: str, tmp_path: Path) -> None:
    port = free_port()
    with Launcher() as launcher:
        process = launcher.launch(["serve", "--port", str(port)], gateway_environment(database), tmp_path / "log")
        wait_until(lambda: is_ready(port))
    wait_until(lambda: not alive(process.pid))
    assert process.wait(PATIENCE) == -signal.SIGKILL
