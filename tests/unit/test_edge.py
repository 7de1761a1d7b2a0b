"""The outermost layers: an answer whatever happens, and once; connections that are too slow end."""

import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import astuple
from functools import partial
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.support.manual_clock import Due, ManualClock

from fencepost.server.fence.problems import Problem
from fencepost.server.http.edge import Edge, read_sites
from fencepost.server.http.guard import KEPT_ANSWERS, MOST_ENDING, Arrival, ConnectionBounds, Guard
from fencepost.server.serve import create_app
from fencepost.server.serving.dispatch import REPORT, SILENT_AFTER, Dispatcher
from fencepost.server.serving.server import listen
from fencepost.server.settings import Settings
from fencepost.server.times import EdgeTimes
from fencepost.testing.servers.processes import eventually

Done = list[tuple[str, str, int]]


def scope(method: str = "GET", path: str = "/v1/data/orders", headers: Any = ()) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "headers": [(b"host", b"localhost"), *headers],
    }


async def ask(app: ASGIApp, given: Scope) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    try:
        await app(given, receive, send)
    except RuntimeError:
        sent.append({"type": "raised"})
    return sent


async def run(app: ASGIApp, given: Scope) -> tuple[list[Message], Done]:
    done: Done = []
    edge = Edge(
        app,
        done=lambda *answered: done.append(answered[:3]),
        access_log=False,
        sites=read_sites("127.0.0.1", "", ""),
        emit=lambda _: None,
    )
    return await ask(edge, given), done


def answering(status: int) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    return app


