"""Paths: split before they are decoded, then decoded strictly; bytes that a client library would tidy up."""

from urllib.parse import quote

from tests.scenarios.shop import Shop
from tests.support.asking import Api, code

TOKEN = (b"X-Fence-Token", b"99")


async def test_a_key_value_may_hold_anything(api: Api, shop: Shop) -> None:
    for path, value, resource in (
        (b"a%2Fb", "a/b", "a%2Fb"),
        (b"a%2cb", "a,b", "a%2Cb"),
        (b"%252F", "%2F", "%252F"),
        (b"a;b", "a;b", "a%3Bb"),
        (b"line%0Abreak", "line\nbreak", "line\nbreak"),
        (b"%F0%9F%94%92", "🔒", "🔒"),
        (b"a+b", "a+b", "a+b"),
        (b"%3Fx%23y", "?x#y", "?x#y"),
        (b"%2E%2E%2Fetc", "../etc", "..%2Fetc"),
        (b"", "", ""),
        (b".", ".", "."),
    ):
        line = next(shop.numbers)
        at = b"/v1/data/items/%s,%d" % (path, line)
        made = await api.raw("PUT", at, b'{"what": "new"}', headers=[TOKEN])
        assert (made.status, made.json()["order_id"]) == (201, value), path
        await api.raw("DELETE", at, headers=[(b"X-Fence-Token", b"100")])
        stale = await api.raw("PUT", at, b"{}", headers=[TOKEN])
        assert (stale.status, stale.json()["resource"]) == (409, f"items/{resource},{line}"), path
        fence = await api.http.get("/v1/fences", params={"resource": f"items/{resource},{line}"})
        assert (fence.json()["resource"], fence.json()["mark"]) == (f"items/{resource},{line}", "100"), path


async def test_what_cannot_be_decoded_is_400(api: Api) -> None:
    for path in (b"%", b"a%2", b"%zz", b"%FF", b"%C0%AF", b"a%00b", b"%ED%A0%80", b"a,b", b"a,", b".", b"%2e%2E", b""):
        for method in ("GET", "PUT", "DELETE"):
            headers, body = [] if method == "GET" else [TOKEN], b"{}" if method == "PUT" else b""
            answer = await api.raw(method, b"/v1/data/orders/" + path, body, headers=headers)
            assert (answer.status, answer.json()["code"]) == (400, "FP016"), (method, path)


async def test_other_paths_are_no_routes_and_nothing_is_redirected(api: Api, shop: Shop) -> None:
    survivor = await shop.order(mark=1)
    for path in (
        b"/v1/data", b"/v1/data//orders", b"/v1/data/orders//", b"/v1/data/orders/a/", b"/v1/data/orders/a/b",
        b"//v1/data/orders", b"/v1/data/../data/orders", b"/V1/data/orders", b"/v1/dat%61/orders", b"/v1/data%2Forders",
        b"/v1/claims/", b"/healthz/", b"/v1/", b"/v2/data/orders",
    ):  # fmt: skip
        for method in ("GET", "POST", "PATCH", "PUT", "DELETE"):
            answer = await api.raw(method, path + b"?order_id=neq.x", b"{}", headers=[TOKEN])
            assert (answer.status, answer.header("location")) == (404, None), (method, path)
            assert answer.json()["code"] == "FP019", (method, path)
    assert await shop.mark(survivor) == 1


async def test_table_names_may_hold_anything_too(api: Api) -> None:
    name = quote("with/slash, and space", safe="")
    assert (await api.ask("PUT", f"data/{name}/1", {"label": "x"}, token=5)).status_code == 201
    stale = await api.ask("PATCH", f"data/{name}/1", {}, token=4)
    assert (code(stale), stale.json()["resource"]) == ((409, "FP001"), "with%2Fslash%2C and space/1")
    claim = await api.ask("POST", "claims", {"resource": stale.json()["resource"]}, token=6)
    assert (claim.status_code, claim.json()["row"]) == (200, {"id": 1, "label": "x"})
    made = await api.ask("POST", f"data/{name}", {"id": 2}, token=5)
    assert made.headers["location"] == f"/v1/data/{name}/2"
