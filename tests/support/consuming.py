"""A table whose writes all come through the queue postgres:default, consumers of it, and an oracle in the database."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pydantic import SecretStr
from tests.support.interleave import Connection
from tests.support.manual_clock import UNHURRIED

from fencepost.server.consuming.applying import Checked, Decided, Kept, Ledger, QueueNow, Result
from fencepost.server.consuming.consumer import ConsumerLimits, QueueConsumer
from fencepost.server.consuming.deciding import Decider, Reports
from fencepost.server.fence.token import Rule, Token
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.gathered import STATE_HEADER
from fencepost.server.ops.protect import protect
from fencepost.server.parts import consumer_of, consuming
from fencepost.server.postgres import queues
from fencepost.server.postgres.keyed import Recorded
from fencepost.server.postgres.queues import PartitionProgress
from fencepost.server.queues.log import (
    Consumer,
    DeadLetter,
    DeadLetters,
    Log,
    LogError,
    LogState,
    Message,
    Position,
    Received,
    partition_of,
)
from fencepost.server.queues.message import MessageName, Method, WriteMessage, message_of, new_nonce
from fencepost.server.queues.postgres import PostgresConsumer
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.settings import Settings
from fencepost.server.times import TIMES, ConsumingTimes, HealthTimes, Times
from fencepost.server.wiring import consumer_gateway
from fencepost.testing.servers.processes import PATIENCE, eventually

TABLE = """
CREATE TABLE public.orders (
  order_id text PRIMARY KEY, status text NOT NULL DEFAULT 'new' CHECK (status <> 'bad'), n integer NOT NULL DEFAULT 0);
CREATE TABLE public.coded (code varchar(3) PRIMARY KEY);
CREATE TABLE public.items (id integer PRIMARY KEY, n integer NOT NULL DEFAULT 0);
INSERT INTO public.orders (order_id) SELECT 'k' || i FROM generate_series(0, 99) i;
INSERT INTO public.items (id) SELECT i FROM generate_series(0, 99) i"""
EFFECTS = """
CREATE TABLE public.effects (
  id bigint GENERATED ALWAYS AS IDENTITY, resource text NOT NULL, n integer NOT NULL, token bigint NOT NULL);
CREATE FUNCTION public.log_effect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.effects (resource, n, token) VALUES ('orders/' || NEW.order_id, NEW.n, NEW.last_fence_token);
  RETURN NULL;
