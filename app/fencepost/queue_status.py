"""How queues stand, for /readyz and /metrics: what their consumers noted in the database, what their logs say now."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fencepost.consuming.consumer import QueueConsumer
from fencepost.gateway.gateway import Gateway
from fencepost.observe.instruments import QueueFigures
from fencepost.observe.metrics import Metrics
from fencepost.queues.log import Log, LogError
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import StorageError, map_errors
from fencepost.storage.queues import progress
from fencepost.storage.queues.progress import KnownQueue

LOG_ANSWERS_WITHIN: Final = 0.75
"""Seconds that a log is waited for; after that what was recorded has to do."""


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How one queue stands. `lags`: by partition, how many messages are not decided; empty: it is not known. `dead`:
    None if that is not known.
    """

    known: KnownQueue
    lags: tuple[int, ...]
    dead: int | None
    trouble: str | None

    def describe(self, paused: str | None, *, configured: bool) -> str:
        """Say it in a line. `paused`: why the consumer of this process does not go on."""
        parts = [f"generation {self.known.generation}"]
        if self.known.quarantined is not None:
            parts.append(f"quarantined: {self.known.quarantined}")
        elif paused is not None:
            parts.append(f"paused: {paused}")
        if self.lags:
            parts.append(f"lag {sum(self.lags)}")
        if self.dead:
            parts.append(f"{self.dead} dead letters")
        if self.known.stopped:
            parts.append(f"{self.known.stopped} resources stopped")
        parts += [each.describe() for each in self.known.blocked]
        if self.trouble is not None:
            parts.append(f"its log: {self.trouble}")
        if not configured:
            parts.append("not configured at this gateway")
        return "; ".join(parts)


async def look_at_queues(gateway: Gateway) -> list[QueueStatus]:
    """Look at all queues, as `look_at` does; at none when the database cannot be asked."""
    try:
        return await look_at(gateway.database, gateway.queues)
    except StorageError:
        return []


async def look_at(database: Database, logs: Mapping[str, Log]) -> list[QueueStatus]:
    """Look at all queues that were ever registered, and ask the logs of those that are configured here. Raises
    StorageError.
    """
    async with database.spare() as connection:
        with map_errors(writing=False):
            known = await progress.known(connection)
    return list(await asyncio.gather(*(_look(each, logs.get(each.name)) for each in known)))


async def _look(known: KnownQueue, log: Log | None) -> QueueStatus:
    recorded = tuple(each.lag for each in known.partitions if each.lag is not None)
    if log is None:
        return QueueStatus(known, recorded, None, None)
    try:
        async with asyncio.timeout(LOG_ANSWERS_WITHIN):
            state, decided, dead = await asyncio.gather(log.state(), log.decided(), log.dead.count())
    except TimeoutError:
        return QueueStatus(known, recorded, None, f"no answer within {LOG_ANSWERS_WITHIN:g} s")
    except LogError as error:
        return QueueStatus(known, recorded, None, str(error))
    lags = tuple(max(end - below, 0) for end, below in zip(state.ends, decided, strict=False))
    return QueueStatus(known, lags, dead, None)


async def describe_queues(gateway: Gateway, consumers: Mapping[str, QueueConsumer]) -> dict[str, str]:
    """Return the state of each queue, for /readyz. None of it makes the gateway unready."""
    described = {}
    for each in await look_at_queues(gateway):
        name = each.known.name
        paused = consumers[name].paused_because if name in consumers else None
        described[name] = each.describe(paused, configured=name in gateway.queues)
    return described


async def measure_queues(gateway: Gateway, metrics: Metrics) -> None:
    """Bring the metrics of queues up to date."""
    for each in await look_at_queues(gateway):
        name = each.known.name
        noted = {one.partition: one for one in each.known.partitions}
        for partition in sorted({*noted, *range(len(each.lags))}):
            one = noted.get(partition)
            lag = each.lags[partition] if partition < len(each.lags) else None
            metrics.queue(name, partition, _figures(lag, one))
        if each.dead is not None:
            metrics.dead_letters(name, each.dead)


def _figures(lag: int | None, noted: progress.KnownPartition | None) -> QueueFigures:
    if noted is None:
        return QueueFigures(lag, None if lag else 0.0, 0, 0, 0, 0)
    oldest = 0.0 if lag == 0 or noted.oldest_s is None else noted.oldest_s
    return QueueFigures(lag, oldest, noted.applied, noted.refused, noted.failed, noted.redelivered)
