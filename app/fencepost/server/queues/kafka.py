"""A topic of Kafka as a log of writes: one producer, one client that asks, and a member of its group each who takes."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from fencepost.server.queues.kafka_cluster import (
    LOG_APPEND_TIME,
    Cluster,
    KafkaDeadLetters,
    TopicAppender,
    largest_letter,
)
from fencepost.server.queues.kafka_positions import MemberLedger, Positions, Unowned, unassign
from fencepost.server.queues.kafka_settings import (
    LOGGER,
    BrokerErrors,
    KafkaSettings,
    is_fatal,
    kafka_error,
    made,
    place,
    place_of,
    read_url,
    received_from,
    unavailable,
)
from fencepost.server.queues.log import (
    LogChangedError,
    LogError,
    LogState,
    LogUnavailableError,
    Message,
    Position,
    Received,
    namesake,
)

# What a member is called in the topic's group, how it leaves, and how it finds out that another has its name.
#
# Members are static (KIP-345). To one that comes back under its name the group gives the partitions that it had,
# without a new assignment. Where the topic has more partitions by then, no member gets those: Kafka asks the leader of
# the group to look (KIP-814), and librdkafka does not know that. More partitions come with a raised generation only.
# So the generation is a part of the name: a member of a new generation is a new one, and all partitions are given out
# anew.

_LEAVES_WITHIN_S: Final = 5.0


def static_name(member: str, generation: int) -> str:
    """Name a member in the group."""
    return f"{member}.{generation}"


def leave(client: Consumer, settings: KafkaSettings, member: str) -> None:
    """Leave the group, and close the client.

    A static member that only closes keeps its partitions for the length of its session. One that unsubscribes first
    leaves, once what it did in them is committed: then it has no id any more.
    """
    try:
        client.unsubscribe()
        until = time.monotonic() + _LEAVES_WITHIN_S
        while client.memberid() and time.monotonic() < until:
            client.poll(0.05)
        client.close()
    except (KafkaException, RuntimeError) as error:
        LOGGER.warning("%s: member %s could not leave: %s", place(settings), member, error)


def is_fenced(error: KafkaError) -> bool:
    """Whether another process has joined under the member's name; a call that comes after the first has another code,
    and the same words.
    """
    return (
        error.code() == KafkaError.FENCED_INSTANCE_ID or KafkaError(KafkaError.FENCED_INSTANCE_ID).str() in error.str()
    )


# Takes messages, as a static member of the topic's group (KIP-345) with cooperative rebalances (KIP-429).
#
# It joins once its generation is known (`static_name`). All calls of librdkafka are made by one thread of the member's
# own, one call of the event loop for a whole batch. A position that the log does not have is looked into
# (`kafka_positions.py`).

_ASTRAY: Final = frozenset(
    {
        *(KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError._NO_OFFSET),  # noqa: SLF001 - librdkafka's
        KafkaError.OFFSET_OUT_OF_RANGE,
    }
)
_NO_BROKER: Final = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}  # noqa: SLF001
)
_PAUSE_AFTER_S: Final = 1.0
"""While nothing is asked for librdkafka is called this often: else it counts the member as gone (max.poll.interval.ms).
The partitions are paused for it, which throws away what was fetched ahead."""
_LOOKS_EVERY_S: Final = 0.25
_NAMESAKE_WITHIN_S: Final = 60.0


class KafkaConsumer:
    """One member, named `member` among them."""

    def __init__(
        self, settings: KafkaSettings, brokers: BrokerErrors, member: str, lost: Callable[[frozenset[int]], None]
    ) -> None:
        self._settings, self._brokers, self._member, self._on_lost = settings, brokers, member, lost
        self._ledger = MemberLedger()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"kafka-{settings.topic}")
        self._client: Consumer | None = None
        self._positions: Positions | None = None
        self._unowned: Unowned | None = None
        self._generation: int | None = None
        self._running: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        # Of the thread, until `_running` is done:
        self._held: deque[Received] = deque()
        self._fenced_at: float | None = None
        self._broken: LogError | None = None
        self._spent: LogError | None = None
        self._down: KafkaError | None = None
        self._paused: bool | None = False
        """Whether the partitions are paused; None: some may be. Those that were gained are until they were looked at,
        whatever this is."""
        self._polled_at = 0.0

    @property
    def partitions(self) -> frozenset[int]:
        return self._ledger.partitions

    def begin(self, generation: int) -> None:
        """Take in this generation; a loss that was found in an earlier one has been dealt with."""
        self._generation = generation

    async def take(self, most: int, wait_s: float) -> Sequence[Received]:
        """Take messages, in the thread. A call that was cancelled leaves what came to the next one."""
        if self._generation is None:
            await asyncio.sleep(wait_s)
            return []
        if self._running is None:
            idle = most == 0 and time.monotonic() - self._polled_at < _PAUSE_AFTER_S
            if idle or len(self._held) >= most > 0:
                await asyncio.sleep(wait_s if idle else 0)
                return self._given(most)
            self._loop = asyncio.get_running_loop()
            self._running = self._loop.run_in_executor(self._thread, self._take, most - len(self._held), wait_s)
        running = self._running
        try:
            await asyncio.shield(running)
        finally:
            if running.done():
                self._running = None
        return self._given(most)

    def _given(self, most: int) -> list[Received]:
        given: list[Received] = []
        while self._held and len(given) < most:
            received = self._held.popleft()
            if self._ledger.current(received.position.partition, received.handle):
                given.append(received)
        return given

    async def done(self, received: Sequence[Received]) -> None:
        """Note what is done. It is committed within half a second of the next `take`."""
        for each in received:
            self._ledger.done(each.position.partition, each.position.offset, each.handle)

    async def close(self) -> None:
        """Commit what is done, and leave. The second time nothing is left to do."""
        if self._closed:
            return
        self._closed = True
        if self._running is not None:
            await asyncio.wait([self._running])
            self._running = None
        await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
        self._thread.shutdown(wait=False)

    # In the thread from here on.

    def _take(self, most: int, wait_s: float) -> None:
        if self._broken is not None:
            raise self._broken
        if self._unowned is not None and self._unowned.found():
            self._leave()
        client = self._joined()
        self._store()
        problem: LogError | None = None
        messages: list[KafkaMessage] = []
        try:
            problem = self._find()
            self._pause(client, paused=most <= 0)
            self._polled_at = time.monotonic()
            first = self._first(client, wait_s)
            if first is not None:
                messages = [first, *(client.consume(most - 1, 0) if most > 1 else ())]
        except KafkaException as error:
            if is_fatal(found := kafka_error(error)):
                self._fatal(found)
            problem = unavailable(self._settings, found, self._brokers)
        for message in messages:
            problem = self._read(message) or problem
        self._raise(problem)

    def _find(self) -> LogError | None:
        """Look into positions before anything is taken from them. What could not be looked at is, the next time;
        librdkafka is called all the same, since a rebalance may be what it waits for.
        """
        if self._positions is None or self._generation is None or not self._positions.pending:
            return None
        self._paused = None  # what was gained is taken from now; the rest may be paused
        try:
            changed = self._positions.find(self._generation)
        except LogUnavailableError as error:
            return error
        if changed is not None:
            self._broken = changed
            raise changed
        return None

    def _first(self, client: Consumer, wait_s: float) -> KafkaMessage | None:
        """Wait for a message; no longer than until partitions were gained, which are to be looked at first."""
        until = time.monotonic() + wait_s
        while True:
            left = until - time.monotonic()
            first = client.poll(max(0.0, min(left, _LOOKS_EVERY_S)))
            if first is not None or left <= _LOOKS_EVERY_S or (self._positions is not None and self._positions.pending):
                return first

    def _raise(self, problem: LogError | None) -> None:
        (down, self._down), (spent, self._spent) = (self._down, None), (self._spent, None)
        if spent is not None and (client := self._client) is not None:
            self._forget()
            client.close()
        if self._broken is not None:
            raise self._broken
        problem = spent or problem
        if problem is not None:
            raise problem
        if down is not None and not self._held:
            raise unavailable(self._settings, down, self._brokers)

    def _read(self, message: KafkaMessage) -> LogError | None:
        error = message.error()
        if error is None:
            place_, epoch = place_of(message), message.leader_epoch()
            turn = self._ledger.taken(place_.partition, place_.offset, -1 if epoch is None else epoch)
            if turn is not None:
                self._held.append(received_from(message, place_, epoch, turn))
            return None
        if is_fatal(error):
            self._fatal(error)
        elif error.code() in _ASTRAY and message.partition() is not None:
            self._positions_of().astray(message.partition() or 0, error)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001
            LOGGER.warning("%s: member %s was too slow and joins again", place(self._settings), self._member)
        else:
            return unavailable(self._settings, error, self._brokers)
        return None

    def _fatal(self, error: KafkaError) -> None:
        """Note that this client of librdkafka is of no use any more: the next call makes another one.

        Only one that was fenced twice in a minute has a namesake. Once it can be fenced by itself, when the answer to
        its joining was lost.
        """
        self._spent = unavailable(self._settings, error)
        if is_fenced(error):
            before, self._fenced_at = self._fenced_at, time.monotonic()
            if before is not None and self._fenced_at - before < _NAMESAKE_WITHIN_S:
                self._broken = namesake(place(self._settings), self._member)

    def _forget(self) -> None:
        self._lose([TopicPartition(self._settings.topic, each) for each in self._ledger.partitions])
        if self._unowned is not None:
            self._unowned.close()
        self._client, self._positions, self._unowned, self._paused = None, None, None, False

    def _joined(self) -> Consumer:
        """Join the group, at the first call."""
        if self._client is None:
            name = static_name(self._member, self._generation or 0)
            self._client = made(
                *(self._settings, Consumer, self._settings.of_consumer(name)),
                error_cb=self._note_error,
                on_commit=self._note_commit,
            )
            self._unowned = Unowned(self._settings, self._brokers, name)
            self._client.subscribe(
                [self._settings.topic], on_assign=self._gained, on_revoke=self._revoked, on_lost=self._taken_away
            )
        return self._client

    def _positions_of(self) -> Positions:
        if self._positions is None:
            self._positions = Positions(self._settings, self._joined(), self._ledger)
        return self._positions

    def _note_error(self, error: KafkaError) -> None:
        self._brokers.note(error)
        if is_fatal(error):
            self._fatal(error)
        elif error.code() in _NO_BROKER:  # one of several that is away is librdkafka's business
            self._down = error

    def _note_commit(self, error: KafkaError | None, _: list[TopicPartition]) -> None:
        if error is not None and error.code() != KafkaError._NO_OFFSET:  # noqa: SLF001 - there was nothing to commit
            LOGGER.warning("%s: positions were not committed: %s", place(self._settings), error.str())

    def _gained(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        client.incremental_assign(partitions)
        client.pause(partitions)  # until the committed positions have been looked at
        self._ledger.gained(each.partition for each in partitions)
        self._positions_of().gained(each.partition for each in partitions)

    def _revoked(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit what is done of these; librdkafka does so in the call that gives them up."""
        self._store(each.partition for each in partitions)
        self._lose(partitions)
        unassign(client, partitions)

    def _taken_away(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self._lose(partitions)
        unassign(client, partitions)

    def _lose(self, partitions: Iterable[TopicPartition]) -> None:
        lost = self._ledger.lost(each.partition for each in partitions)
        if self._positions is not None:
            self._positions.lost(lost)
        if lost and self._loop is not None:
            self._loop.call_soon_threadsafe(self._on_lost, lost)

    def _store(self, partitions: Iterable[int] | None = None) -> None:
        """Give librdkafka what is finished, which it commits within half a second."""
        finished = self._ledger.finished(partitions)
        if not finished or self._client is None or isinstance(self._broken, LogChangedError):
            return
        for each in finished:
            try:
                self._client.store_offsets(offsets=[self._positions_of().labelled(each, self._generation or 0)])
            except KafkaException as error:  # no longer the member's: the next one decides it anew
                LOGGER.info("%s: a position was not stored: %s", place(self._settings), error)

    def _pause(self, client: Consumer, *, paused: bool) -> None:
        if paused != self._paused:
            self._paused = paused
            unseen = self._positions.unseen if self._positions is not None else ()
            seen = [each for each in client.assignment() if each.partition not in unseen]
            (client.pause if paused else client.resume)(seen)

    def _leave(self) -> None:
        if self._client is None:
            return
        self._store()
        leave(self._client, self._settings, self._member)
        self._forget()


# What in Kafka's settings may lose or repeat messages, for `fencepost doctor`.

_DAY_MS: Final = 86_400_000
_LEAST_RETENTION_MS: Final = 3 * _DAY_MS
"""As long as a database is away in a bad weekend: what is deleted before it was applied is lost."""
_ENOUGH_REPLICAS: Final = 3


async def advice(cluster: Cluster, settings: KafkaSettings) -> list[str]:
    """List it, one sentence each. Raises LogUnavailableError."""
    described = await cluster.described()
    replicas = min(len(each.replicas) for each in described.partitions)
    found = await cluster.settings_of(settings.topic)
    largest = await cluster.largest_of_dead_topic()
    return [
        *_replication(settings.topic, replicas, found),
        *_deletion(settings.topic, found),
        *_times(settings.topic, found),
        *_letters(settings.dead_topic, largest, largest_letter(found)),
    ]


def _times(topic: str, found: Mapping[str, str]) -> list[str]:
    if found.get("message.timestamp.type") == LOG_APPEND_TIME:
        return []
    return [
        f"message.timestamp.type of topic {topic} is {found.get('message.timestamp.type')}: its producers say when a"
        f" message came, and so how old it is; set it to {LOG_APPEND_TIME}."
    ]


def _letters(topic: str, largest: int | None, wanted: int) -> list[str]:
    if largest is None or largest >= wanted:
        return []
    return [
        f"max.message.bytes of topic {topic} is {largest}: the dead letter of a larger message is kept without its"
        f" value, and cannot be retried; set it to {wanted}."
    ]


def _replication(topic: str, replicas: int, found: Mapping[str, str]) -> list[str]:
    sentences = []
    in_sync = int(found.get("min.insync.replicas", "1"))
    if replicas < _ENOUGH_REPLICAS:
        sentences.append(
            f"Topic {topic} has {replicas} replica{'s' * (replicas > 1)}: a write that was acknowledged is lost with"
            f" {'that broker' if replicas == 1 else 'these brokers'}; three replicas with"
            " min.insync.replicas=2 are usual."
        )
    if replicas > 1 and in_sync == 1:
        sentences.append(
            f"min.insync.replicas of topic {topic} is 1: with the others behind, one broker alone acknowledges writes,"
            " and they are lost with it; 2 is usual."
        )
    if 1 < replicas == in_sync:
        sentences.append(
            f"min.insync.replicas of topic {topic} is {in_sync}, as many as its replicas: no write is taken while one"
            " broker is away."
        )
    if found.get("unclean.leader.election.enable") == "true":
        sentences.append(
            f"unclean.leader.election.enable of topic {topic} is true: a replica that is behind may become the leader,"
            " which loses acknowledged writes and quarantines the queue; set it to false."
        )
    return sentences


def _deletion(topic: str, found: Mapping[str, str]) -> list[str]:
    sentences = []
    policy = {each.strip() for each in found.get("cleanup.policy", "delete").split(",")}
    if "compact" in policy:
        sentences.append(
            f"Topic {topic} is compacted: earlier writes of a resource are deleted before they are applied; set"
            " cleanup.policy=delete."
        )
    retention = int(found.get("retention.ms", "-1"))
    if "delete" in policy and 0 <= retention < _LEAST_RETENTION_MS:
        sentences.append(
            f"retention.ms of topic {topic} is {retention}: writes that wait longer, as for a database that is away,"
            f" are deleted before they are applied; {_LEAST_RETENTION_MS} or more is usual."
        )
    if "delete" in policy and int(found.get("retention.bytes", "-1")) >= 0:
        sentences.append(
            f"retention.bytes of topic {topic} is {found['retention.bytes']}: under load writes are deleted before they"
            " are applied; set it to -1."
        )
    return sentences


class KafkaLog:
    """The log that a URL names. The topic is an operator's to make; that of the dead letters makes itself."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._brokers = BrokerErrors()
        self._cluster = Cluster(settings, self._brokers)
        self._appender = TopicAppender(settings, self._brokers)
        self._dead = KafkaDeadLetters(settings, self._brokers, self._cluster.make_dead_topic)

    @property
    def dead(self) -> KafkaDeadLetters:
        return self._dead

    async def open(self) -> None:
        """Get ready. Raises LogConfigError for properties that librdkafka does not take."""
        self._cluster.open()
        self._appender.open()

    async def close(self) -> None:
        """Wait for appends that are under way, ten seconds at most, and close connections."""
        await self._appender.close()
        await self._dead.close()
        await self._cluster.close()

    async def append(self, message: Message) -> Position:
        return await self._appender.append(self._settings.topic, message)

    async def state(self) -> LogState:
        return await self._cluster.state()

    async def decided(self) -> Sequence[int]:
        return await self._cluster.decided()

    async def oldest(self) -> Sequence[float | None]:
        """Read when the first messages were appended that the group has not committed."""
        return await self._cluster.oldest()

    async def waiting(self, position: Position) -> None:
        """Nothing can be said: a topic is read by a consumer only, and what is decided stays in it."""

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> KafkaConsumer:
        """Make a member of the topic's group. It joins at its first `take`."""
        return KafkaConsumer(self._settings, self._brokers, member, lost)

    async def advice(self) -> list[str]:
        return await advice(self._cluster, self._settings)


def from_url(url: str) -> KafkaLog:
    """Make the log of a URL. Raises LogConfigError."""
    return KafkaLog(read_url(url))
