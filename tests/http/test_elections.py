"""Who leads: asked once, and streamed."""

import signal
from pathlib import Path
from typing import Any

import httpx
from tests.support.gateways import serving_process as serve
from tests.support.lease_gateways import post, release
from tests.support.use_cases import streaming

from fencepost.testing.servers.processes import PATIENCE


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
        "term": first["lease_id"],
        "owner": "a",
        "lease_id": first["lease_id"],
        "since": first["granted_at"],
        "expires_at": first["expires_at"],
    }
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
        "",
        "?name=",
        "?name=a&name=b",
        "?name=a&limit=1",
        "?name=%00",
        "?name=" + "x" * 504,
        "?name=a&source=no",
    )
    for query in queries:
        for path in ("/v1/elections/events", "/v1/elections")[: 2 if query else 1]:
            answer = await http.get(f"{path}{query}")
            assert (answer.status_code, answer.json()["code"]) == (400, "FP016"), answer.text


async def test_a_gateway_that_is_to_stop_ends_its_streams(demo_database: str, short_dir: Path) -> None:
    """Given an hour to finish what is in flight, it takes none of it."""
    given = ("--database-url", demo_database, "--shutdown-timeout", "3600", "--workers", "2")
    async with serve(short_dir, *given) as gateway:
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
