"""What the conformance suite of the logs needs: each log's real server, and ways to harm it and the log."""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

import asyncpg
from click.testing import CliRunner, Result
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewTopic
from tests.conformance.benches import Harmed, redis_command, redis_server
from tests.support.consuming import make_tables, settings_of, write
from tests.support.interleave import Connection
from tests.support.postgres import first_server, server_bin_dir
from tests.support.servers import all_gone, or_skipped, self_signed

from fencepost.cli.main import main
from fencepost.cli.queue import chosen_queues
from fencepost.server.consuming.consumer import QueueConsumer
from fencepost.server.fence.token import GENERATION_BITS
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.ops.embedded import PostgresServer
from fencepost.server.ops.migrate import upgrade
from fencepost.server.parts import consumer_of, consuming
from fencepost.server.postgres import sources
from fencepost.server.postgres.connection import Limits
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import StorageError
from fencepost.server.queues.kafka import from_url
from fencepost.server.queues.log import DeadLetter, Log, LogUnavailableError, Position
from fencepost.server.queues.postgres import TTL, PostgresLog
from fencepost.server.queues.redis import TTL_MS
from fencepost.server.queues.redis import from_url as redis_from_url
from fencepost.server.queues.redis_server import read_url
from fencepost.server.serve import consumer_gateway
from fencepost.server.settings import Settings
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.postgres import clone, in_database, quick_logins, run_on
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port, server_directory, wait_until
from fencepost.testing.servers.server import Server


class QueueBench(Harmed, Protocol):
    """The server of one kind of log, running. A class for each, a line in BENCHES, and one in LOGS."""

    name: str
    handed_over_within_s: float
    """How long the partitions of a member that died stay without another, at most."""

    async def new_log(self, partitions: int) -> str:
        """Make an empty log of its own for a test, and return its URL."""
        ...

    async def make_again(self, url: str) -> None:
        """Delete this log, and make it again under the same name with as many partitions."""
        ...


# Kafka: one broker, topics of one replica.

SESSION_S = 10
_QUERY = f"session.timeout.ms={SESSION_S}000&heartbeat.interval.ms=300&delivery.timeout.ms=5000"
"""Short times, so that a test of a dead member takes seconds: but a session outlasts a handover by who closes."""
_numbers = itertools.count(1)


def next_topic() -> str:
    """Give a name that no other test has."""
    return f"orders-{next(_numbers)}"


def topic_url(cluster: Kafka, topic: str) -> str:
    return f"kafka://{cluster.bootstrap}/{topic}?{_QUERY}"


