"""Batches without a database: how lines are read, their order, rounds, and the rate of requests."""

import asyncio
import contextlib
import json
import math
import re
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.types import Message
from tests.unit.catalog_tables import column, table

from fencepost.server.fence.caller import CALLER, Caller
from fencepost.server.fence.problem_types import INVALID_CREDENTIAL
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.token import Token
from fencepost.server.gateway.attempt import ROUNDS, Statements, attempt_alone
from fencepost.server.gateway.gateway import Batches
from fencepost.server.gateway.write import ConflictKey, is_spelled_so, place_of
from fencepost.server.http import batch as running
from fencepost.server.http import batch_lines
from fencepost.server.http.batch import MOST_BYTES, Batch, Behind, Order, Turn, Window, atomic_answer
from fencepost.server.http.batch_lines import Splitter, read_line, read_quickly, taken_apart
from fencepost.server.http.edge import HEADERS, Admission, RateLimitError, RateLimits, Unverified, read_rate
from fencepost.server.http.guard import Arrival
from fencepost.server.http.problems import RequestError
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.postgres.marks import KeyState
from fencepost.server.postgres.row_sql import RowWrite
from fencepost.server.times import TIMES
from fencepost.testing.servers.processes import PATIENCE

# How a batch is read: its lines, however they are cut; no more of them than verdicts are taken; and where it ends.


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


# Which lines of a batch wait for which, which are not done because an earlier one is to be sent again, and when there
# is room for a line's verdict.


ORDER_1, ORDER_2, ORDERS = (ConflictKey("orders", "orders", row) for row in ("1", "2", None))
ITEM, ITEMS = ConflictKey("orders", "items", "1"), ConflictKey("orders", "items", None)


async def begun_in_order(turns: dict[str, Turn]) -> str:
    """Name the turns that have come."""
    tasks = {name: asyncio.ensure_future(turn.come()) for name, turn in turns.items()}
    for _ in range(10):
        await asyncio.sleep(0)
    come = "".join(name for name, task in tasks.items() if task.done())
    for task in tasks.values():
        task.cancel()
    return come


async def test_lines_under_one_key_wait_for_each_other_whatever_they_concern() -> None:
    order = Order()
    lines = (
        (ConflictKey("a", "a", "1"), "key"),
        (ConflictKey("b", "b", "1"), "key"),
        (ConflictKey("c", "c", "1"), "other"),
    )
    turns = {str(number): order.enter(number, *line) for number, line in enumerate(lines)}
    assert await begun_in_order(turns) == "02"
    turns["0"].decided(again=False)
    assert await begun_in_order(turns) == "012"


def test_a_table_that_is_not_known_has_one_place_whatever_it_is_called() -> None:
    catalog: Any = SimpleNamespace(find=lambda _: None)
    one, other = (place_of(catalog, SimpleNamespace(table=name)) for name in ("t", "public.t"))  # type: ignore[arg-type]
    assert one == other


@pytest.mark.parametrize(
    ("text", "spelled"), [("-0", False), ("0", False), ("7", True), ('"-0"', True), ("1.0", False)]
)
def test_whose_text_python_does_not_know_is_asked_of_postgresql(text: str, spelled: bool) -> None:
    assert is_spelled_so(orjson.loads(text)) is spelled


@pytest.mark.parametrize(
    ("failed", "later", "behind"),
    [
        (ORDER_1, ORDER_1, True),
        (ORDER_1, ORDER_2, False),
        (ORDER_1, ORDERS, True),
        (ORDERS, ORDER_2, True),
        (ORDERS, ITEM, False),
        (ITEMS, ITEM, True),
    ],
)
async def test_what_an_earlier_line_concerns_that_is_to_be_sent_again_is_not_done(
    failed: ConflictKey, later: ConflictKey, behind: bool
) -> None:
    order = Order()
    first, second = order.enter(1, failed, None), order.enter(2, later, None)
    coming = asyncio.ensure_future(second.come())
    first.decided(again=True)
    if behind:
        with pytest.raises(Behind) as raised:
            await coming
        assert raised.value.number == 1
    else:
        await coming
    second.decided(again=behind)
    assert order.again == (2 if behind and later.row != failed.row else 1), "of each row once"


async def test_a_key_of_a_line_that_is_to_be_sent_again_is_not_used_by_a_later_one() -> None:
    order = Order()
    order.enter(1, ORDER_1, "key").decided(again=True)
    order.enter(2, ORDER_1, "key").decided(again=True)
    with pytest.raises(Behind, match="1"):
        await order.enter(3, ITEM, "key").come()


