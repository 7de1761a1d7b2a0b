"""A table whose writes all come through the queue postgres:default, consumers of it, and an oracle in the database."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import SecretStr
from tests.support.interleave import Connection
from tests.support.manual_clock import UNHURRIED

from fencepost.server.consuming.consumer import QueueConsumer
from fencepost.server.fence.token import Rule, Token
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.ops.protect import protect
from fencepost.server.parts import consumer_of, consuming, read_queues
from fencepost.server.postgres import queues
from fencepost.server.queues.log import DeadLetter, Log, Message, Position
from fencepost.server.queues.message import Method, WriteMessage, message_of, new_nonce
from fencepost.server.queues.postgres import PostgresConsumer
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.serve import consumer_gateway
from fencepost.server.settings import Settings
from fencepost.server.times import HealthTimes, Times
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
    name: str = DEFAULT

    @property
    def log(self) -> Log:
        return self.gateway.queues[self.name]

    async def append(self, *messages: Message) -> list[Position]:
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
        sql = "SELECT state, count(*) FROM fencepost.idempotency WHERE caller = 'queue' GROUP BY 1"
        return {row["state"]: row["count"] for row in await self.owner.fetch(sql)}

    async def n(self, key: str) -> int:
        found: int = await self.owner.fetchval("SELECT n FROM orders WHERE order_id = $1", key)
        return found


@asynccontextmanager
async def opened(database: str, owner: Connection, name: str = DEFAULT, **more: Any) -> AsyncIterator[Queue]:
    """Open the queue without a consumer, in a gateway that waits for what a log says of itself."""
    settings, times = settings_of(database, **more), replace(UNHURRIED, health=HealthTimes(log_within=PATIENCE))
    async with consumer_gateway(settings, read_queues(settings), times) as gateway:
        yield Queue(gateway, owner, settings, name)


@dataclass
class Member:
    """A consumer of the queue with a gateway of its own, and what it has reported."""

    gateway: Gateway
    consumer: QueueConsumer
    reported: list[object]

    async def pauses(self, because: str = "") -> str:
        """Return why it is paused, once it is for a reason with these words."""

        async def paused() -> str | None:
            reason = self.consumer.paused_because
            return reason if reason is not None and because in reason else None

        return await eventually(paused, what=f"a pause because of {because!r}")


@asynccontextmanager
async def member(queue: Queue, times: Times = UNHURRIED) -> AsyncIterator[Member]:
    """Make a member of those who consume it, which does nothing yet."""
    async with consumer_gateway(queue.settings, read_queues(queue.settings), times) as gateway:
        reported: list[object] = []
        reporting = replace(gateway, emit=reported.append)
        yield Member(reporting, consumer_of(reporting, queue.name, queue.settings, "member-0"), reported)


@asynccontextmanager
async def consumed(queue: Queue, times: Times = UNHURRIED) -> AsyncIterator[Member]:
    async with member(queue, times) as one, consuming(one.gateway, {queue.name: one.consumer}, queue.settings):
        yield one


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
