"""Errors over real HTTP: PostgreSQL's refusals, bodies, media types, methods and routes."""

from typing import Any

import asyncpg
import pytest
from tests.http.conftest import StartGateway
from tests.support.asking import Api, code
from tests.support.shops import Shop

from fencepost.server.gateway.outcomes import Outcome
from fencepost.server.http import data

REFUSED: list[tuple[dict[str, Any], tuple[int, str], dict[str, Any]]] = [
    ({"status": None}, (400, "23502"), {"column": "status", "table": "orders"}),
    ({"status": "bad"}, (400, "23514"), {"constraint": "orders_status_known", "table": "orders"}),
    ({"customer_id": 99}, (409, "23503"), {"constraint": "orders_customer", "table": "orders"}),
    ({"sku": "taken"}, (409, "23505"), {"constraint": "orders_sku_once", "table": "orders"}),
    ({"quantity": "many"}, (400, "22P02"), {"column": "quantity"}),
    ({"amount": 1e9}, (400, "22003"), {"column": "amount"}),
    ({"code": "abcd"}, (400, "22001"), {"column": "code"}),
    ({"paid_at": "yesterdayish"}, (400, "22007"), {"column": "paid_at"}),
    ({"discount": 101}, (400, "23514"), {"constraint": "percent_range", "column": "discount"}),
    ({"note": "a\0b"}, (400, "22P05"), {"column": None}),
]


async def test_what_postgresql_refuses_carries_its_sqlstate_and_names_what(api: Api, shop: Shop) -> None:
    await shop.sql("INSERT INTO public.orders (order_id, sku, last_fence_token) VALUES ('t', 'taken', 1)")
    key = await shop.order(mark=10)
    for body, expected, named in REFUSED:
        for method, path, sent in (
            ("PATCH", f"data/orders/{key}", body),
            ("PUT", f"data/orders/{shop.key()}", body),
            ("POST", "data/orders", {"order_id": shop.key(), **body}),
            ("PATCH", f"data/orders?order_id=eq.{key}", body),
            ("PATCH", "data/orders", [{"order_id": key, **body}]),
        ):
            answer = await api.ask(method, path, sent, token=11)
            assert code(answer) == expected, (method, path, answer.text)
            answered = answer.json()
            assert {name: answered.get(name) for name in named} == named, (method, path)
            if "sku" in body:
                assert "taken" in answered["details"], "what the request itself has sent is shown"
    assert await shop.mark(key) == 10, "the token is not spent"


async def test_a_refused_row_is_not_shown(api: Api, shop: Shop) -> None:
    """PostgreSQL's "Failing row contains (…)" has all columns, the mark too."""
    mark = 77_700_077
    for body, refused in (({"status": None}, "23502"), ({"status": "bad"}, "23514")):
        key = await shop.order(mark=mark, note="nobody's business")
        for method, path, sent in (
            ("PATCH", f"data/orders/{key}", body),
            ("POST", "data/orders", {"order_id": shop.key(), **body}),
        ):
            answer = await api.ask(method, path, sent, token=mark + 1)
            assert code(answer) == (400, refused), (method, path)
            answered = answer.json()
            assert answered["details"] is None, (method, path)
            assert "status" in answered["detail"], (method, path)
            assert "nobody's business" not in answer.text, (method, path)
            assert str(mark) not in answer.text.replace(str(mark + 1), ""), (method, path)


async def test_generated_columns_cannot_be_written(api: Api, shop: Shop) -> None:
    key = await shop.order()
    for method, path, body in (
        ("PATCH", f"data/orders/{key}", {"twice": 4}),
        ("PUT", f"data/orders/{key}", {"number": 4}),
        ("POST", "data/orders", {"order_id": shop.key(), "number": 4}),
    ):
        assert code(await api.ask(method, path, body, token=11)) == (400, "428C9"), method
    row = (await api.ask("GET", f"data/orders/{key}")).json()
    again = await api.ask("PUT", f"data/orders/{key}?columns=status,quantity", row, token=12)
    assert (again.status_code, again.json()) == (200, row), "?columns= names those that count"


