"""Over real HTTP: X-Fence-Token, its grammar (R11), and what comes before it; paths that a client would tidy up."""

from urllib.parse import quote
from uuid import uuid1, uuid4

from tests.support.asking import Api, code
from tests.support.shops import Shop

MALFORMED = [b"", b"0", b"34, 34", b"\xd9\xa3", b"34\x0b"]
"""The grammar: unit/test_fencing.py."""


async def test_a_malformed_token_is_400_on_every_write(api: Api, shop: Shop) -> None:
    for token in MALFORMED:
        key = (await shop.order(mark=1)).encode()
        claim = b'{"resource": "orders/%s"}' % key
        for method, path, body in (
            ("PATCH", b"/v1/data/orders/" + key, b"{}"),
            ("PUT", b"/v1/data/orders/" + key, b"{}"),
            ("DELETE", b"/v1/data/orders/" + key, b""),
            ("POST", b"/v1/data/orders", b'{"order_id": "new"}'),
            ("PATCH", b"/v1/data/orders?order_id=eq." + key, b"{}"),
            ("DELETE", b"/v1/data/orders?order_id=eq." + key, b""),
            ("POST", b"/v1/claims", claim),
        ):
            answer = await api.raw(method, path, body, headers=[(b"X-Fence-Token", token)])
            if "the parser stopped in it" in answer.json()["detail"]:
                assert (answer.status, answer.json()["code"]) == (400, "FP016"), token
                continue
            assert (answer.status, answer.json()["code"]) == (400, "FP004"), (method, answer.body)
            assert answer.json()["type"] == "/problems/malformed-token", method
        assert await shop.mark(key.decode()) == 1, token


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
            ("PATCH", f"data/orders/{name}", {}),
            ("PUT", f"data/orders/{name}", {}),
            ("DELETE", f"data/orders/{name}", None),
            ("POST", "data/orders", {"order_id": name}),
            ("PATCH", "data/orders", [{"order_id": name}]),
            ("PATCH", f"data/orders?order_id=eq.{name}", {}),
            ("DELETE", f"data/orders?order_id=eq.{name}", None),
            ("POST", "claims", {"resource": f"orders/{name}"}),
        ):
            answer = await api.ask(method, path, body)
            assert code(answer) == (428, "FP003"), (method, path)
            assert answer.json()["type"] == "/problems/token-required", (method, path)
    assert await shop.mark(key) == 10
    assert await shop.mark("nobody") is None


UNREADABLE = [
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


async def test_403_404_and_400_come_before_428_and_409(api: Api, shop: Shop) -> None:
    for method, path, body, expected in UNREADABLE:
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
