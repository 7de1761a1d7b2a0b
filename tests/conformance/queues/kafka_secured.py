"""A Kafka broker that takes TLS with a user and a password only."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewTopic
from tests.conformance.queues.kafka_bench import brokers, url_of
from tests.support.servers import self_signed

from fencepost.testing.servers.kafka import Kafka

PASSWORD = "s3cr&t#1 +%"
"""Has what a URL has to escape."""
LOGIN = "org.apache.kafka.common.security"
MECHANISMS = ("PLAIN", "SCRAM-SHA-512")


def properties(certificate: Path) -> dict[str, str]:
    """Give the broker's: one listener, SASL_SSL; users of PLAIN stand here, those of SCRAM are made by an operator."""
    pair = certificate.with_name("pair.pem")
    pair.write_text(certificate.with_name("key.pem").read_text() + certificate.read_text())
    users = " ".join(f'user_{name}="{PASSWORD}"' for name in ("broker", "fencepost"))
    plain = f'{LOGIN}.plain.PlainLoginModule required username="broker" password="{PASSWORD}" {users};'
    return {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pair),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
    }


@dataclass(frozen=True, slots=True)
class Secured:
    """The broker. `authority`: who signed its certificate; `stranger`: another one."""

    cluster: Kafka
    authority: Path
    stranger: Path

    def url(self, topic: str, mechanism: str, password: str = PASSWORD, authority: Path | None = None) -> str:
        """Give a topic's URL, as an operator would write it."""
        return (
            f"{url_of(self.cluster, topic)}&security.protocol=SASL_SSL&ssl.ca.location={authority or self.authority}"
            f"&sasl.mechanism={mechanism}&sasl.username=fencepost&sasl.password={quote(password)}"
        )

    def prepare(self) -> None:
        """Make the user of SCRAM."""
        secret = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        made = UserScramCredentialUpsertion("fencepost", secret, PASSWORD.encode())
        client = self.admin()
        client.alter_user_scram_credentials([made])["fencepost"].result(30)

    def make_topic(self, topic: str, partitions: int = 1) -> None:
        """Make a topic."""
        client = self.admin()
        client.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)

    def admin(self) -> AdminClient:
        """Connect as the broker's own user."""
        return AdminClient(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(self.authority),
                "sasl.mechanism": "PLAIN",
                "sasl.username": "broker",
                "sasl.password": PASSWORD,
            }
        )


@contextmanager
def secured_broker(directory: Path) -> Iterator[Secured]:
    """Run one, with its certificates and users, until the block ends."""
    authority, stranger = self_signed(directory / "authority"), self_signed(directory / "stranger")
    with brokers(directory / "kafka", 1, properties(authority), "SASL_SSL") as cluster:
        running = Secured(cluster, authority, stranger)
        running.prepare()
        yield running
