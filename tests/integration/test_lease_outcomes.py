"""An answer of the database that gets lost: a secret finds its lease again, and what is not known is not answered
(R15).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from tests.support.interleave import Connect, Connection, blocked
from tests.support.lease_gateways import HOUR, Side, in_line, open_side
from tests.support.lease_racing import MINUTE

from fencepost.server.postgres import leases
from fencepost.server.postgres.errors import OutcomeUnknownError
from fencepost.server.postgres.leases import LockRequest, hash_secret
from fencepost.testing.servers.processes import PATIENCE, eventually

GATEWAYS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost' AND datname = current_database()"


@pytest.fixture
async def observer(connect: Connect) -> Connection:
    return await connect()


@pytest.fixture
async def side(database: str) -> AsyncIterator[Side]:
    async with open_side(database, pool_size=1) as side:
        yield side


def losing_answers(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[Any]:
    """Let the first answers of a statement get lost, after it was committed; returns them as they come."""
    real = getattr(leases, name)
    lost: list[Any] = []

    async def lose(*arguments: Any, **named: Any) -> Any:
        answer = await real(*arguments, **named)
        if len(lost) < times:
            lost.append(answer)
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return answer

    monkeypatch.setattr(leases, name, lose)
    return lost


async def test_a_grant_whose_answer_got_lost_is_found_again(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = losing_answers(monkeypatch, "try_locks", 2)
    got = await side.acquire("x", secret="mine", tokens=2)
    assert [answer.verdict for answer in lost] == ["granted", "repeated"]
    assert (got.verdict, got.lease_id, got.tokens) == ("repeated", lost[0].lease_id, lost[0].tokens)


async def test_an_acquire_with_an_unknown_outcome_is_answered_so_and_its_repeat_finds_out(
    side: Side, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = losing_answers(monkeypatch, "try_locks", 3)
    with pytest.raises(OutcomeUnknownError):
        await side.acquire("x", secret="mine")
    got = await side.acquire("x", secret="mine")
    assert (got.verdict, got.lease_id) == ("repeated", lost[0].lease_id)
    assert await observer.fetchval("SELECT count(*) FROM fencepost.leases") == 1


async def test_a_waiter_whose_backend_is_terminated_goes_on_waiting(
    side: Side, observer: Connection, connect: Connect
) -> None:
    foreign = await connect()
    await foreign.execute("BEGIN")
    await leases.try_locks(foreign, plainly("x", "holder"), None, None, 0)
    waiting = asyncio.create_task(side.acquire("x", secret="waiter", wait_ms=HOUR))
    pid = await eventually(lambda: observer.fetchval(f"{GATEWAYS} AND wait_event_type = 'Lock'"), what="a blocked try")
    assert await observer.fetchval("SELECT pg_terminate_backend($1, 5000)", pid)
    again = await eventually(
        lambda: observer.fetchval(f"{GATEWAYS} AND wait_event_type = 'Lock' AND pid <> $1", pid), what="another try"
    )
    await blocked(again, observer)
    await foreign.execute("ROLLBACK")
    assert (await asyncio.wait_for(waiting, PATIENCE)).verdict == "granted"
    assert await observer.fetchval("SELECT count(*) FROM fencepost.leases") == 1


def plainly(name: str, secret: str) -> LockRequest:
    return LockRequest((name,), secret, secret, MINUTE)


async def test_a_place_whose_answer_got_lost_is_one_place(
    side: Side, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = await side.acquire("x", secret="holder")
    lost = losing_answers(monkeypatch, "try_locks", 1)
    waiting = asyncio.create_task(side.acquire("x", secret="waiter", wait_ms=HOUR))
    await in_line(observer, "waiter")
    await side.locks.release(holder.lease_id or 0, hash_secret("holder"))
    assert (await asyncio.wait_for(waiting, PATIENCE)).verdict == "granted"
    assert [answer.verdict for answer in lost] == ["queued"]
    assert await observer.fetchval("SELECT last_value FROM fencepost.tickets") == 1
    await eventually(lambda: observer.fetchval("SELECT count(*) = 0 FROM fencepost.waiters"), what="an empty queue")


@pytest.mark.parametrize("verb", ["renew", "mint", "release"])
async def test_a_grant_whose_answer_the_holder_did_not_get_is_not_known(
    side: Side, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = await side.acquire("x", secret="mine")
    lease_id, secret = got.lease_id or 0, hash_secret("mine")
    verbs: dict[str, Callable[[], Awaitable[object]]] = {
        "renew": lambda: side.locks.renew(lease_id, secret, None),
        "mint": lambda: side.locks.mint(lease_id, secret, 1),
        "release": lambda: side.locks.release(lease_id, secret),
    }
    ask = verbs[verb]
    losing_answers(monkeypatch, "release" if verb == "release" else "extend", 1)
    with pytest.raises(OutcomeUnknownError):
        await ask()
    assert await ask(), "asked again, it is as if the first answer had come"


async def test_a_leaving_that_could_not_be_sent_is_sent_by_a_heartbeat(
    side: Side, observer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await side.acquire("x", secret="holder")
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = await side.wait(observer, "x", secret="waiter", gone=gone)

    async def fail(*_arguments: Any) -> None:
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(leases, "leave", fail)
    gone.set_result(None)
    assert (await waiting).verdict == "queued"
    assert any("could not leave" in failure for failure in side.failures)
    await eventually(lambda: observer.fetchval("SELECT count(*) = 0 FROM fencepost.waiters"), what="an empty queue")