END $$;
CREATE TRIGGER log_effect AFTER INSERT OR UPDATE ON public.orders FOR EACH ROW EXECUTE FUNCTION public.log_effect()"""
"""The oracle: each effect of a write, in the order of its resource. With it, writes do not go in batches."""


async def make_tables(
    owner: Connection,
    *,
    rule: Rule | None = None,
    source: str | None = None,
    effects: bool = False,
    queue: str = DEFAULT,
) -> None:
    """Make the tables, protected: with `source` None they take their writes by the queue."""
    await owner.execute("SET search_path = public")
    await owner.execute(TABLE)
    await queues.register(owner, queue)
    for table in ("orders", "items", "coded"):
        await protect(owner, table, rule=rule, source=source, queue=queue if source is None else None)
    if effects:
        await owner.execute(EFFECTS)


def write(resource: str, method: Method = "PATCH", body: Any = None, **more: Any) -> Message:
    """Make a message as a gateway does."""
    text = None if body is None else json.dumps(body).encode()
    return message_of(WriteMessage(resource, method, text, nonce=new_nonce(), **more))


def settings_of(database: str, **more: Any) -> Settings:
    return Settings.model_validate(
        {"database_url": SecretStr(database), "log_level": "error", "shutdown_timeout": 20, **more}
    )


@dataclass
class Queue:
    """The queue, as a gateway has it, and a connection that looks on."""

    gateway: Gateway
    owner: Connection
    settings: Settings

    @property
    def log(self) -> Log:
        return self.gateway.queues[DEFAULT]

    async def append(self, *messages: Message) -> list[Position]:
        """Append them in this order."""
        return [await self.log.append(each) for each in messages]

    async def append_at_once(self, messages: Sequence[Message]) -> None:
        """Append them; those of one resource in their order, for that is how one process appends."""
        await asyncio.gather(*(self.log.append(each) for each in messages))

    async def empty(self, within: float = 2 * PATIENCE) -> None:
        """Wait until all is decided."""

        async def none_left() -> bool:
            left: int = await self.owner.fetchval("SELECT count(*) FROM fencepost.queued")
            return left == 0

        await eventually(none_left, within=within, what="an empty queue")

    async def letters(self) -> dict[str, DeadLetter]:
        """Give the dead letters by their resources."""
        return {each.message.key.decode("utf-8", "replace"): each for each in await self.log.dead.list(1000)}

    async def states(self) -> dict[str, int]:
        """Count the records of messages by their states."""
        rows = await self.owner.fetch("SELECT headers FROM fencepost.idempotency WHERE caller = 'queue'")
        counted: dict[str, int] = {}
        for row in rows:
            state = row["headers"][row["headers"].index(STATE_HEADER) + 1]
            counted[state] = counted.get(state, 0) + 1
        return counted

    async def n(self, key: str) -> int:
        found: int = await self.owner.fetchval("SELECT n FROM orders WHERE order_id = $1", key)
        return found


@asynccontextmanager
async def opened(database: str, owner: Connection, **more: Any) -> AsyncIterator[Queue]:
    """Open the queue without a consumer, in a gateway that waits for what a log says of itself."""
    settings = settings_of(database, **more)
    async with consumer_gateway(settings, [], replace(UNHURRIED, health=HealthTimes(log_within=PATIENCE))) as gateway:
        yield Queue(gateway, owner, settings)


@asynccontextmanager
async def consumed(queue: Queue, times: Times = UNHURRIED) -> AsyncIterator[None]:
    """Consume it, by a member that has a gateway of its own."""
    async with consumer_gateway(queue.settings, [], times) as gateway:
        consumer = consumer_of(gateway, DEFAULT, queue.settings, "member-0")
        async with consuming(gateway, {DEFAULT: consumer}, queue.settings):
            yield


async def both_applied_and_not_done(queue: Queue, monkeypatch: pytest.MonkeyPatch, times: Times = UNHURRIED) -> None:
    """Consume two messages, as before kill -9 between the commit and `done`."""

    async def forget(_consumer: PostgresConsumer, _received: Any) -> None:
        """Say nothing."""

    async def both() -> bool:
        return await queue.states() == {"applied": 2}

    with monkeypatch.context() as patched:
        patched.setattr(PostgresConsumer, "done", forget)
        async with consumed(queue, times=times):
            await eventually(both, what="both are applied")


async def wrong_effects(owner: Connection, expected: dict[str, list[int]]) -> list[str]:
    """Compare the effects of each resource with its messages: each once, in order."""
    rows = await owner.fetch("SELECT resource, array_agg(n ORDER BY id) AS ns FROM public.effects GROUP BY 1")
    found = {row["resource"]: row["ns"] for row in rows}
    return [
        f"{resource}: {found.get(resource)} instead of {ns}"
        for resource, ns in expected.items()
        if found.get(resource) != ns
    ]


def token(number: int) -> Token:
    return Token(number)


# A log in memory, and what a consumer asks of the database, in memory: mocks, for tests of the consumer itself.

QUEUE_PARTITIONS = 2
WAITS = 0.01
"""Seconds, at most, for which a mock waits for messages: a consumer that is stopped waits for the answer."""


def message(resource: str, value: bytes = b"{}", **headers: bytes) -> Message:
    given = {"method": b"PATCH", **{name.replace("_", "-"): each for name, each in headers.items()}}
    return Message(resource.encode(), value, tuple(given.items()))


class MockDeadLetters:
    """Dead letters in a dict, by id."""

    def __init__(self) -> None:
        self.letters: dict[str, DeadLetter] = {}
        self.failing: LogError | None = None

    async def put(self, letter: DeadLetter) -> None:
        if self.failing is not None:
            raise self.failing
        self.letters.setdefault(letter.id, letter)

    async def list(self, most: int) -> Sequence[DeadLetter]:
        return list(self.letters.values())[:most]

    async def get(self, letter_id: str) -> DeadLetter | None:
        return self.letters.get(letter_id)

    async def drop(self, letter_id: str) -> bool:
        return self.letters.pop(letter_id, None) is not None

    async def count(self) -> dict[int, int]:
        return dict(Counter(each.position.partition for each in self.letters.values()))


class MockQueue:
    """A log in a list. One consumer at a time takes from it; what is not done comes again to the next one."""

    def __init__(self) -> None:
        self.dead = MockDeadLetters()
        self.messages: list[Received] = []
        self.done: list[Received] = []
        self.arrived = asyncio.Event()
        self.incarnation = "first"
        self.asked: list[int] = []
        """The `most` of each take."""
        self.consumers: list[MockConsumer] = []
        self.failing: dict[str, Exception] = {}
        """By method, what it raises."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def append(self, message: Message) -> Position:
        position = Position(partition_of(message.key, QUEUE_PARTITIONS), len(self.messages))
        self.messages.append(Received(position, message, 1000.0 + len(self.messages)))
        self.arrived.set()
        return position

    async def state(self) -> LogState:
        self.raise_for("state")
        return LogState(self.incarnation, (len(self.messages),) * QUEUE_PARTITIONS)

    async def decided(self) -> Sequence[int]:
        self.raise_for("decided")
        return [0] * QUEUE_PARTITIONS

    async def oldest(self) -> Sequence[float | None]:
        return [None] * QUEUE_PARTITIONS

    async def waiting(self, position: Position) -> Sequence[Received] | None:
        return [each for each in self.messages if each.position == position and each not in self.done]

    async def advice(self) -> list[str]:
        return []

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> "MockConsumer":
        self.consumers.append(MockConsumer(self, member, lost))
        return self.consumers[-1]

    def raise_for(self, method: str) -> None:
        if method in self.failing:
            raise self.failing[method]


