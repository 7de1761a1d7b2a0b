"""How a batch is read: its lines, however they are cut; no more of them than verdicts are taken; and where it ends."""

import asyncio
import contextlib
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.types import Message

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import INVALID_CREDENTIAL
from fencepost.server.gateway.gateway import Batches
from fencepost.server.gateway.write import ConflictKey
from fencepost.server.http import batch as running
from fencepost.server.http import batch_lines
from fencepost.server.http.batch import Batch, Window, atomic_answer
from fencepost.server.http.batch_lines import Splitter, read_line, read_quickly, taken_apart
from fencepost.server.http.guard import Arrival
from fencepost.server.http.problems import RequestError
from fencepost.server.times import TIMES
from fencepost.testing.servers.processes import PATIENCE

LINES = 8
LONGEST = 20


@given(st.lists(st.binary(max_size=2 * LONGEST)), st.booleans(), st.integers(1, 50))
def test_lines_are_the_same_however_the_body_is_cut(lines: list[bytes], ended: bool, size: int) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    body = b"".join(line + b"\n" for line in lines)
    if lines and not ended:
        body = body[:-1]
        if not lines[-1]:
            lines.pop()
    splitter = Splitter(LONGEST)
    found = [line for at in range(0, len(body), size) for line in splitter.feed(body[at : at + size])]
    found += splitter.end()
    assert found == [line if len(line) <= LONGEST else None for line in lines]


MEMBERS = ("method", "path", "token", "idempotency_key", "prefer", "body", "claim", "x")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["PATCH", "a/b", "a?b=eq.c"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
LINE = st.dictionaries(st.sampled_from(MEMBERS), VALUES).map(lambda line: json.dumps(line).encode())


@given(st.binary(max_size=60) | LINE, st.integers(0, 100), st.binary(max_size=2))
def test_a_line_is_read_or_refused_whatever_it_is(line: bytes, at: int, put: bytes) -> None:
    with contextlib.suppress(RequestError):
        read_line(line[:at] + put + line[at:])
    with contextlib.suppress(RequestError):
        read_line(line)


@given(LINE | st.binary(max_size=60))
@example(b'{"path":"a","prefer":"\\"body\\":","body": {"body": 1.10, "x": [1e400]} }')
@example(b'{"x\\"body":"a","body":1}')
@example(b'{"body":1,"body":2}')
@example(b'{"body":1,"token":2}')
@example(b'{"b\\u006fdy":{"a": 1}}')
@example(b'{"token":-0,"body":"}"}')
def test_a_line_means_the_same_however_it_is_read(line: bytes) -> None:
    quickly = read_quickly(line)
    if quickly is not None:
        slowly = taken_apart(line.decode())
        assert {name: text for name, (_, text) in quickly.items() if text} == {
            name: text for name, (value, text) in slowly.items() if name == "body" or not isinstance(value, str)
        }
        assert [(name, value) for name, (value, _) in quickly.items() if name != "body"] == [
            (name, value) for name, (value, _) in slowly.items() if name != "body"
        ]


def test_most_lines_are_read_quickly() -> None:
    assert read_quickly(b'{"method":"PATCH","path":"a/b","token":34,"body": {"a": 1.10}}\r') is not None


class Client:
    """The two ends of a batch's body and answer."""

    def __init__(self, line: bytes = b"no line\n", most: float = math.inf) -> None:
        self.line, self.most, self.received = line, most, 0
        self.answer = b""
        self.reads = asyncio.Event()
        self.ended = False

    async def receive(self) -> Message:
        if self.ended or self.received >= self.most:
            await asyncio.Event().wait()
        self.received += 1
        return {"type": "http.request", "body": self.line, "more_body": True}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            await self.reads.wait()
            self.answer += message["body"]


async def settled() -> None:
    """Let the event loop do what it can."""
    for _ in range(50 * LINES):
        await asyncio.sleep(0)


def begun(
    client: Client,
    caller: Caller,
    catalog: object = None,
    *,
    expects: bool = False,
    pace: Any = None,
    standing: Any = None,
) -> tuple[Batches, asyncio.Task[None], Arrival]:
    batches, arrival = Batches(LINES, 1, 1.0, 1.0), Arrival(since=0.0, in_body=True)
    catalog = catalog or SimpleNamespace(current=SimpleNamespace(version=1))
    gateway: Any = SimpleNamespace(batches=batches, catalog=catalog, caller=caller, times=TIMES)
    gateway.for_batch = lambda: gateway
    window = Window(LINES, lambda _size: True)
    batch = Batch(gateway, 1000, client.receive, client.send, window, arrival, standing, pace)
    return batches, asyncio.create_task(batch.run(expects=expects)), arrival


async def test_who_waits_to_be_told_to_send_has_no_more_time_than_others() -> None:
    client = Client()
    client.ended = True
    client.reads.set()
    batches, task, arrival = begun(client, Caller(""), expects=True)
    await settled()
    assert not arrival.held
    batches.stop()
    await task
    assert json.loads(client.answer)["lines"] == 0


async def test_a_line_that_comes_too_fast_waits_and_the_batch_can_end() -> None:
    client, may, asked = Client(), [0, 0, 0], asyncio.Event()
    client.reads.set()

    def take() -> int:
        if not may:
            asked.set()
        return may.pop() if may else 3600

    batches, task, _ = begun(client, Caller(""), pace=SimpleNamespace(take=take))
    await asyncio.wait_for(asked.wait(), PATIENCE)
    await settled()
    assert len(client.answer.splitlines()) == 3
    batches.stop()
    await task
    assert json.loads(client.answer.splitlines()[-1])["lines"] == 3


async def test_a_batch_whose_key_is_revoked_while_a_line_waits_ends() -> None:
    client, good = Client(), [False, True]
    client.reads.set()

    async def is_good() -> bool:
        return good.pop() if good else False

    standing, pace = SimpleNamespace(is_good=is_good), SimpleNamespace(take=lambda: 3600)
    _, task, _ = begun(client, Caller(""), pace=pace, standing=standing)
    await asyncio.wait_for(task, PATIENCE)
    assert json.loads(client.answer)["lines"] == 0


@pytest.mark.parametrize(("ends", "good"), [(-math.inf, True), (None, False)])
async def test_a_batch_that_is_to_land_as_a_whole_is_not_begun_for_a_token_that_has_ended(
    ends: float | None, good: bool
) -> None:
    """It waited for its body, or its turn, meanwhile."""

    async def is_good() -> bool:
        return good

    async def receive() -> Message:
        return {"type": "http.request", "body": b"no line\n"}

    counted: list[object] = []
    caller, batches = Caller("a", ends=ends), Batches(LINES, 1, 1.0, PATIENCE)
    # a gateway that can begin nothing
    gateway: Any = SimpleNamespace(caller=caller, batches=batches, report_if_forbidden=counted.append)
    standing: Any = SimpleNamespace(is_good=is_good)
    with pytest.raises(RequestError) as refused:
        await atomic_answer(gateway, {}, receive, LONGEST, None, standing)
    assert refused.value.problem.type is INVALID_CREDENTIAL
    assert counted == [refused.value.problem]


async def test_no_more_is_read_than_verdicts_are_taken() -> None:
    client = Client()
    batches, task, arrival = begun(client, Caller(""))
    await settled()
    assert client.received <= LINES + 1
    assert arrival.held, "it is not the client who is slow"
    client.ended = True
    client.reads.set()
    await settled()
    assert not arrival.held
    assert client.answer.count(b"\n") == client.received
    batches.stop()
    await task


@pytest.mark.parametrize("why", ["stopping", "token"])
async def test_a_batch_that_is_read_no_more_says_how_far_it_came(why: str) -> None:
    client = Client()
    client.reads.set()
    now = asyncio.get_running_loop().time()
    batches, task, _ = begun(client, Caller("a", ends=now + 0.05 if why == "token" else None))
    await settled()
    client.ended = True
    if why == "stopping":
        batches.stop()
    await task
    *verdicts, last = [json.loads(line) for line in client.answer.splitlines()]
    assert [verdict["number"] for verdict in verdicts] == list(range(1, len(verdicts) + 1))
    assert (last["stopped"], last["lines"]) == (True, len(verdicts))
    assert ("stopping" if why == "stopping" else "token") in last["reason"]


async def test_a_fault_of_the_gateway_is_500_for_its_line_and_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """But those that wait for it: they are not done before it."""
    monkeypatch.setattr(batch_lines, "place_of_claim", lambda _, resource: ConflictKey("tables", "table", resource.key))
    monkeypatch.setattr(batch_lines, "claim_answer", lambda *_: 1 / 0)
    lines = b"".join(b'{"claim": "a/%b", "token": 1}\n' % row for row in (b"b", b"b", b"c"))
    client = Client(lines, most=1)
    client.reads.set()
    batches, task, _ = begun(client, Caller(""))
    await settled()
    batches.stop()
    await task
    *verdicts, last = [json.loads(line) for line in client.answer.splitlines()]
    assert last["lines"] == 3
    assert [(verdict["status"], verdict["body"]["code"]) for verdict in verdicts] == [
        (500, "FP023"),
        (503, "FP047"),
        (500, "FP023"),
    ]


async def test_a_batch_ends_when_too_much_is_to_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_lines, "place_of_claim", lambda _, resource: ConflictKey("tables", "table", resource.key))
    monkeypatch.setattr(batch_lines, "claim_answer", lambda *_: 1 / 0)
    monkeypatch.setattr(running, "MOST_AGAIN", 5)
    client = Client(b"".join(b'{"claim": "a/%d", "token": 1}\n' % row for row in range(100)), most=1)
    client.reads.set()
    _, task, _ = begun(client, Caller(""))
    await task
    *verdicts, last = [json.loads(line) for line in client.answer.splitlines()]
    assert len(verdicts) == last["lines"] <= 6 + LINES
    assert "sent again" in last["reason"]


