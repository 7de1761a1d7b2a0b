"""Paths: split before they are decoded, then decoded strictly; bytes that a client library would tidy up."""

from urllib.parse import quote

from tests.scenarios.shop import Shop
from tests.support.asking import Api, code

TOKEN = (b"X-Fence-Token", b"99")


async def test_a_key_value_may_hold_anything(api: Api, shop: Shop) -> None:
    for path, value, resource in (
        (b"a%2Fb", "a/b", "a%2Fb"),
        (b"a%2fb", "a/b", "a%2Fb"),
        (b"a%2Cb", "a,b", "a%2Cb"),
        (b"100%25", "100%", "100%25"),
        (b"%252F", "%2F", "%252F"),
        (b"a%3Bb", "a;b", "a%3Bb"),
        (b"a;b", "a;b", "a%3Bb"),
        (b"line%0Abreak", "line\nbreak", "line\nbreak"),
        (b"gr%C3%BC%C3%9Fe", "grüße", "grüße"),
        (b"%F0%9F%94%92", "🔒", "🔒"),
        (b"a+b", "a+b", "a+b"),
        (b"a%20b", "a b", "a b"),
        (b"%3Fx%23y", "?x#y", "?x#y"),
        (b"it's", "it's", "it's"),
        (b"%22quoted%22", '"quoted"', '"quoted"'),
        (b"back%5Cslash", "back\\slash", "back\\slash"),
        (b"...", "...", "..."),
        (b".a", ".a", ".a"),
        (b"%2E%2E%2Fetc", "../etc", "..%2Fetc"),
        (b"", "", ""),
        (b".", ".", "."),
    ):
        line = next(shop.numbers)
        at = b"/v1/data/items/%s,%d" % (path, line)
        made = await api.raw("PUT", at, b'{"what": "new"}', headers=[TOKEN])
        assert (made.status, made.json()["order_id"]) == (201, value), (path, value, resource)
        await api.raw("DELETE", at, headers=[(b"X-Fence-Token", b"100")])
        stale = await api.raw("PUT", at, b"{}", headers=[TOKEN])
        assert (stale.status, stale.json()["resource"]) == (409, f"items/{resource},{line}"), (path, value, resource)
        fence = await api.http.get("/v1/fences", params={"resource": f"items/{resource},{line}"})
        assert (fence.json()["resource"], fence.json()["mark"]) == (f"items/{resource},{line}", "100"), (
            path,
            value,
            resource,
        )
        again = await api.raw("PUT", at, b"{}", headers=[(b"X-Fence-Token", b"101")])
        assert again.status == 201, (path, value, resource)
        assert (await api.raw("GET", at)).json()["order_id"] == value, (path, value, resource)
        assert (await api.raw("HEAD", at)).body == b"", (path, value, resource)
        found = await api.http.get("/v1/data/items", params={"order_id": f"eq.{value}", "line": f"eq.{line}"})
        assert [row["order_id"] for row in found.json()] == [value], (path, value, resource)


async def test_what_cannot_be_decoded_is_400(api: Api) -> None:
    for path in (b"%", b"%2", b"%zz", b"a%2", b"%C3", b"%FF", b"%C0%AF", b"%00", b"a%00b", b"%ED%A0%80", b"%u0041"):
        for at in (
            b"/v1/data/orders/" + path,
            b"/v1/data/items/1," + path,
            b"/v1/data/" + path,
            b"/v1/data/" + path + b"/1",
        ):
            for method in ("GET", "PUT", "DELETE"):
                if method == "PUT" and at.count(b"/") == 3:
                    continue
                headers = [] if method == "GET" else [TOKEN]
                answer = await api.raw(method, at, b"{}" if method == "PUT" else b"", headers=headers)
                assert (answer.status, answer.json()["code"]) == (400, "FP016"), (method, at)
                assert answer.json()["detail"].startswith("path: "), method


