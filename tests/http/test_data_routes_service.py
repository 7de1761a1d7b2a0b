"""Request ids, health, metrics, and what happens while the database is away."""

import re

import httpx
from tests.support.asking import Api, code
from tests.support.postgres import database_away
from tests.support.shops import Shop

from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.schema import newest
from fencepost.testing.servers.processes import eventually


async def test_a_usable_request_id_is_taken_and_another_replaced(api: Api) -> None:
    for path in (b"/healthz", b"/v1/data/nowhere", b"/nowhere"):
        for given in (b"x" * 128, b"a/b:c=d"):
            answer = await api.raw("GET", path, headers=[(b"X-Request-Id", given)])
            assert answer.header("x-request-id") == given.decode(), path
    made = set()
    for given in (b"", b"a b", b"x" * 129, b"\xc3\xbc"):
        request_id = (await api.raw("GET", b"/healthz", headers=[(b"X-Request-Id", given)])).header("x-request-id")
        assert re.fullmatch("[0-9a-f]{16}", str(request_id)), given
        made.add(request_id)
    assert len(made) == 4


async def test_metrics_count_verdicts_and_requests(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=10)
    await api.ask("PATCH", f"data/orders/{key}", {}, token=11)
    await api.ask("PATCH", f"data/orders/{key}", {}, token=9)
    await api.ask("PATCH", "data/nobody-invented-this/1", {}, token=9)
    answer = await api.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.text
    assert re.search(r'fencepost_operations_total\{table="orders",verb="patch",verdict="accepted"\} [1-9]', text)
    assert re.search(r'fencepost_operations_total\{table="orders",verb="patch",verdict="FP001"\} [1-9]', text)
    assert re.search(
        r'fencepost_http_request_seconds_count\{method="PATCH",route="/v1/data",status="409"\} [1-9]', text
    )
    assert "nobody-invented-this" not in text, "callers cannot make series"
    assert re.search(r'fencepost_tables\{protected="yes"\} 9.0', text)


async def test_a_database_that_goes_away_is_503_and_comes_back(api: Api, shop: Shop, postgres: PostgresServer) -> None:
    key = await shop.order(mark=10)
    await api.ask("GET", f"data/orders/{key}")
    async with database_away(postgres, shop.dsn):

        async def noticed() -> bool:
            return (await api.http.get("/readyz")).status_code == 503

        await eventually(noticed, what="readyz saying 503")
        state = (await api.http.get("/readyz")).json()
        assert state["status"] == "not ready"
        assert state["database"].startswith("unreachable")
        assert (await api.http.get("/healthz")).status_code == 200
        assert (await api.http.get("/metrics")).status_code == 200
        for method, path, body in (
            ("GET", f"data/orders/{key}", None),
            ("GET", "data/orders", None),
            ("PATCH", f"data/orders/{key}", {}),
            ("POST", "data/orders", {"order_id": shop.key()}),
            ("POST", "claims", {"resource": f"orders/{key}"}),
            ("GET", f"fences?resource=orders/{key}", None),
            ("GET", "data/nowhere", None),
        ):
            answer = await api.ask(method, path, body, token=None if method == "GET" else 11)
            assert code(answer) == (503, "FP010"), (method, path)
            assert int(answer.headers["retry-after"]) >= 1, (method, path)
        assert code(await api.ask("PATCH", f"data/orders/{key}", {})) == (428, "FP003"), "needs no database"
        assert code(await api.ask("PATCH", "data/orders/a,b", {}, token=11)) == (400, "FP016"), "nor does this"

    async def back() -> bool:
        return (await api.http.get("/readyz")).status_code == 200

    await eventually(back, what="readyz saying 200")
    state = (await api.http.get("/readyz")).json()
    assert (state["status"], state["database"], state["schema"]) == ("ready", "reachable", f"revision {newest()}")
    assert re.fullmatch(r"version \d+, \d+ tables", state["catalog"])
    assert (await api.ask("PATCH", f"data/orders/{key}", {}, token=11)).status_code == 200


async def test_a_code_of_the_log_leads_to_its_page_and_a_path_that_is_none_to_what_was_meant(
    http: httpx.AsyncClient,
) -> None:
    for path, where in (
        ("FP001", "stale-token"), ("fp018", "unissued-token"), ("23505", "constraint-violation"),
        ("57P01", "database-refused"), ("", "../problems"),
    ):  # fmt: skip
        redirect = await http.get(f"/problems/{path}")
        assert (redirect.status_code, redirect.headers["location"]) == (308, where)
        assert (await http.get(f"/problems/{path}", follow_redirects=True)).status_code == 200
    for path in ("FP999", "hello", "nothing"):
        assert (await http.get(f"/problems/{path}")).status_code == 404
    for path, hint in (
        ("/v1/fences/orders/order-123", "GET /v1/fences?resource=orders/order-123"),
        ("/v1/orders", "Tables are under /v1/data/."),
        ("/nothing", None),
    ):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["hint"]) == (404, hint)
