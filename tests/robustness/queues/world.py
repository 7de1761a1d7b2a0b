"""Queued writes from eight clients: the log's servers, the submitters, consumers, and the oracle in the database."""

import asyncio
import itertools
import json
import os
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import asyncpg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from tests.conformance.benches import redis_server
from tests.conformance.queues.benches import make_topic, secured_broker, topic_url
from tests.support.interleave import connection_to
from tests.support.postgres import first_server, server_bin_dir
from tests.support.servers import self_signed

from fencepost.server.ops.migrate import upgrade
from fencepost.server.ops.protect import protect
from fencepost.testing.servers.gateway import COMMAND, GatewayServer, gateway_environment
from fencepost.testing.servers.kafka import Kafka
from fencepost.testing.servers.launcher import Launcher
from fencepost.testing.servers.lock_services import DURABLE, redis
from fencepost.testing.servers.postgres import Postgres, in_database, quick_logins, run_on
from fencepost.testing.servers.processes import PATIENCE, eventually, free_port, server_directory
from fencepost.testing.servers.server import ChildProcess, Server

# An oracle inside the database: which submissions had which effect, in which order of their rows.
# Its trigger draws a number while the row is locked, so the numbers order the effects of a row. The oracle shares no
# code with the product; of its interface it knows what a token is made of (R12), and the column with a row's mark.

ROWS = 64
KEYS = tuple(f"k{number}" for number in range(ROWS))

SCHEMA = f"""
CREATE SCHEMA oracle;
CREATE TABLE oracle.effects (n bigserial PRIMARY KEY, key text NOT NULL, tag text NOT NULL, token bigint);
CREATE INDEX ON oracle.effects (tag);
CREATE FUNCTION oracle.see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO oracle.effects (key, tag, token)
  VALUES (NEW.id, NEW.tag, (to_jsonb(NEW) ->> 'last_fence_token')::bigint);
  RETURN NULL;
END $$;
CREATE TABLE public.orders (id text PRIMARY KEY, tag text);
INSERT INTO public.orders SELECT 'k' || i FROM generate_series(0, {ROWS - 1}) i;
"""
TRIGGER = (
    "CREATE TRIGGER zzzz_oracle AFTER INSERT OR UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION oracle.see()"
)

