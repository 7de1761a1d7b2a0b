"""Stories in the docs, and clients that are not ours, run as they stand."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from postgrest import APIError, AsyncPostgrestClient, CountMethod
from tests.conformance.benches import redis_server
from tests.http.conftest import Start
from tests.support.gateways import serving_process
from tests.support.recipes import steps

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.processes import free_port

# Stories in the docs are run as they stand: each `$ command` against a fresh demo, its answer compared.

ROOT = Path(__file__).parents[2]
PATH = f"{Path(sys.executable).parent}:{embedded_bin_dir()}:{os.environ['PATH']}"


def story(page: str) -> list[tuple[str, str]]:
    """Read (command, expected output) from the page's console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    return [step for block in blocks for step in steps(block)]


async def take(steps: list[tuple[str, str]], cwd: Path, url: str = "", database: Path | None = None) -> None:
    """Run steps where the gateway and its database are, and compare what they print."""
    variables = "" if database is None else f'export FENCEPOST_DATABASE_URL="$(cat {database})"; '
    for command, expected in steps:
        here = command.replace("http://127.0.0.1:8080", url).replace(".fencepost/url", str(database))
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-c", variables + here], capture_output=True, text=True, check=True, cwd=cwd,
            env=os.environ | {"PATH": PATH},
        )  # fmt: skip
        assert done.stdout.rstrip("\n") == expected.rstrip("\n"), command


@pytest.mark.parametrize(
    ("page", "at_least"),
    [("README.md", 7), ("docs/outcomes.md", 4), ("docs/queues.md", 8), ("docs/batch.md", 1), ("docs/work.md", 11)],
)
async def test_the_story_in_a_page_is_true(
    demo_database: str, start_gateway: Start, tmp_path: Path, page: str, at_least: int
) -> None:
    steps = story(page)
    assert len(steps) >= at_least
    (tmp_path / "url").write_text(demo_database)
    await take(steps, tmp_path, await start_gateway(demo_database, demo=True), tmp_path / "url")


async def test_the_story_of_sources_is_true_with_redis(
    demo_database: str, start_gateway: Start, tmp_path: Path
) -> None:
    steps = story("docs/sources.md")
    assert len(steps) >= 12
    port = free_port()
    here = [(command.replace("-p 6379", f"-p {port}"), expected) for command, expected in steps]
    (tmp_path / "url").write_text(demo_database)
    with redis_server(tmp_path / "redis", port):
        gateway = await start_gateway(demo_database, demo=True, sources=f"redis=redis://127.0.0.1:{port}")
        await take(here, tmp_path, gateway, tmp_path / "url")


async def test_who_has_a_redis_lock_gets_started_and_sees_the_wrong_way(
    demo_database: str, start_gateway: Start, tmp_path: Path
) -> None:
    page = "docs/getting-started.md"
    assert len((ROOT / page).read_text("utf-8").split()) < 900, "it is read in ten minutes"
    port = free_port()
    here = [(command.replace("redis.Redis()", f"redis.Redis(port={port})"), said) for command, said in story(page)]
    assert len(here) >= 8
    (tmp_path / "url").write_text(demo_database)
    with redis_server(tmp_path / "redis", port):
        await take(here, tmp_path, await start_gateway(demo_database, demo=True), tmp_path / "url")


async def test_the_story_of_authentication_is_true(demo_database: str, short_dir: Path, tmp_path: Path) -> None:
    examples = f"{sys.executable} {ROOT}/examples"
    found = story("docs/authentication.md")
    steps = [(command.replace(".venv/bin/python examples", examples), expected) for command, expected in found]
    assert len(steps) >= 6
    await take(steps[:1], tmp_path)
    jwt = ("--jwt-secret-file", str(tmp_path / ".fencepost" / "jwt-secret"), "--jwt-role-claim-key", "")
    given = ("--database-url", demo_database, *jwt)
    async with serving_process(short_dir, *given) as gateway:
        await take(steps[1:], tmp_path, gateway.url)
        assert 'Authorization: Bearer $JWT"' in gateway.greeting


# Clients of others: of PostgREST (`postgrest`, of Supabase's Python SDK), and curl, which offers HTTP/2.


def client(url: str, token: int | None = None) -> AsyncPostgrestClient:
    headers = {} if token is None else {"X-Fence-Token": str(token)}
    return AsyncPostgrestClient(f"{url}/v1/data", headers=headers)


async def rows(query: Any) -> Any:
    return (await query.execute()).data


async def test_it_reads_with_filters_order_and_count(gateway_url: str) -> None:
    async with client(gateway_url) as reader:
        orders = reader.from_("orders")
        new = await rows(orders.select("order_id").eq("status", "new").order("order_id", desc=True).limit(1))
        assert new == [{"order_id": "order-125"}]
        either = reader.from_("orders").select("order_id").or_("status.eq.paid,amount.gt.40").order("order_id")
        assert await rows(either) == [{"order_id": "order-123"}, {"order_id": "order-124"}]
        counted = await reader.from_("orders").select("*", count=CountMethod.exact, head=True).execute()
        assert counted.count == 3


async def test_it_writes_under_a_token_and_is_refused_under_a_stale_one(gateway_url: str) -> None:
    async with client(gateway_url, 40) as holder:
        inserted = await rows(holder.from_("orders").insert([{"order_id": "b", "status": "new"}]))
        assert [row["order_id"] for row in inserted] == ["b"]
        updated = await rows(holder.from_("orders").update({"status": "paid"}).eq("order_id", "order-123"))
        assert [row["status"] for row in updated] == ["paid"]
    async with client(gateway_url, 39) as paused:
        with pytest.raises(APIError) as refused:
            await paused.from_("orders").update({"status": "new"}).eq("order_id", "order-123").execute()
        assert refused.value.code == "FP001"
        assert refused.value.hint is not None
    async with client(gateway_url, 41) as holder:
        deleted = await rows(holder.from_("orders").delete().eq("order_id", "b"))
        assert [row["order_id"] for row in deleted] == ["b"]


async def test_curl_that_would_rather_speak_http_2(gateway_url: str) -> None:
    url, large = f"{gateway_url}/v1/data/orders/from-curl", '{"status": "new", "note": "' + 300_000 * "x" + '"}'
    command = ["curl", "--http2", "-sS", "-o", "/dev/null", "-w", "%{http_code} %{http_version}"]
    body = ["-H", "Content-Type: application/json", "-d", "@-"]
    for token, (verb, status) in enumerate((("PUT", 201), ("PATCH", 200), ("DELETE", 204), ("POST", 201)), 1400):
        to = url.removesuffix("/from-curl") if verb == "POST" else url
        more = [to, "-X", verb, "-H", f"X-Fence-Token: {token}", *(body if verb != "DELETE" else [])]
        sent = large.replace("{", '{"order_id": "of-curl", ', 1) if verb == "POST" else large
        assert await run([*command, *more], sent) == f"{status} 1.1", verb
    assert await run([*command, f"{url.removesuffix('from-curl')}of-curl"]) == "200 1.1"
    assert await run([*command, "--head", f"{url.removesuffix('from-curl')}of-curl"]) == "200 1.1"


async def run(command: list[str], sent: str = "") -> str:
    done = await asyncio.to_thread(subprocess.run, command, input=sent, capture_output=True, text=True, check=True)
    return done.stdout
