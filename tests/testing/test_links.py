"""Links on real sockets: partitions, delays, cuts by bytes."""

import contextlib
import gc
import math
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fencepost.testing.faults import FaultError, Link, SteppableClock, clock_stepped, cut, delayed, holders, partitioned
from fencepost.testing.faults.fault import Fault


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
