"""Answers of the API server that are lost, requests that are sent twice or cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.conformance.kubernetes.operating import LOCK, Make, api_of, granted

from fencepost.server.locks import kubernetes_api
from fencepost.server.locks.kubernetes_api import LeaseObject
from fencepost.server.locks.source import SourceError, SourceUnavailableError

pytestmark = pytest.mark.long("tests of Kubernetes")


Real = Callable[[dict[str, Any]], Awaitable[LeaseObject | None]]


@pytest.mark.parametrize("what", ["create", "update"])
@pytest.mark.parametrize("twice", [False, True], ids=["its answer is lost", "it is sent twice on its way"])
async def test_a_grant_is_found_though(make: Make, monkeypatch: pytest.MonkeyPatch, what: str, twice: bool) -> None:
    source = make()
    if what == "update":
        await source.release(LOCK, (await granted(source)).handle)
    real: Real = getattr(api_of(source), what)

    async def harmed(lease: dict[str, Any]) -> LeaseObject | None:
        await real(lease)
        if twice:
            return await real(lease)
        raise SourceUnavailableError("the connection broke")

    monkeypatch.setattr(api_of(source), what, harmed)
    grant = await granted(source, ttl_ms=30_000)
    monkeypatch.undo()
    assert await source.renew(LOCK, grant.handle, 30_000) is True
    assert await make().mint(LOCK, grant.handle, 1) is not None


@pytest.mark.parametrize("landed", [True, False], ids=["after it landed", "before it landed"])
async def test_an_acquire_that_is_cancelled_while_it_writes_leaves_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    source, other = make(), make()
    writing, go_on = asyncio.Event(), asyncio.Event()
    real = api_of(source).create

    async def slow(lease: dict[str, Any]) -> LeaseObject | None:
        made = await real(lease) if landed else None
        writing.set()
        await go_on.wait()
        return made if landed else await real(lease)

    monkeypatch.setattr(api_of(source), "create", slow)
    acquiring = asyncio.create_task(granted(source, ttl_ms=3_600_000))
    await writing.wait()
    acquiring.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    assert await other.inspect(LOCK) is None


async def test_an_acquire_that_fails_while_it_mints_leaves_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make()

    async def fails(lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        raise SourceUnavailableError(f"{lock} {handle} {count}")

    monkeypatch.setattr(source, "mint", fails)
    with pytest.raises(SourceUnavailableError):
        await granted(source, tokens=5, ttl_ms=3_600_000)
    assert await make().inspect(LOCK) is None


async def test_a_number_that_has_no_room_in_a_token_is_refused_and_nothing_is_held(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of clusters that do not keep their state in etcd."""
    monkeypatch.setattr(kubernetes_api, "MOST_NATIVE", 0)
    with pytest.raises(SourceError, match="cannot be a source of tokens"):
        await granted(make(), ttl_ms=3_600_000)
    monkeypatch.undo()
    assert await make().inspect(LOCK) is None
