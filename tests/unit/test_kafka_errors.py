"""What went wrong last with a broker stands in the error of a request that ran out of time."""

from confluent_kafka import KafkaError

from fencepost.queues.kafka.errors import BrokerErrors

_SSL = KafkaError._SSL  # noqa: SLF001 - librdkafka's own codes have such names
TIMED_OUT = KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001


def behind(*texts: str) -> str:
    brokers = BrokerErrors()
    for text in texts:
        brokers.note(KafkaError(_SSL, text))
    return brokers.behind(TIMED_OUT)


def test_an_error_of_its_own_needs_no_other_behind_it() -> None:
    brokers = BrokerErrors()
    brokers.note(KafkaError(_SSL, "handshake failed"))
    assert brokers.behind(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)) == ""


def test_the_property_of_a_certificate_that_is_not_trusted_is_named_once() -> None:
    short = "a:1: error:0A000086:SSL routines::certificate verify failed"
    long = f"{short}: broker certificate could not be verified, verify that ssl.ca.location is correctly configured"
    for texts in ((short,), (long,), (short, long), (long, short)):
        said = behind(*texts)
        assert "certificate verify failed" in said
        assert said.count("ssl.ca.location") == 1
    assert "ssl.ca.location" not in behind("a:1: connection refused")
