"""What the routes of leases refuse: every error names what and where, and no secret is ever shown."""

import hashlib
import json
from collections.abc import Iterator

import pytest
from tests.scenarios.shop import Shop
from tests.support.asking import Api, code
from tests.support.lease_asking import (
    SECRETS,
    Said,
    acquire,
    digest,
    lease,
    leasing_shop,
    new_name,
    new_secret,
    of,
)

from fencepost.embedded.server import PostgresServer


@pytest.fixture(scope="module")
def leasing(postgres: PostgresServer, template: str) -> Iterator[tuple[Shop, Said]]:
    with leasing_shop(postgres, template) as leasing:
        yield leasing


@pytest.fixture
def shop(leasing: tuple[Shop, Said]) -> Shop:
    return leasing[0]


async def test_a_foreign_or_unknown_lease_is_410(api: Api) -> None:
    given = await lease(api)
    wrong = {"X-Lease-Secret": new_secret()}
    path = f"leases/{given['lease_id']}"
    assert code(await api.ask("POST", f"{path}/renew", headers=wrong)) == (410, "FP012")
    assert code(await api.ask("POST", f"{path}/tokens", headers=wrong)) == (410, "FP012")
    assert code(await api.ask("DELETE", path, headers=wrong)) == (410, "FP012")
    assert (await api.ask("GET", path)).status_code == 200
    for unknown in ("9223372036854775807", "9223372036854775808", "0", "007", "-1", "x", "1e3", "%D9%A1", "9" * 5000):
        path = f"leases/{unknown}"
        assert code(await api.ask("GET", path)) == (410, "FP012"), unknown[:30]
        assert code(await api.ask("POST", f"{path}/renew", headers=wrong)) == (410, "FP012"), unknown
        assert code(await api.ask("POST", f"{path}/tokens", headers=wrong)) == (410, "FP012"), unknown
        answer = await api.ask("DELETE", path, headers=wrong)
        assert (answer.status_code, answer.content) == (204, b""), unknown


async def test_what_cannot_be_asked_for_is_400_and_names_where(api: Api) -> None:
    for body, where in (
        ({}, "body: name what to lock"),
        ({"lock": "a", "locks": ["a"]}, "body: name what to lock"),
        ({"lock": ""}, "body: lock: "),
        ({"lock": "x" * 513}, "body: lock: "),
        ({"lock": "ä" * 257}, "body: lock: "),
        ({"lock": "a\nb"}, "body: lock: "),
        ({"lock": 1}, "body: lock: "),
        ({"locks": []}, "body: locks: "),
        ({"locks": [f"n{number}" for number in range(33)]}, "body: locks: "),
        ({"locks": ["a", "b", "a"]}, "body: locks: a name stands there twice"),
        ({"locks": ["a", 1]}, "body: lock: "),
        ({"lock": "a", "owner": "x" * 257}, "body: owner: "),
        ({"lock": "a", "owner": "two\nlines"}, "body: owner: "),
        ({"lock": "a", "ttl_ms": 0}, "body: ttl_ms: 0 is not an integer from 1 to 100000"),
        ({"lock": "a", "ttl_ms": 1.5}, "body: ttl_ms: "),
        ({"lock": "a", "ttl_ms": True}, "body: ttl_ms: "),
        ({"lock": "a", "ttl_ms": 100_001}, "body: ttl_ms: "),
        ({"lock": "a", "wait_ms": 2_000_000_001}, "body: wait_ms: 2000000001 is not an integer from 0 to 2000000000"),
        ({"lock": "a", "keep_place": True}, "body: keep_place: a place is kept for a client that has"),
        ({"lock": "a", "tokens": 0}, "body: tokens: "),
        ({"lock": "a", "tokens": 8}, "body: tokens: 8 is not an integer from 1 to 7"),
        ({"lock": "a", "keep_place": 1}, "body: keep_place: "),
        ({"lock": "a", "claim": "orders/1"}, "body: claim: "),
        ({"lock": "a", "claim": [1]}, "body: claim: "),
        ({"lock": "a", "claim": ["orders/%zz"]}, "body: claim: "),
        ({"lock": "a", "claim": ["orders/1", "orders/1"]}, "body: claim: a resource stands there twice"),
        ({"lock": "a", "claim": [f"orders/{number}" for number in range(101)]}, "body: claim: "),
        ({"lock": "a", "ttl": 5, "name": "b"}, "body: name, ttl: unknown"),
        ([], "body: a JSON object"),
        ("a", "body: a JSON object"),
    ):
        answer = await api.ask("POST", "leases", body)
        assert code(answer) == (400, "FP016"), answer.text
        assert answer.json()["detail"].startswith(where), (body, where)


