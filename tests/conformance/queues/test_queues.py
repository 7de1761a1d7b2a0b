"""How every log of writes behaves (queues/log.py), each on its real server: messages and dead letters."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.conformance.queues.benches import QueueBench, log_of
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
from tests.support.servers import until

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.seal import SealKeys
from fencepost.server.queues.log import (
    MOST_OFFSET,
    TAKEN_BYTES,
    DeadLetter,
    Log,
    LogConfigError,
    LogUnavailableError,
    Message,
    Position,
    Received,
    partition_of,
)
from fencepost.server.queues.message import sign, verify
from fencepost.testing.servers.processes import PATIENCE, eventually


async def test_messages_come_as_they_were_appended(log: Log, join: Join) -> None:
    headers = (("method", b"PUT"), ("x-a", b"\x00\xff"), ("x-a", b""))
    sent = [Message("orders/ünï 1".encode(), value, headers) for value in (b'{"a": "\xc3\xbc"}', None, b"")]
    caller, keys = Caller("ann", "web", '{"sub": "ünï"}'), SealKeys({"k": b"k" * 32})
    sent.append(sign(sent[0], "q", keys, caller, time.time()))  # noqa: TID251 - compared with the log's clock
    places = [await log.append(each) for each in sent]
    received = await join("a").take_until(4)
    assert [each.message for each in received] == sent
    assert positions(received) == places
    assert all(1_600_000_000 < each.at < 5_000_000_000 for each in received)
    assert verify(received[3].message, "q", keys).caller.claims == caller.claims


async def test_the_key_chooses_the_partition_as_kafkas_java_client_does_and_its_offsets_rise(
    log: Log, another: Another
) -> None:
    other = await another()
    for key in [*KEYS, "orders/ünï", "a", "ab", "abc", "x" * 500]:
        places = [await by.append(message(key)) for by in (log, other, log, other)]
        assert {each.partition for each in places} == {partition_of(key.encode(), PARTITIONS)}, key
        offsets = [each.offset for each in places]
        assert offsets == sorted(set(offsets))
        assert 0 <= offsets[0] <= offsets[-1] <= MOST_OFFSET


async def test_messages_come_once_in_the_order_in_which_they_were_acknowledged(log: Log, join: Join) -> None:
    places = await filled(log, 20)
    member = join("a")
    received = await member.take_until(len(places))
    assert len(set(positions(received))) == len(places)
    for key in KEYS:
        values = [each.message.value for each in received if each.message.key == key.encode()]
        assert values == [b'{"n": %d}' % n for n in range(20)]
    for partition in range(PARTITIONS):
        offsets = [each.position.offset for each in received if each.position.partition == partition]
        assert offsets == sorted(offsets)
    await member.nothing_comes()


async def test_messages_appended_at_once_each_have_a_place_of_their_own(log: Log, another: Another, join: Join) -> None:
    logs = [log, await another()]
    places = await asyncio.gather(*(by.append(message(key)) for by in logs for key in KEYS for _ in range(20)))
    assert len(set(places)) == len(places)
    received = await join("a").take_until(len(places))
    assert set(positions(received)) == set(places)


async def test_no_more_is_taken_than_was_asked_for(log: Log, join: Join) -> None:
    await filled(log, 3)
    member = join("a")

    async def all_came() -> bool:
        await member.take(5)  # which looks at how many came
        return len(member.taken) >= 3 * len(KEYS)

    await eventually(all_came, what="all messages, five at a time")
    assert len(set(positions(member.taken))) == len(member.taken)


async def test_few_are_taken_at_once_where_they_are_large(log: Log, join: Join) -> None:
    """So memory is bounded, however large messages are: their number alone would allow a gigabyte."""
    large, count = "x" * 900_000, 3 * TAKEN_BYTES // 900_000
    for number in range(count):
        await log.append(message(KEYS[number % len(KEYS)], large))
    member = join("a")
    most = 0

    async def all_came() -> bool:
        nonlocal most
        before = len(member.taken)
        await member.take(1000)
        most = max(most, len(member.taken) - before)
        return len(member.taken) >= count

    await eventually(all_came, what="all messages")
    # Kafka's client has several brokers' and partitions' answers under way when its limit is reached.
    assert most * len(large) < 2 * TAKEN_BYTES, most
    assert len(set(positions(member.taken))) == count


async def test_a_message_wakes_who_waits(log: Log, join: Join) -> None:
    member = join("a")
    await member.has(PARTITIONS)

    async def one() -> Sequence[Received]:
        while not (received := await member.take(wait_s=30)):
            pass  # Kafka's returns early when it has to look into a position
        return received

    waiting = asyncio.create_task(one())
    await asyncio.wait([waiting], timeout=0.2)
    await log.append(message(KEYS[0]))
    assert len(await asyncio.wait_for(waiting, PATIENCE)) == 1


async def test_nothing_is_taken_while_nothing_is_asked_for(log: Log, join: Join) -> None:
    member = join("a")
    await member.has(PARTITIONS)
    await filled(log)
    for _ in range(8):
        assert await member.take(0, wait_s=0.2) == []
    assert len(member.consumer.partitions) == PARTITIONS
    assert len(await member.take_until(len(KEYS))) == len(KEYS)


async def test_what_is_not_done_comes_again(log: Log, join: Join) -> None:
    """In any order: what is done before something that is not may come again, what is not done must."""
    await filled(log, 3)
    first = join("a")
    received = list(await first.take_until(3 * len(KEYS)))
    not_done = [each for each in received if each.position.offset % 2 == 0]
    await first.consumer.done([each for each in reversed(received) if each not in not_done])
    await first.close()
    second = join("b")
    lowest = {each.partition: each.offset for each in reversed(positions(not_done))}
    again = await second.take_until(len(not_done))

    async def all_came() -> bool:
        await second.take()
        return set(positions(not_done)) <= set(positions(again))

    await eventually(all_came, what="what was not done")
    for each in positions(again):
        assert each.offset >= lowest[each.partition]


async def test_what_is_done_before_the_rest_may_be_done_later(log: Log, join: Join) -> None:
    await filled(log, 2)
    member = join("a")
    received = await member.take_until(2 * len(KEYS))
    for each in reversed(received):
        await member.consumer.done([each])
    await member.close()
    again = join("a")
    await again.has(PARTITIONS)
    await again.nothing_comes()


async def test_the_state_has_the_ends(log: Log) -> None:
    await filled(log)  # a log in Redis is there from then on
    before = await log.state()
    assert before.partitions == PARTITIONS
    assert before.incarnation
    places = await filled(log)
    state = await log.state()
    assert state.incarnation == before.incarnation
    for place in places:
        assert state.ends[place.partition] > place.offset
    again = await filled(log)
    for place in again:
        assert place.offset >= state.ends[place.partition], "an end is not above the offset of the next message"


async def test_below_what_is_decided_all_is_decided(log: Log, join: Join) -> None:
    places = await filled(log, 2)
    assert list(await log.decided()) == [0] * PARTITIONS
    member = join("a")
    received = list(await member.take_until(len(places)))
    last = received.pop()
    await member.consumer.done(received)

    async def all_but_one() -> bool:
        await member.take()
        decided, ends = await log.decided(), (await log.state()).ends
        others = set(range(PARTITIONS)) - {last.position.partition}
        return all(decided[each] == ends[each] for each in others)

    await eventually(all_but_one, what="the others' partitions decided")
    assert (await log.decided())[last.position.partition] <= last.position.offset
    await member.consumer.done([last])

    async def everything() -> bool:
        await member.take()
        return tuple(await log.decided()) == (await log.state()).ends

    await eventually(everything, what="everything decided")


async def test_the_oldest_is_the_first_that_is_not_decided(log: Log, join: Join) -> None:
    assert list(await log.oldest()) == [None] * PARTITIONS
    places = await filled(log, 2)
    member = join("a")
    received = sorted(await member.take_until(len(places)), key=lambda each: each.position.offset, reverse=True)
    for count in range(len(received), -1, -6):
        left = received[:count]
        await member.consumer.done(received[count : count + 6])
        first = {each.position.partition: each.at for each in left}  # the last one put has the lowest offset

        async def as_appended(first: dict[int, float] = first) -> bool:
            await member.take()
            return list(await log.oldest()) == [first.get(each) for each in range(PARTITIONS)]

        await eventually(as_appended, what=f"{first}")


async def test_a_message_is_read_at_its_position_until_it_is_decided_where_the_log_can(log: Log, join: Join) -> None:
    first, second = [await log.append(message("orders/1", text)) for text in ("1", "2")]
    found = await log.waiting(first)
    if found is None:
        return  # Kafka: what is decided stays in the topic
    assert [(each.position, each.message.value) for each in found] == [(first, b"1")]
    member = join("a")
    received = await member.take_until(2)
    await member.consumer.done(received[:1])

    async def gone() -> bool:
        await member.take()
        return list(await log.waiting(first) or ()) == []

    await eventually(gone, what="the first to be read no more")
    assert [each.position for each in await log.waiting(second) or ()] == [second]


def letter(log_name: str, number: int, value: bytes | None = b"{}") -> DeadLetter:
    """Make a dead letter; numbers rise with time."""
    headers = (("method", b"PATCH"), ("x-a", b"\xff"))
    position = Position(2 - number % 2, number)
    id_ = f"{log_name}.{position.partition}.{number}.00112233445566{number:02}"
    return DeadLetter(id_, "a reason: ünï", position, Message(b"orders/1", value, headers), 1.7e9 + number)


async def test_dead_letters_are_kept_as_they_were_once_however_often_they_are_put(log: Log, another: Another) -> None:
    put = [letter("kafka:orders", 1), letter("kafka:orders", 2, None), letter("kafka:orders", 3, b"")]
    assert list(await log.dead.list(10)) == []
    assert await log.dead.count() == {}
    other = await another()
    for by in (log, other, log):
        for each in put:
            await by.dead.put(each)
    dead = (await another()).dead
    assert list(await dead.list(10)) == put
    assert list(await dead.list(2)) == put[:2]
    assert await dead.get(put[1].id) == put[1]
    assert await dead.get(letter("kafka:orders", 9).id) is None
    assert await log.dead.count() == await dead.count() == {1: 2, 2: 1}


async def test_a_dead_letter_can_be_dropped_once(log: Log, another: Another) -> None:
    for number in (1, 2):
        await log.dead.put(letter("kafka:orders", number))
    dropped = letter("kafka:orders", 1).id
    assert await log.dead.drop(dropped) is True
    assert await (await another()).dead.drop(dropped) is False
    assert await log.dead.get(dropped) is None
    assert list(await log.dead.list(10)) == [letter("kafka:orders", 2)]
    assert await log.dead.count() == {2: 1}
    await log.dead.put(letter("kafka:orders", 1))
    assert await log.dead.count() == {1: 1, 2: 1}


async def test_what_the_logs_settings_may_lose_is_said_in_sentences(log: Log) -> None:
    for sentence in await log.advice():
        assert sentence.endswith("."), sentence


# Who takes from a log, on each one's real server: what members share, and what becomes of one that leaves or dies.

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
    await until(lambda: len(first.taken) + len(second.taken) >= len(places), what="all messages")
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


# Servers of logs that are killed, stopped, or were made again: each log on its real one.


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
async def test_a_server_that_is_silent_is_unavailable_in_time(bench: QueueBench, log: Log, another: Another) -> None:
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