async def test_a_key_that_is_none_of_its_type_is_named(api: Api) -> None:
    for method, path, body, column, expected in (
        ("GET", "data/numbered/abc", None, "id", "22P02"),
        ("PATCH", "data/numbered/99999999999", {}, "id", "22003"),
        ("PUT", "data/tickets/123", {}, "id", "22P02"),
        ("DELETE", "data/items/a,b", None, "line", "22P02"),
        ("POST", "claims", {"resource": "numbered/abc"}, "id", "22P02"),
        ("GET", "fences?resource=tickets/123", None, "id", "22P02"),
    ):
        answer = await api.ask(method, path, body, token=None if method == "GET" else 5)
        assert (code(answer), answer.json()["column"]) == ((400, expected), column), (method, path)


async def test_a_lock_and_a_statement_that_take_too_long_are_503(
    api: Api, shop: Shop, start_gateway: StartGateway
) -> None:
    key = await shop.order(mark=10)
    await shop.sql("CREATE VIEW public.slow AS SELECT 1 AS id, pg_sleep(60)::text AS nap")
    holder = await asyncpg.connect(shop.dsn)
    await holder.execute("BEGIN")
    await holder.execute("SELECT FROM public.orders WHERE order_id = $1 FOR UPDATE", key)
    url = await start_gateway(shop.dsn, serve_unprotected=True, lock_timeout=0.3, statement_timeout=1.5)
    async with Api.open(url) as hurried:
        assert code(await hurried.ask("PATCH", f"data/orders/{key}", {"status": "x"}, token=11)) == (503, "55P03")
        assert code(await hurried.ask("GET", "data/slow")) == (503, "57014")
    await holder.execute("ROLLBACK")
    await holder.close()
    assert (await api.ask("PATCH", f"data/orders/{key}", {"status": "x"}, token=11)).status_code == 200


async def test_the_refusal_of_a_tables_own_trigger_is_answered(api: Api, shop: Shop) -> None:
    await shop.sql(
        "CREATE FUNCTION public.no() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not today' USING HINT = 'tomorrow', DETAIL = 'closed'; END $$"
    )
    await shop.sql("CREATE TRIGGER no BEFORE UPDATE ON public.tickets FOR EACH ROW EXECUTE FUNCTION public.no()")
    ticket = "0190a5c4-7d3e-7c1a-9b55-3f2f6a1c0d42"
    await api.ask("PUT", f"data/tickets/{ticket}", {}, token=1)
    answer = await api.ask("PATCH", f"data/tickets/{ticket}", {"label": "x"}, token=2)
    assert code(answer) == (400, "P0001")
    answered = answer.json()
    assert (answered["message"], answered["hint"], answered["details"]) == ("not today", "tomorrow", "closed")


async def test_a_body_too_large_is_413_announced_or_not(api: Api, shop: Shop) -> None:
    target, token = f"/v1/data/orders/{await shop.order()}".encode(), (b"X-Fence-Token", b"11")
    huge = await api.raw("PATCH", target, headers=[token, (b"Content-Length", b"10001")])
    assert (huge.status, huge.json()["code"]) == (413, "FP017"), "said before the body is sent"
    body = b'{"note": "' + b"x" * 10_000 + b'"}'
    assert (await api.raw("PATCH", target, body, headers=[token])).status == 413
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    chunked = [token, (b"Transfer-Encoding", b"chunked"), (b"Content-Type", b"application/json")]
    assert (await api.raw("PATCH", target, sent, headers=chunked, announce=False)).status == 413
    assert (await api.raw("PATCH", target, b'{"note": "%s"}' % (b"x" * (10_000 - 12)), headers=[token])).status == 200


