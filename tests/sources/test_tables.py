"""Tables that are pinned to a lock service: protecting them, scopes, the command line, the SDK."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack

import asyncpg
import httpx
import pytest
from click.testing import CliRunner, Result
from tests.conformance.benches import Bench, running_redis
from tests.sources.conftest import Api, orders, serving
from tests.support.gateways import in_process
from tests.support.interleave import connection_to
from tests.support.lease_gateways import running

from fencepost import Client, StaleToken
from fencepost.cli.main import main
from fencepost.server.ops.protect import protect

NAME = "redis"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One service will do: what is shown here is the same for all."""
    with running_redis(tmp_path_factory.mktemp("redis")) as running:
        yield running


async def run(database: str, *arguments: str, **variables: str) -> Result:
    environment = {"FENCEPOST_DATABASE_URL": database, **variables}
    return await asyncio.to_thread(CliRunner().invoke, main, [*arguments], env=environment)


async def test_a_source_has_to_be_known_before_tables_are_pinned_to_it(bench: Bench, database: str) -> None:
    await orders(database)
    unknown = await run(database, "protect", "orders", "--source", NAME)
    assert (unknown.exit_code, "there is no source redis" in unknown.output) == (1, True)
    assert "no sources beside the built-in one" in (await run(database, "source")).output
    for wrong in (
        *("redis", "redis://u:pw@h/0", "redis://:p=pw@h/0", "Redis=redis://x:pw@h", "builtin=redis://x"),
        *("r=nowhere://x", "r=redis://u:pw℀@h/0"),
    ):
        refused = await run(database, "source", "add", wrong)
        assert (refused.exit_code, "pw" in refused.output) == (1, False), wrong
    added = await run(database, "source", "add", f"{NAME}={bench.url}")
    assert (added.exit_code, added.output) == (0, "redis is known: redis\n")
    assert (await run(database, "source", "add", f"{NAME}={bench.url}")).exit_code == 0, "can be repeated"
    other = await run(database, "source", "add", f"{NAME}=etcd://127.0.0.1:1")
    assert (other.exit_code, "is redis here, and not etcd" in other.output) == (1, True)
    assert (await run(database, "protect", "orders", "--source", NAME, "--verify")).exit_code == 0
    listed = await run(database, "source")
    assert listed.output == "redis (redis): generation 0, nothing issued yet; orders\n"
    builtin = await run(database, "protect", "orders", "--source", "builtin", "--verify")
    assert (builtin.exit_code, "--verify asks a lock service" in builtin.output) == (1, True)


