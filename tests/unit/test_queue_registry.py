"""Queues by their URLs, and what is said of those that are wrong."""

import pytest
from pydantic import SecretStr

from fencepost.server.parts import names_of_queues, read_queues
from fencepost.server.queues import registry
from fencepost.server.queues.log import LogConfigError
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError


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
