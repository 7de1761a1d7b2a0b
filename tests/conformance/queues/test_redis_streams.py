"""Queues in Redis Streams: answers, losses, and who owns a partition."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr
from tests.conformance.benches import RedisBench, redis_command, redis_has, redis_server, running_redis
from tests.support.consuming import consumed, make_tables, opened, write
from tests.support.interleave import Connect, blocks_another_session
from tests.support.postgres import cutting_proxy

from fencepost.cli.status import LOGS
from fencepost.server.ops.doctor import examine
from fencepost.server.parts import read_queues
from fencepost.server.postgres import sources
from fencepost.server.queues.log import LogChangedError, LogUnavailableError, LogUnknownError, Message, Position
from fencepost.server.queues.redis import RedisConsumer, RedisLog, from_url
from fencepost.server.settings import Settings
from fencepost.testing.servers.lock_services import DURABLE
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port
from fencepost.testing.servers.server import Server

# A Redis of this file's own, emptied before each test, and queues in it.

Opened = Callable[[str], RedisLog]
QUEUE = "fencepost:{orders}"


def message(number: int) -> Message:
    return Message(b"orders/1", b"%d" % number)


async def numbers_taken(consumer: RedisConsumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(2 * PATIENCE):
        while len(found) < count:
            found += [int(each.message.value or b"-1") for each in await consumer.take(100, 30)]
    return found


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisBench]:
    with running_redis(tmp_path_factory.mktemp("queues")) as bench:
        yield bench


@pytest.fixture
async def port(server: RedisBench) -> int:
    await redis_command(server.ports[0], "FLUSHALL")
    return server.ports[0]


@pytest.fixture
def log_at(stack: AsyncExitStack) -> Opened:
    """Give a function that makes the log of a URL; it is closed after the test."""

    def made(url: str) -> RedisLog:
        log = from_url(url)
        stack.push_async_callback(log.close)
        return log

    return made


@pytest.fixture
def url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/orders?partitions=1"


@pytest.fixture
def log(url: str, log_at: Opened) -> RedisLog:
    return log_at(url)


# Answers of Redis that do not come, waits for replicas and disk, other nodes of a cluster, older servers.


@pytest.mark.long("answers and owners of Redis that are waited for")
async def test_an_append_whose_answer_is_lost_may_be_there(port: int, url: str, log_at: Opened) -> None:
    async with cutting_proxy(url) as (proxy, through):
        log = log_at(through)
        await log.append(message(0))
        proxy.mute_after = b"orders/1"
        with pytest.raises(LogUnknownError, match="did not answer within 3 s when asked for a message to"):
            await log.append(message(1))
        assert await redis_command(port, "XLEN", f"{QUEUE}:0") == 2
        appending = asyncio.create_task(log.append(message(2)))

        async def landed() -> bool:
            return bool(await redis_command(port, "XLEN", f"{QUEUE}:0") == 3)

        await eventually(landed, what="the message whose answer is held back")
        proxy.cut_all()
        with pytest.raises(LogUnknownError, match="gave no answer about a message to"):
            await appending


async def test_an_append_that_is_refused_or_not_sent_was_not_done(port: int, log: RedisLog, log_at: Opened) -> None:
    await log.state()
    await redis_command(port, "CONFIG SET", "min-replicas-to-write", "3")
    try:
        for asked, words in (
            (log, "NOREPLICAS"),
            (log_at(f"redis://127.0.0.1:{free_port()}/orders"), "cannot be asked"),
            (log_at(f"redis://nobody:hunter2@127.0.0.1:{port}/orders"), "invalid username-password pair"),
        ):
            with pytest.raises(LogUnavailableError, match=words) as caught:
                await asked.append(message(0))
            assert not isinstance(caught.value, LogUnknownError)
            assert "hunter2" not in str(caught.value)
    finally:
        await redis_command(port, "CONFIG SET", "min-replicas-to-write", "0")
    assert await redis_command(port, "EXISTS", f"{QUEUE}:0") == 0


async def test_the_next_server_of_the_url_is_asked_after_one_that_is_away(port: int, log_at: Opened) -> None:
    log = log_at(f"redis://127.0.0.1:{free_port()},127.0.0.1:{port}/orders?partitions=1")
    with pytest.raises(LogUnavailableError):
        await log.append(message(0))
    assert await log.append(message(0)) == Position(0, 0)


@pytest.mark.long("answers and owners of Redis that are waited for")
async def test_a_message_counts_once_replicas_have_it(tmp_path: Path, log_at: Opened) -> None:
    primary, port = free_port(), free_port()
    with (
        redis_server(tmp_path / "primary", primary, *DURABLE, "--repl-diskless-sync-delay", "0"),
        redis_server(tmp_path / "replica", port, "--replicaof", "127.0.0.1", str(primary)) as replica,
    ):
        log = log_at(f"redis://127.0.0.1:{primary}/orders?partitions=1&replicas=1&wait_ms=2000")

        async def in_sync() -> bool:
            return bool((await redis_command(primary, "INFO", "replication"))["connected_slaves"] == 1)

        await eventually(in_sync, what="a replica")
        await log.append(message(0))
        assert await redis_command(port, "XLEN", f"{QUEUE}:0") == 1
        with pytest.raises(LogUnavailableError, match="read only replica"):
            await log_at(f"redis://127.0.0.1:{port}/orders").append(message(0))
        for url, said in (
            (f"redis://127.0.0.1:{port}/orders", "is a replica, which takes no messages"),
            (f"redis://127.0.0.1:{primary}/orders?replicas=2", "1 replicas, and the queue's URL wants 2: no message"),
        ):
            assert said in "\n".join(await log_at(url).advice()), url
        replica.pause()
        with pytest.raises(LogUnknownError, match="but 0 of 1 replicas had it within 2000 ms"):
            await log.append(message(1))
        assert await redis_command(primary, "XLEN", f"{QUEUE}:0") == 2


@asynccontextmanager
async def claiming(version: bytes, port: int, disks: Sequence[int] = ()) -> AsyncIterator[int]:
    """Run a mock of another version: the real server, whose version and answers to WAITAOF are replaced; what it says
    there is the last of `disks`: 1, its journal is on disk, or 0.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool) -> None:
        while data := await reader.read(65536):
            if back:
                data = re.sub(rb"(redis_version:)[0-9.]{6}", rb"\g<1>" + version, data)
                if b"-ERR unknown command 'WAITAOF'" in data:
                    data = re.sub(
                        rb"-ERR unknown command 'WAITAOF'[^\r]*\r\n", b"*2\r\n:%d\r\n:0\r\n" % disks[-1], data
                    )
            writer.write(data)
        writer.close()

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, far_writer, back=False), pump(far_reader, writer, back=True))

    server = await asyncio.start_server(both, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_an_older_server_is_refused_by_name(port: int, log_at: Opened) -> None:
    async with claiming(b"6.2.14", port) as older:
        log = log_at(f"redis://127.0.0.1:{older}/orders")
        with pytest.raises(LogUnavailableError, match=r"is Redis 6\.2\.14\S*: queues need 7\.0 or newer"):
            await log.append(message(0))
        await log.close()


async def test_waiting_for_the_disk_needs_a_server_that_can(port: int, log_at: Opened) -> None:
    with pytest.raises(LogUnavailableError, match=r"is Redis 7\.0\.\d+: fsync=1 needs 7\.2"):
        await log_at(f"redis://127.0.0.1:{port}/orders?fsync=1").append(message(0))


async def test_a_message_counts_once_the_disk_has_it(port: int, log_at: Opened) -> None:
    """On a mock: Debian has no Redis with WAITAOF."""
    disks = [1]
    async with claiming(b"7.2.99", port, disks) as newer:
        log = log_at(f"redis://127.0.0.1:{newer}/orders?partitions=1&fsync=1")
        assert await log.append(message(0)) == Position(0, 0)
        disks.append(0)
        with pytest.raises(LogUnknownError, match="its journal was not on disk within 500 ms"):
            await log.append(message(1))
        await log.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[tuple[int, int]]]:
    """Run two nodes of a cluster that know nothing of each other yet; gives their ports, and those of their bus."""
    ports = [(free_port(), free_port()) for _ in range(2)]
    with ExitStack() as stack:
        for port, bus in ports:
            settings = (*DURABLE, "--cluster-enabled", "yes", "--cluster-port", str(bus))
            stack.enter_context(redis_server(tmp_path / str(port), port, *settings))
        yield ports


