"""PATCH /v1/data/{table} with an array: each object names its row by its key. All or nothing, over real HTTP (R10)."""

from tests.support.asking import Api, code
from tests.support.gateways import in_process
from tests.support.interleave import Connect
from tests.support.shops import Shop

from fencepost.server.ops.protect import protect


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


SPELLINGS: tuple[tuple[str, object, list[object]], ...] = (
    ("numeric(5,2)", 1.5, ["1.50", 1.5, "+1.5"]),
    ("char(4)", "ab", ["ab", "ab  "]),
    ("timestamptz", "2026-01-31T12:00:00Z", ["2026-01-31T13:00:00+01:00"]),
)


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
    for number, (kind, _, _) in enumerate(SPELLINGS):
        await owner.execute(f"CREATE TABLE public.t{number} (id {kind} PRIMARY KEY, n int)")
        await protect(owner, f"t{number}")
    async with in_process(database) as gateway:
        for number, (kind, stored, spellings) in enumerate(SPELLINGS):
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
