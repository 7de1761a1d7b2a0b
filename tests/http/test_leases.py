"""Leases and locks over real HTTP; a source of a third party; elections; reads beside leases."""

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.http.conftest import Start
from tests.support.asking import Api, code
from tests.support.gateways import in_process, serving_process
from tests.support.interleave import Connection, connection_to, holding
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
    post,
    release,
)
from tests.support.postgres import ReadyMade, database_away
from tests.support.shops import Shop
from tests.support.use_cases import streaming

from fencepost.server.http.app import SYSTEM
from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.postgres import run_on
from fencepost.testing.servers.processes import PATIENCE, eventually

# Leases and locks over real HTTP: a lease's life, who waits, what is shown of both, and what is refused.


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
        ("diary/1", (403, "FP005")), ("nowhere/1", (404, "FP007")), ("items/one", (400, "FP016")),
        (f"orders/{late}", (409, "FP008")),
    ):  # fmt: skip
        name = new_name()
        answer = await acquire(api, name, claim=[wanted])
        assert code(answer) == refusal, wanted
        assert (await api.ask("GET", f"locks?name={name}")).json() == [], wanted
    assert (answer.json()["current_token"], answer.json()["resource"]) == ("9000000", f"orders/{late}")


async def test_the_next_row_comes_with_its_lease(api: Api) -> None:
    token = {"X-Fence-Token": (await lease(api))["token"]}
    jobs = [{"id": f"job-{n}", "n": 7} for n in range(1, 5)]
    assert (await api.ask("POST", "data/leased", jobs, headers=token)).status_code == 201

    async def take(secret: str | None = None, **of: object) -> httpx.Response:
        asked = {"table": "leased", "where": "n=eq.7&id=not.is.null", "order": "id", **of}
        headers = {} if secret is None else {"X-Lease-Secret": secret}
        return await api.ask("POST", "leases", {"next": asked, "owner": "w", "ttl_ms": 20_000}, headers=headers)

    secret = new_secret()
    first, again = await take(secret), await take(secret)
    assert (first.status_code, again.status_code) == (201, 200)
    given = first.json()
    assert (given["lock"], given["row"], given["attempt"]) == ("leased/job-1", {"id": "job-1", "n": 7}, 1)
    assert given["claims"] == [{"resource": "leased/job-1", "mark": given["claims"][0]["mark"], "row": given["row"]}]
    assert {**again.json(), "remaining_ms": 0} == {**given, "remaining_ms": 0}
    several = await take(limit=5)
    assert several.status_code == 201
    found = several.json()["leases"]
    SECRETS.extend(each["secret"] for each in found)
    assert [each["row"]["id"] for each in found] == ["job-2", "job-3", "job-4"]
    assert len({each["secret"] for each in found}) == 3
    nothing = await take()
    assert (nothing.status_code, nothing.content) == (204, b"")
    token = {"X-Fence-Token": given["token"]}
    assert (await api.ask("DELETE", f"data/{given['lock']}", headers=token)).status_code == 204
    gone = (await take(secret)).json()
    assert (gone["lock"], gone["row"], gone["attempt"]) == ("leased/job-1", None, 1)
    for each in (given, *found):
        assert (await api.ask("DELETE", f"leases/{each['lease_id']}", headers=of(each))).status_code == 204
    assert code(await take(secret, limit=2)) == (400, "FP016")


