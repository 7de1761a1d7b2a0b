"""Queued writes while consumers come and go, are paused or killed, or share a broker: one effect each, in order."""

import asyncio
import functools
import json
import random
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import asyncpg
import pytest
from confluent_kafka import KafkaError, Message, Producer
from tests.robustness.queues.world import (
    SECURED,
    THREE,
    Connection,
    ConsumerServer,
    Effect,
    OneKafka,
    Submission,
    Submitters,
    World,
    effects_of,
    judge,
    messages,
    world,
)
from tests.support.servers import until
from tests.support.violations import assert_none

from fencepost.testing.faults import killed, paused
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.postgres import Postgres
from fencepost.testing.servers.processes import PATIENCE, eventually, wait_until
from fencepost.testing.servers.server import Server

# Eight producers, and three consumers that come and go: each acknowledged submission has one effect, in the order of
# its row.
# FENCEPOST_STORM_MESSAGES=100000 makes it a long run, FENCEPOST_STORM_SEED repeats one.

CHANGES = 8
"""How often a consumer leaves or comes during a storm."""


@pytest.mark.long("storms of queued writes")
async def test_three_consumers_that_come_and_go_apply_each_write_once_and_in_order(
    kind: str, launcher: Launcher, one_kafka: OneKafka, seed: int
) -> None:
    total = messages(1200)
    async with world(kind, launcher=launcher, one_kafka=one_kafka) as house:
        for member in ("c1", "c2", "c3"):
            await house.consumer(member)
        submitters = Submitters(house.gateway.url, seed, lambda: submitters.acknowledged >= total)
        submitting = asyncio.create_task(submitters.submit())
        try:
            # Let consumers leave, in order, and others come: one each time that so many more were acknowledged.
            chance = random.Random(seed)
            away: str | None = None
            for change in range(1, CHANGES + 1):

                async def far_enough(wanted: int = total * change // (CHANGES + 1)) -> bool:
                    return submitters.acknowledged >= wanted

                await eventually(far_enough, within=30 + total / 50, what=f"more submissions {submitters.answers}")
                if away is not None:
                    await house.consumer(away)
                    away = None
                else:
                    away = chance.choice(sorted(house.consumers))
                    await asyncio.to_thread(house.consumers[away].stop)
            await submitting
        finally:
            submitting.cancel()
        await house.end(submitters)
        wrong = await house.wrong(submitters.submissions)
        found = f"FENCEPOST_STORM_SEED={seed} {dict(submitters.answers)}"
        assert_none(wrong, found, house.logs())
        assert set(submitters.answers) == {"202"}, found


# Consumers, gateway, PostgreSQL and the log's servers are killed (SIGKILL) at random while many submit: each
# acknowledged submission has one effect, in the order of its row, and what was refused has none. Where the log has
# three servers, the two others go on to acknowledge while one is away.
# FENCEPOST_STORM_MESSAGES=100000 makes it a long run, FENCEPOST_STORM_SEED repeats one.

KILLS = 6
"""How many servers are killed in a storm of the usual size; each is away for up to a second."""
USUAL = 1200


SERVED_MEANWHILE = 100
"""How many submissions are acknowledged while a server is away without which the others serve."""
IN_HAND = 20
"""How many a log of its own acknowledges while PostgreSQL is away, before a consumer that has some is killed."""


@pytest.fixture(params=["postgres", "redis", THREE])
def storm_kind(request: pytest.FixtureRequest) -> str:
    """Name each kind of log: logs that are away with their one server, and one that outlives one of three."""
    found: str = request.param
    return found


def victims(house: World) -> dict[str, Server | Postgres]:
    return {**house.consumers, **house.log.servers, "gateway": house.gateway, "postgres": house.postgres}


def kill(server: Server | Postgres, away: Callable[[], object], then: Server | None) -> None:
    """Kill a server, and start it again when `away` returns; `then` is killed before that."""
    with killed(server):
        away()
        if then is not None:
            with killed(then):
                pass  # what cannot start without the first one is started after it


def time_away(
    house: World, name: str, submitters: Submitters, total: int, chance: random.Random
) -> Callable[[], object]:
    """Give what is waited for before a server that was killed is started again."""
    more = 0
    if name in house.log.servers and house.log.spare:
        more = SERVED_MEANWHILE
    elif name == "postgres" and house.log.servers:
        more = IN_HAND
    if more:
        enough = min(submitters.acknowledged + more, total)
        what = f"submissions without {name} {submitters.answers}"
        return functools.partial(wait_until, lambda: submitters.acknowledged >= enough, within=3 * PATIENCE, what=what)
    # Nothing is to be waited for: what needs the server meets that it is away.
    return functools.partial(threading.Event().wait, chance.uniform(0, 1))


@pytest.mark.long("storms of queued writes")
async def test_whatever_is_killed_each_acknowledged_write_is_applied_once_and_in_order(
    storm_kind: str, launcher: Launcher, seed: int
) -> None:
    total = messages(USUAL)
    async with world(storm_kind, launcher=launcher, consume_here=True, statement_timeout="5") as house:
        for member in ("c1", "c2"):
            await house.consumer(member)
        submitters = Submitters(house.gateway.url, seed, lambda: submitters.acknowledged >= total)
        submitting = asyncio.create_task(submitters.submit(repeat=True))
        found = f"FENCEPOST_STORM_SEED={seed}"
        try:
            # Kill one server each time that so many more were acknowledged, each at least once; with PostgreSQL a
            # consumer that has messages in hand.
            chance, killed_so_far = random.Random(seed), Counter[str]()
            order = chance.sample(sorted(victims(house)), len(victims(house)))
            kills = max(len(order), KILLS, KILLS * total // USUAL // 4)
            for number in range(kills):

                async def far_enough(wanted: int = total * (number + 1) // (kills + 1)) -> bool:
                    return submitters.acknowledged >= wanted

                await eventually(far_enough, within=60 + total / 50, what=f"more submissions {submitters.answers}")
                name = order[number] if number < len(order) else chance.choice(order)
                then = chance.choice(sorted(house.consumers)) if name == "postgres" else None
                killed_so_far.update(each for each in (name, then) if each is not None)
                away = time_away(house, name, submitters, total, chance)
                await asyncio.to_thread(kill, victims(house)[name], away, house.consumers.get(then or ""))
            deaths = killed_so_far
            await submitting
            found = f"{found} killed: {dict(deaths)} answers: {dict(submitters.answers)}"
            await house.end(submitters)
        except Exception as error:
            error.add_note(f"{found}\n{house.logs()}")
            raise
        finally:
            submitting.cancel()
        wrong = await house.wrong(submitters.submissions)
        assert_none(wrong, found, house.logs())


# Two processes with the same --member, by mistake: nothing is applied twice or lost, and one of them says why it does
# not consume.

MEMBER = "worker-1"


@pytest.mark.long("storms of queued writes")
async def test_two_consumers_with_one_name_apply_each_write_once_and_one_says_that_there_are_two(
    kind: str, launcher: Launcher, one_kafka: OneKafka, seed: int
) -> None:
    total = messages(800)
    says = f"another process takes as member {MEMBER}: give each its own --member"
    async with world(kind, launcher=launcher, one_kafka=one_kafka) as house:
        # Give two consumers with the same name, not started yet.
        older, younger = [
            ConsumerServer(
                *(house.database, house.log.queue, MEMBER, house.directory / f"{which}.log", house.settings),
                house.launcher,
            )
            for which in ("older", "younger")
        ]
        house.consumers.update(older=older, younger=younger)
        older.start()
        await older.serves()
        submitters = Submitters(house.gateway.url, seed, lambda: submitters.acknowledged >= total)
        submitting = asyncio.create_task(submitters.submit())
        try:
            at = random.Random(seed).randrange(total // 10, total // 2)
            await until(lambda: submitters.acknowledged >= at, within=2 * PATIENCE, what="half of the submissions")
            younger.start()
            what = "why one of them does not consume"
            await until(lambda: says in older.log_text() + younger.log_text(), within=2 * PATIENCE, what=what)
            await submitting
            await house.settle(submitters)
        except Exception as error:
            error.add_note(f"FENCEPOST_STORM_SEED={seed}\n{house.logs()}")
            raise
        finally:
            submitting.cancel()
        await house.end(submitters)
        wrong = await house.wrong(submitters.submissions)
        assert_none(wrong, f"FENCEPOST_STORM_SEED={seed}", house.logs())


# A consumer is stopped (SIGSTOP) with messages in hand until another has its partitions and has applied them, and then
# goes on: nothing is applied twice. A consumer without fence and record, in the same place, applies twice.

KEY = "k0"
HELD = 450
WRITTEN_BEFORE = 5
OPEN_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"""
TAKEN_OVER_WITHIN = 2 * PATIENCE
"""Seconds. A session of Kafka is 3 here, ownership in PostgreSQL and Redis 10, and a transaction that was left open is
ended after STATEMENT_TIMEOUT."""
STATEMENT_TIMEOUT = "5"
SEEN_WITHIN = 10.0
"""Seconds. A consumer writes at once when it goes on, and reports it a second later."""
EFFECTS = "SELECT count(*) FROM oracle.effects"
NOTHING_LEFT = "SELECT bool_and(oldest_at IS NULL) FROM fencepost.queue_partitions"
"""By the reports of consumers, once a second; NULL before the first one."""
REDELIVERED = "SELECT sum(redelivered) FROM fencepost.queue_partitions"
"""What consumers found decided already, by the fence or by the record, when they came to write it."""


@asynccontextmanager
async def row_locked(house: World) -> AsyncIterator[asyncpg.Connection]:
    """Hold the row's lock, so that whoever writes it waits."""
    connection = await house.connect()
    try:
        async with connection.transaction():
            await connection.execute("SELECT FROM orders WHERE id = $1 FOR UPDATE", KEY)
            yield connection
    finally:
        await connection.close()


async def somebody_waits(connection: asyncpg.Connection) -> bool:
    """Whether a statement waits for the row."""
    return bool(await connection.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


async def stop_between_writes(consumer: Server, looking: asyncpg.Connection, stopped: ExitStack) -> None:
    """Stop a consumer that writes, at a moment at which it has no transaction open: such a one would be ended before
    another can write the row, and not be a late write.
    """

    async def between() -> bool:
        if await looking.fetchval(EFFECTS) < WRITTEN_BEFORE:
            return False
        with ExitStack() as attempt:
            attempt.enter_context(paused(consumer))
            try:  # a statement that was sent with its commit ends by itself
                await eventually(lambda: none_open(looking), within=0.5)
            except TimeoutError:
                return False
            stopped.push(attempt.pop_all())
            return True

    await eventually(between, what="a moment between two writes")
    assert await looking.fetchval(EFFECTS) < HELD, "it was too late: all are written"


async def none_open(looking: asyncpg.Connection) -> bool:
    """Whether no transaction is open but the asking one."""
    return not await looking.fetchval(OPEN_TRANSACTIONS)


async def submit_some(submitters: Submitters) -> None:
    """Submit IN_HAND writes of one row, one after the other."""
    connection = Connection(submitters.url)
    for number in range(HELD):
        status, body = await connection.patch(KEY, f"w-{number}", None)
        assert status == 202, body
        offset = int(str(body["id"]).rsplit(".", 2)[1])
        submitters.submissions.append(Submission("w", KEY, f"w-{number}", "acknowledged", offset))
    connection.close()


@pytest.mark.long("storms of queued writes")
async def test_what_a_stopped_consumer_writes_when_it_goes_on_is_not_applied_twice(
    kind: str, launcher: Launcher, one_kafka: OneKafka, seed: int
) -> None:
    """Its log may tell a consumer that goes on of its loss before it comes to write: then nothing is shown, and it is
    done again.
    """
    attempts = 5
    for attempt in range(attempts):
        if await late_writes_are_not_applied_twice(kind, launcher, one_kafka, seed + attempt):
            return
    pytest.fail(f"no consumer wrote late in {attempts} attempts")


async def late_writes_are_not_applied_twice(kind: str, launcher: Launcher, one_kafka: OneKafka, seed: int) -> bool:
    """Stop a consumer, have another one take over, and let the first one go on. False: it wrote nothing then."""
    async with world(kind, launcher=launcher, one_kafka=one_kafka, statement_timeout=STATEMENT_TIMEOUT) as house:
        submitters = Submitters(house.gateway.url, seed, lambda: True)
        await submit_some(submitters)
        looking = await house.connect()
        with ExitStack() as stopped:
            await stop_between_writes(await house.consumer("a"), looking, stopped)
            await house.consumer("b")
            await eventually(
                lambda: all_applied(house, submitters), within=TAKEN_OVER_WITHIN, what="what the first one had in hand"
            )
            await eventually(
                lambda: looking.fetchval(NOTHING_LEFT), what="the second one's report that nothing is left"
            )
            before: int = await looking.fetchval(REDELIVERED)

        async def found_decided() -> bool:
            now: int = await looking.fetchval(REDELIVERED)
            return now > before

        try:
            await eventually(found_decided, within=SEEN_WITHIN, what="a late write of the one that goes on")
        except TimeoutError:
            late = False
        else:
            late = True
        assert await all_applied(house, submitters)
        await house.end(submitters)
        await looking.close()
        wrong = await house.wrong(submitters.submissions)
        assert_none(wrong, f"FENCEPOST_STORM_SEED={seed}", house.logs())
        return late


async def all_applied(house: World, submitters: Submitters) -> bool:
    """Whether each acknowledged submission had an effect."""
    return await house.missing(submitters) == 0


@pytest.mark.long("storms of queued writes")
async def test_without_fence_and_record_a_stopped_one_applies_twice(launcher: Launcher, one_kafka: OneKafka) -> None:
    """The control, in the same place."""
    async with world("kafka", launcher=launcher, one_kafka=one_kafka, protected=False) as house:
        kafka = house.log.kafka
        assert kafka is not None
        tags = await asyncio.to_thread(produce_some, kafka, house.log.topic)
        looking = await house.connect()
        with plain(house, kafka, "a") as first:
            async with row_locked(house):
                first.start()
                await eventually(lambda: somebody_waits(looking), what="the first consumer's write")
                first.pause()
            with plain(house, kafka, "b") as other:
                other.start()

                async def taken_over() -> bool:
                    return {each.tag for each in await effects_of(looking)} == set(tags)

                await eventually(taken_over, within=TAKEN_OVER_WITHIN, what="what the first one had in hand")
                first.resume()

                async def twice() -> bool:
                    done = [each.tag for each in await effects_of(looking)]
                    return Counter(done).most_common(1)[0][1] > 1

                await eventually(twice, what="a second effect")
                await eventually(lambda: out_of_order(looking, tags), what="an older write after a newer one")
        await looking.close()


async def out_of_order(connection: asyncpg.Connection, tags: list[str]) -> bool:
    """Whether a write was done after one that was submitted after it."""
    places = [tags.index(each.tag) for each in await effects_of(connection)]
    return places != sorted(places)


@contextmanager
def plain(house: World, kafka: Kafka, name: str) -> Iterator[Server]:
    """Give a consumer as most would write it, not started; it is ended with the block."""
    command = (
        sys.executable, "-m", "tests.robustness.queues.plain_consumer", kafka.bootstrap, house.log.topic,
        house.database,
    )  # fmt: skip
    server = Server(command, house.directory / f"plain-{name}.log", lambda: True)
    try:
        yield server
    finally:
        server.crash()


def produce_some(kafka: Kafka, topic: str) -> list[str]:
    """Produce IN_HAND messages of one row."""
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "acks": "all", "enable.idempotence": True})
    tags = [f"w-{number}" for number in range(HELD)]
    for tag in tags:
        producer.produce(topic, json.dumps({"tag": tag}), f"orders/{KEY}", on_delivery=delivered)
    assert producer.flush(30) == 0
    assert not failed
    return tags


# A gateway and a consumer whose log takes TLS only, each a process as an operator runs it.


@pytest.mark.long("storms of queued writes")
@pytest.mark.realtime  # a log that does not answer in two seconds is 503
@pytest.mark.parametrize("secured", SECURED)
async def test_writes_go_by_a_log_that_takes_tls_only(secured: str, launcher: Launcher, seed: int) -> None:
    enough = 200
    async with world(secured, launcher=launcher) as house:
        submitters = Submitters(house.gateway.url, seed, lambda: submitters.acknowledged >= enough)
        await house.consumer("a")
        await submitters.submit()
        await house.end(submitters)
        wrong = await house.wrong(submitters.submissions)
        assert_none(wrong, f"FENCEPOST_STORM_SEED={seed}", house.logs())
        assert set(submitters.answers) == {"202"}


# The oracle of the storms of queues sees what they look for.

SUBMITTED = (
    Submission("w", "k0", "a", "acknowledged", offset=4), Submission("w", "k0", "b", "acknowledged", offset=6),
    Submission("w", "k0", "c", "refused"), Submission("w", "k0", "d", "unknown"),
)  # fmt: skip
DONE = (Effect("k0", "a", 5), Effect("k0", "b", 7))


def test_each_once_and_in_order_is_right() -> None:
    assert judge(SUBMITTED, DONE) == []
    assert judge(SUBMITTED, [*DONE, Effect("k0", "d", 8)]) == []


def test_an_effect_may_have_the_token_of_the_other_place_of_a_message_that_was_appended_twice() -> None:
    twice = [Effect("k0", "a", 3), DONE[1]]
    assert judge(SUBMITTED, twice, {"a": {2, 4}, "b": {6}}) == []
    for places in ({"a": {4}}, {"a": {2}}, {}):
        assert judge(SUBMITTED, twice, places) == ["a is at offset 4, and was done under token 3"]


@pytest.mark.parametrize(
    ("effects", "because"),
    [
        (DONE[:1], "b of k0 was acknowledged (offset 6): 0 effects under []"),
        ([*DONE, Effect("k0", "b", 8)], "b of k0 was acknowledged (offset 6): 2 effects under [7, 8]"),
        ([*DONE, Effect("k0", "c", 8)], "c of k0 was refused (offset None): 1 effects under [8]"),
        ([*DONE, Effect("k0", "x", 8)], "x had an effect, and was never submitted"),
        ([Effect("k0", "a", 7), Effect("k0", "b", 7)], "b changed k0 under token 7, after 7"),
        ([Effect("k0", "a", 5), Effect("k0", "b", None)], "b changed k0 under token None, after 5"),
        ([Effect("k0", "a", 5), Effect("k0", "b", 8)], "b is at offset 6, and was done under token 8"),
        ([Effect("k0", "b", 7), Effect("k0", "a", 9)], "w submitted to k0 ['a', 'b'], and what was done there is"),
        ([DONE[0], Effect("k1", "b", 7)], "b was submitted for k0, and changed k1"),
    ],
)
def test_what_is_wrong_is_reported(effects: list[Effect], because: str) -> None:
    assert any(each.startswith(because) for each in judge(SUBMITTED, effects)), judge(SUBMITTED, effects)
