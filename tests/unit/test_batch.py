"""Batches without a database: how lines are read, their order, rounds, and the rate of requests."""

import asyncio
import dataclasses
import json
import math
import re
import tracemalloc
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.types import Message
from tests.unit.catalog_tables import column, table

from fencepost.server.fence.caller import CALLER, Caller
from fencepost.server.fence.problem_types import INVALID_CREDENTIAL
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.resource import parse_scope
from fencepost.server.fence.token import Token
from fencepost.server.gateway.attempt import ROUNDS, Statements, attempt_alone
from fencepost.server.gateway.gateway import Batches
from fencepost.server.http import batch as running
from fencepost.server.http.batch import MOST_BYTES, Batch, ConflictKey, Line, Order, Turn, Window, atomic_answer
from fencepost.server.http.bodies import read_quickly, taken_apart
from fencepost.server.http.edge import HEADERS, Admission, Needs, RateLimitError, RateLimits, Unverified, read_rate
from fencepost.server.http.guard import Arrival
from fencepost.server.http.problems import RequestError
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.postgres.connection import RowWrite
from fencepost.server.postgres.marks import KeyState
from fencepost.server.postgres.tables import Catalog, Column, ProtectedTable, Table
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
    splitter = running.Splitter(LONGEST)
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
    for raw in (line, line[:at] + put + line[at:]):
        assert isinstance(asyncio.run(running.understand(raw, PICTURE, 1000)), Line | Problem)


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
    pace: Any = None,
    standing: Any = None,
    *,
    expects: bool = False,
) -> tuple[Batches, asyncio.Task[None], Arrival, Window]:
    batches, arrival = Batches(LINES, 1, 1.0, 1.0), Arrival(since=0.0, in_body=True)
    catalog = catalog or SimpleNamespace(current=SimpleNamespace(version=1))
    gateway: Any = SimpleNamespace(batches=batches, catalog=catalog, caller=caller, times=TIMES)
    gateway.for_batch = lambda: gateway
    window = Window(LINES, lambda _size: True, arrival)
    batch = Batch(gateway, 1 << 20, client.receive, client.send, window, arrival, standing, pace)
    return batches, asyncio.create_task(batch.run(expects=expects)), arrival, window


async def test_who_waits_to_be_told_to_send_has_no_more_time_than_others() -> None:
    client = Client()
    client.ended = True
    client.reads.set()
    batches, task, arrival, _ = begun(client, Caller(""), expects=True)
    await settled()
    assert not arrival.held
    batches.stopping.set()
    await task
    assert json.loads(client.answer)["lines"] == 0


async def test_a_line_that_comes_too_fast_waits_and_the_batch_can_end() -> None:
    client, may, asked = Client(), [0, 0, 0], asyncio.Event()
    client.reads.set()

    def take() -> int:
        if not may:
            asked.set()
        return may.pop() if may else 3600

    batches, task, *_ = begun(client, Caller(""), pace=SimpleNamespace(take=take))
    await asyncio.wait_for(asked.wait(), PATIENCE)
    await settled()
    assert len(client.answer.splitlines()) == 3
    batches.stopping.set()
    await task
    assert json.loads(client.answer.splitlines()[-1])["lines"] == 3


async def test_a_batch_whose_key_is_revoked_while_a_line_waits_ends() -> None:
    client, good = Client(), [False, True]
    client.reads.set()

    async def is_good() -> bool:
        return good.pop() if good else False

    standing, pace = SimpleNamespace(is_good=is_good), SimpleNamespace(take=lambda: 3600)
    _, task, *_ = begun(client, Caller(""), pace=pace, standing=standing)
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
    batches, task, arrival, _ = begun(client, Caller(""))
    await settled()
    assert client.received <= LINES + 1
    assert arrival.held, "it is not the client who is slow"
    client.ended = True
    client.reads.set()
    await settled()
    assert not arrival.held
    assert client.answer.count(b"\n") == client.received
    batches.stopping.set()
    await task


@pytest.mark.parametrize("why", ["stopping", "token"])
async def test_a_batch_that_is_read_no_more_says_how_far_it_came(why: str) -> None:
    client = Client()
    client.reads.set()
    now = asyncio.get_running_loop().time()
    batches, task, *_ = begun(client, Caller("a", ends=now + 0.05 if why == "token" else None))
    await settled()
    client.ended = True
    if why == "stopping":
        batches.stopping.set()
    await task
    *verdicts, last = [json.loads(line) for line in client.answer.splitlines()]
    assert [verdict["number"] for verdict in verdicts] == list(range(1, len(verdicts) + 1))
    assert (last["stopped"], last["lines"]) == (True, len(verdicts))
    assert ("stopping" if why == "stopping" else "token") in last["reason"]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(running, "conflict_of_claim", lambda _, found: ConflictKey("tables", "table", found.key))
    failing = Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr(running, "claim_answer", failing)
    return failing


