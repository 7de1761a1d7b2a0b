"""Locks over real HTTP: who holds, who waits, in what order; and the numbers that are shown of them."""

import asyncio
import json
import re
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
from tests.scenarios.shop import Shop
from tests.support.asking import Api, code
from tests.support.lease_asking import (
    TIME,
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
from fencepost.testing.servers.waiting import PATIENCE, eventually


@pytest.fixture(scope="module")
def leasing(postgres: PostgresServer, template: str) -> Iterator[tuple[Shop, Said]]:
    with leasing_shop(postgres, template) as leasing:
        yield leasing


@pytest.fixture
def shop(leasing: tuple[Shop, Said]) -> Shop:
    return leasing[0]


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


async def test_the_end_of_a_wait_is_423(api: Api) -> None:
    name = new_name()
    await lease(api, name)
    answer = await acquire(api, name, wait_ms=30)
    assert code(answer) == (423, "FP011")
    kept = await acquire(api, name, wait_ms=30, keep_place=True, secret=new_secret(), owner="keeps")
    assert code(kept) == (423, "FP011")
    locks = (await api.ask("GET", f"locks?name={name}")).json()
    assert [waiter["owner"] for waiter in locks[0]["waiters"]] == ["keeps"]


async def test_too_many_waiters_are_503(api: Api, shop: Shop) -> None:
    name = new_name()
    await lease(api, name)
    async with httpx.AsyncClient(base_url=shop.url, timeout=PATIENCE, trust_env=False) as client:
        waiting = [
            asyncio.create_task(client.post("/v1/leases", json={"lock": name, "owner": "many", "wait_ms": 20_000}))
            for _ in range(3)
        ]
        waiters = "SELECT FROM fencepost.live_waiters WHERE owner = 'many' HAVING count(*) = 3"
        await eventually(lambda: shop.sql(waiters), what="three waiters")
        answer = await acquire(api, name, wait_ms=1000)
        assert code(answer) == (503, "FP010")
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    none_left = "SELECT FROM fencepost.live_waiters WHERE owner = 'many' HAVING count(*) = 0"
    await eventually(lambda: shop.sql(none_left), what="their leaving")


async def test_locks_are_listed_by_name_and_in_pages(api: Api, shop: Shop) -> None:
    prefix = f"page-{new_name()}/"
    names = [prefix + end for end in ("B", "a", "aa", "b", "z", "ä")]
    given = {name: await lease(api, name, owner=name) for name in reversed(names)}
    async with httpx.AsyncClient(base_url=shop.url, timeout=PATIENCE, trust_env=False) as client:
        waiting = []
        for number in range(2):
            body = {"lock": names[2], "owner": f"waiter-{number}", "wait_ms": 20_000}
            waiting.append(asyncio.create_task(client.post("/v1/leases", json=body)))
            await eventually(
                partial(shop.sql, f"SELECT FROM fencepost.live_waiters WHERE owner = 'waiter-{number}'"),
                what="a waiter",
            )
        everything = (await api.ask("GET", "locks")).json()
        listed = [lock["name"] for lock in everything]
        assert listed == sorted(listed, key=str.encode)
        ours = [lock for lock in everything if lock["name"].startswith(prefix)]
        assert [lock["name"] for lock in ours] == names
        assert [[waiter["owner"] for waiter in lock["waiters"]] for lock in ours] == [
            *([], [], ["waiter-0", "waiter-1"], [], [], [])
        ]
        for lock in ours:
            mine = given[lock["name"]]
            assert lock["held"] is True
            assert (lock["lease_id"], lock["owner"]) == (mine["lease_id"], lock["name"])
            assert (lock["granted_at"], lock["expires_at"]) == (mine["granted_at"], mine["expires_at"])
            assert 0 < lock["remaining_ms"] <= 30_000
        paged: list[str] = []
        after = prefix
        while page := (await api.ask("GET", f"locks?after={after}&limit=2")).json():
            assert len(page) <= 2
            paged += [lock["name"] for lock in page if lock["name"].startswith(prefix)]
            after = page[-1]["name"]
        assert paged == names
        assert (await api.ask("GET", f"locks?name={names[3]}")).json() == [
            {**ours[3], "remaining_ms": pytest.approx(ours[3]["remaining_ms"], abs=20_000)}
        ]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_idle_locks_are_not_listed(api: Api, shop: Shop) -> None:
    released, expired = await lease(api), await lease(api)
    await api.ask("DELETE", f"leases/{released['lease_id']}", headers=of(released))
    await expire(shop, expired)
    for given in (released, expired):
        assert (await api.ask("GET", f"locks?name={given['lock']}")).json() == []
    assert (await api.ask("GET", "locks?name=never%20heard%20of")).json() == []


async def test_a_free_lock_that_others_wait_for_is_listed_without_a_holder(api: Api, shop: Shop) -> None:
    name = new_name()
    given = await lease(api, name)
    await acquire(api, name, wait_ms=20, keep_place=True, secret=new_secret(), owner="comes back")
    await api.ask("DELETE", f"leases/{given['lease_id']}", headers=of(given))
    (lock,) = (await api.ask("GET", f"locks?name={name}")).json()
    assert (lock["held"], [waiter["owner"] for waiter in lock["waiters"]]) == (False, ["comes back"])
    absent = ("lease_id", "owner", "granted_at", "expires_at", "remaining_ms")
    assert all(lock[member] is None for member in absent)
    answer = await acquire(api, name)
    assert code(answer) == (423, "FP011")
    of_the_holder = ("holder", "lease_id", "held_since", "held_until")
    assert all(answer.json()[member] is None for member in of_the_holder)
    assert (answer.json()["lock"], answer.json()["waiting"]) == (name, 1)
    await shop.sql("DELETE FROM fencepost.waiters")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=-1",
        "limit=%D9%A1",
        "limit=" + "9" * 5000,
        "page=2",
        "name=a&name=b",
        "name=%ff",
    ],
)
async def test_queries_that_cannot_be_read_are_400(api: Api, query: str) -> None:
    assert code(await api.ask("GET", f"locks?{query}")) == (400, "FP016")


