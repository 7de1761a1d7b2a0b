"""What the dialect honours, by its effect: limits, counts, schemas, numbers past all floats, tokens on reads."""

import asyncpg
from tests.http.test_data_routes_collection import of, some_orders
from tests.support.asking import Api, code
from tests.support.shops import Shop

from fencepost.server.ops.protect import protect


async def test_one_row_more_than_max_affected_refuses_all_and_a_write_counts(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "DELETE"):
        some, keys = await some_orders(shop, [10] * 4)
        for prefer in ("max-affected=1", "handling=strict,max-affected=3", "return=representation, max-affected=1"):
            answer = await api.ask(method, f"data/orders?{some}", of(method), token=11, prefer=prefer)
            assert code(answer) == (400, "FP016"), prefer
            assert "max-affected" in answer.json()["detail"], prefer
        assert [await shop.mark(key) for key in keys] == [10] * 4, method
        prefer = "handling=strict,max-affected=4,count=exact"
        done = await api.ask(method, f"data/orders?{some}", of(method), token=11, prefer=prefer)
        assert (done.status_code, done.headers["content-range"]) == (204, "0-3/4"), method
        assert sorted(done.headers["preference-applied"].split(", ")) == sorted(prefer.split(",")), method
    none = await api.ask("DELETE", f"data/orders?{some}", token=13, prefer="count=exact")
    assert none.headers["content-range"] == "*/0"
    for prefer in ("count=exact,return=minimal", "count=exact"):
        rows = [{"order_id": shop.key()} for _ in range(2)]
        answer = await api.ask("POST", "data/orders", rows, token=5, prefer=prefer)
        assert (answer.status_code, answer.headers["content-range"]) == (201, "*/2"), prefer


async def test_max_affected_holds_for_rows_that_share_a_mark(api: Api, shop: Shop) -> None:
    await shop.sql("CREATE TABLE public.seats (id int PRIMARY KEY, hall int NOT NULL, taken bool)")
    await shop.sql("INSERT INTO public.seats SELECT n, n % 2, false FROM generate_series(1, 4) n")
    connection = await asyncpg.connect(shop.dsn)
    await protect(connection, "seats", scope="hall/{hall}")
    await connection.close()
    for method, body in (("PATCH", {"taken": True}), ("DELETE", None)):
        path = "data/seats?id=gt.0"
        assert code(await api.ask(method, path, body, token=5, prefer="max-affected=3")) == (400, "FP016"), method
    rows = await shop.sql("SELECT count(*) FROM public.seats WHERE NOT taken")
    assert rows[0][0] == 4
    assert (await api.ask("DELETE", path, token=5, prefer="max-affected=4")).status_code == 204


async def test_missing_default_is_done_where_nothing_is_missing(api: Api, shop: Shop) -> None:
    """PostgREST would store the default, 1; without the preference it is null, which quantity cannot be."""
    first, second = shop.key(), shop.key()
    rows = [{"order_id": first}, {"order_id": second, "quantity": 4}]
    path = "data/orders?columns=order_id,quantity"
    refused = await api.ask("POST", path, rows, token=5, prefer="missing=default")
    assert code(refused) == (400, "FP016")
    assert "element 0 of the body lacks quantity" in refused.json()["detail"]
    assert [await shop.mark(first), await shop.mark(second)] == [None, None]
    whole = [{"order_id": first, "quantity": 2}, {"order_id": second, "quantity": 4}]
    done = await api.ask("POST", path, whole, token=5, prefer="missing=default")
    assert [row["quantity"] for row in done.json()] == [2, 4]
    for key in (first, second):
        keyed = f"data/orders/{key}?columns=quantity,note"
        assert code(await api.ask("PATCH", keyed, {"quantity": 1}, token=6, prefer="missing=default")) == (400, "FP016")
    without = await api.ask("POST", "data/orders", {"order_id": shop.key()}, token=5, prefer="missing=default")
    assert without.json()[0]["quantity"] == 1


async def test_a_delete_takes_no_body_but_an_empty_object(api: Api, shop: Shop) -> None:
    for body in (b"", b" ", b"{}", b" { } ", b"[]"):
        key = await shop.order()
        assert (await api.ask("DELETE", f"data/orders/{key}", token=11, content=body)).status_code == 204
    key = await shop.order()
    for body in (b'{"status": "new"}', b"[{}]", b"null", b"nonsense"):
        for path in (f"data/orders/{key}", f"data/orders?order_id=eq.{key}"):
            assert code(await api.ask("DELETE", path, token=11, content=body)) == (400, "FP016"), body
    assert await shop.mark(key) == 10


async def test_a_number_past_all_floats_is_read_and_sent_back(api: Api, shop: Shop) -> None:
    await shop.sql("CREATE TABLE public.large (id text PRIMARY KEY, n numeric, j jsonb)")
    connection = await asyncpg.connect(shop.dsn)
    await protect(connection, "large")
    await connection.close()
    for number in ("-1e400", "9" * 2000 + ".5"):
        key, json_type = shop.key(), {"Content-Type": "application/json"}
        body = f'{{"id": "{key}", "n": {number}, "j": {{"a": [{number}]}}}}'.encode()
        made = await api.ask("POST", "data/large", content=body, token=1, headers=json_type)
        assert made.status_code == 201, made.text
        for token, (method, path) in enumerate(
            (("PATCH", f"large/{key}"), ("PUT", f"large/{key}"), ("PATCH", f"large?id=eq.{key}"), ("PATCH", "large")), 2
        ):
            read = await api.ask("GET", f"data/large/{key}")
            sent = read.content if path != "large" else b"[" + read.content + b"]"
            if "?" in path:
                sent = read.content.replace(f'"id":"{key}",'.encode(), b"")
            back = await api.ask(method, f"data/{path}", content=sent, token=token, headers=json_type)
            assert back.is_success, back.text
            assert (await api.ask("GET", f"data/large/{key}")).content == read.content, number
        rows = await shop.sql(
            "SELECT n = ($1::text)::numeric, last_fence_token FROM public.large WHERE id = $2", number, key
        )
        assert tuple(rows[0]) == (True, 5), number


async def test_of_two_profiles_that_differ_none_is_chosen(api: Api, shop: Shop) -> None:
    """Both schemas have a table orders: the wrong one would be written."""
    await shop.sql("INSERT INTO sales.orders VALUES (7, 'as it was', 1)")
    key = await shop.order()
    both = {"Accept-Profile": "sales", "Content-Profile": "sales"}
    for method, body, headers in (
        ("PATCH", {"label": "x"}, {"Accept-Profile": "sales"}),
        ("DELETE", None, {"Accept-Profile": "sales"}),
        ("DELETE", None, {"Accept-Profile": "public", "Content-Profile": "sales"}),
        ("GET", None, {"Content-Profile": "sales"}),
        ("GET", None, {"Content-Profile": "public", "Accept-Profile": "sales"}),
    ):
        answer = await api.ask(method, "data/orders/7", body, token=5, headers=headers)
        assert code(answer) == (400, "FP016"), (method, headers)
    assert (await api.ask("GET", "data/orders/7", headers=both)).json()["label"] == "as it was"
    assert (await api.ask("DELETE", "data/orders/7", token=6, headers=both)).status_code == 204
    assert (await api.ask("GET", f"data/orders/{key}", headers={"Content-Profile": "public"})).status_code == 200
