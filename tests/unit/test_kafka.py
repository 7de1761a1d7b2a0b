"""Kafka without a broker: URLs, what of a partition is committed, records of dead letters, assignments."""

import pytest
from confluent_kafka import Consumer, KafkaError
from pydantic import SecretStr

from fencepost.server.parts import names_of_queues, read_queues
from fencepost.server.queues import registry
from fencepost.server.queues.kafka import from_url
from fencepost.server.queues.kafka_positions import Finished, MemberLedger, Positions, assigned
from fencepost.server.queues.kafka_settings import LEAVES_OUT, MORE_THAN_ITS_MESSAGE, read_url, record_of
from fencepost.server.queues.log import DeadLetter, LogConfigError, Message, Position, murmur2, partition_of
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError

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
async def test_properties_that_librdkafka_does_not_know_are_refused_at_the_start(query: str, said: str) -> None:
    log = from_url(f"kafka://127.0.0.1:1/orders?{query}")
    with pytest.raises(LogConfigError, match=said) as refused:
        await log.open()
    assert "s3cret" not in str(refused.value)
    await log.close()


def test_secrets_are_taken_out_of_what_librdkafka_says() -> None:
    settings = read_url(URL)
    assert settings.without_secrets(f"no login with {PASSWORD}") == "no login with …"
    assert PASSWORD not in repr(settings)


def taken(ledger: MemberLedger, *offsets: int) -> int:
    """Take messages of partition 0, with leader epoch 7."""
    turns = {ledger.taken(0, offset, 7) for offset in offsets}
    (turn,) = turns
    assert turn is not None
    return turn


def test_only_what_has_nothing_undone_before_it_is_finished() -> None:
    ledger = MemberLedger()
    ledger.gained([0])
    turn = taken(ledger, 3, 4, 6, 9)
    ledger.done(0, 4, turn)
    ledger.done(0, 6, turn)
    assert ledger.finished() == []
    ledger.done(0, 3, turn)
    assert ledger.finished() == [Finished(0, 7, 7)]
    assert ledger.finished() == [], "reported once"
    ledger.done(0, 9, turn)
    assert ledger.finished() == [Finished(0, 10, 7)]


def test_what_was_taken_in_an_earlier_turn_is_not_done_in_this_one() -> None:
    ledger = MemberLedger()
    ledger.gained([0])
    before = taken(ledger, 0, 1)
    assert ledger.lost([0, 1]) == {0}
    ledger.done(0, 0, before)
    ledger.gained([0])
    now = taken(ledger, 0)
    ledger.done(0, 0, before)
    assert ledger.finished() == []
    assert not ledger.current(0, before)
    assert ledger.current(0, now)


def test_partitions_are_finished_each_for_itself() -> None:
    ledger = MemberLedger()
    ledger.gained([0, 1])
    for partition in (0, 1):
        ledger.done(partition, 5, ledger.taken(partition, 5, 1))
    assert ledger.finished([1, 2]) == [Finished(1, 6, 1)]
    assert ledger.finished() == [Finished(0, 6, 1)]


def test_a_message_of_a_partition_that_was_lost_is_not_noted() -> None:
    ledger = MemberLedger()
    assert ledger.taken(0, 1, 1) is None
    assert ledger.next(0) is None
    assert ledger.partitions == frozenset()


SETTINGS = read_url("kafka://h:9092/orders")