async def test_a_lease_is_looked_at_without_its_secret_renewed_and_mints(api: Api, shop: Shop) -> None:
    given, other = await lease(api, tokens=2, ttl_ms=20_000), await lease(api)
    path = f"leases/{given['lease_id']}"
    answer = await api.ask("GET", path)
    assert answer.status_code == 200
    assert given["secret"] not in answer.text
    assert not {*given["tokens"]} & {*map(str, answer.json().values())}, "they are its holder's"
    await shop.sql(
        "UPDATE fencepost.leases SET expires_at = expires_at - interval '10 s' WHERE lease_id = $1",
        int(given["lease_id"]),
    )
    for body, ttl_ms in ((None, 20_000), ({"ttl_ms": 50_000}, 50_000), ({"ttl_ms": 9000}, 9000)):
        answer = await api.ask("POST", f"{path}/renew", body, headers=of(given))
        state = answer.json()
        assert (answer.status_code, state["ttl_ms"]) == (200, ttl_ms)
        assert ttl_ms - 5000 < state["remaining_ms"] <= ttl_ms, ttl_ms
        assert (await api.ask("GET", path)).json()["expires_at"] == state["expires_at"], ttl_ms
    newest = int(other["token"])
    for body, count in ((None, 1), ({"count": 7}, 7)):
        answer = await api.ask("POST", f"{path}/tokens", body, headers=of(given))
        minted = answer.json()
        assert answer.status_code == 200, count
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
    for method, asked in (("POST", f"{path}/renew"), ("POST", f"{path}/tokens"), ("DELETE", path)):
        assert code(await api.ask(method, asked, headers=wrong)) == (410, "FP012"), asked
    assert (await api.ask("GET", path)).status_code == 200
    for unknown in ("9223372036854775808", "007", "x", "9" * 5000):
        path = f"leases/{unknown}"
        assert code(await api.ask("GET", path)) == (410, "FP012"), unknown[:30]
        assert code(await api.ask("POST", f"{path}/renew", headers=wrong)) == (410, "FP012"), unknown
        assert code(await api.ask("POST", f"{path}/tokens", headers=wrong)) == (410, "FP012"), unknown
        answer = await api.ask("DELETE", path, headers=wrong)
        assert (answer.status_code, answer.content) == (204, b""), unknown


async def test_each_route_answers_what_it_declares(api: Api) -> None:
    secret = {"X-Lease-Secret": new_secret()}
    body = {"lock": f"election/{new_name()}", "claim": ["leased/declared"]}
    given = (await api.ask("POST", "leases", body, headers=secret)).json()
    await api.ask("POST", "leases", body, headers=secret)
    one, election = f"leases/{given['lease_id']}", f"elections?name={given['lock'].partition('/')[2]}"
    for path in (one, "locks", "fences?resource=leased/declared", "elections", election):
        await api.ask("GET", path)
    for path in (f"{one}/renew", f"{one}/tokens"):
        await api.ask("POST", path, headers=secret)
    await api.ask("POST", "claims", {"resource": "leased/declared"}, token=given["token"])
    queued = await api.ask("PATCH", "data/leased/none", {"n": 1}, token=given["token"], prefer="respond-async")
    write = queued.headers["location"].removeprefix("/v1/")
    await api.ask("GET", f"{write}?wait=60")
    await api.ask("GET", write, headers={"Accept": "text/event-stream", "Last-Event-ID": "failed"})
    await api.ask("DELETE", one, headers=secret)
    await api.ask("DELETE", "leases", headers={"X-Lease-Secret": new_secret()})
    await api.ask("POST", "leases", {"next": {"table": "leased", "where": "n=eq.-7"}})
    async with api.http.stream("GET", "/v1/elections/events?name=x") as stream:
        await api.check(stream)
    assert api.declared == {(each.method, each.path, status) for each in SYSTEM for status in each.answers}


