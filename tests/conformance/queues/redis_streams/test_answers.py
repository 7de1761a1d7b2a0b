"""Answers of Redis that do not come, waits for replicas and disk, other nodes of a cluster, older servers."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr
from tests.conformance.queues.redis_streams.conftest import QUEUE, Opened, message, numbers_taken
from tests.conformance.redis_bench import command, redis_server
from tests.support.postgres import cutting_proxy

from fencepost.cli.status import examine_queues
from fencepost.server.parts import read_queues
from fencepost.server.queues.log import LogUnavailableError, LogUnknownError, Position
from fencepost.server.queues.redis import RedisLog
from fencepost.server.settings import Settings
from fencepost.testing.servers.lock_services import DURABLE
from fencepost.testing.servers.processes import eventually, free_port


@pytest.mark.long("answers and owners of Redis that are waited for")
async def test_an_append_whose_answer_is_lost_may_be_there(port: int, url: str, log_at: Opened) -> None:
    async with cutting_proxy(url) as (proxy, through):
        log = log_at(through)
        await log.append(message(0))
        proxy.mute_after = b"orders/1"
        with pytest.raises(LogUnknownError, match="did not answer within 3 s when asked for a message to"):
            await log.append(message(1))
        assert await command(port, "XLEN", f"{QUEUE}:0") == 2
        appending = asyncio.create_task(log.append(message(2)))

        async def landed() -> bool:
            return bool(await command(port, "XLEN", f"{QUEUE}:0") == 3)

        await eventually(landed, what="the message whose answer is held back")
        proxy.cut_all()
        with pytest.raises(LogUnknownError, match="gave no answer about a message to"):
            await appending


async def test_an_append_that_is_refused_or_cannot_be_sent_was_not_done(
    port: int, log: RedisLog, log_at: Opened
) -> None:
    await log.state()
    await command(port, "CONFIG SET", "min-replicas-to-write", "3")
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
        await command(port, "CONFIG SET", "min-replicas-to-write", "0")
    assert await command(port, "EXISTS", f"{QUEUE}:0") == 0


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
            return bool((await command(primary, "INFO", "replication"))["connected_slaves"] == 1)

        await eventually(in_sync, what="a replica")
        await log.append(message(0))
        assert await command(port, "XLEN", f"{QUEUE}:0") == 1
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
        assert await command(primary, "XLEN", f"{QUEUE}:0") == 2


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
async def test_each_node_of_a_cluster_leads_to_the_one_that_has_the_queue(
    nodes: list[tuple[int, int]], log_at: Opened
) -> None:
    (first, _), (second, bus) = nodes
    slot = await command(first, "CLUSTER", "KEYSLOT", QUEUE)
    assert slot == await command(first, "CLUSTER", "KEYSLOT", f"{QUEUE}:7:owner")
    await command(first, "CLUSTER", "ADDSLOTSRANGE", 0, slot - 1, slot + 1, 16383)
    await command(second, "CLUSTER", "ADDSLOTS", slot)
    await command(first, "CLUSTER", "MEET", "127.0.0.1", second, bus)

    async def agreed() -> bool:
        about = [await command(port, "CLUSTER", "INFO") for port, _ in nodes]
        return all(b"cluster_state:ok" in _bytes(each) for each in about)

    await eventually(agreed, what="the cluster")
    log = log_at(f"redis://127.0.0.1:{first}/orders")
    position = await log.append(message(0))
    assert await command(second, "XLEN", f"{QUEUE}:{position.partition}") == 1
    consumer = log.consumer("a", lambda _: None)
    assert await numbers_taken(consumer, 1) == [0]
    await consumer.close()


def _bytes(answer: object) -> bytes:
    return answer if isinstance(answer, bytes) else str(answer).encode()


LOSING = [
    ({"appendfsync": "everysec"}, "appendfsync everysec"),
    ({"appendonly": "no"}, "appendonly no"),
    ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "a partition with all its messages, too"),
    ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "who owns a partition, too"),
]


async def test_what_loses_messages_is_named(port: int, log: RedisLog, log_at: Opened) -> None:
    await log.append(message(0))
    assert await log.advice() == []
    for settings, words in LOSING:
        before = {name: (await command(port, "CONFIG GET", name))[name] for name in settings}
        for name, value in settings.items():
            await command(port, "CONFIG SET", name, value)
        try:
            (sentence,) = await log.advice()
        finally:
            for name, value in before.items():
                await command(port, "CONFIG SET", name, value)
        assert words in sentence
    await command(port, "ACL", "SETUSER", "modest", "on", ">x", "+@all", "-config", "~*")
    (sentence,) = await log_at(f"redis://modest:x@127.0.0.1:{port}/orders").advice()
    assert "does not let this user read its configuration" in sentence
    await command(port, "EXPIRE", f"{QUEUE}:0", "1000")
    (sentence,) = await log.advice()
    assert f"PERSIST {QUEUE}:0" in sentence


async def test_doctor_shows_what_a_queues_server_may_lose_and_which_cannot_be_asked(port: int) -> None:
    here, away = f"redis://127.0.0.1:{port}/orders", f"redis://127.0.0.1:{free_port()}/other"
    await command(port, "CONFIG SET", "appendonly", "no")
    try:
        found = await examine_queues(read_queues(Settings(queues=SecretStr(f"{away} {here}"))))
    finally:
        await command(port, "CONFIG SET", "appendonly", "yes")
    by_subject = {each.subject: (each.level, each.text) for each in found}
    assert by_subject.keys() == {"queue redis:other", "queue redis:orders"}
    level, text = by_subject["queue redis:orders"]
    assert (level, "keeps no journal" in text) == ("warning", True)
    level, text = by_subject["queue redis:other"]
    assert (level, "cannot be asked" in text) == ("error", True)


async def test_who_only_looks_makes_no_queue(port: int, log: RedisLog) -> None:
    state, decided, oldest = await log.state(), await log.decided(), await log.oldest()
    assert (state.incarnation, state.ends, decided, oldest) == ("", (0,), [0], [None])
    assert await log.waiting(Position(0, 0)) == []
    await log.advice()
    assert await command(port, "EXISTS", QUEUE) == 0
    await log.append(message(0))
    assert (await log.state()).incarnation
