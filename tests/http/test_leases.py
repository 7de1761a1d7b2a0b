"""A lease's life over real HTTP: acquire, look, renew, mint, release, and what becomes of it."""

from collections.abc import Iterator

import pytest
from tests.scenarios.shop import Shop
from tests.support.asking import Api, code
from tests.support.lease_asking import (
    SECRETS,
    TIME,
    TOKEN,
    Said,
    acquire,
    expire,
    lease,
    leasing_shop,
    new_name,
    new_secret,
    of,
)

from fencepost.embedded.server import PostgresServer

STATE = {
    "lease_id", "source", "lock", "locks", "owner", "ttl_ms", "granted_at", "expires_at", "remaining_ms", "claims",
    "writes",
}  # fmt: skip
GRANT = STATE - {"writes"} | {"secret", "token", "tokens", "waited_ms"}


@pytest.fixture(scope="module")
def leasing(postgres: PostgresServer, template: str) -> Iterator[tuple[Shop, Said]]:
    with leasing_shop(postgres, template) as leasing:
        yield leasing


@pytest.fixture
def shop(leasing: tuple[Shop, Said]) -> Shop:
    return leasing[0]


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
    lasting = first.keys() - {"remaining_ms"}
    assert {key: again.json()[key] for key in lasting} == {key: first[key] for key in lasting}
    assert again.json()["remaining_ms"] <= first["remaining_ms"]
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
    assert code(await acquire(api, name, owner="worker-a")) == (423, "FP011"), "not even to its owner"


async def test_claims_come_with_the_grant(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=1)
    absent = shop.key()
    await shop.sql("SELECT fencepost.issue_beyond(1000)")
    given = await lease(api, f"orders/{key}", claim=[f"orders/{key}", f"orders/{absent}"])
    marks = {claim["resource"]: claim["mark"] for claim in given["claims"]}
    claimed = int(given["token"]) - 1  # no other draws here
    assert marks == {f"orders/{key}": str(claimed), f"orders/{absent}": str(claimed)}
    rows = {claim["resource"]: claim["row"] for claim in given["claims"]}
    assert rows[f"orders/{key}"]["order_id"] == key
    assert rows[f"orders/{absent}"] is None
    assert code(await api.ask("PATCH", f"data/orders/{key}", {}, token=claimed - 1)) == (409, "FP001")
    assert (await api.ask("PATCH", f"data/orders/{key}", {}, token=given["token"])).status_code == 200
    state = (await api.ask("GET", f"leases/{given['lease_id']}")).json()
    assert state["claims"] == sorted(marks)


async def test_a_claim_that_cannot_be_refuses_the_grant(api: Api, shop: Shop) -> None:
    key = await shop.order(mark=9_000_000)
    for claim, refusal in (
        (f"orders/{key}", (409, "FP008")),
        ("diary/1", (403, "FP005")),
        ("nowhere/1", (404, "FP007")),
        ("items/one", (400, "FP016")),
    ):
        name = new_name()
        answer = await acquire(api, name, claim=[claim])
        assert code(answer) == refusal, claim
        assert (await api.ask("GET", f"locks?name={name}")).json() == [], claim
    answer = await acquire(api, new_name(), claim=[f"orders/{key}"])
    assert answer.json()["current_token"] == "9000000"
    assert TOKEN.fullmatch(answer.json()["presented_token"])
    assert answer.json()["resource"] == f"orders/{key}"


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
