"""POST /v1/batch: each line its verdict, the order of lines, batches that land as a whole, rows that are locked."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.http.conftest import Start
from tests.http.test_edge import Holder
from tests.support.gateways import DemoGateway, demo_gateway
from tests.support.interleave import Connection, blocks_another_session, connection_to, start
from tests.support.postgres import ReadyMade
from tests.support.use_cases import Sent, batch, patch_line
from tests.support.violations import assert_none

from fencepost.testing.servers.processes import PATIENCE, eventually

GOOD = patch_line("order-123", 9000, note="good")
SHOWN = 1_000_000  # bytes that a line may have here


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway that takes short lines only, and whose places and waiting requests are few."""
    with demo_gateway(databases, max_body_bytes=SHOWN, batch_lines=64, max_waiting=2) as gateway:
        yield gateway


async def test_a_bad_line_gets_its_verdict_by_number_and_stops_nobody(gateway_url: str) -> None:
    lines: list[object] = []
    bad: list[tuple[object, int, str]] = [
        (b"no JSON\n", 400, "line: it is no JSON object"),
        (b'{"method": "PATCH", \n', 400, "line: not JSON"),
        (b'{"token": NaN}\n', 400, "line: not JSON"),
        (b"[]\n", 400, "line: it is no JSON object"),
        (b"\xef\xbb\xbf{}\n", 400, "line: it begins with a UTF-8 byte order mark (BOM)"),
        (b'{"path": "orders/\xff"}\n', 400, "line: not JSON"),
        (b'{"path": "orders/\0"}\n', 400, "line: not JSON"),
        (b'{"claim": "orders/a", "claim": "orders/b"}\n', 400, "line: 'claim' is given twice"),
        (
            b'{"method": "PATCH", "path": "orders/a", "token": 9, "body": {"note": 1, "note": 2}}\n',
            400,
            "body: 'note' is",
        ),
        (b"{" + b" " * SHOWN + b"}\n", 413, "The line has more than"),
        (b"[" * 5000 + b"\n", 400, "line: "),
        ({**GOOD, "header": "x"}, 400, "line: 'header' is no member of a line"),
        (b'{"x": 1, "no": JSON}\n', 400, "line: 'x' is no member of a line"),
        ({"claim": "orders/a", "prefer": "x"}, 400, "line: 'prefer' is no member of a claim"),
        ({"path": "orders/a"}, 400, "line: it has no method"),
        ({**GOOD, "path": 7}, 400, "line: path is a string"),
        ({**GOOD, "path": "orders/\ud800"}, 400, "line: path has half of a character"),
        ({**GOOD, "path": "/orders/a"}, 400, "line: path: '/orders/a' begins with a slash"),
        ({**GOOD, "path": "orders/a#b"}, 400, "line: path: '#' is percent-encoded there"),
        ({**GOOD, "path": "orders/a/b"}, 404, "The path is /v1/data/{table}"),
        ({**GOOD, "path": "orders/%zz"}, 400, "path: "),
        ({**GOOD, "path": "orders/a?limit=1"}, 400, "query: limit cannot be used"),
        ({**GOOD, "path": "nowhere/a"}, 404, "There is no table nowhere"),
        ({**GOOD, "method": "GET"}, 405, "method: 'GET' is not for this path"),
        ({**GOOD, "method": "PUT", "path": "orders"}, 405, "method: 'PUT' is not for this path"),
        ({**GOOD, "token": None}, 400, "line: token is a whole number"),
        ({**GOOD, "token": True}, 400, "line: token is a whole number"),
        ({**GOOD, "token": 1.5}, 400, "line: token is a whole number"),
        ({**GOOD, "token": "x"}, 400, "X-Fence-Token: 'x'"),
        ({**GOOD, "token": "35.0"}, 400, "X-Fence-Token: '35.0': a token is a whole number"),
        ({**GOOD, "token": "35.0.x"}, 400, "X-Fence-Token: '35...': a token is a whole number"),
        ({**GOOD, "token": "9" * 20}, 400, f"X-Fence-Token: '{'9' * 20}': a token is at most 9223372036854775807"),
        ({key: value for key, value in GOOD.items() if key != "token"}, 428, ""),
        ({**GOOD, "idempotency_key": ""}, 400, "Idempotency-Key: "),
        ({**GOOD, "idempotency_key": "\u00fc"}, 400, "Idempotency-Key: "),
        ({**GOOD, "prefer": "respond-async"}, 400, "prefer: respond-async means nothing in a batch"),
        ({**GOOD, "prefer": "no-such"}, 400, "Prefer: no-such is not supported"),
        ({**GOOD, "body": None}, 400, "body: null"),
        ({**GOOD, "body": {"note": "\0"}}, 400, ""),
        ({**GOOD, "body": {"no_such": 1}}, 400, ""),
        ({"claim": "orders"}, 400, "claim: "),
        ({"claim": "orders/order-123"}, 428, ""),
    ]
    for number, (line, _, _) in enumerate(bad):
        lines += [line, patch_line("order-123", 1000 + number, note=str(number))]
    verdicts = await batch(gateway_url, lines)
    assert [verdict["number"] for verdict in verdicts] == list(range(1, len(lines) + 1))
    assert [verdict["status"] for verdict in verdicts[1::2]] == [200] * len(bad)
    for (line, status, detail), verdict in zip(bad, verdicts[::2], strict=True):
        assert (verdict["status"], verdict["body"]["status"]) == (status, status), line
        assert verdict["body"]["detail"].startswith(detail), (line, verdict)