class MockConsumer:
    """Takes all that is not done, once."""

    def __init__(self, log: MockQueue, member: str, lost: Callable[[frozenset[int]], None]) -> None:
        self.log = log
        self.member = member
        self.lost = lost
        self.partitions = frozenset(range(QUEUE_PARTITIONS))
        self.taken: list[Received] = []
        self.closed = False

    def begin(self, generation: int) -> None:
        """Nothing to do: the mock loses nothing by itself."""

    async def take(self, most: int, wait_s: float) -> Sequence[Received]:
        self.log.asked.append(most)
        await asyncio.sleep(0)
        self.log.raise_for("take")
        found = self._left()[:most]
        if not found and wait_s:
            self.log.arrived.clear()
            try:
                async with asyncio.timeout(min(wait_s, WAITS)):
                    await self.log.arrived.wait()
            except TimeoutError:
                return []
            found = self._left()[:most]
        self.taken += found
        return found

    def _left(self) -> list[Received]:
        return [each for each in self.log.messages if each not in self.taken and each not in self.log.done]

    async def done(self, received: Sequence[Received]) -> None:
        await asyncio.sleep(0)
        self.log.raise_for("done")
        self.log.done += received

    async def close(self) -> None:
        self.closed = True


@dataclass
class MockLedger(Ledger):
    """What the database would know. `failing` is raised by every method."""

    known_generation: int = 1
    quarantined: str | None = None
    stopped: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Recorded] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)
    """By id, what the message said; an id that is in `kept` only is of a message with any content."""
    noted: list[PartitionProgress] = field(default_factory=list)
    failing: Exception | None = None
    checks: int = 0
    below: int = 0
    """The offset below which the log gives no message again, in all partitions."""
    noted_pauses: list[str | None] = field(default_factory=list)
    noted_committed: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def _raise(self) -> None:
        if self.failing is not None:
            raise self.failing

    async def check(self, ask: Callable[[], Awaitable[LogState]], generation: int | None) -> Checked:
        del generation
        self.checks += 1
        self._raise()
        state = await ask()
        return Checked(self.known_generation, state.partitions, self.quarantined, dict(self.stopped))

    async def quarantine(self, reason: str, generation: int | None) -> None:
        self._raise()
        if generation in {None, self.known_generation}:
            self.quarantined = reason

    async def generation(self) -> int:
        self._raise()
        return self.known_generation

    async def result(self, name: MessageName) -> Kept | None:
        self._raise()
        copies = (
            each
            for each, content in self.contents.items()
            if (each[-16:], content) == (name.id[-16:], name.content) and each in self.kept
        )
        found = name.id if name.id in self.kept else next(copies, None)
        return None if found is None else Kept(found, self.kept[found])

    async def committed(self, position: Position, generation: int) -> bool:
        self._raise()
        return generation == self.known_generation and position.offset < self.below

    async def keep(self, name: MessageName, answer: Recorded, letter_bytes: int | None = None) -> Kept | None:
        del letter_bytes
        found = await self.result(name)
        if found is None:
            self.kept[name.id], self.contents[name.id] = answer, name.content
        return found

    async def stop(self, resource: str, write_id: str) -> None:
        self._raise()
        self.stopped.setdefault(resource, write_id)

    async def go_on(self, resource: str, write_id: str) -> None:
        self._raise()
        if self.stopped.get(resource) == write_id:
            del self.stopped[resource]

    async def note(self, partitions: Sequence[PartitionProgress], generation: int) -> None:
        del generation
        self._raise()
        self.noted += partitions

    async def note_pause(self, member: str, because: str | None) -> None:
        del member
        self._raise()
        self.noted_pauses.append(because)

    async def note_committed(self, offsets: Sequence[int], generation: int) -> None:
        self._raise()
        self.noted_committed.append((generation, tuple(offsets)))

    async def now(self) -> float:
        return 0.0

    async def note_look(self, at: float, decided: Sequence[int], state: LogState, generation: int) -> None:
        """Nothing is forgotten here."""


