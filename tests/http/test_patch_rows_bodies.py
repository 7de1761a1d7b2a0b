"""What a PATCH with an array may look like, and what is refused: 400 before 428, 428 before 409."""

import pytest
from tests.scenarios.shop import Shop
from tests.support.asking import Api, code
from tests.support.in_process import in_process
from tests.support.interleave import Connect

from fencepost.storage.protecting.protect import protect

ONE_OBJECT = {"Accept": "application/vnd.pgrst.object+json"}

SPELLINGS: tuple[tuple[str, object, list[object]], ...] = (
    ("numeric(5,2)", 1.5, ["1.50", 1.5, "+1.5"]),
    ("char(4)", "ab", ["ab", "ab  "]),
    ("int", 7, [7, "7", "07"]),
    ("timestamptz", "2026-01-31T12:00:00Z", ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00"]),
    ("uuid", "0190a5c4-7d3e-7c1a-9b55-3f2f6a1c0d42", ["0190A5C4-7D3E-7C1A-9B55-3F2F6A1C0D42"]),
    ("bytea", "\\x0aff", ["\\x0AFF"]),
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


async def test_elements_are_objects(api: Api) -> None:
    bodies: list[object] = ["x", 1, True, [1], [[]], [None]]
    for body in bodies:
        assert "expected" in await refused(api, body), body


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


async def test_columns_names_the_keys_that_count(api: Api, shop: Shop) -> None:
    key, other = await shop.order(mark=1, note="old"), await shop.order(mark=1, note="old")
    rows = [{"order_id": key, "code": "abc", "quantity": 9}, {"order_id": other, "extra": True}]
    answer = await api.ask("PATCH", "data/orders?columns=order_id,code", rows, token=4, prefer="return=representation")
    assert [(row["code"], row["quantity"], row["note"]) for row in answer.json()] == [
        ("abc", 1, "old"), (None, 1, "old"),
    ]  # fmt: skip


async def test_columns_that_no_request_may_write(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1)
    assert "nonsense" in await refused(api, [{"order_id": key, "nonsense": 1}])
    assert "last_fence_token" in await refused(api, [{"order_id": key, "last_fence_token": "9"}])
    assert code(await api.ask("PATCH", "data/orders", [{"order_id": key, "twice": 1}], token=9)) == (400, "428C9")
    assert await shop.mark(key) == 1


async def test_a_value_that_does_not_fit_names_its_column(api: Api, shop: Shop) -> None:
    keys = [await shop.order(mark=1) for _ in range(2)]
    rows = [{"order_id": key, "quantity": value} for key, value in zip(keys, (2, "many"), strict=True)]
    answer = await api.ask("PATCH", "data/orders", rows, token=4)
    assert (code(answer), answer.json()["column"]) == ((400, "22P02"), "quantity")
    rows = [{"order_id": key, "status": value} for key, value in zip(keys, ("good", "bad"), strict=True)]
    assert code(await api.ask("PATCH", "data/orders", rows, token=4)) == (400, "23514")
    answer = await api.ask("PATCH", "data/items", [{"order_id": "a", "line": "x"}], token=4)
    assert (code(answer), answer.json()["column"]) == ((400, "22P02"), "line")
    assert [await shop.mark(key) for key in keys] == [1, 1]


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


async def test_one_object_is_given_where_it_is_asked_for(api: Api, shop: Shop) -> None:
    keys = [await shop.order(mark=1) for _ in range(2)]
    row = [{"order_id": keys[0], "status": "x"}]
    answer = await api.ask("PATCH", "data/orders", row, token=4, prefer="return=representation", headers=ONE_OBJECT)
    assert (answer.status_code, answer.headers["content-type"]) == (200, ONE_OBJECT["Accept"])
    assert answer.json()["order_id"] == keys[0]
    both = [{"order_id": key, "status": "x"} for key in keys]
    assert code(await api.ask("PATCH", "data/orders", both, token=5, headers=ONE_OBJECT)) == (406, "FP021")
    assert code(await api.ask("PATCH", "data/orders", [], token=5, headers=ONE_OBJECT)) == (406, "FP021")
    assert [await shop.mark(key) for key in keys] == [4, 1]


async def test_no_more_rows_than_the_limit(api: Api, shop: Shop) -> None:
    keys = [await shop.order(mark=1) for _ in range(51)]
    rows = [{"order_id": key} for key in keys]
    assert code(await api.ask("PATCH", "data/orders", rows, token=4)) == (413, "FP017")
    assert await shop.mark(keys[0]) == 1
    assert (await api.ask("PATCH", "data/orders", rows[:50], token=4)).headers["content-range"] == "0-49/*"
    assert [await shop.mark(key) for key in (keys[49], keys[50])] == [4, 1]


async def test_no_element_and_no_change(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1, note="old")
    nothing = await api.ask("PATCH", "data/orders", [], token=4, prefer="return=representation")
    assert (nothing.status_code, nothing.json(), nothing.headers["content-range"]) == (200, [], "*/*")
    only_keys = await api.ask("PATCH", "data/orders", [{"order_id": key}], token=4, prefer="return=representation")
    assert (only_keys.json()[0]["note"], await shop.mark(key)) == ("old", 4)


async def test_the_order_of_checks(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=500)
    row = [{"order_id": key, "note": "x"}]
    assert code(await api.ask("PATCH", "data/orders", row)) == (428, "FP003")
    assert code(await api.ask("PATCH", "data/orders", [])) == (428, "FP003")
    assert code(await api.ask("PATCH", "data/orders", [{"note": "x"}])) == (400, "FP016")
    assert code(await api.ask("PATCH", "data/orders", row, token="007")) == (400, "FP004")
    assert code(await api.ask("PATCH", "data/diary", [{"entry": "x"}], token=9)) == (403, "FP005")
    assert code(await api.ask("PATCH", "data/paid_orders", row, token=9)) == (403, "FP005")
    assert code(await api.ask("PATCH", "data/nowhere", row, token=9)) == (404, "FP007")
    assert code(await api.ask("PATCH", "data/orders?select=nonsense", row, token=9)) == (400, "FP016")
    text = {"Content-Type": "text/plain"}
    assert (await api.ask("PATCH", "data/orders", content=b"[]", token=9, headers=text)).status_code == 415
    assert await shop.mark(key) == 500


async def test_an_idempotency_key_does_it_once(api: Api, shop: Shop) -> None:
    keys = [await shop.order(mark=1) for _ in range(2)]
    rows = [{"order_id": key, "status": "x"} for key in keys]
    once = {"Idempotency-Key": f'"{keys[0]}"'}
    stale = await api.ask("PATCH", "data/orders", [*rows, {"order_id": shop.key(), "status": "x"}], token=4,
                          headers=once)  # fmt: skip
    assert code(stale) == (404, "FP006"), "refusals are not stored"
    first = await api.ask("PATCH", "data/orders", rows, token=4, headers=once, prefer="return=representation")
    again = await api.ask("PATCH", "data/orders", rows, token=3, headers=once)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    other = await api.ask("PATCH", "data/orders", rows[:1], token=5, headers=once)
    assert code(other) == (422, "FP014")
    assert [await shop.mark(key) for key in keys] == [4, 4]


@pytest.mark.parametrize("known", [True, False])
async def test_a_trigger_that_keeps_one_row_from_being_written_undoes_all(
    connect: Connect, database: str, known: bool
) -> None:
    owner = await connect()
    await owner.execute("CREATE TABLE public.loud (id int PRIMARY KEY, n int)")
    trigger = (
        "CREATE FUNCTION public.quiet() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN IF NEW.n = 13 THEN RETURN NULL; END IF; RETURN NEW; END';"
        "CREATE TRIGGER quiet BEFORE UPDATE ON public.loud FOR EACH ROW EXECUTE FUNCTION public.quiet()"
    )
    if known:
        await owner.execute(trigger)
    await protect(owner, "loud")
    await owner.execute("INSERT INTO public.loud (id, last_fence_token) VALUES (1, 1), (2, 1)")
    async with in_process(database) as gateway:
        if not known:
            await owner.execute(trigger)
        for ns, answered in (((5, 13), 400), ((13, 13), 400), ((5, 6), 204)):
            rows = [{"id": 1, "n": ns[0]}, {"id": 2, "n": ns[1]}]
            answer = await gateway.patch("/v1/data/loud", json=rows, headers={"X-Fence-Token": "4"})
            assert answer.status_code == answered, answer.text
            if answered != 204:
                assert code(answer) == (400, "FP403"), answered
                assert await owner.fetchval("SELECT max(last_fence_token) FROM public.loud") == 1, answered


async def test_columns_that_changed_meanwhile(connect: Connect, database: str) -> None:
    owner = await connect()
    await owner.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
    await protect(owner, "t")
    await owner.execute("INSERT INTO public.t (id, last_fence_token) VALUES (1, 1)")
    async with in_process(database) as gateway:
        await owner.execute("ALTER TABLE public.t ADD note text")
        answer = await gateway.patch("/v1/data/t", json=[{"id": 1, "note": "x"}], headers={"X-Fence-Token": "2"})
        assert answer.status_code == 204, answer.text
        await owner.execute("ALTER TABLE public.t ALTER note TYPE int USING 5")
        answer = await gateway.patch("/v1/data/t", json=[{"id": 1, "note": 7}], headers={"X-Fence-Token": "3"})
        assert answer.status_code == 204, answer.text
    assert await owner.fetchval("SELECT note FROM public.t") == 7
