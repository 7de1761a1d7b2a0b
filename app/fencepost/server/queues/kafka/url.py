"""Reads `kafka://host:port,host:port/topic?property=value&…`: the query has properties of librdkafka.

TLS, SASL and whatever else librdkafka knows pass through. The properties by which Fencepost keeps its promises are
refused by name.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from fencepost.server.queues.log import LogConfigError

Properties = dict[str, str | int | bool]

TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,48}")
DEAD: Final = ".dead"
"""What the topic of the dead letters has after the topic's name."""

_OURS: Final = frozenset(
    {
        *("bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "group.protocol", "client.id"),
        *("group.remote.assignor", "partition.assignment.strategy", "enable.auto.commit", "auto.commit.enable"),
        *("enable.auto.offset.store", "auto.offset.reset", "isolation.level", "enable.partition.eof"),
        *("enable.idempotence", "acks", "request.required.acks", "partitioner", "transactional.id"),
        *("enable.gapless.guarantee", "allow.auto.create.topics", "max.in.flight", "queuing.strategy"),
        *("max.in.flight.requests.per.connection", "test.mock.num.brokers", "plugin.library.paths", "log.queue"),
    }
)
"""Properties that Fencepost sets itself, or that would break what it promises."""
_OF_CONSUMERS: Final = (
    "session.timeout.",
    "heartbeat.",
    "max.poll.",
    "fetch.",
    "queued.",
    "auto.commit.",
    "check.crcs",
)
_OF_PRODUCERS: Final = (
    *("delivery.timeout.", "message.timeout.", "linger.", "queue.buffering.", "batch.", "compression."),
    *("request.timeout.", "retries", "message.send.max.", "sticky.partitioning."),
)
_MOST_OF_PRODUCERS: Final = "1000000000"
"""The highest message.max.bytes that librdkafka takes."""
_SECRET: Final = re.compile(r"password|secret|\.pem$|\.key$|oauthbearer\.config|jaas")
_LEAST_SECRET: Final = 3
"""Shorter values are no secrets, and their letters stand everywhere."""

_OF_ALL: Final[Properties] = {
    "client.id": "fencepost",
    "socket.keepalive.enable": True,
    # A broker that is back is found within a second; librdkafka's own is ten.
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.propagation.max.ms": 2000,
    # So soon a producer knows of partitions that were added, and a client that asks of the brokers that are left.
    # librdkafka's own is five minutes.
    "topic.metadata.refresh.interval.ms": 5000,
    "allow.auto.create.topics": False,
}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """What a URL says. `properties` are those of its query, as they stand there."""

    brokers: str
    topic: str
    properties: dict[str, str] = field(repr=False)

    @property
    def group(self) -> str:
        return f"fencepost.{self.topic}"

    @property
    def dead_topic(self) -> str:
        return f"{self.topic}{DEAD}"

    def of_admin(self) -> Properties:
        """Give the properties of a client that asks about topics and groups."""
        return {**_OF_ALL, **self._without(_OF_CONSUMERS + _OF_PRODUCERS), "bootstrap.servers": self.brokers}

    def of_producer(self) -> Properties:
        """Give the properties of a producer: what is acknowledged is on all in-sync replicas, once and in order."""
        return {
            **_OF_ALL,
            "linger.ms": 1,
            **({} if "message.timeout.ms" in self.properties else {"delivery.timeout.ms": 10_000}),
            **self._without(_OF_CONSUMERS),
            "bootstrap.servers": self.brokers,
            "acks": "all",
            "enable.idempotence": True,
            # As Kafka's Java client, and as partitioner.py.
            "partitioner": "murmur2_random",
        }

    def of_dead_letters(self) -> Self:
        """Give the settings by which dead letters are appended: what they may have at most is for their topic to say,
        which counts bytes after compression. A message that was compressed must not become larger than its topic takes.
        """
        more = {"compression.codec": "zstd", **self.properties, "message.max.bytes": _MOST_OF_PRODUCERS}
        return replace(self, topic=self.dead_topic, properties=more)

    def of_consumer(self, name: str) -> Properties:
        """Give the properties of a member of the group, which has this name in it."""
        return {
            **_OF_ALL,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 1000,
            "queued.max.messages.kbytes": 16_384,
            "fetch.message.max.bytes": 1_048_576,
            "auto.commit.interval.ms": 500,
            **self._without(_OF_PRODUCERS),
            "bootstrap.servers": self.brokers,
            "group.id": self.group,
            "group.instance.id": name,
            "partition.assignment.strategy": "cooperative-sticky",
            # Only what ledger.py found done is stored, and librdkafka commits what is stored.
            "enable.auto.commit": True,
            "enable.auto.offset.store": False,
            # A position that the log does not have is an error to look into, and no reason to start anywhere.
            "auto.offset.reset": "error",
        }

    def of_reader(self) -> Properties:
        """Give the properties of a consumer that reads partitions for itself, and commits nothing."""
        return {
            **_OF_ALL,
            **self._without(_OF_PRODUCERS),
            "bootstrap.servers": self.brokers,
            "group.id": f"{self.group}.reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }

    def of_group(self) -> Properties:
        """Give the properties of a client that reads what the group has committed, and is no member of it."""
        return {**self.of_reader(), "group.id": self.group}

    def without_secrets(self, text: str) -> str:
        """Take passwords and keys out of a text of librdkafka's."""
        for name, value in self.properties.items():
            if _SECRET.search(name) and len(value) >= _LEAST_SECRET:
                text = text.replace(value, "…")
        return text

    def _without(self, prefixes: tuple[str, ...]) -> Properties:
        return {name: value for name, value in self.properties.items() if not name.startswith(prefixes)}


def read_url(url: str) -> KafkaSettings:
    """Read a URL. Raises LogConfigError, without the URL: there may be a password in it."""
    try:
        split = urlsplit(url)
    except ValueError:
        raise LogConfigError("the URL of a Kafka queue cannot be read: kafka://host:port,host:port/topic") from None
    if "@" in split.netloc:
        raise LogConfigError(
            "kafka:// takes no user before the hosts: ?security.protocol=SASL_SSL&sasl.mechanism=SCRAM-SHA-512"
            "&sasl.username=…&sasl.password=…"
        )
    brokers, topic = split.netloc, split.path.removeprefix("/")
    if not brokers:
        raise LogConfigError("the URL of a Kafka queue names no broker: kafka://host:port,host:port/topic")
    if not TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise LogConfigError(
            f"kafka://{brokers}: {topic[:60]!r} is no topic: one to 48 letters, digits, dots, _ and -, after the hosts"
        )
    if split.fragment:
        raise LogConfigError(f"kafka://{brokers}/{topic}: a # of a property's value is written as %23")
    return KafkaSettings(brokers, topic, _properties(f"kafka://{brokers}/{topic}", split.query))


def _properties(place: str, query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        name = unquote(name)
        if not equals:  # what stands there is not shown: it may be a part of a password
            after = f" after {[*found][-1]}" if found else ""
            raise LogConfigError(f"{place}: a property{after} has no value. An & of a value is written as %26")
        if name in _OURS:
            raise LogConfigError(f"{place}: {name} is set by Fencepost, and cannot be given")
        if name in found:
            raise LogConfigError(f"{place}: {name} is given twice")
        found[name] = unquote(value)  # a + stays one: keys and passwords have them
    return found
