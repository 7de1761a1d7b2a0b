"""The worker of docs/combining.md, as it stands: a lock that drops, a queue that orders, a fence with the last word."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio
from tests.conformance.redis_bench import redis_server
from tests.http.conftest import StartGateway

from fencepost.testing.servers.gateway import run_command
from fencepost.testing.servers.processes import eventually, free_port

PAGE = (Path(__file__).parents[2] / "docs" / "combining.md").read_text("utf-8")
(WORKER,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(PROTECT,) = re.findall(r"`fencepost (protect [^`]+)`", PAGE)
LOG = """
CREATE TABLE effects (status text);
CREATE FUNCTION log_effect() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS
$$ BEGIN INSERT INTO effects VALUES (new.status); RETURN NULL; END $$;
CREATE TRIGGER log_effect AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION log_effect();
"""


@dataclass(frozen=True)
class Running:
    """Where the worker's servers are."""

    database: asyncpg.Connection
    redis: redis.asyncio.Redis
    script: str

    async def work(self) -> None:
        """Run the worker to its end."""
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", self.script], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    async def appended(self) -> int:
        """Count the messages that were ever in the queue, once all of them are decided."""

        async def empty() -> bool:
            return not await self.database.fetchval("SELECT EXISTS (SELECT FROM fencepost.queued)")

        await eventually(empty, what="an empty queue")
        count: int = await self.database.fetchval("SELECT sum(e) FROM fencepost.queue_state(), unnest(ends) AS e")
        return count

    async def effects(self) -> list[str]:
        return [row["status"] for row in await self.database.fetch("SELECT status FROM effects")]


@pytest.fixture
async def running(demo_database: str, start_gateway: StartGateway, tmp_path: Path) -> AsyncIterator[Running]:
    await asyncio.to_thread(run_command, demo_database, *PROTECT.split())
    port = free_port()
    with redis_server(tmp_path / "redis", port):
        gateway = await start_gateway(demo_database)
        script = WORKER.replace("http://127.0.0.1:8080", gateway).replace("6379", str(port))
        connection = await asyncpg.connect(demo_database)
        await connection.execute(LOG)
        async with redis.asyncio.Redis(port=port) as client:
            yield Running(connection, client, script)
        await connection.close()


@pytest.mark.long("pages that run with Redis")
async def test_the_lock_saves_messages_and_what_it_forgets_has_no_second_effect(running: Running) -> None:
    await running.work()
    assert (await running.appended(), await running.effects()) == (2, ["paid", "shipped"])
    await running.work()
    assert await running.appended() == 2, "the marks in Redis say that all is done"
    await running.redis.flushall()
    await running.work()
    assert await running.appended() == 4, "Redis has forgotten"
    assert await running.effects() == ["paid", "shipped"], "the fence has not"
