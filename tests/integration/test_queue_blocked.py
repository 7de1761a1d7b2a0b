"""A queued write whose row another transaction has locked for long: who looks sees which, since when, and why."""

import asyncio
import json

import pytest
from click.testing import CliRunner
from tests.support.consuming import consumed, make_tables, opened, write
from tests.support.interleave import Connect

from fencepost.cli.main import main
from fencepost.queue_status import describe_queues
from fencepost.queues.registry import DEFAULT
from fencepost.testing.servers.waiting import eventually
from fencepost.times import ConsumingTimes, Times

SOON = Times(consuming=ConsumingTimes(blocked_after=0.1, note_every=0.05))


async def test_a_row_that_stays_locked_is_named(
    connect: Connect, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FENCEPOST_DATABASE_URL", database)
    owner, other = await connect(), await connect()
    await make_tables(owner)

    async def run(*arguments: str) -> str:
        return (await asyncio.to_thread(CliRunner().invoke, main, ["queue", *arguments])).output

    async with opened(database, owner, lock_timeout=0.2) as queue, consumed(queue, times=SOON):
        async with other.transaction():
            await other.execute("SELECT FROM orders WHERE order_id = 'k1' FOR UPDATE")
            await queue.append(*(write(f"orders/{key}", body={"n": 1}) for key in ("k1", "k1", "k2")))

            async def described() -> bool:
                return "orders/k1 waits for" in (await describe_queues(queue.gateway, {}))[DEFAULT]

            await eventually(described, what="it to be in the detail of /readyz")
            assert "orders/k1 waits for" in await run()
            known = json.loads((await run("--json")).splitlines()[0])
            (blocked,) = [each["blocked"] for each in known["partitions"] if each["blocked"]]
            assert (blocked["resource"], "lock" in blocked["because"]) == ("orders/k1", True)
            assert await queue.n("k2") == 1, "others go on"
        await queue.empty()

        async def cleared() -> bool:
            return not await described()

        await eventually(cleared, what="it to be told of no more")