async def test_media_types_of_bodies(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1)
    path, token = f"data/orders/{key}", 1
    for kind in ("application/vnd.x+json", "APPLICATION/JSON; charset=utf-8"):
        token += 1
        answer = await api.ask("PATCH", path, content=b"{}", token=token, headers={"Content-Type": kind})
        assert answer.status_code == 200, kind
    for kind in ("text/plain", "application/json; charset=iso-8859-1", ""):
        for method, where in (("PATCH", path), ("PUT", path), ("POST", "data/orders"), ("POST", "claims")):
            answer = await api.ask(method, where, content=b"{}", token=99, headers={"Content-Type": kind})
            assert code(answer) == (415, "FP022"), (method, kind)
    assert await shop.mark(key) == token


async def test_rows_are_named_by_a_key_that_there_is_and_keep_it(api: Api) -> None:
    renamed = await api.ask("PATCH", "data/orders?note=eq.x", {"order_id": "y"}, token=9)
    assert (code(renamed), "order_id is the primary key" in renamed.json()["detail"]) == ((400, "FP016"), True)
    keyless = await api.ask("GET", "data/keyless/x")
    assert (code(keyless), "has no primary key: name rows by filters" in keyless.json()["detail"]) == (
        (400, "FP016"), True,
    )  # fmt: skip


async def test_a_body_that_is_no_json_is_400(api: Api, shop: Shop) -> None:
    twice = (b'{"status": "a", "status": "b"}', b'[{"status": "a", "status": "b"}]')
    bodies = (*twice, b"", b"{", b'{"a": NaN}', b'{"a": "\xff"}', b"[" * 5000)
    for path in (f"data/orders/{await shop.order()}", "data/orders", "claims"):
        for body in bodies:
            method = "PATCH" if path.startswith("data/orders/") else "POST"
            answer = await api.ask(method, path, content=body, token=99, headers={"Content-Type": "application/json"})
            assert code(answer) == (400, "FP016"), (path, body)
            assert answer.json()["detail"].startswith("body: "), (path, body)


async def test_other_methods_are_405_with_allow(api: Api) -> None:
    for path, allowed, refused in (
        ("data/orders", "GET, HEAD, POST, PATCH, DELETE", ("PUT", "OPTIONS", "PROPFIND")),
        ("data/orders/x", "GET, HEAD, PATCH, PUT, DELETE", ("POST", "TRACE")),
        ("claims", "POST", ("GET", "DELETE")),
        ("fences", "GET", ("POST",)),
        ("leases", "POST", ("GET", "PUT")),
        ("leases/1", "GET, HEAD, DELETE", ("PUT", "POST")),
        ("leases/1/renew", "POST", ("GET",)),
        ("leases/1/tokens", "POST", ("DELETE",)),
        ("locks", "GET", ("POST",)),
        ("writes/postgres:default.0.0", "GET", ("DELETE",)),
    ):
        for method in refused:
            answer = await api.http.request(method, f"/v1/{path}")
            await api.check(answer)
            assert code(answer) == (405, "FP020"), (method, path)
            assert set(answer.headers["allow"].split(", ")) >= set(allowed.split(", "))


async def test_an_error_of_our_own_is_500_with_the_request_id(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_arguments: object) -> Outcome:
        raise ZeroDivisionError("a secret of the house")

    monkeypatch.setattr(data, "read_one", broken)
    answer = await api.http.get("/v1/data/orders/x", headers={"X-Request-Id": "find-me"})
    problem = await api.check_problem(500, answer.headers, answer.content)
    assert (answer.status_code, problem["code"]) == (500, "FP023")
    assert answer.headers["x-request-id"] == "find-me"
    assert "find-me" in problem["detail"]
    assert "secret" not in answer.text
    assert "ZeroDivision" not in answer.text
    assert answer.headers["cache-control"] == "no-store"
    monkeypatch.undo()
    assert code(await api.ask("GET", "data/orders/x")) == (404, "FP006"), "and the gateway goes on"
