"""Redis' ways to refuse: users, replicas, clusters, TLS; what `doctor` reports of its settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.redis.taking import LOCK, LONG_MS, Opened, free, take
from tests.conformance.redis_bench import RedisBench, command, redis_server
from tests.support.servers import self_signed

from fencepost.server.locks.source import Grant, Source, SourceError, SourceUnavailableError
from fencepost.testing.servers.lock_services import DURABLE
from fencepost.testing.servers.processes import eventually, free_port


async def test_a_user_who_may_not_is_no_outage_and_no_password_is_shown(bench: RedisBench, source_of: Opened) -> None:
    await command(bench.ports[0], "ACL", "SETUSER", "locker", "on", ">s3 cr/t", "+@all", "~fencepost:lock:*")
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
    replication = await command(port, "INFO", "replication")
    return bool(replication["connected_slaves"] == 1 and replication["slave0"]["state"] == "online")


async def test_replicas_have_a_grant_before_it_counts(primary: int, tmp_path: Path, source_of: Opened) -> None:
    port = free_port()
    with redis_server(tmp_path / "replica", port, "--replicaof", "127.0.0.1", str(primary)) as replica:
        await eventually(lambda: _in_sync(primary), what="a replica")
        source = source_of(f"redis://127.0.0.1:{primary}/0?replicas=1&wait_ms=2000")
        grant = await take(source)
        assert isinstance(grant, Grant)
        assert await command(port, "GET", "fencepost:tokens") == b"1"
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
        await command(primary, "CLIENT", "KILL", "TYPE", "replica")
        lost = await take(before)
        await server_of_its_own.crash()
        replica.resume()
        await command(port, "REPLICAOF", "NO", "ONE")
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
        await command(primary, "CONFIG", "SET", "min-replicas-to-write", "2")
        assert await source.advice() == []
        with pytest.raises(SourceUnavailableError, match="NOREPLICAS"):
            await take(source)


async def test_a_cluster_is_refused_by_name(tmp_path: Path, source_of: Opened) -> None:
    port = free_port()
    with redis_server(tmp_path, port, *DURABLE, "--cluster-enabled", "yes", "--cluster-port", str(free_port())):
        source = source_of(f"redis://127.0.0.1:{port}/0")
        for has_slots in (False, True):
            if has_slots:
                await command(port, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
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


REPEATING = [
    ({"appendfsync": "everysec"}, "appendfsync everysec"),
    ({"appendonly": "no"}, "appendonly no"),
    ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "the counter of tokens too, and it begins at 1"),
    ({"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"}, "locks too, and they are granted a second time"),
]


async def test_what_makes_tokens_repeat_is_named(bench: RedisBench, source: Source, source_of: Opened) -> None:
    port = bench.ports[0]
    assert await source.advice() == []
    await take(source)
    assert await source.advice() == []
    for settings, words in REPEATING:
        before = {name: (await command(port, "CONFIG GET", name))[name] for name in settings}
        for name, value in settings.items():
            await command(port, "CONFIG SET", name, value)
        try:
            (sentence,) = await source.advice()
        finally:
            for name, value in before.items():
                await command(port, "CONFIG SET", name, value)
        assert words in sentence
    await command(port, "ACL", "SETUSER", "modest", "on", ">x", "+@all", "-config", "~*")
    (sentence,) = await source_of(bench.url.replace("//", "//modest:x@")).advice()
    assert "does not let this user read its configuration" in sentence
    await command(port, "EXPIRE", "fencepost:tokens", "1000")
    (sentence,) = await source.advice()
    assert "PERSIST fencepost:tokens" in sentence
