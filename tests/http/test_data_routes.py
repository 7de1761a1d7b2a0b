"""/v1/data over real HTTP: rows by key and by filter, tokens, errors, request ids, health and metrics."""

import asyncio
import re
from typing import Any
from urllib.parse import quote
from uuid import uuid1, uuid4

import httpx
import pytest
from tests.http.conftest import Start
from tests.http.raw import RawConnection
from tests.support.asking import Api, code
from tests.support.gateways import in_process
from tests.support.interleave import Connect, holding
from tests.support.postgres import database_away
from tests.support.shops import Shop

from fencepost.server.fence.token import HIGHEST_TOKEN
from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.http import data
from fencepost.server.http.bodies import MOST_BODIES
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.protect import protect
from fencepost.server.ops.schema import newest
from fencepost.server.postgres.pool import most_of
from fencepost.testing.servers.processes import PATIENCE, eventually

# /v1/data/{table}: many rows, over real HTTP (R10).

ONE_OBJECT = {"Accept": "application/vnd.pgrst.object+json"}


async def some_orders(shop: Shop, marks: list[int]) -> tuple[str, list[str]]:
    """Insert orders that share a code of their own: (a filter for them, their keys)."""
    sku = shop.key()
    keys = [await shop.order(mark, sku=f"{sku}/{number}") for number, mark in enumerate(marks)]
    return f"sku=like.{sku}/*", keys


async def test_rows_come_as_an_array_with_their_range(api: Api, shop: Shop) -> None:
    some, keys = await some_orders(shop, [1, 2, 3])
    answer = await api.ask("GET", f"data/orders?{some}&order=sku&select=order_id")
    assert (answer.status_code, answer.headers["content-range"]) == (200, "0-2/*")
    assert answer.json() == [{"order_id": key} for key in keys]
    assert "x-fence-mark" not in answer.headers
    page = await api.ask("GET", f"data/orders?{some}&order=sku&limit=1&offset=1")
    assert (page.status_code, page.headers["content-range"]) == (200, "1-1/*")
    assert [row["order_id"] for row in page.json()] == [keys[1]]
    none = await api.ask("GET", "data/orders?order_id=eq.nobody")
    assert (none.status_code, none.headers["content-range"], none.json()) == (200, "*/*", [])


async def test_one_object_is_given_where_it_is_asked_for(api: Api, shop: Shop) -> None:
    some, keys = await some_orders(shop, [1, 1])
    answer = await api.ask("GET", f"data/orders?order_id=eq.{keys[0]}", headers=ONE_OBJECT)
    assert answer.headers["content-type"] == "application/vnd.pgrst.object+json"
    assert answer.json()["order_id"] == keys[0]
    assert code(await api.ask("GET", f"data/orders?{some}", headers=ONE_OBJECT)) == (406, "FP021")
    assert code(await api.ask("GET", "data/orders?order_id=eq.nobody", headers=ONE_OBJECT)) == (406, "FP021")


async def test_post_one_object(api: Api, shop: Shop) -> None:
    key = shop.key()
    answer = await api.ask("POST", "data/orders", {"order_id": key, "status": "paid"}, token=5)
    assert (answer.status_code, answer.headers["x-fence-mark"]) == (201, "5")
    assert answer.headers["location"] == f"/v1/data/orders/{key}"
    assert [(row["order_id"], row["status"]) for row in answer.json()] == [(key, "paid")]
    assert (await api.ask("GET", answer.headers["location"].removeprefix("/v1/"))).json() == answer.json()[0]
    single = await api.ask("POST", "data/orders", {"order_id": shop.key()}, token=5, headers=ONE_OBJECT)
    assert (single.status_code, single.headers["content-type"]) == (201, ONE_OBJECT["Accept"])
    assert isinstance(single.json(), dict)


async def test_post_an_array(api: Api, shop: Shop) -> None:
    keys, old, deleted = [shop.key() for _ in range(3)], await shop.order(mark=40), await shop.order(mark=40)
    assert (await api.ask("DELETE", f"data/orders/{deleted}", token=41)).status_code == 204
    rows = [{"order_id": key} for key in reversed(keys)]
    for newer in (old, deleted):
        stale = await api.ask("POST", "data/orders", [*rows, {"order_id": newer}], token=5)
        assert (code(stale), stale.json()["resource"]) == ((409, "FP001"), f"orders/{newer}")
        assert [await shop.mark(key) for key in keys] == [None] * 3, "and none is inserted"
    answer = await api.ask("POST", "data/orders", rows, token=5)
    assert answer.status_code == 201
    assert [row["order_id"] for row in answer.json()] == list(reversed(keys)), "in the body's order"
    assert "location" not in answer.headers
    assert [await shop.mark(key) for key in keys] == [5, 5, 5]
    empty = await api.ask("POST", "data/orders", [], token=5)
    assert (empty.status_code, empty.json()) == (201, [])


async def test_a_location_leads_to_the_row_whatever_its_key(api: Api) -> None:
    made = {"label": "x"}  # the database makes its key
    for table, row in (
        ("items", {"order_id": "a/b,c", "line": 1}), ("items", {"order_id": "ü\n%?#", "line": 1}),
        ("items", {"order_id": "..", "line": 1}), ("made", made),
    ):  # fmt: skip
        answer = await api.ask("POST", f"data/{table}", row, token=5)
        assert answer.status_code == 201, row
        found = await api.ask("GET", answer.headers["location"].removeprefix("/v1/"))
        assert found.json() == answer.json()[0], row
    for key in ("", ".", ".."):
        answer = await api.ask("POST", "data/orders", {"order_id": key}, token=5)
        assert (answer.status_code, answer.headers.get("location")) == (201, None), "it cannot stand in a path"


async def test_elements_must_have_the_same_keys_unless_columns_names_them(api: Api, shop: Shop) -> None:
    first, second = shop.key(), shop.key()
    rows = [{"order_id": first, "note": 1, "code": "abc"}, {"order_id": second, "quantity": 4}]
    refused = await api.ask("POST", "data/orders", rows, token=5)
    assert code(refused) == (400, "FP016")
    assert "quantity" in refused.json()["detail"]
    assert "?columns=" in refused.json()["hint"]
    answer = await api.ask("POST", "data/orders?columns=order_id,code", rows, token=5)
    assert [(row["code"], row["quantity"]) for row in answer.json()] == [("abc", 1), (None, 1)]


def of(method: str) -> dict[str, object] | None:
    return {"status": "paid"} if method == "PATCH" else None