@pytest.mark.long("answers and owners of Redis that are waited for")
async def test_each_node_of_a_cluster_leads_to_the_queues_node(nodes: list[tuple[int, int]], log_at: Opened) -> None:
    (first, _), (second, bus) = nodes
    slot = await redis_command(first, "CLUSTER", "KEYSLOT", QUEUE)
    assert slot == await redis_command(first, "CLUSTER", "KEYSLOT", f"{QUEUE}:7:owner")
    await redis_command(first, "CLUSTER", "ADDSLOTSRANGE", 0, slot - 1, slot + 1, 16383)
    await redis_command(second, "CLUSTER", "ADDSLOTS", slot)
    await redis_command(first, "CLUSTER", "MEET", "127.0.0.1", second, bus)

    async def agreed() -> bool:
        about = [await redis_command(port, "CLUSTER", "INFO") for port, _ in nodes]
        return all(b"cluster_state:ok" in _bytes(each) for each in about)

    await eventually(agreed, what="the cluster")
    log = log_at(f"redis://127.0.0.1:{first}/orders")
    position = await log.append(message(0))
    assert await redis_command(second, "XLEN", f"{QUEUE}:{position.partition}") == 1
    consumer = log.consumer("a", lambda _: None)
    assert await numbers_taken(consumer, 1) == [0]
    await consumer.close()


