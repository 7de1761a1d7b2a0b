"""What the details of a refused value show: nothing of the row but what the request itself sent."""

from tests.scenarios.shop import Shop
from tests.support.asking import Api, code


async def test_a_refused_row_is_not_shown(api: Api, shop: Shop) -> None:
    """PostgreSQL's "Failing row contains (…)" has all columns, the mark too."""
    for body, refused in (({"status": None}, "23502"), ({"status": "bad"}, "23514")):
        mark = 77_700_077
        key = await shop.order(mark=mark, note="nobody's business")
        for method, path, sent in (
            ("PATCH", f"data/orders/{key}", body),
            ("PATCH", f"data/orders?order_id=eq.{key}", body),
            ("PATCH", "data/orders", [{"order_id": key, **body}]),
            ("PUT", f"data/orders/{key}", body),
            ("POST", "data/orders", {"order_id": shop.key(), **body}),
        ):
            answer = await api.ask(method, path, sent, token=mark + 1)
            assert code(answer) == (400, refused), (method, path)
            answered = answer.json()
            assert answered["details"] is None, (method, path)
            assert "status" in answered["detail"], (method, path)
            assert "nobody's business" not in answer.text, (method, path)
            assert str(mark) not in answer.text.replace(str(mark + 1), ""), (method, path)


async def test_what_the_request_sent_is_shown(api: Api, shop: Shop) -> None:
    await shop.sql(
        "INSERT INTO public.orders (order_id, sku, last_fence_token) VALUES ('t', 'taken', 1) ON CONFLICT DO NOTHING"
    )
    duplicate = await api.ask("POST", "data/orders", {"order_id": shop.key(), "sku": "taken"}, token=5)
    assert "taken" in duplicate.json()["details"]
    dangling = await api.ask("POST", "data/orders", {"order_id": shop.key(), "customer_id": 99}, token=5)
    assert "99" in dangling.json()["details"]
    nowhere = await api.ask("POST", "data/regions", {"region": "nowhere", "id": 1}, token=5)
    assert (code(nowhere), "nowhere" in nowhere.json()["details"]) == ((400, "23514"), True)


async def test_what_a_trigger_reports_of_its_own_is_shown(api: Api, shop: Shop) -> None:
    await shop.sql(
        "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'not today' USING ERRCODE = '23514', DETAIL = 'closed'; END $$"
    )
    await shop.sql("CREATE TRIGGER no BEFORE INSERT ON public.numbered FOR EACH ROW EXECUTE FUNCTION public.no()")
    answer = await api.ask("POST", "data/numbered", {"id": 1}, token=5)
    assert (code(answer), answer.json()["details"]) == ((400, "23514"), "closed")
