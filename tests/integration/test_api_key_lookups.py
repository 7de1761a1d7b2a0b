"""How the gateway looks API keys up: together, with one connection, by an announcement or without."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.gateways import FOR_ALL
from tests.support.interleave import Connect, Connection
from tests.support.manual_clock import ManualClock
from tests.support.postgres import cutting_proxy

from fencepost.server.fence.caller import EVERY_ACCESS, Caller
from fencepost.server.fence.problems import Problem
from fencepost.server.identity import api_keys as verifying
from fencepost.server.identity.api_keys import Announcements, ApiKeys
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.postgres import api_keys
from fencepost.server.postgres.api_keys import NewKey
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.listen import Listener
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE


class Counting(ApiKeys):
    """Counts the connections that it is lent."""

    def __init__(self, database: Database) -> None:
        self.lent = 0

        def lend() -> Database:
            self.lent += 1
            return database

        super().__init__(lend)


@pytest.fixture
async def opened(database: str) -> AsyncIterator[Database]:
    opened = await Database.open(database, Limits(pool_size=2))
    yield opened
    await opened.close()


@pytest.fixture
async def owner(connect: Connect) -> Connection:
    return await connect()


async def test_a_caller_is_as_the_key_says(opened: Database, owner: Connection) -> None:
    keys = ApiKeys(lambda: opened)
    key_id, key = await api_keys.create(owner, NewKey("postgres", ("read", "lock"), ("orders/*",), 3600, ""))
    now = asyncio.get_running_loop().time()
    caller = await keys.verify(key)
    assert isinstance(caller, Caller)
    assert (caller.name, caller.role, caller.access, caller.locks) == (
        f"key:{key_id}",
        "postgres",
        frozenset({"read", "lock"}),
        ("orders/*",),
    )
    assert caller.ends is not None
    assert now + 290 < caller.ends < now + 310, "a stream of an hour's key ends in five minutes, and is opened anew"
    rotated = await api_keys.rotate(owner, key_id, overlap=60, expires_in=None)
    old, new = await keys.verify(key), await keys.verify(rotated)
    assert isinstance(old, Caller)
    assert isinstance(new, Caller)
    assert old.name == new.name == caller.name, "leases stay its own"
    assert old.ends is not None
    assert old.ends < now + 120, "the old secret ends before the key does"
    _, unbounded = await api_keys.create(owner, FOR_ALL)
    found = await keys.verify(unbounded)
    assert isinstance(found, Caller)
    assert (found.access is EVERY_ACCESS, found.locks, found.role) == (True, None, None)
    assert found.ends is not None
    assert now + 290 < found.ends < now + 310, "and of a key without an end as well"


async def test_many_lookups_are_a_few_questions(opened: Database, owner: Connection) -> None:
    keys = Counting(opened)
    _, key = await api_keys.create(owner, FOR_ALL)
    wanted = [key, *(f"fp_{n}_{'0' * 48}" for n in range(200))] * 2
    found = await asyncio.gather(*(keys.verify(each) for each in wanted))
    assert keys.lent == 1, "all were wanted before the first question"
    assert [isinstance(each, Caller) for each in found] == ([True] + [False] * 200) * 2


async def test_a_lookup_that_is_given_up_is_there_for_others(opened: Database, owner: Connection) -> None:
    keys = Counting(opened)
    _, key = await api_keys.create(owner, FOR_ALL)
    first, second = (asyncio.create_task(keys.verify(key)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert isinstance(await second, Caller)
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_requests_that_have_all_connections_keep_no_key_out(opened: Database, owner: Connection) -> None:
    keys = ApiKeys(lambda: opened)
    _, key = await api_keys.create(owner, FOR_ALL)
    async with opened.connection(), opened.connection():
        assert opened.all_lent
        assert isinstance(await keys.verify(key), Caller)


async def test_a_database_that_cannot_be_asked_is_no_refusal(database: str, owner: Connection) -> None:
    opened = await Database.open(database, Limits(pool_size=1))
    _, key = await api_keys.create(owner, FOR_ALL)
    await opened.close()
    found = await ApiKeys(lambda: opened).verify(key)
    assert isinstance(found, Problem)
    assert (found.name, found.http_status, found.retry_after) == ("FP039", 503, 1)


async def test_a_fault_of_ours_is_raised_by_all_who_asked(
    opened: Database, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_asked: object) -> None:
        raise ValueError("a fault")

    keys = ApiKeys(lambda: opened)
    _, key = await api_keys.create(owner, FOR_ALL)
    monkeypatch.setattr(api_keys, "look_up", broken)
    found = await asyncio.gather(keys.verify(key), keys.verify(key), return_exceptions=True)
    assert [type(each) for each in found] == [ValueError, ValueError]


async def test_the_work_of_comparing_shows_nothing(
    opened: Database, owner: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ApiKeys(lambda: opened)
    key_id, key = await api_keys.create(owner, FOR_ALL)
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(verifying, "compare_digest", compare)
    counts = []
    for presented in (key, f"fp_{key_id}_0", "fp_unknown_0"):
        compared.clear()
        await keys.verify(presented)
        assert all(len(one) == len(other) == 32 for one, other in compared), "hashes are compared, never secrets"
        counts.append(len(compared))
    assert counts == [2, 2, 2]


async def test_uses_are_noted_now_and_then(opened: Database, owner: Connection) -> None:
    keys = ApiKeys(lambda: opened)
    key_id, key = await api_keys.create(owner, FOR_ALL)
    other_id, _ = await api_keys.create(owner, FOR_ALL)
    await keys.verify(key)
    await keys.verify(f"fp_{other_id}_0")

    async def used() -> set[str]:
        return {each.id for each in await api_keys.list_keys(owner) if each.used_at}

    assert await used() == set()
    await keys.note_uses()
    assert await used() == {key_id}
    transaction = owner.transaction()
    await transaction.start()
    await owner.execute("SELECT FROM fencepost.api_keys FOR UPDATE")
    await keys.verify(key)
    await keys.note_uses()  # waits for no lock
    await transaction.rollback()


@asynccontextmanager
async def listening(listener: Listener) -> AsyncIterator[None]:
    task = asyncio.create_task(listener.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_change_of_keys_loads_no_tables(owner: Connection, database: str) -> None:
    """It is heard while tables are loaded, and they are not loaded once more because of it."""
    forgotten, loaded, woken, loading = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Queue[None]()

    async def reload() -> None:
        loading.put_nowait(None)
        await loaded.wait()

    listener = Listener(
        dsn=database,
        reload=reload,
        lost=pytest.fail,
        channel="x",
        woken=lambda _payload: woken.set(),
        connected=lambda: None,
        keys=Announcements(forgotten.set),
    )
    async with listening(listener):
        await asyncio.wait_for(loading.get(), PATIENCE)
        forgotten.clear()
        key_id, _ = await api_keys.create(owner, FOR_ALL)
        await api_keys.revoke(owner, key_id)
        await asyncio.wait_for(forgotten.wait(), PATIENCE)
        loaded.set()
        await owner.execute("NOTIFY x")
        await asyncio.wait_for(woken.wait(), PATIENCE)
        assert loading.empty()
        await owner.execute("NOTIFY fencepost, 'reload'")
        await asyncio.wait_for(loading.get(), PATIENCE)


async def test_a_key_is_not_kept_for_long_while_announcements_are_not_heard(
    opened: Database, owner: Connection, database: str
) -> None:
    """The connection that listens cannot be made again; the one that looks keys up can."""
    clock = ManualClock()
    keys = Counting(opened)
    authenticator = Authenticator([keys])
    announcements = Announcements(authenticator.forget, Times(clock=clock))
    heard, lost = asyncio.Event(), asyncio.Event()

    async def reload() -> None: ...

    async with cutting_proxy(database, lambda: None, 1) as (proxy, through):
        listener = Listener(
            dsn=through,
            reload=reload,
            lost=lambda _reason: lost.set(),
            channel="x",
            woken=lambda _payload: None,
            connected=heard.set,
            keys=announcements,
        )
        async with listening(listener):
            await asyncio.wait_for(heard.wait(), PATIENCE)
            key_id, key = await api_keys.create(owner, FOR_ALL)
            header = f"Bearer {key}".encode()
            assert isinstance(await authenticator.identify(header), Caller)
            assert authenticator.known(header) is not None
            proxy.refusing = True
            proxy.cut_all()
            await asyncio.wait_for(lost.wait(), PATIENCE)
            assert authenticator.known(header) is None, "the loss itself has it forgotten"
            assert isinstance(await authenticator.identify(header), Caller)
            assert authenticator.known(header) is not None
            forgetting = asyncio.create_task(announcements.forget_while_unheard())
            await api_keys.revoke(owner, key_id)  # announced to nobody
            await clock.advance(TIMES.identity.unheard_for)
            assert authenticator.known(header) is None
            assert isinstance(await authenticator.identify(header), Problem)
            forgetting.cancel()
