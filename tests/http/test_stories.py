"""Stories in the docs are run as they stand: each `$ command` against a fresh demo, its answer compared."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conformance.redis_bench import redis_server
from tests.http.conftest import StartGateway
from tests.support.gateways import serving_process
from tests.support.recipes import steps as steps_of

from fencepost.server.ops.embedded_files import embedded_bin_dir
from fencepost.testing.servers.processes import free_port

ROOT = Path(__file__).parents[2]
PATH = f"{Path(sys.executable).parent}:{embedded_bin_dir()}:{os.environ['PATH']}"


def story(page: str) -> list[tuple[str, str]]:
    """Read (command, expected output) from the page's console blocks."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    return [step for block in blocks for step in steps_of(block)]


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
    ("page", "at_least"), [("README.md", 6), ("docs/outcomes.md", 4), ("docs/queues.md", 8), ("docs/batch.md", 1)]
)
async def test_the_story_in_a_page_is_true(
    demo_database: str, start_gateway: StartGateway, tmp_path: Path, page: str, at_least: int
) -> None:
    steps = story(page)
    assert len(steps) >= at_least
    (tmp_path / "url").write_text(demo_database)
    await take(steps, tmp_path, await start_gateway(demo_database, demo=True), tmp_path / "url")


async def test_the_story_of_sources_is_true_with_a_redis(
    demo_database: str, start_gateway: StartGateway, tmp_path: Path
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
    demo_database: str, start_gateway: StartGateway, tmp_path: Path
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
