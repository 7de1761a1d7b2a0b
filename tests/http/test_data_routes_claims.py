"""POST /v1/claims and GET /v1/fences over real HTTP (R7)."""

from tests.scenarios.shop import Shop
from tests.support.asking import Api, code


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
        {}, {"resource": None}, {"resource": 1}, {"resource": ""}, {"resource": "orders"}, {"resource": "/x"},
        {"resource": ["orders/x"]}, {"resource": "orders/x", "ttl": 1}, {"Resource": "orders/x"}, [], "orders/x", None,
        {"resource": "orders/%"}, {"resource": "orders/a,b"}, {"resource": "items/a"}, {"resource": "orders/a\0b"},
        {"resource": "orders/\ud800"},
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
