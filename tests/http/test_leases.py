"""Leases and locks over real HTTP: a lease's life, who waits, what is shown of both, and what is refused."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from tests.support.asking import Api, code
from tests.support.gateways import in_process
from tests.support.lease_gateways import (
    SECRETS,
    TIME,
    TOKEN,
    acquire,
    expire,
    lease,
    leasing_shop,
    new_name,
    new_secret,
    of,
)
from tests.support.postgres import ReadyMade, database_away
from tests.support.shops import Shop

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.processes import eventually

STATE = {
    "lease_id", "source", "lock", "locks", "owner", "ttl_ms", "granted_at", "expires_at", "remaining_ms", "claims",
    "writes",
}  # fmt: skip
GRANT = STATE - {"writes"} | {"secret", "token", "tokens", "waited_ms"}


@pytest.fixture(scope="module")
def shop(databases: ReadyMade) -> Iterator[Shop]:
    with leasing_shop(databases) as shop:
        yield shop


async def test_a_grant_has_all_that_its_holder_needs(api: Api) -> None:
    name = new_name()
    answer = await acquire(api, name, owner="worker-a", ttl_ms=20_000, tokens=3)
    given = answer.json()
    SECRETS.append(given["secret"])
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/leases/{given['lease_id']}"
    assert given.keys() == GRANT
    assert (given["lock"], given["locks"], given["owner"], given["ttl_ms"]) == (name, [name], "worker-a", 20_000)
    assert len(given["tokens"]) == 3
    assert all(TOKEN.fullmatch(token) for token in [given["lease_id"], *given["tokens"]])
    assert [int(token) for token in given["tokens"]] == sorted({int(token) for token in given["tokens"]})
    assert given["token"] == given["tokens"][0]
    assert all(TIME.fullmatch(given[time]) for time in ("granted_at", "expires_at"))
    assert given["granted_at"] < given["expires_at"]
    assert 0 < given["remaining_ms"] <= 20_000
    assert (given["waited_ms"], given["claims"]) == (0, [])
    assert len(given["secret"]) >= 22


async def test_a_repeated_acquire_is_200_with_the_same_lease(api: Api) -> None:
    name, secret = new_name(), new_secret()
    first = await lease(api, name, secret=secret, tokens=2)
    again = await acquire(api, name, secret=secret, tokens=5)
    assert again.status_code == 200
    assert again.headers["location"] == f"/v1/leases/{first['lease_id']}"
    left = {"remaining_ms": again.json()["remaining_ms"]}
    assert (again.json(), left["remaining_ms"] <= first["remaining_ms"]) == (first | left, True)
    assert first["secret"] == secret
    for mismatch in (
        await acquire(api, name, new_name(), secret=secret),
        await acquire(api, name, secret=secret, owner="another"),
    ):
        assert code(mismatch) == (400, "FP016")
        assert mismatch.json()["detail"].startswith("X-Lease-Secret: ")


async def test_a_held_lock_is_423_and_names_who_has_it(api: Api) -> None:
    name = new_name()
    holder = await lease(api, name, owner="worker-a", ttl_ms=20_000)
    answer = await acquire(api, new_name(), name, owner="worker-b")
    assert code(answer) == (423, "FP011")
    answered = answer.json()
    assert answered["type"] == "/problems/lock-held"
    assert (answered["lock"], answered["holder"], answered["lease_id"]) == (name, "worker-a", holder["lease_id"])
    assert (answered["held_since"], answered["held_until"]) == (holder["granted_at"], holder["expires_at"])
    assert answered["waiting"] == 0
    assert 1 <= int(answer.headers["retry-after"]) <= 20
    kept = await acquire(api, name, wait_ms=30, keep_place=True, secret=new_secret(), owner="worker-a")
    assert code(kept) == (423, "FP011"), "not even to its owner, when a wait is over"
    locks = (await api.ask("GET", f"locks?name={name}")).json()
    assert [waiter["owner"] for waiter in locks[0]["waiters"]] == ["worker-a"], "its place is kept"


async def test_a_claim_comes_with_the_grant_or_refuses_it(api: Api, shop: Shop) -> None:
    key, late = await shop.order(mark=1), await shop.order(mark=9_000_000)
    given = await lease(api, new_name(), claim=[f"orders/{key}"], ttl_ms=20_000)
    (claim,) = given["claims"]
    assert (claim["resource"], claim["row"]["order_id"]) == (f"orders/{key}", key)
    assert code(await api.ask("PATCH", f"data/orders/{key}", {}, token=claim["mark"])) == (409, "FP002")
    assert (await api.ask("PATCH", f"data/orders/{key}", {}, token=given["token"])).status_code == 200
    assert (await api.ask("GET", f"leases/{given['lease_id']}")).json()["claims"] == [f"orders/{key}"]
    for wanted, refusal in (
        ("diary/1", (403, "FP005")),
        ("nowhere/1", (404, "FP007")),
        ("items/one", (400, "FP016")),
        (f"orders/{late}", (409, "FP008")),
    ):
        name = new_name()
        answer = await acquire(api, name, claim=[wanted])
        assert code(answer) == refusal, wanted
        assert (await api.ask("GET", f"locks?name={name}")).json() == [], wanted
    assert (answer.json()["current_token"], answer.json()["resource"]) == ("9000000", f"orders/{late}")


async def test_a_lease_is_looked_at_without_its_secret_renewed_and_mints(api: Api, shop: Shop) -> None:
    given, other = await lease(api, tokens=2, ttl_ms=20_000), await lease(api)
    path = f"leases/{given['lease_id']}"
    answer = await api.ask("GET", path)
    assert (answer.status_code, answer.json().keys()) == (200, STATE)
    assert given["secret"] not in answer.text
    assert not {*given["tokens"]} & {*map(str, answer.json().values())}, "they are its holder's"
    await shop.sql(
        "UPDATE fencepost.leases SET expires_at = expires_at - interval '10 s' WHERE lease_id = $1",
        int(given["lease_id"]),
    )
    for body, ttl_ms in ((None, 20_000), ({"ttl_ms": 50_000}, 50_000), ({"ttl_ms": 9000}, 9000)):
        answer = await api.ask("POST", f"{path}/renew", body, headers=of(given))
        state = answer.json()
        assert (answer.status_code, state.keys(), state["ttl_ms"]) == (200, STATE, ttl_ms)
        assert ttl_ms - 5000 < state["remaining_ms"] <= ttl_ms, ttl_ms
        assert (await api.ask("GET", path)).json()["expires_at"] == state["expires_at"], ttl_ms
    newest = int(other["token"])
    for body, count in ((None, 1), ({"count": 7}, 7)):
        answer = await api.ask("POST", f"{path}/tokens", body, headers=of(given))
        minted = answer.json()
        assert (answer.status_code, minted.keys()) == (200, {"lease_id", "token", "tokens", "expires_at"}), count
        numbers = [int(token) for token in minted["tokens"]]
        assert (len(numbers), numbers, str(numbers[0])) == (count, sorted(numbers), minted["token"])
        assert numbers[0] > newest, count
        newest = numbers[-1]


async def test_releasing_frees_the_lock_and_twice_is_harmless(api: Api) -> None:
    name = new_name()
    given = await lease(api, name)
    path = f"leases/{given['lease_id']}"
    for _ in range(2):
        answer = await api.ask("DELETE", path, headers=of(given))
        assert (answer.status_code, answer.content) == (204, b"")
    lost = await api.ask("GET", path)
    assert code(lost) == (410, "FP012")
    assert lost.json()["type"] == "/problems/lease-lost"
    assert (lost.json()["lock"], lost.json()["owner"]) == (name, "127.0.0.1")
    assert "was released at" in lost.json()["detail"]
    successor = await lease(api, name)
    assert (await api.ask("DELETE", path, headers=of(given))).status_code == 204
    assert (await api.ask("GET", f"leases/{successor['lease_id']}")).status_code == 200


async def test_a_lost_lease_is_410_and_names_who_came_after(api: Api, shop: Shop) -> None:
    name = new_name()
    given = await lease(api, name, owner="late")
    path = f"leases/{given['lease_id']}"
    await expire(shop, given)
    expired = await api.ask("POST", f"{path}/renew", headers=of(given))
    assert code(expired) == (410, "FP012")
    assert (expired.json()["lease_id"], expired.json()["lock"]) == (given["lease_id"], name)
    assert TIME.fullmatch(expired.json()["ended_at"])
    assert "expired at" in expired.json()["detail"]
    assert expired.json().get("superseded_by") is None
    successor = await lease(api, name, owner="successor", tokens=2)
    for answer in (
        await api.ask("POST", f"{path}/renew", headers=of(given)),
        await api.ask("POST", f"{path}/tokens", headers=of(given)),
        await api.ask("GET", path),
    ):
        assert code(answer) == (410, "FP012")
        by = answer.json()["superseded_by"]
        assert (by["holder"], by["lease_id"], by["locks"]) == ("successor", successor["lease_id"], [name])
        assert (by["granted_at"], by["source"]) == (successor["granted_at"], "builtin")
        assert not {*successor["tokens"]} & {*map(str, by.values())}
        assert TIME.fullmatch(by["issued_at"])
        assert "successor has held" in answer.json()["detail"]
        assert successor["secret"] not in answer.text
    assert (await api.ask("DELETE", path, headers=of(given))).status_code == 204


async def test_a_waiter_is_served_and_learns_how_long_it_waited(api: Api, shop: Shop) -> None:
    name = new_name()
    holder = await lease(api, name)
    waiting = asyncio.create_task(lease(api, name, owner="waiter", wait_ms=20_000))
    await eventually(
        lambda: shop.sql("SELECT FROM fencepost.live_waiters WHERE owner = 'waiter'"), what="a place in the queue"
    )
    locks = (await api.ask("GET", f"locks?name={name}")).json()
    assert [waiter["owner"] for waiter in locks[0]["waiters"]] == ["waiter"]
    assert all(TIME.fullmatch(locks[0]["waiters"][0][time]) for time in ("since", "until"))
    passer_by = await acquire(api, name)
    assert passer_by.json()["waiting"] == 1
    assert (await api.ask("DELETE", f"leases/{holder['lease_id']}", headers=of(holder))).status_code == 204
    given = await waiting
    assert given["waited_ms"] > 0
    assert int(given["token"]) > int(holder["token"])


async def test_locks_are_listed_by_name_and_in_pages(api: Api) -> None:
    prefix = f"page-{new_name()}/"
    names = [prefix + end for end in ("B", "a", "aa", "ä")]
    given = {name: await lease(api, name, owner=name) for name in reversed(names)}
    ours = [lock for lock in (await api.ask("GET", "locks")).json() if lock["name"].startswith(prefix)]
    assert [lock["name"] for lock in ours] == names
    for lock in ours:
        mine = given[lock["name"]]
        assert (lock["held"], lock["lease_id"], lock["owner"]) == (True, mine["lease_id"], lock["name"])
        assert (lock["granted_at"], lock["expires_at"]) == (mine["granted_at"], mine["expires_at"])
        assert 0 < lock["remaining_ms"] <= 30_000
    pages = [(await api.ask("GET", f"locks?after={after}&limit=2")).json() for after in (prefix, names[1])]
    assert [lock["name"] for page in pages for lock in page] == names
    await api.ask("DELETE", f"leases/{given[names[0]]['lease_id']}", headers=of(given[names[0]]))
    assert (await api.ask("GET", f"locks?name={names[0]}")).json() == []


async def test_queries_that_cannot_be_read_are_400(api: Api) -> None:
    for query in ("limit=0", "limit=1001", "limit=" + "9" * 5000, "page=2", "name=a&name=b", "name=%ff"):
        for path in ("locks", "elections"):
            assert code(await api.ask("GET", f"{path}?{query}")) == (400, "FP016"), (path, query[:20])


async def test_a_foreign_or_unknown_lease_is_410(api: Api) -> None:
    given = await lease(api)
    wrong = {"X-Lease-Secret": new_secret()}
    path = f"leases/{given['lease_id']}"
    assert code(await api.ask("POST", f"{path}/renew", headers=wrong)) == (410, "FP012")
    assert code(await api.ask("POST", f"{path}/tokens", headers=wrong)) == (410, "FP012")
    assert code(await api.ask("DELETE", path, headers=wrong)) == (410, "FP012")
    assert (await api.ask("GET", path)).status_code == 200
    for unknown in ("9223372036854775808", "007", "x", "9" * 5000):
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
        ({"lock": "ä" * 257}, "body: lock: "),
        ({"locks": [f"n{number}" for number in range(33)]}, "body: locks: "),
        ({"locks": ["a", "b", "a"]}, "body: locks: a name stands there twice"),
        ({"lock": "a", "owner": "x" * 257}, "body: owner: "),
        ({"lock": "a", "ttl_ms": 0}, "body: ttl_ms: 0 is not an integer from 1 to 100000"),
        ({"lock": "a", "wait_ms": 2_000_000_001}, "body: wait_ms: 2000000001 is not an integer from 0 to 2000000000"),
        ({"lock": "a", "keep_place": True}, "body: keep_place: a place is kept for a client that has"),
        ({"lock": "a", "keep_place": "yes"}, "body: keep_place: true or false"),
        ({"lock": "a", "claim": [1]}, "body: claim: resources are strings"),
        ({"lock": "a", "tokens": 8}, "body: tokens: 8 is not an integer from 1 to 7"),
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
    for values in ([b"x" * 21], [b"y" * 257], [b"has a space in the middle"], [fine, fine], [b""]):
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


async def test_an_id_that_no_lease_can_have_is_answered_without_the_database(
    database: str, postgres: PostgresServer
) -> None:
    """They stand in the upper half of a generation: what is made up costs others no connection."""
    secret, paths = {"X-Lease-Secret": new_secret()}, ("/renew", "/tokens", "")
    async with in_process(database) as client, database_away(postgres, database):
        for number in (7, 2**47, 2**48, 2**48 + 2**47, 2**63):
            for path in paths:
                lost = await client.request("POST" if path else "GET", f"/v1/leases/{number}{path}", headers=secret)
                assert code(lost) == (410, "FP012"), (number, path)
            assert (await client.delete(f"/v1/leases/{number}", headers=secret)).status_code == 204
        for path in paths:
            asked = await client.request("POST" if path else "GET", f"/v1/leases/{2**47 + 1}{path}", headers=secret)
            assert code(asked) == (503, "FP010"), path
