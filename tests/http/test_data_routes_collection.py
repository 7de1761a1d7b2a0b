"""/v1/data/{table}: many rows, over real HTTP (R10)."""

from tests.scenarios.shop import Shop
from tests.support.asking import Api, code

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


async def test_no_more_rows_than_the_limit_are_read(api: Api, shop: Shop) -> None:
    await shop.sql("INSERT INTO public.diary SELECT n, 'many' FROM generate_series(100, 199) n")
    answer = await api.ask("GET", "data/diary?id=gte.100&order=id&limit=1000", prefer="count=exact")
    assert (answer.status_code, answer.headers["content-range"], len(answer.json())) == (206, "0-49/100", 50)


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
    keys = [shop.key() for _ in range(3)]
    answer = await api.ask("POST", "data/orders", [{"order_id": key} for key in reversed(keys)], token=5)
    assert answer.status_code == 201
    assert [row["order_id"] for row in answer.json()] == list(reversed(keys)), "in the body's order"
    assert "location" not in answer.headers
    assert [await shop.mark(key) for key in keys] == [5, 5, 5]
    empty = await api.ask("POST", "data/orders", [], token=5)
    assert (empty.status_code, empty.json()) == (201, [])


async def test_a_location_leads_to_the_row_whatever_its_key(api: Api) -> None:
    for key in ("a/b,c", "100%", "grüße\n b+c?x#y"):
        answer = await api.ask("POST", "data/items", {"order_id": key, "line": 1}, token=5)
        assert answer.status_code == 201, key
        found = await api.ask("GET", answer.headers["location"].removeprefix("/v1/"))
        assert found.json() == answer.json()[0], key


async def test_a_location_names_a_key_that_the_database_made(api: Api) -> None:
    answer = await api.ask("POST", "data/made", {"label": "x"}, token=5)
    assert answer.status_code == 201
    assert answer.headers.get("location") == f"/v1/data/made/{answer.json()[0]['id']}"


async def test_elements_must_have_the_same_keys_unless_columns_names_them(api: Api, shop: Shop) -> None:
    first, second = shop.key(), shop.key()
    rows = [{"order_id": first, "note": 1, "code": "abc"}, {"order_id": second, "quantity": 4}]
    refused = await api.ask("POST", "data/orders", rows, token=5)
    assert code(refused) == (400, "FP016")
    assert "quantity" in refused.json()["detail"]
    assert "?columns=" in refused.json()["hint"]
    answer = await api.ask("POST", "data/orders?columns=order_id,code", rows, token=5)
    assert [(row["code"], row["quantity"]) for row in answer.json()] == [("abc", 1), (None, 1)]


async def test_a_refused_array_lists_its_rows_and_inserts_none(api: Api, shop: Shop) -> None:
    old, new, fresh = await shop.order(mark=40), await shop.order(mark=50), shop.key()
    answer = await api.ask("POST", "data/orders", [{"order_id": key} for key in (fresh, new, old)], token=35)
    assert code(answer) == (409, "FP001")
    assert answer.json()["rows"] == [
        {"resource": f"orders/{old}", "current_token": "40"},
        {"resource": f"orders/{new}", "current_token": "50"},
    ]
    assert await shop.mark(fresh) is None


async def test_a_multi_row_write_writes_every_row(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "DELETE"):
        body: dict[str, object] | None = {"status": "paid"} if method == "PATCH" else None
        some, keys = await some_orders(shop, [1, 2, 3])
        answer = await api.ask(method, f"data/orders?{some}", body, token=4)
        assert (answer.status_code, answer.content) == (204, b""), method
        assert answer.headers["content-range"] == "0-2/*", method
        assert [await shop.mark(key) for key in keys] == ([4, 4, 4] if method == "PATCH" else [None] * 3), method
        for key in keys:
            fence = await api.ask("GET", f"fences?resource=orders/{key}")
            assert (fence.json()["mark"], fence.json()["row_exists"]) == ("4", method == "PATCH"), method


async def test_one_stale_row_refuses_all_and_is_listed(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "DELETE"):
        body: dict[str, object] | None = {"status": "paid"} if method == "PATCH" else None
        some, keys = await some_orders(shop, [10, 36, 20, 30])
        answer = await api.ask(method, f"data/orders?{some}", body, token=30)
        assert code(answer) == (409, "FP001"), method
        assert answer.json()["rows"] == [
            {"resource": f"orders/{keys[1]}", "current_token": "36"},
            {"resource": f"orders/{keys[3]}", "current_token": "30"},
        ], method
        assert answer.json()["presented_token"] == "30", method
        assert [await shop.mark(key) for key in keys] == [10, 36, 20, 30], method
        spent = await api.ask(method, f"data/orders?{some}&order_id=neq.{keys[1]}", body, token=30)
        assert code(spent) == (409, "FP002"), method
        assert spent.json()["rows"] == [{"resource": f"orders/{keys[3]}", "current_token": "30"}], method


async def test_a_multi_row_write_without_a_filter_is_refused(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "DELETE"):
        key = await shop.order(mark=1)
        body: dict[str, object] | None = {} if method == "PATCH" else None
        for query in ("", "?&", "?columns=status", "?limit=1", "?order_id=eq.x&limit=1", "?order_id=eq.x&offset=1"):
            assert code(await api.ask(method, f"data/orders{query}", body, token=99)) == (400, "FP016"), query
        assert await shop.mark(key) == 1, method


async def test_more_rows_than_the_limit_are_refused_whole(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "DELETE"):
        some, keys = await some_orders(shop, [1] * 51)
        body: dict[str, object] | None = {"status": "paid"} if method == "PATCH" else None
        assert code(await api.ask(method, f"data/orders?{some}", body, token=5)) == (413, "FP017"), method
        assert [await shop.mark(key) for key in (keys[0], keys[-1])] == [1, 1], method
        many = [{"order_id": shop.key()} for _ in range(51)]
        assert code(await api.ask("POST", "data/orders", many, token=5)) == (413, "FP017"), method
        assert await shop.mark(many[0]["order_id"]) is None, method