async def test_a_multi_row_write_writes_every_row_or_none(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "DELETE"):
        some, keys = await some_orders(shop, [1, 36, 2, 30])
        stale = await api.ask(method, f"data/orders?{some}", of(method), token=30)
        assert code(stale) == (409, "FP001"), method
        assert stale.json()["rows"] == [
            {"resource": f"orders/{keys[1]}", "current_token": "36"},
            {"resource": f"orders/{keys[3]}", "current_token": "30"},
        ], method
        assert [await shop.mark(key) for key in keys] == [1, 36, 2, 30], method
        spent = await api.ask(method, f"data/orders?{some}&order_id=neq.{keys[1]}", of(method), token=30)
        assert code(spent) == (409, "FP002"), method
        done = await api.ask(method, f"data/orders?{some}", of(method), token=40)
        assert (done.status_code, done.content, done.headers["content-range"]) == (204, b"", "0-3/*"), method
        assert [await shop.mark(key) for key in keys] == [40 if method == "PATCH" else None] * 4, method


async def test_a_multi_row_write_without_a_filter_is_refused(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1)
    for method in ("PATCH", "DELETE"):
        for query in ("", "?&", "?columns=status", "?limit=1", "?order_id=eq.x&limit=1", "?order_id=eq.x&offset=1"):
            assert code(await api.ask(method, f"data/orders{query}", of(method), token=99)) == (400, "FP016"), query
    assert await shop.mark(key) == 1


async def test_more_rows_than_the_limit_are_not_read_and_refused_whole(api: Api, shop: Shop) -> None:
    some, keys = await some_orders(shop, [1] * 51)
    read = await api.ask("GET", f"data/orders?{some}&limit=1000", prefer="count=exact")
    assert (read.status_code, read.headers["content-range"], len(read.json())) == (206, "0-49/51", 50)
    many = [{"order_id": key} for key in keys]
    for method, path, body in (
        ("PATCH", f"data/orders?{some}", {"status": "paid"}), ("DELETE", f"data/orders?{some}", None),
        ("PATCH", "data/orders", many), ("POST", "data/orders", [{"order_id": shop.key()} for _ in many]),
    ):  # fmt: skip
        assert code(await api.ask(method, path, body, token=5)) == (413, "FP017"), (method, path)
    assert [await shop.mark(key) for key in (keys[0], keys[-1])] == [1, 1]
    assert (await api.ask("PATCH", "data/orders", many[:50], token=4)).headers["content-range"] == "0-49/*"
    assert (await api.ask("POST", "data/orders", [{"order_id": shop.key()} for _ in many[:50]], token=5)).is_success


# /v1/data/{table}/{key}, /v1/claims and /v1/fences: one row at a time, over real HTTP (R7).