async def test_what_cannot_be_asked_for_is_400_and_names_where(api: Api) -> None:
    for body, where in (
        ({}, "body: name what to lock"),
        ({"lock": "a", "locks": ["a"]}, "body: name what to lock"),
        ({"lock": "ä" * 257}, "body: lock: "),
        ({"locks": [f"n{number}" for number in range(33)]}, "body: locks: "),
        ({"locks": ["a", "b", "a"]}, "body: locks: a name stands there twice"),
        ({"lock": "a", "owner": "x" * 257}, "body: owner: "),
        *(({"lock": "a", "ttl_ms": n}, f"body: ttl_ms: {n} is not an integer from 1 to 100000") for n in (0, True)),
        ({"lock": "a", "wait_ms": 2_000_000_001}, "body: wait_ms: 2000000001 is not an integer from 0 to 2000000000"),
        ({"lock": "a", "keep_place": True}, "body: keep_place: a place is kept for a client that has"),
        ({"lock": "a", "keep_place": "yes"}, "body: keep_place: true or false"),
        ({"lock": "a", "claim": [1]}, "body: claim: resources are strings"),
        ({"lock": "a", "tokens": 8}, "body: tokens: 8 is not an integer from 1 to 7"),
        ({"lock": "a", "claim": ["orders/1", "orders/1"]}, "body: claim: a resource stands there twice"),
        ({"lock": "a", "claim": [f"orders/{number}" for number in range(101)]}, "body: claim: "),
        ({"lock": "a", "ttl": 5, "name": "b"}, "body: name, ttl: unknown"),
        ({"lock": "a", "next": {"table": "leased"}}, "body: name what to lock"),
        ({"next": "leased"}, "body: next: an object with the name of a table"),
        ({"next": {"table": "leased", "orderby": "id"}}, "body: next: orderby: unknown; it takes limit, order, table"),
        ({"next": {"table": "leased", "limit": 65}}, "body: next: limit: 65 is not an integer from 1 to 64"),
        ({"next": {"table": "leased", "where": "n=eqq.1"}}, "body: next: "),
        ({"next": {"table": "leased", "where": "select=n"}}, "body: next: "),
        ({"next": {"table": "leased", "where": ["n"]}}, "body: next: where and order are texts"),
        ({"next": {"table": "leased", "order": "n.up"}}, "body: next: "),
        (
            {"next": {"table": "leased", "where": f"n=in.({'1,' * 2048}1)"}},
            "body: next: where and order have at most 4096",
        ),
        ({"next": {"table": "leased", "where": "m=eq.1"}}, "next: m: no such column in leased"),
        ({"next": {"table": "leased"}, "claim": ["leased/a"]}, "body: claim: not with next"),
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
            ("POST", b"/v1/leases", body), ("POST", path + b"/renew", b""), ("POST", path + b"/tokens", b""),
            ("DELETE", path, b""),
        ):  # fmt: skip
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


# A source in a package of its own: installed as pip does it, found by its entry point.

