"""Reads that share a statement share connections: whose they are, and how long they have them."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

from tests.integration.gathered_reads.conftest import Statements, reading, shown_of
from tests.support.manual_clock import ManualClock
from tests.support.racing import Race
from tests.support.use_cases import open_gateway

from fencepost.server.fence.problems import Problem
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.gathered import GatheredReads
from fencepost.server.gateway.outcomes import CallerShares, Done, Reads
from fencepost.server.gateway.read import ReadOne
from fencepost.server.gateway.use_cases import read_one
from fencepost.server.ops.protect import protect
from fencepost.server.postgres.query import Field, Selected
from fencepost.server.times import TIMES, Times
from fencepost.testing.servers.processes import PATIENCE, eventually


async def test_a_slow_statement_keeps_no_later_read_waiting(race: Race, sent: Statements) -> None:
    clock = ManualClock()
    async with open_gateway(race.dsn, pool_size=4, times=Times(clock=clock)) as gateway:
        sent.stop = "before"
        slow = reading(gateway, "k0")
        await sent.stopped.wait()
        await clock.advance(TIMES.batches.slow * 1.5)
        later = reading(gateway, "k1")
        overtook, _ = await asyncio.wait(later, timeout=PATIENCE)
        sent.go.set()
        assert overtook
        assert await shown_of(later) == [(['{"order_id":"k1","status":"new","n":1}'], 31)]
        await shown_of(slow)
        await gateway.gathered.close()


async def test_a_connection_that_breaks_under_them_is_no_answer(race: Race, gateway: Gateway, sent: Statements) -> None:
    await shown_of(reading(gateway, "k0"))
    sent.stop = "before"
    tasks = reading(gateway, "k1")
    await sent.stopped.wait()
    tasks += reading(gateway, "k2", "k3")
    await race.observer.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fencepost'"
    )
    sent.go.set()
    found = await shown_of(tasks)
    assert found[1:] == [([f'{{"order_id":"k{n}","status":"new","n":{n}}}'], 30 + n) for n in (2, 3)]


async def test_a_caller_takes_no_more_places_than_its_own(gateway: Gateway, sent: Statements) -> None:
    reads = Reads(2, CallerShares(8, 5.0, 4))
    few = replace(gateway, reads=reads, gathered=GatheredReads(gateway.database, reads))
    sent.stop = "before"
    tasks = [asyncio.create_task(read_one(few, ReadOne("orders", (f"k{n}",), caller="a"))) for n in range(4)]
    await sent.stopped.wait()
    tasks.append(asyncio.create_task(read_one(few, ReadOne("orders", ("k9",), caller="b"))))
    refused = await tasks[3]
    assert isinstance(refused, Problem)
    assert (refused.name, "3 of a already" in refused.detail) == ("FP010", True)
    sent.go.set()
    assert [isinstance(each, Done) for each in await asyncio.gather(*tasks)] == [True, True, True, False, True]
    await few.gathered.close()


async def test_when_all_places_are_taken_those_that_have_them_are_served(gateway: Gateway) -> None:
    """A statement that waits for a connection takes no place: those that it is for have theirs."""
    reads = Reads(1, CallerShares(8, 5.0, 8))
    few = replace(gateway, reads=reads, gathered=GatheredReads(gateway.database, reads))
    async with few.reads.connection(few.database, few.caller, "c"):
        tasks = [
            asyncio.create_task(read_one(few, ReadOne("orders", (f"k{n}",), caller="ab"[n % 2]))) for n in range(8)
        ]

        async def all_there() -> bool:
            return few.reads.waiting.count == 8

        await eventually(all_there, what="eight reads that wait")
    assert all(isinstance(each, Done) for each in await asyncio.gather(*tasks))
    await few.gathered.close()


async def test_a_read_that_waits_too_long_for_a_connection_is_refused(gateway: Gateway) -> None:
    reads = Reads(1, CallerShares(8, 0.2))
    few = replace(gateway, reads=reads, gathered=GatheredReads(gateway.database, reads, wait_at_most=0.2))
    async with few.reads.connection(few.database, few.caller):
        found = await shown_of(reading(few, "k0"))
    assert found == ["FP010"]
    await few.gathered.close()


async def test_others_get_the_connection_between_two_statements(race: Race, sent: Statements) -> None:
    """Else reads of rows that never end would have the only connection for ever."""
    async with open_gateway(race.dsn, pool_size=1) as gateway:
        sent.stop = "before"
        tasks = reading(gateway, "k0")
        await sent.stopped.wait()
        tasks += reading(gateway, "k1")
        async with AsyncExitStack() as stack:
            other = gateway.read_connection("other", runs_code=False)
            lent = asyncio.create_task(stack.enter_async_context(other))

            async def waiting() -> bool:
                return gateway.reads.waiting.count == 3

            await eventually(waiting, what="a list read that waits, beside two reads of rows")
            sent.go.set()
            await lent
            assert sent.keys == [[("k0",)]]
        await asyncio.gather(*tasks)
        assert sent.keys == [[("k0",)], [("k1",)]]
        await gateway.gathered.close()


async def test_slow_reads_of_one_caller_leave_connections_to_others(race: Race, gateway: Gateway) -> None:
    await race.observer.execute("CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)")
    await protect(race.observer, "other")
    await gateway.catalog.reload()
    transaction = await race.begin(race.observer)
    await race.observer.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    selects = [(Selected(Field("n"), alias=f"a{n}"),) for n in range(12)]
    slow = [asyncio.create_task(read_one(gateway, ReadOne("orders", ("k1",), each, "evil"))) for each in selects]

    async def all_of_its_own() -> bool:
        return not gateway.reads.has_room("evil")

    await eventually(all_of_its_own, what="as many connections as one caller may have")
    async with asyncio.timeout(PATIENCE):
        (found,) = await asyncio.gather(read_one(gateway, ReadOne("other", ("1",), None, "good")))
    assert isinstance(found, Done)
    assert not any(each.done() for each in slow)
    await transaction.rollback()
    assert all(isinstance(each, Done) for each in await asyncio.gather(*slow))