def test_only_positions_of_partitions_that_the_member_has_are_looked_into() -> None:
    """What librdkafka says of one may come after it was lost: looked into, it would be taken from beside its owner."""
    ledger = MemberLedger()
    ledger.gained([1])
    positions = Positions(SETTINGS, Consumer(SETTINGS.of_group()), ledger)
    positions.astray(0, KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
    assert not positions.pending
    positions.astray(1, KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
    assert positions.unseen == {1}


FRAMING = 32
"""Bytes that the lengths of a record and of one header take, at most."""


def size(message: Message) -> int:
    headers = sum(len(name) + len(value) + FRAMING for name, value in message.headers)
    return len(message.key) + len(message.value or b"") + headers + FRAMING


@pytest.mark.parametrize("reason", ["short", "a" * 10**6, "ü" * 10**6, "\ud800" * 10**5])
@pytest.mark.parametrize("key", [b"orders/k0", b"k" * 10**6])
def test_a_letter_is_not_much_larger_than_its_message(reason: str, key: bytes) -> None:
    message = Message(key, b"x" * 10**6, (("method", b"PATCH"), ("trace", b"y" * 10**6)))
    letter = DeadLetter("kafka:orders.1.2." + "0" * 32, reason, Position(1, 2), message, 1.7e9)
    sizes = [size(record_of(letter, SETTINGS, left_out)) for left_out in LEAVES_OUT]
    assert size(message) < sizes[0] < size(message) + MORE_THAN_ITS_MESSAGE
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[2] < MORE_THAN_ITS_MESSAGE


def test_a_letter_says_what_it_leaves_out_and_where_that_is() -> None:
    letter = DeadLetter("id", "a reason", Position(1, 2), Message(b"orders/k0", b"x"), 1.7e9)
    headers = dict(record_of(letter, SETTINGS, "value").headers)
    assert headers["fencepost-dead-left-out"] == b"value"
    assert headers["fencepost-dead-reason"] == (
        b"a reason (the letter was too large for orders.dead, and has no value of the message, which is at offset 2 of"
        b" partition 1 of orders)"
    )
    whole = dict(record_of(letter, SETTINGS, "").headers)
    assert "fencepost-dead-left-out" not in whole
    assert whole["fencepost-dead-reason"] == b"a reason"


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (
            b"\0\3\0\0\0\2\0\6orders\0\0\0\2\0\0\0\0\0\0\0\5\0\3b\xc3\xa9\0\0\0\1\0\0\1\0\xff\xff\xff\xff",
            [("orders", 0), ("orders", 5), ("bé", 256)],
        ),
        (b"\0\3\0\0\0\0\xff\xff\xff\xff", []),
        (b"", []),
    ],
)
def test_an_assignment_is_topics_and_their_partitions(assignment: bytes, expected: list[tuple[str, int]]) -> None:
    assert list(assigned(assignment)) == expected


# Keys get the partition that Kafka's Java client gives them.


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # org.apache.kafka.common.utils.UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_it_is_the_hash_of_kafkas_own_tests(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32


def test_the_sign_is_cut_off_before_the_remainder() -> None:
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


# Queues by their URLs, and what is said of those that are wrong.


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("kafka://h1:9092,h2:9092/orders", "kafka:orders"),
        ("kafka://h1/Orders.eu-1_x?security.protocol=SSL&sasl.password=a%2Fb", "kafka:Orders.eu-1_x"),
        ("redis://user:pw@h:6379/orders?partitions=8", "redis:orders"),
        ("rediss://h/orders", "redis:orders"),
    ],
)
def test_the_last_part_of_the_path_names_the_queue(url: str, name: str) -> None:
    assert registry.name_of(url) == name


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("amqp://h/orders", "amqp:// is no queue"),
        ("orders", "no scheme:// is no queue"),
        ("kafka://h1:9092", "after the servers comes /NAME"),
        ("kafka://h1/a/b", "after the servers comes /NAME"),
        ("redis://h/" + "x" * 49, "1 to 48"),
        ("kafka://[h/orders", "cannot be read"),
    ],
)
def test_what_is_no_queue_is_refused(url: str, message: str) -> None:
    with pytest.raises(LogConfigError, match=message):
        registry.name_of(url)


@pytest.mark.parametrize("name", ["postgres:other", "kafka:", "kafka", "redis:a/b", "kafka:a b"])
def test_what_is_no_name_of_a_queue_is_refused(name: str) -> None:
    with pytest.raises(LogConfigError):
        registry.require_name(name)


def settings(queues: str = "", default: str = registry.DEFAULT) -> Settings:
    return Settings(queues=SecretStr(queues), default_queue=default)


def test_the_queue_of_the_database_is_always_there() -> None:
    assert names_of_queues(settings()) == ["postgres:default"]
    assert read_queues(settings()) == []


def test_two_queues_of_one_name_are_refused() -> None:
    with pytest.raises(StartupError, match="redis:orders stands there twice"):
        names_of_queues(settings("redis://a/orders rediss://b/orders"))


@pytest.mark.parametrize("url", ["kafka://h1:9092", "redis://h/orders?partitions=0"])
def test_a_wrong_url_is_said_to_be_in_the_setting(url: str) -> None:
    with pytest.raises(StartupError, match=r"^FENCEPOST_QUEUES: "):
        read_queues(settings(url))


def test_a_default_queue_that_is_not_there_is_refused() -> None:
    with pytest.raises(StartupError, match="no queue kafka:orders; there are postgres:default"):
        read_queues(settings(default="kafka:orders"))


def test_no_password_is_repeated() -> None:
    with pytest.raises(StartupError) as caught:
        names_of_queues(settings("kafka://h/a/b?sasl.password=secret"))
    assert "secret" not in str(caught.value)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name, name="confluent_kafka")

    monkeypatch.setattr("importlib.import_module", missing)
    with pytest.raises(LogConfigError, match=r"needs the library confluent_kafka: pip install '\.\[kafka\]'"):
        registry.make("kafka://h/orders")
