"""A Kafka broker that takes TLS with a user and a password only: who is let in, and what is said where one is not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.conformance.queues.conftest import Member, message, positions
from tests.conformance.queues.kafka_bench import next_topic
from tests.conformance.queues.kafka_secured import MECHANISMS, PASSWORD, Secured, secured_broker

from fencepost.server.queues.kafka import KafkaLog, from_url
from fencepost.server.queues.log import LogConfigError, LogUnavailableError, LogUnknownError, Position
from fencepost.testing.servers.processes import eventually

pytestmark = pytest.mark.long("tests with kafka")

WRONG = "hunter2hunter2"


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
async def opened() -> AsyncIterator[Opened]:
    """Give a function that opens the log of a URL; it is closed after the test."""
    async with AsyncExitStack() as stack:

        async def of(url: str) -> KafkaLog:
            log = from_url(url)
            await log.open()
            stack.push_async_callback(log.close)
            return log

        yield of


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
    for said in await what_is_said(await opened(secured.url(topic, mechanism, WRONG))):
        assert f"kafka://{secured.cluster.bootstrap}/{topic}: " in said
        assert "Authentication failed" in said
        assert f"sasl_ssl://{secured.cluster.bootstrap}" in said
        assert WRONG not in said
    assert "Authentication failed" in caplog.text, "librdkafka's lines are in our log"
    assert WRONG not in caplog.text


async def test_an_authority_that_is_not_trusted_is_named_with_the_broker(
    secured: Secured, topic: str, opened: Opened
) -> None:
    for said in await what_is_said(await opened(secured.url(topic, "PLAIN", authority=secured.stranger))):
        assert f"kafka://{secured.cluster.bootstrap}/{topic}: " in said
        assert "certificate verify failed" in said
        assert "ssl.ca.location" in said, "which property it is about"
        assert PASSWORD not in said


async def test_a_file_of_authorities_that_is_not_there_is_named_at_the_start(secured: Secured, tmp_path: Path) -> None:
    with pytest.raises(LogConfigError, match=r"ssl\.ca\.location failed") as caught:
        await from_url(secured.url("orders", "PLAIN", authority=tmp_path / "none.pem")).open()
    assert PASSWORD not in str(caught.value)