class MockReports(Reports):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.faults: list[Exception] = []

    def paused(self, reason: str) -> None:
        self.events.append(f"paused: {reason}")

    def resumed(self) -> None:
        self.events.append("resumed")

    def dead_letter(self, received: Received, reason: str) -> None:
        self.events.append(f"dead: {received.position.offset}: {reason}")

    def blocked(self, received: Received, reason: str) -> None:
        self.events.append(f"blocked: {received.position.offset}: {reason}")

    def fault(self, error: Exception) -> None:
        self.faults.append(error)


class Applying:
    """Applies messages by what the test says; keeps what it was asked for, in order."""

    def __init__(self, come_to: Callable[[Received, QueueNow], Result]) -> None:
        self.come_to = come_to
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.held: dict[bytes, asyncio.Event] = {}
        """Messages of these keys wait for their event."""

    async def __call__(self, received: Received, standing: QueueNow, name: MessageName) -> Result:
        del name
        self.begun.append(received.position.offset)
        await asyncio.sleep(0)
        if (held := self.held.get(received.message.key)) is not None:
            await held.wait()
        result = self.come_to(received, standing)
        self.ended.append(received.position.offset)
        return result


# A log in memory, for tests of what surrounds one: a mock, that says what a real one may say.

PARTITIONS = 4


class MockLog:
    """Keeps what is appended, and fails with the error that a test puts into `fails`."""

    def __init__(self) -> None:
        self.partitions: list[list[Message]] = [[] for _ in range(PARTITIONS)]
        self.fails: LogError | None = None
        self.decided_below = [0] * PARTITIONS
        self.reads_positions = False

    @property
    def messages(self) -> list[Message]:
        """All of them."""
        return [message for partition in self.partitions for message in partition]

    @property
    def dead(self) -> DeadLetters:
        """There are none."""
        return MockDeadLetters()

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def append(self, message: Message) -> Position:
        self._fail()
        number = partition_of(message.key, PARTITIONS)
        self.partitions[number].append(message)
        return Position(number, len(self.partitions[number]) - 1)

    async def state(self) -> LogState:
        self._fail()
        return LogState("mock", tuple(len(each) for each in self.partitions))

    async def decided(self) -> Sequence[int]:
        self._fail()
        return self.decided_below

    async def oldest(self) -> Sequence[float | None]:
        return [None] * PARTITIONS

    async def waiting(self, position: Position) -> Sequence[Received] | None:
        self._fail()
        if not self.reads_positions:
            return None
        below = self.decided_below[position.partition]
        at = self.partitions[position.partition][position.offset]
        return [] if position.offset < below else [Received(position, at, 1000.0)]

    def consumer(self, member: str, lost: Callable[[frozenset[int]], None]) -> Consumer:
        raise NotImplementedError

    async def advice(self) -> list[str]:
        return []

    def _fail(self) -> None:
        if self.fails is not None:
            raise self.fails


# The consumer of a queue over a log in memory, with all its mocks.


def applied(_received: Received, _standing: QueueNow) -> Result:
    return Decided("applied")


class MockedConsumer:
    """A consumer with all its mocks."""

    def __init__(
        self, come_to: Callable[[Received, QueueNow], Result] = applied, limits: ConsumerLimits | None = None,
        times: ConsumingTimes = TIMES.consuming,
    ) -> None:  # fmt: skip
        self.log, self.ledger, self.reports = MockQueue(), MockLedger(), MockReports()
        self.applying = Applying(come_to)
        decider = Decider("kafka:q", self.applying, self.ledger, self.log.dead, now=lambda: 5.0)
        self.consumer = QueueConsumer(
            self.log, "m", self.ledger, decider, self.reports, limits or ConsumerLimits(), times
        )

    async def append(self, *resources: str) -> None:
        for each in resources:
            await self.log.append(message(each))

    @property
    def done(self) -> list[int]:
        return [each.position.offset for each in self.log.done]

    async def all_done(self, count: int) -> None:
        async def enough() -> bool:
            return len(self.log.done) >= count

        await eventually(enough, what=f"{count} messages done")


@asynccontextmanager
async def running(mocked: MockedConsumer) -> AsyncIterator[None]:
    task = asyncio.create_task(mocked.consumer.run())
    try:
        yield
    finally:
        mocked.consumer.stop()
        await asyncio.wait_for(task, PATIENCE)


async def until(what: str, true: Callable[[], bool]) -> None:
    async def ask() -> bool:
        return true()

    await eventually(ask, what=what)