def _bytes(answer: object) -> bytes:
    return answer if isinstance(answer, bytes) else str(answer).encode()


async def test_what_loses_messages_is_named(port: int, log: RedisLog, log_at: Opened) -> None:
    await log.append(message(0))
    assert await log.advice() == []
    losing = [
        ({"appendfsync": "everysec"}, "appendfsync everysec"),
        ({"appendonly": "no"}, "appendonly no"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "a partition with all its messages, too"),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "who owns a partition, too"),
    ]
    for settings, words in losing:
        async with redis_has(port, settings):
            (sentence,) = await log.advice()
        assert words in sentence
    await redis_command(port, "ACL", "SETUSER", "modest", "on", ">x", "+@all", "-config", "~*")
    (sentence,) = await log_at(f"redis://modest:x@127.0.0.1:{port}/orders").advice()
    assert "does not let this user read its configuration" in sentence
    await redis_command(port, "EXPIRE", f"{QUEUE}:0", "1000")
    (sentence,) = await log.advice()
    assert f"PERSIST {QUEUE}:0" in sentence


async def test_doctor_shows_what_a_queues_server_may_lose_and_which_cannot_be_asked(port: int) -> None:
    here, away = f"redis://127.0.0.1:{port}/orders", f"redis://127.0.0.1:{free_port()}/other"
    async with redis_has(port, {"appendonly": "no"}):
        setup = SimpleNamespace(logs=read_queues(Settings(queues=SecretStr(f"{away} {here}"))))
        found = await examine(LOGS, cast("Any", None), setup)  # no database
    of_subjects = {each.subject: each.check for each in found}
    assert of_subjects == {"queue redis:other": "queue-trouble", "queue redis:orders": "queue-settings"}
    assert ("cannot be asked" in found[0].text, "keeps no journal" in found[1].text) == (True, True)


