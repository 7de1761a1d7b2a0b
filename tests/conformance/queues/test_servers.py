"""Servers of logs that are killed, stopped, or were made again: each log on its real one."""

import asyncio

import pytest
from tests.conformance.queues.bench import QueueBench, log_of
from tests.conformance.queues.conftest import KEYS, PARTITIONS, Another, Join, filled, message, positions

from fencepost.server.queues.log import Log, LogUnavailableError
from fencepost.testing.servers.processes import PATIENCE, eventually


async def test_after_the_server_was_killed_all_go_on_where_they_were(
    bench: QueueBench, url: str, log: Log, join: Join
) -> None:
    """What was acknowledged comes, and no offset comes twice."""
    member = join("a")
    done = await filled(log)
    await member.consumer.done(await member.take_until(len(done)))
    waiting = await filled(log, 2)
    before = await log.state()
    late = log_of(bench.name, url)
    if bench.name == "postgres":  # whose database is the gateway's, which does not start without it
        await late.open()
        await bench.crash()
    else:
        await bench.crash()
        await late.open()
    asked = asyncio.gather(log.append(message(KEYS[0])), log.state(), late.state(), return_exceptions=True)
    assert {isinstance(each, LogUnavailableError) for each in await asked} == {True}
    await bench.restart()
    after = await filled(log)
    for place in after:
        assert place.offset >= before.ends[place.partition]
    assert (await log.state()).incarnation == before.incarnation

    async def all_came() -> bool:
        try:
            await member.take()
            return (await late.state()).partitions == PARTITIONS and {*waiting, *after} <= {*positions(member.taken)}
        except LogUnavailableError:
            return False

    await eventually(all_came, within=2 * PATIENCE, what="the messages after the restart")
    await late.close()


async def test_offsets_do_not_repeat_after_everything_was_done(bench: QueueBench, log: Log, join: Join) -> None:
    """A log may remove what is done, and knows its ends nevertheless."""
    before = await filled(log)
    member = join("a")
    await member.consumer.done(await member.take_until(len(before)))
    await member.close()
    ends = (await log.state()).ends
    await bench.crash()
    await bench.restart()
    assert (await log.state()).ends >= ends
    for place in await filled(log):
        assert place.offset >= ends[place.partition]


@pytest.mark.long("logs that are killed or paused")
async def test_a_server_that_does_not_answer_is_unavailable_in_time(
    bench: QueueBench, log: Log, another: Another
) -> None:
    other = await another()
    await asyncio.gather(log.append(message(KEYS[0])), other.state())
    await bench.pause()
    try:
        asked = asyncio.gather(log.append(message(KEYS[0])), other.state(), return_exceptions=True)
        assert {isinstance(each, LogUnavailableError) for each in await asyncio.wait_for(asked, PATIENCE)} == {True}
    finally:
        await bench.resume()
    await log.append(message(KEYS[0]))


async def test_a_log_that_was_made_again_is_another_incarnation(bench: QueueBench, url: str, log: Log) -> None:
    await filled(log)
    before = await log.state()
    await bench.make_again(url)

    async def another_one() -> bool:
        return (await log.state()).incarnation != before.incarnation

    await eventually(another_one, what="another incarnation")