async def test_marks_that_are_there_count_as_issued_and_a_wrong_one_shows(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(stack, database, NAME, bench.url, source=None)
    assert (await api.write(7_000_000)).status_code == 200, "of an external source"
    async with connection_to(database) as connection:
        await protect(connection, "orders", source=NAME)
    refused = await api.post("orders/k")
    assert (refused.status_code, refused.json()["code"]) == (503, "FP015"), "Redis counts from elsewhere"
    assert (await run(database, "source", "raise", NAME, "--reason", "new here")).exit_code == 0
    granted = await api.grant("orders/k")
    assert (await api.write(granted["token"])).status_code == 200


async def test_a_source_that_is_in_use_is_not_moved_by_another_table(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(stack, database, NAME, bench.url)
    held = await api.grant("orders/used", tokens=3)
    assert (await api.write(held["tokens"][0])).status_code == 200
    connection = await asyncpg.connect(database)
    await connection.execute("CREATE TABLE public.jobs (id int PRIMARY KEY); INSERT INTO jobs VALUES (1)")
    await protect(connection, "jobs")
    await connection.execute("SET fencepost.token = '1764000000000000'; UPDATE jobs SET id = id; RESET fencepost.token")
    with pytest.raises(asyncpg.PostgresError, match="which is in use, has issued none above") as refused:
        await protect(connection, "jobs", source=NAME)
    assert refused.value.hint is not None
    assert "fencepost source raise" in refused.value.hint
    assert (await api.write(held["tokens"][1])).status_code == 200
    assert (await api.post("orders/another")).status_code == 201
    mark = re.search(r"--above (\d+)", refused.value.hint)
    assert mark is not None
    assert (await run(database, "source", "raise", NAME, "--above", mark[1], "--reason", "jobs move")).exit_code == 0
    await protect(connection, "jobs", source=NAME)
    await connection.close()
    moved = await api.grant("jobs/1")
    assert int(moved["token"]) > 1764000000000000
    assert (await api.write(moved["token"])).status_code == 200


async def test_verify_is_refused_where_there_is_nothing_to_ask(database: str) -> None:
    assert (await run(database, "source", "add", "lock5=redlock://a,b,c,d,e")).exit_code == 0
    await orders(database)
    refused = await run(database, "protect", "orders", "--source", "lock5", "--verify")
    assert (refused.exit_code, "redlock does not know which numbers it has issued" in refused.output) == (1, True)


async def test_a_service_that_has_issued_no_token_begins_above_another_sources_marks(
    bench: Bench, database: str, stack: AsyncExitStack
) -> None:
    api = await serving(stack, database, NAME, bench.url, source="builtin")
    before = await api.grant("k", tokens=30, source="builtin")
    assert (await api.write(before["tokens"][-1])).status_code == 200
    async with connection_to(database) as connection:
        await protect(connection, "orders", source=NAME)
    granted = await api.grant("orders/k-anew")
    assert int(granted["token"]) > 2**48
    assert (await api.write(granted["token"])).status_code == 200
    assert (await run(database, "source")).output.startswith("redis (redis): generation 1, issued ")


async def test_a_scope_may_be_a_lock_services(bench: Bench, database: str, stack: AsyncExitStack) -> None:
    client = await stack.enter_async_context(in_process(database, sources=f"{NAME}={bench.url}"))
    async with connection_to(database) as connection:
        await connection.execute(
            "CREATE TABLE public.items (id int PRIMARY KEY, account_id int NOT NULL, n int NOT NULL DEFAULT 0);"
            "INSERT INTO public.items SELECT g, 42 FROM generate_series(1, 3) g"
        )
        await protect(connection, "items", source=NAME, scope="account/{account_id}")
    api = Api(client, NAME, database)
    old = await api.grant("account/42", tokens=3)

    async def write(token: str | int, row: int) -> httpx.Response:
        return await client.patch(f"/v1/data/items/{row}", json={"n": 1}, headers={"X-Fence-Token": str(token)})

    assert (await write(old["tokens"][0], 1)).status_code == 200
    unissued = await write(int(old["tokens"][2]) + 100, 2)
    assert (unissued.status_code, unissued.json()["code"]) == (409, "FP018")
    many = [write(old["tokens"][1], 2), write(int(old["tokens"][2]) + 100, 3)]  # in one batch, maybe
    assert sorted(answer.status_code for answer in await asyncio.gather(*many)) == [200, 409]
    await api.on(old, "delete")
    new = await api.grant("account/42", claim=["account/42"], tokens=2)
    assert (await write(old["tokens"][2], 3)).json()["code"] == "FP001"
    assert (await write(new["token"], 3)).status_code == 200
    assert (await run(database, "source", "raise", NAME, "--reason", "a drill")).exit_code == 0
    stale = await write(new["tokens"][1], 1)
    assert (stale.status_code, stale.json()["code"]) == (409, "FP001")


async def test_doctor_asks_the_services(bench: Bench, database: str) -> None:
    assert (await run(database, "source", "add", f"{NAME}={bench.url}")).exit_code == 0
    await orders(database, source=NAME)
    away = await run(database, "doctor")
    assert "WARNING  source redis: orders needs it, and FENCEPOST_SOURCES here has it not" in away.output
    there = await run(database, "doctor", FENCEPOST_SOURCES=f"{NAME}={bench.url}")
    assert (there.exit_code, "ok       source redis: generation 0" in there.output) == (0, True)
    dead = await run(database, "doctor", FENCEPOST_SOURCES=f"{NAME}=redis://127.0.0.1:1/0")
    assert (dead.exit_code, "ERROR    source redis: " in dead.output) == (1, True)
    async with connection_to(database) as connection:
        await connection.execute("SELECT fencepost.source_quarantine('redis', 'a test')")
        await connection.execute("UPDATE fencepost.protected SET source = 'external'")
    quarantined = await run(database, "doctor", FENCEPOST_SOURCES=f"{NAME}={bench.url}")
    assert (quarantined.exit_code, "quarantined at generation 0: a test" in quarantined.output) == (1, True)
    assert "its source is external, and its functions" in quarantined.output


async def test_the_client_takes_a_source(bench: Bench, database: str) -> None:
    assert (await run(database, "source", "add", f"{NAME}={bench.url}")).exit_code == 0
    await orders(database, source=NAME)
    async with running(database, sources=f"{NAME}={bench.url}") as http:
        url = str(http.base_url)
        async with Client(url) as one, Client(url) as two:
            async with one.lock("orders/sdk", source=NAME, tokens=2) as lease:
                await one.patch("orders", "k", {"status": "first"}, lease=lease)
                for status in ("second", "third", "fourth"):  # it mints by itself
                    await one.patch("orders", "k", {"status": status}, lease=lease)
                spare = await lease.next_token()
            async with two.lock("orders/sdk", source=NAME, claim="orders/k") as later:
                with pytest.raises(StaleToken) as stale:
                    await one.patch("orders", "k", {"status": "late"}, token=spare)
                assert stale.value.superseded_by is not None
                await two.patch("orders", "k", {"status": "fifth"}, lease=later)
                assert [state.name for state in await two.locks(source=NAME)] == ["orders/sdk"]
                assert await two.locks() == []
