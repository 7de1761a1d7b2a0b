"""Who takes from a log, on each one's real server: what members share, and what becomes of one that leaves or dies."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest
from tests.conformance.queues.bench import QueueBench
from tests.conformance.queues.conftest import (
    KEYS,
    PARTITIONS,
    Another,
    Join,
    Member,
    MemberProcess,
    filled,
    message,
    positions,
)

from fencepost.server.queues.log import Log, LogConfigError, LogUnavailableError
from fencepost.testing.servers.processes import PATIENCE, eventually

Start = Callable[[str], Awaitable[MemberProcess]]


@pytest.mark.realtime
async def test_members_share_the_partitions_and_one_that_closes_hands_over_at_once(
    bench: QueueBench, log: Log, another: Another, join: Join
) -> None:
    first, second = join("a"), join("b", of=await another())
    await first.has(PARTITIONS)
    first.keep_taking()

    async def shared() -> bool:
        await second.take(wait_s=0.05)
        mine, theirs = first.consumer.partitions, second.consumer.partitions
        heard = frozenset().union(*first.lost) >= theirs
        return bool(theirs) and heard and not mine & theirs and mine | theirs == set(range(PARTITIONS))

    await eventually(shared, within=2 * PATIENCE, what="partitions of both members")
    second.keep_taking()
    places = await filled(log)

    async def all_came() -> bool:
        return len(first.taken) + len(second.taken) >= len(places)

    await eventually(all_came, what="all messages")
    assert sorted(map(str, positions([*first.taken, *second.taken]))) == sorted(map(str, places))
    await first.consumer.done(first.taken)
    await second.stop()
    await first.close()
    started = asyncio.get_running_loop().time()
    await second.has(PARTITIONS)
    assert asyncio.get_running_loop().time() - started < bench.handed_over_within_s / 2
    before = len(second.taken)
    await filled(log)
    await second.take_until(before + len(KEYS))


async def test_all_partitions_are_taken_from_after_some_were_gained_while_nothing_was_asked_for(
    log: Log, another: Another, join: Join
) -> None:
    first, second = join("a"), join("b", of=await another())
    await first.has(PARTITIONS)
    first.keep_taking()
    await second.has(1)
    await first.stop()
    for _ in range(8):
        await first.take(0)
    await second.close()

    async def gained() -> bool:
        await first.take(0)
        return len(first.consumer.partitions) == PARTITIONS

    await eventually(gained, within=2 * PATIENCE, what="the other's partitions")
    await filled(log)
    await first.take_until(len(KEYS))


async def test_a_member_that_is_started_again_goes_on(log: Log, join: Join, member_process: Start) -> None:
    killed = await member_process("a")
    await killed.says()
    os.kill(killed.pid, signal.SIGKILL)
    await killed.process.wait()
    places = await filled(log)
    received = await join("a").take_until(len(places))
    assert set(positions(received)) == set(places)


@pytest.mark.realtime
@pytest.mark.long("logs that are killed or paused")
async def test_what_a_paused_member_held_goes_to_another_and_it_hears_of_it(
    bench: QueueBench, log: Log, join: Join, member_process: Start
) -> None:
    """So does what one held that was killed, whose connections end as well."""
    paused = await member_process("a")
    assert (await paused.says())["partitions"] == list(range(PARTITIONS))
    places = await filled(log)
    taken: list[list[int]] = []
    while len(taken) < len(places):
        taken += (await paused.says())["taken"]
    os.kill(paused.pid, signal.SIGSTOP)
    started = asyncio.get_running_loop().time()
    survivor = join("b")
    received = await survivor.take_until(len(places))
    assert asyncio.get_running_loop().time() - started < bench.handed_over_within_s
    assert set(positions(received)) == set(places)
    survivor.keep_taking()
    os.kill(paused.pid, signal.SIGCONT)
    lost: set[int] = set()
    while lost != set(range(PARTITIONS)):  # one after another, or all at once: as the log notices
        lost.update((await paused.says()).get("lost", ()))


async def refused(member: Member) -> str | None:
    """Take once, and return what is said of the member's name, if anything is."""
    try:
        await member.take(wait_s=0.05)
    except LogConfigError as error:
        return str(error)
    except LogUnavailableError:  # Kafka ends the connection of one of them before it is known why
        return None
    return None


async def test_of_two_with_one_name_one_takes_and_the_other_says_that_there_are_two(
    log: Log, another: Another, join: Join
) -> None:
    older = join("a")
    await older.has(PARTITIONS)
    younger = join("a", await another())
    said: dict[str, str | None] = {}

    async def one_is_refused() -> bool:
        said["older"], said["younger"] = await asyncio.gather(refused(older), refused(younger))
        return any(said.values())

    await eventually(one_is_refused, within=2 * PATIENCE, what="which one is refused")
    (sentence,) = filter(None, said.values())
    assert "another process takes as member a: give each its own --member" in sentence
    going_on, other = (younger, older) if said["older"] else (older, younger)
    assert other.consumer.partitions == frozenset()
    await log.append(message("orders/1"))

    async def taken() -> bool:
        assert await refused(going_on) is None
        return bool(going_on.taken)

    await eventually(taken, within=2 * PATIENCE, what="a message for the one that goes on")