async def test_metrics_count_locks_waiters_operations_and_tokens(api: Api, shop: Shop) -> None:
    async def metric(name: str) -> float:
        text = (await api.http.get("/metrics")).text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    held = await metric("fencepost_locks_held")
    waiters = await metric("fencepost_lock_waiters")
    issued = await metric("fencepost_tokens_issued_total")
    verdicts = [
        ("acquire", "granted"),
        ("acquire", "repeated"),
        ("acquire", "FP011"),
        ("renew", "done"),
        ("mint", "done"),
    ]
    verdicts += [("release", "done"), ("renew", "FP012"), ("mint", "FP012")]
    names = {pair: f'fencepost_lease_operations_total{{verb="{pair[0]}",verdict="{pair[1]}"}}' for pair in verdicts}
    before = {pair: await metric(name) for pair, name in names.items()}
    one, two, secret = new_name(), new_name(), new_secret()
    given = await lease(api, one, two, tokens=3, secret=secret)
    await acquire(api, two, one, secret=secret)
    await acquire(api, one)
    await acquire(api, one, wait_ms=20, keep_place=True, secret=new_secret())
    path = f"leases/{given['lease_id']}"
    await api.ask("POST", f"{path}/tokens", {"count": 5}, headers=of(given))
    await api.ask("POST", f"{path}/renew", headers=of(given))
    assert await metric("fencepost_locks_held") == held + 2
    assert await metric("fencepost_lock_waiters") == waiters + 1
    await api.ask("DELETE", path, headers=of(given))
    for verb in ("renew", "tokens"):
        await api.ask("POST", f"{path}/{verb}", headers=of(given))
    assert await metric("fencepost_locks_held") == held
    assert await metric("fencepost_tokens_issued_total") == issued + 8
    after = {pair: await metric(name) for pair, name in names.items()}
    assert {pair: after[pair] - before[pair] for pair in verdicts} == {
        **dict.fromkeys(verdicts, 1),
        ("acquire", "FP011"): 2,
    }
    await shop.sql("DELETE FROM fencepost.waiters")


async def test_openapi_has_the_routes(api: Api) -> None:
    document = (await api.http.get("/openapi.json")).json()
    for path, methods in (
        ("/v1/leases", {"post"}),
        ("/v1/leases/{lease_id}", {"get", "delete"}),
        ("/v1/leases/{lease_id}/renew", {"post"}),
        ("/v1/leases/{lease_id}/tokens", {"post"}),
        ("/v1/locks", {"get"}),
    ):
        assert methods <= document["paths"][path].keys(), path
    assert {"200", "201", "400", "409", "423", "503"} <= document["paths"]["/v1/leases"]["post"]["responses"].keys()


async def test_a_client_that_hangs_up_leaves_the_queue_at_once(api: Api, shop: Shop) -> None:
    name = new_name()
    holder = await lease(api, name)
    url = httpx.URL(shop.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    body = json.dumps({"lock": name, "owner": "hangs up", "wait_ms": 40_000}).encode()
    kind = "Host: localhost\r\nContent-Type: application/json"
    head = f"POST /v1/leases HTTP/1.1\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await eventually(lambda: shop.sql("SELECT FROM fencepost.live_waiters WHERE owner = 'hangs up'"), what="a waiter")
    waiting = asyncio.create_task(lease(api, name, owner="next", wait_ms=60_000))
    await eventually(lambda: shop.sql("SELECT FROM fencepost.live_waiters WHERE owner = 'next'"), what="the next one")
    writer.close()
    await writer.wait_closed()
    assert await reader.read() == b""
    gone = "SELECT FROM fencepost.waiters WHERE owner = 'hangs up' HAVING count(*) = 0"
    await eventually(lambda: shop.sql(gone), what="its leaving")
    await api.ask("DELETE", f"leases/{holder['lease_id']}", headers=of(holder))
    assert (await asyncio.wait_for(waiting, PATIENCE))["owner"] == "next"
