"""What only etcd has: leases and keys that others touch, answers that got lost, `etcdctl lock` beside us, passwords."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conformance.bench import opened
from tests.conformance.etcd_bench import EtcdBench, running
from tests.support.interleave import eventually

from fencepost.locks.etcd.api import EtcdApi
from fencepost.locks.etcd.source import EtcdSource
from fencepost.locks.etcd.url import parse
from fencepost.locks.source import Grant, Holder, Source, SourceError

pytestmark = pytest.mark.long("tests of etcd")

LONG = 20.0
TTL = 1000


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdBench]:
    with running(tmp_path_factory.mktemp("etcd")) as bench:
        yield bench


@pytest.fixture
async def source(node: EtcdBench) -> AsyncIterator[Source]:
    found = await opened(node)
    yield found
    await found.close()


@pytest.fixture
def lock(request: pytest.FixtureRequest) -> str:
    return f"etcd/{request.node.name}"


async def granted(source: Source, lock: str, *, wait_s: float = LONG, ttl_ms: int = TTL, tokens: int = 1) -> Grant:
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


class Spied(EtcdApi):
    """Calls `told` between each answer and who asked for it. `leases`: those that it granted, in hex."""

    def __init__(self, url: str, told: Callable[[str, dict[str, Any]], Any]) -> None:
        super().__init__(parse(url, "spied"))
        self.told = told
        self.leases: set[str] = set()

    async def _exchange(self, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await super()._exchange(at, path, body)
        if path == "lease/grant":
            self.leases.add(f"{int(body['ID']):x}")
        await self.told(path, body)
        return answer


# Leases


async def test_a_mint_leaves_the_key_attached_to_its_lease(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock, tokens=3)
    assert await source.mint(lock, grant.handle, 2) is not None
    (key,) = await node.keys(lock)
    assert f"{key['lease']:x}" == grant.handle.partition(":")[0]
    assert (await granted(source, lock)).tokens[0] > grant.tokens[-1], "it has expired"


async def test_somebodys_put_onto_the_owners_key_is_mended_by_the_next_renewal(
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
    assert (await granted(source, lock)).tokens > grant.tokens, "it has expired"


async def test_a_lease_that_an_operator_revokes_is_lost(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    await node.ctl("lease", "revoke", grant.handle.partition(":")[0])
    assert await source.mint(lock, grant.handle, 1) is None
    assert await source.renew(lock, grant.handle, TTL) is False
    await granted(source, lock, wait_s=0)


async def test_a_key_that_an_operator_deletes_is_lost_though_its_lease_lives(
    node: EtcdBench, source: Source, lock: str
) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    await node.ctl("del", f"{node.lock_name(lock)}/{grant.handle.partition(':')[0]}")
    assert await source.mint(lock, grant.handle, 1) is None
    assert await source.renew(lock, grant.handle, TTL) is False
    await granted(source, lock, wait_s=0)


async def test_a_key_put_again_under_the_same_name_is_not_the_hold(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    lease = grant.handle.partition(":")[0]
    await node.ctl("del", f"{node.lock_name(lock)}/{lease}")
    await node.ctl("put", f"--lease={lease}", f"{node.lock_name(lock)}/{lease}", "again")
    assert await source.mint(lock, grant.handle, 1) is None
    assert await source.renew(lock, grant.handle, TTL) is False
    await node.ctl("lease", "revoke", lease)


async def test_a_renewal_for_longer_than_granted_gets_it(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    assert await source.renew(lock, grant.handle, 60_000) is True
    held = await source.inspect(lock)
    assert held is not None
    assert held.expires_ms is not None
    assert held.expires_ms > 50_000
    assert held.owner == "somebody"
    more = await source.mint(lock, grant.handle, 1)
    assert more is not None
    assert more[0] > grant.tokens[0]
    assert await source.renew(lock, grant.handle, TTL) is True
    assert grant.handle.partition(":")[0] not in await leases(node), "it is not needed any more"
    await source.release(lock, grant.handle)
    assert await source.inspect(lock) is None


async def test_a_handle_of_another_source_is_refused(source: Source, lock: str) -> None:
    with pytest.raises(SourceError, match=lock):
        await source.mint(lock, '{"of": "redis"}', 1)


# Waiting


async def test_a_waiter_goes_on_when_the_revision_that_it_watches_from_is_compacted(
    node: EtcdBench, source: Source, lock: str
) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    waiter = asyncio.create_task(granted(source, lock, ttl_ms=60_000))
    await queued(node, lock)
    more = await source.mint(lock, grant.handle, 5)
    assert more is not None
    await node.ctl("compact", str(more[-1]))
    await source.release(lock, grant.handle)
    assert (await asyncio.wait_for(waiter, 5)).tokens[0] > more[-1]


async def test_a_watch_from_before_a_compaction_is_no_error(node: EtcdBench) -> None:
    """The deletion fell between the look and the watch, and was compacted."""
    api = EtcdApi(parse(node.url, "compacted"))
    await api.open()
    old = (await node.ctl("put", "compacted", "1"))["header"]["revision"]
    now = (await node.ctl("put", "compacted", "2"))["header"]["revision"]
    await node.ctl("compact", str(now))
    started = asyncio.get_running_loop().time()
    await api.deleted("Y29tcGFjdGVk", old, LONG)
    assert asyncio.get_running_loop().time() - started < LONG / 2, "the watch has ended, and the caller looks"
    await api.close()


async def test_a_waiter_that_lost_its_place_queues_anew(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    waiter = asyncio.create_task(granted(source, lock))
    await queued(node, lock)
    place = (await node.keys(lock))[1]
    await node.ctl("lease", "revoke", f"{place['lease']:x}")

    async def another_place() -> bool:
        return any(key["create_revision"] > place["create_revision"] for key in await node.keys(lock))

    await eventually(another_place, what="another place")
    await source.release(lock, grant.handle)
    assert (await waiter).tokens > grant.tokens


async def test_a_waiter_outlives_its_ttl(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    waiter = asyncio.create_task(granted(source, lock))
    await queued(node, lock)
    place = (await node.keys(lock))[1]
    await asyncio.wait([waiter], timeout=2.5 * TTL / 1000)
    assert (await node.keys(lock))[1] == place
    await source.release(lock, grant.handle)
    mine = await waiter
    assert mine.handle == f"{place['lease']:x}:{place['create_revision']}"
    assert mine.tokens[0] > place["create_revision"]


async def test_a_look_at_a_held_lock_writes_nothing(node: EtcdBench, source: Source, lock: str) -> None:
    grant = await granted(source, lock)
    before = (await node.keys(lock)), await leases(node)
    held = await source.acquire(lock, owner="other", ttl_ms=TTL, tokens=1, wait_s=0)
    assert isinstance(held, Holder)
    assert held.expires_ms == TTL
    assert await node.keys(lock) == before[0]
    assert await leases(node) <= before[1]
    await source.release(lock, grant.handle)


# Lost answers, and callers who go away


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
    assert await spied.renew(lock, grant.handle, 30_000) is True
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


@pytest.mark.parametrize("held", [False, True])
async def test_a_cancelled_acquire_leaves_no_key_and_no_lease_wherever_it_was(
    node: EtcdBench, source: Source, lock: str, held: bool
) -> None:
    grant = await granted(source, lock, ttl_ms=60_000) if held else None
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


# etcdctl lock


async def test_etcdctl_lock_waits_for_us_and_its_revision_is_a_token(
    node: EtcdBench, source: Source, lock: str, tmp_path: Path
) -> None:
    grant = await granted(source, lock, ttl_ms=60_000)
    say = tmp_path / "say"
    say.write_text("echo $ETCD_LOCK_REV\n")
    other = await asyncio.create_subprocess_exec(
        *("etcdctl", f"--endpoints={node.endpoints[0]}", "lock", node.lock_name(lock), "sh", str(say)),
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
    )
    await queued(node, lock)
    more = await source.mint(lock, grant.handle, 3)
    assert more is not None
    await source.release(lock, grant.handle)
    told, _ = await other.communicate()
    revision = int(told)
    assert revision > more[-1]
    assert await source.issued(revision)
    assert (await granted(source, lock)).tokens[0] > revision


async def test_we_wait_for_etcdctl_lock(node: EtcdBench, source: Source, lock: str) -> None:
    other = await asyncio.create_subprocess_exec(
        *("etcdctl", f"--endpoints={node.endpoints[0]}", "lock", "--ttl=60", node.lock_name(lock)),
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
    )
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


async def test_a_program_mints_under_etcdctl_lock_as_the_documentation_says(
    node: EtcdBench, source: Source, lock: str, tmp_path: Path
) -> None:
    """docs/sources/etcd.md: the command that draws a token."""
    before = await granted(source, lock)
    await source.release(lock, before.handle)
    mint = tmp_path / "mint"
    mint.write_text(
        f"etcdctl --endpoints={node.endpoints[0]} put --ignore-value --ignore-lease $ETCD_LOCK_KEY -w json\n"
    )
    other = await asyncio.create_subprocess_exec(
        *("etcdctl", f"--endpoints={node.endpoints[0]}", "lock", node.lock_name(lock), "sh", str(mint)),
        env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
    )
    told, _ = await other.communicate()
    drawn = json.loads(told)["header"]["revision"]
    assert drawn > before.tokens[0]
    assert (await granted(source, lock)).tokens[0] > drawn
