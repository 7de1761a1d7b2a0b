"""The lease API over every lock service: the same answers as over the built-in source, with tokens that are fenced."""

import asyncio
import itertools
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner
from tests.conformance.bench import Bench
from tests.sources.conftest import Api, one_source, secret

from fencepost.cli.main import main
from fencepost.testing.servers.processes import eventually

ROW = "orders/k"
_numbers = itertools.count(1)


@pytest.fixture
def lock() -> str:
    """A lock of the test's own: the service outlives it."""
    return f"orders/{next(_numbers)}"


async def test_an_operator_ends_a_lease_and_the_lock_is_free_at_the_service(api: Api, bench: Bench, lock: str) -> None:
    granted = await api.grant(lock, owner="gone")
    given = ("--database-url", api.database, "--sources", f"{api.source}={bench.url}", "--source", api.source)
    done = await asyncio.to_thread(
        CliRunner().invoke, main, ["release", *given, "--force", lock, "--reason", "the worker is gone"]
    )
    assert done.exit_code == 0, done.output
    assert "gone" in done.output
    assert (await api.on(granted, "renew")).status_code == 410

    async def next_grant() -> bool:  # a hold that lives by a session is ended by the gateway, a little later
        return (await api.post(lock, owner="next")).status_code == 201

    await eventually(next_grant, what="a grant to the next")


async def test_who_holds_an_elections_lock_leads_and_its_number_is_the_term(api: Api, lock: str) -> None:
    async def leader(name: str) -> Any:
        query = {"source": api.source, "name": name}
        return (await api.client.get("/v1/elections", params=query)).json()["leader"]

    granted = await api.grant(f"election/{lock}", owner="first", tokens=2)
    await api.on(granted, "tokens", count=2)
    leads = await leader(lock)
    number = granted["lease_id"].rpartition("-")[2]
    assert (leads["term"], leads["owner"], leads["lease_id"]) == (number, "first", granted["lease_id"])
    listed = (await api.client.get("/v1/elections", params={"source": api.source})).json()
    assert [each["name"] for each in listed] == [lock]
    await api.on(granted, "delete")
    assert await leader(lock) is None
    successor = await api.grant(f"election/{lock}")
    assert int((await leader(lock))["term"]) > int(number)
    assert int(successor["token"]) > int(granted["tokens"][-1])


async def test_the_leases_tokens_write_and_older_ones_are_stale(api: Api, lock: str) -> None:
    first = await api.grant(lock, owner="first", tokens=2)
    assert (await api.write(first["tokens"][0])).status_code == 200
    assert (await api.on(first, "delete")).status_code == 204
    second = await api.grant(lock, owner="second")
    assert (await api.write(second["token"])).status_code == 200
    stale = await api.write(first["tokens"][1])
    assert (stale.status_code, stale.json()["code"]) == (409, "FP001")
    by = stale.json()["superseded_by"]
    assert (by["holder"], by["lease_id"], by["source"]) == ("second", second["lease_id"], api.source)
    unissued = await api.write(int(second["token"]) + 100_000)
    assert (unissued.status_code, unissued.json()["code"]) == (409, "FP018")
    assert api.source in unissued.json()["detail"]
    foreign = await api.write(2**48 + 1)
    assert (foreign.status_code, foreign.json()["code"]) == (409, "FP008")


@one_source
async def test_the_same_secret_again_is_the_same_lease(api: Api, lock: str) -> None:
    mine = secret()
    first = await api.post(lock, owner="a", tokens=2, secret=mine)
    again = await api.post(lock, owner="a", tokens=2, secret=mine)
    assert (first.status_code, again.status_code) == (201, 200)
    assert {first.json()[name] == again.json()[name] for name in ("lease_id", "tokens", "owner")} == {True}
    other = await api.post(f"{lock}/other", owner="a", secret=mine)
    assert (other.status_code, other.json()["code"]) == (400, "FP016")
    foreign = await api.on({**first.json(), "secret": secret()}, "renew")
    assert foreign.status_code == 410
    assert (await api.on({**first.json(), "secret": secret()}, "delete")).status_code == 410
    assert (await api.on(first.json(), "renew")).status_code == 200