async def test_a_line_is_begun_when_there_is_room_for_its_verdict_or_it_is_the_first() -> None:
    window = Window(100, lambda _size: True)
    first, *others = [window.enter(10) for _ in range(4)]
    assert await window.begin(others[0])
    window.decide(others[0], b"x" * (MOST_BYTES - 1000), begun=True)
    waits = asyncio.ensure_future(window.begin(others[1]))
    await asyncio.sleep(0)
    assert not waits.done(), "another verdict like that would not fit"
    assert await window.begin(first)
    window.decide(first, b"x", begun=True)
    assert [len(entry.verdict or b"") for entry in await window.next()] == [1], "a long one is sent by itself"
    window.sent([first])
    await asyncio.sleep(0)
    assert not waits.done()
    window.sent(await window.next())
    assert await waits, "it is the first now"


async def test_a_batch_goes_on_with_little_where_there_is_no_room_for_more() -> None:
    room: list[int] = []
    window = Window(100, lambda size: bool(room) and room.pop() >= size)
    lines = []
    while window.lets_in():
        lines.append(window.enter(4000))
    assert len(lines) == 9, "with what a line takes in memory beside its own"
    coming = asyncio.ensure_future(window.room())
    await asyncio.sleep(0)
    assert not coming.done()
    assert not window.widens(), "a line that is long by itself is not taken now"
    window.decide(lines[0], b"{}")
    window.sent(await window.next())
    await coming
    room.append(MOST_BYTES)
    while window.lets_in():
        lines.append(window.enter(4000))
    assert len(lines) == 101


# R5's loop, where it ends.


async def test_a_row_that_nothing_refuses_and_no_statement_reaches_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    class Nowhere:
        def __init__(self, name: str) -> None:
            self.name = name

        async def run(self, _session: object, writes: Sequence[RowWrite]) -> list[None]:
            tried.append(self.name)
            return [None for _ in writes]

    async def ask(*_: object) -> list[KeyState]:
        return [KeyState("orders/k", live=1, without_row=None)]

    monkeypatch.setattr("fencepost.server.postgres.marks.ask", ask)
    orders: Any = table("orders", column("order_id"), key=("order_id",))
    first, careful, session = Nowhere("first"), Nowhere("careful"), SimpleNamespace(is_in_transaction=lambda: False)
    statements: Any = partial(Statements, orders, "block")
    answer = await attempt_alone(session, statements(first, careful), RowWrite(("k",), Token(5)))  # type: ignore[arg-type]
    assert isinstance(answer, Problem)
    assert (answer.name, answer.resource, answer.retry_after) == ("FP010", "orders/k", 1)
    assert tried == ["first", *["careful"] * (ROUNDS - 1)]


# Rate limits: what is counted for whom, and what answers show.


class Names:
    """Takes a name for a credential, unless it begins with a minus. It stands for no kind of credential that ships."""

    def __init__(self) -> None:
        self.verified: list[str] = []

    def takes(self, _credential: str) -> bool:
        return True

    async def verify(self, credential: str) -> Caller | Problem:
        self.verified.append(credential)
        return Problem(INVALID_CREDENTIAL, "no") if credential.startswith("-") else Caller(credential)


class Asking:
    """Sends requests to an Admission."""

    def __init__(self, rate: str = "", failed: str = "", anonymous: Caller | None = None) -> None:
        self.verifier = Names()
        limits = RateLimits(read_rate("a", rate), read_rate("b", failed))
        self.authenticator = Authenticator([self.verifier], anonymous)
        self.admission = Admission(self.authenticator, limits)

    async def ask(
        self, name: str | None, address: str = "10.0.0.1", path: str = "/v1/data/orders", method: str = "GET"
    ) -> tuple[str | None, dict[bytes, bytes]]:
        """Give the code of the refusal, if any, and the fields of the answer."""
        scope: dict[str, Any] = {"method": method, "path": path, "client": (address, 1)}
        problem = self.admission.admit(scope, [] if name is None else [f"Bearer {name}".encode()])
        if isinstance(problem, Unverified):
            problem = await problem.verify()
        assert problem is not None or isinstance(scope[CALLER], Caller)
        return None if problem is None else problem.name, dict(scope.get(HEADERS, ()))


async def test_a_caller_is_refused_what_is_too_much_and_others_are_not() -> None:
    asking = Asking("3/minute")
    assert [(await asking.ask("ann"))[0] for _ in range(4)] == [None, None, None, "FP046"]
    assert (await asking.ask("bob"))[0] is None
    without = Asking(" ")
    assert {(await without.ask("ann"))[0] for _ in range(50)} == {None}
    assert (await without.ask("ann"))[1] == {}