async def test_who_only_looks_makes_no_queue(port: int, log: RedisLog) -> None:
    state, decided, oldest = await log.state(), await log.decided(), await log.oldest()
    assert (state.incarnation, state.ends, decided, oldest) == ("", (0,), [0], [None])
    assert await log.waiting(Position(0, 0)) == []
    await log.advice()
    assert await redis_command(port, "EXISTS", QUEUE) == 0
    await log.append(message(0))
    assert (await log.state()).incarnation


# A queue that was deleted, restored from an old file or spoiled: what appends, takes and looks at its state report.


async def test_after_a_flush_it_is_another_incarnation_and_the_first_append_says_so(port: int, log: RedisLog) -> None:
    before = await log.state()
    await log.append(message(0))
    await redis_command(port, "FLUSHALL")
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
    owner = await redis_command(port, "GET", f"{QUEUE}:0:owner")
    await redis_command(port, "FLUSHALL")
    await redis_command(port, "SET", f"{QUEUE}:0:owner", owner)
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
        await redis_command(self.port, "SAVE")
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
    assert await redis_command(restorable.port, "XLEN", f"{QUEUE}:0") == 1, "what was refused is not there"
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
    owner = await redis_command(restorable.port, "GET", f"{QUEUE}:0:owner")
    await restorable.restore()
    await redis_command(restorable.port, "SET", f"{QUEUE}:0:owner", owner)  # as if the file had it
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
    await redis_command(port, by[0], f"{QUEUE}:0", *by[1:])
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
            await redis_command(port, "XDEL", f"{QUEUE}:0", "0-1")
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
    await redis_command(port, "XADD", f"{QUEUE}:0", "*", "key", "orders/1")
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
    await redis_command(port, "XADD", f"{QUEUE}:0", "0-*", "key", "orders/1", "h:method", "DELETE", "note", "mine")
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
    await redis_command(port, "SET", QUEUE, "something")
    with pytest.raises(LogUnavailableError, match=r"something else than a queue as fencepost:\{orders\}"):
        await log.append(message(0))


@pytest.mark.parametrize("content", ["{}", "7", '{"partition": []}', "no letter", '{"partition": 3}'])
async def test_what_is_no_dead_letter_can_be_dropped(port: int, log: RedisLog, content: str) -> None:
    await redis_command(port, "HSET", f"{QUEUE}:dead", "x", content)
    assert await log.dead.drop("x") is True
    assert await log.dead.drop("x") is False
    assert await log.dead.count() == {}


# Who takes from a partition, and in which order the next one gets what was not done.

OWNER = f"{QUEUE}:0:owner"


async def test_the_next_owner_takes_what_was_not_done_before_what_is_new(log: RedisLog) -> None:
    for number in range(6):
        await log.append(message(number))
    first, second = log.consumer("a", lambda _: None), log.consumer("b", lambda _: None)
    taken = await first.take(5, 1)
    await first.done(taken[1::2])
    await first.close()
    await log.append(message(6))
    assert await numbers_taken(second, 5) == [0, 2, 4, 5, 6]
    await second.close()


async def test_an_owner_whose_key_expired_neither_reads_nor_deletes(port: int, log: RedisLog) -> None:
    lost: list[frozenset[int]] = []
    paused, other = log.consumer("a", lost.append), log.consumer("b", lambda _: None)
    await log.append(message(0))
    held = await paused.take(10, 1)
    await redis_command(port, "DEL", OWNER)
    await redis_command(port, "DEL", f"{QUEUE}:members")  # as when both expired while it was paused
    assert await numbers_taken(other, 1) == [0]
    await paused.done(held)
    assert await redis_command(port, "XLEN", f"{QUEUE}:0") == 1, "it is for the new owner to say what is done"
    await log.append(message(1))
    assert await paused.take(10, 0) == []
    assert lost == [frozenset({0})]
    assert paused.partitions == frozenset()
    assert await numbers_taken(other, 1) == [1]
    for each in (paused, other):
        await each.close()


