"""What the routes of leases refuse: every error names what and where, and no secret is ever shown."""

import json
from collections.abc import Iterator

import pytest
from tests.scenarios.shop import Shop
from tests.support.asking import Api, code
from tests.support.lease_asking import (
    SECRETS,
    Said,
    acquire,
    lease,
    leasing_shop,
    new_name,
    new_secret,
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
    for unknown in ("9223372036854775808", "007", "-1", "x", "9" * 5000):
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
        ({"lock": "ä" * 257}, "body: lock: "),
        ({"lock": "a\nb"}, "body: lock: "),
        ({"locks": []}, "body: locks: "),
        ({"locks": [f"n{number}" for number in range(33)]}, "body: locks: "),
        ({"locks": ["a", "b", "a"]}, "body: locks: a name stands there twice"),
        ({"lock": "a", "owner": "x" * 257}, "body: owner: "),
        ({"lock": "a", "ttl_ms": 0}, "body: ttl_ms: 0 is not an integer from 1 to 100000"),
        ({"lock": "a", "ttl_ms": True}, "body: ttl_ms: "),
        ({"lock": "a", "ttl_ms": 100_001}, "body: ttl_ms: "),
        ({"lock": "a", "wait_ms": 2_000_000_001}, "body: wait_ms: 2000000001 is not an integer from 0 to 2000000000"),
        ({"lock": "a", "keep_place": True}, "body: keep_place: a place is kept for a client that has"),
        ({"lock": "a", "tokens": 8}, "body: tokens: 8 is not an integer from 1 to 7"),
        ({"lock": "a", "claim": "orders/1"}, "body: claim: "),
        ({"lock": "a", "claim": ["orders/1", "orders/1"]}, "body: claim: a resource stands there twice"),
        ({"lock": "a", "claim": [f"orders/{number}" for number in range(101)]}, "body: claim: "),
        ({"lock": "a", "ttl": 5, "name": "b"}, "body: name, ttl: unknown"),
        ([], "body: a JSON object"),
    ):
        answer = await api.ask("POST", "leases", body)
        assert code(answer) == (400, "FP016"), answer.text
        assert answer.json()["detail"].startswith(where), (body, where)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert code(await api.ask("POST", "leases", content=b"lock=a", headers=form)) == (415, "FP022")


async def test_a_secret_that_cannot_be_one_is_400_and_is_not_repeated(api: Api) -> None:
    given = await lease(api)
    path = f"/v1/leases/{given['lease_id']}".encode()
    body = json.dumps({"lock": new_name()}).encode()
    fine = new_secret().encode()
    for values in ([b"x" * 21], [b"y" * 257], [b"has a space in the middle"], [b"\xc3\xa4" * 20], [fine, fine], [b""]):
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