async def verdicts_of(client: Client, catalog: object = None) -> tuple[list[Any], Any]:
    client.reads.set()
    batches, task, *_ = begun(client, Caller(""), catalog)
    await settled()
    batches.stopping.set()
    await task
    lines = [json.loads(line) for line in client.answer.splitlines()]
    return lines[:-1], lines[-1]


async def test_a_fault_of_the_gateway_is_500_for_its_line_and_stops_nobody(fails: Any) -> None:
    """But those that wait for it: they are not done before it."""
    lines = b"".join(b'{"claim": "a/%b", "token": 1}\n' % row for row in (b"b", b"b", b"c"))
    verdicts, last = await verdicts_of(Client(lines, most=1))
    assert (last["lines"], fails.call_count) == (3, 2)
    codes = [(verdict["status"], verdict["body"]["code"]) for verdict in verdicts]
    assert codes == [(500, "FP023"), (503, "FP047"), (500, "FP023")]


@pytest.mark.usefixtures("fails")
async def test_a_batch_ends_when_too_much_is_to_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_AGAIN", 5)
    lines = b"".join(b'{"claim": "a/%d", "token": 1}\n' % row for row in range(100))
    verdicts, last = await verdicts_of(Client(lines, most=1))
    assert len(verdicts) == last["lines"] <= 6 + LINES
    assert "sent again" in last["reason"]


@pytest.mark.parametrize("tables", [{"table", "other"}, {"other"}])
async def test_a_batch_goes_on_over_a_new_picture_unless_a_table_of_lines_to_be_sent_again_is_another(
    monkeypatch: pytest.MonkeyPatch, fails: Any, tables: set[str]
) -> None:
    monkeypatch.setattr(running, "tables_of", lambda _: tables)
    catalog = SimpleNamespace(current=SimpleNamespace(version=1))
    fails.side_effect = lambda *_, **__: setattr(catalog, "current", SimpleNamespace(version=2))
    _, last = await verdicts_of(Client(b'{"claim": "a/b", "token": 1}\n', most=2), catalog)
    assert last["lines"] == (2 if "table" in tables else 1), "the table was unprotected, or has a scope now"


async def test_a_line_of_blanks_shows_that_the_client_is_there() -> None:
    client = Client(b" \n", most=1)
    batches, task, arrival, _ = begun(client, Caller(""))
    await settled()
    assert arrival.since, "it is not counted since 0.0 any more"
    batches.stopping.set()
    client.reads.set()
    await task


# Which lines of a batch wait for which, which are not done because an earlier one is to be sent again, and when there
# is room for a line's verdict.


def named(letter: str) -> tuple[ConflictKey, str | None]:
    """Orders a, b, * (any); items i, j, + (any), which refer to orders; rows of other tables, k and l under one key."""
    table = "orders" if letter in "ab*" else "items" if letter in "ij+" else letter
    key = "key" if letter in "kl" else None
    return ConflictKey("orders" if table == "items" else table, table, None if letter in "*+" else letter), key


async def begun_in_order(order: Order, turns: dict[str, Turn]) -> str:
    """Name the turns that have come."""
    tasks = {name: asyncio.ensure_future(order.come(turn)) for name, turn in turns.items()}
    await settled()
    come = "".join(name for name, task in tasks.items() if task.done())
    for task in tasks.values():
        task.cancel()
    return come


THREE = "aaa 0 01,aba 01 012,a*b 0 01,*ab 0 012,*** 0 01,ab* 01 01,aij 0 012,i*j 0 01,aib 0 01,kml 01 012,*ob 01 012"


@pytest.mark.parametrize("case", THREE.split(","))
async def test_a_line_waits_for_those_of_its_row_and_of_the_phase_before(case: str) -> None:
    """Three lines, which of them begin at once, and which when the first is decided."""
    lines, at_once, then = case.split()
    order = Order()
    turns = {str(number): order.enter(number, *named(line)) for number, line in enumerate(lines)}
    assert await begun_in_order(order, turns) == at_once
    order.leave(turns["0"], again=False)
    assert await begun_in_order(order, turns) == then