async def test_caps_are_named(api: Api) -> None:
    for body, setting in (
        ({"lock": "a", "ttl_ms": 100_001}, "FENCEPOST_MAX_TTL"),
        ({"lock": "a", "tokens": 8}, "FENCEPOST_MAX_TOKENS"),
    ):
        assert setting in (await api.ask("POST", "leases", body)).json()["hint"], setting
    given = await lease(api, ttl_ms=100_000, tokens=7)
    path = f"leases/{given['lease_id']}"
    too_long = await api.ask("POST", f"{path}/renew", {"ttl_ms": 100_001}, headers=of(given))
    assert code(too_long) == (400, "FP016")
    too_many = await api.ask("POST", f"{path}/tokens", {"count": 8}, headers=of(given))
    assert code(too_many) == (400, "FP016")
    assert "FENCEPOST_MAX_TOKENS" in too_many.json()["hint"]


async def test_bodies_that_are_not_json_are_refused(api: Api) -> None:
    given = await lease(api)
    for path in ("leases", f"leases/{given['lease_id']}/renew", f"leases/{given['lease_id']}/tokens"):
        for content, kind, refusal in (
            (b"{", "application/json", (400, "FP016")),
            (b'{"lock": "\\ud800"}', "application/json", (400, "FP016")),
            (b"\xff", "application/json", (400, "FP016")),
            (b"lock=a", "application/x-www-form-urlencoded", (415, "FP022")),
            (b'{"lock": "' + b"x" * 10_001 + b'"}', "application/json", (413, "FP017")),
        ):
            answer = await api.ask("POST", path, content=content, headers={"Content-Type": kind, **of(given)})
            assert answer.status_code == refusal[0], f"{path} {content[:20]!r}: {answer.text}"
    assert code(await api.ask("POST", "leases", content=b"")) == (400, "FP016")
    for path in (f"leases/{given['lease_id']}/renew", f"leases/{given['lease_id']}/tokens"):
        bodies: tuple[object, ...] = ([], "x", {"ttl": 1}, {"ttl_ms": 0} if path.endswith("renew") else {"count": 0})
        for body in bodies:
            assert code(await api.ask("POST", path, body, headers=of(given))) == (400, "FP016"), body


async def test_a_secret_that_cannot_be_one_is_400_and_is_not_repeated(api: Api) -> None:
    given = await lease(api)
    path = f"/v1/leases/{given['lease_id']}".encode()
    body = json.dumps({"lock": new_name()}).encode()
    fine = new_secret().encode()
    for values in (
        [b"short-secret"],
        [b"x" * 21],
        [b"y" * 257],
        [b"has a space in the middle"],
        [b"\xc3\xa4" * 20],
        [fine, fine],
        [b""],
    ):
        headers = [(b"X-Lease-Secret", value) for value in values]
        for method, where, sent in (
            ("POST", b"/v1/leases", body),
            ("POST", path + b"/renew", b""),
            ("POST", path + b"/tokens", b""),
            ("DELETE", path, b""),
        ):
            raw = await api.raw(method, where, sent, headers=headers)
            assert raw.status == 400, (method, where, values)
            assert raw.json()["detail"].startswith("X-Lease-Secret: "), method
            assert all(value not in raw.body for value in values if value), method
    for method, where in (("POST", path + b"/renew"), ("POST", path + b"/tokens"), ("DELETE", path)):
        raw = await api.raw(method, where)
        assert (raw.status, raw.json()["code"]) == (400, "FP016"), method
        assert raw.json()["detail"].startswith("X-Lease-Secret: missing"), method
    for length in (22, 256):
        SECRETS.append("!~" * (length // 2))
        assert (await acquire(api, new_name(), secret=SECRETS[-1])).status_code == 201, length
    assert (await api.ask("GET", f"leases/{given['lease_id']}")).status_code == 200


async def test_other_methods_are_405(api: Api) -> None:
    given = await lease(api)
    for method, path in (
        ("GET", "leases"),
        ("PUT", "leases"),
        ("PUT", f"leases/{given['lease_id']}"),
        ("POST", f"leases/{given['lease_id']}"),
        ("GET", f"leases/{given['lease_id']}/renew"),
        ("DELETE", f"leases/{given['lease_id']}/tokens"),
        ("POST", "locks"),
    ):
        answer = await api.http.request(method, f"/v1/{path}")
        assert answer.status_code == 405, (method, path)
    assert (await api.http.post("/v1/leases/", json={"lock": new_name()})).status_code == 404


async def test_debug_logs_have_leases_and_never_secrets(api: Api, leasing: tuple[Shop, Said]) -> None:
    secret = new_secret()
    given = await lease(api, secret=secret, owner="shown in the logs")
    path = f"leases/{given['lease_id']}"
    await api.ask("POST", f"{path}/renew", headers=of(given))
    await api.ask("POST", f"{path}/tokens", headers={"X-Lease-Secret": new_secret()})
    await api.ask("POST", "leases", content=b"{", headers={"X-Lease-Secret": secret})
    await acquire(api, new_name(), secret=secret)
    await api.ask("DELETE", path, headers=of(given))
    made_up = await lease(api)
    text = leasing[1].text
    assert "shown in the logs" in text
    assert given["lease_id"] in text
    for hidden in (secret, made_up["secret"]):
        assert hidden not in text
        assert digest(hidden) not in text
        assert repr(hashlib.sha256(hidden.encode()).digest()) not in text
