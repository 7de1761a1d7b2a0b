"""What a message comes to, step by step: kept first, then a dead letter, and what a repetition finds."""

from collections.abc import AsyncIterator

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
from tests.support.interleave import Connect, Connection, blocks_another_session
from tests.support.postgres import failing

from fencepost.server.consuming.applying import Applier, Kept, Ledger, QueueNow, Result
from fencepost.server.consuming.deciding import MOST_FAULTS
from fencepost.server.gateway.gathered import DROPPED, IN_HAND, RETRIED_AS
from fencepost.server.postgres import queues
from fencepost.server.queues.log import Message, Received
from fencepost.server.queues.message import MessageName, WriteId, nonce_of
from fencepost.server.queues.postgres import PostgresConsumer
from fencepost.server.queues.registry import DEFAULT
from fencepost.testing.servers.processes import eventually

BAD = {"status": "bad"}


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def queue(database: str, owner: Connection) -> AsyncIterator[Queue]:
    """Give a queue whose resources stop at a dead letter."""
    await make_tables(owner)
    async with opened(database, owner, stop_resources=True, idempotency_retention=86_400) as queue:
        yield queue


async def consume(queue: Queue) -> None:
    async with consumed(queue):
        await queue.empty()


async def stopped(queue: Queue) -> list[tuple[str, str]]:
    return [(each.resource, each.write_id) for each in await queues.stopped(queue.owner, DEFAULT)]


async def failed(queue: Queue) -> bool:
    return await queue.states() == {"failed": 1}


@pytest.mark.parametrize("marked", [False, True])
async def test_what_fails_is_kept_first_then_its_resource_stops_and_then_it_is_a_dead_letter(
    queue: Queue, database: str, marked: bool
) -> None:
    """So whoever deals with the letter finds what it stopped. What keeps the letter from being put is over later; it is
    put also where the fence refuses the message then. `marked`: its row has its token by then.
    """
    message, began = write("orders/k1", body=BAD), await queues.now(queue.owner)
    (position,) = await queue.append(message)
    name = str(WriteId(DEFAULT, position, nonce_of(message)))
    async with failing(database, "INSERT ON fencepost.queue_dead", "RAISE 'no room'"):
        async with consumed(queue):
            await eventually(lambda: failed(queue), what="it to be kept")
            await eventually(lambda: stopped(queue), what="the stop")
        assert (await stopped(queue), await queue.letters()) == ([("orders/k1", name)], {})
    if marked:
        await queue.owner.execute("SET session_replication_role = replica")
        await queue.owner.execute("UPDATE orders SET last_fence_token = 1 WHERE order_id = 'k1'")
    await consume(queue)
    letter = (await queue.letters())["orders/k1"]
    assert (letter.id, letter.position, letter.message) == (name, position, message)
    assert (letter.reason.startswith("23514: "), letter.at >= began) == (True, True)
    assert await failed(queue)


async def test_a_database_that_is_away_when_a_result_is_to_be_kept_has_everything_wait(
    queue: Queue, database: str
) -> None:
    async with consumed(queue) as one:
        async with failing(
            database, "INSERT ON fencepost.idempotency", "PERFORM pg_terminate_backend(pg_backend_pid())"
        ):
            await queue.append(write("orders/k1", body=BAD))
            await one.pauses()
        await queue.empty()
    assert await failed(queue)
    assert list(await queue.letters()) == ["orders/k1"]


