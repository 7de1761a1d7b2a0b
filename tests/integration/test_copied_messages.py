"""A message that its producer appended twice, at two offsets, is one write: the second one has no effect, though the
fence lets it pass. Kafka's idempotent producer does this where messages before it timed out.
"""

from dataclasses import replace

import pytest
from tests.support.consuming import Queue, consumed, make_tables, opened, token, write, wrong_effects
from tests.support.interleave import Connect, Connection, blocks_another_session

from fencepost.server.fence.token import Rule
from fencepost.server.gateway.gathered import state_of
from fencepost.server.gateway.use_cases import find
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.queues.log import Message, Position
from fencepost.server.queues.message import WriteId, content_of, nonce_of
from fencepost.server.queues.postgres import PostgresConsumer
from fencepost.server.queues.registry import DEFAULT
from fencepost.testing.servers.processes import eventually

REDELIVERED = "SELECT coalesce(sum(redelivered), 0) FROM fencepost.queue_partitions"


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    return await connect()


async def consume(queue: Queue) -> None:
    async with consumed(queue):
        await queue.empty()


async def state(queue: Queue, position: Position, message: Message) -> str:
    """Ask for a write as its page does."""
    found = await find(queue.gateway, WriteId(DEFAULT, position, nonce_of(message)))
    assert isinstance(found, Recorded), found
    return state_of(found)


@pytest.mark.parametrize(
    ("rule", "batched", "together"),
    [("strict", True, True), ("strict", True, False), ("strict", False, False), ("epoch", False, True)],
)
async def test_a_copy_has_no_effect(
    database: str, owner: Connection, rule: Rule, *, batched: bool, together: bool
) -> None:
    """A table with triggers takes writes one by one; others take them in batches. `together`: taken at once."""
    await make_tables(owner, rule=rule, effects=not batched)
    first, second = (write("orders/k1", body={"n": n}) for n in (1, 2))
    async with opened(database, owner) as queue:
        positions = await queue.append(first, second)
        if not together:
            await consume(queue)
        positions += await queue.append(first, write("orders/k2", body={"n": 7}))
        await consume(queue)
        assert (await queue.n("k1"), await queue.n("k2")) == (2, 7)
        assert await queue.states() == {"applied": 3}
        assert [await state(queue, each, first) for each in (positions[0], positions[2])] == ["applied", "applied"]
        assert await owner.fetchval(REDELIVERED) == 1
    assert batched or not await wrong_effects(owner, {"orders/k1": [1, 2], "orders/k2": [7]})


@pytest.mark.parametrize(
    ("message", "becomes"),
    [
        (write("orders/new", "POST", {"order_id": "new"}), "applied"),
        (write("orders/k1", body={"n": 4}, idempotency_key=b"key"), "applied"),
        (write("orders/k1", body={"status": "bad"}), "failed"),
    ],
    ids=["POST", "PATCH with a key of its client", "a dead letter"],
)
async def test_a_copy_becomes_what_the_first_one_became(
    database: str, owner: Connection, message: Message, becomes: str
) -> None:
    await make_tables(owner)
    async with opened(database, owner) as queue:
        positions = await queue.append(message, message)
        await consume(queue)
        assert await queue.states() == {becomes: 1}
        assert [await state(queue, each, message) for each in positions] == [becomes, becomes]
        letters = [each.id for each in await queue.log.dead.list(10)]
        assert letters == [str(WriteId(DEFAULT, positions[0], nonce_of(message)))][: becomes == "failed"]


