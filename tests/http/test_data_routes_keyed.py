"""/v1/data/{table}/{key}, /v1/claims and /v1/fences: one row at a time, over real HTTP (R7)."""

from tests.support.asking import Api, code
from tests.support.shops import Shop

from fencepost.server.fence.token import HIGHEST_TOKEN


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
        "resource": f"orders/{key}",
        "mark": "0",
        "rule": "strict",
        "source": "external",
        "sealed": False,
        "max_token": "4611686018427387903",
        "max_jump": None,
        "row_exists": False,
        "story": [],
    }
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
