"""URLs of Kafka queues: what passes through to librdkafka, what Fencepost sets, and that secrets are not said."""

import pytest

from fencepost.queues.kafka.log import from_url
from fencepost.queues.kafka.url import read_url
from fencepost.queues.log import LogConfigError

PASSWORD = "s3cret+/=word"
URL = (
    "kafka://h1:9092,h2:9093/orders?security.protocol=SASL_SSL&sasl.mechanism=SCRAM-SHA-512&sasl.username=me"
    "&sasl.password=s3cret+/%3Dword&linger.ms=7&session.timeout.ms=6000"
)


def test_hosts_topic_and_properties() -> None:
    settings = read_url(URL)
    assert (settings.brokers, settings.topic) == ("h1:9092,h2:9093", "orders")
    assert (settings.group, settings.dead_topic) == ("fencepost.orders", "orders.dead")
    for properties in (
        *(settings.of_admin(), settings.of_producer(), settings.of_consumer("a"), settings.of_reader()),
    ):
        assert properties["bootstrap.servers"] == "h1:9092,h2:9093"
        assert properties["security.protocol"] == "SASL_SSL"
        assert properties["sasl.password"] == PASSWORD, "a + stays one"
    assert settings.of_producer()["linger.ms"] == "7"
    assert "linger.ms" not in settings.of_consumer("a")
    assert settings.of_consumer("a")["session.timeout.ms"] == "6000"
    assert "session.timeout.ms" not in settings.of_producer()


def test_what_fencepost_promises_rests_on_these() -> None:
    producer, consumer = read_url(URL).of_producer(), read_url(URL).of_consumer("worker-1.2")
    assert (producer["acks"], producer["enable.idempotence"]) == ("all", True)
    assert producer["partitioner"] == "murmur2_random"
    assert consumer["group.instance.id"] == "worker-1.2"
    assert consumer["partition.assignment.strategy"] == "cooperative-sticky"
    assert (consumer["enable.auto.offset.store"], consumer["auto.offset.reset"]) == (False, "error")


@pytest.mark.parametrize(
    "name",
    [
        "acks",
        "enable.idempotence",
        "group.id",
        "group.instance.id",
        "partitioner",
        "auto.offset.reset",
        "isolation.level",
    ],
)
def test_properties_that_fencepost_sets_are_refused_by_name(name: str) -> None:
    with pytest.raises(LogConfigError, match=rf"kafka://h:9092/orders: {name} is set by Fencepost"):
        read_url(f"kafka://h:9092/orders?{name}=1")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("kafka:///orders", "names no broker"),
        ("kafka://h:9092", "is no topic"),
        ("kafka://h:9092/a/b", "is no topic"),
        ("kafka://h:9092/..", "is no topic"),
        ("kafka://h:9092/" + "x" * 49, "is no topic"),
        ("kafka://me:s3cret@h:9092/orders", "sasl.username"),
        ("kafka://h:9092/orders?linger.ms", "kafka://h:9092/orders: a property has no value"),
        ("kafka://h:9092/orders?sasl.password=a&s3cret", "after sasl.password has no value. An & of a value"),
        ("kafka://h:9092/orders?linger.ms=1&linger.ms=2", "linger.ms is given twice"),
        ("kafka://h:9092/orders?sasl.password=s3cret#x", "%23"),
    ],
)
def test_urls_that_are_wrong_are_refused_with_the_reason(url: str, said: str) -> None:
    with pytest.raises(LogConfigError, match=said) as refused:
        read_url(url)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("sasl.pasword=s3cret", "sasl.pasword"),
        ("linger.ms=soon", "Invalid value"),
        ("sasl.password=s3cret&acks.x=s3cret", "acks.x"),
    ],
)
async def test_properties_that_librdkafka_does_not_know_are_refused_when_the_log_is_opened(
    query: str, said: str
) -> None:
    log = from_url(f"kafka://127.0.0.1:1/orders?{query}")
    with pytest.raises(LogConfigError, match=said) as refused:
        await log.open()
    assert "s3cret" not in str(refused.value)
    await log.close()


def test_secrets_are_taken_out_of_what_librdkafka_says() -> None:
    settings = read_url(URL)
    assert settings.without_secrets(f"no login with {PASSWORD}") == "no login with …"
    assert PASSWORD not in repr(settings)