@one_source
async def test_a_claim_fences_the_older_holder_off_before_the_new_one_writes(api: Api, lock: str) -> None:
    old = await api.grant(lock, owner="old", tokens=2)
    assert (await api.write(old["tokens"][0])).status_code == 200
    assert (await api.on(old, "delete")).status_code == 204
    mine = secret()
    new = await api.grant(lock, owner="new", claim=[ROW], secret=mine)
    assert new["claims"][0]["row"]["status"] == f"by {old['tokens'][0]}"
    assert (await api.write(old["tokens"][1])).json()["code"] == "FP001"
    repeated = await api.post(lock, owner="new", claim=[ROW], secret=mine)
    assert (repeated.status_code, repeated.json()["tokens"]) == (200, new["tokens"])
    assert repeated.json()["claims"][0]["mark"] == new["claims"][0]["mark"]
    assert (await api.write(new["token"])).status_code == 200


@one_source
async def test_a_claim_that_is_refused_gives_the_lock_back(api: Api, lock: str) -> None:
    refused = await api.post(lock, claim=["nowhere/1"])
    assert (refused.status_code, refused.json()["code"]) == (404, "FP007")
    builtin = await api.client.post("/v1/leases", json={"lock": "x", "claim": [ROW]})
    assert (builtin.status_code, builtin.json()["code"]) == (409, "FP008")
    connection = await asyncpg.connect(api.database)
    await connection.execute("SELECT fencepost.raise_mark('orders/absent', 4000000000000, 'strict', true)")
    await connection.close()
    too_high = await api.post(lock, claim=["orders/absent"])
    assert (too_high.status_code, too_high.json()["code"]) == (409, "FP008")
    assert (await api.post(lock)).status_code == 201


async def test_who_waits_gets_the_lock_when_it_is_released(api: Api, lock: str) -> None:
    first = await api.grant(lock, tokens=2)
    waiting = asyncio.create_task(api.grant(lock, wait_ms=60_000))
    await asyncio.wait([waiting], timeout=1.3)  # long enough for its number to be drawn anew
    assert not waiting.done()
    minted = (await api.on(first, "tokens", count=3)).json()["tokens"]
    assert (await api.on(first, "delete")).status_code == 204
    second = await waiting
    assert int(second["token"]) > int(minted[-1])
    assert 1000 < second["waited_ms"] < 60_000
    assert (await api.on(second, "renew")).status_code == 200


@one_source
async def test_what_makes_no_sense_is_refused(api: Api) -> None:
    several = await api.client.post("/v1/leases", json={"locks": ["a", "b"], "source": api.source})
    assert (several.status_code, "one name at a time" in several.text) == (400, True)
    for source in ("Etcd", 7, "", "a b", None):
        answer = await api.client.post("/v1/leases", json={"lock": "a", "source": source})
        assert (answer.status_code, answer.json()["code"]) == (400, "FP016"), source
    assert (await api.client.get("/v1/locks", params={"source": "nowhere"})).status_code == 400
    assert (await api.client.get("/v1/leases/nowhere-1")).status_code == 410
    assert (await api.client.get(f"/v1/leases/{api.source}-999")).status_code == 410


async def test_a_service_that_is_away_does_not_stop_writes(api: Api, bench: Bench, lock: str) -> None:
    held = await api.grant(lock, tokens=3)
    await bench.crash()
    try:
        away = await api.post(f"{lock}/other")
        assert (away.status_code, away.json()["code"]) == (503, "FP024")
        assert away.headers["retry-after"] == "1"
        assert (await api.on(held, "renew")).json()["code"] == "FP024"
        assert (await api.write(held["tokens"][0])).status_code == 200, "writes need the database only (R13)"
        assert (await api.client.get("/readyz")).status_code == 200
    finally:
        await bench.restart()
    assert (await api.post(f"{lock}/other", wait_ms=30_000)).status_code == 201
