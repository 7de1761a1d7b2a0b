"""PATCH /v1/data/{table} with an array: each object names its row by its key. All or nothing, over real HTTP (R10)."""

from collections.abc import Iterator

import pytest
from tests.scenarios.shop import Shop, running_shop
from tests.support.asking import Api, code

from fencepost.embedded.server import PostgresServer


@pytest.fixture(scope="module")
def shop(postgres: PostgresServer, template: str) -> Iterator[Shop]:
    with running_shop(postgres, template, ("tickets",)) as shop:
        yield shop


async def orders(shop: Shop, *marks: int) -> list[str]:
    return [await shop.order(mark) for mark in marks]


async def test_each_object_changes_the_row_that_it_names(api: Api, shop: Shop) -> None:
    keys = await orders(shop, 1, 2, 3)
    rows = [{"order_id": key, "status": f"s{n}", "quantity": n} for n, key in enumerate(keys)]
    answer = await api.ask("PATCH", "data/orders", rows, token=4)
    assert (answer.status_code, answer.content, answer.headers["content-range"]) == (204, b"", "0-2/*")
    for n, key in enumerate(keys):
        row = (await api.ask("GET", f"data/orders/{key}")).json()
        assert (row["status"], row["quantity"], await shop.mark(key)) == (f"s{n}", n, 4)


async def test_the_rows_come_back_in_the_order_of_the_body(api: Api, shop: Shop) -> None:
    keys = await orders(shop, 1, 1, 1)
    wanted = [keys[1], keys[2], keys[0]]
    rows = [{"status": "x", "order_id": key} for key in wanted]
    answer = await api.ask(
        "PATCH", "data/orders?select=order_id,state:status", rows, token=4, prefer="return=representation"
    )
    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "return=representation")
    assert answer.json() == [{"order_id": key, "state": "x"} for key in wanted]
    minimal = await api.ask("PATCH", "data/orders", rows, token=5, prefer="return=minimal")
    assert (minimal.status_code, minimal.headers["preference-applied"]) == (204, "return=minimal")


async def test_keys_of_several_columns_and_of_partitions(api: Api, shop: Shop) -> None:
    await shop.sql("INSERT INTO public.items (order_id, line, last_fence_token) VALUES ('a', 1, 1), ('a', 2, 1)")
    rows = [{"order_id": "a", "line": 2, "what": "two"}, {"order_id": "a", "line": "1", "what": "one"}]
    answer = await api.ask("PATCH", "data/items", rows, token=4, prefer="return=representation")
    assert [(row["line"], row["what"]) for row in answer.json()] == [(2, "two"), (1, "one")]
    await shop.sql("INSERT INTO public.regions (region, id, last_fence_token) VALUES ('eu', 1, 1)")
    answer = await api.ask("PATCH", "data/regions", [{"region": "eu", "id": 1, "label": "x"}], token=4)
    assert answer.status_code == 204


async def test_one_stale_row_refuses_all_and_every_one_is_listed(api: Api, shop: Shop) -> None:
    keys = await orders(shop, 10, 36, 20, 30)
    rows = [{"order_id": key, "status": "x"} for key in reversed(keys)]
    answer = await api.ask("PATCH", "data/orders", rows, token=30)
    assert code(answer) == (409, "FP001")
    assert answer.json()["rows"] == [
        {"resource": f"orders/{keys[1]}", "current_token": "36"},
        {"resource": f"orders/{keys[3]}", "current_token": "30"},
    ]
    assert (answer.json()["presented_token"], answer.json()["current_token"]) == ("30", "36")
    assert [await shop.mark(key) for key in keys] == [10, 36, 20, 30]
    spent = await api.ask("PATCH", "data/orders", [row for row in rows if row["order_id"] != keys[1]], token=30)
    assert code(spent) == (409, "FP002")
    assert spent.json()["rows"] == [{"resource": f"orders/{keys[3]}", "current_token": "30"}]


async def test_a_key_without_a_row_is_404_and_nothing_is_written(api: Api, shop: Shop) -> None:
    key, one, other = await shop.order(1), shop.key(), shop.key()
    rows = [{"order_id": each, "status": "x"} for each in (key, other, one)]
    answer = await api.ask("PATCH", "data/orders", rows, token=4)
    assert code(answer) == (404, "FP006")
    assert answer.json()["resource"] == f"orders/{one}"
    assert f"orders/{one}, orders/{other}" in answer.json()["detail"]
    assert answer.json()["rows"] == [{"resource": f"orders/{each}", "current_token": None} for each in (one, other)]
    assert await shop.mark(key) == 1


async def test_the_mark_of_a_key_without_a_row_refuses(api: Api, shop: Shop) -> None:
    gone, key, absent = await shop.order(1), await shop.order(50), shop.key()
    assert (await api.ask("DELETE", f"data/orders/{gone}", token=40)).status_code == 204
    rows = [{"order_id": each, "status": "x"} for each in (key, absent, gone)]
    answer = await api.ask("PATCH", "data/orders", rows, token=39)
    assert code(answer) == (409, "FP001")
    assert answer.json()["rows"] == [
        {"resource": f"orders/{gone}", "current_token": "40"},
        {"resource": f"orders/{key}", "current_token": "50"},
    ]
    assert code(await api.ask("PATCH", "data/orders", rows[2:], token=40)) == (409, "FP002")
    assert code(await api.ask("PATCH", "data/orders", rows[2:], token=41)) == (404, "FP006")


async def test_a_token_that_was_never_issued_is_reported_whether_or_not_there_is_a_row(api: Api, shop: Shop) -> None:
    here, absent = "0190a5c4-7d3e-7c1a-9b55-3f2f6a1c0d42", "0190a5c4-7d3e-7c1a-9b55-3f2f6a1c0d43"
    await shop.sql("SELECT setval('fencepost.tokens', 100)")
    assert (await api.ask("POST", "data/tickets", {"id": here}, token=5)).status_code == 201
    for keys in ([here], [absent], [here, absent]):
        answer = await api.ask("PATCH", "data/tickets", [{"id": key, "label": "x"} for key in keys], token=101)
        assert code(answer) == (409, "FP018"), keys
    assert (await api.ask("PATCH", "data/tickets", [{"id": here.upper(), "label": "x"}], token=6)).status_code == 204