Answer = Literal["acknowledged", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Submission:
    """A write that was submitted, and what its writer was answered. `writer`: submits one after the other; `tag`: its
    own, of this write alone. `offset`: its place, when it was acknowledged. `repeated`: it had an Idempotency-Key and
    was submitted until it was acknowledged, so that it may have other places as well.
    """

    writer: str
    key: str
    tag: str
    answer: Answer
    offset: int | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Effect:
    """One change of a row."""

    key: str
    tag: str
    token: int | None


async def effects_of(connection: asyncpg.Connection) -> list[Effect]:
    """Read what was done, in its order by row."""
    rows = await connection.fetch("SELECT key, tag, token FROM oracle.effects ORDER BY n")
    return [Effect(row["key"], row["tag"], row["token"]) for row in rows]


def judge(
    submissions: Iterable[Submission], effects: Sequence[Effect], places: Mapping[str, Collection[int]] | None = None
) -> list[str]:
    """List what is wrong; empty: each acknowledged submission has one effect, in the order of its row. `places`: the
    offsets at which a tag stands in the log. Kafka's producer may append a message twice, and report either place.
    """
    known = {each.tag: each for each in submissions}
    tokens = _wrong_tokens(known, effects, places or {})
    return [*_wrong_counts(known, effects), *tokens, *_wrong_orders(known, effects)]


def _wrong_counts(known: dict[str, Submission], effects: Sequence[Effect]) -> Iterable[str]:
    times = Counter(each.tag for each in effects)
    for tag in times.keys() - known.keys():
        yield f"{tag} had an effect, and was never submitted"
    for tag, each in known.items():
        allowed = {"acknowledged": (1,), "refused": (0,), "unknown": (0, 1)}[each.answer]
        if times[tag] not in allowed:
            under = [effect.token for effect in effects if effect.tag == tag]
            yield f"{tag} of {each.key} was {each.answer} (offset {each.offset}): {times[tag]} effects under {under}"
    for effect in effects:
        if effect.tag in known and known[effect.tag].key != effect.key:
            yield f"{effect.tag} was submitted for {known[effect.tag].key}, and changed {effect.key}"


def _wrong_tokens(
    known: dict[str, Submission], effects: Sequence[Effect], places: Mapping[str, Collection[int]]
) -> Iterable[str]:
    last: dict[str, int] = {}
    for effect in effects:
        if effect.token is None or effect.token <= last.get(effect.key, 0):
            yield f"{effect.tag} changed {effect.key} under token {effect.token}, after {last.get(effect.key)}"
        last[effect.key] = effect.token or 0
        submitted = known.get(effect.tag)
        if submitted is None or submitted.offset is None or submitted.repeated:
            continue
        stands_at = places.get(effect.tag, (submitted.offset,))
        if submitted.offset not in stands_at or last[effect.key] % 2**48 - 1 not in stands_at:
            yield f"{effect.tag} is at offset {submitted.offset}, and was done under token {effect.token}"


def _wrong_orders(known: dict[str, Submission], effects: Sequence[Effect]) -> Iterable[str]:
    """A writer submits to a row only after the submission before was acknowledged: so must the effects follow."""
    meant: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for each in known.values():
        if each.answer == "acknowledged":
            meant[each.writer, each.key].append(each.tag)
    seen: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for effect in effects:
        if effect.tag in known and known[effect.tag].answer == "acknowledged":
            seen[known[effect.tag].writer, effect.key].append(effect.tag)
    for (writer, key), tags in meant.items():
        if seen[writer, key] != tags:
            yield f"{writer} submitted to {key} {_first_difference(tags, seen[writer, key])}"


def _first_difference(meant: Sequence[str], seen: Sequence[str]) -> str:
    place = next(
        (place for place, pair in enumerate(zip(meant, seen, strict=False)) if pair[0] != pair[1]),
        min(len(meant), len(seen)),
    )
    return f"{list(meant[place : place + 3])}, and what was done there is {list(seen[place : place + 3])}"


# Writers that submit to a gateway over HTTP, each write with a tag of its own, and note what they were answered.

PRODUCERS = 8
ANSWERED_WITHIN = PATIENCE  # seconds
PAUSE = 0.05  # seconds, of a writer who was refused, before it submits something else

_UNKNOWN = "FP027"
"""The gateway's own word that it does not know. Each other refusal says that nothing was queued."""


@dataclass
class Connection:
    """One HTTP connection, made anew after each error."""

    url: str
    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def patch(self, key: str, tag: str, once: str | None) -> tuple[int, dict[str, object]]:
        """Submit a write; the status and the body. OSError, EOFError, TimeoutError: nothing is known."""
        body = json.dumps({"tag": tag})
        extra = f"Idempotency-Key: {once}\r\n" if once else ""
        request = (
            f"PATCH /v1/data/orders/{key} HTTP/1.1\r\nHost: localhost\r\nPrefer: respond-async\r\n{extra}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        )
        try:
            async with asyncio.timeout(ANSWERED_WITHIN):
                return await self._ask(request.encode())
        except BaseException:
            self.close()
            raise

    async def _ask(self, request: bytes) -> tuple[int, dict[str, object]]:
        if self._streams is None:
            where = urlsplit(self.url)
            self._streams = await asyncio.open_connection(where.hostname, where.port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.partition("content-length:")[2].partition("\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        if "connection: close" in head:
            self.close()
        return int(head.split()[1]), answer

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


@dataclass
class Submitters:
    """Submit until it is enough."""

    url: str
    seed: int
    enough: Callable[[], bool]
    submissions: list[Submission] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def acknowledged(self) -> int:
        return self.answers["202"]

    async def submit(self, *, width: int = 8, repeat: bool = False) -> None:
        """Run PRODUCERS producers of `width` writers each. `repeat`: every other writer has Idempotency-Keys, and
        submits each write until it is acknowledged.
        """
        async with asyncio.TaskGroup() as group:
            for producer, writer in itertools.product(range(PRODUCERS), range(width)):
                group.create_task(self._write(f"p{producer}-{writer}", repeat=repeat and writer % 2 == 0))

    async def until_acknowledged(self, key: str, tag: str) -> None:
        """Submit one write, as often as it takes."""
        connection = Connection(self.url)
        try:
            await self._repeat(connection, f"once-{tag}", key, tag)
        finally:
            connection.close()

    async def _write(self, writer: str, *, repeat: bool) -> None:
        chosen, connection = random.Random(f"{self.seed}-{writer}"), Connection(self.url)
        try:
            for number in itertools.count():
                if self.enough():
                    return
                key, tag = chosen.choice(KEYS), f"{writer}-{number}"
                if repeat:
                    await self._repeat(connection, writer, key, tag)
                    continue
                answer, offset = await self._once(connection, key, tag, None)
                self.submissions.append(Submission(writer, key, tag, answer, offset))
                if answer != "acknowledged":
                    await asyncio.sleep(PAUSE)
        finally:
            connection.close()

    async def _repeat(self, connection: Connection, writer: str, key: str, tag: str) -> None:
        times, offset = 0, None
        while offset is None:
            if times:
                await asyncio.sleep(PAUSE)
            times += 1
            _, offset = await self._once(connection, key, tag, tag)
        self.submissions.append(Submission(writer, key, tag, "acknowledged", offset, repeated=times > 1))

    async def _once(self, connection: Connection, key: str, tag: str, once: str | None) -> tuple[Answer, int | None]:
        try:
            status, body = await connection.patch(key, tag, once)
        except ConnectionRefusedError:
            self.answers["refused"] += 1
            return "refused", None
        except (OSError, EOFError) as error:  # EOFError: IncompleteReadError; OSError: TimeoutError too
            self.answers[type(error).__name__] += 1
            return "unknown", None
        if status == 202:
            self.answers["202"] += 1
            return "acknowledged", int(str(body["id"]).rsplit(".", 2)[1])
        self.answers[f"{status} {body.get('code')}"] += 1
        assert status == 503, body
        return ("unknown" if body.get("code") == _UNKNOWN else "refused"), None


# The servers of a queue's log, each of which can be killed.

PARTITIONS = 6
THREE = "kafka-three"
"""Kafka with three brokers, of which any two serve."""
KINDS = ("postgres", "kafka", "redis")
"""One of each log; postgres: the database itself is the log."""
OneKafka = Callable[[], Kafka]
"""Starts a Kafka with one broker, when it is called for the first time, for all tests that do not harm it."""
_topics = itertools.count(1)
SECURED = ("kafka-secured", "redis-secured")
"""Servers that take TLS only; Kafka's with a user and a password, too."""


@dataclass(frozen=True, slots=True)
class LogServers:
    """`queue`: the name of the queue; `url`: as FENCEPOST_QUEUES has it. `servers`: what can be killed, by name.
    `spare`: how many of them may be away while the others serve. `topic`: of Kafka.
    """

    queue: str
    url: str | None = None
    servers: dict[str, Server] = field(default_factory=dict)
    kafka: Kafka | None = None
    spare: int = 0
    topic: str = "orders"

    def places(self) -> dict[str, set[int]]:
        """Read at which offsets of Kafka's topic each tag stands; nothing of other logs, which have each once."""
        if self.kafka is None:
            return {}
        found: defaultdict[str, set[int]] = defaultdict(set)
        settings = {"group.id": "oracle", "enable.auto.commit": False, "enable.partition.eof": True}
        reader = Consumer({**settings, "bootstrap.servers": self.kafka.bootstrap})
        reader.assign([TopicPartition(self.topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        left = set(range(PARTITIONS))
        while left:
            message = reader.poll(PATIENCE)
            assert message is not None, f"partitions {left} were not read to their ends"
            error, value, offset = message.error(), message.value(), message.offset()
            if error is None:
                assert value is not None
                assert offset is not None
                found[json.loads(value)["tag"]].add(offset)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - that is its name
                left.discard(message.partition())
        reader.close()
        return found


async def log_servers(kind: str, directory: Path, stack: ExitStack, one_kafka: OneKafka | None) -> LogServers:
    """Run what a log of this kind needs; `stack` ends it. `one_kafka`: in place of a Kafka of its own."""
    if kind == "postgres":
        return LogServers("postgres:default")
    if kind == "redis":
        service = redis(directory / "redis")
        stack.callback(service.server.crash)
        service.server.start()
        await service.server.serves()
        url = f"{service.url.removesuffix('/0')}/orders?partitions={PARTITIONS}"
        return LogServers("redis:orders", url, {"redis": service.server})
    if kind == "redis-secured":
        certificate, port = self_signed(directory), free_port()
        pair = ("--tls-cert-file", str(certificate), "--tls-key-file", str(certificate.with_name("key.pem")))
        options = ("--tls-port", str(port), "--tls-auth-clients", "no", *pair)
        stack.enter_context(redis_server(directory / "redis", free_port(), *DURABLE, *options))
        return LogServers("redis:orders", f"rediss://127.0.0.1:{port}/orders?ca={certificate}")
    if kind == "kafka-secured":
        secured = stack.enter_context(secured_broker(directory))
        await asyncio.to_thread(secured.make_topic, "orders", PARTITIONS)
        return LogServers("kafka:orders", secured.url("orders", "SCRAM-SHA-512"))
    if kind == THREE or one_kafka is None:
        return await _kafka(stack.enter_context(Kafka(directory / "kafka", 3 if kind == THREE else 1)))
    return await _kafka(one_kafka())


async def _kafka(kafka: Kafka) -> LogServers:
    nodes, topic = len(kafka.brokers), f"orders-{next(_topics)}"
    everywhere = [[(first + next_) % nodes + 1 for next_ in range(nodes)] for first in range(PARTITIONS)]
    in_sync = nodes // 2 + 1
    config = {"min.insync.replicas": str(in_sync)}
    await asyncio.to_thread(make_topic, kafka, topic, PARTITIONS, config, everywhere)
    servers = {f"broker-{each.node}": each.server for each in kafka.brokers}
    return LogServers(f"kafka:{topic}", topic_url(kafka, topic), servers, kafka, spare=nodes - in_sync, topic=topic)


# A gateway, consumers, and the queue between them, each a process that can be paused, killed and started again.

SETTLES_WITHIN = 2 * PATIENCE
"""Seconds in which what waits in the queue is applied after a storm."""


def messages(default: int) -> int:
    """Give the size of a storm: how many acknowledged submissions end it; FENCEPOST_STORM_MESSAGES for others."""
    return int(os.environ.get("FENCEPOST_STORM_MESSAGES") or default)


class ConsumerServer(Server):
    """One `fencepost consume`."""

    def __init__(
        self, database: str, queue: str, member: str, log: Path, settings: dict[str, str], by: Launcher
    ) -> None:
        self.member = member
        self._launcher, self._seen = by, 0
        log.touch()
        arguments = ("consume", queue, "--member", member)
        super().__init__([*COMMAND, *arguments], log, self._has_joined, gateway_environment(database, **settings))

    def start(self) -> None:
        self._seen = self._log.stat().st_size
        super().start()

    def log_text(self) -> str:
        """Give all that it printed."""
        return self._log.read_text(errors="replace")

    def _spawn(self) -> ChildProcess:
        return self._launcher.launch(
            [str(word) for word in self._command[len(COMMAND) :]], self._environment or {}, self._log
        )

    def _has_joined(self) -> bool:
        return f"{self.member} consumes".encode() in self._log.read_bytes()[self._seen :]


@dataclass
class World:
    """All of them. `consumers`: those that were made, by member."""

    log: LogServers
    postgres: Postgres
    database: str
    gateway: GatewayServer
    directory: Path
    settings: dict[str, str]
    launcher: Launcher
    consumers: dict[str, ConsumerServer] = field(default_factory=dict)
    _ends: int = 0

    async def consumer(self, member: str) -> ConsumerServer:
        """Start a consumer, and return it once it takes."""
        found = self.consumers.get(member)
        if found is None:
            log = self.directory / f"{member}.log"
            found = ConsumerServer(self.database, self.log.queue, member, log, self.settings, self.launcher)
            self.consumers[member] = found
        found.start()
        await found.serves()
        return found

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.database)

    async def settle(self, submitters: Submitters) -> None:
        """Return once all that was submitted is decided: a last write of each row is, and they are in its order."""
        self._ends += 1
        tags = [f"end{self._ends}-{key}" for key in KEYS]
        async with asyncio.TaskGroup() as group:
            for key, tag in zip(KEYS, tags, strict=True):
                group.create_task(submitters.until_acknowledged(key, tag))
        connection = await self.connect()

        async def applied() -> bool:
            query = "SELECT count(DISTINCT tag) FROM oracle.effects WHERE tag = ANY ($1)"
            return bool(await connection.fetchval(query, tags) == len(tags))

        try:
            within = SETTLES_WITHIN + len(submitters.submissions) / 200
            await eventually(
                applied, within=within, what=f"the last write of each row {await self.missing(submitters)}"
            )
        finally:
            await connection.close()

    async def missing(self, submitters: Submitters) -> int:
        """Count the acknowledged submissions that have no effect yet."""
        connection = await self.connect()
        tags = [each.tag for each in submitters.submissions if each.answer == "acknowledged"]
        query = "SELECT count(*) FROM unnest($1::text[]) t WHERE NOT EXISTS (SELECT FROM oracle.effects WHERE tag = t)"
        missing: int = await connection.fetchval(query, tags)
        await connection.close()
        return missing

    async def end(self, submitters: Submitters) -> None:
        """Settle twice, and the second time with a consumer that has nothing of before: it takes again what others took
        and did not say to be done.
        """
        await self.settle(submitters)
        for each in self.consumers.values():
            await asyncio.to_thread(each.stop)
        await self.consumer("last")
        await self.settle(submitters)

    async def wrong(self, submissions: list[Submission]) -> list[str]:
        connection = await self.connect()
        try:
            return judge(submissions, await effects_of(connection), await asyncio.to_thread(self.log.places))
        finally:
            await connection.close()

    def logs(self) -> str:
        """Give the ends of the logs of consumers and gateway, for a failure's message."""
        servers: list[Server] = [self.gateway, *self.consumers.values()]
        return "\n".join(each.log_end() for each in servers)


@asynccontextmanager
async def world(
    kind: str,
    *,
    launcher: Launcher,
    one_kafka: OneKafka | None = None,
    consume_here: bool = False,
    protected: bool = True,
    statement_timeout: str = "30",
) -> AsyncIterator[World]:
    """Run a PostgreSQL, a gateway, and the log's servers; consumers are started by the test. `one_kafka`: a Kafka that
    serves other tests, too; without it there is one of its own. `consume_here`: the gateway consumes postgres:default,
    too. `protected` False: the table is not. `statement_timeout`: in seconds.
    """
    with ExitStack() as stack:
        directory = stack.enter_context(server_directory())
        postgres = Postgres(bin_dir=server_bin_dir(first_server()), data_dir=directory / "pg")
        (directory / "pg").mkdir()
        postgres.start()
        stack.callback(postgres.stop)
        quick_logins(postgres.url)
        await run_on(postgres.url, "CREATE DATABASE shop")
        database = in_database(postgres.url, "shop")
        log = await log_servers(kind, directory, stack, one_kafka)
        settings = {"FENCEPOST_STATEMENT_TIMEOUT": statement_timeout}
        if log.url is not None:
            settings["FENCEPOST_QUEUES"] = log.url
        await _prepare(database, log.queue if protected else None)
        options = () if consume_here else ("--no-consume-here",)
        gateway = GatewayServer(database, directory / "gateway.log", *options, settings=settings, launcher=launcher)
        stack.enter_context(gateway)
        made = World(log, postgres, database, gateway, directory, settings, launcher)
        try:
            yield made
        finally:
            for each in made.consumers.values():
                each.crash()


async def _prepare(database: str, queue: str | None) -> None:
    await upgrade(database)
    async with connection_to(database) as connection:
        await connection.execute(SCHEMA)
        if queue is not None:
            await protect(connection, "orders", queue=queue)
        await connection.execute(TRIGGER)