def kafka_admin(cluster: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def make_topic(
    cluster: Kafka,
    topic: str,
    partitions: int,
    config: dict[str, str] | None = None,
    assignment: list[list[int]] | None = None,
) -> None:
    """Make a topic, and return once all of its partitions have a leader. `assignment`: nodes by partition, else one."""
    client = kafka_admin(cluster)
    replicas = {"replication_factor": 1} if assignment is None else {"replica_assignment": assignment}
    times = {"message.timestamp.type": "LogAppendTime"}
    new = NewTopic(topic, partitions, config=times | (config or {}), **replicas)
    client.create_topics([new])[topic].result(30)
    wait_until(lambda: _led(client, topic, partitions), what=f"leaders of {topic}")


def _led(client: AdminClient, topic: str, partitions: int) -> bool:
    found = client.list_topics(topic, timeout=10).topics[topic].partitions
    return len(found) == partitions and all(each.leader >= 0 for each in found.values())


def delete_topic(cluster: Kafka, topic: str) -> None:
    """Delete a topic, and return once it is gone."""
    client = kafka_admin(cluster)
    client.delete_topics([topic])[topic].result(30)
    wait_until(lambda: topic not in client.list_topics(timeout=10).topics, what=f"{topic} gone")


class KafkaBench:
    name = "kafka"
    handed_over_within_s = SESSION_S + 5.0

    def __init__(self, cluster: Kafka) -> None:
        self.cluster = cluster

    async def new_log(self, partitions: int) -> str:
        topic = next_topic()
        await asyncio.to_thread(make_topic, self.cluster, topic, partitions)
        return topic_url(self.cluster, topic)

    async def make_again(self, url: str) -> None:
        topic = urlsplit(url).path.removeprefix("/")
        found = await asyncio.to_thread(kafka_admin(self.cluster).list_topics, topic, 10)
        await asyncio.to_thread(delete_topic, self.cluster, topic)
        await asyncio.to_thread(make_topic, self.cluster, topic, len(found.topics[topic].partitions))

    async def crash(self) -> None:
        for broker in self.cluster.brokers:
            await asyncio.to_thread(broker.server.crash)

    async def restart(self) -> None:
        for broker in self.cluster.brokers:
            broker.server.start()
        await self._answers()

    async def pause(self) -> None:
        for broker in self.cluster.brokers:
            broker.server.pause()

    async def resume(self) -> None:
        for broker in self.cluster.brokers:
            broker.server.resume()
        await self._answers()

    async def _answers(self) -> None:
        for broker in self.cluster.brokers:
            await broker.server.serves()
        await asyncio.to_thread(wait_until, self._all_are_led, within=2 * PATIENCE, what="leaders of all partitions")

    def _all_are_led(self) -> bool:
        try:
            topics = kafka_admin(self.cluster).list_topics(timeout=5).topics.values()
        except KafkaException:
            return False
        return all(each.leader >= 0 for topic in topics for each in topic.partitions.values())


@contextmanager
def brokers(
    directory: Path, nodes: int, more: Mapping[str, str] | None = None, listener: str = "PLAINTEXT"
) -> Iterator[Kafka]:
    """Run so many brokers, with these properties more; skips where Kafka is not there."""
    with or_skipped():
        cluster = Kafka(directory, nodes, more, listener)
    with cluster:
        yield cluster


@contextmanager
def running_kafka(directory: Path) -> Iterator[KafkaBench]:
    with brokers(directory, 1) as cluster:
        yield KafkaBench(cluster)


# A Kafka broker that takes TLS with a user and a password only.

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
        "sasl.enabled.mechanisms": ",".join(MECHANISMS), "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(pair), "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Secured:
    """The broker. `authority`: who signed its certificate; `stranger`: another one."""

    cluster: Kafka
    authority: Path
    stranger: Path

    def url(self, topic: str, mechanism: str, password: str = PASSWORD, authority: Path | None = None) -> str:
        """Give a topic's URL, as an operator would write it."""
        return (
            f"{topic_url(self.cluster, topic)}&security.protocol=SASL_SSL&ssl.ca.location={authority or self.authority}"
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
                "bootstrap.servers": self.cluster.bootstrap, "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(self.authority), "sasl.mechanism": "PLAIN", "sasl.username": "broker",
                "sasl.password": PASSWORD,
            }
        )  # fmt: skip


@contextmanager
def secured_broker(directory: Path) -> Iterator[Secured]:
    """Run one, with its certificates and users, until the block ends."""
    authority, stranger = self_signed(directory / "authority"), self_signed(directory / "stranger")
    with brokers(directory / "kafka", 1, properties(authority), "SASL_SSL") as cluster:
        running = Secured(cluster, authority, stranger)
        running.prepare()
        yield running


# A Kafka topic that is consumed as `fencepost consume` does it, into a table of a real PostgreSQL with an oracle.

WITHIN = 3 * PATIENCE