async def test_a_verdict_is_the_answer_of_a_request(gateway_url: str) -> None:
    made = {"order_id": "a b", "status": "new", "amount": 1.10}
    once = patch_line("order-123", 1002, 'a "key"', status="paid")
    lines: list[object] = [
        {"method": "POST", "path": "orders?select=order_id", "token": "1001", "body": made}, b" \t\r\n", once,
        {**once, "token": 1003}, {**once, "token": 1001, "idempotency_key": "another"},
        {"claim": "orders/order-125", "token": 1004},
        {"method": "PATCH", "path": "orders?order_id=eq.order-124", "token": 1005, "body": {"note": "x"}},
        b'{"method": "DELETE", "path": "orders/a%20b", "token": 1006, "prefer": "return=minimal"}',
    ]  # fmt: skip
    post, patched, replayed, stale, claimed, filtered, deleted = await batch(gateway_url, lines)
    assert post == {
        "number": 1, "status": 201, "mark": "1001", "location": "/v1/data/orders/a%20b", "body": [{"order_id": "a b"}],
    }  # fmt: skip
    assert patched == {"number": 3, "status": 200, "mark": "1002", "body": {"order_id": "order-123"}}
    assert replayed == {"number": 4, "status": 200, "replayed": True, "body": {"order_id": "order-123"}}
    assert (stale["number"], stale["status"], stale["body"]["code"]) == (5, 409, "FP001")
    assert (claimed["mark"], claimed["body"]["row"]["order_id"]) == ("1004", "order-125")
    assert (filtered["status"], filtered["content_range"], filtered["body"]) == (204, "0-0/*", None)
    assert deleted == {
        "number": 8, "status": 204, "mark": "1006", "preference_applied": "return=minimal", "body": None,
    }  # fmt: skip
    async with httpx.AsyncClient(base_url=gateway_url, trust_env=False) as http:
        request = await http.patch(
            "/v1/data/orders/order-123?select=order_id",
            content=json.dumps(once["body"]),
            headers={"Content-Type": "application/json", "X-Fence-Token": "9", "Idempotency-Key": '"a \\"key\\""'},
        )
    assert request.headers["idempotent-replayed"] == "true", "a line and a request have keys in common"


async def test_lines_are_not_those_that_wait_too_many(gateway_url: str) -> None:
    """Neither in batches, nor alone, nor when a batch is undone and its writes are tried apart."""
    kinds: tuple[tuple[dict[str, object], int], ...] = (
        ({"method": "PATCH", "path": "orders/none", "body": {"note": "x"}}, 404),
        ({"method": "POST", "path": "orders", "body": {"order_id": "no-status"}}, 400),
        ({"claim": "orders/claimed"}, 200),
    )
    for line, status in kinds:
        path = line.get("path", line.get("claim"))
        name = "path" if "path" in line else "claim"
        lines = [{**line, "token": 1001, name: f"{path}{'' if path == 'orders' else each}"} for each in range(60)]
        assert {verdict["status"] for verdict in await batch(gateway_url, lines)} == {status}


