"""Queued writes of callers with a role: what comes before their statements, the name of the row and the place."""

from tests.http.test_queued_as_role import Stage, stage
from tests.support.asking import LOGIN, OTHER, caller
from tests.support.consuming import write

from fencepost.server.consuming.applying import Applier, Ledger, QueueNow
from fencepost.server.consuming.deciding import Decider, Settled
from fencepost.server.ops.protect import protect
from fencepost.server.queues.log import Position, Received, partition_of
from fencepost.server.queues.message import sign
from fencepost.server.queues.registry import DEFAULT

__all__ = ["stage"]


def decider(stage: Stage) -> Decider:
    gateway = stage.queue.gateway
    ledger = Ledger(gateway.database, DEFAULT)
    return Decider(
        DEFAULT, Applier(gateway, DEFAULT, 10_000).apply, ledger, stage.queue.log.dead, now=gateway.seals.now
    )


async def test_a_role_that_is_gone_is_a_dead_letter_where_the_key_is_a_date(stage: Stage) -> None:
    """PostgreSQL has to name the row, as the role."""
    owner = stage.queue.owner
    await owner.execute(f"CREATE TABLE public.days (d date PRIMARY KEY, n int); GRANT ALL ON days TO {OTHER}")
    await protect(owner, "days", queue=DEFAULT)
    await stage.queue.gateway.catalog.reload()
    await owner.execute(f"REVOKE {OTHER} FROM {LOGIN}")
    keys = stage.queue.gateway.seals.keys
    assert keys is not None
    message = sign(
        write("days/2026-01-01", "PATCH", {"n": 1}), DEFAULT, keys, caller(OTHER), stage.queue.gateway.seals.now()
    )
    received = Received(Position(partition_of(message.key, 8), 0), message, stage.queue.gateway.seals.now())
    settled = await decider(stage).decide(received, QueueNow(1, 8))
    assert isinstance(settled, Settled), settled
    assert settled.reason.startswith("FP043"), settled


async def test_a_copy_in_another_partition_does_not_take_the_writes_effect(stage: Stage) -> None:
    """The copy has the write's content and nonce; its partition may be ahead."""
    keys = stage.queue.gateway.seals.keys
    assert keys is not None
    message = sign(write("stamps/s", body={"n": 7}), DEFAULT, keys, caller(OTHER), stage.queue.gateway.seals.now())
    meant, now = partition_of(message.key, 8), stage.queue.gateway.seals.now()
    copied = await decider(stage).decide(Received(Position((meant + 1) % 8, 5), message, now), QueueNow(1, 8))
    assert isinstance(copied, Settled)
    assert copied.state == "failed"
    await stage.queue.append(message)
    await stage.consume()
    assert await stage.rows("SELECT n FROM stamps WHERE id = 's'") == [(7,)]


async def test_a_copy_that_waits_in_the_log_until_the_record_is_old_has_no_second_effect(stage: Stage) -> None:
    """It came in time. One that comes when the record is forgotten is late, whatever time the log gives it."""
    queue, ledger, now = (
        stage.queue,
        Ledger(stage.queue.gateway.database, DEFAULT),
        stage.queue.gateway.seals.now(),
    )
    keys, hour = queue.gateway.seals.keys, 3600
    assert keys is not None

    async def looked(before: int) -> int:
        """Look at the log as a consumer did two hours before that, and after; how many records are forgotten then."""
        generation = await ledger.generation()
        await ledger.note_committed(await queue.log.decided(), generation)
        for each in (before + 2, before + 1, before):
            at, decided = now - each * hour, await queue.log.decided()
            await ledger.note_look(at, decided, await queue.log.state(), generation)
        pruned: int = await queue.owner.fetchval("SELECT fencepost.prune_idempotency(86400, 1000)")
        return pruned

    message = sign(write("stamps/s", body={"n": 7}), DEFAULT, keys, caller(OTHER), now - 40 * hour)
    await queue.append(message)
    await stage.consume()
    await queue.owner.execute("UPDATE fencepost.idempotency SET created_at = created_at - interval '39 hours'")
    await queue.append(message)
    assert await looked(7) == 0
    before = await stage.rows("SELECT n, xmin::text FROM stamps WHERE id = 's'")
    await stage.consume()
    assert await stage.rows("SELECT n, xmin::text FROM stamps WHERE id = 's'") == before
    assert (await queue.log.dead.list(9), await looked(3), before[0][0]) == ([], 1, 7)
    await queue.append(message)
    await queue.owner.execute("UPDATE fencepost.queued SET appended_at = appended_at - interval '39 hours'")
    await stage.consume()
    assert await stage.rows("SELECT n, xmin::text FROM stamps WHERE id = 's'") == before
    assert ["after it was signed" in each.reason for each in await queue.log.dead.list(9)] == [True]
