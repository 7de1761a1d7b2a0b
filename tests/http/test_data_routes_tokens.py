"""X-Fence-Token over real HTTP: its grammar (R11), reads, and what is checked before it."""

from tests.scenarios.shop import Shop
from tests.support.asking import Api, code

MALFORMED = [b"", b"0", b"034", b"+34", b"3_4", b"34, 34", b"34.0", b"\xd9\xa3", b"9223372036854775808", b"34\x0b"]


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