async def test_the_mark_is_a_string_when_selected_by_name(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=HIGHEST_TOKEN)
    answer = await api.ask("GET", f"data/orders/{key}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert (answer.headers["x-fence-mark"], "last_fence_token" in answer.json()) == (str(HIGHEST_TOKEN), False)
    answer = await api.ask("GET", f"data/orders/{key}?select=order_id,last_fence_token")
    assert answer.json() == {"order_id": key, "last_fence_token": str(HIGHEST_TOKEN)}
    listed = await api.ask("GET", f"data/orders?order_id=eq.{key}&select=last_fence_token,note:status")
    assert listed.json() == [{"last_fence_token": str(HIGHEST_TOKEN), "note": "new"}]


async def test_a_missing_row_is_404(api: Api) -> None:
    for method in ("GET", "PATCH", "DELETE"):
        answer = await api.ask(
            method, "data/orders/nobody", {} if method == "PATCH" else None, token=None if method == "GET" else 5
        )
        assert code(answer) == (404, "FP006"), method
        assert answer.json()["type"] == "/problems/row-not-found", method


async def test_preferences_of_a_keyed_write(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "PUT", "DELETE"):
        for prefer, status, applied in (
            (None, 204 if method == "DELETE" else 200, None),
            ("return=minimal", 204, "return=minimal"),
            ("return=headers-only", 204, "return=headers-only"),
            ("return=representation", 200, "return=representation"),
            ("max-affected=1", 204 if method == "DELETE" else 200, "max-affected=1"),
        ):
            key = await shop.order(mark=1)
            body = None if method == "DELETE" else {"status": "paid"}
            answer = await api.ask(method, f"data/orders/{key}?select=order_id", body, token=2, prefer=prefer)
            assert (answer.status_code, answer.headers.get("preference-applied")) == (status, applied), prefer
            assert answer.headers["x-fence-mark"] == "2", method
            assert answer.content == b"" if status == 204 else answer.json() == {"order_id": key}, method


async def test_if_match_meets_the_row_that_was_read_or_nothing_is_written(api: Api, shop: Shop) -> None:
    for method, body in (("PATCH", {"note": "new"}), ("PUT", {"note": "new"}), ("DELETE", None)):
        key = await shop.order(mark=10, note="old")
        path, none = f"data/orders/{key}", f"data/orders/{shop.key()}"
        tag = (await api.ask("GET", path)).headers["etag"]
        assert tag == '"10"', method
        for to, asked, token, expected in (
            (path, '"9"', 11, (412, "FP049")), (path, '"9", "11"', 11, (412, "FP049")), (none, tag, 11, (412, "FP049")),
            (none, "*", 11, (412, "FP049")), (path, '"9"', 9, (409, "FP001")), (path, tag, 10, (409, "FP002")),
        ):  # fmt: skip
            answer = await api.ask(method, to, body, token=token, headers={"If-Match": asked})
            assert code(answer) == expected, (method, to, asked)
        assert answer.json()["current_token"] == "10", method
        assert (await api.ask("GET", path)).json()["note"] == "old", method
        assert (await api.ask("GET", none)).status_code == 404, method
        wanted, once = {"If-Match": f'"9", {tag},'}, {"Idempotency-Key": shop.key()}
        for _ in range(2):  # the second one is answered as the first one was, though the row has another mark by now
            answer = await api.ask(method, path, body, token=11, headers=wanted | once)
            assert answer.is_success, (method, answer.text)
        assert method == "DELETE" or (await api.ask("GET", path)).headers["etag"] == '"11"', method
    assert (
        await api.ask("PATCH", f"data/orders/{await shop.order()}", {}, token=11, headers={"If-Match": "*"})
    ).is_success


async def test_if_match_is_refused_where_no_mark_can_be_the_condition(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=10)
    for tag in ("10", 'W/"10"', '"a"', '""', '"10" "10"', '"10", *', f'"{2**63}"', '"01"', ","):
        answer = await api.ask("PATCH", f"data/orders/{key}", {}, token=11, headers={"If-Match": tag})
        assert code(answer) == (400, "FP016"), tag
        assert "If-Match: " in answer.json()["detail"], tag
    for method, path, body in (
        ("PATCH", f"data/orders?order_id=eq.{key}", {}), ("DELETE", f"data/orders?order_id=eq.{key}", None),
        ("POST", "data/orders", {"order_id": shop.key()}), ("POST", "claims", {"resource": f"orders/{key}"}),
        ("GET", f"data/orders/{key}", None), ("PATCH", f"data/leased/{key}", {}),
    ):  # fmt: skip
        answer = await api.ask(method, path, body, token=11, headers={"If-Match": '"10"'})
        assert code(answer) == (400, "FP016"), (method, path)
    queued = {"If-Match": '"10"', "Prefer": "respond-async"}
    assert code(await api.ask("PATCH", f"data/orders/{key}", {}, token=11, headers=queued)) == (400, "FP016")
    assert await shop.mark(key) == 10


async def test_a_reader_that_has_the_row_is_not_sent_it_again(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=10)
    for known, status in (
        ('"10"', 304), ('W/"10"', 304), ('"9", "10"', 304), ("*", 304), ('"9"', 200), ("10", 200), ("", 200),
    ):  # fmt: skip
        answer = await api.ask("GET", f"data/orders/{key}", headers={"If-None-Match": known})
        assert (answer.status_code, answer.headers["etag"]) == (status, '"10"'), known
        assert bool(answer.content) == (status == 200), known
    assert (await api.ask("GET", "data/orders/nobody", headers={"If-None-Match": "*"})).status_code == 404
    for path in ("data/diary/1", "data/orders?limit=1"):
        answer = await api.ask("GET", path, headers={"If-None-Match": "*"})
        assert (answer.status_code, "etag" in answer.headers) == (200, False), path


async def test_stale_and_spent_are_different_answers(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=36)
    for method, body in (("PATCH", {"status": "x"}), ("PUT", {"status": "x"}), ("DELETE", None)):
        stale = await api.ask(method, f"data/orders/{key}", body, token=35)
        assert code(stale) == (409, "FP001"), method
        answered = stale.json()
        assert (answered["type"], answered["resource"]) == ("/problems/stale-token", f"orders/{key}"), method
        assert (answered["presented_token"], answered["current_token"]) == ("35", "36"), method
        spent = await api.ask(method, f"data/orders/{key}", body, token=36)
        assert code(spent) == (409, "FP002"), method
        assert spent.json()["type"] == "/problems/spent-token", method
        assert "mint another" in spent.json()["hint"], method
        assert "--rule epoch" in spent.json()["hint"], method
    assert (await api.ask("GET", f"data/orders/{key}")).json()["status"] == "new"
    assert await shop.mark(key) == 36


async def test_put_creates_and_then_replaces_with_defaults(api: Api, shop: Shop) -> None:
    key = shop.key()
    made = await api.ask("PUT", f"data/orders/{key}", {"status": "paid", "amount": 3.5, "code": "abc"}, token=5)
    assert (made.status_code, made.headers["x-fence-mark"]) == (201, "5")
    assert (made.json()["order_id"], made.json()["quantity"]) == (key, 1)
    number = made.json()["number"]
    replaced = await api.ask("PUT", f"data/orders/{key}", {"quantity": 4}, token=6)
    assert replaced.status_code == 200
    row = replaced.json()
    assert (row["status"], row["amount"], row["code"], row["quantity"]) == ("new", 0, None, 4)
    assert row["number"] == number, "an identity that is always generated stays"
    minimal = await api.ask("PUT", f"data/orders/{shop.key()}", {}, token=5, prefer="return=minimal")
    assert (minimal.status_code, minimal.content) == (201, b"")


async def test_a_body_may_repeat_the_key_in_any_spelling_and_not_contradict_it(api: Api, shop: Shop) -> None:
    key, token = shop.key(), 100
    assert (await api.ask("PUT", f"data/orders/{key}", {"order_id": key}, token=token)).status_code == 201
    for method in ("PUT", "PATCH"):
        answer = await api.ask(method, f"data/orders/{key}", {"order_id": "another"}, token=token + 1)
        assert code(answer) == (400, "FP016"), method
        assert "order_id" in answer.json()["detail"], method
        assert code(await api.ask(method, f"data/orders/{key}", {"order_id": None}, token=token + 1)) == (
            400,
            "FP016",
        ), method
    assert await shop.mark(key) == token


async def test_a_claim_raises_the_mark_and_gives_the_row(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=33)
    before = (await api.ask("GET", f"data/orders/{key}")).json()
    answer = await api.ask("POST", "claims", {"resource": f"orders/{key}"}, token=34)
    assert (answer.status_code, answer.headers["x-fence-mark"]) == (200, "34")
    assert answer.json() == {"resource": f"orders/{key}", "mark": "34", "row": before}
    assert code(await api.ask("PATCH", f"data/orders/{key}", {}, token=33)) == (409, "FP001")
    assert code(await api.ask("PATCH", f"data/orders/{key}", {}, token=34)) == (409, "FP002"), (
        "a claim spends its token"
    )
    assert code(await api.ask("POST", "claims", {"resource": f"orders/{key}"}, token=34)) == (409, "FP002")
    assert code(await api.ask("POST", "claims", {"resource": f"orders/{key}"}, token=33)) == (409, "FP001")
    assert (await api.ask("PATCH", f"data/orders/{key}", {}, token=35)).status_code == 200


async def test_malformed_claims_are_400(api: Api) -> None:
    bodies: list[object] = [
        {}, {"resource": None}, {"resource": "orders"}, {"resource": "orders/x", "ttl": 1}, [], None,
        {"resource": "orders/%"}, {"resource": "items/a"}, {"resource": "orders/\ud800"},
    ]  # fmt: skip
    for body in bodies:
        answer = await api.ask("POST", "claims", body, token=5, headers={"Content-Type": "application/json"})
        assert code(answer) == (400, "FP016"), body
    assert code(await api.ask("POST", "claims", {"resource": "keyless/x"}, token=5)) == (403, "FP005")


async def test_a_fence_shows_mark_rule_source_and_story(api: Api, shop: Shop) -> None:
    key = shop.key()
    never = await api.ask("GET", f"fences?resource=orders/{key}")
    assert never.json() == {
        "resource": f"orders/{key}", "mark": "0", "rule": "strict", "source": "external", "sealed": False,
        "max_token": "4611686018427387903", "max_jump": None, "row_exists": False, "story": [],
    }  # fmt: skip
    await api.ask("PUT", f"data/orders/{key}", {}, token=5)
    made = (await api.ask("GET", f"fences?resource=orders/{key}")).json()
    assert (made["mark"], made["row_exists"], [e["event"] for e in made["story"]]) == ("5", True, ["created"])
    await api.ask("PATCH", f"data/orders/{key}", {}, token=6)
    written = (await api.ask("GET", f"fences?resource=orders/{key}")).json()
    assert [(e["event"], e["token"]) for e in written["story"]] == [("created", "5"), ("last written or claimed", "6")]
    await api.ask("DELETE", f"data/orders/{key}", token=7)
    gone = (await api.ask("GET", f"fences?resource=orders/{key}")).json()
    assert (gone["mark"], gone["row_exists"]) == ("7", False)
    assert (await api.ask("GET", "fences?resource=leased/x")).json()["rule"] == "epoch"


# Over real HTTP: X-Fence-Token, its grammar (R11), and what comes before it; paths that a client would tidy up.


async def test_a_malformed_token_is_400_on_every_write(api: Api, shop: Shop) -> None:
    # The grammar: unit/test_fencing.py.
    malformed = [b"", b"0", b"34, 34", b"\xd9\xa3", b"34\x0b"]
    for token in malformed:
        key = (await shop.order(mark=1)).encode()
        claim = b'{"resource": "orders/%s"}' % key
        for method, path, body in (
            ("PATCH", b"/v1/data/orders/" + key, b"{}"), ("PUT", b"/v1/data/orders/" + key, b"{}"),
            ("DELETE", b"/v1/data/orders/" + key, b""), ("POST", b"/v1/data/orders", b'{"order_id": "new"}'),
            ("PATCH", b"/v1/data/orders?order_id=eq." + key, b"{}"),
            ("DELETE", b"/v1/data/orders?order_id=eq." + key, b""), ("POST", b"/v1/claims", claim),
        ):  # fmt: skip
            answer = await api.raw(method, path, body, headers=[(b"X-Fence-Token", token)])
            if "the parser stopped in it" in answer.json()["detail"]:
                assert (answer.status, answer.json()["code"]) == (400, "FP016"), token
                continue
            assert (answer.status, answer.json()["code"]) == (400, "FP004"), (method, answer.body)
            assert answer.json()["type"] == "/problems/malformed-token", method
        assert await shop.mark(key.decode()) == 1, token
    metrics = (await api.http.get("/metrics")).text
    for table, verb in (*(("orders", verb) for verb in ("patch", "put", "delete", "post")), ("", "claim")):
        counted = f'fencepost_operations_total{{table="{table}",verb="{verb}",verdict="FP004"}} '
        assert counted in metrics, "and logged, as each refusal is"


async def test_a_uuid_is_no_token_and_the_hint_says_where_numbers_come_from(api: Api) -> None:
    for token, hinted in ((uuid1().hex, True), (str(uuid4()), True), ("x" * 32, False)):
        answer = await api.raw("PATCH", b"/v1/data/orders/x", b"{}", headers=[(b"X-Fence-Token", token.encode())])
        assert (answer.status, answer.json()["code"]) == (400, "FP004")
        assert ("docs/getting-started.md" in (answer.json()["hint"] or "")) == hinted, token


async def test_two_token_headers_are_one_too_many(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1)
    for headers in ([(b"X-Fence-Token", b"34")] * 2, [(b"x-fence-token", b"34"), (b"X-FENCE-TOKEN", b"")]):
        answer = await api.raw("PATCH", b"/v1/data/orders/" + key.encode(), b"{}", headers=headers)
        assert (answer.status, answer.json()["code"]) == (400, "FP004")
    assert await shop.mark(key) == 1


async def test_no_token_is_428_whether_or_not_the_row_exists(api: Api, shop: Shop) -> None:
    key = await shop.order()
    for name in (key, "nobody"):
        for method, path, body in (
            ("PATCH", f"data/orders/{name}", {}), ("PUT", f"data/orders/{name}", {}),
            ("DELETE", f"data/orders/{name}", None), ("POST", "data/orders", {"order_id": name}),
            ("PATCH", "data/orders", [{"order_id": name}]), ("PATCH", f"data/orders?order_id=eq.{name}", {}),
            ("DELETE", f"data/orders?order_id=eq.{name}", None), ("POST", "claims", {"resource": f"orders/{name}"}),
        ):  # fmt: skip
            answer = await api.ask(method, path, body)
            assert code(answer) == (428, "FP003"), (method, path)
            assert answer.json()["type"] == "/problems/token-required", (method, path)
    assert await shop.mark(key) == 10
    assert await shop.mark("nobody") is None


async def test_403_404_and_400_come_before_428_and_409(api: Api, shop: Shop) -> None:
    unreadable = [
        ("PATCH", "data/nowhere/1", b"{}", (404, "FP007")),
        ("POST", "claims", b'{"resource": "nowhere/1"}', (404, "FP007")),
        ("PATCH", "data/diary/1", b"{}", (403, "FP005")),
        ("PATCH", "data/diary?id=eq.1", b"{}", (403, "FP005")),
        ("POST", "claims", b'{"resource": "diary/1"}', (403, "FP005")),
        ("PATCH", "data/paid_orders/1", b"{}", (403, "FP005")),
        ("PATCH", "data/regions_eu/eu,1", b"{}", (404, "FP007")),
        ("PATCH", "data/orders/{key}", b"{", (400, "FP016")),
        ("PATCH", "data/orders/{key}", b"[]", (400, "FP016")),
        ("PATCH", "data/orders/{key}", b'{"no such": 1}', (400, "FP016")),
        ("PATCH", "data/orders/{key}", b'{"last_fence_token": 99}', (400, "FP016")),
        ("POST", "data/orders", b'{"order_id": "x", "last_fence_token": "99"}', (400, "FP016")),
        ("POST", "data/orders", b'[{"order_id": "x"}, 1]', (400, "FP016")),
        ("PATCH", "data/orders", b'[{"order_id": "x", "last_fence_token": "99"}]', (400, "FP016")),
        ("PATCH", "data/orders", b'[{"note": "x"}]', (400, "FP016")),
        ("PATCH", "data/orders/{key}?select=nothing", b"{}", (400, "FP016")),
        ("PATCH", "data/orders?nothing=eq.1", b"{}", (400, "FP016")),
        ("PATCH", "data/orders?status=what.1", b"{}", (400, "FP016")),
        ("DELETE", "data/orders", b"", (400, "FP016")),
        ("DELETE", "data/items/a", b"", (400, "FP016")),
        ("POST", "claims", b'{"resource": "items/a"}', (400, "FP016")),
    ]
    for method, path, body, expected in unreadable:
        key = await shop.order(mark=50)
        for token in (None, 3, 99):
            answer = await api.ask(
                method, path.format(key=key), content=body, token=token, headers={"Content-Type": "application/json"}
            )
            assert code(answer) == expected, (token, answer.text)
        assert await shop.mark(key) == 50, (method, path)


TOKEN = (b"X-Fence-Token", b"99")


async def test_what_cannot_be_decoded_is_400(api: Api) -> None:
    for path in (b"%zz", b"%FF", b"a%00b", b"a,b", b".", b"%2e%2E", b""):
        for method in ("GET", "PUT", "DELETE"):
            headers, body = [] if method == "GET" else [TOKEN], b"{}" if method == "PUT" else b""
            answer = await api.raw(method, b"/v1/data/orders/" + path, body, headers=headers)
            assert (answer.status, answer.json()["code"]) == (400, "FP016"), (method, path)


async def test_other_paths_are_no_routes_and_nothing_is_redirected(api: Api, shop: Shop) -> None:
    survivor = await shop.order(mark=1)
    for path in (
        b"/v1/data", b"/v1/data//orders", b"/v1/data/orders//", b"/v1/data/orders/a/", b"/v1/data/orders/a/b",
        b"//v1/data/orders", b"/v1/data/../data/orders", b"/V1/data/orders", b"/v1/dat%61/orders", b"/v1/data%2Forders",
        b"/v1/claims/", b"/healthz/", b"/v1/", b"/v2/data/orders",
    ):  # fmt: skip
        for method in ("GET", "POST", "PATCH", "PUT", "DELETE"):
            answer = await api.raw(method, path + b"?order_id=neq.x", b"{}", headers=[TOKEN])
            assert (answer.status, answer.header("location")) == (404, None), (method, path)
            assert answer.json()["code"] == "FP019", (method, path)
    assert await shop.mark(survivor) == 1


async def test_table_names_may_hold_anything_too(api: Api) -> None:
    name = quote("with/slash, and space", safe="")
    assert (await api.ask("PUT", f"data/{name}/1", {"label": "x"}, token=5)).status_code == 201
    stale = await api.ask("PATCH", f"data/{name}/1", {}, token=4)
    assert (code(stale), stale.json()["resource"]) == ((409, "FP001"), "with%2Fslash%2C and space/1")
    claim = await api.ask("POST", "claims", {"resource": stale.json()["resource"]}, token=6)
    assert (claim.status_code, claim.json()["row"]) == (200, {"id": 1, "label": "x"})
    made = await api.ask("POST", f"data/{name}", {"id": 2}, token=5)
    assert made.headers["location"] == f"/v1/data/{name}/2"


# Errors over real HTTP: PostgreSQL's refusals, bodies, media types, methods and routes.

REFUSED: list[tuple[dict[str, Any], tuple[int, str], dict[str, Any]]] = [
    ({"status": None}, (400, "23502"), {"column": "status", "table": "orders"}),
    ({"status": "bad"}, (400, "23514"), {"constraint": "orders_status_known", "table": "orders"}),
    ({"customer_id": 99}, (409, "23503"), {"constraint": "orders_customer", "table": "orders"}),
    ({"sku": "taken"}, (409, "23505"), {"constraint": "orders_sku_once", "table": "orders"}),
    ({"quantity": "many"}, (400, "22P02"), {"column": "quantity"}),
    ({"amount": 1e9}, (400, "22003"), {"column": "amount"}),
    ({"code": "abcd"}, (400, "22001"), {"column": "code"}),
    ({"paid_at": "yesterdayish"}, (400, "22007"), {"column": "paid_at"}),
    ({"discount": 101}, (400, "23514"), {"constraint": "percent_range", "column": "discount"}),
    ({"note": "a\0b"}, (400, "22P05"), {"column": None}),
]


async def test_what_postgresql_refuses_carries_its_sqlstate_and_names_what(api: Api, shop: Shop) -> None:
    await shop.sql("INSERT INTO public.orders (order_id, sku, last_fence_token) VALUES ('t', 'taken', 1)")
    key = await shop.order(mark=10)
    for body, expected, named in REFUSED:
        for method, path, sent in (
            ("PATCH", f"data/orders/{key}", body), ("PUT", f"data/orders/{shop.key()}", body),
            ("POST", "data/orders", {"order_id": shop.key(), **body}),
            ("PATCH", f"data/orders?order_id=eq.{key}", body), ("PATCH", "data/orders", [{"order_id": key, **body}]),
        ):  # fmt: skip
            answer = await api.ask(method, path, sent, token=11)
            assert code(answer) == expected, (method, path, answer.text)
            answered = answer.json()
            assert {name: answered.get(name) for name in named} == named, (method, path)
            if "sku" in body:
                assert "taken" in answered["details"], "what the request itself has sent is shown"
    assert await shop.mark(key) == 10, "the token is not spent"


async def test_a_refused_row_is_not_shown(api: Api, shop: Shop) -> None:
    """PostgreSQL's "Failing row contains (…)" has all columns, the mark too."""
    mark = 77_700_077
    for body, refused in (({"status": None}, "23502"), ({"status": "bad"}, "23514")):
        key = await shop.order(mark=mark, note="nobody's business")
        for method, path, sent in (
            ("PATCH", f"data/orders/{key}", body),
            ("POST", "data/orders", {"order_id": shop.key(), **body}),
        ):
            answer = await api.ask(method, path, sent, token=mark + 1)
            assert code(answer) == (400, refused), (method, path)
            answered = answer.json()
            assert answered["details"] is None, (method, path)
            assert "status" in answered["detail"], (method, path)
            assert "nobody's business" not in answer.text, (method, path)
            assert str(mark) not in answer.text.replace(str(mark + 1), ""), (method, path)


async def test_generated_columns_cannot_be_written(api: Api, shop: Shop) -> None:
    key = await shop.order()
    for method, path, body in (
        ("PATCH", f"data/orders/{key}", {"twice": 4}),
        ("PUT", f"data/orders/{key}", {"number": 4}),
        ("POST", "data/orders", {"order_id": shop.key(), "number": 4}),
    ):
        assert code(await api.ask(method, path, body, token=11)) == (400, "428C9"), method
    row = (await api.ask("GET", f"data/orders/{key}")).json()
    again = await api.ask("PUT", f"data/orders/{key}?columns=status,quantity", row, token=12)
    assert (again.status_code, again.json()) == (200, row), "?columns= names those that count"


async def test_a_key_that_is_none_of_its_type_is_named(api: Api) -> None:
    for method, path, body, column, expected in (
        ("GET", "data/numbered/abc", None, "id", "22P02"),
        ("PATCH", "data/numbered/99999999999", {}, "id", "22003"),
        ("PUT", "data/tickets/123", {}, "id", "22P02"),
        ("DELETE", "data/items/a,b", None, "line", "22P02"),
        ("POST", "claims", {"resource": "numbered/abc"}, "id", "22P02"),
        ("GET", "fences?resource=tickets/123", None, "id", "22P02"),
    ):
        answer = await api.ask(method, path, body, token=None if method == "GET" else 5)
        assert (code(answer), answer.json()["column"]) == ((400, expected), column), (method, path)


async def test_a_lock_and_a_statement_that_take_too_long_are_503(api: Api, shop: Shop, start_gateway: Start) -> None:
    key = await shop.order(mark=10)
    await shop.sql("CREATE VIEW public.slow AS SELECT 1 AS id, pg_sleep(60)::text AS nap")
    url = await start_gateway(shop.dsn, serve_unprotected=True, lock_timeout=0.3, statement_timeout=1.5)
    locked = "SELECT FROM public.orders WHERE order_id = $1 FOR UPDATE"
    async with holding(shop.dsn, locked, key), Api.open(url) as hurried:
        assert code(await hurried.ask("PATCH", f"data/orders/{key}", {"status": "x"}, token=11)) == (503, "55P03")
        assert code(await hurried.ask("GET", "data/slow")) == (503, "57014")
    assert (await api.ask("PATCH", f"data/orders/{key}", {"status": "x"}, token=11)).status_code == 200


async def test_the_refusal_of_a_tables_own_trigger_is_answered(api: Api, shop: Shop) -> None:
    await shop.sql(
        "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not today' USING HINT = 'tomorrow', DETAIL = 'closed'; END $$"
    )
    await shop.sql("CREATE TRIGGER no BEFORE UPDATE ON public.tickets FOR EACH ROW EXECUTE FUNCTION public.no()")
    ticket = "0190a5c4-7d3e-7c1a-9b55-3f2f6a1c0d42"
    await api.ask("PUT", f"data/tickets/{ticket}", {}, token=1)
    answer = await api.ask("PATCH", f"data/tickets/{ticket}", {"label": "x"}, token=2)
    assert code(answer) == (400, "P0001")
    answered = answer.json()
    assert (answered["message"], answered["hint"], answered["details"]) == ("not today", "tomorrow", "closed")


async def test_a_body_too_large_is_413_announced_or_not(api: Api, shop: Shop) -> None:
    target, token = f"/v1/data/orders/{await shop.order()}".encode(), (b"X-Fence-Token", b"11")
    huge = await api.raw("PATCH", target, headers=[token, (b"Content-Length", b"10001")])
    assert (huge.status, huge.json()["code"]) == (413, "FP017"), "said before the body is sent"
    body = b'{"note": "' + b"x" * 10_000 + b'"}'
    assert (await api.raw("PATCH", target, body, headers=[token])).status == 413
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    chunked = [token, (b"Transfer-Encoding", b"chunked"), (b"Content-Type", b"application/json")]
    assert (await api.raw("PATCH", target, sent, headers=chunked, announce=False)).status == 413
    assert (await api.raw("PATCH", target, b'{"note": "%s"}' % (b"x" * (10_000 - 12)), headers=[token])).status == 200


async def test_media_types_of_bodies(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1)
    path, token = f"data/orders/{key}", 1
    for kind in ("application/vnd.x+json", "APPLICATION/JSON; charset=utf-8"):
        token += 1
        answer = await api.ask("PATCH", path, content=b"{}", token=token, headers={"Content-Type": kind})
        assert answer.status_code == 200, kind
    for kind in ("text/plain", "application/json; charset=iso-8859-1", ""):
        for method, where in (("PATCH", path), ("PUT", path), ("POST", "data/orders"), ("POST", "claims")):
            answer = await api.ask(method, where, content=b"{}", token=99, headers={"Content-Type": kind})
            assert code(answer) == (415, "FP022"), (method, kind)
    assert await shop.mark(key) == token


async def test_rows_are_named_by_a_key_that_there_is_and_keep_it(api: Api) -> None:
    renamed = await api.ask("PATCH", "data/orders?note=eq.x", {"order_id": "y"}, token=9)
    assert (code(renamed), "order_id is the primary key" in renamed.json()["detail"]) == ((400, "FP016"), True)
    keyless = await api.ask("GET", "data/keyless/x")
    assert (code(keyless), "has no primary key: name rows by filters" in keyless.json()["detail"]) == (
        (400, "FP016"), True,
    )  # fmt: skip


async def test_a_body_that_is_no_json_is_400(api: Api, shop: Shop) -> None:
    twice = (b'{"status": "a", "status": "b"}', b'[{"status": "a", "status": "b"}]')
    bodies = (*twice, b"", b"{", b'{"a": NaN}', b'{"a": "\xff"}', b"[" * 5000)
    for path in (f"data/orders/{await shop.order()}", "data/orders", "claims"):
        for body in bodies:
            method = "PATCH" if path.startswith("data/orders/") else "POST"
            answer = await api.ask(method, path, content=body, token=99, headers={"Content-Type": "application/json"})
            assert code(answer) == (400, "FP016"), (path, body)
            assert answer.json()["detail"].startswith("body: "), (path, body)


async def test_other_methods_are_405_with_allow(api: Api) -> None:
    for path, allowed, refused in (
        ("data/orders", "GET, HEAD, POST, PATCH, DELETE", ("PUT", "OPTIONS", "PROPFIND")),
        ("data/orders/x", "GET, HEAD, PATCH, PUT, DELETE", ("POST", "TRACE")), ("claims", "POST", ("GET", "DELETE")),
        ("fences", "GET", ("POST",)), ("leases", "POST", ("GET", "PUT")),
        ("leases/1", "GET, HEAD, DELETE", ("PUT", "POST")), ("leases/1/renew", "POST", ("GET",)),
        ("leases/1/tokens", "POST", ("DELETE",)), ("locks", "GET", ("POST",)),
        ("writes/postgres:default.0.0", "GET", ("DELETE",)),
    ):  # fmt: skip
        for method in refused:
            answer = await api.http.request(method, f"/v1/{path}")
            await api.check(answer)
            assert code(answer) == (405, "FP020"), (method, path)
            assert set(answer.headers["allow"].split(", ")) >= set(allowed.split(", "))


async def test_an_error_of_our_own_is_500_with_the_request_id(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_arguments: object) -> Outcome:
        raise ZeroDivisionError("a secret of the house")

    monkeypatch.setattr(data, "read_one", broken)
    answer = await api.http.get("/v1/data/orders/x", headers={"X-Request-Id": "find-me"})
    problem = await api.check_problem(500, answer.headers, answer.content)
    assert (answer.status_code, problem["code"]) == (500, "FP023")
    assert answer.headers["x-request-id"] == "find-me"
    assert "find-me" in problem["detail"]
    assert "secret" not in answer.text
    assert "ZeroDivision" not in answer.text
    assert answer.headers["cache-control"] == "no-store"
    monkeypatch.undo()
    assert code(await api.ask("GET", "data/orders/x")) == (404, "FP006"), "and the gateway goes on"


# Request ids, health, metrics, and what happens while the database is away.


async def test_a_usable_request_id_is_taken_and_another_replaced(api: Api) -> None:
    for path in (b"/healthz", b"/v1/data/nowhere", b"/nowhere"):
        for given in (b"x" * 128, b"a/b:c=d"):
            answer = await api.raw("GET", path, headers=[(b"X-Request-Id", given)])
            assert answer.header("x-request-id") == given.decode(), path
    made = set()
    for given in (b"", b"a b", b"x" * 129, b"\xc3\xbc"):
        request_id = (await api.raw("GET", b"/healthz", headers=[(b"X-Request-Id", given)])).header("x-request-id")
        assert re.fullmatch("[0-9a-f]{16}", str(request_id)), given
        made.add(request_id)
    assert len(made) == 4


async def test_metrics_count_verdicts_and_requests(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=10)
    await api.ask("PATCH", f"data/orders/{key}", {}, token=11)
    await api.ask("PATCH", f"data/orders/{key}", {}, token=9)
    await api.ask("PATCH", "data/nobody-invented-this/1", {}, token=9)
    answer = await api.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.text
    assert re.search(r'fencepost_operations_total\{table="orders",verb="patch",verdict="accepted"\} [1-9]', text)
    assert re.search(r'fencepost_operations_total\{table="orders",verb="patch",verdict="FP001"\} [1-9]', text)
    assert re.search(
        r'fencepost_http_request_seconds_count\{method="PATCH",route="/v1/data",status="409"\} [1-9]', text
    )
    assert "nobody-invented-this" not in text, "callers cannot make series"
    assert re.search(r'fencepost_tables\{protected="yes"\} 9.0', text)


async def test_a_database_that_goes_away_is_503_and_comes_back(api: Api, shop: Shop, postgres: PostgresServer) -> None:
    key = await shop.order(mark=10)
    await api.ask("GET", f"data/orders/{key}")
    async with database_away(postgres, shop.dsn):

        async def noticed() -> bool:
            return (await api.http.get("/readyz")).status_code == 503

        await eventually(noticed, what="readyz saying 503")
        state = (await api.http.get("/readyz")).json()
        assert state["status"] == "not ready"
        assert state["database"].startswith("unreachable")
        assert (await api.http.get("/healthz")).status_code == 200
        assert (await api.http.get("/metrics")).status_code == 200
        for method, path, body in (
            ("GET", f"data/orders/{key}", None), ("GET", "data/orders", None), ("PATCH", f"data/orders/{key}", {}),
            ("POST", "data/orders", {"order_id": shop.key()}), ("POST", "claims", {"resource": f"orders/{key}"}),
            ("GET", f"fences?resource=orders/{key}", None), ("GET", "data/nowhere", None),
        ):  # fmt: skip
            answer = await api.ask(method, path, body, token=None if method == "GET" else 11)
            assert code(answer) == (503, "FP010"), (method, path)
            assert int(answer.headers["retry-after"]) >= 1, (method, path)
        assert code(await api.ask("PATCH", f"data/orders/{key}", {})) == (428, "FP003"), "needs no database"
        assert code(await api.ask("PATCH", "data/orders/a,b", {}, token=11)) == (400, "FP016"), "nor does this"

    async def back() -> bool:
        return (await api.http.get("/readyz")).status_code == 200

    await eventually(back, what="readyz saying 200")
    state = (await api.http.get("/readyz")).json()
    assert (state["status"], state["database"], state["schema"]) == ("ready", "reachable", f"revision {newest()}")
    assert re.fullmatch(r"version \d+, \d+ tables", state["catalog"])
    assert (await api.ask("PATCH", f"data/orders/{key}", {}, token=11)).status_code == 200


async def test_a_code_of_the_log_leads_to_its_page_and_a_wrong_path_to_what_was_meant(http: httpx.AsyncClient) -> None:
    for path, where in (
        ("FP001", "stale-token"), ("fp018", "unissued-token"), ("23505", "constraint-violation"),
        ("57P01", "database-refused"), ("", "../problems"),
    ):  # fmt: skip
        redirect = await http.get(f"/problems/{path}")
        assert (redirect.status_code, redirect.headers["location"]) == (308, where)
        assert (await http.get(f"/problems/{path}", follow_redirects=True)).status_code == 200
    for path in ("FP999", "hello", "nothing"):
        assert (await http.get(f"/problems/{path}")).status_code == 404
    for path, hint in (
        ("/v1/fences/orders/order-123", "GET /v1/fences?resource=orders/order-123"),
        ("/v1/orders", "Tables are under /v1/data/."),
        ("/nothing", None),
    ):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["hint"]) == (404, hint)