async def test_keys_that_a_proxy_would_eat_go_through_filters(api: Api, shop: Shop) -> None:
    for key in (b"", b".", b"..", b"%2E", b"%2e%2E", b".%2e"):
        survivor = await shop.order(mark=1)
        for method in ("GET", "HEAD", "PATCH", "PUT", "DELETE"):
            for query in (b"", b"?order_id=eq.x", b"?order_id=neq.x"):
                body = b"{}" if method in ("PATCH", "PUT") else b""
                headers = [] if method in ("GET", "HEAD") else [TOKEN]
                answer = await api.raw(method, b"/v1/data/orders/" + key + query, body, headers=headers)
                assert answer.status == 400, (method, query)
                if method != "HEAD":
                    assert answer.json()["code"] == "FP016", key
        assert await shop.mark(survivor) == 1, key


async def test_other_paths_are_no_routes_and_nothing_is_redirected(api: Api, shop: Shop) -> None:
    for path in (
        b"/v1/data",
        b"/v1/data/",
        b"/v1/data//",
        b"/v1/data//orders",
        b"/v1/data/orders//",
        b"/v1/data/orders/a/",
        b"/v1/data/orders//a",
        b"/v1/data/orders/a/b",
        b"//v1/data/orders",
        b"/v1//data/orders",
        b"/v1/data/../data/orders",
        b"/v1/../v1/data/orders",
        b"/V1/data/orders",
        b"/v1/Data/orders",
        b"/v1/dat%61/orders",
        b"/v1/data%2Forders",
        b"/v1/claims/",
        b"/v1/fences/",
        b"/healthz/",
        b"/v1",
        b"/v1/",
        b"/v2/data/orders",
    ):
        survivor = await shop.order(mark=1)
        for method in ("GET", "POST", "PATCH", "PUT", "DELETE"):
            answer = await api.raw(method, path + b"?order_id=neq.x", b"{}", headers=[TOKEN])
            assert (answer.status, answer.header("location")) == (404, None), method
            assert answer.json()["code"] == "FP019", method
            assert answer.header("cache-control") == "no-store", method
        assert await shop.mark(survivor) == 1, path


async def test_commas_separate_the_values_of_a_key(api: Api) -> None:
    made = await api.raw("PUT", b"/v1/data/items/a%2C1,2", b"{}", headers=[TOKEN])
    assert (made.status, made.json()["order_id"], made.json()["line"]) == (201, "a,1", 2)
    for path in (b"a,1,2", b"a%2C1%2C2", b",", b"a,", b",,"):
        answer = await api.raw("DELETE", b"/v1/data/items/" + path, headers=[TOKEN])
        assert answer.status == 400, path
    for key in (b"a,b", b"a,", b","):
        answer = await api.raw("DELETE", b"/v1/data/orders/" + key, headers=[TOKEN])
        assert answer.status == 400, "a comma in a single-column key is written %2C"


async def test_table_names_may_hold_anything_too(api: Api) -> None:
    name = quote("with/slash, and space", safe="")
    assert (await api.ask("PUT", f"data/{name}/1", {"label": "x"}, token=5)).status_code == 201
    stale = await api.ask("PATCH", f"data/{name}/1", {}, token=4)
    assert (code(stale), stale.json()["resource"]) == ((409, "FP001"), "with%2Fslash%2C and space/1")
    claim = await api.ask("POST", "claims", {"resource": stale.json()["resource"]}, token=6)
    assert (claim.status_code, claim.json()["row"]) == (200, {"id": 1, "label": "x"})
    made = await api.ask("POST", f"data/{name}", {"id": 2}, token=5)
    assert made.headers["location"] == f"/v1/data/{name}/2"
    for raw in (b"/v1/data/with/slash,%20and%20space/1", b"/v1/data/with%2Fslash,+and+space/1"):
        assert (await api.raw("GET", raw)).status == 404


async def test_bytes_beyond_ascii_in_a_path_are_refused_or_read_as_utf8(api: Api) -> None:
    for raw in (b"/v1/data/orders/\xff", b"/v1/data/orders/\xc3\xbc", b"/v1/data/orders/a b"):
        answer = await api.raw("GET", raw)
        assert answer.status in (400, 404), raw
    for raw in (b"http://gateway/v1/data/diary/1", b"/v1/data/diary/1#fragment"):
        assert (await api.raw("GET", raw)).status in (200, 400, 404)
