"""The lease API over every lock service: answers, ends of leases, refusals, and sources elsewhere."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner
from tests.conformance.benches import Bench, RedisBench, opened, redis_command
from tests.sources.conftest import Api, one_source, secret, serving
from tests.support.gateways import in_process
from tests.support.interleave import Connect, connection_to

from fencepost.cli.main import main
from fencepost.server.locks.source import MOST_NATIVE, Grant
from fencepost.testing.servers.processes import eventually

# The lease API over every lock service: the same answers as over the built-in source, with tokens that are fenced.

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
    async with connection_to(api.database) as connection:
        await connection.execute("SELECT fencepost.raise_mark('orders/absent', 4000000000000, 'strict', true)")
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


# A 410 says what ended the lease, and when.

BREAK_GLASS = "SET fencepost.break_glass = 'it is gone'; SELECT fencepost.force_release"


ENDS = (
    ("builtin", f"{BREAK_GLASS}('builtin', 'ends')", "was ended in its holder's place by an operator at"),
    ("lock_service", f"{BREAK_GLASS}('lock_service', 'ends')", "was ended in its holder's place by an operator at"),
    ("lock_service", "SELECT 1", "was lost at the lock service at"),
    ("lock_service", "SELECT fencepost.source_raise('lock_service', 'a drill', 0)", "by raising the generation at"),
    ("builtin", "SELECT fencepost.raise_generation('a drill')", "was ended by raising the generation at"),
)


@one_source
async def test_a_lost_lease_says_what_ended_it(api: Api, bench: RedisBench, connect: Connect) -> None:
    owner = await connect()
    for source, ends, said in ENDS:
        granted = await api.grant("ends", source=source)
        await owner.execute(ends)
        await redis_command(bench.ports[0], "DEL", "fencepost:lock:ends")
        lost = (await api.on(granted, "renew")).json()
        assert (lost["status"], lost["code"]) == (410, "FP012"), (source, ends)
        assert f"Lease {granted['lease_id']} of ends " in lost["detail"]
        assert said in lost["detail"]
        if ends == "SELECT 1":
            await api.grant("ends", owner="next")
            lost = (await api.on(granted, "renew")).json()
            ended, began = (datetime.fromisoformat(lost["ended_at"]), lost["superseded_by"]["granted_at"])
            assert datetime.fromisoformat(granted["granted_at"]) <= ended <= datetime.fromisoformat(began)
            await owner.execute(f"{BREAK_GLASS}('lock_service', 'ends')")
            await redis_command(bench.ports[0], "DEL", "fencepost:lock:ends")


# What a lock service refuses is answered with its reason, and grants nothing.


@one_source
async def test_a_lock_service_that_will_not_do_it_is_502_and_doctor_says_so(bench: RedisBench, api: Api) -> None:
    for content in ("many", "", "+5", "-5", f"{MOST_NATIVE}"):
        await redis_command(bench.ports[0], "SET", "fencepost:tokens", content)
        try:
            refused = await api.post("of-a-counter")
            configured = ["--sources", f"{api.source}={bench.url}", "--database-url", api.database]
            looked = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", *configured])
        finally:
            await redis_command(bench.ports[0], "DEL", "fencepost:tokens")
        assert (refused.status_code, refused.json()["code"], refused.json()["retryable"]) == (502, "FP025", False)
        assert (looked.exit_code, f"ERROR    source {api.source}: " in looked.output) == (1, True), looked.output
        assert "counter fencepost:tokens" in looked.output


async def test_a_name_that_the_lock_service_cannot_have_is_the_callers_error(database: str) -> None:
    async with in_process(database, sources="rows=postgres-advisory:?keys=number") as client:
        refused = await client.post("/v1/leases", json={"lock": "orders/1", "source": "rows", "ttl_ms": 5000})
        assert (refused.status_code, refused.json()["type"]) == (400, "/problems/bad-request")
        assert "the lock orders/1 is no number" in refused.json()["detail"]
        assert refused.json()["retryable"] is False
        granted = await client.post("/v1/leases", json={"lock": "17", "source": "rows", "ttl_ms": 5000})
        assert granted.status_code == 201


# Locks that are taken past Fencepost: the holder presents the service's own number (`protect --verify`, R12).

NAME = "lock_service"


async def native(bench: Bench, lock: str, count: int = 4) -> list[int]:
    """Take a lock as a program without Fencepost would, and give it back. Numbers as the service counts them."""
    source = await opened(bench)
    try:
        grant = await source.acquire(lock, owner="elsewhere", ttl_ms=20_000, tokens=count, wait_s=10)
        assert isinstance(grant, Grant)
        await source.release(lock, grant.handle)
        return list(grant.tokens)
    finally:
        await source.close()


@pytest.fixture
async def _can_verify(bench: Bench) -> None:
    source = await opened(bench)
    verifies = source.capabilities.verifies
    await source.close()
    if not verifies:
        pytest.skip("capability: verifies=False")


@pytest.mark.usefixtures("_can_verify")
async def test_a_number_that_the_service_issued_is_taken(bench: Bench, database: str, stack: AsyncExitStack) -> None:
    api = await serving(stack, database, NAME, bench.url, verify=True)
    first, second, third, fourth = await native(bench, "elsewhere")
    for forged, code in ((fourth + 10**9, "FP018"), (2**63 - 1, "FP008")):
        refused = await api.write(forged)
        assert (refused.status_code, refused.json()["code"]) == (409, code), "and it raises no mark"
    assert (await api.write(second)).status_code == 200
    stale = await api.write(first)
    assert (stale.status_code, stale.json()["code"]) == (409, "FP001")
    claimed = await api.client.post(
        "/v1/claims", json={"resource": "orders/absent"}, headers={"X-Fence-Token": str(third)}
    )
    assert (claimed.status_code, claimed.json()["mark"]) == (200, str(third))
    put = await api.client.put(
        "/v1/data/orders/new", json={"status": "x"}, headers={"X-Fence-Token": str(fourth), "Idempotency-Key": "k1"}
    )
    assert put.status_code == 201
    granted = await api.grant("here")
    assert int(granted["token"]) > fourth, "and grants through the gateway go on above"


@pytest.mark.usefixtures("_can_verify")
async def test_without_verify_only_what_came_through_the_gateway_is_known(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(stack, database, NAME, bench.url)
    (number,) = await native(bench, "elsewhere", 1)
    refused = await api.write(number)
    assert (refused.status_code, refused.json()["code"]) == (409, "FP018")
    assert "--verify" in refused.json()["hint"]
    async with connection_to(database) as connection:
        await connection.execute("UPDATE fencepost.protected SET verify = true")  # which no gateway is told
    assert (await api.write(number)).status_code == 200


@pytest.mark.usefixtures("_can_verify")
async def test_a_service_that_cannot_be_asked_lets_no_unknown_number_pass(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(stack, database, NAME, bench.url, verify=True)
    one, two, three, four = await native(bench, "elsewhere")
    assert (await api.write(two)).status_code == 200
    await bench.crash()
    try:
        unknown = await api.write(three)
        if unknown.status_code == 200:  # its client has heard of this number with an answer before
            assert "zookeeper" in bench.url
        else:
            assert (unknown.status_code, unknown.json()["code"]) == (503, "FP024")
        assert (await api.write(one)).json()["code"] == "FP001", "what is known is judged without it"
    finally:
        await bench.restart()
    assert (await api.write(four)).status_code == 200


@pytest.mark.usefixtures("_can_verify")
async def test_direct_sql_knows_what_the_gateway_verified(bench: Bench, database: str, stack: AsyncExitStack) -> None:
    api = await serving(stack, database, NAME, bench.url, verify=True)
    _, two, three, four = await native(bench, "elsewhere")
    connection = await asyncpg.connect(database)
    stack.push_async_callback(connection.close)

    async def directly(token: int) -> str:
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL fencepost.token = '{token}'")
                return await connection.execute("UPDATE public.orders SET status = 'sql' WHERE order_id = 'k'")
        except asyncpg.PostgresError as error:
            return error.sqlstate or ""

    assert await directly(two) == "FP018"
    assert (await api.write(three)).status_code == 200
    assert await directly(two) == "FP409"
    assert await directly(four) == "FP018"
    claimed = await api.client.post(
        "/v1/claims", json={"resource": "orders/other"}, headers={"X-Fence-Token": str(four)}
    )
    assert claimed.status_code == 200
    assert await directly(four) == "UPDATE 1"