PACKAGE = Path(__file__).parents[1] / "third_party"


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example package into a folder of its own; no index is asked."""
    folder = tmp_path_factory.mktemp("third_party")
    arguments = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-build-isolation", "--no-deps")
    subprocess.run([sys.executable, "-m", "pip", "install", *arguments, "--target", folder, PACKAGE], check=True)
    return folder


@pytest.mark.long("installations of packages")
async def test_it_grants_leases_with_tokens_that_rise(short_dir: Path, installed: Path) -> None:
    variables = {"FENCEPOST_SOURCES": f"shop=acme://{short_dir}/locks.db", "PYTHONPATH": str(installed)}
    async with serving_process(short_dir, **variables) as gateway, _client(gateway.url) as api:
        first = await post(api, "orders/order-123", source="shop", tokens=2)
        assert first.status_code == 201, first.text
        assert first.json()["tokens"] == ["1", "2"]
        assert (await post(api, "orders/order-123", source="shop")).status_code == 423
        minted = await api.post(
            f"/v1/leases/{first.json()['lease_id']}/tokens", headers={"X-Lease-Secret": first.json()["secret"]}
        )
        assert minted.json()["tokens"] == ["3"]
        await release(api, first.json())
        second = await post(api, "orders/order-123", source="shop")
        assert second.json()["token"] == "4"


# Who leads: asked once, and streamed.


async def elected(http: httpx.AsyncClient, name: str, owner: str = "a", **asked: object) -> dict[str, Any]:
    """Win an election that no client leads."""
    answer = await post(http, f"election/{name}", owner=owner, ttl_ms=60_000, **asked)
    assert answer.status_code == 201, answer.text
    lease: dict[str, Any] = answer.json()
    return lease


async def election(http: httpx.AsyncClient, name: str) -> dict[str, Any]:
    answer = await http.get("/v1/elections", params={"name": name})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_leader_is_the_holder_of_the_elections_lock_and_its_term_the_leases_number(
    http: httpx.AsyncClient,
) -> None:
    await post(http, "jobs/nightly", owner="holder", ttl_ms=60_000)  # a lock of the same name is another thing
    without_leader: dict[str, Any] = {"name": "jobs/nightly", "source": "builtin", "leader": None, "candidates": []}
    assert await election(http, "jobs/nightly") == without_leader
    first = await elected(http, "jobs/nightly", "a", tokens=3)
    await http.post(f"/v1/leases/{first['lease_id']}/tokens", headers={"X-Lease-Secret": first["secret"]})
    answered = await election(http, "jobs/nightly")
    assert answered["leader"].pop("remaining_ms") <= 60_000
    assert answered["leader"] == {
        "term": first["lease_id"], "owner": "a", "lease_id": first["lease_id"], "since": first["granted_at"],
        "expires_at": first["expires_at"],
    }  # fmt: skip
    await release(http, first)
    assert await election(http, "jobs/nightly") == without_leader
    second = await elected(http, "jobs/nightly", "b", claim=["orders/order-123"])
    term = (await election(http, "jobs/nightly"))["leader"]["term"]
    assert term == second["lease_id"]
    assert int(term) > int(first["lease_id"])


async def test_without_a_name_all_elections_that_have_a_leader_are_listed(http: httpx.AsyncClient) -> None:
    for name in ("b", "a", "c/d"):
        await elected(http, name)
    await post(http, "election", ttl_ms=60_000)
    await post(http, "election/", ttl_ms=60_000)
    await post(http, "elections/x", ttl_ms=60_000)
    await post(http, "a", ttl_ms=60_000)

    async def names(**query: object) -> list[str]:
        return [each["name"] for each in (await http.get("/v1/elections", params=query)).json()]  # type: ignore[arg-type]

    assert await names() == ["a", "b", "c/d"]
    assert await names(limit=2) == ["a", "b"]
    assert await names(after="b") == ["c/d"]


async def test_a_stream_shows_how_things_are_at_once_and_then_each_change(http: httpx.AsyncClient) -> None:
    async with streaming(http, "scheduler") as events:
        assert events.response.headers["content-type"].partition(";")[0] == "text/event-stream"
        assert events.response.headers["cache-control"] == "no-store"
        at_first = await events.next()
        assert (at_first.kind, at_first.id, at_first.owner) == ("vacant", None, None)
        first = await elected(http, "scheduler", "a")
        event = await events.next()
        assert (event.kind, event.id, event.owner) == ("elected", first["lease_id"], "a")
        async with streaming(http, "scheduler") as late:
            assert (await late.next()).id == first["lease_id"]
        await release(http, first)
        event = await events.next()
        assert (event.kind, event.id, event.owner) == ("vacant", first["lease_id"], None)
        second = await elected(http, "scheduler", "b")
        event = await events.next()
        assert (event.kind, event.id, event.owner) == ("elected", second["lease_id"], "b")


async def test_last_event_id_is_taken(http: httpx.AsyncClient) -> None:
    lease = await elected(http, "scheduler")
    headers = {"Last-Event-ID": lease["lease_id"]}
    async with http.stream("GET", "/v1/elections/events?name=scheduler", headers=headers) as response:
        lines = response.aiter_lines()
        assert [await anext(lines) for _ in range(3)] == ["retry: 1000", "", "event: elected"]


async def test_head_of_a_stream_ends_and_looks_at_no_token(http: httpx.AsyncClient) -> None:
    answer = await http.head("/v1/elections/events?name=scheduler", headers={"X-Fence-Token": "many"})
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"


async def test_bad_queries_are_reported(http: httpx.AsyncClient) -> None:
    queries = (
        "", "?name=", "?name=a&name=b", "?name=a&limit=1", "?name=%00", "?name=" + "x" * 504, "?name=a&source=no",
    )  # fmt: skip
    for query in queries:
        for path in ("/v1/elections/events", "/v1/elections")[: 2 if query else 1]:
            answer = await http.get(f"{path}{query}")
            assert (answer.status_code, answer.json()["code"]) == (400, "FP016"), answer.text


async def test_a_gateway_that_is_to_stop_ends_its_streams(demo_database: str, short_dir: Path) -> None:
    """Given an hour to finish what is in flight, it takes none of it."""
    given = ("--database-url", demo_database, "--shutdown-timeout", "3600", "--workers", "2")
    async with serving_process(short_dir, *given) as gateway:
        async with (
            httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE, trust_env=False) as http,
            streaming(http, "scheduler") as one,
            streaming(http, "another") as other,
        ):
            await one.next()
            await other.next()
            gateway.process.send_signal(signal.SIGTERM)
            await one.ended()
            await other.ended()
        assert await gateway.ended() == 0


# What takes long does not keep leases from their renewals, nor one caller's requests those of others.

LOCK = 4711
SLOW = f"""
CREATE FUNCTION public.waits(v text) RETURNS text LANGUAGE plpgsql AS
  $$ BEGIN PERFORM pg_advisory_xact_lock_shared({LOCK}); RETURN v; END $$;