# PATCH /v1/data/{table} with an array: each object names its row by its key. All or nothing, over real HTTP (R10).


async def orders(shop: Shop, *marks: int) -> list[str]:
    return [await shop.order(mark) for mark in marks]


async def test_each_object_changes_the_row_that_it_names(api: Api, shop: Shop) -> None:
    keys = await orders(shop, 1, 2, 3)
    wanted = [keys[1], keys[2], keys[0]]
    rows = [{"order_id": key, "status": f"s{n}", "quantity": n} for n, key in enumerate(wanted)]
    answer = await api.ask("PATCH", "data/orders", rows, token=4)
    assert (answer.status_code, answer.content, answer.headers["content-range"]) == (204, b"", "0-2/*")
    for n, key in enumerate(wanted):
        row = (await api.ask("GET", f"data/orders/{key}")).json()
        assert (row["status"], row["quantity"], await shop.mark(key)) == (f"s{n}", n, 4)
    path, prefer = "data/orders?select=order_id,state:status", "return=representation"
    shown = await api.ask("PATCH", path, rows, token=5, prefer=prefer)
    assert (shown.status_code, shown.headers["preference-applied"]) == (200, prefer)
    assert shown.json() == [{"order_id": key, "state": f"s{n}"} for n, key in enumerate(wanted)], "in the body's order"
    stale = await api.ask(
        "PATCH", "data/orders", [*rows, {"order_id": await shop.order(1), "status": "x", "quantity": 1}], token=5
    )
    assert code(stale) == (409, "FP002")
    assert [row["current_token"] for row in stale.json()["rows"]] == ["5"] * 3