async def test_of_lines_that_are_decided_nothing_is_kept() -> None:
    order = Order()
    for number in range(100):
        turn = order.enter(number, ConflictKey("orders", "orders", number), f"key-{number}")
        assert await order.come(turn) is None
        waits = asyncio.ensure_future(order.all_decided())
        await asyncio.sleep(0)
        assert not waits.done(), "a new picture is not looked at before"
        order.leave(turn, again=False)
        await asyncio.wait_for(waits, PATIENCE)
    assert max(len(kept) for kept in vars(order).values()) == 1, "the last phase of the tables"


def protected(oid: int, name: str, *columns: Column, key: str, scope: str | None = None, **changes: Any) -> Table:
    made = table(name, *columns, key=tuple(key.split(",")))
    fence = dataclasses.replace(made.fence, scope=None if scope is None else parse_scope(scope))  # type: ignore[type-var]
    return ProtectedTable(**{**vars(made), "oid": oid, "fence": fence, "shares_transactions": True, **changes})


NUMBER, ACCOUNT = column("id", "int4"), column("account", "int4")
TABLES = (
    protected(1, "orders", NUMBER, column("note"), key="id"),
    protected(2, "codes", column("code", "varchar", max_length=3), key="code"),
    protected(3, "accounts", ACCOUNT, NUMBER, key="account,id", scope="account/{account}"),
    protected(4, "entries", NUMBER, ACCOUNT, key="id", scope="account/{account}"),
    protected(5, "tree", NUMBER, key="id", refers=frozenset({5})),
    protected(6, "traced", NUMBER, key="id", shares_transactions=False),
    protected(7, "children", NUMBER, key="id", refers=frozenset({1})),
)
PICTURE = Catalog(1, {each.name: each for each in TABLES})
CONCERNED = """
1 1 7: PATCH orders/7; PATCH public.orders/7; claim orders/7; claim public.orders/7; POST orders {"id": 7}; POST orders {"id": "7"}
1 1 *: PATCH orders/07; PATCH orders/7,8; PATCH orders?id=eq.7; POST orders {"id": 7.0}; POST orders {"note": "7"}; POST orders?columns=note {"id": 7}; POST orders [{"id": 7}, {"id": 8}]; POST orders {"id": 0}; POST orders {"id": "-0"}
2 2 abc: PATCH codes/abc
2 2 *: PATCH codes/abcd
3 account 7: PATCH accounts/7,1; POST entries {"account": 7}; claim account/7; claim accounts/7,1
3 account *: PATCH entries/1; claim entries/1; claim account/07
5 5 *: PATCH tree/1
6 6 *: PATCH traced/1
1 7 1: PATCH children/1
None None *: PATCH nowhere/1; claim public.nowhere/1
"""  # noqa: E501
CASES = [case.partition(": ")[::2] for case in CONCERNED.strip().splitlines()]


@pytest.mark.parametrize(("concerned", "line"), [(key, line) for key, lines in CASES for line in lines.split("; ")])
async def test_what_a_line_concerns_is_seen_in_the_picture_of_the_tables(concerned: str, line: str) -> None:
    method, path, *body = line.split(" ", 2)
    written: dict[str, Any] = {"method": method, "path": path, "body": json.loads(body[0]) if body else {}}
    raw = json.dumps({"claim": path, "token": 1} if method == "claim" else {**written, "token": 1}).encode()
    found = await running.understand(raw, PICTURE, 1000)
    assert isinstance(found, Line), found
    row = "*" if found.conflict.row is None else ",".join(found.conflict.row)  # type: ignore[arg-type]
    assert f"{found.conflict.group} {found.conflict.table} {row}" == concerned


@pytest.mark.parametrize("case", ["aa behind", "ab", "a* behind", "*b behind", "*i", "+i behind", "kl behind", "km"])
async def test_what_an_earlier_line_concerns_that_is_to_be_sent_again_is_not_done(case: str) -> None:
    (failed, its_key), (later, key), behind = named(case[0]), named(case[1]), case.endswith("behind")
    order = Order()
    first, second = order.enter(1, failed, its_key), order.enter(2, later, key)
    coming = asyncio.ensure_future(order.come(second))
    order.leave(first, again=True)
    assert await coming == (1 if behind else None)
    order.leave(second, again=behind)
    names = {(conflict.table, conflict.row) for conflict in (failed, later)} | {its_key, key} - {None}
    assert len(order.again) == (len(names) if behind else 1 + (its_key is not None)), "of each row and key once"
    assert await order.come(order.enter(3, failed, its_key)) == 1


