"""Kafka with TLS, a user and a password only: who is let in, and what is said; and a topic that is made again."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.conformance.queues.benches import (
    MECHANISMS,
    PASSWORD,
    KafkaBench,
    Secured,
    kafka_admin,
    log_of,
    next_topic,
    secured_broker,
)
from tests.conformance.queues.conftest import Join, Member, message, positions

from fencepost.server.queues import kafka
from fencepost.server.queues.kafka import KafkaLog, from_url
from fencepost.server.queues.kafka_settings import Label, read_url
from fencepost.server.queues.log import Log, LogConfigError, LogUnavailableError, LogUnknownError, Position
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.processes import PATIENCE, eventually

pytestmark = pytest.mark.long("tests with kafka")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("secured")) as running:
        yield running


@pytest.fixture
async def topic(secured: Secured) -> str:
    name = next_topic()
    await asyncio.to_thread(secured.make_topic, name)
    return name


Opened = Callable[[str], Awaitable[KafkaLog]]


@pytest.fixture
def opened(stack: AsyncExitStack) -> Opened:
    """Give a function that opens the log of a URL; it is closed after the test."""

    async def of(url: str) -> KafkaLog:
        log = from_url(url)
        await log.open()
        stack.push_async_callback(log.close)
        return log

    return of


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_user_with_the_password_appends_and_takes(
    secured: Secured, topic: str, opened: Opened, mechanism: str
) -> None:
    log = await opened(secured.url(topic, mechanism))
    assert await log.append(message("orders/1")) == Position(0, 0)
    assert (await log.state()).ends == (1,)
    lost: list[frozenset[int]] = []
    member = Member(log.consumer("a", lost.append), lost)
    member.consumer.begin(1)
    taken = await member.take_until(1)
    assert positions(taken) == [Position(0, 0)]
    await member.consumer.done(taken)
    await member.close()
    assert await log.decided() == [1]


async def what_is_said(log: KafkaLog) -> list[str]:
    """Ask a log for all that it does, of which it can do nothing, and return what it says."""
    consumer = log.consumer("a", lambda _: None)
    consumer.begin(1)

    async def takes_nothing() -> str | None:
        try:
            assert await consumer.take(10, 0.2) == []
        except LogUnavailableError as error:
            return str(error)
        return None

    asked = asyncio.gather(log.state(), log.decided(), log.append(message("orders/1")), return_exceptions=True)
    taking = await eventually(takes_nothing, what="why nothing is taken")
    await consumer.close()
    state, decided, append = await asked
    assert isinstance(state, LogUnavailableError)
    assert isinstance(decided, LogUnavailableError)
    assert isinstance(append, LogUnknownError)
    return [str(state), str(decided), str(append), taking]


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_is_named_with_the_broker_and_is_not_shown(
    secured: Secured, topic: str, opened: Opened, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = "hunter2hunter2"
    for said in await what_is_said(await opened(secured.url(topic, mechanism, wrong))):
        assert f"kafka://{secured.cluster.bootstrap}/{topic}: " in said
        assert "Authentication failed" in said
        assert f"sasl_ssl://{secured.cluster.bootstrap}" in said
        assert wrong not in said
    assert "Authentication failed" in caplog.text, "librdkafka's lines are in our log"
    assert wrong not in caplog.text


async def test_an_authority_not_trusted_is_named_with_the_broker(secured: Secured, topic: str, opened: Opened) -> None:
    for said in await what_is_said(await opened(secured.url(topic, "PLAIN", authority=secured.stranger))):
        assert f"kafka://{secured.cluster.bootstrap}/{topic}: " in said
        assert "certificate verify failed" in said
        assert "ssl.ca.location" in said, "which property it is about"
        assert PASSWORD not in said


async def test_a_file_of_authorities_that_is_not_there_is_named_at_the_start(secured: Secured, tmp_path: Path) -> None:
    with pytest.raises(LogConfigError, match=r"ssl\.ca\.location failed") as caught:
        await from_url(secured.url("orders", "PLAIN", authority=tmp_path / "none.pem")).open()
    assert PASSWORD not in str(caught.value)


# A Kafka topic that was deleted and made again with as many partitions, on a real broker, with a position of the old
# one: a member may commit it when the new one is there.

WAITING = 3
"""How many messages wait in the new topic; in the old one, of which no number is known, one was decided."""


@pytest.fixture
async def url(one_broker: Kafka) -> str:
    return await KafkaBench(one_broker).new_log(1)


@pytest.fixture
async def log(one_broker: Kafka, url: str) -> AsyncIterator[Log]:
    settings, log = read_url(url), log_of("kafka", url)
    await log.open()
    label = str(Label(0, (await log.state()).incarnation))
    await KafkaBench(one_broker).make_again(url)
    for _ in range(WAITING):
        await log.append(message("orders/1"))
    member = Consumer(settings.of_group())
    committed = [TopicPartition(settings.topic, 0, 1, metadata=label)]
    await asyncio.to_thread(member.commit, offsets=committed, asynchronous=False)
    member.close()
    yield log
    await log.close()


async def test_what_waits_is_not_decided(log: Log) -> None:
    assert list(await log.decided()) == [0]


class Rebalanced(Consumer):
    """Its first commits are refused, as those of a member are while others join its group."""

    refused = 0

    def commit(self, *what: Any, **of_it: Any) -> Any:
        if self.refused < 10:
            self.refused += 1
            raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
        return super().commit(*what, **of_it)


class Interrupted(Consumer):
    """Is given its partition, and then fails to be given it anew."""

    calls = 0

    def incremental_assign(self, *partitions: Any) -> None:
        self.calls += 1
        if self.calls == 2:
            raise KafkaException(KafkaError(KafkaError.INVALID_REQUEST))
        super().incremental_assign(*partitions)


@pytest.mark.parametrize("client", [Rebalanced, Interrupted])
async def test_a_member_begins_where_the_new_one_does(
    join: Join, client: type[Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes nothing before, whatever keeps it from saying where it goes on, and from going on there."""
    monkeypatch.setattr(kafka, "Consumer", client)
    member = join("a")

    async def all_came() -> bool:
        try:
            await member.take()
        except LogUnavailableError:
            return False
        return len(member.taken) == WAITING

    await eventually(all_came, within=2 * PATIENCE, what="all of the new topic")
    assert [each.position.offset for each in member.taken] == [*range(WAITING)]


async def test_a_member_leaves_whose_partition_is_no_longer_assigned(one_broker: Kafka, url: str, join: Join) -> None:
    member = join("a")
    await member.has(1)
    client: Consumer = member.consumer._client  # type: ignore[attr-defined]  # noqa: SLF001
    client.incremental_unassign(client.assignment())
    await member.close()
    group, asked = read_url(url).group, kafka_admin(one_broker)
    described = await asyncio.to_thread(asked.describe_consumer_groups([group])[group].result, 30)
    assert described.members == []