async def test_an_owner_whose_key_expired_and_who_gets_it_again_takes_what_it_had(port: int, log: RedisLog) -> None:
    """As after Redis was away for longer than the TTL: the first that is asked of it is the partition."""
    alone = log.consumer("a", lambda _: None, claim_every=0)
    await log.append(message(0))
    held = await alone.take(10, 1)
    await redis_command(port, "DEL", OWNER)
    await alone.done(held)
    assert await numbers_taken(alone, 1) == [0]
    await log.append(message(1))
    again = await alone.take(10, 1)
    await alone.done([*held, *again])
    assert await redis_command(port, "XLEN", f"{QUEUE}:0") == 0
    await alone.close()


async def test_a_member_that_was_started_again_has_its_partitions_at_once(port: int, log: RedisLog) -> None:
    before, again = log.consumer("a", lambda _: None), log.consumer("a", lambda _: None)
    other = log.consumer("b", lambda _: None)
    await log.append(message(0))
    assert await numbers_taken(before, 1) == [0]
    assert await other.take(10, 0) == []
    assert await numbers_taken(again, 1) == [0]
    assert (await redis_command(port, "GET", OWNER)).endswith(b":a")
    for each in (before, again, other):
        await each.close()


@pytest.mark.long("answers and owners of Redis that are waited for")
async def test_a_partition_that_is_too_many_is_given_up_once_all_of_it_is_done(url: str, log_at: Opened) -> None:
    log = log_at(url.replace("partitions=1", "partitions=2"))
    first, second = log.consumer("b", lambda _: None), log.consumer("a", lambda _: None)
    for number in range(20):
        await log.append(message(number))
    held = await first.take(100, 1)
    await second.take(0, 0)
    partition = held[0].position.partition
    await first.take(0, 1.1)  # it claims again, and finds that it has too many
    assert first.partitions == {partition}, "the idle one is given up"
    await second.take(0, 1.1)
    assert second.partitions == {1 - partition}
    third = log.consumer("0", lambda _: None)  # now two others come first, and b has no share
    await third.take(0, 0)
    await first.take(100, 1.1)
    assert first.partitions == {partition}, "what is in its hands is not done"
    await first.done(held)
    await first.take(100, 1.1)
    assert first.partitions == frozenset()
    for each in (first, second, third):
        await each.close()


@pytest.mark.long("answers and owners of Redis that are waited for")
async def test_members_that_come_and_go_share_all_partitions(url: str, log_at: Opened) -> None:
    log = log_at(url.replace("partitions=1", "partitions=8"))
    members = [log.consumer(f"m{number}", lambda _: None) for number in range(3)]

    async def all_take() -> list[int]:
        await asyncio.gather(*(each.take(10, 1.1) for each in members))
        return [len(each.partitions) for each in members]

    for _ in range(3):
        shares = await all_take()
    assert shares == [3, 3, 2]
    await members.pop(0).close()
    assert await all_take() == [4, 4]
    for each in members:
        await each.close()


async def test_each_partition_has_its_turn_where_messages_are_large(port: int, log_at: Opened) -> None:
    log = log_at(f"redis://127.0.0.1:{port}/orders?partitions=3")
    partitions: set[int] = set()
    for number in range(60):  # what is read at once of two partitions is what one `take` gives
        at = await log.append(Message(b"orders/%d" % number, b"x" * 1_100_000))
        partitions.add(at.partition)
    assert partitions == {0, 1, 2}
    taking = log.consumer("a", lambda _: None)
    came = [{each.position.partition for each in await taking.take(1000, 1)} for _ in range(3)]
    await taking.close()
    assert all(len(each) < 3 for each in came), "else nothing is shown"
    assert set().union(*came) == {0, 1, 2}