async def test_a_line_is_begun_when_there_is_room_for_its_verdict_or_it_is_the_first() -> None:
    window = Window(100, lambda _size: True, arrival := Arrival(noted=(noted := Mock())))
    first, *others = [window.enter(10) for _ in range(4)]
    await window.begin(others[0])
    window.decide(others[0], b"x" * (MOST_BYTES - 1000))
    waits = asyncio.ensure_future(window.begin(others[1]))
    await asyncio.sleep(0)
    assert not waits.done(), "another verdict like that would not fit"
    await window.begin(first)
    window.decide(first, b"x")
    ready = await window.next()
    assert ready == [b"x"], "a long one is sent by itself"
    window.sent(ready)
    await asyncio.sleep(0)
    assert not waits.done()
    long = await window.next()
    await asyncio.sleep(0)
    assert (waits.done(), arrival.kept, noted.call_count) == (False, len(long[0]), 1), "it is not sent: it is in memory"
    window.sent(long)
    await waits
    window = Window(100, lambda _size: True, Arrival())
    _, large, other, last = [window.enter(10) for _ in range(4)]
    await window.begin(large)
    await window.begin(other)
    window.decide(large, b"x" * (MOST_BYTES // 5 * 2))
    waits = asyncio.ensure_future(window.begin(last))
    await asyncio.sleep(0)
    assert not waits.done(), "the verdict of the line that is begun may be as large"
    waits.cancel()


async def test_a_batch_goes_on_with_little_where_there_is_no_room_for_more() -> None:
    room: list[int] = []
    window = Window(100, lambda size: bool(room) and room.pop() >= size, Arrival())
    lines = []
    while window.lets_in():
        lines.append(window.enter(running.OF_A_LINE))
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
        lines.append(window.enter(running.OF_A_LINE))
    assert len(lines) == 101


async def test_lines_that_are_decided_behind_a_slow_one_give_their_room_back() -> None:
    window = Window(100, lambda _: False, Arrival())
    lines = [window.enter(running.OF_A_LINE) for _ in range(9)]
    coming = asyncio.ensure_future(window.room())
    for line in lines[1:]:
        await asyncio.wait_for(window.begin(line), PATIENCE)  # its verdict takes less than the line has
        window.decide(line, b"{}")
    await asyncio.wait_for(coming, PATIENCE)


LINES_OF = {
    "short": ("/7", {"note": "x"}),
    "many members": ("/7", {f"column-{number}": number for number in range(400)}),
    "brackets": ("/7", {"note": [[] for _ in range(150)]}),
    "columns": ("/7?select=" + ",".join(f"a{number}:note" for number in range(100)), {}),
    "filters": ("?" + "&".join(f"note=neq.{number}" for number in range(100)), {"note": "x"}),
}


@pytest.mark.parametrize("kind", LINES_OF)
async def test_what_lines_in_hand_take_in_memory_is_what_is_counted(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Within a factor of two: for lines that wait for their turn, and for their verdicts."""
    answers, (path, body) = asyncio.Event(), LINES_OF[kind]
    written = {"method": "PATCH", "path": f"orders{path}", "token": 7, "body": body}
    lines = (json.dumps(written, ensure_ascii=False).encode() + b"\n") * LINES

    async def answered(*_: object) -> Response:
        await answers.wait()
        return Response(b"x" * 10_000)

    monkeypatch.setattr(running, "write_answer", answered)
    tracemalloc.start()
    try:
        _, task, _, window = begun(Client(lines, most=1), Caller(""), SimpleNamespace(current=PICTURE))
        for _ in ("lines", "verdicts"):
            await settled()
            assert 0.5 < tracemalloc.get_traced_memory()[0] / window.bytes < 2
            answers.set()
    finally:
        tracemalloc.stop()
        task.cancel()


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


OPEN: dict[str, Needs] = {"/healthz": "nothing", "/readyz": "more for callers"}


class Asking:
    """Sends requests to an Admission."""

    def __init__(self, rate: str = "", failed: str = "", anonymous: Caller | None = None) -> None:
        self.verifier = Names()
        limits = RateLimits(read_rate("a", rate), read_rate("b", failed))
        self.authenticator = Authenticator([self.verifier], anonymous)
        self.admission = Admission(self.authenticator, limits, lambda _, path: OPEN.get(path, "a caller"))

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
