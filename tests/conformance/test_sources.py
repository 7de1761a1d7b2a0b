"""How every token source behaves (app/fencepost/server/locks/source.py), each on its real server.

Skipped is only what a source's Capabilities do not promise.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.conformance.conftest import ROOT, Asking
from tests.sources.conftest import Api, api

from fencepost.server.locks.source import MOST_NATIVE, Grant, Holder, Source, SourceError, SourceUnavailableError
from fencepost.testing.servers.processes import PATIENCE, eventually

Another = Callable[[], Awaitable[Source]]
Hold = Callable[[str], Awaitable["HolderProcess"]]


class HolderProcess:
    """A process that holds a lock (holder.py)."""

    def __init__(self, process: asyncio.subprocess.Process, tokens: tuple[int, ...]) -> None:
        self.process, self.tokens = process, tokens

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ask(self, what: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n".encode())
        return await self.read()

    async def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(await asyncio.wait_for(self.process.stdout.readline(), PATIENCE))


@pytest.fixture
async def holder(ask: Asking) -> AsyncIterator[Callable[[str], Awaitable["HolderProcess"]]]:
    """Give a function that starts a process which holds a lock."""
    started: list[asyncio.subprocess.Process] = []

    async def hold(lock: str) -> HolderProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.conformance.holder"),
            *(ask.bench.url, ask.bench.dsn, lock, str(ask.ttl_ms)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        started.append(process)
        found = HolderProcess(process, ())
        found.tokens = tuple((await found.read())["tokens"])
        return found

    yield hold
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


def numbered(ask: Asking) -> None:
    """Skip where tokens are drawn in PostgreSQL."""
    if ask.source.capabilities.order == "database":
        pytest.skip("capability: order=database, the service has no number of its own")


async def test_one_at_a_time_and_who_has_it_is_known(ask: Asking, another: Another, lock: str) -> None:
    assert await ask.source.inspect(lock) is None
    grant = await ask.granted(lock, owner="wörker a")
    other = await another()
    for held in (await ask.acquire(lock, by=other), await other.inspect(lock)):
        assert isinstance(held, Holder)
        assert held.owner == "wörker a"
        assert held.expires_ms is None or 0 < held.expires_ms <= ask.ttl_ms
    await ask.source.release(lock, grant.handle)
    assert await ask.source.inspect(lock) is None
    assert isinstance(await ask.acquire(lock, by=other), Grant)


async def test_locks_of_other_names_are_other_locks(ask: Asking) -> None:
    names = (
        *("orders/order-123", "orders//order-123", "orders%2Forder-123", "/orders", "orders/", ".", ".."),
        *("a/../b", "a b", "*", "{a}", "ünï", "x" * 512, "A", "a"),
    )
    grants = {name: await ask.granted(name) for name in names}
    for name in names:
        assert isinstance(await ask.acquire(name), Holder), name
    for name, grant in grants.items():
        await ask.source.release(name, grant.handle)
        assert await ask.source.inspect(name) is None, name


async def test_tokens_rise_over_grants_and_mints(ask: Asking, another: Another, lock: str) -> None:
    numbered(ask)
    drawn: list[int] = []
    for source in (ask.source, await another(), ask.source):
        grant = await ask.granted(lock, by=source, tokens=3)
        assert len(grant.tokens) == 3
        minted = await source.mint(lock, grant.handle, 2)
        assert minted is not None
        assert len(minted) == 2
        drawn += [*grant.tokens, *minted]
        await source.release(lock, grant.handle)
    assert drawn == sorted(set(drawn))
    assert 0 < drawn[0] <= drawn[-1] <= MOST_NATIVE


async def test_tokens_of_different_locks_rise_together(ask: Asking, lock: str) -> None:
    if ask.source.capabilities.order != "source":
        pytest.skip(f"capability: order={ask.source.capabilities.order}")
    one, two = f"{lock}/one", f"{lock}/two"
    a, b = await ask.granted(one), await ask.granted(two)
    more = await ask.source.mint(one, a.handle, 1)
    again = await ask.source.mint(two, b.handle, 1)
    assert more is not None
    assert again is not None
    assert a.tokens[0] < b.tokens[0] < more[0] < again[0]


async def test_who_queued_before_the_owners_mints_gets_a_newer_token(ask: Asking, another: Another, lock: str) -> None:
    """The first act of an owner is a mint. Where tokens are drawn in PostgreSQL, the waiter gets the lock."""
    grant = await ask.granted(lock)
    waiter = asyncio.create_task(ask.granted(lock, wait_s=PATIENCE, by=await another()))
    if ask.source.capabilities.fair:
        await eventually(lambda: ask.bench.waiting(lock), what="the waiter in its queue")
    else:
        await asyncio.wait([waiter], timeout=0.2)
    numbers = ask.source.capabilities.order != "database"
    minted = await ask.source.mint(lock, grant.handle, 5) if numbers else ()
    assert minted is not None
    assert not waiter.done()
    await ask.source.release(lock, grant.handle)
    tokens = (await waiter).tokens
    assert not numbers or tokens[0] > minted[-1]


async def test_tokens_rise_over_a_restart_of_the_service(ask: Asking, lock: str) -> None:
    numbered(ask)
    before = await ask.granted(f"{lock}/before", tokens=5)
    await ask.bench.crash()
    await ask.bench.restart()
    after = await ask.granted(f"{lock}/after", wait_s=PATIENCE)
    if ask.source.capabilities.order == "source":
        assert after.tokens[0] > before.tokens[-1]
    await ask.source.release(f"{lock}/before", before.handle)  # the hold may have lived through it
    again = await ask.granted(f"{lock}/before", wait_s=PATIENCE)
    assert again.tokens[0] > before.tokens[-1]


@pytest.mark.realtime
async def test_a_hold_that_is_renewed_stays(ask: Asking, another: Another, lock: str) -> None:
    ask.ttl_ms = max(ask.source.capabilities.least_ttl_ms, 1000)
    grant = await ask.granted(lock)
    waiter = asyncio.create_task(ask.acquire(lock, wait_s=2.5 * ask.ttl_ms / 1000, by=await another()))
    while not waiter.done():
        assert await ask.source.renew(lock, grant.handle, ask.ttl_ms) is True
        await asyncio.wait([waiter], timeout=ask.ttl_ms / 4000)
    assert isinstance(await waiter, Holder)


async def test_a_released_hold_is_lost_and_does_nothing_to_a_later_one(ask: Asking, lock: str) -> None:
    earlier = await ask.granted(lock)

    async def is_lost() -> None:
        await ask.source.release(lock, earlier.handle)
        assert await ask.source.renew(lock, earlier.handle, ask.ttl_ms) is False
        if ask.source.capabilities.order != "database":
            assert await ask.source.mint(lock, earlier.handle, 1) is None

    await ask.source.release(lock, earlier.handle)
    await is_lost()
    later = await ask.granted(lock)
    await is_lost()
    assert isinstance(await ask.acquire(lock), Holder)
    assert await ask.source.renew(lock, later.handle, ask.ttl_ms) is True


async def test_any_process_can_renew_mint_and_release_by_the_handle(ask: Asking, another: Another, lock: str) -> None:
    other = await another()
    grant = await ask.granted(lock)
    assert await other.renew(lock, grant.handle, ask.ttl_ms) is True
    if ask.source.capabilities.order != "database":
        minted = await other.mint(lock, grant.handle, 1)
        assert minted is not None
        assert minted[0] > grant.tokens[0]
    await other.release(lock, grant.handle)
    assert isinstance(await ask.acquire(lock, wait_s=PATIENCE), Grant)


async def test_who_waits_in_vain_or_is_cancelled_learns_who_has_it_and_leaves_nothing(
    ask: Asking, another: Another, lock: str
) -> None:
    grant = await ask.granted(lock, owner="the holder")
    other = await another()
    waiter = asyncio.create_task(ask.acquire(lock, wait_s=PATIENCE, by=other))
    held = await ask.acquire(lock, wait_s=0.3, by=other)
    assert isinstance(held, Holder)
    assert held.owner == "the holder"
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await ask.source.release(lock, grant.handle)
    assert isinstance(await ask.acquire(lock), Grant), "no earlier place in the queue is in the way"


async def test_waiters_are_served_in_the_order_of_their_arrival(ask: Asking, another: Another, lock: str) -> None:
    if not ask.source.capabilities.fair:
        pytest.skip("capability: fair=False")
    grant = await ask.granted(lock)
    served: list[int] = []

    async def wait(number: int, source: Source) -> None:
        mine = await ask.granted(lock, wait_s=PATIENCE, by=source)
        served.append(number)
        await source.release(lock, mine.handle)

    waiters = []
    for number in range(5):
        waiters.append(asyncio.create_task(wait(number, await another())))

        async def queued(count: int = number + 1) -> bool:
            assert await ask.source.renew(lock, grant.handle, ask.ttl_ms) is True
            return await ask.bench.waiting(lock) == count

        await eventually(queued, what=f"{number + 1} waiters")
    await ask.source.release(lock, grant.handle)
    await asyncio.gather(*waiters)
    assert served == [0, 1, 2, 3, 4]


async def test_many_at_once_never_two(ask: Asking, another: Another, lock: str) -> None:
    inside = 0
    drawn: list[int] = []

    async def work(source: Source) -> None:
        nonlocal inside
        for _ in range(4):
            grant = await ask.granted(lock, wait_s=2 * PATIENCE, by=source)
            inside += 1
            assert inside == 1
            drawn.extend(grant.tokens)
            if ask.source.capabilities.order != "database":
                minted = await source.mint(lock, grant.handle, 1)
                assert minted is not None
                drawn.extend(minted)
            await asyncio.sleep(0)
            assert inside == 1
            inside -= 1
            await source.release(lock, grant.handle)

    await asyncio.gather(*(work(source) for source in [ask.source, await another(), await another()] * 2))
    assert drawn == sorted(set(drawn))


async def test_the_lock_of_a_holder_that_crashed_becomes_free(ask: Asking, holder: Hold, lock: str) -> None:
    ask.ttl_ms = 3000  # for one look who has it
    dead = await holder(lock)
    assert isinstance(await ask.acquire(lock), Holder)
    os.kill(dead.pid, signal.SIGKILL)
    grant = await ask.granted(lock, wait_s=PATIENCE)
    assert list(dead.tokens) < list(grant.tokens) or ask.source.capabilities.order == "database"


async def test_a_paused_holder_that_wakes_up_has_lost_everything(ask: Asking, holder: Hold, lock: str) -> None:
    ask.ttl_ms, long_ms = 2000, ask.ttl_ms
    paused = await holder(lock)
    os.kill(paused.pid, signal.SIGSTOP)
    ask.ttl_ms = long_ms
    try:
        successor = await ask.granted(lock, wait_s=PATIENCE, owner="successor")
    finally:
        os.kill(paused.pid, signal.SIGCONT)
    assert await paused.ask("renew") is False
    if ask.source.capabilities.order != "database":
        assert await paused.ask("mint") is None
        assert successor.tokens[0] > paused.tokens[0]
    assert await paused.ask("release") == "released"
    held = await ask.source.inspect(lock)
    assert held is not None
    assert held.owner == "successor"


@pytest.mark.parametrize(
    "harm", ["crash", pytest.param("pause", marks=pytest.mark.long("lock services that are paused"))]
)
async def test_a_service_that_cannot_be_asked(ask: Asking, lock: str, harm: str) -> None:
    grant = await ask.granted(f"{lock}/held")
    await (ask.bench.crash() if harm == "crash" else ask.bench.pause())
    try:
        asked = asyncio.gather(
            ask.acquire(lock),
            ask.acquire(lock, wait_s=1),
            ask.source.renew(f"{lock}/held", grant.handle, ask.ttl_ms),
            ask.source.release(f"{lock}/held", grant.handle),
            ask.source.inspect(lock),
            return_exceptions=True,
        )
        for error in await asyncio.wait_for(asked, PATIENCE):
            assert isinstance(error, SourceUnavailableError)
            assert str(error), "it says why"
    finally:
        await (ask.bench.restart() if harm == "crash" else ask.bench.resume())
    assert isinstance(await ask.acquire(f"{lock}/after", wait_s=PATIENCE), Grant), "it connects again by itself"


async def test_what_another_program_has_put_there_is_named(ask: Asking, lock: str) -> None:
    await ask.bench.spoil(lock)
    with pytest.raises(SourceError) as error:
        await ask.acquire(lock)
    assert not isinstance(error.value, SourceUnavailableError), "trying again would not help"
    assert lock in str(error.value)


async def test_issued_numbers_are_known(ask: Asking, lock: str) -> None:
    if not ask.source.capabilities.verifies:
        pytest.skip("capability: verifies=False")
    grant = await ask.granted(lock)
    assert await ask.source.issued(grant.tokens[-1])
    assert not await ask.source.issued(grant.tokens[-1] + 10**6)


# A lease of each source over HTTP: the same answers as over the built-in one. What else there is: tests/sources.

__all__ = ["api"]

LOCK = "orders/over-http"


async def test_a_lease_lives_from_its_grant_to_its_release(api: Api) -> None:
    granted = await api.grant(LOCK, owner="worker-a", tokens=3)
    assert granted["source"] == api.source
    assert granted["lease_id"].startswith(f"{api.source}-")
    tokens = [int(token) for token in granted["tokens"]]
    assert len(tokens) == 3
    held = await api.post(LOCK, owner="worker-b")
    assert (held.status_code, held.json()["code"]) == (423, "FP011")
    assert held.json()["holder"] == "worker-a"
    renewed = await api.on(granted, "renew", ttl_ms=25_000)
    assert renewed.status_code == 200
    assert 20_000 < renewed.json()["remaining_ms"] <= 25_000
    minted = await api.on(granted, "tokens", count=2)
    tokens += [int(token) for token in minted.json()["tokens"]]
    assert tokens == sorted(set(tokens))
    listed = (await api.client.get("/v1/locks", params={"source": api.source})).json()
    assert [(each["name"], each["owner"], "token" in each) for each in listed] == [(LOCK, "worker-a", False)]
    state = (await api.client.get(f"/v1/leases/{granted['lease_id']}")).json()
    assert (state["source"], "token" in state) == (api.source, False)
    assert (await api.on(granted, "delete")).status_code == 204
    assert (await api.on(granted, "delete")).status_code == 204
    for gone in (await api.on(granted, "renew"), await api.on(granted, "tokens")):
        assert (gone.status_code, gone.json()["code"]) == (410, "FP012")
    successor = await api.grant(LOCK, owner="worker-b")
    assert int(successor["token"]) > tokens[-1]