async def test_a_verdict_does_not_wait_for_the_next_line_and_a_long_line_is_whole(gateway_url: str) -> None:
    sent = await Sent.open(gateway_url)
    note = "x" * (SHOWN - 200)
    await sent.send({**patch_line("order-123", 1001, note=note), "path": "orders/order-123?select=note"})
    assert ((await sent.next()) or {})["body"] == {"note": note}
    await sent.send({"claim": "orders/order-123", "token": 1002})
    assert ((await sent.next()) or {})["mark"] == "1002"
    await sent.end()
    assert await sent.rest() == []
    sent.connection.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "said"),
    [
        ("GET", "", {}, 405, "POST is"),
        ("POST", "", {"Content-Type": "application/json"}, 415, "a batch is application/x-ndjson"),
        ("POST", "", {"Content-Type": "application/x-ndjson; charset=latin1"}, 415, "a batch is"),
        ("POST", "", {"Content-Encoding": "gzip"}, 415, "Content-Encoding"),
        ("POST", "", {"Accept": "application/json"}, 406, "Accept"),
        ("POST", "", {"X-Fence-Token": "1"}, 400, "X-Fence-Token"),
        ("POST", "", {"Idempotency-Key": "k"}, 400, "Idempotency-Key"),
        ("POST", "", {"Prefer": "return=minimal"}, 400, "Prefer"),
        ("POST", "", {"Content-Profile": "sales"}, 400, "Content-Profile"),
        ("POST", "?limit=1", {}, 400, "limit"),
    ],
)
async def test_what_no_batch_has_is_refused_as_a_whole(
    http: httpx.AsyncClient, method: str, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    given = {"Content-Type": "application/x-ndjson", **headers}
    answer = await http.request(method, f"/v1/batch{path}", content=json.dumps(GOOD), headers=given)
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    assert answer.headers.get("allow") == ("POST" if status == 405 else None)


async def test_a_batch_has_half_of_the_connections(demo_database: str, start_gateway: Start) -> None:
    url = await start_gateway(demo_database, pool_size=2, pool_timeout=10)
    sent = await Sent.open(url)
    async with Holder.of(demo_database, "order_id <> 'order-125'") as holder:
        await sent.send({"claim": "orders/order-123", "token": 1001}, {"claim": "orders/order-124", "token": 1001})
        await holder.is_waited_for()
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            claim = {"json": {"resource": "orders/order-125"}, "headers": {"X-Fence-Token": "1001"}}
            assert (await http.post("/v1/claims", **claim)).status_code == 200  # type: ignore[arg-type]
        await holder.commits()
    await sent.end()
    assert [verdict["status"] for verdict in await sent.rest()] == [200, 200]
    sent.connection.close()


def _mixed(key: str, token: int) -> dict[str, object]:
    """Give a write that other statements than its neighbours' carry: what is not in order overtakes."""
    changes: list[dict[str, object]] = [{"note": "x"}, {"status": "paid"}, {"amount": 1}, {"note": "y", "amount": 2}]
    if token % 7 == 0:
        return {"claim": f"orders/{key}", "token": token}
    return patch_line(key, token, **changes[token % 4])


async def test_the_lines_of_a_resource_take_effect_in_their_order_beside_other_batches(gateway_url: str) -> None:
    batches, rounds = 8, 150
    common = "order-123"
    own = [f"own-{number}" for number in range(batches)]
    made = await batch(
        gateway_url,
        [
            {"method": "POST", "path": "orders", "token": 1001, "body": {"order_id": key, "status": "new"}}
            for key in own
        ],
    )
    assert [verdict["status"] for verdict in made] == [201] * batches, made

    def lines(number: int) -> Iterator[object]:
        for each in range(1, rounds + 1):
            token = 2000 + each * batches + number
            yield _mixed(own[number], token)
            yield _mixed(common, token)

    answers = await asyncio.gather(*(batch(gateway_url, lines(number)) for number in range(batches)))
    overtaken: list[str] = []
    accepted = 0
    for number, verdicts in enumerate(answers):
        assert len(verdicts) == 2 * rounds
        overtaken += [f"own: {verdict}" for verdict in verdicts[::2] if verdict["status"] != 200]
        for verdict in verdicts[1::2]:
            accepted += verdict["status"] == 200
            by = int(verdict["body"].get("current_token") or 0)
            if verdict["status"] != 200 and (by % batches == number or verdict["body"]["code"] != "FP001"):
                overtaken.append(f"by a later line of its own batch: {verdict}")
    assert accepted
    assert_none(overtaken, "lines of a batch overtook earlier ones of their resource")


async def test_lines_of_any_rows_wait_and_are_waited_for(gateway_url: str) -> None:
    key = {"order_id": "order-900"}
    lines: list[object] = []
    for turn in range(30):
        token = 3000 + turn * 10
        lines += [
            {"method": "POST", "path": "orders", "token": token, "body": [{**key, "status": "new", "note": "a"}]},
            patch_line("order-900", token + 1, note="b"),
            {"method": "PATCH", "path": "orders?note=eq.b&order_id=eq.order-900", "token": token + 2,
             "prefer": "max-affected=1,return=representation", "body": {"status": "paid"}},
            {"method": "PUT", "path": "orders/order-900?select=status", "token": token + 3, "body": {"status": "new"}},
            {"method": "DELETE", "path": "orders?status=eq.new&order_id=eq.order-900", "token": token + 4,
             "prefer": "return=representation"},
        ]  # fmt: skip
    verdicts = await batch(gateway_url, lines)
    assert [verdict["status"] for verdict in verdicts] == [201, 200, 200, 200, 200] * 30
    assert all(len(verdict["body"]) == 1 for verdict in verdicts if isinstance(verdict["body"], list))


@pytest.mark.parametrize("end", ["cut", "half a line", "half closed"])
async def test_who_hangs_up_leaves_nothing_half_written_and_learns_by_keys_what_landed(
    gateway_url: str, shared: DemoGateway, end: str
) -> None:
    lines = [patch_line(f"order-12{3 + each % 3}", 1001 + each, f"key-{each}", note=str(each)) for each in range(60)]
    sent = await Sent.open(gateway_url)
    landed = "SELECT count(*) = $1 FROM fencepost.idempotency"
    async with Holder.of(shared.dsn, "order_id = 'order-123'") as holder:
        await sent.send(*lines[:40])
        if end == "half a line":
            await sent.send(json.dumps(lines[40]).encode())  # all but the end of the line
        await holder.is_waited_for()
        await eventually(lambda: holder.observer.fetchval(landed, 26), what="the lines of other rows are decided")
        if end == "half closed":
            sent.connection.writer.write_eof()
        sent.connection.close()
        await holder.commits()
        await eventually(lambda: holder.observer.fetchval(landed, 40), what="the lines in hand are decided")
        verdicts = await batch(gateway_url, lines)
        assert [verdict["status"] for verdict in verdicts] == [200] * 60
        assert [bool(verdict.get("replayed")) for verdict in verdicts] == [True] * 40 + [False] * 20
        notes = await holder.observer.fetch("SELECT note FROM orders WHERE order_id < 'order-126' ORDER BY order_id")
        assert [row["note"] for row in notes] == ["57", "58", "59"]


# A batch that lands as a whole, or not at all: `POST /v1/batch?atomic=true`.

SENT = {"Content-Type": "application/x-ndjson"}
A, B, C = "order-123", "order-124", "order-125"
LAST = {"method": "PATCH", "path": f"orders/{C}?select=note", "token": 2001, "body": {"note": "all"}}
KINDS: list[dict[str, Any]] = [
    patch_line(A, 2001, note="all"),
    {"method": "PUT", "path": f"orders/{B}", "token": 2001, "body": {"status": "paid", "note": "all"}},
    {"claim": "orders/order-900", "token": 2001},
    {"method": "POST", "path": "orders", "token": 2002, "body": [{"order_id": "order-901", "status": "new"}]},
    {"method": "PATCH", "path": "orders?order_id=eq.order-901", "token": 2003, "body": {"note": "all"}},
    {"method": "DELETE", "path": "orders/order-901", "token": 2004},
    LAST,
]
STATE = "SELECT order_id, status, note, last_fence_token FROM orders ORDER BY 1"
MARKS = "SELECT resource, last_fence_token FROM fencepost.marks ORDER BY 1"


@pytest.fixture(scope="module")
def one_connection(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway with one connection: a batch takes no other while it has it."""
    with demo_gateway(databases, pool_size=1, max_answer_bytes=2000, lock_timeout=60) as gateway:
        yield gateway


@pytest.fixture
async def atomic_http(one_connection: DemoGateway) -> AsyncIterator[httpx.AsyncClient]:
    await one_connection.reset()
    async with httpx.AsyncClient(base_url=one_connection.url, timeout=PATIENCE, trust_env=False) as client:
        yield client


async def send(http: httpx.AsyncClient, lines: list[Any], query: str = "atomic=true") -> httpx.Response:
    body = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    return await http.post(f"/v1/batch?{query}", content=body, headers=SENT)


async def kept(dsn: str) -> list[Any]:
    async with connection_to(dsn) as connection:
        return [tuple(row) for sql in (STATE, MARKS) for row in await connection.fetch(sql)]


async def test_all_lines_land(atomic_http: httpx.AsyncClient) -> None:
    answer = await send(atomic_http, ["\n", *KINDS])
    assert answer.status_code == 200
    verdicts = [json.loads(line) for line in answer.text.splitlines()]
    assert [verdict["status"] for verdict in verdicts] == [200, 200, 200, 201, 204, 204, 200]
    assert [verdict["number"] for verdict in verdicts] == list(range(2, 9))
    assert verdicts[-1] == {"number": 8, "status": 200, "mark": "2001", "body": {"note": "all"}}


async def test_a_line_names_the_mark_that_its_row_must_have(atomic_http: httpx.AsyncClient) -> None:
    for token, mark, status, more in (
        (2001, 2001, 200, {}), (2011, "2011", 200, {}), (2021, "*", 200, {}), (2031, "2021", 412, {}),
        (2041, 1.5, 400, {}), (2051, '"2051"', 400, {}), (2061, 2061, 400, {"path": f"orders?order_id=eq.{A}"}),
    ):  # fmt: skip
        second = {**patch_line(A, token + 1, note="b"), "if_match": mark, **more}
        answer = await send(atomic_http, [patch_line(A, token, note="a"), second], "")
        assert [json.loads(verdict)["status"] for verdict in answer.text.splitlines()] == [200, status], answer.text


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        (patch_line(C, 1, note="stale"), 409, "FP001"),
        (patch_line(A, 2001, note="the token of line 1"), 409, "FP002"),
        ({"method": "POST", "path": "orders", "token": 1, "body": {"order_id": B, "status": "new"}}, 409, "FP001"),
        ({"method": "DELETE", "path": f"orders/{C}", "token": 2000}, 409, "FP001"),
        ({"method": "DELETE", "path": f"orders/{C}", "token": 2001}, 409, "FP002"),
        (patch_line("none", 2001, note="x"), 404, "FP006"),
        (patch_line(C, 2002, status="no such state"), 400, "23514"),
        ({"claim": "orders/order-124", "token": 1}, 409, "FP001"),
        ({**LAST, "path": "orders?status=eq.new", "prefer": "max-affected=0"}, 400, "FP016"),
        ({**LAST, "header": 1}, 400, "FP016"),
        (patch_line(C, 2002, amount="no number"), 400, "22P02"),
        ("no JSON\n", 400, "FP016"),
    ],
)
async def test_none_lands_where_one_is_refused(
    atomic_http: httpx.AsyncClient, one_connection: DemoGateway, line: Any, status: int, code: str
) -> None:
    before = await kept(one_connection.dsn)
    answer = await send(atomic_http, [*KINDS, line, patch_line(B, 2009, note="behind it")])
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["line"]) == (status, code, len(KINDS) + 1), problem
    assert problem["detail"].startswith("Line 8: ")
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem.get("column") == ("amount" if code == "22P02" else None)
    assert await kept(one_connection.dsn) == before


async def test_a_line_is_judged_by_its_own_token_and_not_by_that_of_a_filtered_delete_before_it(
    atomic_http: httpx.AsyncClient,
) -> None:
    def deleted(key: str, token: int) -> dict[str, Any]:
        return {"method": "DELETE", "path": f"orders?order_id=eq.{key}", "token": token}

    await send(atomic_http, [{"claim": "orders/order-900", "token": 2055}])
    made = {"method": "POST", "path": "orders", "body": {"order_id": "order-900", "status": "new"}}
    stale = await send(atomic_http, [deleted("none", 2100), {**made, "token": 2040}])
    assert (stale.status_code, stale.json()["code"], stale.json()["line"]) == (409, "FP001", 2)
    again = {"method": "PUT", "path": f"orders/{C}", "token": 2060, "body": {"status": "new"}}
    assert (await send(atomic_http, [deleted(C, 2050), again])).status_code == 200
    assert (await send(atomic_http, [patch_line(C, 2055, note="older than the PUT")])).json()["code"] == "FP001"


@pytest.mark.parametrize(
    "made", [{"method": "PUT", "path": f"orders/{A}"}, {"method": "POST", "path": "orders"}], ids=["PUT", "POST"]
)
async def test_a_row_is_deleted_and_made_anew_by_one_token(
    atomic_http: httpx.AsyncClient, made: dict[str, Any]
) -> None:
    anew = {**made, "token": 2001, "body": {"order_id": A, "status": "new"}}
    answer = await send(atomic_http, [{"method": "DELETE", "path": f"orders/{A}", "token": 2001}, anew])
    assert [json.loads(line)["status"] for line in answer.text.splitlines()] == [204, 201], answer.text
    await send(atomic_http, [{"method": "DELETE", "path": f"orders/{A}", "token": 2002}])
    assert (await send(atomic_http, [{**anew, "token": 2002}])).json()["code"] == "FP002", (
        "another transaction deleted it"
    )


async def test_what_landed_is_not_done_again_under_its_keys(atomic_http: httpx.AsyncClient) -> None:
    lines = [patch_line(key, 2001, f"key of {key}", note="once") for key in (A, B)]
    first, again = await send(atomic_http, lines), await send(atomic_http, lines)
    assert (first.status_code, again.status_code) == (200, 200)
    assert [json.loads(line).get("replayed") for line in again.text.splitlines()] == [True, True]
    assert [json.loads(line).get("replayed") for line in first.text.splitlines()] == [None, None]


@pytest.mark.parametrize(
    ("query", "lines", "status", "said"),
    [
        ("atomic=yes", KINDS, 400, "atomic=yes: it is true or false"),
        ("atomic=true&atomic=true", KINDS, 400, "given once"),
        ("order=id", KINDS, 400, "order: a batch takes atomic only"),
        ("atomic=true", [patch_line(A, 2000 + n, note="x") for n in range(1001)], 413, "more than 1000 lines"),
        (
            "atomic=true",
            [{**LAST, "body": {"note": "x" * 1500}}, {**LAST, "path": f"orders/{A}", "body": {"note": "x" * 1500}}],
            400,
            "Line 2: with it",
        ),
        ("atomic=true", [patch_line(A, 2001, note="x" * 2_000_000)], 413, "The body has more than"),
    ],
)
async def test_what_no_batch_is_that_lands_as_a_whole(
    atomic_http: httpx.AsyncClient, one_connection: DemoGateway, query: str, lines: list[Any], status: int, said: str
) -> None:
    before = await kept(one_connection.dsn)
    answer = await send(atomic_http, lines, query)
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text
    assert await kept(one_connection.dsn) == before


async def test_a_refused_batch_is_counted_as_refused_only(atomic_http: httpx.AsyncClient) -> None:
    async def counted() -> dict[str, str]:
        lines = (await atomic_http.get("/metrics")).text.splitlines()
        return dict(
            line.rsplit(" ", 1) for line in lines if line.startswith(("fencepost_operations_t", "fencepost_rows"))
        )

    before = await counted()
    assert (await send(atomic_http, [patch_line(A, 3001, note="x"), patch_line(B, 1, note="x")])).status_code == 409
    changed = {name: value for name, value in (await counted()).items() if value != before.get(name)}
    assert len(changed) == 1
    assert "FP002" in str(changed)


@asynccontextmanager
async def begun(dsn: str, statement: str) -> AsyncIterator[Connection]:
    """Begin a transaction that lets others find a deadlock."""
    async with connection_to(dsn) as connection:
        await connection.execute(f"SET deadlock_timeout = '1h'; BEGIN; {statement}")
        yield connection


async def test_nobody_sees_half_of_it_and_after_a_deadlock_all_of_it_starts_over(
    atomic_http: httpx.AsyncClient, one_connection: DemoGateway
) -> None:
    """The batch has A and waits for C; another has B and waits for A; then the batch wants B."""
    lines = [patch_line(key, 2001, note="whole") for key in (A, C, B)]
    before = await kept(one_connection.dsn)
    async with (
        begun(one_connection.dsn, f"SELECT FROM orders WHERE order_id = '{C}' FOR UPDATE") as gate,
        begun(one_connection.dsn, f"SELECT FROM orders WHERE order_id = '{B}' FOR UPDATE") as other,
        begun(one_connection.dsn, "COMMIT") as observer,
    ):
        sent = asyncio.create_task(send(atomic_http, lines))
        await blocks_another_session(gate, observer)
        assert await kept(one_connection.dsn) == before
        wants_a = await start(
            observer, other.execute(f"SELECT FROM orders WHERE order_id = '{A}' FOR UPDATE"), other.get_server_pid()
        )
        assert not wants_a.done()
        await gate.execute("COMMIT")
        await wants_a  # the batch gave way
        await blocks_another_session(other, observer)
        assert await kept(one_connection.dsn) == before
        await other.execute("COMMIT")
        answer = await sent
        assert answer.status_code == 200, answer.text
    async with connection_to(one_connection.dsn) as connection:
        written = "SELECT count(*) FROM orders WHERE note = 'whole' AND last_fence_token = 2001"
        assert await connection.fetchval(written) == 3


async def test_nothing_is_written_where_the_connection_breaks_before_the_commit(
    atomic_http: httpx.AsyncClient, one_connection: DemoGateway
) -> None:
    before = await kept(one_connection.dsn)
    async with (
        begun(one_connection.dsn, f"SELECT FROM orders WHERE order_id = '{C}' FOR UPDATE") as gate,
        begun(one_connection.dsn, "COMMIT") as observer,
    ):
        sent = asyncio.create_task(send(atomic_http, [patch_line(A, 2001, note="x"), patch_line(C, 2001, note="x")]))
        await blocks_another_session(gate, observer)
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))"
        assert await observer.fetchval(ended, gate.get_server_pid())
        answer = await sent
        assert (answer.status_code, answer.json()["code"]) == (503, "FP010"), answer.text
        assert "nothing was written" in answer.json()["detail"]
    assert await kept(one_connection.dsn) == before
    assert (await send(atomic_http, [patch_line(A, 2001, note="x")])).status_code == 200


async def test_a_batch_waits_for_others_as_long_as_for_a_connection(demo_database: str, start_gateway: Start) -> None:
    url = await start_gateway(demo_database, pool_size=4, pool_timeout=3, lock_timeout=60)
    async with (
        begun(demo_database, f"SELECT FROM orders WHERE order_id = '{C}' FOR UPDATE") as gate,
        begun(demo_database, "COMMIT") as observer,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http,
    ):
        first = asyncio.create_task(send(http, [patch_line(C, 2001, note="x")]))
        await blocks_another_session(gate, observer)
        second = await send(http, [patch_line(A, 2001, note="x")])
        assert (second.status_code, second.json()["code"]) == (503, "FP010")
        assert "nothing was written" in second.json()["detail"]
        assert (await send(http, [{"claim": f"orders/{A}", "token": 2001}], "atomic=false")).status_code == 200
        await gate.execute("COMMIT")
        assert (await first).status_code == 200


# Lines on rows that are locked: what they keep from other batches, and what becomes of the lines behind them.

FEW = 4
FREE, *LOCKED = [f"row-{number}" for number in range(1 + FEW)]


@pytest.fixture(scope="module")
def few_in_hand(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway whose batches have few lines in hand, and two connections for those that go alone."""
    with demo_gateway(databases, batch_lines=FEW, pool_size=8, lock_timeout=60) as gateway:
        yield gateway


@asynccontextmanager
async def locked(url: str, dsn: str) -> AsyncIterator[Holder]:
    """Make rows, and lock all but one."""
    rows = [
        {"method": "PUT", "path": f"orders/{key}", "token": 1001, "body": {"status": "new"}} for key in [FREE, *LOCKED]
    ]
    assert {verdict["status"] for verdict in await batch(url, rows)} <= {200, 201}
    async with Holder.of(dsn, f"order_id <> '{FREE}'") as holder:
        yield holder


def line(kind: str, key: str, token: int) -> dict[str, object]:
    return patch_line(key, token, note="x") if kind == "write" else {"claim": f"orders/{key}", "token": token}


@pytest.mark.parametrize("kind", ["write", "claim"])
async def test_a_batch_whose_rows_are_locked_does_not_stop_others(few_in_hand: DemoGateway, kind: str) -> None:
    await few_in_hand.reset()
    gateway_url = few_in_hand.url
    async with locked(gateway_url, few_in_hand.dsn) as holder:
        stuck = await Sent.open(gateway_url)
        await stuck.send(*(line(kind, key, 2001) for key in LOCKED))
        await stuck.end()
        await holder.is_waited_for()
        verdicts = await batch(gateway_url, [line("write", FREE, 2001), line("claim", FREE, 2002)] * 3)
        assert [verdict["status"] for verdict in verdicts[:2]] == [200, 200]
        stuck.connection.writer.write_eof()  # who closes this half reads on
        await holder.commits()
        assert [verdict["status"] for verdict in await stuck.rest()] == [200] * FEW
    stuck.connection.close()


async def test_what_waits_behind_a_line_that_is_to_be_sent_again_is_not_done(
    demo_database: str, start_gateway: Start
) -> None:
    """Under the rule `epoch` both would be accepted when they are sent again, and the older one would win."""
    url = await start_gateway(demo_database, lock_timeout=1)
    async with locked(url, demo_database) as holder:
        lines = [
            patch_line(LOCKED[0], 2001, note="first"), patch_line(FREE, 2001, note="another row"),
            patch_line(LOCKED[0], 2002, note="second"), line("claim", LOCKED[0], 2003),
            {"method": "PATCH", "path": f"orders?order_id=eq.{FREE}", "token": 2004, "body": {"note": "maybe any row"}},
            patch_line(FREE, 2005, note="behind that"),
        ]  # fmt: skip
        busy, *verdicts = await batch(url, lines)
        assert (busy["status"], busy["body"]["code"]) == (503, "55P03")
        assert [verdict["status"] for verdict in verdicts] == [200, 503, 503, 503, 503]
        behind = [verdict["body"] for verdict in verdicts if verdict["status"] == 503]
        assert {problem["code"] for problem in behind} == {"FP047"}
        assert [problem["hint"].split()[2] for problem in behind] == ["1", "1", "1", "5"]
        await holder.commits()
        again = await batch(url, [lines[0], *lines[2:]])
        assert [verdict["status"] for verdict in again] == [200, 200, 200, 204, 200]


async def test_a_look_at_the_tables_is_none_of_those_that_wait(demo_database: str, start_gateway: Start) -> None:
    limits = {"pool_size": 1, "max_waiting": 3, "pool_timeout": 60, "lock_timeout": 60}
    url = await start_gateway(demo_database, **limits, consume_here=False)  # its consumer would wait, too
    async with (
        locked(url, demo_database) as holder,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http,
    ):
        headers = {"X-Fence-Token": "2001"}
        paths = [f"/v1/data/orders?order_id=eq.{key}" for key in LOCKED]  # which may be many rows, and so go alone
        writes = [asyncio.create_task(http.patch(path, json={"note": "x"}, headers=headers)) for path in paths]
        (refused,), others = await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
        assert (await refused).status_code == 503, "one has the connection, and as many wait for it as may"
        sent = await Sent.open(url)
        await sent.send({"method": "PATCH", "path": "nowhere/a", "token": 1, "body": {"a": 1}})
        await sent.end()
        await holder.commits()
        assert [verdict["status"] for verdict in await sent.rest()] == [404]
        assert [(await write).status_code for write in others] == [204] * 3
    sent.connection.close()