async def test_a_key_without_a_row_is_404_and_nothing_is_written(api: Api, shop: Shop) -> None:
    key, one, other = await shop.order(1), shop.key(), shop.key()
    rows = [{"order_id": each, "status": "x"} for each in (key, other, one)]
    answer = await api.ask("PATCH", "data/orders", rows, token=4)
    assert code(answer) == (404, "FP006")
    assert answer.json()["resource"] == f"orders/{one}"
    assert f"orders/{one}, orders/{other}" in answer.json()["detail"]
    assert answer.json()["rows"] == [{"resource": f"orders/{each}", "current_token": None} for each in (one, other)]
    assert await shop.mark(key) == 1


async def refused(api: Api, body: object, query: str = "") -> str:
    """Send what must be 400 whatever the token; returns the error's detail."""
    answer = await api.ask("PATCH", f"data/orders{query}", body, token=99)
    assert code(answer) == (400, "FP016"), answer.text
    detail: str = answer.json()["detail"]
    return detail


async def test_an_array_takes_no_filters_and_an_object_needs_them(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1)
    assert "filters and an array" in await refused(api, [{"order_id": key, "note": "x"}], f"?order_id=eq.{key}")
    answer = await api.ask("PATCH", "data/orders", {"order_id": key, "note": "x"}, token=99)
    assert code(answer) == (400, "FP016")
    assert "an array of objects that have their keys" in answer.json()["hint"]
    assert "array" not in (await api.ask("DELETE", "data/orders", token=99)).json()["hint"]
    for query in ("?limit=1", "?order=status", "?offset=1"):
        await refused(api, [{"order_id": key}], query)
    assert await shop.mark(key) == 1


