"""`client.work(…)` on a real gateway: rows as jobs, in tasks and in threads. The demo's new orders are jobs."""

import asyncio
import os
import signal
import threading
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from typing import Any

import httpx
import pytest
from tests.client.transports import GRANT, Counting, Mock, problem
from tests.support.manual_clock import ManualClock
from tests.support.servers import until

from fencepost import Client, Job, LeaseLost, StaleToken, SyncClient, SyncJob
from fencepost.client import Lease, NotFound
from fencepost.client.work import _TakenLock
from fencepost.testing import Link, cut
from fencepost.testing.servers.processes import PATIENCE

NEW: Any = {"where": "status=eq.new", "order": "order_id"}


async def end_behind_its_back(url: str, lease: Lease) -> None:
    """Release a lease, of which its holder learns by its next renewal."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        answer = await http.delete(f"/v1/leases/{lease.id}", headers={"X-Lease-Secret": lease.secret})
        assert answer.status_code == 204


async def test_two_workers_do_each_row_once_and_never_have_one_together(gateway_url: str, client: Client) -> None:
    orders = [f"job-{n:02}" for n in range(30)]
    await client.post("orders", [{"order_id": order, "status": "new"} for order in orders], token=10)
    having: set[object] = set()
    done: Counter[object] = Counter()

    async def handle(job: Job) -> None:
        assert job.key not in having
        having.add(job.key)
        assert (job.row["order_id"], job.row["status"], job.attempt) == (job.key, "new", 1)
        await job.patch({"note": "begun"})
        having.remove(job.key)
        await job.patch({"status": "paid"})
        done[job.key] += 1

    async with Client(gateway_url) as other:
        workers = [each.work("orders", **NEW, wait=0).run(handle, concurrency=3) for each in (client, other)]
        await asyncio.wait_for(asyncio.gather(*workers), PATIENCE)
    assert done == Counter(["order-123", "order-125", *orders])
    assert await client.locks() == [], "each lease was released"


async def test_what_a_worker_writes_whose_row_another_has_taken_is_refused(gateway_url: str, client: Client) -> None:
    async with aclosing(aiter(client.work("orders", **NEW))) as old, Client(gateway_url) as other:
        paused = await anext(old)
        await end_behind_its_back(gateway_url, paused.lease)
        async for job in other.work("orders", **NEW, wait=0):
            assert (job.key, job.attempt) == ("order-123", 2), "the row is next again, and it is told how often"
            for write in (paused.patch({"note": "late"}), paused.delete()):
                with pytest.raises(StaleToken):
                    await write
            await job.patch({"status": "paid"})
            break
    assert (await client.get("orders", "order-123", select="status,note")) == {"status": "paid", "note": None}


async def test_who_is_cancelled_when_it_has_just_taken_a_row_holds_none(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = _TakenLock.__aenter__

    async def entered(lock: _TakenLock) -> Lease:
        lease = await enter(lock)
        working.cancel()
        return lease

    monkeypatch.setattr(_TakenLock, "__aenter__", entered)
    working = asyncio.ensure_future(anext(aiter(client.work("orders", **NEW))))
    with pytest.raises(asyncio.CancelledError):
        await working
    assert await client.locks() == []


async def test_a_job_whose_lease_is_lost_is_cancelled_and_the_worker_takes_the_next(gateway_url: str) -> None:
    clock, ends = ManualClock(), list[str]()
    async with Client(gateway_url, clock=clock) as c, AsyncExitStack() as time:
        work = c.work("orders", **NEW, ttl=600)

        async def handle(job: Job) -> None:
            try:
                if job.attempt == 1:
                    await end_behind_its_back(gateway_url, job.lease)
                    await time.enter_async_context(clock.running())
                    await asyncio.get_running_loop().create_future()
                await job.patch({"status": "paid"})
                work.stop()
            except asyncio.CancelledError:
                with pytest.raises(LeaseLost):
                    await job.patch({"note": "late"})
                ends.append("cancelled")
                raise

        await asyncio.wait_for(work.run(handle), PATIENCE)
        assert ends == ["cancelled"]
        assert (await c.get("orders", "order-123", select="status,note")) == {"status": "paid", "note": None}


async def test_the_row_of_a_job_that_failed_is_next_again_after_a_pause_and_not_before(gateway_url: str) -> None:
    clock, attempts = ManualClock(), list[int]()
    async with Client(gateway_url, clock=clock) as c:
        work = c.work("orders", **NEW)

        async def handle(job: Job) -> None:
            attempts.append(job.attempt)
            if job.attempt == 1:
                raise ZeroDivisionError
            if job.attempt == 3:
                await job.patch({"status": "paid"})
                work.stop()

        working = asyncio.create_task(work.run(handle))
        for attempt, pause in ((1, 1), (2, 2)):  # the first one failed, the second has written nothing
            await until(lambda: attempts[-1:] == [attempt])  # noqa: B023 - called here
            for _ in range(10):  # a row that is not kept is taken again within two requests
                assert [held.name for held in await c.locks()] == ["orders/order-123"]
            assert attempts[-1] == attempt
            await clock.advance(pause)
        await asyncio.wait_for(working, PATIENCE)
        assert attempts == [1, 2, 3]


async def test_who_stops_takes_no_more_and_finishes_what_runs(gateway_url: str, counting: Counting) -> None:
    async with Client(gateway_url, transport=counting) as c:
        await c.patch("orders", "order-125", {"status": "cancelled"}, token=10)
        work, go, began = c.work("orders", **NEW), asyncio.Event(), asyncio.Event()

        async def handle(job: Job) -> None:
            began.set()
            await go.wait()
            await job.patch({"status": "paid"})

        working = asyncio.create_task(work.run(handle, concurrency=3))
        await asyncio.wait_for(began.wait(), PATIENCE)
        await until(lambda: counting.count("POST /v1/leases") > 3)
        for _ in range(5):  # time for more, if there were more
            await c.locks()
        assert counting.requests.count("POST /v1/leases") == 4, (
            "each asked once; then one waits, and the other behind it"
        )
        work.stop()
        await until(lambda: "DELETE /v1/leases" in counting.requests)
        await c.patch("orders", "order-125", {"status": "new"}, token=11)
        assert [held.name for held in await c.locks()] == ["orders/order-123"], "what was asked for was withdrawn"
        assert not working.done()
        go.set()
        await asyncio.wait_for(working, PATIENCE)
        assert (await c.get("orders", "order-123", select="status")) == {"status": "paid"}


async def test_what_runs_for_longer_than_the_drain_is_cancelled_and_given_back(client: Client) -> None:
    began, ends = asyncio.Event(), list[bool]()

    async def handle(job: Job) -> None:
        began.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ends.append(job.lease.trusted)

    for end in ("stopped now", "drained"):
        began.clear()
        work = client.work("orders", **NEW)
        working = asyncio.create_task(work.run(handle, drain=PATIENCE if end == "stopped now" else 0))
        await asyncio.wait_for(began.wait(), PATIENCE)
        work.stop()
        work.stop(now=end == "stopped now")
        await asyncio.wait_for(working, PATIENCE)
        assert await client.locks() == []
    assert ends == [True, True]


async def test_an_answer_that_was_lost_is_asked_for_again_and_the_row_taken_once(link: Link) -> None:
    async with Client(link.url) as c:
        with cut(link, matching='"next"'):
            async for job in c.work("orders", **NEW, wait=0):
                assert (job.key, job.attempt) == ("order-123", 1)
                await job.patch({"status": "paid"})
                break


async def test_a_refusal_ends_the_worker_when_what_runs_is_over() -> None:
    row = {"resource": "jobs/1", "mark": "8", "row": {"id": 1}}
    grant = GRANT | {"lock": "jobs/1", "locks": ["jobs/1"], "claims": [row], "attempt": 1}
    mock = Mock(lambda: httpx.Response(201, json=grant), problem(404, "FP007", retryable=False))
    ends: list[bool] = []

    async def handle(job: Job) -> None:
        try:
            await job.lease.lost
        finally:
            ends.append(job.lease.trusted)

    async with Client("http://mock", transport=mock) as c:
        with pytest.raises(NotFound):
            await asyncio.wait_for(c.work("jobs").run(handle, concurrency=2, drain=0), PATIENCE)
    assert ends == [True], "cancelled, and its lease was kept until then"


async def test_a_signal_stops_all_work_of_the_process_and_its_handler_is_put_back(client: Client) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    try:
        went, work = asyncio.Event(), [client.work("orders", **NEW, stop_on=[signal.SIGUSR1]) for _ in range(2)]

        async def handle(job: Job) -> None:
            await job.patch({"status": "paid"})
            went.set()

        working = asyncio.gather(*(each.run(handle) for each in work))
        await asyncio.wait_for(went.wait(), PATIENCE)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(working, PATIENCE)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [signal.SIGUSR1], "the first one was ours"
    finally:
        signal.signal(signal.SIGUSR1, before)


# In threads.


def test_threads_do_jobs_at_once_and_a_loop_one_after_another(gateway_url: str) -> None:
    both = threading.Barrier(2)

    def handle(job: SyncJob) -> None:
        try:
            both.wait(PATIENCE)
            assert job.patch({"status": "paid"})["order_id"] == job.key == job.row["order_id"]
        finally:
            work.stop()

    with SyncClient(gateway_url) as c:
        work = c.work("orders", **NEW)
        work.run(handle, concurrency=2)
        for job in c.work("orders", where={"status": "eq.paid"}, order="order_id", wait=0):
            assert (job.table, job.name, job.attempt) == (
                "orders",
                f"orders/{job.key}",
                1 if job.key == "order-124" else 2,
            )
            c.patch("orders", "order-124", {"note": "x"}, lease=job.lease)
            job.put({**job.row, "status": "shipped"})
        assert {row["status"] for row in c.select("orders")} == {"shipped"}
        assert c.locks() == []


def test_a_thread_whose_job_was_given_back_writes_nothing_more_and_a_signal_stops(gateway_url: str) -> None:
    refused: list[type[Exception]] = []
    before = signal.getsignal(signal.SIGUSR1)
    with SyncClient(gateway_url) as c:
        work = c.work("orders", **NEW, stop_on=[signal.SIGUSR1])

        def handle(job: SyncJob) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)  # the main thread waits in run()
            try:
                assert job.lease.wait_lost(PATIENCE) is not None
                with pytest.raises(LeaseLost) as lost:
                    job.patch({"status": "paid"})
                refused.append(lost.type)
            finally:
                work.stop()

        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # without ours, nothing comes of it
        try:
            work.run(handle, drain=0)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert refused == [LeaseLost]
        assert {row["status"] for row in c.select("orders", {"order_id": "eq.order-123"})} == {"new"}
