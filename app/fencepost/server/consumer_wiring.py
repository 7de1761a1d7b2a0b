"""Runs what applies the messages of queues: in a gateway's process, or in one of its own (`fencepost consume`)."""

import asyncio
import os
import socket
import time
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from fencepost.server.consuming.applying import Applier, DatabaseLedger
from fencepost.server.consuming.consumer import ConsumerLimits, QueueConsumer
from fencepost.server.consuming.deciding import Decider
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.observe.events import (
    ConsumerFailed,
    ConsumerPaused,
    ConsumerResumed,
    DeadLettered,
    Emit,
    QueueBlocked,
)
from fencepost.server.queues.log import Received
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.settings import Settings

MOST_IN_HAND: Final = 1000
SHARE: Final = 0.5
"""Which part of the writes that may wait in a process those of a consumer may be."""


class _EventReports:
    """Emits an event for each report of a consumer."""

    def __init__(self, queue: str, emit: Emit) -> None:
        self._queue = queue
        self._emit = emit

    def paused(self, reason: str) -> None:
        self._emit(ConsumerPaused(self._queue, reason))

    def resumed(self) -> None:
        self._emit(ConsumerResumed(self._queue))

    def dead_letter(self, received: Received, reason: str) -> None:
        resource = received.message.key.decode("utf-8", "replace")
        position = received.position
        self._emit(DeadLettered(self._queue, resource, position.partition, position.offset, reason))

    def blocked(self, received: Received, reason: str) -> None:
        resource = received.message.key.decode("utf-8", "replace")
        position = received.position
        self._emit(QueueBlocked(self._queue, resource, position.partition, position.offset, reason))

    def fault(self, error: Exception) -> None:
        self._emit(ConsumerFailed(self._queue, "".join(traceback.format_exception(error))))


def _wall_clock() -> float:
    return time.time()  # noqa: TID251 - when something became a dead letter, for people


def own_member() -> str:
    """Name this process among the members."""
    return f"{socket.gethostname()}-{os.getpid()}"


def consumer_of(gateway: Gateway, name: str, settings: Settings, member: str) -> QueueConsumer:
    """Make a consumer of a queue that is open."""
    log = gateway.queues[name]
    ledger = DatabaseLedger(gateway.database, name)
    applier = Applier(gateway, name, settings.max_body_bytes, settings.idempotency_retention)
    decider = Decider(
        *(name, applier.apply, ledger, log.dead),
        now=_wall_clock,
        kept_for=settings.idempotency_retention,
        stop_resources=settings.stop_resources,
        prove=applier.prove,
    )
    limits = ConsumerLimits(
        messages=max(min(MOST_IN_HAND, int(settings.max_waiting * SHARE)), 1), drain=_drain(settings)
    )
    return QueueConsumer(
        log, member, ledger, decider, _EventReports(name, gateway.emit), limits, gateway.times.consuming
    )


def consumers_here(gateway: Gateway, settings: Settings) -> dict[str, QueueConsumer]:
    """Make those that run in a gateway's process."""
    return {DEFAULT: consumer_of(gateway, DEFAULT, settings, own_member())} if settings.consume_here else {}


@asynccontextmanager
async def consuming(
    gateway: Gateway, consumers: Mapping[str, QueueConsumer], settings: Settings
) -> AsyncIterator[None]:
    """Run consumers, by the names of their queues, until the block ends. Their end takes half of the shutdown timeout
    at most: what is not decided by then comes to others.
    """
    tasks = [asyncio.create_task(_run_for_ever(gateway, name, each)) for name, each in consumers.items()]
    try:
        yield
    finally:
        for each in consumers.values():
            each.stop()
        await _end(tasks, _drain(settings), gateway.times.consuming.give_up_within)


async def _end(tasks: Sequence[asyncio.Task[None]], within: float, step: float) -> None:
    """Wait for consumers that were stopped. Where the database or the log does not answer, each of the two steps of
    their end, deciding and leaving, is given up.
    """
    left: set[asyncio.Task[None]] = set(tasks)
    for seconds in (within, step, step):
        if left:
            _, left = await asyncio.wait(left, timeout=seconds)
        for task in left:
            task.cancel()


def _drain(settings: Settings) -> float:
    return settings.shutdown_timeout / 2


async def _run_for_ever(gateway: Gateway, name: str, consumer: QueueConsumer) -> None:
    """Run a consumer until it is stopped; after a fault of the gateway it is started again."""
    while True:
        try:
            await consumer.run()
        except Exception as error:  # noqa: BLE001 - requests must not suffer from it
            gateway.emit(ConsumerFailed(name, "".join(traceback.format_exception(error))))
        if await consumer.stopped(gateway.times.consuming.start_again_after):
            return
