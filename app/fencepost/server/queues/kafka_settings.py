"""A topic's URL and settings, errors of librdkafka, and what messages of Kafka are labelled with."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import unquote, urlsplit

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient

from fencepost.server.queues.log import (
    DeadLetter,
    Headers,
    LogConfigError,
    LogError,
    LogUnavailableError,
    LogUnknownError,
    Message,
    Position,
    Received,
)

# Reads `kafka://host:port,host:port/topic?property=value&…`: the query has properties of librdkafka.
#
# TLS, SASL and whatever else librdkafka knows pass through. The properties by which Fencepost keeps its promises are
# refused by name.

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
            # As Kafka's Java client, and as `partition_of` of log.py.
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
            # Only what `MemberLedger` found done is stored, and librdkafka commits what is stored.
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


# What librdkafka's errors mean for a log.


class _NotAgain(logging.Filter):
    """Lets the same line through once in ten seconds: librdkafka says at each attempt that a broker is away."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage().partition(" (after ")[0]
        last, now = self._said.get(line), time.monotonic()
        if last is not None and now - last < _SAID_AGAIN_S:
            return False
        self._said = {each: at for each, at in self._said.items() if now - at < _SAID_AGAIN_S}
        self._said[line] = now
        return True


_SAID_AGAIN_S: Final = 10.0
LOGGER: Final = logging.getLogger("fencepost.queues.kafka")
"""Gets what librdkafka has to say, which would go to standard error."""
LOGGER.addFilter(_NotAgain())

NO_TOPIC: Final = frozenset(
    {
        *(KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION),  # noqa: SLF001 - so librdkafka's own codes are named
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_NOT_APPENDED: Final = frozenset(
    {
        *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED),
        *(KafkaError._QUEUE_FULL, KafkaError._PURGE_QUEUE, KafkaError._AUTHENTICATION),  # noqa: SLF001
        *(KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._INVALID_ARG, KafkaError.INVALID_RECORD),  # noqa: SLF001
        *(KafkaError.POLICY_VIOLATION, KafkaError.TOPIC_EXCEPTION),
    }
)
"""With these no attempt reached a log: a broker's refusal of the request, or none was sent."""

_TIME_OUTS: Final = frozenset(
    {
        *(KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT, KafkaError._ALL_BROKERS_DOWN),  # noqa: SLF001
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_RECENT_S: Final = 60.0
"""librdkafka repeats an error that stays the same every thirty seconds."""
_UNTRUSTED: Final = "certificate verify failed"
_AUTHORITIES: Final = "ssl.ca.location"
_HOW_LONG: Final = re.compile(r" \(after \d+ms in state \w+.*?\)$")

Client = TypeVar("Client")


class TooLargeError(LogConfigError):
    """A topic, or the producer, does not take messages of this size. Nothing was appended."""


class BrokerErrors:
    """What went wrong last with a broker. librdkafka reports a wrong password, or a certificate that it does not trust,
    by the client's `error_cb` alone, and lets requests run out of time.
    """

    def __init__(self) -> None:
        self._last: tuple[float, int, str] | None = None
        """When it came, its code, and what it says."""

    def note(self, error: KafkaError) -> None:
        code, text = error.code(), _HOW_LONG.sub("", error.str())
        if code == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - which follows from the others
            return
        if self._last is not None and self._last[1] == code and self._is_recent():
            text = max(self._last[2], text, key=len)  # librdkafka gives the reason, and then only that it failed again
        if _UNTRUSTED in text and _AUTHORITIES not in text:  # this one says it sometimes, and not at first
            text += f": is the broker's authority in the file that {_AUTHORITIES} names?"
        self._last = (time.monotonic(), code, text)

    def behind(self, error: KafkaError) -> str:
        """Give what to add to an error that says of itself only that time ran out; empty where nothing is known."""
        if error.code() not in _TIME_OUTS or self._last is None or not self._is_recent():
            return ""
        return f"; the last error of a broker: {self._last[2]}"

    def _is_recent(self) -> bool:
        return self._last is not None and time.monotonic() - self._last[0] <= _RECENT_S


def kafka_error(error: BaseException) -> KafkaError:
    """Give what a KafkaException is about."""
    found = error.args[0] if error.args else None
    return found if isinstance(found, KafkaError) else KafkaError(KafkaError.UNKNOWN, str(error))


def is_fatal(error: KafkaError) -> bool:
    """Whether the client that gave this error is of no use any more. Any call may be the first that gives it."""
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - librdkafka's own code


def made(settings: KafkaSettings, kind: Callable[..., Client], properties: Properties, **callbacks: Any) -> Client:
    """Make a client of librdkafka. Raises LogConfigError for properties that it does not take."""
    try:
        return kind({**properties, **callbacks}, logger=LOGGER)
    except (KafkaException, ValueError, TypeError) as error:
        detail = settings.without_secrets(kafka_error(error).str() if isinstance(error, KafkaException) else str(error))
        raise LogConfigError(f"{place(settings)}: librdkafka does not take its properties: {detail}") from None


def place(settings: KafkaSettings) -> str:
    """Name a log in a message."""
    return f"kafka://{settings.brokers}/{settings.topic}"


def no_topic(settings: KafkaSettings) -> LogUnavailableError:
    """Say that the topic is not there, and how it is made."""
    return LogUnavailableError(
        f"{place(settings)}: there is no such topic. Fencepost does not choose its partitions and replicas:"
        f" kafka-topics.sh --bootstrap-server {settings.brokers} --create --topic {settings.topic} --partitions 12"
        " --replication-factor 3 --config min.insync.replicas=2 --config message.timestamp.type=LogAppendTime"
    )


def unavailable(
    settings: KafkaSettings, error: BaseException | KafkaError, brokers: BrokerErrors | None = None
) -> LogUnavailableError:
    """Say that something could not be asked for; nothing was done."""
    found = error if isinstance(error, KafkaError) else kafka_error(error)
    if found.code() in NO_TOPIC:
        return no_topic(settings)
    return LogUnavailableError(f"{place(settings)}: {_said(settings, found, brokers)}")


def not_appended(settings: KafkaSettings, error: KafkaError, brokers: BrokerErrors) -> LogError:
    """Say what became of a message that was not acknowledged."""
    if error.code() in NO_TOPIC:
        return no_topic(settings)
    if error.code() in _TOO_LARGE:
        return TooLargeError(
            f"{place(settings)}: the message is larger than what is taken: message.max.bytes of the URL,"
            " max.message.bytes of the topic"
        )
    if error.code() in _NOT_APPENDED:
        return unavailable(settings, error, brokers)
    return LogUnknownError(f"{place(settings)}: no acknowledgement in time: {_said(settings, error, brokers)}")


def _said(settings: KafkaSettings, error: KafkaError, brokers: BrokerErrors | None) -> str:
    behind = "" if brokers is None else brokers.behind(error)
    return settings.without_secrets(f"{error.str()} ({error.name()}){behind}")


# Reads which leader wrote the messages at given offsets, and when. Its calls of librdkafka wait: for a thread.
#
# All messages of one leader epoch were written by one leader, and epochs never fall within a log. So a log that has a
# higher epoch before a committed position than the position has is another one from there on.

_READS_WITHIN_S: Final = 5.0


class Written(NamedTuple):
    """The message at an offset, or the next one there is; `leader_epoch` -1 where the broker does not say it."""

    offset: int
    leader_epoch: int
    at: float | None
    """When it was appended, in seconds since the epoch; None: it does not say."""


class Epochs:
    """A consumer that reads single messages; a context manager."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client = made(settings, Consumer, settings.of_reader())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def at(self, offsets: dict[int, int]) -> dict[int, Written | None]:
        """Read the message at an offset of each of these partitions; None where the log ends before. Raises
        KafkaException, LogUnavailableError.
        """
        topic, until = self._settings.topic, time.monotonic() + _READS_WITHIN_S
        self._client.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
        found: dict[int, Written | None] = {}
        while len(found) < len(offsets):
            if time.monotonic() > until:
                raise LogUnavailableError(
                    f"{place(self._settings)}: committed positions could not be looked at in time"
                )
            record = self._client.poll(0.2)
            if record is None or record.partition() is None or record.partition() in found:
                continue
            partition, offset, error = record.partition() or 0, record.offset() or 0, record.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own
                raise KafkaException(error)
            # A position beyond the end is none: the reader begins at the start then.
            beyond = error is not None or offset < offsets[partition]
            found[partition] = None if beyond else _written(record, offset)
        self._client.unassign()
        return found

    def first_after(self, partition: int, epoch: int, low: int, high: int) -> int:
        """Find the first offset from `low` to `high` that a later leader than `epoch` wrote; `high` where none is."""
        while low < high:
            middle = (low + high) // 2
            written = self.at({partition: middle})[partition]
            if written is None or written.leader_epoch > epoch:
                high = middle
            else:
                low = written.offset + 1
        return low


def _written(record: KafkaMessage, offset: int) -> Written:
    epoch, (kind, at_ms) = record.leader_epoch(), record.timestamp()
    return Written(offset, -1 if epoch is None else epoch, None if kind == TIMESTAMP_NOT_AVAILABLE else at_ms / 1000)


def message_from(record: KafkaMessage) -> Message:
    """Read key, value and headers of a record. A header without a value has an empty one."""
    found = record.headers() or []
    pairs = found.items() if isinstance(found, dict) else found
    return Message(record.key() or b"", record.value(), tuple([(name, _bytes(value)) for name, value in pairs]))


def received_from(record: KafkaMessage, at: Position, leader_epoch: int | None, turn: int) -> Received:
    """Read a record that a member took in one of its turns with the partition."""
    _, at_ms = record.timestamp()
    return Received(at, message_from(record), at_ms / 1000, leader_epoch, turn)


def place_of(record: KafkaMessage) -> Position:
    """Give the place of a record that came from a partition: librdkafka's types allow for none."""
    partition, offset = record.partition(), record.offset()
    if partition is None or offset is None:
        raise ValueError("a record without a place")
    return Position(partition, offset)


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


# What is committed with a position: the generation of the source under which it was decided, and the id of the topic.
#
# A topic that is made again counts its offsets and its leader epochs from 0, so they do not show that a position was
# the one of another topic.

_ANSWERS_WITHIN_S: Final = 5.0
_LABEL: Final = re.compile(r"generation (\d+) of (\S*)")


class Label(NamedTuple):
    """One of them."""

    generation: int
    topic_id: str

    def __str__(self) -> str:
        return f"generation {self.generation} of {self.topic_id}"

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """Read a position's metadata; None where it is no label."""
        found = _LABEL.fullmatch(text or "")
        return None if found is None else cls(int(found[1]), found[2])


def label_of(position: TopicPartition) -> Label | None:
    """Read the label of a committed position."""
    return Label.read(position.metadata)


class TopicId:
    """Asks for the topic's id. Its calls wait: they are for a thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client: AdminClient | None = None
        self.last = ""
        """What the last answer was."""

    def ask(self) -> str:
        """Ask for it. Raises KafkaException, LogUnavailableError."""
        if self._client is None:
            self._client = made(self._settings, AdminClient, self._settings.of_admin())
        topic = self._settings.topic
        asked = self._client.describe_topics(TopicCollection([topic]), request_timeout=_ANSWERS_WITHIN_S)
        try:
            self.last = str(asked[topic].result(_ANSWERS_WITHIN_S + 1).topic_id)
        except TimeoutError:
            raise LogUnavailableError(f"{place(self._settings)}: no answer in {_ANSWERS_WITHIN_S:g} s") from None
        return self.last


# Dead letters as records of `<topic>.dead`: the key is the id of the write, the value is the message's.
#
# A letter keeps the headers of its message. Headers that begin with `fencepost-dead-` say the rest. A letter that the
# topic does not take, because it is too large, leaves out the value of its message, then the headers too: the message
# is still in the log, at the place that the letter names.

_REASON: Final = "fencepost-dead-reason"
_PARTITION: Final = "fencepost-dead-partition"
_OFFSET: Final = "fencepost-dead-offset"
_KEY: Final = "fencepost-dead-key"
_AT: Final = "fencepost-dead-at"
_NO_VALUE: Final = "fencepost-dead-no-value"
"""There when the message had no value: a record without one would remove the letter."""
_LEFT_OUT: Final = "fencepost-dead-left-out"
"""There when the letter does not have all of its message: what it left out."""
_LETTER_HEADERS: Final = frozenset({_REASON, _PARTITION, _OFFSET, _KEY, _AT, _NO_VALUE, _LEFT_OUT})

EVERYTHING: Final = ""
VALUE: Final = "value"
VALUE_AND_HEADERS: Final = "value and headers"
LEAVES_OUT: Final = (EVERYTHING, VALUE, VALUE_AND_HEADERS)
"""What a letter leaves out of its message, from nothing on; each is smaller than the one before."""
_MOST_REASON: Final = 16_384
_MOST_KEY: Final = 16_384
"""Bytes of a reason, and of a key where the headers are left out. A reason may quote a value, and another program's
message may have any key.
"""
MORE_THAN_ITS_MESSAGE: Final = 65_536
"""A letter is larger than its message by less than so many bytes."""


def record_of(letter: DeadLetter, settings: KafkaSettings, left_out: str) -> Message:
    """Make the record of a letter, without this of its message."""
    message, where = letter.message, letter.position
    reason, key = letter.reason, message.key
    if left_out:
        reason = (
            f"{_cut(reason, _MOST_REASON // 2)} (the letter was too large for {settings.dead_topic}, and has no"
            f" {left_out.replace(' and ', ' and no ')} of the message, which is at offset {where.offset} of partition"
            f" {where.partition} of {settings.topic})"
        )
    if left_out == VALUE_AND_HEADERS:
        key = key[:_MOST_KEY]
    headers: Headers = (
        *(() if left_out == VALUE_AND_HEADERS else message.headers),
        (_REASON, _cut(reason, _MOST_REASON).encode()),
        (_PARTITION, b"%d" % where.partition),
        (_OFFSET, b"%d" % where.offset),
        (_KEY, key),
        (_AT, repr(letter.at).encode()),
        *(((_NO_VALUE, b"1"),) if message.value is None or left_out else ()),
        *(((_LEFT_OUT, left_out.encode()),) if left_out else ()),
    )
    return Message(letter.id.encode(), b"" if message.value is None or left_out else message.value, headers)


def letter_from(record: KafkaMessage) -> DeadLetter:
    """Read a letter. What another program wrote there has the reason that it is none of Fencepost's."""
    stored = message_from(record)
    ours = {name: value for name, value in stored.headers if name in _LETTER_HEADERS}
    headers: Headers = tuple((name, value) for name, value in stored.headers if name not in _LETTER_HEADERS)
    id_ = stored.key.decode(errors="replace")
    try:
        where = Position(int(ours[_PARTITION]), int(ours[_OFFSET]))
        at, reason, key = float(ours[_AT]), ours[_REASON].decode(errors="replace"), ours[_KEY]
    except (KeyError, ValueError):
        where = Position(record.partition() or 0, record.offset() or 0)
        return DeadLetter(id_, "not written by Fencepost", where, stored, record.timestamp()[1] / 1000)
    message = Message(key, None if _NO_VALUE in ours else stored.value, headers)
    return DeadLetter(id_, reason, where, message, at, ours.get(_LEFT_OUT, b"").decode(errors="replace"))


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")


# Finds when the first message that is not decided was appended. Kafka tells the time of a message only with the
# message, so each is read, once for as long as it is the first of its partition.

_Read = dict[int, Written | None]
_NOTHING: Final = (-1, None)


class OldestMessages:
    """Of one topic. A read that was given up by who asked goes on, and serves the next one who asks."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._topic_id = ""
        self._known: dict[int, tuple[int, float | None]] = {}
        """By partition, the offset from which was read, and the time that was found."""
        self._reading: asyncio.Task[None] | None = None

    async def times(self, topic_id: str, offsets: Mapping[int, int]) -> dict[int, float | None]:
        """Give, by partition, when the message at this offset was appended, or the next one where there is none at it.
        None: not known. Raises LogUnavailableError.
        """
        if topic_id != self._topic_id:
            self._topic_id, self._known = topic_id, {}
        while unread := {each: at for each, at in offsets.items() if self._known.get(each, _NOTHING)[0] != at}:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read(unread))
                self._reading.add_done_callback(self._over)
            await asyncio.shield(self._reading)
        return {each: self._known[each][1] for each in offsets}

    async def close(self) -> None:
        """Wait for a read that is under way: it ends within seconds."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def _read(self, offsets: dict[int, int]) -> None:
        try:
            found = await asyncio.to_thread(self._read_at, offsets)
        except KafkaException as error:
            raise unavailable(self._settings, error) from None
        self._known |= {each: (at, written.at if (written := found[each]) else None) for each, at in offsets.items()}

    def _read_at(self, offsets: dict[int, int]) -> _Read:
        with Epochs(self._settings) as messages:
            return messages.at(offsets)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # who asked has it; nobody may have waited for it