@pytest.mark.parametrize(("batched", "key"), [(True, None), (False, b"key")])
async def test_a_copy_of_what_failed_has_no_effect_though_it_could_be_done_now(
    database: str, owner: Connection, key: bytes | None, *, batched: bool
) -> None:
    """With a key of its client, too: the record of the message is in the transaction of the effect."""
    await make_tables(owner, effects=not batched)
    message = write("orders/late", body={"n": 1}, idempotency_key=key)
    async with opened(database, owner) as queue:
        positions = await queue.append(message)
        await consume(queue)
        await queue.append(write("orders/late", "POST", {"order_id": "late"}), write("orders/late", body={"n": 2}))
        positions += await queue.append(message, write("orders/k2", body={"n": 7}))
        await consume(queue)
        assert (await queue.n("late"), await queue.n("k2")) == (2, 7)
        assert [await state(queue, each, message) for each in positions[:2]] == ["failed", "failed"]
        assert len(await queue.log.dead.list(10)) == 1
    assert batched or not await wrong_effects(owner, {"orders/late": [0, 2]})


async def test_a_message_that_failed_is_not_done_when_it_comes_again_under_a_token_of_its_client(
    database: str, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence lets it pass, and there is no record under the client's key: that of the message decides."""
    await make_tables(owner, source="external", effects=True)
    message = write("orders/late", body={"n": 1}, token=token(5), idempotency_key=b"key")

    async def forget(_consumer: PostgresConsumer, _received: object) -> None:
        """Say nothing, as before kill -9."""

    async with opened(database, owner) as queue:
        await queue.append(message)
        with monkeypatch.context() as patched:
            patched.setattr(PostgresConsumer, "done", forget)
            async with consumed(queue):
                await eventually(lambda: failed(queue), what="it failed")
        await owner.execute("INSERT INTO orders (order_id, last_fence_token) VALUES ('late', 4)")
        await consume(queue)
        assert await queue.states() == {"failed": 1}
        assert await queue.n("late") == 0


async def failed(queue: Queue) -> bool:
    return await queue.states() == {"failed": 1}


async def test_another_message_with_the_same_nonce_is_another_write(database: str, owner: Connection) -> None:
    await make_tables(owner, effects=True)
    first, second = (write("orders/k1", body={"n": n}) for n in (1, 2))
    async with opened(database, owner) as queue:
        positions = await queue.append(first, replace(second, headers=first.headers))
        await consume(queue)
        assert await queue.states() == {"applied": 2}
        assert [await state(queue, each, first) for each in positions] == ["applied", "applied"]
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


async def test_equal_messages_without_nonces_are_two_writes(database: str, owner: Connection) -> None:
    await make_tables(owner, effects=True)
    message = write("orders/k1", body={"n": 1})
    message = replace(message, headers=message.headers[:-1])
    assert nonce_of(message) is None
    async with opened(database, owner) as queue:
        await queue.append(message, message)
        await owner.execute("UPDATE fencepost.queued SET appended_at = now()")
        await consume(queue)
        assert await queue.states() == {"applied": 2}
    assert not await wrong_effects(owner, {"orders/k1": [1, 1]})


async def test_a_copy_that_meets_the_first_one_before_it_is_committed_waits_for_it(
    connect: Connect, database: str, owner: Connection
) -> None:
    """The first one in the hand of a consumer whose transaction is open, the second one taken by another consumer. The
    first one's effect is left out here, so that an effect would be the second one's.
    """
    await make_tables(owner, effects=True)
    message, first = write("orders/k1", body={"n": 1}), await connect()
    async with opened(database, owner) as queue:
        (position,) = await queue.append(message)
        await owner.execute("DELETE FROM fencepost.queued")
        await queue.append(message)
        uncommitted = first.transaction()
        await uncommitted.start()
        await first.execute("SELECT FROM public.orders WHERE order_id = 'k1' FOR UPDATE")
        await first.execute(
            "SELECT fencepost.idem_record('queue', $1, $2, 200, ARRAY['fencepost-state', 'applied'], '{}')",
            str(WriteId(DEFAULT, position, nonce_of(message))),
            content_of(message),
        )
        async with consumed(queue):
            await blocks_another_session(first, owner)
            await uncommitted.commit()
            await queue.empty()
        assert await queue.states() == {"applied": 1}
    assert await owner.fetchval("SELECT count(*) FROM public.effects") == 0