@dataclass
class ConsumedTopic:
    """The queue of a topic, as a gateway has it, and a connection that looks on. Writes are numbered: `n` of a row."""

    name: str
    gateway: Gateway
    settings: Settings
    owner: Connection
    consumer: QueueConsumer | None = None

    @property
    def log(self) -> Log:
        return self.gateway.queues[self.name]

    @asynccontextmanager
    async def consumed(self, member: str = "a") -> AsyncIterator[None]:
        self.consumer = consumer_of(self.gateway, self.name, self.settings, member)
        async with consuming(self.gateway, {self.name: self.consumer}, self.settings):
            yield

    async def append(self, key: str, *numbers: int) -> list[Position]:
        """Append writes of a row; each until it is acknowledged, so one may be there twice."""

        async def appended(number: int) -> Position | None:
            try:
                return await self.log.append(write(f"orders/{key}", body={"n": number}))
            except LogUnavailableError:
                return None

        async def acknowledged(number: int) -> Position:
            return await eventually(lambda: appended(number), within=WITHIN, what="an acknowledgement")

        return [await acknowledged(number) for number in numbers]

    async def effects(self) -> list[tuple[str, int, int]]:
        """List what was written, in its order: key, number, generation of its token."""
        rows = await self.owner.fetch("SELECT resource, n, token FROM public.effects ORDER BY id")
        found = [(row["resource"].partition("/")[2], row["n"], row["token"] >> GENERATION_BITS) for row in rows]
        return list(dict.fromkeys(found))

    async def has(self, *effects: tuple[str, int, int]) -> None:
        """Return once exactly these are there, those of a row in this order; rows have none among them."""

        def by_row(found: Iterable[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
            return sorted(found, key=lambda each: each[0])

        async def there() -> bool:
            return by_row(await self.effects()) == by_row(effects)

        try:
            await eventually(there, within=WITHIN, what="all effects")
        except TimeoutError as error:
            state, consumer = await sources.state(self.owner, self.name, ""), self.consumer
            error.add_note(f"{await self.effects()} instead of {[*effects]}; {state}")
            error.add_note("" if consumer is None else f"{consumer.paused_because} {consumer.partitions}")
            raise

    async def quarantined(self) -> str:
        """Return why it is quarantined, once it is."""

        async def because() -> str | None:
            return (await sources.state(self.owner, self.name, "")).quarantined

        return await eventually(because, within=WITHIN, what="a quarantine")

    async def run(self, *arguments: str) -> Result:
        """Run `fencepost …` on its database."""
        assert self.settings.database_url is not None
        assert self.settings.queues is not None
        environment = {
            "FENCEPOST_DATABASE_URL": self.settings.database_url.get_secret_value(),
            "FENCEPOST_QUEUES": self.settings.queues.get_secret_value(),
        }
        return await asyncio.to_thread(CliRunner().invoke, main, [*arguments], env=environment)

    async def is_raised(self) -> None:
        """Raise the source, which is shown to be quarantined, as an operator would; that ends it."""
        shown = await self.run("source")
        assert (shown.exit_code, f"{self.name} (kafka): quarantined at" in shown.output) == (1, True), shown.output
        raised = await self.run("source", "raise", self.name, "--reason", "the log is another")
        assert raised.exit_code == 0, raised.output
        shown = await self.run("source")
        assert shown.exit_code == 0, shown.output

    async def letters(self, count: int) -> list[DeadLetter]:
        """Return the dead letters once there are so many."""

        async def there() -> list[DeadLetter] | None:
            try:
                found = [*await self.log.dead.list(count + 1)]
            except LogUnavailableError:  # the topic may just be made
                return None
            return found if len(found) >= count else None

        return await eventually(there, within=WITHIN, what=f"{count} dead letters")


@asynccontextmanager
async def consumed_topic(cluster: Kafka, topic: str, owner: Connection, database: str) -> AsyncIterator[ConsumedTopic]:
    """Make the table that takes its writes by the topic, and open both."""
    url = topic_url(cluster, topic)
    name = f"kafka:{urlsplit(url).path.removeprefix('/')}"
    await make_tables(owner, effects=True, queue=name)
    settings = settings_of(database, queues=url)
    async with consumer_gateway(settings, chosen_queues(settings, [name])) as gateway:
        yield ConsumedTopic(name, gateway, settings, owner)


# One PostgreSQL; each log is the one of a database of its own, with as many partitions as the test wants.

TEMPLATE = "queue_template"
MADE_AGAIN = """
CREATE TABLE fencepost.queued_again (LIKE fencepost.queued INCLUDING ALL);
DROP TABLE fencepost.queued;
ALTER TABLE fencepost.queued_again RENAME TO queued;
ALTER SEQUENCE fencepost.queue_0 RESTART;
ALTER SEQUENCE fencepost.queue_1 RESTART;
ALTER SEQUENCE fencepost.queue_2 RESTART"""


class OpenedLog(PostgresLog):
    """The log of a database, with the connections to it."""

    def __init__(self, dsn: str, partitions: int) -> None:
        self._dsn, self._partitions_asked = dsn, partitions

    async def open(self) -> None:
        try:
            self._opened = await Database.open(self._dsn, Limits(pool_size=4, batch_pool_size=1))
        except StorageError as error:
            raise LogUnavailableError(str(error)) from error
        super().__init__(self._opened, self._dsn, self._partitions_asked)

    async def close(self) -> None:
        await super().close()
        await self._opened.close()


def postgres_log(url: str) -> OpenedLog:
    dsn, _, partitions = url.partition("?partitions=")
    return OpenedLog(dsn, int(partitions))


class PostgresQueueBench:
    name = "postgres"
    handed_over_within_s = TTL + 10

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self.server, self._directory = server, directory
        self._numbers = itertools.count(1)

    async def new_log(self, partitions: int) -> str:
        name = f"queue_{next(self._numbers)}"
        await clone(self.server.url, name, TEMPLATE)
        dsn = in_database(self.server.url, name)
        await run_on(dsn, f"DELETE FROM fencepost.queue_owners WHERE partition >= {partitions}")
        return f"{dsn}?partitions={partitions}"

    async def make_again(self, url: str) -> None:
        await run_on(url.partition("?")[0], MADE_AGAIN)

    async def crash(self) -> None:
        pids = self._pids()
        os.kill(pids[0], signal.SIGKILL)
        self.server.stop()
        await all_gone(pids)

    async def restart(self) -> None:
        self.server.start()

    async def pause(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    async def resume(self) -> None:
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

        async def answers() -> bool:
            try:
                await asyncio.wait_for(run_on(self.server.url, "SELECT 1"), 2)
            except (OSError, TimeoutError, asyncpg.PostgresError):
                return False
            return True

        await eventually(answers, what="an answer")

    @property
    def _pid(self) -> int:
        return int((self._directory / "pgdata" / "postmaster.pid").read_text().split()[0])

    def _pids(self) -> list[int]:
        """Find the server and its backends."""
        children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        return [self._pid, *map(int, children)]


@contextmanager
def running_postgres(_directory: Path) -> Iterator[PostgresQueueBench]:
    with (
        server_directory() as directory,
        PostgresServer(bin_dir=server_bin_dir(first_server()), data_dir=directory / "data", port=free_port()) as server,
    ):
        quick_logins(server.url)

        async def make() -> None:
            await run_on(server.url, f"CREATE DATABASE {TEMPLATE}")
            await upgrade(in_database(server.url, TEMPLATE))

        asyncio.run(make())
        yield PostgresQueueBench(server, directory / "data")


# One Redis server with a journal that is on disk before it answers; each log has a stream name of its own.


async def delete_keys(url: str, pattern: str) -> None:
    """Delete all keys of this pattern, as an operator would."""
    port = read_url(url).hosts[0].port
    for key in await redis_command(port, "KEYS", pattern):
        await redis_command(port, "DEL", key.decode())


class RedisQueueBench:
    name = "redis"
    handed_over_within_s = TTL_MS / 1000 + 10

    def __init__(self, server: Server, port: int) -> None:
        self.server, self.port = server, port
        self._numbers = itertools.count(1)

    async def new_log(self, partitions: int) -> str:
        return f"redis://127.0.0.1:{self.port}/orders-{next(self._numbers)}?partitions={partitions}"

    async def make_again(self, url: str) -> None:
        stream = read_url(url).path.removeprefix("/")
        await delete_keys(url, f"fencepost:{{{stream}}}*")
        log = redis_from_url(url)
        await log.state()
        await log.close()

    async def crash(self) -> None:
        self.server.crash()

    async def restart(self) -> None:
        self.server.start()
        await self.server.serves()

    async def pause(self) -> None:
        self.server.pause()

    async def resume(self) -> None:
        self.server.resume()
        await redis_command(self.port, "PING")


@contextmanager
def running_redis(directory: Path) -> Iterator[RedisQueueBench]:
    port = free_port()
    with redis_server(directory / "server", port) as server:
        yield RedisQueueBench(server, port)


BENCHES: dict[str, Callable[[Path], AbstractContextManager[QueueBench]]] = {
    "kafka": running_kafka, "postgres": running_postgres, "redis": running_redis
}  # fmt: skip
"""The logs that are checked, and what runs the server of each."""
LOGS: dict[str, Callable[[str], Log]] = {"kafka": from_url, "postgres": postgres_log, "redis": redis_from_url}


def log_of(bench: str, url: str) -> Log:
    """Make the log that a URL of the bench of this name stands for, not opened yet."""
    return LOGS[bench](url)
