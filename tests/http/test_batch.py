"""POST /v1/batch: each line its verdict, the order of lines, and clients that hang up."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import httpx
import pytest
from tests.http.conftest import StartGateway
from tests.http.test_edge import Holder
from tests.support.gateways import DemoGateway, demo_gateway
from tests.support.postgres import ReadyMade
from tests.support.use_cases import Sent, batch, patch_line
from tests.support.violations import assert_none

from fencepost.testing.servers.processes import PATIENCE, eventually

GOOD = patch_line("order-123", 9000, note="good")
SHOWN = 1_000_000  # bytes that a line may have here
BAD: list[tuple[object, int, str]] = [
    (b"no JSON\n", 400, "line: it is no JSON object"),
    (b'{"method": "PATCH", \n', 400, "line: not JSON"),
    (b'{"token": NaN}\n', 400, "line: not JSON"),
    (b"[]\n", 400, "line: it is no JSON object"),
    (b"\xef\xbb\xbf{}\n", 400, "line: it begins with a UTF-8 byte order mark (BOM)"),
    (b'{"path": "orders/\xff"}\n', 400, "line: not JSON"),
    (b'{"path": "orders/\0"}\n', 400, "line: not JSON"),
    (b'{"claim": "orders/a", "claim": "orders/b"}\n', 400, "line: 'claim' is given twice"),
    (b'{"method": "PATCH", "path": "orders/a", "token": 9, "body": {"note": 1, "note": 2}}\n', 400, "body: 'note' is"),
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


@pytest.fixture(scope="module")
def shared(databases: ReadyMade) -> Iterator[DemoGateway]:
    """Give a gateway that takes short lines only, and whose places and waiting requests are few."""
    with demo_gateway(databases, max_body_bytes=SHOWN, batch_lines=64, max_waiting=2) as gateway:
        yield gateway


async def test_a_bad_line_gets_its_verdict_by_number_and_stops_nobody(gateway_url: str) -> None:
    lines: list[object] = []
    for number, (line, _, _) in enumerate(BAD):
        lines += [line, patch_line("order-123", 1000 + number, note=str(number))]
    verdicts = await batch(gateway_url, lines)
    assert [verdict["number"] for verdict in verdicts] == list(range(1, len(lines) + 1))
    assert [verdict["status"] for verdict in verdicts[1::2]] == [200] * len(BAD)
    for (line, status, detail), verdict in zip(BAD, verdicts[::2], strict=True):
        assert (verdict["status"], verdict["body"]["status"]) == (status, status), line
        assert verdict["body"]["detail"].startswith(detail), (line, verdict)


async def test_a_verdict_is_the_answer_of_a_request(gateway_url: str) -> None:
    made = {"order_id": "a b", "status": "new", "amount": 1.10}
    once = patch_line("order-123", 1002, 'a "key"', status="paid")
    lines: list[object] = [
        {"method": "POST", "path": "orders?select=order_id", "token": "1001", "body": made},
        b" \t\r\n",
        once,
        {**once, "token": 1003},
        {**once, "token": 1001, "idempotency_key": "another"},
        {"claim": "orders/order-125", "token": 1004},
        {"method": "PATCH", "path": "orders?order_id=eq.order-124", "token": 1005, "body": {"note": "x"}},
        b'{"method": "DELETE", "path": "orders/a%20b", "token": 1006, "prefer": "return=minimal"}',
    ]
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


async def test_a_batch_has_half_of_the_connections(demo_database: str, start_gateway: StartGateway) -> None:
    url = await start_gateway(demo_database, pool_size=2, pool_timeout=10)
    session, observer = await asyncpg.connect(demo_database), await asyncpg.connect(demo_database)
    await session.execute("BEGIN; SELECT FROM orders WHERE order_id <> 'order-125' FOR UPDATE")
    sent = await Sent.open(url)
    await sent.send({"claim": "orders/order-123", "token": 1001}, {"claim": "orders/order-124", "token": 1001})
    await Holder(session, observer).is_waited_for()
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
        claim = {"json": {"resource": "orders/order-125"}, "headers": {"X-Fence-Token": "1001"}}
        assert (await http.post("/v1/claims", **claim)).status_code == 200  # type: ignore[arg-type]
    await session.execute("COMMIT")
    await sent.end()
    assert [verdict["status"] for verdict in await sent.rest()] == [200, 200]
    for connection in (session, observer):
        await connection.close()
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
    session, observer = await asyncpg.connect(shared.dsn), await asyncpg.connect(shared.dsn)
    await session.execute("BEGIN; SELECT FROM orders WHERE order_id = 'order-123' FOR UPDATE")
    lines = [patch_line(f"order-12{3 + each % 3}", 1001 + each, f"key-{each}", note=str(each)) for each in range(60)]
    sent = await Sent.open(gateway_url)
    await sent.send(*lines[:40])
    if end == "half a line":
        await sent.send(json.dumps(lines[40]).encode())  # all but the end of the line

    async def landed(count: int) -> bool:
        return len(await observer.fetch("SELECT FROM fencepost.idempotency")) == count

    await Holder(session, observer).is_waited_for()
    await eventually(lambda: landed(26), what="the lines of other rows are decided")
    if end == "half closed":
        sent.connection.writer.write_eof()
    sent.connection.close()
    await session.execute("COMMIT")
    await eventually(lambda: landed(40), what="the lines that were in hand are decided")
    verdicts = await batch(gateway_url, lines)
    assert [verdict["status"] for verdict in verdicts] == [200] * 60
    assert [bool(verdict.get("replayed")) for verdict in verdicts] == [True] * 40 + [False] * 20
    notes: Any = await observer.fetch("SELECT note FROM orders WHERE order_id < 'order-126' ORDER BY order_id")
    assert [row["note"] for row in notes] == ["57", "58", "59"]
    for connection in (session, observer):
        await connection.close()
