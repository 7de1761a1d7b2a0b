"""Who gets the next connection: a dispatcher with workers that do as the test lets them."""

import socket
from collections.abc import Callable, Iterator

import pytest

from fencepost.server.serving.dispatch import REPORT, SILENT_AFTER, Dispatcher
from fencepost.server.serving.server import listen
from fencepost.testing.servers.processes import eventually


class StubWorker:
    """A worker's end of its channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._channel.setblocking(False)
        self.connections: list[socket.socket] = []

    def take(self) -> int:
        """Take what was handed over; return how many connections that makes in all."""
        while True:
            try:
                output, descriptors, _, _ = socket.recv_fds(self._channel, 1, 1)
            except BlockingIOError:
                return len(self.connections)
            if not output:
                return len(self.connections)
            self.connections.append(socket.socket(fileno=descriptors[0]))

    def report(self) -> None:
        self._channel.send(REPORT.pack(len(self.connections), len(self.connections)))

    def end(self) -> None:
        for one in (self._channel, *self.connections):
            one.close()


class Served:
    """A dispatcher on a free port, its workers, its clients and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self._listener = listen("127.0.0.1", 0, allow_remote=False)
        self.address = self._listener.getsockname()
        self.dispatcher = Dispatcher(self._listener, clock=lambda: self.now)
        self.dispatcher.start()
        self.workers: list[StubWorker] = []
        self.clients: list[socket.socket] = []

    def worker(self) -> StubWorker:
        self.workers.append(StubWorker(self.dispatcher.add()))
        return self.workers[-1]

    async def serving_worker(self) -> StubWorker:
        worker, before = self.worker(), self.dispatcher.serving
        worker.report()
        await becomes(lambda: self.dispatcher.serving, before + 1)
        return worker

    def connect(self, count: int) -> None:
        self.clients += [socket.create_connection(self.address) for _ in range(count)]

    def end(self) -> None:
        self.dispatcher.stop()
        for worker in self.workers:
            worker.end()
        for client in self.clients:
            client.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.end()


async def becomes(figure: Callable[[], int], wanted: int) -> None:
    async def is_it() -> bool:
        return figure() == wanted

    await eventually(is_it, what=f"{wanted}")


async def test_workers_take_turns(served: Served) -> None:
    workers = [await served.serving_worker() for _ in range(3)]
    served.connect(8)
    await becomes(lambda: sum(worker.take() for worker in workers), 8)
    assert sorted(worker.take() for worker in workers) == [2, 3, 3]


async def test_connections_wait_until_a_worker_serves(served: Served) -> None:
    worker = served.worker()
    served.connect(2)
    assert served.dispatcher.serving == worker.take() == 0
    worker.report()
    await becomes(worker.take, 2)


async def test_a_new_worker_is_filled_up_first(served: Served) -> None:
    old = await served.serving_worker()
    served.connect(3)
    await becomes(old.take, 3)
    new = await served.serving_worker()
    served.connect(3)
    await becomes(new.take, 3)
    served.connect(2)
    await becomes(lambda: old.take() + new.take(), 8)
    assert (old.take(), new.take()) == (4, 4)


async def test_a_silent_worker_is_passed_over(served: Served) -> None:
    silent, lively = await served.serving_worker(), await served.serving_worker()
    served.now += SILENT_AFTER + 0.1
    lively.report()
    new = await served.serving_worker()  # heard after the report, which therefore has been heard too
    served.connect(4)
    await becomes(lambda: lively.take() + new.take(), 4)
    assert silent.take() == 0


async def test_workers_that_are_all_silent_are_not(served: Served) -> None:
    workers = [await served.serving_worker() for _ in range(2)]
    served.now += SILENT_AFTER + 0.1
    served.connect(4)
    await becomes(lambda: sum(worker.take() for worker in workers), 4)


async def test_a_worker_that_takes_nothing_does_not_hoard(served: Served) -> None:
    worker = await served.serving_worker()
    served.connect(100)
    await becomes(worker.take, 64)
    other = await served.serving_worker()
    await becomes(other.take, 36)


async def test_a_worker_that_ends_gets_no_more_and_its_untaken_connections_end(served: Served) -> None:
    ending, staying = await served.serving_worker(), await served.serving_worker()
    served.connect(4)
    await becomes(staying.take, 2)
    ending.end()
    await becomes(lambda: served.dispatcher.serving, 1)
    served.connect(2)
    await becomes(staying.take, 4)
    ended = 0
    for client in served.clients[:4]:
        client.settimeout(0.2)
        try:
            ended += client.recv(1) == b""
        except ConnectionResetError:
            ended += 1
        except TimeoutError:
            pass
    assert ended == 2


async def test_stopped_it_refuses_and_what_was_handed_over_stays(served: Served) -> None:
    worker = await served.serving_worker()
    served.connect(1)
    await becomes(worker.take, 1)
    served.dispatcher.stop()
    with pytest.raises(ConnectionRefusedError):
        served.connect(1)
    worker.connections[0].send(b"x")
    assert served.clients[0].recv(1) == b"x"
    assert not served.dispatcher.is_alive()


async def test_stopped_before_any_worker_served_it_refuses_those_who_wait(served: Served) -> None:
    served.connect(1)
    served.dispatcher.stop()
    with pytest.raises(ConnectionResetError):
        served.clients[0].recv(1)
    with pytest.raises(ConnectionRefusedError):
        served.connect(1)
