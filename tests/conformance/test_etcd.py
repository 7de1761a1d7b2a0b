"""The source etcd: its URL, holds, waiting, lost answers, what etcdctl sees, and three nodes."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conformance.benches import EtcdBench, opened, running_etcd
from tests.support.servers import self_signed

from fencepost.server.locks.etcd import EtcdApi, EtcdRefusedError, EtcdSource, parse
from fencepost.server.locks.source import (
    REQUEST_TIMEOUT,
    Grant,
    Holder,
    Source,
    SourceConfigError,
    SourceContext,
    SourceError,
    SourceUnavailableError,
    make,
)
from fencepost.testing.servers.processes import PATIENCE, eventually

# What tests of the source etcd ask of it and of its server.

TTL = 60_000
"""No hold ends by itself while a test looks: a test has `etcdctl` revoke its lease."""


async def granted(source: Source, lock: str, *, wait_s: float = PATIENCE, ttl_ms: int = TTL, tokens: int = 1) -> Grant:
    grant = await source.acquire(lock, owner="somebody", ttl_ms=ttl_ms, tokens=tokens, wait_s=wait_s)
    assert isinstance(grant, Grant), grant
    return grant


async def queued(bench: EtcdBench, lock: str, count: int = 1) -> None:
    async def waits() -> bool:
        return await bench.waiting(lock) == count

    await eventually(waits, what=f"{count} waiters")


async def leases(bench: EtcdBench) -> set[str]:
    """Look up which leases there are, in hex."""
    return {f"{lease['id']:x}" for lease in (await bench.ctl("lease", "list")).get("leases") or ()}


# An etcd of one node for the tests of this file, a source on it, and a lock for each test.


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdBench]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as bench:
        yield bench


@pytest.fixture
async def source(node: EtcdBench) -> AsyncIterator[Source]:
    found = await opened(node)
    yield found
    await found.close()


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> str:
    return f"etcd/{request.node.name}"


# etcd:// and etcds:// URLs, passwords and certificates.


async def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    source = make(f"etcds://one?ca={tmp_path}/none.pem", SourceContext("locks", ""))
    with pytest.raises(SourceConfigError, match="locks"):
        await source.open()


class Forgetful(EtcdApi):
    def forget(self) -> None:
        """Go on with a session that etcd does not know."""
        self._token = "unknown.1"


async def test_passwords(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_etcd(tmp_path_factory.mktemp("auth")) as bench:
        (place,) = bench.endpoints
        api = Forgetful(parse(f"etcd://gate:secret@{place}", "locks"))
        source: Source = EtcdSource(api)
        await source.open()
        before = await granted(source, "a/b", ttl_ms=60_000)  # the server asks for no password yet
        # Make a user who may touch the locks and nothing else, and ask for passwords from now on.
        for command in (
            "user add root:root", "user grant-role root root", "role add locks",
            "role grant-permission locks --prefix=true readwrite fencepost/", "user add gate:secret",
            "user grant-role gate locks", "auth enable",
        ):  # fmt: skip
            await bench.ctl(*command.split())
        assert await source.renew("a/b", before.handle, 60_000) is True
        api.forget()
        assert await source.mint("a/b", before.handle, 1) is not None
        await source.release("a/b", before.handle)
        assert await source.inspect("a/b") is None
        await source.close()

        for url, says in (
            (f"etcd://gate:wrong@{place}", "authentication failed"),
            (f"etcd://gate:secret@{place}?prefix=other/", "permission denied"),
            (f"etcd://{place}", "user name is empty"),
        ):
            source = make(url, SourceContext("locks", ""))
            await source.open()
            with pytest.raises(EtcdRefusedError, match=says) as error:
                await granted(source, "a/b")
            assert "locks" in str(error.value), (url, says)
            assert "wrong" not in str(error.value), (url, says)
            await source.close()


async def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    cert = self_signed(tmp_path)
    key = cert.with_name("key.pem")
    with running_etcd(tmp_path, tls=(cert, key)) as bench:
        source = make(f"{bench.url}?ca={cert}&cert={cert}&key={key}", SourceContext("locks", ""))
        await source.open()
        grant = await granted(source, "a")
        assert await source.mint("a", grant.handle, 1) is not None
        await source.close()
        stranger = make(f"{bench.url}?ca={cert}", SourceContext("locks", ""))
        await stranger.open()
        with pytest.raises(SourceUnavailableError):
            await stranger.inspect("a")
        await stranger.close()


# What ends a hold and what does not: leases and keys that an operator or another program changes.


@pytest.mark.long("tests of etcd")
async def test_a_mint_leaves_the_key_attached_to_its_lease(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock, tokens=3)
    assert await source.mint(lock, grant.handle, 2) is not None
    (key,) = await node.keys(lock)
    lease = f"{key['lease']:x}"
    assert lease == grant.handle.partition(":")[0]
    await node.ctl("lease", "revoke", lease)
    assert await node.keys(lock) == [], "it goes with its lease"


@pytest.mark.long("tests of etcd")
async def test_another_programs_put_onto_the_owners_key_is_mended_by_the_next_renewal(
    node: EtcdBench, source: Source, lock: str
) -> None:
    grant = await granted(source, lock)
    (key,) = await node.keys(lock)
    name = f"{node.lock_name(lock)}/{grant.handle.partition(':')[0]}"
    await node.ctl("put", name, "mine now")
    with pytest.raises(SourceError, match="has no lease") as blocked:
        await granted(source, lock, wait_s=0)
    assert name in str(blocked.value)
    assert await source.mint(lock, grant.handle, 1) is not None, "it is ours still"
    assert await source.renew(lock, grant.handle, TTL) is True
    (mended,) = await node.keys(lock)
    assert mended["create_revision"] == key["create_revision"]
    assert mended["lease"] != 0
    assert await source.renew(lock, grant.handle, TTL) is True, "now by the lease that it has"
    await node.ctl("lease", "revoke", f"{mended['lease']:x}")
    assert await node.keys(lock) == [], "it goes with its lease"


@pytest.mark.long("tests of etcd")
@pytest.mark.parametrize("harm", ["revoked", "deleted", "put again"])
async def test_a_hold_that_an_operator_ends_is_lost(node: EtcdBench, source: Source, lock: str, harm: str) -> None:
    """Also where its lease lives, and where another key of its name is there."""
    grant = await granted(source, lock)
    lease = grant.handle.partition(":")[0]
    if harm == "revoked":
        await node.ctl("lease", "revoke", lease)
    else:
        await node.ctl("del", f"{node.lock_name(lock)}/{lease}")
    if harm == "put again":
        await node.ctl("put", f"--lease={lease}", f"{node.lock_name(lock)}/{lease}", "again")
    assert await source.mint(lock, grant.handle, 1) is None
    assert await source.renew(lock, grant.handle, TTL) is False
    if harm == "put again":
        await node.ctl("lease", "revoke", lease)
    await granted(source, lock, wait_s=0)


@pytest.mark.long("tests of etcd")
async def test_a_renewal_for_longer_than_granted_gets_it(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    assert await source.renew(lock, grant.handle, 10 * TTL) is True
    held = await source.inspect(lock)
    assert held is not None
    assert held.expires_ms is not None
    assert held.expires_ms > 5 * TTL
    assert held.owner == "somebody"
    more = await source.mint(lock, grant.handle, 1)
    assert more is not None
    assert more[0] > grant.tokens[0]
    assert await source.renew(lock, grant.handle, TTL) is True
    assert grant.handle.partition(":")[0] not in await leases(node), "it is not needed any more"
    await source.release(lock, grant.handle)
    assert await source.inspect(lock) is None


@pytest.mark.long("tests of etcd")
async def test_a_handle_of_another_source_is_refused(source: Source, lock: str) -> None:
    with pytest.raises(SourceError, match=lock):
        await source.mint(lock, '{"of": "redis"}', 1)


# Waiters: compaction, lost places, TTLs that end while they wait.


@pytest.mark.long("tests of etcd")
async def test_a_waiter_goes_on_when_the_revision_that_it_watches_from_is_compacted(
    node: EtcdBench, source: Source, lock: str
) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock, ttl_ms=10_000))
    await queued(node, lock)
    more = await source.mint(lock, grant.handle, 5)
    assert more is not None
    await node.ctl("compact", str(more[-1]))
    await source.release(lock, grant.handle)
    assert (await asyncio.wait_for(waiter, PATIENCE)).tokens[0] > more[-1]


@pytest.mark.long("tests of etcd")
async def test_a_watch_from_before_a_compaction_is_no_error(node: EtcdBench) -> None:
    """The deletion fell between the look and the watch, and was compacted."""
    api = EtcdApi(parse(node.url, "compacted"))
    await api.open()
    old = (await node.ctl("put", "compacted", "1"))["header"]["revision"]
    now = (await node.ctl("put", "compacted", "2"))["header"]["revision"]
    await node.ctl("compact", str(now))
    started = asyncio.get_running_loop().time()
    await api.deleted("Y29tcGFjdGVk", old, PATIENCE)
    assert asyncio.get_running_loop().time() - started < PATIENCE / 2, "the watch has ended, and the caller looks"
    await api.close()


@pytest.mark.long("tests of etcd")
async def test_a_waiter_that_lost_its_place_queues_anew(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock, ttl_ms=10_000))
    await queued(node, lock)
    place = (await node.keys(lock))[1]
    await node.ctl("lease", "revoke", f"{place['lease']:x}")

    async def another_place() -> bool:
        return any(key["create_revision"] > place["create_revision"] for key in await node.keys(lock))

    await eventually(another_place, what="another place")
    await source.release(lock, grant.handle)
    assert (await waiter).tokens > grant.tokens


@pytest.mark.long("tests of etcd")
@pytest.mark.realtime
async def test_a_waiter_outlives_its_ttl(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    waiter = asyncio.create_task(granted(source, lock, ttl_ms=2000))
    await queued(node, lock)
    place = (await node.keys(lock))[1]
    await asyncio.wait([waiter], timeout=5.0)
    assert (await node.keys(lock))[1] == place
    await source.release(lock, grant.handle)
    mine = await waiter
    assert mine.handle == f"{place['lease']:x}:{place['create_revision']}"
    assert mine.tokens[0] > place["create_revision"]


@pytest.mark.long("tests of etcd")
async def test_a_look_at_a_held_lock_writes_nothing(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    before = (await node.keys(lock)), await leases(node)
    held = await source.acquire(lock, owner="other", ttl_ms=TTL, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    holder = await node.ctl("lease", "timetolive", f"{(await node.keys(lock))[0]['lease']:x}")
    assert held.expires_ms is not None
    assert 1000 * holder["ttl"] <= held.expires_ms <= 60_000, "what is left to the holder, by etcd itself"
    assert await node.keys(lock) == before[0]
    assert await leases(node) <= before[1]
    await source.release(lock, grant.handle)


# Answers of etcd that are lost, and callers that go away.


class Spied(EtcdApi):
    """Calls `reported` after each answer, before its caller gets it. `leases`: those that it granted, in hex."""

    def __init__(self, url: str, reported: Callable[[str, dict[str, Any]], Any]) -> None:
        super().__init__(parse(url, "spied"))
        self.answered = reported
        self.leases: set[str] = set()

    async def _exchange(self, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await super()._exchange(at, path, body)
        if path == "lease/grant":
            self.leases.add(f"{int(body['ID']):x}")
        await self.answered(path, body)
        return answer


@pytest.mark.long("tests of etcd")
@pytest.mark.parametrize("lost", ["lease/grant", "create", "mint", "attach", "lease/revoke", "delete"])
async def test_a_request_whose_answer_got_lost_is_asked_again_and_done_once(
    node: EtcdBench, source: Source, lock: str, lost: str
) -> None:
    left = [lost]

    async def lose(path: str, body: dict[str, Any]) -> None:
        if left and (path == left[0] or (path == "kv/txn" and kind(body) == left[0])):
            left.pop()
            raise httpx.ReadError("cut off")

    api = Spied(node.url, lose)
    spied = EtcdSource(api)
    await spied.open()
    grant = await granted(spied, lock, tokens=2)
    assert await spied.renew(lock, grant.handle, 2 * TTL) is True
    assert await source.mint(lock, grant.handle, 1) is not None
    assert len(await node.keys(lock)) == 1
    await spied.release(lock, grant.handle)
    assert not left, "it was lost once"
    assert len(api.leases) == 2, "nothing was begun anew"
    assert await node.keys(lock) == []
    again = await granted(source, lock, wait_s=0)
    assert again.tokens > grant.tokens
    await source.release(lock, again.handle)
    assert len(await leases(node) & api.leases) <= 1, "at most the longer one, which ends by itself"
    await spied.close()


def kind(body: dict[str, Any]) -> str:
    (request,) = body["success"][:1]
    if "request_delete_range" in request:
        return "delete"
    put = request["request_put"]
    return "create" if "value" in put else "attach" if "lease" in put else "mint"


@pytest.mark.long("tests of etcd")
@pytest.mark.parametrize("held", [False, True])
async def test_a_cancelled_acquire_leaves_no_key_and_no_lease_wherever_it_was(
    node: EtcdBench, source: Source, lock: str, held: bool
) -> None:
    grant = await granted(source, lock) if held else None
    for stop_at in range(20):
        asked: list[str] = []
        there = asyncio.Event()

        async def stop(path: str, body: dict[str, Any], asked: list[str] = asked, there: asyncio.Event = there) -> None:
            del body
            asked.append(path)
            if len(asked) == stop_at + 1:  # noqa: B023 - of this round
                there.set()
                await asyncio.Event().wait()

        api = Spied(node.url, stop)
        spied = EtcdSource(api)
        await spied.open()
        acquiring = asyncio.create_task(granted(spied, lock, wait_s=0.5 if held else 0, tokens=2))
        reached = asyncio.create_task(there.wait())
        await asyncio.wait([acquiring, reached], return_when=asyncio.FIRST_COMPLETED)
        if not there.is_set():
            reached.cancel()
            await asyncio.wait([acquiring])
            break
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert len(await node.keys(lock)) == held, asked
        assert not await leases(node) & api.leases, asked
        await spied.close()
    assert stop_at > 3
    await (acquiring if not held else asyncio.wait([acquiring]))
    if held:
        assert isinstance(acquiring.exception(), AssertionError)
        assert grant is not None
        await source.release(lock, grant.handle)
    await spied.close()


# Programs that lock with `etcdctl lock`, in one queue with the gateway.


async def locking(node: EtcdBench, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *("etcdctl", f"--endpoints={node.endpoints[0]}", "lock", *words),
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
    )


@pytest.mark.long("tests of etcd")
async def test_etcdctl_lock_waits_for_us_and_its_revision_is_a_token(
    node: EtcdBench, source: Source, lock: str, tmp_path: Path
) -> None:
    grant = await granted(source, lock)
    say = tmp_path / "say"
    say.write_text("echo $ETCD_LOCK_REV\n")
    other = await locking(node, node.lock_name(lock), "sh", str(say))
    await queued(node, lock)
    more = await source.mint(lock, grant.handle, 3)
    assert more is not None
    await source.release(lock, grant.handle)
    reported, _ = await other.communicate()
    revision = int(reported)
    assert revision > more[-1]
    assert await source.issued(revision)
    assert (await granted(source, lock)).tokens[0] > revision


@pytest.mark.long("tests of etcd")
async def test_we_wait_for_etcdctl_lock(node: EtcdBench, source: Source, lock: str) -> None:
    other = await locking(node, "--ttl=60", node.lock_name(lock))
    assert other.stdout is not None
    key = (await other.stdout.readline()).decode().strip()
    assert key.startswith(f"{node.lock_name(lock)}/")
    held = await source.acquire(lock, owner="us", ttl_ms=TTL, tokens=1, wait_s=0.2)
    assert isinstance(held, Holder)
    assert held.owner is None
    waiter = asyncio.create_task(granted(source, lock))
    await queued(node, lock)
    other.send_signal(signal.SIGINT)
    await waiter
    await other.wait()


@pytest.mark.long("tests of etcd")
async def test_a_program_mints_under_etcdctl_lock_as_documented(
    node: EtcdBench, source: Source, lock: str, tmp_path: Path
) -> None:
    """docs/sources/etcd.md: the command that draws a token."""
    before = await granted(source, lock)
    await source.release(lock, before.handle)
    mint = tmp_path / "mint"
    mint.write_text(
        f"etcdctl --endpoints={node.endpoints[0]} put --ignore-value --ignore-lease $ETCD_LOCK_KEY -w json\n"
    )
    other = await locking(node, node.lock_name(lock), "sh", str(mint))
    reported, _ = await other.communicate()
    drawn = json.loads(reported)["header"]["revision"]
    assert drawn > before.tokens[0]
    assert (await granted(source, lock)).tokens[0] > drawn


# etcd as three nodes, of which some are killed or stopped, and what `doctor` reports of its settings.


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdBench]:
    with running_etcd(tmp_path_factory.mktemp("etcd3"), nodes=3) as bench:
        yield bench


@pytest.fixture
async def cluster_source(nodes: EtcdBench) -> AsyncIterator[Source]:
    found = await opened(nodes)
    yield found
    await found.close()


@asynccontextmanager
async def only(nodes: EtcdBench, *numbers: int) -> AsyncIterator[Source]:
    """Open a source that knows these endpoints, in this order."""
    places = ",".join(nodes.endpoints[n] for n in numbers)
    source = make(f"etcd://{places}", SourceContext("some", ""))
    await source.open()
    yield source
    await source.close()


@asynccontextmanager
async def killed(nodes: EtcdBench, *numbers: int) -> AsyncIterator[None]:
    for n in numbers:
        nodes.nodes[n].crash()
    try:
        yield
    finally:
        for n in numbers:
            nodes.nodes[n].start()
        for n in numbers:
            await nodes.nodes[n].serves()


@asynccontextmanager
async def stopped(nodes: EtcdBench, number: int) -> AsyncIterator[None]:
    nodes.nodes[number].pause()
    try:
        yield
    finally:
        nodes.nodes[number].resume()
        await nodes.nodes[number].serves()


async def everything(source: Source, lock: str) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    assert await source.renew(lock, grant.handle, 60_000) is True
    more = await source.mint(lock, grant.handle, 1)
    assert more is not None
    assert await source.issued(more[0])
    await source.release(lock, grant.handle)
    assert await source.inspect(lock) is None


@pytest.mark.long("tests of etcd")
async def test_a_follower_that_is_killed_changes_nothing(nodes: EtcdBench, lock: str) -> None:
    leader = await nodes.leader()
    follower, other = (n for n in range(3) if n != leader)
    async with only(nodes, follower, leader, other) as source, killed(nodes, follower):
        await everything(source, lock)


@pytest.mark.long("tests of etcd")
@pytest.mark.realtime
async def test_a_node_that_hangs_is_passed_over(nodes: EtcdBench, lock: str) -> None:
    leader = await nodes.leader()
    follower, other = (n for n in range(3) if n != leader)
    async with only(nodes, follower, other, leader) as source, stopped(nodes, follower):
        async with asyncio.timeout(REQUEST_TIMEOUT):
            await everything(source, lock)


@pytest.mark.long("tests of etcd")
@pytest.mark.parametrize("harm", ["killed", "stopped"])
async def test_the_leader_goes_while_a_lock_is_held_and_waited_for(
    nodes: EtcdBench, cluster_source: Source, lock: str, harm: str
) -> None:
    leader = await nodes.leader()
    grant = await granted(cluster_source, lock, ttl_ms=10_000, tokens=3)
    async with only(nodes, leader, *(n for n in range(3) if n != leader)) as waiting:
        # A waiter that hears nothing from the node that hangs looks again before its place's TTL ends.
        waiter = asyncio.create_task(granted(waiting, lock, ttl_ms=3000))
        await queued(nodes, lock)
        async with killed(nodes, leader) if harm == "killed" else stopped(nodes, leader):
            assert await cluster_source.renew(lock, grant.handle, 10_000) is True
            more = await cluster_source.mint(lock, grant.handle, 3)
            assert more is not None
            assert more[0] > grant.tokens[-1]
            held = await cluster_source.inspect(lock)
            assert isinstance(held, Holder)
            assert held.owner == "somebody"
            assert not waiter.done()
            await cluster_source.release(lock, grant.handle)
            assert (await waiter).tokens[0] > more[-1]


@pytest.mark.long("tests of etcd")
async def test_a_waiter_whose_watch_hangs_gets_the_lock_all_the_same(
    nodes: EtcdBench, cluster_source: Source, lock: str
) -> None:
    leader = await nodes.leader()
    follower, other = (n for n in range(3) if n != leader)
    grant = await granted(cluster_source, lock, ttl_ms=60_000)
    async with only(nodes, follower, other) as waiting, only(nodes, leader) as releasing:
        waiter = asyncio.create_task(granted(waiting, lock, ttl_ms=3000))
        await queued(nodes, lock)
        async with stopped(nodes, follower):
            await releasing.release(lock, grant.handle)
            assert (await waiter).tokens > grant.tokens


@pytest.mark.long("tests of etcd")
async def test_without_a_majority_nothing_is_answered_and_nothing_is_lost(
    nodes: EtcdBench, cluster_source: Source, lock: str
) -> None:
    grant = await granted(cluster_source, lock, ttl_ms=60_000)
    async with killed(nodes, 0, 2):
        asked = asyncio.gather(
            cluster_source.renew(lock, grant.handle, 60_000),
            cluster_source.mint(lock, grant.handle, 1),
            cluster_source.inspect(lock),
            granted(cluster_source, f"{lock}/other", wait_s=0),
            granted(cluster_source, f"{lock}/other"),
            cluster_source.issued(1),
            return_exceptions=True,
        )
        assert all(isinstance(each, SourceUnavailableError) for each in await asyncio.wait_for(asked, PATIENCE))
    assert await cluster_source.renew(lock, grant.handle, 60_000) is True
    more = await cluster_source.mint(lock, grant.handle, 1)
    assert more is not None
    assert more > grant.tokens
    await granted(cluster_source, f"{lock}/other", wait_s=PATIENCE)


@pytest.mark.long("tests of etcd")
async def test_a_sound_cluster_needs_no_advice(nodes: EtcdBench, cluster_source: Source) -> None:
    assert await cluster_source.advice() == []
    async with killed(nodes, 1):
        (advice,) = await cluster_source.advice()
        assert nodes.endpoints[1] in advice


@pytest.mark.long("tests of etcd")
async def test_endpoints_of_two_clusters_and_a_single_node_are_reported(
    nodes: EtcdBench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running_etcd(tmp_path_factory.mktemp("etcd1")) as single:
        source = make(f"etcd://{single.endpoints[0]},{nodes.endpoints[0]}", SourceContext("mixed", ""))
        await source.open()
        advice = " ".join(await source.advice())
        await source.close()
    assert "2 clusters" in advice
    assert "one node" in advice


@pytest.mark.long("tests of etcd")
async def test_an_alarm_is_reported(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running_etcd(tmp_path_factory.mktemp("full"), extra=("--quota-backend-bytes", str(64 * 1024))) as full:
        source = await opened(full)
        with suppress(AssertionError):  # of etcdctl, once no more is taken
            for n in range(10):
                await full.ctl("put", f"big{n}", "x" * 30_000)
        with pytest.raises(EtcdRefusedError, match="space exceeded"):
            await granted(source, "a", wait_s=0)
        advice = " ".join(await source.advice())
        await source.close()
    assert "NOSPACE" in advice
