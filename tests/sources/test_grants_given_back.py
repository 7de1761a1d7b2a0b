"""Holds of a lock service that became no lease, or whose lease is over: they are given back."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.manual_clock import settled

from fencepost.server.locks.source import Capabilities
from fencepost.server.postgres import sources
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.leases import LockRequest
from fencepost.testing.servers.processes import eventually


async def test_a_hold_that_is_lost_while_its_tokens_are_drawn_is_no_grant(make: Callable[..., Any]) -> None:
    """Drawn in PostgreSQL: only if the service confirms afterwards that the lock is still held, it was held then."""
    async with make(capabilities=Capabilities("database", fair=False, verifies=False), lost=True) as stage:
        assert (await stage.acquire("a")).acquired.verdict == "held"
        assert await stage.live() == 0
        stage.service.lost = False
        granted = (await stage.acquire("b")).acquired
        assert granted.verdict == "granted"
        secret = stage.secret_hash
        stage.service.lost = True
        assert await stage.locks.mint(granted.lease_id, secret, 1) is None
        stage.service.lost = False
        assert await stage.locks.renew(granted.lease_id, secret, None) is None, "over is over"


@pytest.mark.parametrize("verb", ["grant", "mint", "repeat"])
async def test_a_hold_whose_lease_ends_under_way_is_given_back(make: Callable[..., Any], verb: str) -> None:
    """The generation is raised between two steps. The service knows nothing of that, and holds on."""
    async with make(capabilities=Capabilities("database", fair=False, verifies=False)) as stage:
        service, renew, draw = stage.service, stage.service.renew, sources.draw
        granted = None if verb == "grant" else (await stage.acquire("a")).acquired
        released = len(service.released)

        async def raised_before_the_draw(*asked: Any) -> Any:
            monkeypatch.undo()
            await stage.raised()
            return await draw(*asked)

        async def raised_after_the_renewal(*asked: Any) -> bool:
            held: bool = await renew(*asked)
            service.renew = renew
            await stage.raised()
            return held

        with pytest.MonkeyPatch.context() as monkeypatch:
            if verb == "repeat":
                service.renew = raised_after_the_renewal
                again = await stage.acquire("a", secret=stage.secret)
                assert again.acquired.verdict == "granted", "anew"
            else:
                monkeypatch.setattr(sources, "draw", raised_before_the_draw)
                if granted is None:
                    assert (await stage.acquire("a")).acquired.verdict == "granted", "at the second try"
                else:
                    assert await stage.locks.mint(granted.lease_id, stage.secret_hash, 1) is None
        assert len(service.released) == released + 1


async def test_a_client_that_goes_leaves_no_hold(make: Callable[..., Any]) -> None:
    async with make(waits={"a"}) as stage:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asking = asyncio.create_task(stage.acquire("a", gone=gone))
        await stage.service.asked.wait()
        gone.set_result(None)
        assert (await asking).acquired.verdict == "held"
        assert not stage.service.held


async def test_a_hold_that_cannot_be_given_back_is_reported(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}, release_fails=True) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        await stage.database.close()
        stage.service.gate.set()
        with pytest.raises(UnavailableError):
            await asking
        assert len(stage.troubles) == 1
        assert "could not be given back" in stage.troubles[0]


async def test_a_holder_may_release_what_is_over_by_our_record(make: Callable[..., Any]) -> None:
    async with make() as stage:
        granted = (await stage.acquire("a")).acquired
        await stage.raised()
        assert stage.service.held == {"a": "a#1"}, "the service knows nothing of generations"
        assert await stage.locks.release(granted.lease_id, b"not mine")
        assert stage.service.held
        assert await stage.locks.release(granted.lease_id, stage.secret_hash)
        assert not stage.service.held


async def test_a_request_that_is_cancelled_with_its_grant_leaves_no_hold(make: Callable[..., Any]) -> None:
    async with make(slow={"a"}) as stage:
        asking = asyncio.create_task(stage.acquire("a"))
        await stage.service.asked.wait()
        stage.service.gate.set()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        async def free() -> bool:
            return not stage.service.held

        await eventually(free, what="the hold given back")


async def test_a_gateway_that_stops_lets_a_hold_be_given_back_before_it_leaves_the_service(
    make: Callable[..., Any],
) -> None:
    done: list[str] = []
    async with make(slow={"a"}) as stage:
        service, release = stage.service, stage.service.release
        begun, may_end = asyncio.Event(), asyncio.Event()

        async def release_later(*asked: Any) -> None:
            begun.set()
            await may_end.wait()
            await release(*asked)
            done.append("released")

        async def close() -> None:
            done.append("closed")

        service.release, service.close = release_later, close
        asking = asyncio.create_task(stage.acquire("a"))
        await service.asked.wait()
        service.gate.set()
        asking.cancel()
        await begun.wait()
        asking.cancel()  # the caller waits no longer
        await asyncio.wait([asking])
        closing = asyncio.create_task(stage.locks.close())
        await settled()
        may_end.set()
        await closing
        assert done == ["released", "closed"]


async def test_one_hold_that_cannot_be_ended_keeps_no_other(make: Callable[..., Any]) -> None:
    capabilities = Capabilities("source", fair=True, verifies=True, ttl_from_server=False)
    async with make(capabilities=capabilities, stuck={"a"}) as stage:
        for lock in "ab":
            wanted = LockRequest((lock,), lock, "me", 300)
            await stage.locks.take(wanted, None, asyncio.get_running_loop().create_future())

        async def ended() -> bool:
            return "b" not in stage.service.held

        await eventually(ended, what="the other hold's end")
        assert "a" in stage.service.held

        async def output() -> bool:
            return any("could not be ended yet" in trouble for trouble in stage.troubles)

        await eventually(output, what="what is said of the first one")
        stage.service.stuck.clear()


async def test_what_lives_by_a_session_is_ended_when_its_lease_is_over(make: Callable[..., Any]) -> None:
    capabilities = Capabilities("source", fair=True, verifies=True, ttl_from_server=False)
    async with make(capabilities=capabilities) as stage:
        wanted = LockRequest(("a",), "mine", "me", 300)
        granted = await stage.locks.take(wanted, None, asyncio.get_running_loop().create_future())
        assert granted.acquired.verdict == "granted"

        async def given_back() -> bool:
            released: list[str] = stage.service.released
            return released == ["a#1"]

        await eventually(given_back, what="the end of a hold whose lease has expired")
        kept = (await stage.acquire("b")).acquired
        assert kept.verdict == "granted"
    assert "b#2" in stage.service.released, "a gateway that stops takes its holds along"