async def failing_after(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("a secret")


async def test_an_answer_gets_the_request_id_and_is_counted_once() -> None:
    sent, done = await run(answering(204), scope(headers=[(b"x-request-id", b"mine")]))
    assert sent[0]["headers"] == [(b"x-request-id", b"mine"), (b"x-content-type-options", b"nosniff")]
    assert done == [("GET", "/v1/data", 204)]


async def test_a_failure_in_the_middle_of_an_answer_cuts_it_off() -> None:
    sent, done = await run(failing_after, scope())
    assert [message["type"] for message in sent] == ["http.response.start", "raised"]
    assert done == [("GET", "/v1/data", 200)]


async def test_head_reaches_the_application_as_get_and_is_counted_as_head() -> None:
    seen = []

    async def app(given: Scope, receive: Receive, send: Send) -> None:
        seen.append(given["method"])
        await answering(200)(given, receive, send)

    _, done = await run(app, scope("HEAD"))
    assert (seen, done) == (["GET"], [("HEAD", "/v1/data", 200)])


async def test_a_system_route_is_answered_without_fastapis_router_and_middleware() -> None:
    """They cost more than a claim. The requests have two headers that disagree, for which no gateway is needed."""
    app = create_app(Settings.model_validate({"database_url": "postgresql://unused"}))
    app.middleware_stack = answering(204)
    declared = [each for each in app.routes if isinstance(each, APIRoute) and each.include_in_schema]
    asked = [(method, re.sub("{.*?}", "x", each.path)) for each in declared for method in each.methods or ()]
    asked += [("HEAD", path) for method, path in asked if method == "GET"]
    for method, path in asked:
        sent = await ask(app, scope(method, path, [(b"content-type", b"a/b"), (b"content-type", b"a/c")]))
        assert sent[0]["status"] == 400, (method, path)
    assert (await ask(app, scope("GET", "/docs")))[0]["status"] == 204
    assert len(asked) > 20


@pytest.mark.parametrize(
    ("method", "path", "label"),
    [
        ("GET", "/healthz", ("GET", "/healthz")),
        ("BREW", "/coffee", ("other", "other")),
        ("GET", "/problems/anything", ("GET", "/problems")),
        ("GET", "/v1/data/a/b/c", ("GET", "/v1/data")),
        ("GET", "/wp-login.php", ("GET", "other")),
    ],
)
async def test_labels_have_few_values(method: str, path: str, label: tuple[str, str]) -> None:
    _, done = await run(answering(200), scope(method, path))
    assert done[0][:2] == label


async def test_lifespan_passes_through() -> None:
    seen = []

    async def app(given: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(given["type"])

    await run(app, {"type": "lifespan"})
    assert seen == ["lifespan"]


TIMES = EdgeTimes(look_every=1)


class Loop(ManualClock):
    """The event loop, as the guard sees it."""

    time = ManualClock.monotonic

    def call_later(self, seconds: float, call: Callable[..., object], *arguments: object) -> Due:
        return super().call_later(seconds, partial(call, *arguments))


class Connection:
    """A mock of a connection."""

    def __init__(self, *, held_up: bool = False, unsent: int = 0, caller: str = "peer") -> None:
        self.arrival, self.gives_way, self.held_up, self.unsent = Arrival(), False, held_up, unsent
        self.kept, self.caller = unsent, caller
        self.refused: Problem | None = None
        self.aborted = False

    def refuse(self, problem: Problem) -> None:
        self.refused = problem

    def abort(self) -> None:
        self.aborted = True


def opened(*connections: Connection) -> tuple[Guard, Any]:
    guard, loop = Guard(ConnectionBounds(), lambda _: None, TIMES), Loop()
    as_loop: Any = loop
    for each in connections:
        assert guard.opened(each, "peer", as_loop) is None
    return guard, loop


async def test_a_head_that_the_gateway_does_not_read_is_not_slow() -> None:
    slow, waits = Connection(), Connection(held_up=True)
    _, loop = opened(slow, waits)
    for each in (slow, waits):
        each.arrival.since = loop.time()
    await loop.advance(12)
    assert slow.refused is not None
    assert waits.refused is None


async def test_a_body_of_lines_has_its_time_for_each_line_while_it_is_read() -> None:
    """However slowly: a line a minute is a client that has no more to say."""
    slow, silent, held, whole = [Connection() for _ in range(4)]
    _, loop = opened(slow, silent, held, whole)
    for each in (slow, silent, held, whole):
        each.arrival.since, each.arrival.in_body, each.arrival.by_lines = loop.time(), True, each is not whole
    held.held_up = True
    for _ in range(5):
        await loop.advance(50)
        slow.arrival.since = loop.time()  # a line came
    assert [each.refused is None for each in (slow, silent, held, whole)] == [True, False, True, False]
    assert silent.refused is not None
    assert "a whole line of the request's body was not there" in silent.refused.detail


async def test_who_takes_most_of_an_answer_again_and_again_reads_it() -> None:
    steady, stuck = Connection(unsent=60_000), Connection(unsent=60_000)
    guard, loop = opened(steady, stuck)
    for _ in range(150):
        await loop.advance(1)
        guard.reads_on(steady)  # and more was written since
    assert (steady.aborted, stuck.aborted) == (False, True)


async def test_who_does_not_read_the_answer_is_cut_off_and_who_does_is_not() -> None:
    stuck, trickles, reads, grows = [Connection(unsent=2_000_000) for _ in range(4)]
    _, loop = opened(stuck, trickles, reads, grows)
    for _ in range(150):
        await loop.advance(1)
        trickles.unsent -= 100
        reads.unsent -= 2000
        grows.unsent += 2000  # a stream: the gateway stops writing, and it stands still then
    assert [each.aborted for each in (stuck, trickles, reads, grows)] == [True, True, False, False]
    await loop.advance(150)
    assert grows.aborted


@pytest.mark.parametrize(
    ("kept", "cut"),
    [
        ("a300 a300 a101", "a300"),  # a caller has three quarters of 800
        ("a300 a300", ""),
        ("a400 b300 b150", "b300"),  # all have 800: who has the most gives way
        ("a400 b200 b200", ""),
        ("a400 b900 a200", "b900"),
        ("a801", "a801"),
    ],
)
async def test_who_keeps_the_most_gives_way(kept: str, cut: str) -> None:
    guard, each_kept = Guard(ConnectionBounds(kept=800), lambda _: None, TIMES), kept.split()
    connections = [Connection(unsent=int(each[1:]), caller=each[0]) for each in each_kept]
    for each in connections:
        guard.keeps(each, "peer")
    assert [text for text, each in zip(each_kept, connections, strict=True) if each.aborted] == cut.split()


async def test_of_a_caller_the_slowest_gives_way() -> None:
    guard = Guard(ConnectionBounds(kept=800), lambda _: None, TIMES)
    slow, fast, new = [Connection(unsent=each) for each in (250, 250, 300)]
    for each in (slow, fast):
        guard.keeps(each, "peer")
        each.kept = 200
    fast.kept = 150
    guard.keeps(new, "peer")
    assert [each.aborted for each in (slow, fast, new)] == [True, False, False]


def test_the_bounds_are_those_of_the_settings() -> None:
    names = ["connections", "connections_per_address", "head_bytes"]
    of_settings = [f"max_{name}" for name in names] + ["head_timeout", "body_timeout", "least_rate"]
    of_fields = [Settings.model_fields[name].default for name in (*of_settings, "max_answer_bytes")]
    assert [*of_fields[:-1], KEPT_ANSWERS * of_fields[-1]] == [*astuple(ConnectionBounds())]


async def test_refused_connections_that_linger_are_bounded() -> None:
    connections = [Connection() for _ in range(MOST_ENDING + 2)]
    guard, _ = opened(*connections)
    assert [guard.ends(each, "peer") for each in connections] == [True] * MOST_ENDING + [False] * 2
    guard.closed(connections[0], "peer")
    assert guard.ends(connections[-1], "peer")


# Who gets the next connection: a dispatcher with workers that do as the test lets them.


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
