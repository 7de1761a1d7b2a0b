"""/v1/data/{table}: many rows, over real HTTP (R10)."""

from tests.support.asking import Api, code
from tests.support.shops import Shop

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
        ("items", {"order_id": "a/b,c", "line": 1}),
        ("items", {"order_id": "ü\n%?#", "line": 1}),
        ("items", {"order_id": "..", "line": 1}),
        ("made", made),
    ):
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
        ("PATCH", f"data/orders?{some}", {"status": "paid"}),
        ("DELETE", f"data/orders?{some}", None),
        ("PATCH", "data/orders", many),
        ("POST", "data/orders", [{"order_id": shop.key()} for _ in many]),
    ):
        assert code(await api.ask(method, path, body, token=5)) == (413, "FP017"), (method, path)
    assert [await shop.mark(key) for key in (keys[0], keys[-1])] == [1, 1]
    assert (await api.ask("PATCH", "data/orders", many[:50], token=4)).headers["content-range"] == "0-49/*"
    assert (await api.ask("POST", "data/orders", [{"order_id": shop.key()} for _ in many[:50]], token=5)).is_success
