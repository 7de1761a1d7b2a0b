"""A queue that was deleted, restored from an old file or spoiled: what appends, takes and looks at its state report."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.queues.redis_streams.conftest import QUEUE, Opened, message, numbers_taken
from tests.conformance.redis_bench import command, redis_server
from tests.support.consuming import consumed, make_tables, opened, write
from tests.support.interleave import Connect, blocks_another_session

from fencepost.server.postgres import sources
from fencepost.server.queues.log import LogChangedError, LogUnavailableError, Position
from fencepost.server.queues.redis import RedisConsumer, RedisLog
from fencepost.testing.servers.processes import eventually, free_port
from fencepost.testing.servers.server import Server


async def test_after_a_flush_it_is_another_incarnation_and_the_first_append_says_so(port: int, log: RedisLog) -> None:
    before = await log.state()
    await log.append(message(0))
    await command(port, "FLUSHALL")
    with pytest.raises(LogUnavailableError, match=r"another queue as fencepost:\{orders\} than before"):
        await log.append(message(1))
    after = await log.state()
    assert after.incarnation != before.incarnation
    assert after.ends == (0,)
    assert await log.append(message(2)) == Position(0, 0)


async def test_what_was_taken_before_a_flush_deletes_nothing_after_it(
    port: int, url: str, log: RedisLog, log_at: Opened
) -> None:
    lost: list[frozenset[int]] = []
    consumer = log.consumer("a", lost.append)
    await log.append(message(0))
    held = await consumer.take(10, 1)
    owner = await command(port, "GET", f"{QUEUE}:0:owner")
    await command(port, "FLUSHALL")
    await command(port, "SET", f"{QUEUE}:0:owner", owner)
    await log_at(url).append(message(7))  # at the same position
    await consumer.done(held)
    assert await numbers_taken(consumer, 1) == [7]
    assert lost == [frozenset({0})]
    await consumer.close()


class Restorable:
    """A Redis with a file of all that it has, and no journal."""

    def __init__(self, server: Server, port: int, directory: Path) -> None:
        self.server, self.port, self._file = server, port, directory / "dump.rdb"

    async def dump(self) -> None:
        await command(self.port, "SAVE")
        shutil.copy(self._file, self._file.with_name("old"))

    async def restore(self) -> None:
        self.server.crash()
        shutil.copy(self._file.with_name("old"), self._file)
        self.server.start()
        await self.server.serves()


@pytest.fixture
def restorable(tmp_path: Path) -> Iterator[Restorable]:
    port = free_port()
    with redis_server(tmp_path / "server", port, "--save", "") as server:
        yield Restorable(server, port, tmp_path / "server")


async def test_who_appended_notices_that_an_old_file_was_restored(restorable: Restorable, log_at: Opened) -> None:
    log = log_at(f"redis://127.0.0.1:{restorable.port}/orders?partitions=1")
    await log.append(message(0))
    await restorable.dump()
    for number in range(1, 4):
        await log.append(message(number))
    before = await log.state()
    await restorable.restore()
    after = await log.state()
    assert after.incarnation == before.incarnation
    assert after.ends == (1,), "below what was recorded: the source is quarantined"
    with pytest.raises(LogUnavailableError, match=r"has lost messages of .* it had come to offset 3"):
        await log.append(message(4))
    assert (await log.state()).incarnation != before.incarnation, "for all, also for those who know no ends"
    assert await command(restorable.port, "XLEN", f"{QUEUE}:0") == 1, "what was refused is not there"
    assert (await log.append(message(5))).offset > 0


async def test_who_takes_notices_that_an_old_file_was_restored(restorable: Restorable, log_at: Opened) -> None:
    url = f"redis://127.0.0.1:{restorable.port}/orders?partitions=1"
    log = log_at(url)
    await log.append(message(0))
    await restorable.dump()
    await log.append(message(1))
    incarnation = (await log.state()).incarnation
    lost: list[frozenset[int]] = []
    consumer = log.consumer("a", lost.append)
    assert await numbers_taken(consumer, 2) == [0, 1]
    owner = await command(restorable.port, "GET", f"{QUEUE}:0:owner")
    await restorable.restore()
    await command(restorable.port, "SET", f"{QUEUE}:0:owner", owner)  # as if the file had it
    assert await numbers_taken(consumer, 1) == [0]
    assert lost == [frozenset({0})]
    assert (await log_at(url).state()).incarnation != incarnation
    await consumer.close()


@pytest.mark.parametrize("by", [("XTRIM", "MAXLEN", "3"), ("XDEL", "0-5")])
async def test_messages_that_were_trimmed_or_deleted_by_hand_are_missed_once(
    port: int, log: RedisLog, by: tuple[str, ...]
) -> None:
    for number in range(9):
        await log.append(message(number))
    incarnation = (await log.state()).incarnation
    consumer = log.consumer("a", lambda _: None, 0.01)
    received = await consumer.take(2, 1)
    await consumer.done(received[1:])
    assert await consumer.take(0, 0.05) == [], "what is done is not missed, in whatever order"
    await command(port, by[0], f"{QUEUE}:0", *by[1:])
    gone = 5 if by[0] == "XTRIM" else 1
    with pytest.raises(LogChangedError, match=rf"^{gone} messages of .*:0 that it had acknowledged are gone"):
        await missed(consumer)
    assert (await log.state()).incarnation != incarnation, "for all, also for those who have not looked"
    assert len(await consumer.take(9, 1)) == 8 - gone, "once: an operator raises the source, and it goes on"
    await consumer.done(await consumer.take(9, 0.05))
    assert await consumer.take(0, 0.05) == []
    await consumer.close()


async def test_a_consumer_whose_log_says_that_it_lost_messages_quarantines_it_until_it_is_raised(
    port: int, url: str, database: str, connect: Connect
) -> None:
    """What is missed is in hand, and its row is locked."""
    name, owner, holder = "redis:orders", await connect(), await connect()
    await make_tables(owner, queue=name)

    async def quarantined() -> str | None:
        return (await sources.state(owner, name, "")).quarantined

    async def applied() -> bool:
        return await queue.n("k1") == 2

    async with opened(database, owner, name, queues=url) as queue, consumed(queue):
        async with holder.transaction():
            await holder.execute("SELECT FROM orders WHERE order_id = 'k0' FOR UPDATE")
            await queue.log.append(write("orders/k0", body={"n": 1}))
            await blocks_another_session(holder, owner)
            await command(port, "XDEL", f"{QUEUE}:0", "0-1")
            assert (await eventually(quarantined, what="the quarantine")).startswith("1 messages of ")
        await sources.raise_source(owner, name, "for a test")
        with pytest.raises(LogUnavailableError, match="another queue"):
            await queue.log.append(write("orders/k1", body={"n": 2}))
        await queue.log.append(write("orders/k1", body={"n": 2}))
        await eventually(applied, what="it to go on")


async def missed(consumer: RedisConsumer) -> None:
    for _ in range(100):
        await consumer.take(0, 0.05)


async def test_entries_whose_time_would_be_the_token_are_refused(port: int, log: RedisLog) -> None:
    await log.append(message(0))
    await command(port, "XADD", f"{QUEUE}:0", "*", "key", "orders/1")
    consumer = log.consumer("a", lambda _: None)
    with pytest.raises(LogChangedError, match=r"not added as 0-"):
        await log.state()
    with pytest.raises(LogChangedError, match=r"not added as 0-"):
        await consumer.take(10, 1)
    with pytest.raises(LogUnavailableError, match=r"fencepost:\{orders\}:0"):
        await log.append(message(1))
    await consumer.close()


async def test_entries_that_another_program_added_as_it_should_are_messages(port: int, log: RedisLog) -> None:
    await log.state()
    await command(port, "XADD", f"{QUEUE}:0", "0-*", "key", "orders/1", "h:method", "DELETE", "note", "mine")
    consumer = log.consumer("a", lambda _: None)
    (received,) = await consumer.take(10, 1)
    assert received.message.headers == (("method", b"DELETE"),)
    assert received.position == Position(0, 0)
    await consumer.close()


async def test_a_queue_with_another_number_of_partitions_is_refused(url: str, log: RedisLog, log_at: Opened) -> None:
    await log.append(message(0))
    assert (await log_at(url.partition("?")[0]).state()).partitions == 1
    with pytest.raises(LogUnavailableError, match="with 1 partitions, which cannot change: its URL says partitions=4"):
        await log_at(url.replace("partitions=1", "partitions=4")).append(message(0))


async def test_a_key_of_another_program_is_not_taken_for_a_queue(port: int, log: RedisLog) -> None:
    await command(port, "SET", QUEUE, "something")
    with pytest.raises(LogUnavailableError, match=r"something else than a queue as fencepost:\{orders\}"):
        await log.append(message(0))


@pytest.mark.parametrize("content", ["{}", "7", '{"partition": []}', "no letter", '{"partition": 3}'])
async def test_what_is_no_dead_letter_can_be_dropped(port: int, log: RedisLog, content: str) -> None:
    await command(port, "HSET", f"{QUEUE}:dead", "x", content)
    assert await log.dead.drop("x") is True
    assert await log.dead.drop("x") is False
    assert await log.dead.count() == {}
