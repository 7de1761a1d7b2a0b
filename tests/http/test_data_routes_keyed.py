"""/v1/data/{table}/{key}: one row at a time, over real HTTP."""

from tests.scenarios.shop import Shop
from tests.support.asking import Api, code

MAX_TOKEN = 2**62 - 1


async def test_a_read_gives_the_row_and_its_mark(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=36)
    answer = await api.ask("GET", f"data/orders/{key}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-fence-mark"] == "36"
    row = answer.json()
    assert (row["order_id"], row["status"], row["amount"], row["twice"]) == (key, "new", 0.00, 2)
    assert "last_fence_token" not in row


async def test_the_mark_is_a_string_when_selected_by_name(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=MAX_TOKEN)
    answer = await api.ask("GET", f"data/orders/{key}?select=order_id,last_fence_token")
    assert answer.json() == {"order_id": key, "last_fence_token": str(MAX_TOKEN)}
    listed = await api.ask("GET", f"data/orders?order_id=eq.{key}&select=last_fence_token,note:status")
    assert listed.json() == [{"last_fence_token": str(MAX_TOKEN), "note": "new"}]


async def test_a_missing_row_is_404(api: Api) -> None:
    for method in ("GET", "PATCH", "DELETE"):
        answer = await api.ask(
            method, "data/orders/nobody", {} if method == "PATCH" else None, token=None if method == "GET" else 5
        )
        assert code(answer) == (404, "FP006"), method
        assert answer.json()["type"] == "/problems/row-not-found", method


async def test_a_patch_answers_with_the_row_and_the_new_mark(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=33)
    answer = await api.ask("PATCH", f"data/orders/{key}", {"status": "paid", "quantity": 3}, token=34)
    assert (answer.status_code, answer.headers["x-fence-mark"]) == (200, "34")
    assert "preference-applied" not in answer.headers
    assert (answer.json()["status"], answer.json()["twice"]) == ("paid", 6)
    assert answer.json() == (await api.ask("GET", f"data/orders/{key}")).json()


async def test_preferences_of_a_keyed_write(api: Api, shop: Shop) -> None:
    for method in ("PATCH", "PUT", "DELETE"):
        for prefer, status, applied in (
            (None, 204 if method == "DELETE" else 200, None),
            ("return=minimal", 204, "return=minimal"),
            ("return=headers-only", 204, "return=headers-only"),
            ("return=representation", 200, "return=representation"),
            ("handling=lenient, return=representation", 200, "return=representation"),
            ("max-affected=1", 204 if method == "DELETE" else 200, "max-affected=1"),
        ):
            key = await shop.order(mark=1)
            body = None if method == "DELETE" else {"status": "paid"}
            answer = await api.ask(method, f"data/orders/{key}?select=order_id", body, token=2, prefer=prefer)
            assert (answer.status_code, answer.headers.get("preference-applied")) == (status, applied), prefer
            assert answer.headers["x-fence-mark"] == "2", method
            assert answer.content == b"" if status == 204 else answer.json() == {"order_id": key}, method


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