async def test_what_was_applied_before_and_meets_an_error_now_is_no_dead_letter(
    database: str, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_tables(owner, rule="epoch", source="external", effects=True)
    async with opened(database, owner) as queue:
        await queue.append(*(write("orders/k1", body={"n": n}, token=token(5)) for n in (1, 2)))
        await both_applied_and_not_done(queue, monkeypatch)
        await owner.execute("ALTER TABLE orders ADD CONSTRAINT none CHECK (n < 1) NOT VALID")
        await consume(queue)
        assert (await queue.states(), await queue.letters()) == ({"applied": 2}, {})
    assert not await wrong_effects(owner, {"orders/k1": [1, 2]})


@pytest.mark.parametrize(("letter", "stays"), [(DROPPED, False), (f"{RETRIED_AS}kafka:q.1.9", False), (IN_HAND, True)])
async def test_a_letter_that_was_dropped_while_it_was_put_again_is_removed(
    queue: Queue, connect: Connect, database: str, letter: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two consumers had the message: the letter of the first was dropped before the second one put it."""
    holder = await connect()

    async def forget(_consumer: PostgresConsumer, _received: object) -> None:
        """Say nothing."""

    await queue.append(write("orders/k1", body=BAD))
    with monkeypatch.context() as patched:
        patched.setattr(PostgresConsumer, "done", forget)
        async with consumed(queue):
            await eventually(queue.letters, what="the letter of the first")
    name = (await queue.letters())["orders/k1"].id
    await holder.execute("SELECT pg_advisory_lock(7)")
    put = failing(database, "INSERT ON fencepost.queue_dead", "PERFORM pg_advisory_xact_lock(7)")
    async with put, consumed(queue):
        await blocks_another_session(holder, queue.owner)
        assert await queues.close_letter(queue.owner, name, letter)
        await holder.execute("SELECT pg_advisory_unlock(7)")
        await queue.empty()
    assert (bool(await queue.letters()), bool(await stopped(queue))) == (stays, stays)


@pytest.mark.parametrize(("hours", "looked_up"), [(11, False), (13, True)])
async def test_an_old_message_is_looked_up_before_it_is_applied(
    queue: Queue, hours: int, looked_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are kept for a day."""
    asked: list[MessageName] = []
    genuine = Ledger.result

    async def result(ledger: Ledger, name: MessageName) -> Kept | None:
        asked.append(name)
        return await genuine(ledger, name)

    monkeypatch.setattr(Ledger, "result", result)
    await queue.append(write("orders/k1", body={"n": 1}))
    await queue.owner.execute(f"UPDATE fencepost.queued SET appended_at = now() - interval '{hours} h'")
    await consume(queue)
    assert (bool(asked), await queue.n("k1")) == (looked_up, 1)


async def test_the_message_that_stopped_its_resource_does_not_wait_for_itself(queue: Queue) -> None:
    message = write("orders/k1", body={"n": 1})
    (position,) = await queue.append(message)
    await queues.stop_resource(queue.owner, DEFAULT, "orders/k1", str(WriteId(DEFAULT, position, nonce_of(message))))
    await consume(queue)
    assert (await queue.letters(), await queue.n("k1")) == ({}, 1)


async def test_a_message_that_the_gateway_fails_on_again_and_again_is_a_dead_letter(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bytes] = []
    genuine = Applier.apply

    async def at_fault(applier: Applier, received: Received, standing: QueueNow, name: MessageName) -> Result:
        if received.message.key == b"orders/k1":
            tries.append(received.message.key)
            raise RuntimeError("a fault")
        return await genuine(applier, received, standing, name)

    monkeypatch.setattr(Applier, "apply", at_fault)
    await queue.append(write("orders/k1", body={"n": 1}), write("orders/k2", body={"n": 2}))
    await consume(queue)
    assert (await queue.letters())["orders/k1"].reason.startswith("FP023: ")
    assert (len(tries), await queue.n("k1"), await queue.n("k2")) == (MOST_FAULTS, 0, 2)


@pytest.mark.parametrize("key", [b"\x00\x00\x00\x01", b"\xff", b"orders", b"", b"orders/a\x00"])
async def test_a_key_that_names_no_resource_stops_none(queue: Queue, key: bytes) -> None:
    await queue.append(Message(key, b"{}"))
    await consume(queue)
    assert (len(await queue.letters()), await stopped(queue)) == (1, [])
