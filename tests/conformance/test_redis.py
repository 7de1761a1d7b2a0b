"""The source redis: its counter, lost answers, and what is refused."""

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ResponseError
from tests.conformance.benches import RedisBench, redis_command, redis_has, redis_server, running_redis
from tests.support.manual_clock import settled
from tests.support.postgres import cutting_proxy
from tests.support.servers import self_signed

from fencepost.server.locks.redis import AT_ONCE, GRANT
from fencepost.server.locks.source import (
    MOST_NATIVE,
    Grant,
    Holder,
    Source,
    SourceContext,
    SourceError,
    SourceUnavailableError,
    make,
)
from fencepost.testing.servers.lock_services import DURABLE
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port

# One lock of the source redis, taken and looked at.

Opened = Callable[[str], Source]


LONG_MS = 60_000
"""A TTL that no test waits for: what is free before was given back."""
LOCK = "orders/order-1"
KEY = f"fencepost:lock:{LOCK}"


async def take(source: Source, *, wait_s: float = 0, tokens: int = 1) -> Grant | Holder:
    return await source.acquire(LOCK, owner="somebody", ttl_ms=LONG_MS, tokens=tokens, wait_s=wait_s)


async def free(source: Source) -> bool:
    return await source.inspect(LOCK) is None


# A Redis of this file's own, emptied before each test, and sources on it.


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisBench]:
    with running_redis(tmp_path_factory.mktemp("redis")) as bench:
        yield bench


@pytest.fixture
async def bench(server: RedisBench) -> RedisBench:
    await redis_command(server.ports[0], "FLUSHALL")
    return server


@pytest.fixture
def source_of(stack: AsyncExitStack) -> Opened:
    """Give a function that makes a source of a URL; it is closed after the test."""

    def made(url: str) -> Source:
        source = make(url, SourceContext("locks", ""))
        stack.push_async_callback(source.close)
        return source

    return made


@pytest.fixture
async def source(bench: RedisBench, source_of: Opened) -> Source:
    return source_of(bench.url)


# The counter of the source redis, and its keys, beside other programs.


async def test_who_finds_the_lock_held_or_has_lost_it_draws_no_numbers(bench: RedisBench, source: Source) -> None:
    grant = await take(source, tokens=3)
    assert isinstance(grant, Grant)
    assert isinstance(await take(source, wait_s=0.2), Holder)
    await source.release(LOCK, grant.handle)
    assert await source.mint(LOCK, grant.handle, 5) is None
    assert await redis_command(bench.ports[0], "GET", "fencepost:tokens") == b"3"


async def test_the_last_number_there_is(bench: RedisBench, source: Source) -> None:
    await redis_command(bench.ports[0], "SET", "fencepost:tokens", MOST_NATIVE - 1)
    grant = await take(source)
    assert isinstance(grant, Grant)
    assert grant.tokens == (MOST_NATIVE,)
    with pytest.raises(SourceError, match=f"stands at {MOST_NATIVE + 1}, and tokens are numbers from 1 to"):
        await source.mint(LOCK, grant.handle, 1)
    await source.release(LOCK, grant.handle)
    with pytest.raises(SourceError, match=LOCK):
        await take(source)
    assert await free(source)


async def test_a_counter_without_a_token_grants_nothing(bench: RedisBench, source: Source) -> None:
    for content in ("many", "-5", "9223372036854775807", "1.5"):
        await redis_command(bench.ports[0], "SET", "fencepost:tokens", content)
        with pytest.raises(SourceError, match="fencepost:tokens") as error:
            await take(source, tokens=2)
        assert not isinstance(error.value, SourceUnavailableError)
        assert await free(source)


async def test_numbers_are_drawn_before_the_lock_is_set(bench: RedisBench) -> None:
    """Redis does not roll back a script that fails half way; the source would release the lock, other clients not."""
    await redis_command(bench.ports[0], "SET", "fencepost:tokens", MOST_NATIVE)
    with pytest.raises(ResponseError, match="the counter stands at"):
        await redis_command(bench.ports[0], "EVAL", GRANT, 2, KEY, "fencepost:tokens", "value", LONG_MS, 1)
    assert await redis_command(bench.ports[0], "GET", KEY) is None