async def test_elements_name_their_rows(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1)
    assert "without order_id" in await refused(api, [{"note": "x"}])
    assert "element 1 names no row" in await refused(
        api, [{"order_id": key, "note": "x"}, {"order_id": None, "note": "x"}]
    )
    assert "element 1 has other keys" in await refused(api, [{"order_id": key, "note": "x"}, {"note": "x"}])
    assert "without order_id" in await refused(api, [{"order_id": key, "note": "x"}], "?columns=note")
    # With ?columns= a key that is missing is null, as in POST.
    assert "element 0 names no row" in await refused(api, [{"note": "x"}], "?columns=order_id,note")
    assert "without line" in (await api.ask("PATCH", "data/items", [{"order_id": "a"}], token=9)).json()["detail"]
    assert await shop.mark(key) == 1


async def test_one_key_twice_is_refused(api: Api, shop: Shop) -> None:
    key, stale = await shop.order(mark=1), await shop.order(mark=500)
    rows = [{"order_id": each, "note": "x"} for each in (key, stale, key)]
    assert f"elements 0 and 2 both name orders/{key}" in await refused(api, rows)
    absent = shop.key()
    assert f"both name orders/{absent}" in await refused(api, [{"order_id": absent}, {"order_id": absent}])
    assert await shop.mark(key) == 1


