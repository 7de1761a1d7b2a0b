"""How queues stand, for /readyz and /metrics: what their consumers noted in the database, what their logs say now."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fencepost.server.consuming.consumer import QueueConsumer
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.observe.logs import spelled_out
from fencepost.server.observe.metrics import Metrics, QueueFigures
from fencepost.server.postgres import queues
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import StorageError
from fencepost.server.postgres.queues import KnownPartition, KnownQueue
from fencepost.server.queues.log import Log, LogError

_FRESH: Final = 5.0
"""Seconds for which what a consumer noted is good enough: those that take messages note it once a second."""

_COUNTS: Final = ("applied", "refused", "failed", "redelivered")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """How one queue stands. `lags`: by partition, how many messages are not decided; None: it is not known. `ages`: by
    partition, for how many seconds the first of them has waited; 0: there is none, None: it is not known. `dead`: by
    partition, how many dead letters are there; None: not known.
    """

    known: KnownQueue
    lags: tuple[int | None, ...]
    ages: tuple[float | None, ...]
    dead: Mapping[int, int] | None
    trouble: str | None

    @property
    def lag(self) -> int | None:
        """How many messages are not decided, in all partitions of which it is known; None: it is known of none."""
        known = [lag for lag in self.lags if lag is not None]
        return sum(known) if known else None

    @property
    def oldest_s(self) -> float | None:
        """For how long the message has waited that waits longest; 0: none does, None: it is not known."""
        known = [age for age in self.ages if age is not None]
        return max(known, default=None) if any(known) or len(known) == len(self.ages) else None

    def describe(self, paused: str | None = None, *, configured: bool = True) -> str:
        """Say it in a line. `paused`: why the consumer of this process does not go on."""
        parts = [f"generation {self.known.generation}"]
        if self.lag is not None:
            parts.append(f"lag {self.lag}")
        if self.oldest_s:
            parts.append(f"oldest {self.oldest_s:.0f} s")
        parts += [f"{what} {count}" for what, count in self.counts.items()]
        parts.append("dead letters unknown" if self.letters is None else f"dead letters {self.letters}")
        if self.letters:
            parts[-1] += f" (fencepost dead list {self.known.name})"
        parts += self.faults(paused)
        if not configured:
            parts.append("not configured at this gateway")
        return "; ".join(parts)

    @property
    def unused(self) -> bool:
        """Whether nothing was ever queued in it, as far as it is known, and nothing is wrong with it."""
        return not (self.known.generation or self.lag or self.letters or any(self.counts.values()) or self.faults())

    @property
    def letters(self) -> int | None:
        """How many dead letters are there; None: it is not known."""
        return None if self.dead is None else sum(self.dead.values())

    @property
    def counts(self) -> dict[str, int]:
        """What became of messages, counted by all consumers since the queue was first used."""
        return {what: sum(getattr(each, what) for each in self.known.partitions) for what in _COUNTS}

    def faults(self, paused: str | None = None) -> list[str]:
        """Say why all or some of it is not applied, and what is the trouble with its log, a line each."""
        found, paused = [], paused or self.known.paused
        if self.known.quarantined is not None:
            found.append(f"quarantined: {self.known.quarantined}")
        elif paused is not None:
            found.append(f"paused: {paused}")
        if self.known.stopped:
            found.append(f"{self.known.stopped} resources stopped")
        found += [each.describe() for each in self.known.blocked]
        if self.trouble is not None:
            found.append(f"its log: {self.trouble}")
        return [spelled_out(each) for each in found]


async def look_at_queues(gateway: Gateway) -> list[QueueStatus]:
    """Look at all queues, as `look_at` does; at none when the database cannot be asked."""
    try:
        return await look_at(gateway.database, gateway.queues, gateway.times.health.log_within)
    except StorageError:
        return []


async def look_at(
    database: Database, logs: Mapping[str, Log], within: float, also: str | None = None
) -> list[QueueStatus]:
    """Look at all queues that were ever registered, and ask the logs of those that are configured here. `within`:
    seconds that each log is waited for; after that what was recorded has to do. `also`: a queue to be looked at even if
    it was not registered. Raises StorageError.
    """
    async with database.spare() as connection:
        known = await queues.known(connection)
        now = await queues.now(connection)
    if also is not None and all(each.name != also for each in known):
        known.append(KnownQueue(also, also.partition(":")[0], 0, None, None, None, 0, ()))
    return list(await asyncio.gather(*(look_at_queue(each, logs.get(each.name), now, within) for each in known)))


def as_noted(known: KnownQueue) -> QueueStatus:
    """Say how a queue stands as far as its consumers have noted it, where its log is not asked."""
    noted = {each.partition: each for each in known.partitions}
    partitions = [noted.get(number) for number in range(max(noted, default=-1) + 1)]
    lags = tuple(None if each is None else each.lag for each in partitions)
    return QueueStatus(
        known, lags, tuple(None if each is None else _noted_age(each) for each in partitions), None, None
    )


def _noted_age(noted: KnownPartition) -> float | None:
    """Say how old the oldest message is. That there is none holds for a moment only: who appends notes nothing."""
    if noted.lag == 0:
        return 0.0 if _is_fresh(noted) else None
    return _passed(noted.oldest_s)


def _is_fresh(noted: KnownPartition) -> bool:
    return noted.noted_s is not None and noted.noted_s < _FRESH


def _passed(seconds: float | None) -> float | None:
    """None where they are not known, or a clock that is ahead of the database's said when they began."""
    return seconds if seconds is not None and seconds > 0 else None