async def test_a_counter_of_another_type_is_named(bench: RedisBench, source: Source) -> None:
    await redis_command(bench.ports[0], "RPUSH", "fencepost:tokens", "1")
    for asked in (take(source), source.issued(1)):
        with pytest.raises(SourceError, match="WRONGTYPE") as error:
            await asked
        assert "fencepost:tokens" in str(error.value)
    assert await free(source)


async def test_other_prefixes_have_locks_and_tokens_of_their_own(bench: RedisBench, source_of: Opened) -> None:
    one, two = source_of(bench.url), source_of(f"{bench.url}?prefix=other%3A")
    for source in (one, two):
        assert not await source.issued(1)
        grant = await take(source)
        assert isinstance(grant, Grant)
        assert grant.tokens == (1,)
    assert await redis_command(bench.ports[0], "GET", "other:tokens") == b"1"


async def test_a_lock_of_another_program_names_no_owner(bench: RedisBench, source: Source) -> None:
    await redis_command(bench.ports[0], "SET", KEY, "of:another program")
    assert await take(source) == Holder()
    assert await source.inspect(LOCK) == Holder()


async def test_a_program_that_does_as_documented_locks_as_we_do(bench: RedisBench, source: Source) -> None:
    text = (Path(__file__).parents[2] / "docs/sources/redis.md").read_text()
    program = text.partition("```sh\n")[2].partition("```")[0].replace(":6379", f":{bench.ports[0]}")

    async def locked() -> str:
        process = await asyncio.create_subprocess_shell(program, stdout=subprocess.PIPE)
        answer, _ = await process.communicate()
        return answer.decode().strip()

    grant = await source.acquire("nightly", owner="we", ttl_ms=LONG_MS, tokens=4, wait_s=0)
    assert isinstance(grant, Grant)
    assert await locked() == ""
    await source.release("nightly", grant.handle)
    assert await locked() == "5"
    held = await source.acquire("nightly", owner="we", ttl_ms=LONG_MS, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    assert held.owner == socket.gethostname()


# Answers of Redis that get lost or come late, and acquires that are cancelled.


async def test_a_grant_whose_answer_is_lost_is_given_back(bench: RedisBench, source: Source, source_of: Opened) -> None:
    async with cutting_proxy(bench.url) as (proxy, url):
        cut = source_of(url)
        await cut.inspect(LOCK)  # it is connected
        proxy.mute_after = b"INCRBY"
        acquiring = asyncio.create_task(take(cut))
        await proxy.muted.wait()
        await eventually(lambda: source.inspect(LOCK), what="the grant whose answer is held back")
        proxy.mute_after = None
        proxy.cut_all()
        with pytest.raises(SourceUnavailableError):
            await acquiring
        await eventually(lambda: free(source), what="its release")


async def test_an_acquire_that_gets_no_answer_ends_in_time(bench: RedisBench, source_of: Opened) -> None:
    async with cutting_proxy(bench.url) as (proxy, url):
        cut = source_of(url)
        await cut.inspect(LOCK)
        proxy.mute_after = b"INCRBY"
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(
                SourceUnavailableError, match=f"did not answer within 3 s when asked for the lock {LOCK}"
            ):
                await take(cut)
        proxy.mute_after = None


@asynccontextmanager
async def sent(bench: RedisBench, source_of: Opened) -> AsyncIterator[tuple[Source, "asyncio.Task[Grant | Holder]"]]:
    """Give an acquire that was sent to a Redis that is stopped, and its source."""
    async with cutting_proxy(bench.url) as (proxy, url):
        source = source_of(url)
        await source.inspect(LOCK)
        await bench.pause()
        proxy.mute_after, proxy.mute_skips = b"INCRBY", 1  # only to know that it has been sent
        acquiring = asyncio.create_task(take(source))
        await eventually(lambda: _is(proxy.mute_skips == 0), what="the request")
        proxy.mute_after = None
        yield source, acquiring


async def test_an_acquire_that_is_cancelled_before_its_answer_releases_what_it_was_granted(
    bench: RedisBench, source: Source, source_of: Opened
) -> None:
    async with sent(bench, source_of) as (_, acquiring):
        acquiring.cancel()
        await asyncio.sleep(0)
        await bench.resume()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert await free(source)
        assert await redis_command(bench.ports[0], "GET", "fencepost:tokens") == b"1", "it had been granted"


async def _is(what: bool) -> bool:
    return what


async def test_an_acquire_that_is_cancelled_twice_releases_all_the_same(
    bench: RedisBench, source: Source, source_of: Opened
) -> None:
    async with sent(bench, source_of) as (other, acquiring):
        acquiring.cancel()
        await asyncio.wait([acquiring], timeout=0.1)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        await bench.resume()
        await other.close()  # waits for what goes on behind the caller's back
    assert await free(source)
    assert await redis_command(bench.ports[0], "GET", "fencepost:tokens") == b"1", "it had been granted"


async def test_a_release_at_the_same_process_ends_the_pause_of_who_waits(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = asyncio.Event()

    def for_hours(*_: float) -> float:
        paused.set()
        return 1e6

    monkeypatch.setattr("random.uniform", for_hours)
    held = await source.acquire(LOCK, owner="a", ttl_ms=LONG_MS, tokens=1, wait_s=0)
    waiting = asyncio.create_task(source.acquire(LOCK, owner="b", ttl_ms=LONG_MS, tokens=1, wait_s=3600))
    await paused.wait()
    await settled()
    assert isinstance(held, Grant)
    await source.release(LOCK, held.handle)
    assert isinstance(await asyncio.wait_for(waiting, PATIENCE), Grant)


async def test_requests_that_are_cancelled_leave_neither_answers_nor_connections_taken(source: Source) -> None:
    await take(source)
    for round_trips in range(6):
        asking = [asyncio.create_task(source.inspect(LOCK)) for _ in range(2 * AT_ONCE)]
        for _ in range(round_trips):
            await asyncio.sleep(0)
        await asyncio.wait(asking, timeout=0.002 * round_trips)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        holders = await asyncio.gather(*(source.inspect(f"other-{number}") for number in range(2 * AT_ONCE)))
        assert holders == [None] * (2 * AT_ONCE)


# Redis' ways to refuse: users, replicas, clusters, TLS; what `doctor` reports of its settings.


async def test_a_user_who_may_not_is_no_outage_and_no_password_is_shown(bench: RedisBench, source_of: Opened) -> None:
    await redis_command(bench.ports[0], "ACL", "SETUSER", "locker", "on", ">s3 cr/t", "+@all", "~fencepost:lock:*")
    for user, words in (("nobody:hunter2", "does not let this user"), ("locker:s3%20cr%2Ft", "fencepost:tokens")):
        with pytest.raises(SourceError, match=words) as error:
            await take(source_of(bench.url.replace("//", f"//{user}@")))
        assert not isinstance(error.value, SourceUnavailableError)
        assert "hunter2" not in str(error.value)


@pytest.fixture
def server_of_its_own(tmp_path: Path) -> Iterator[RedisBench]:
    port = free_port()
    with redis_server(tmp_path / "primary", port, *DURABLE, "--repl-diskless-sync-delay", "0") as server:
        yield RedisBench("redis", f"redis://127.0.0.1:{port}/0", [server], [port], "fencepost:lock:")


@pytest.fixture
def primary(server_of_its_own: RedisBench) -> int:
    return server_of_its_own.ports[0]


async def _in_sync(port: int) -> bool:
    """Whether its replica takes what is written, and not only the first copy."""
    replication = await redis_command(port, "INFO", "replication")
    return bool(replication["connected_slaves"] == 1 and replication["slave0"]["state"] == "online")


async def test_replicas_have_a_grant_before_it_counts(primary: int, tmp_path: Path, source_of: Opened) -> None:
    port = free_port()
    with redis_server(tmp_path / "replica", port, "--replicaof", "127.0.0.1", str(primary)) as replica:
        await eventually(lambda: _in_sync(primary), what="a replica")
        source = source_of(f"redis://127.0.0.1:{primary}/0?replicas=1&wait_ms=2000")
        grant = await take(source)
        assert isinstance(grant, Grant)
        assert await redis_command(port, "GET", "fencepost:tokens") == b"1"
        assert await source.mint(LOCK, grant.handle, 1) == (2,)
        replica.pause()
        with pytest.raises(SourceUnavailableError, match="only 0 of 1 replicas"):
            await source.mint(LOCK, grant.handle, 1)
        await source.release(LOCK, grant.handle)
        with pytest.raises(SourceUnavailableError, match="only 0 of 1 replicas"):
            await take(source)
        await eventually(lambda: free(source), what="the release of what did not count")


async def test_a_failover_that_lost_grants_repeats_their_numbers_and_can_be_seen(
    server_of_its_own: RedisBench, primary: int, tmp_path: Path, source_of: Opened
) -> None:
    """What asynchronous replication does, and why a grant that is not above the highest known token is distrusted."""
    port = free_port()
    with redis_server(tmp_path / "replica", port, "--replicaof", "127.0.0.1", str(primary)) as replica:
        await eventually(lambda: _in_sync(primary), what="a replica")
        before, after = source_of(f"redis://127.0.0.1:{primary}/0"), source_of(f"redis://127.0.0.1:{port}/0")
        replica.pause()
        await redis_command(primary, "CLIENT", "KILL", "TYPE", "replica")
        lost = await take(before)
        await server_of_its_own.crash()
        replica.resume()
        await redis_command(port, "REPLICAOF", "NO", "ONE")
        again = await take(after)
        assert isinstance(lost, Grant)
        assert isinstance(again, Grant), "granted a second time"
        assert again.tokens == lost.tokens
        assert again.handle != lost.handle
        assert await after.renew(LOCK, lost.handle, LONG_MS) is False


async def test_a_replica_is_an_outage_and_doctor_names_it(primary: int, tmp_path: Path, source_of: Opened) -> None:
    port = free_port()
    with redis_server(tmp_path / "replica", port, "--replicaof", "127.0.0.1", str(primary)):
        await eventually(lambda: _in_sync(primary), what="a replica")
        source = source_of(f"redis://127.0.0.1:{port}/0")
        with pytest.raises(SourceUnavailableError, match="read only replica"):
            await take(source)
        assert "is a replica" in "".join(await source.advice())
        source = source_of(f"redis://127.0.0.1:{primary}/0")
        (sentence,) = await source.advice()
        assert "set min-replicas-to-write 1" in sentence
        await redis_command(primary, "CONFIG", "SET", "min-replicas-to-write", "2")
        assert await source.advice() == []
        with pytest.raises(SourceUnavailableError, match="NOREPLICAS"):
            await take(source)


async def test_a_cluster_is_refused_by_name(tmp_path: Path, source_of: Opened) -> None:
    port = free_port()
    with redis_server(tmp_path, port, *DURABLE, "--cluster-enabled", "yes", "--cluster-port", str(free_port())):
        source = source_of(f"redis://127.0.0.1:{port}/0")
        for has_slots in (False, True):
            if has_slots:
                await redis_command(port, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            for asked in (take(source), source.issued(1), source.advice()):
                with pytest.raises(SourceError, match="a node of a Redis Cluster") as error:
                    await asked
                assert not isinstance(error.value, SourceUnavailableError)


async def test_tls_trusts_the_authority_that_is_named_and_no_other(tmp_path: Path, source_of: Opened) -> None:
    port, certificate = free_port(), self_signed(tmp_path)
    settings = (
        *("--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(certificate), "--tls-key-file", str(certificate.with_name("key.pem"))),
    )
    with redis_server(tmp_path / "redis", free_port(), *DURABLE, *settings):
        assert isinstance(await take(source_of(f"rediss://127.0.0.1:{port}/0?ca={certificate}")), Grant)
        for url in (f"rediss://127.0.0.1:{port}/0", f"rediss://localhost:{port}/0?ca={certificate}"):
            with pytest.raises(SourceUnavailableError, match="certificate verify failed"):
                await take(source_of(url))


async def test_what_makes_tokens_repeat_is_named(bench: RedisBench, source: Source, source_of: Opened) -> None:
    port = bench.ports[0]
    assert await source.advice() == []
    await take(source)
    assert await source.advice() == []
    repeating = [
        ({"appendfsync": "everysec"}, "appendfsync everysec"),
        ({"appendonly": "no"}, "appendonly no"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "the counter of tokens too, and it begins at 1"),
        ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "locks too, and they are granted a second time"),
    ]
    for settings, words in repeating:
        async with redis_has(port, settings):
            (sentence,) = await source.advice()
        assert words in sentence
    await redis_command(port, "ACL", "SETUSER", "modest", "on", ">x", "+@all", "-config", "~*")
    (sentence,) = await source_of(bench.url.replace("//", "//modest:x@")).advice()
    assert "does not let this user read its configuration" in sentence
    await redis_command(port, "EXPIRE", "fencepost:tokens", "1000")
    (sentence,) = await source.advice()
    assert "PERSIST fencepost:tokens" in sentence
