"""docs/recipes/redis-dedupe-and-fence.md runs as it stands, on a real Redis and the gateway."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.conformance.redis_bench import redis_server
from tests.http.conftest import StartGateway
from tests.support.recipes import DOCS, recipe, recipes, run, steps

from fencepost.embedded.server import PostgresServer
from fencepost.testing.servers.ports import free_port
from fencepost.testing.servers.waiting import PATIENCE

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


async def test_writes_under_tokens_that_were_granted_before_go_on(story: Story) -> None:
    await story.run_recipes("protect")
    wanted = {"source": "redis", "lock": "invoices/inv-7", "tokens": 2}
    async with httpx.AsyncClient(base_url=story.gateway, trust_env=False, timeout=PATIENCE) as http:
        tokens = (await http.post("/v1/leases", json=wanted)).raise_for_status().json()["tokens"]
        await story.run("redis-cli FLUSHALL")
        assert (await http.post("/v1/leases", json=wanted)).json()["code"] == "FP015"
        answers = [
            await http.patch("/v1/data/invoices/inv-7", json={"state": "sent"}, headers={"X-Fence-Token": token})
            for token in (tokens[1], tokens[0])
        ]
    assert [answer.status_code for answer in answers] == [200, 409]


async def test_a_table_with_marks_of_another_source_needs_a_bump_first(story: Story) -> None:
    """As on the page, at its end; otherwise a new counter looks like one that went back."""
    await story.run(
        "psql $DATABASE_URL -qc 'CREATE TABLE invoices (number text PRIMARY KEY, state text NOT NULL)';"
        "fencepost protect invoices; psql $DATABASE_URL -qc \"SET LOCAL fencepost.token = '9';"
        "INSERT INTO invoices VALUES ('inv-7', 'open')\"; fencepost protect invoices --source redis"
    )
    wanted = {"source": "redis", "lock": "invoices/inv-7", "claim": ["invoices/inv-7"]}
    async with httpx.AsyncClient(base_url=story.gateway, trust_env=False, timeout=PATIENCE) as http:
        refused = await http.post("/v1/leases", json=wanted)
        await story.run("fencepost source raise redis --reason 'new counter'")
        granted = await http.post("/v1/leases", json=wanted)
    assert refused.json()["code"] == "FP015"
    assert granted.status_code == 201, granted.text