async def test_postgresql_decides_what_is_one_key(connect: Connect, database: str) -> None:
    owner = await connect()
    spelt: tuple[tuple[str, object, list[object]], ...] = (
        ("numeric(5,2)", 1.5, ["1.50", 1.5, "+1.5"]),
        ("char(4)", "ab", ["ab", "ab  "]),
        ("timestamptz", "2026-01-31T12:00:00Z", ["2026-01-31T13:00:00+01:00"]),
    )
    for number, (kind, _, _) in enumerate(spelt):
        await owner.execute(f"CREATE TABLE public.t{number} (id {kind} PRIMARY KEY, n int)")
        await protect(owner, f"t{number}")
    async with in_process(database) as gateway:
        for number, (kind, stored, spellings) in enumerate(spelt):
            path = f"/v1/data/t{number}"
            made = await gateway.post(path, json={"id": stored}, headers={"X-Fence-Token": "1"})
            assert made.status_code == 201, made.text
            for token, spelling in enumerate(spellings, 2):
                row = [{"id": spelling, "n": token}]
                answer = await gateway.patch(path, json=row, headers={"X-Fence-Token": str(token)})
                assert answer.status_code == 204, answer.text
                twice = [{"id": stored, "n": 0}, {"id": spelling, "n": 0}]
                answer = await gateway.patch(path, json=twice, headers={"X-Fence-Token": "99"})
                assert code(answer) == (400, "FP016"), (kind, spelling)
                assert "both name" in answer.json()["detail"], (kind, spelling)
            assert await owner.fetchval(f"SELECT n FROM t{number}") == len(spellings) + 1, kind