async def look_at_queue(known: KnownQueue, log: Log | None, now: float, within: float) -> QueueStatus:
    """Look at a queue, of which this was noted, and ask its log, if there is one. `now`: by the database's clock.
    `within`: as in `look_at`.
    """
    if log is None:
        return as_noted(known)
    until = asyncio.get_running_loop().time() + within
    try:
        async with asyncio.timeout_at(until):
            state, decided, dead = await asyncio.gather(log.state(), log.decided(), log.dead.count())
    except TimeoutError:
        return replace(as_noted(known), trouble=f"no answer within {within:g} s")
    except LogError as error:
        return replace(as_noted(known), trouble=str(error))
    lags = tuple(max(end - below, 0) for end, below in zip(state.ends, decided, strict=False))
    return QueueStatus(known, lags, _ages(known, lags, await _oldest(known, lags, log, until), now), dead, None)


async def _oldest(known: KnownQueue, lags: Sequence[int], log: Log, until: float) -> Sequence[float | None]:
    """Ask the log when the first messages were appended, unless consumers have just noted it: where none runs, or what
    waits has not been taken, only the log knows.
    """
    noted = {each.partition for each in known.partitions if each.oldest_s is not None and _is_fresh(each)}
    if all(lag == 0 or partition in noted for partition, lag in enumerate(lags)):
        return ()
    try:
        async with asyncio.timeout_at(until):
            return await log.oldest()
    except (TimeoutError, LogError):  # all else is known of it
        return ()


def _ages(
    known: KnownQueue, lags: Sequence[int], oldest: Sequence[float | None], now: float
) -> tuple[float | None, ...]:
    noted = {each.partition: each.oldest_s for each in known.partitions}
    ages: list[float | None] = []
    for partition, lag in enumerate(lags):
        at = oldest[partition] if partition < len(oldest) else None
        ages.append(0.0 if lag == 0 else _passed(noted.get(partition) if at is None else now - at))
    return tuple(ages)


async def describe_queues(gateway: Gateway, consumers: Mapping[str, QueueConsumer]) -> dict[str, str]:
    """Return the state of each queue, for /readyz. None of it makes the gateway unready."""
    described = {}
    for each in await look_at_queues(gateway):
        name = each.known.name
        paused = consumers[name].paused_because if name in consumers else None
        described[name] = each.describe(paused, configured=name in gateway.queues)
    return described


async def measure_queues(gateway: Gateway, consumers: Mapping[str, QueueConsumer], metrics: Metrics) -> None:
    """Bring the metrics of queues up to date. `consumers`: those of this process."""
    publish(await look_at_queues(gateway), consumers, metrics)


def publish(statuses: Sequence[QueueStatus], consumers: Mapping[str, QueueConsumer], metrics: Metrics) -> None:
    """Set the metrics of queues, also of what is not known of them any more. `consumers`: those of this process."""
    for each in statuses:
        name = each.known.name
        noted = {one.partition: one for one in each.known.partitions}
        before = metrics.partitions_of_queue(name)
        for partition in sorted({*range(len(each.ages)), *(each.dead or ()), *before}):
            metrics.queue(name, partition, _figures(each, partition, noted.get(partition)))
        here = name in consumers and consumers[name].paused_because is not None
        metrics.queue_paused(name, paused=here or each.known.paused is not None)


def _figures(status: QueueStatus, partition: int, noted: queues.KnownPartition | None) -> QueueFigures:
    lag = status.lags[partition] if 0 <= partition < len(status.lags) else None
    age = status.ages[partition] if 0 <= partition < len(status.ages) else None
    dead = None if status.dead is None else status.dead.get(partition, 0)
    if noted is None:
        count = 0 if partition >= 0 else None  # letters of no partition
        return QueueFigures(lag, age, count, count, count, count, dead)
    return QueueFigures(lag, age, noted.applied, noted.refused, noted.failed, noted.redelivered, dead)
