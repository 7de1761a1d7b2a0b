"""docs/recipes/redis-dedupe-and-fence.md runs as it stands, on a real Redis and the gateway."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conformance.redis_bench import redis_server
from tests.http.conftest import StartGateway
from tests.support.recipes import DOCS, recipe, recipes, run, steps

from fencepost.server.ops.embedded import PostgresServer
from fencepost.testing.servers.processes import free_port

PAGE = DOCS / "recipes" / "redis-dedupe-and-fence.md"
STORY = ("dedupe", "give-back", "protect", "paused", "successor", "stale", "made-up", "forgets")
_END = "-- the end of a command"


@dataclass(frozen=True)
class Story:
    """Runs the page's commands where its gateway, Redis and PostgreSQL are."""

    server: PostgresServer
    database: str
    gateway: str
    redis: int

    async def run_recipes(self, *names: str) -> None:
        """Run these recipes in one shell, which keeps their variables, and compare what they print."""
        answered = [step for name in names for step in steps(recipe(name, PAGE))]
        script = f"\necho {_END}\n".join(command for command, _ in answered)
        output = (await self.run(script)).split(f"{_END}\n")
        assert len(output) == len(answered)
        for (command, expected), answer in zip(answered, output, strict=True):
            assert answer.rstrip("\n") == expected, command

    async def run(self, script: str) -> str:
        """Run a shell script, and return what it prints."""
        here = script.replace("http://127.0.0.1:8080", self.gateway)
        here = here.replace("redis-cli", f"redis-cli --no-raw -p {self.redis}")
        done = await asyncio.to_thread(run, here, self.server, self.database, FENCEPOST_DATABASE_URL=self.database)
        return done.stdout


@pytest.fixture
async def story(
    database: str, start_gateway: StartGateway, postgres: PostgresServer, tmp_path: Path
) -> AsyncIterator[Story]:
    port = free_port()
    # What the page's `fencepost serve` is given.
    found = re.search(r'FENCEPOST_SOURCES="(\S+)" fencepost serve', recipe("serve", PAGE))
    assert found is not None
    with redis_server(tmp_path / "redis", port):
        gateway = await start_gateway(database, sources=found[1].replace("6379", str(port)))
        yield Story(postgres, database, gateway, port)


def test_every_block_of_the_page_is_run() -> None:
    assert set(recipes(PAGE)) == {*STORY, "serve"}
    assert len(re.findall(r"^```\w+$", PAGE.read_text("utf-8"), re.MULTILINE)) == len(recipes(PAGE))


async def test_the_page_is_true(story: Story) -> None:
    await story.run_recipes(*STORY)


async def test_what_redis_forgot_is_done_twice(story: Story) -> None:
    """The dedupe of the page is a saving, no promise."""
    await story.run_recipes("dedupe")
    assert await story.run("redis-cli FLUSHALL") == "OK\n"
    await story.run_recipes("dedupe")