def test_lines_of_a_batch_count_as_requests_of_their_caller() -> None:
    limits = RateLimits(read_rate("a", "4/minute"))
    ann, bob = limits.pace(Caller("ann"), None), limits.pace(Caller("bob"), None)
    assert ann is not None
    assert bob is not None
    assert limits.take(Caller("ann"), None)[0] is None
    assert [ann.take() > 0 for _ in range(4)] == [False, False, False, True]
    assert limits.take(Caller("bob"), None)[0] is None, "the batch itself"
    too_many, fits, full = bob.refusal(4), bob.refusal(3), bob.refusal(1)
    assert (too_many and too_many.name, fits, full and full.name) == ("FP017", None, "FP046")
    assert RateLimits().pace(Caller("ann"), None) is None


async def test_answers_show_what_is_left() -> None:
    asking = Asking("3/minute")
    shown = [(await asking.ask("ann"))[1] for _ in range(4)]
    assert {fields[b"ratelimit-policy"] for fields in shown} == {b'"caller";q=3;w=60'}
    found = [re.fullmatch(rb'"caller";r=(\d+);t=(\d+)', fields[b"ratelimit"]) for fields in shown]
    assert [each and int(each[1]) for each in found] == [2, 1, 0, 0]
    assert all(each and 0 < int(each[2]) <= 60 for each in found)


async def test_a_holder_that_writes_too_much_keeps_its_leases() -> None:
    asking = Asking("2/minute")
    assert [(await asking.ask("ann"))[0] for _ in range(3)] == [None, None, "FP046"]
    renewed = [await asking.ask("ann", path="/v1/leases/7/renew", method="POST") for _ in range(2)]
    assert [code for code, _ in renewed] == [None, None]
    assert renewed[0][1][b"ratelimit-policy"] == b'"lease";q=2;w=60'
    assert (await asking.ask("ann", path="/v1/leases/7", method="DELETE"))[0] == "FP046", "they have a limit as well"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/v1/leases"), ("GET", "/v1/leases/7"), ("POST", "/v1/leases/7/tokens")]
)
async def test_other_requests_for_leases_count_as_all_do(method: str, path: str) -> None:
    asking = Asking("1/minute")
    assert (await asking.ask("ann"))[0] is None
    assert (await asking.ask("ann", path=path, method=method))[0] == "FP046"


async def test_an_anonymous_caller_is_counted_by_its_address() -> None:
    asking = Asking("2/minute", anonymous=Caller("anonymous"))
    assert [(await asking.ask(None))[0] for _ in range(3)] == [None, None, "FP046"]
    assert (await asking.ask(None, "10.0.0.2"))[0] is None
    assert (await asking.ask("ann"))[0] is None, "a caller that has a name, from the same address"


async def test_an_address_that_has_no_good_token_is_looked_at_no_more() -> None:
    asking = Asking(failed="2/minute")
    assert (await asking.ask("ann"))[0] is None
    assert [(await asking.ask(f"-{number}"))[0] for number in range(4)] == ["FP037", "FP037", "FP046", "FP046"]
    assert asking.verifier.verified == ["ann", "-0", "-1"], "what comes after is not verified"
    assert (await asking.ask("ann"))[0] is None, "a known caller at that address"
    assert (await asking.ask("bob", "10.0.0.2"))[0] is None, "another address"


async def test_a_token_that_was_good_before_is_looked_at_also_at_an_address_that_fails() -> None:
    """Else a program at the same address, with bad tokens, would keep others from renewing their leases."""
    asking = Asking(failed="2/minute")
    assert (await asking.ask("ann"))[0] is None
    for number in range(4):
        await asking.ask(f"-{number}")
    asking.authenticator.forget()
    assert (await asking.ask("ann"))[0] is None
    assert asking.verifier.verified[-1] == "ann", "it is verified anew"
    assert (await asking.ask("bob"))[0] == "FP046", "one that was never seen there"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_of_health_count_for_no_caller(path: str) -> None:
    asking = Asking("2/minute", anonymous=Caller("anonymous"))
    assert {(await asking.ask(None, path=path))[0] for _ in range(5)} == {None}
    assert (await asking.ask(None))[0] is None


@pytest.mark.parametrize("text", ["x", "10", "-1/second", "0/second", "10/fortnight", "1/second; rm"])
def test_what_is_no_rate_is_named(text: str) -> None:
    with pytest.raises(RateLimitError, match=r"^rate limit: "):
        read_rate("rate limit", text)
