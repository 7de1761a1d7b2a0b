"""Messages that come again when their records are old: none is forgotten that is needed, and nothing happens twice."""

from dataclasses import replace

import pytest
from tests.support.consuming import (
    Queue,
    both_applied_and_not_done,
    consumed,
    make_tables,
    opened,
    token,
    write,
    wrong_effects,
)
from tests.support.interleave import Connect, Connection

from fencepost.server.fence.token import Rule
from fencepost.server.postgres import keyed, queues, sources
from fencepost.server.queues.log import partition_of
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.times import ConsumingTimes, Times
from fencepost.testing.servers.processes import eventually

ASKS_SOON = Times(consuming=ConsumingTimes(committed_every=0.05, take_for=0.1))
DAY = 86_400.0
AGE = "UPDATE fencepost.idempotency SET created_at = created_at - interval '2 days'"
AGE_MESSAGES = "UPDATE fencepost.queued SET appended_at = appended_at - interval '2 days'"
KEPT = "SELECT count(*) FROM fencepost.idempotency WHERE caller = 'queue'"
COMMITTED = """SELECT count(*) FROM fencepost.queue_partitions p JOIN fencepost.queues q USING (source)
WHERE p.committed IS NOT NULL AND q.looked_at IS NOT NULL"""


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    return await connect()


async def grown_old(owner: Connection) -> int:
    """Have all records be two days old, and forget those older than one; how many of messages are left."""
    await owner.execute(AGE)
    await keyed.prune(owner, DAY)
    left: int = await owner.fetchval(KEPT)
    return left


async def committed_is_known(queue: Queue) -> None:
    """Have a consumer ask the log what it has committed."""

    async def known() -> bool:
        return bool(await queue.owner.fetchval(COMMITTED))

    async with consumed(queue, times=ASKS_SOON):
        await eventually(known, what="what is committed")


async def given_again(queue: Queue, *messages: str) -> None:
    """Put messages back into the log that it has given before: as `queued` was when this was read."""
    for each in messages:
        await queue.owner.execute(
            "INSERT INTO fencepost.queued SELECT (jsonb_populate_record(NULL::fencepost.queued, $1::text::jsonb)).*",
            each,
        )


async def queued(queue: Queue) -> list[str]:
    rows = await queue.owner.fetch("SELECT to_jsonb(q)::text AS row FROM fencepost.queued q ORDER BY position")
    return [row["row"] for row in rows]


@pytest.mark.parametrize("rule", ["strict", "epoch"])
async def test_a_record_stays_while_its_message_may_come_again(
    database: str, owner: Connection, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_tables(owner, rule=rule, effects=True)
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}) for n in (1, 2)))
        # It knows what is committed, and that these are not.
        await both_applied_and_not_done(queue, monkeypatch, ASKS_SOON)
        assert await grown_old(owner) == 2
        async with consumed(queue):
            await queue.empty()
        assert await queue.letters() == {}
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_a_record_goes_when_the_log_has_committed_its_message(database: str, owner: Connection) -> None:
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(write("orders/k1", body={"n": 1}))
        async with consumed(queue, times=Times(consuming=ConsumingTimes(committed_every=3600))):
            await queue.empty()
        assert await grown_old(owner) == 1, "nobody has said that it is committed"
        await committed_is_known(queue)
        assert await grown_old(owner) == 0


@pytest.mark.parametrize("forgotten", ["both", "the last"])
async def test_what_comes_again_after_its_record_was_forgotten_is_no_dead_letter(
    database: str, owner: Connection, forgotten: str
) -> None:
    """To a consumer that took it a day ago, for example. The mark says it of the last, the log's word of the others."""
    await make_tables(owner, effects=True)
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}) for n in (1, 2)))
        taken = await queued(queue)
        async with consumed(queue):
            await queue.empty()
        if forgotten == "both":
            await committed_is_known(queue)
            assert await grown_old(owner) == 0
        else:
            await owner.execute("DELETE FROM fencepost.idempotency WHERE key LIKE '%.1.%'")
        await given_again(queue, *taken)
        async with consumed(queue):
            await queue.empty()
        assert await queue.letters() == {}
        assert await queue.log.dead.count() == {}
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_a_position_that_was_overtaken_without_a_record_is_a_dead_letter(
    database: str, owner: Connection
) -> None:
    """Nothing says what became of it: the log gives it once more, and was not asked what it has committed."""
    await make_tables(owner, effects=True)
    times = Times(consuming=ConsumingTimes(committed_every=3600))
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}) for n in (1, 2)))
        (first, _) = await queued(queue)
        async with consumed(queue, times):
            await queue.empty()
        await owner.execute("DELETE FROM fencepost.idempotency WHERE caller = 'queue'")
        await given_again(queue, first)
        async with consumed(queue, times):
            await queue.empty()
        said = "FP001: A newer write of the resource was applied, and there is no record of this one. "
        assert (await queue.letters())["orders/k1"].reason.startswith(said)
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_an_append_that_was_under_way_when_the_log_was_asked_is_not_taken_for_decided(
    connect: Connect, database: str, owner: Connection
) -> None:
    """The log counts an offset that is drawn and not committed; its message is old when a consumer gets it."""
    await make_tables(owner)
    async with opened(database, owner) as queue:
        await queue.append(write("orders/k0", body={"n": 1}))
        async with consumed(queue):
            await queue.empty()
        generation = await owner.fetchval("SELECT generation FROM fencepost.source_bounds($1)", DEFAULT)
        message, appending = write("orders/k1", body={"n": 7}), await connect()
        partition = partition_of(message.key, queues.PARTITIONS)
        async with appending.transaction():
            row = queues.MessageRow(partition, message.key, message.headers, message.value)
            (offset,) = await queues.append(appending, [row])
            below = await queues.decided(owner)
            assert below[partition] == offset + 1, "this is what must do no harm"
            await queues.note_committed(owner, DEFAULT, generation, below)
        await owner.execute(AGE_MESSAGES)
        async with consumed(queue):
            await queue.empty()
        assert await queue.n("k1") == 7


async def test_an_old_message_with_a_key_of_its_client_is_applied_once(
    database: str, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer under the client's key was forgotten; that of the message was not."""
    await make_tables(owner, rule="epoch", source="external", effects=True)
    async with opened(database, owner) as queue:
        messages = (write("orders/k1", body={"n": n}, token=token(5), idempotency_key=b"key-%d" % n) for n in (1, 2))
        await queue.append(*messages)
        await both_applied_and_not_done(queue, monkeypatch)
        assert await grown_old(owner) == 2
        assert await owner.fetchval("SELECT count(*) FROM fencepost.idempotency WHERE caller = ''") == 0
        await owner.execute(AGE_MESSAGES)
        async with consumed(queue):
            await queue.empty()
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_what_a_restored_log_gives_again_in_a_new_generation_finds_its_record(
    database: str, owner: Connection
) -> None:
    """With a nonce and without: the id of a message without one is made of what it says, and when it was appended."""
    await make_tables(owner, effects=True)
    async with opened(database, owner) as queue:
        plain = write("orders/k2", body={"n": 2})
        await queue.append(write("orders/k1", body={"n": 1}), replace(plain, headers=plain.headers[:-1]))
        taken = await queued(queue)
        async with consumed(queue):
            await queue.empty()
        await sources.raise_source(owner, DEFAULT, "restored, in a test")
        await given_again(queue, *taken)
        async with consumed(queue):
            await queue.empty()
        assert await queue.states() == {"applied": 2}
    assert not await wrong_effects(owner, {"orders/k1": [1], "orders/k2": [2]})