# Keys that PostgreSQL makes: which of them `protect` takes, and by which verbs their rows can be written.


async def statuses(gateway: httpx.AsyncClient, table: str, claimed: str) -> dict[str, int]:
    """Write by every verb, each with a newer token; the row that POST made has `key`."""
    token = iter(range(1, 100))

    async def ask(method: str, path: str, body: object = None) -> httpx.Response:
        headers = {"X-Fence-Token": str(next(token))}
        return await gateway.request(method, f"/v1/{path}", json=body, headers=headers)

    made = await ask("POST", f"data/{table}", {"n": 1})
    key = made.json()[0]["id"]
    return {
        "post": made.status_code,
        "put": (await ask("PUT", f"data/{table}/{key}", {"n": 1, "v": "a"})).status_code,
        "patch": (await ask("PATCH", f"data/{table}/{key}", {"v": "b"})).status_code,
        "rows": (await ask("PATCH", f"data/{table}?v=eq.b", {"v": "c"})).status_code,
        "claim": (await ask("POST", "claims", {"resource": claimed.format(key=key)})).status_code,
        "put new": (await ask("PUT", f"data/{table}/77", {"n": 1})).status_code,
        "post new": (await ask("POST", f"data/{table}", {"id": 78, "n": 1})).status_code,
        "delete": (await ask("DELETE", f"data/{table}/{key}")).status_code,
    }


@pytest.mark.versions
async def test_rows_with_such_keys_can_be_written(connect: Connect, database: str) -> None:
    owner = await connect()
    await owner.execute("SET search_path = public")
    identity = "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    by_default = "id int GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"
    computed = "id int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY"
    tables = {
        "a": (identity, False, 400), "b": (by_default, False, 201), "c": (identity, True, 400),
        "d": (computed, True, 400),
    }  # fmt: skip
    for table, (key, scoped, _) in tables.items():
        await owner.execute(f"CREATE TABLE {table} (n int NOT NULL, {key}, v text)")
        await protect(owner, table, scope=f"{table}_n/{{n}}" if scoped else None)
    writable = {"post": 201, "put": 200, "patch": 200, "rows": 204, "claim": 200, "delete": 204}
    async with in_process(database) as gateway:
        for table, (_, scoped, new) in tables.items():
            found = await statuses(gateway, table, f"{table}_n/1" if scoped else f"{table}/{{key}}")
            assert found == {**writable, "put new": new, "post new": new}, table


# Bodies that arrive count, whatever the route: more than there is room for is refused, and read by nobody.


@pytest.mark.parametrize(
    "line", ["POST /v1/claims", "POST /v1/leases", "DELETE /v1/leases/1", "PATCH /v1/data/orders/1"]
)
async def test_bodies_that_do_not_end_are_refused_once_there_is_no_room_for_more(gateway_url: str, line: str) -> None:
    size = 1_000_000
    head = f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n"
    head += "X-Lease-Secret: 0123456789-0123456789-01" if "leases" in line else "X-Fence-Token: 1"
    there_are = most_of(MOST_BODIES << 20) // size
    opened = [await RawConnection.open(gateway_url) for _ in range(there_are + 1)]
    try:
        for each in opened:
            await each.send(f"{head}\r\n\r\n{{".encode())
        answers = [asyncio.create_task(each.answer()) for each in opened]
        done, waiting = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE)
        assert [(each.result().status, each.result().body["code"]) for each in done] == [(503, "FP010")]
        assert len(waiting) == there_are
    finally:
        for each in opened:
            each.close()
        await asyncio.gather(*answers, return_exceptions=True)