CREATE VIEW public.slow AS SELECT public.waits(order_id) AS order_id FROM public.orders
"""
WAITING = "SELECT count(*) = $1 FROM pg_stat_activity WHERE wait_event = 'advisory' AND datname = current_database()"
LEASE = {"lock": "nightly", "ttl_ms": 60_000, "owner": "me"}


WAITS_FOR_ROWS = """SELECT count(*) = $1 FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND wait_event <> 'advisory' AND datname = current_database()"""


def client_at(address: str, url: str) -> httpx.AsyncClient:
    """Give a client whose connections come from this address of the loopback interface."""
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits(max_connections=100))
    return httpx.AsyncClient(base_url=f"{url}/v1", timeout=PATIENCE, trust_env=False, transport=transport)


async def test_a_lease_lives_while_others_hold_all_connections(demo_database: str, start_gateway: Start) -> None:
    await run_on(demo_database, SLOW)
    settings = {"serve_unprotected": True, "pool_size": 4, "pool_timeout": 600, "lock_timeout": 60}
    url = await start_gateway(demo_database, **settings, sources="other=postgres-advisory:")
    async with (
        connection_to(demo_database) as operator,
        connection_to(demo_database) as keeper,
        client_at("127.0.0.1", url) as client,
        client_at("127.0.0.2", url) as reader,
        client_at("127.0.0.3", url) as third,
    ):
        lease = (await client.post("/leases", json=LEASE)).json()
        await operator.execute(f"SELECT pg_advisory_lock({LOCK})")
        await keeper.execute("BEGIN; SELECT FROM orders FOR UPDATE")
        token = {"X-Fence-Token": "77"}
        asked = [
            asyncio.create_task(one.patch(f"/data/orders/order-12{n}", json={"status": "paid"}, headers=token))
            for n, one in ((3, client), (4, third))  # one caller has one of the two turns at rows
        ]

        await eventually(lambda: operator.fetchval(WAITS_FOR_ROWS, 2), what="two writes that wait for rows")
        asked += [asyncio.create_task(reader.get("/data/slow")) for _ in range(4)]
        await eventually(lambda: operator.fetchval(WAITING, 2), what="two reads that hold a connection")
        async with asyncio.timeout(PATIENCE):  # a connection of the pool would be waited for for ten minutes
            secret, path = {"X-Lease-Secret": lease["secret"]}, f"/leases/{lease['lease_id']}"
            for _ in range(3):
                renewed = await client.post(f"{path}/renew", json={}, headers=secret)
                assert renewed.status_code == 200, renewed.text
            assert (await client.post(f"{path}/tokens", json={}, headers=secret)).status_code == 200
            assert (await client.delete(path, headers=secret)).status_code == 204
            for source in ("builtin", "other"):
                wanted = LEASE | {"lock": "hourly", "source": source, "claim": [f"orders/of-{source}"]}
                taken = await client.post("/leases", json=wanted)
                assert taken.status_code == 201, taken.text

        async def ready() -> bool:
            return "all connections" in (await client.get(f"{url}/readyz")).raise_for_status().json()["database"]

        await eventually(ready, what="readiness, without a connection of the pool")
        await keeper.execute("ROLLBACK")
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert {(await each).status_code for each in asked} == {200}


async def test_a_read_without_a_connection_says_whose_the_others_are(demo_database: str, start_gateway: Start) -> None:
    await run_on(demo_database, SLOW)
    url = await start_gateway(demo_database, serve_unprotected=True, pool_size=2, pool_timeout=2)
    async with connection_to(demo_database) as operator, client_at("127.0.0.1", url) as client:
        await operator.execute(f"SELECT pg_advisory_lock({LOCK})")
        first = asyncio.create_task(client.get("/data/slow"))
        await eventually(lambda: operator.fetchval(WAITING, 1), what="a read that waits")
        refused = await client.get("/data/orders")
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "FP010", "1")
        assert "127.0.0.1 has as many as one may have, the rest is for others" in refused.json()["detail"]
        assert (await client.post("/leases", json=LEASE)).status_code == 201
        token = {"X-Fence-Token": "77"}
        written = await client.patch("/data/orders/order-123", json={"status": "paid"}, headers=token)
        assert written.status_code == 200
        await operator.execute(f"SELECT pg_advisory_unlock({LOCK})")
        assert (await first).status_code == 200
        assert (await client.get("/data/orders")).status_code == 200


@dataclass
class Held:
    """A gateway, a row that is locked, and two callers."""

    owner: Connection
    keeper: Connection
    one: httpx.AsyncClient
    other: httpx.AsyncClient

    async def while_waiting(
        self, ask: Callable[[], Awaitable[httpx.Response]], held: int, others: Callable[[], Awaitable[httpx.Response]]
    ) -> list[int]:
        """Have one caller ask eight times, of which so many wait in PostgreSQL, and the other one once. Its answer's
        status, and those of the eight once the row is free.
        """
        asked = [asyncio.ensure_future(ask()) for _ in range(8)]

        await eventually(lambda: self.owner.fetchval(WAITS_FOR_ROWS, held), what=f"{held} requests that wait")
        answer = await others()
        assert await self.owner.fetchval(WAITS_FOR_ROWS, held), "no more than these"
        await self.keeper.execute("ROLLBACK")
        return [answer.status_code, *sorted({(await each).status_code for each in asked})]


@pytest.fixture
async def held(demo_database: str, start_gateway: Start) -> AsyncIterator[Held]:
    pools = {"pool_size": 8, "lease_pool_size": 6, "pool_timeout": 600, "lock_timeout": 60}
    url = await start_gateway(demo_database, **pools, statement_timeout=600)
    async with (
        connection_to(demo_database) as owner,
        holding(demo_database, "SELECT FROM orders WHERE order_id = 'order-123' FOR UPDATE") as keeper,
        client_at("127.0.0.1", url) as one,
        client_at("127.0.0.2", url) as other,
    ):
        yield Held(owner, keeper, one, other)


NDJSON = {"Content-Type": "application/x-ndjson"}
LINE = '{"method":"PATCH","path":"orders/order-%s","token":77,"body":{"status":"paid"}}'


async def test_writes_of_one_caller_that_go_alone_leave_connections_to_others(held: Held) -> None:
    read_token = {"X-Fence-Token": "77"}

    def write(client: httpx.AsyncClient, row: str) -> Awaitable[httpx.Response]:
        return client.patch(f"/data/orders?order_id=eq.order-{row}", json={"status": "paid"}, headers=read_token)

    statuses = await held.while_waiting(lambda: write(held.one, "123"), 6, lambda: write(held.other, "124"))
    assert statuses == [204, 204, 409]


async def test_batches_of_one_caller_that_land_as_a_whole_leave_a_turn_to_others(held: Held) -> None:
    def batch(client: httpx.AsyncClient, row: str) -> Awaitable[httpx.Response]:
        return client.post("/batch?atomic=true", content=LINE % row, headers=NDJSON)

    statuses = await held.while_waiting(lambda: batch(held.one, "123"), 1, lambda: batch(held.other, "124"))
    assert statuses == [200, 200, 409]


async def test_grants_of_one_caller_that_claim_a_locked_row_leave_a_slot_to_others(held: Held) -> None:
    locks = itertools.count()

    def acquire(client: httpx.AsyncClient, row: str) -> Awaitable[httpx.Response]:
        return client.post("/leases", json={"lock": f"lock-{next(locks)}", "claim": [f"orders/order-{row}"]})

    statuses = await held.while_waiting(lambda: acquire(held.one, "123"), 3, lambda: acquire(held.other, "124"))
    assert statuses == [201, 201]


async def test_renewals_of_one_caller_leave_connections_to_those_of_others(held: Held) -> None:
    clients = (held.one, held.other)
    leases = {each: (await each.post("/leases", json={"lock": str(id(each))})).json() for each in clients}

    def renew(client: httpx.AsyncClient) -> Awaitable[httpx.Response]:
        secret = {"X-Lease-Secret": leases[client]["secret"]}
        return client.post(f"/leases/{leases[client]['lease_id']}/renew", json={}, headers=secret)

    await held.keeper.execute(
        f"SELECT FROM fencepost.leases WHERE lease_id = {leases[held.one]['lease_id']} FOR UPDATE"
    )
    assert await held.while_waiting(lambda: renew(held.one), 5, lambda: renew(held.other)) == [200, 200]


async def test_a_batch_that_lands_whole_has_the_time_of_one_statement(demo_database: str, start_gateway: Start) -> None:
    await run_on(
        demo_database,
        "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END';"
        "CREATE TRIGGER slowly BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION slowly()",
    )
    url = await start_gateway(demo_database, statement_timeout=2)
    lines = "\n".join(LINE.replace("77", str(token)) % "123" for token in range(100, 120))
    async with connection_to(demo_database) as owner, client_at("127.0.0.1", url) as client:
        before = await owner.fetch("SELECT * FROM orders ORDER BY order_id")
        late = await client.post("/batch?atomic=true", content=lines, headers=NDJSON)
        assert (late.status_code, late.json()["code"]) == (503, "57014"), late.text
        assert "the batch took more than 2 s" in late.json()["detail"]
        assert await owner.fetch("SELECT * FROM orders ORDER BY order_id") == before
        assert (await client.post("/batch?atomic=true", content=LINE % "123", headers=NDJSON)).status_code == 200


async def waiting(client: httpx.AsyncClient) -> int:
    lines = (await client.get(f"{client.base_url.copy_with(path='/metrics')}")).text.splitlines()
    return sum(int(float(line.split()[1])) for line in lines if line.startswith("fencepost_lock_waiters "))


async def test_waiters_and_streams_of_a_caller_leave_room_for_others(demo_database: str, start_gateway: Start) -> None:
    limits = {"max_waiters_per_caller": 1, "max_watchers_per_caller": 1, "max_waiters": 2}
    url = await start_gateway(demo_database, **limits)
    clients = (client_at(f"127.0.0.{n}", url) for n in (1, 2, 3))
    stream = "/elections/events?name=scheduler"
    async with next(clients) as one, next(clients) as other, next(clients) as third:
        held = (await one.post("/leases", json={"lock": "x", "ttl_ms": 60_000})).json()
        wanted = {"lock": "x", "wait_ms": 30_000}
        first = asyncio.create_task(one.post("/leases", json=wanted))

        async def in_line(count: int) -> bool:
            return await waiting(one) == count

        await eventually(lambda: in_line(1), what="the first waiter's place")
        async with one.stream("GET", stream) as open_already:
            assert open_already.status_code == 200
            for refused, bound in (
                (await one.post("/leases", json=wanted), "FENCEPOST_MAX_WAITERS_PER_CALLER"),
                (await one.get(stream), "FENCEPOST_MAX_WATCHERS_PER_CALLER"),
            ):
                assert (refused.status_code, refused.json()["code"]) == (503, "FP010")
                assert f"1 of 127.0.0.1 already ({bound})" in refused.json()["detail"]
            async with other.stream("GET", stream) as of_other:
                assert of_other.status_code == 200
        assert (await one.post("/leases", json={"lock": "x"})).status_code == 423, "who does not wait is not counted"
        second = asyncio.create_task(other.post("/leases", json=wanted))
        await eventually(lambda: in_line(2), what="the place of another caller's")
        all_places = await third.post("/leases", json=wanted)
        assert (all_places.status_code, "2 already (FENCEPOST_MAX_WAITERS)" in all_places.text) == (503, True)
        second.cancel()
        await one.delete(f"/leases/{held['lease_id']}", headers={"X-Lease-Secret": held["secret"]})
        assert (await first).status_code == 201
        assert (await one.post("/leases", json={"lock": "y", "wait_ms": 1})).status_code == 201, "there is room again"
