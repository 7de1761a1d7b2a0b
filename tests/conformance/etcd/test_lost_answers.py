"""Answers of etcd that are lost, and callers that go away."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.conformance.etcd.asking import TTL, granted, leases
from tests.conformance.etcd_bench import EtcdBench

from fencepost.server.locks.etcd import EtcdApi, EtcdSource, parse
from fencepost.server.locks.source import Source

pytestmark = pytest.mark.long("tests of etcd")


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