@pytest.mark.parametrize("units", [{"table", "other"}, {"other"}])
async def test_a_batch_goes_on_over_a_new_picture_unless_a_table_of_lines_to_be_sent_again_is_another(
    monkeypatch: pytest.MonkeyPatch, units: set[str]
) -> None:
    monkeypatch.setattr(batch_lines, "place_of_claim", lambda _, resource: ConflictKey("tables", "table", resource.key))
    monkeypatch.setattr(running, "units_of", lambda _: units)
    client, catalog = (
        Client(b'{"claim": "a/b", "token": 1}\n', most=2),
        SimpleNamespace(current=SimpleNamespace(version=1)),
    )

    def fails(*_: object) -> None:
        catalog.current = SimpleNamespace(version=2)
        raise ZeroDivisionError

    monkeypatch.setattr(batch_lines, "claim_answer", fails)
    client.reads.set()
    batches, task, _ = begun(client, Caller(""), catalog)
    await settled()
    batches.stop()
    await task
    lines = json.loads(client.answer.splitlines()[-1])["lines"]
    assert lines == (2 if "table" in units else 1), "the table was unprotected, or has a scope now"


async def test_a_line_of_blanks_shows_that_the_client_is_there() -> None:
    client = Client(b" \n", most=1)
    batches, task, arrival = begun(client, Caller(""))
    await settled()
    assert arrival.since, "it is not counted since 0.0 any more"
    batches.stop()
    client.reads.set()
    await task
