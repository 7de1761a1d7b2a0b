"""Locks over real HTTP: who holds, who waits, in what order; and the numbers that are shown of them."""

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from tests.scenarios.shop import Shop
from tests.support.asking import Api, code
from tests.support.lease_asking import (
    TIME,
    Said,
    acquire,
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
    paged: list[str] = []
    after = prefix
    while page := (await api.ask("GET", f"locks?after={after}&limit=2")).json():
        assert len(page) <= 2
        paged += [lock["name"] for lock in page if lock["name"].startswith(prefix)]
        after = page[-1]["name"]
    assert paged == names
    await api.ask("DELETE", f"leases/{given[names[0]]['lease_id']}", headers=of(given[names[0]]))
    assert (await api.ask("GET", f"locks?name={names[0]}")).json() == []


async def test_queries_that_cannot_be_read_are_400(api: Api) -> None:
    for query in ("limit=0", "limit=1001", "limit=x", "limit=" + "9" * 5000, "page=2", "name=a&name=b", "name=%ff"):
        assert code(await api.ask("GET", f"locks?{query}")) == (400, "FP016"), query[:20]


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
