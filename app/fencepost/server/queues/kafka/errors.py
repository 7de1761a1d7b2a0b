"""What librdkafka's errors mean for a log."""

import logging
import re
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from fencepost.server.queues.kafka.url import KafkaSettings, Properties
from fencepost.server.queues.log import LogConfigError, LogError, LogUnavailableError, LogUnknownError


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
        """Note an error that concerns no request."""
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
