"""The queues of a gateway: which log a URL names (kafka://h1:9092,h2:9092/TOPIC?…, redis://h:6379/STREAM?…; the one of
the protected database has no URL), how they are opened, and how they stand.
"""

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from fencepost.server.observe.events import Emit, SourceTrouble
from fencepost.server.observe.logs import spelled_out
from fencepost.server.postgres import queues as records
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import RefusedError, StorageError
from fencepost.server.postgres.queues import KnownPartition, KnownQueue
from fencepost.server.queues.log import Log, LogConfigError, LogError
from fencepost.server.queues.message import QUEUE_NAME
from fencepost.server.queues.postgres import PostgresLog
from fencepost.server.startup import StartupError

DEFAULT: Final = "postgres:default"
"""The queue that is always there."""

# Scheme, the module of this package that has a function `from_url`, and the extra that brings its library.
KINDS: Final[dict[str, tuple[str, str]]] = {
    "kafka": ("fencepost.server.queues.kafka", "kafka"),
    "redis": ("fencepost.server.queues.redis", "redis"),
    "rediss": ("fencepost.server.queues.redis", "redis"),
}
_KIND: Final = {"rediss": "redis"}

FromUrl = Callable[[str], Log]

_LAST_PART: Final = re.compile(r"[A-Za-z0-9._-]{1,48}")


def name_of(url: str) -> str:
    """Give the name of the queue that a URL stands for: kafka:TOPIC, redis:STREAM. Raises LogConfigError, which does
    not quote the URL: there may be a password in it.
    """
    try:
        split = urlsplit(url)
        scheme, path = split.scheme, split.path
    except ValueError:
        raise LogConfigError("a URL cannot be read") from None
    if scheme not in KINDS:
        known = ", ".join(f"{kind}://" for kind in KINDS)
        raise LogConfigError(f"{scheme or 'no scheme'}:// is no queue that can be configured: {known}")
    last = path.removeprefix("/")
    if not _LAST_PART.fullmatch(last):
        raise LogConfigError(
            f"{scheme}://: after the servers comes /NAME, 1 to 48 letters, digits, dots, underscores and hyphens"
        )
    return f"{_KIND.get(scheme, scheme)}:{last}"


def require_name(name: str) -> str:
    """Return the name of a queue. Raises LogConfigError for what is none."""
    if not QUEUE_NAME.fullmatch(name) or (name.startswith("postgres:") and name != DEFAULT):
        raise LogConfigError(f"{name!r} is no queue: {DEFAULT}, kafka:TOPIC or redis:STREAM")
    return name


def make(url: str) -> Log:
    """Make the log that a URL names, not opened yet. Raises LogConfigError."""
    name_of(url)
    scheme = urlsplit(url).scheme
    module, extra = KINDS[scheme]
    try:
        from_url: FromUrl = importlib.import_module(module).from_url
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("fencepost"):
            raise
        raise LogConfigError(
            f"{scheme}:// needs the library {error.name}: pip install '.[{extra}]' in the clone of Fencepost"
        ) from error
    return from_url(url)


# Opens the logs that are configured, and makes their token sources known (R12).

_FOR_GOOD: Final = frozenset({"42501", "FP400"})
"""SQLSTATEs that waiting does not mend: a privilege is missing, the name is another kind's."""


@dataclass(frozen=True, slots=True)
class ConfiguredQueue:
    """A queue with its name, not opened yet."""

    name: str
    log: Log


@asynccontextmanager
async def queues_opened(
    configured: Sequence[ConfiguredQueue], database: Database, dsn: str, emit: Emit, *, register: bool = True
) -> AsyncIterator[dict[str, Log]]:
    """Open the logs, and close them in the end. Their servers need not be there, nor need the database take writes: a
    consumer registers its queue again. `register`: False for those who only look.
    """
    queues = {DEFAULT: PostgresLog(database, dsn), **{each.name: each.log for each in configured}}
    opened: list[Log] = []
    try:
        for name, log in queues.items():
            if register:
                await _register(database, name, emit)
            opened.append(log)
            try:
                await log.open()
            except LogConfigError as error:
                raise StartupError(f"FENCEPOST_QUEUES: {name}: {error}") from error
            except LogError as error:
                emit(SourceTrouble(name, str(error)))
        yield queues
    finally:
        await asyncio.gather(*(log.close() for log in opened))


async def _register(database: Database, name: str, emit: Emit) -> None:
    try:
        async with database.connection() as connection:
            await records.register(connection, name)
    except RefusedError as error:
        if error.sqlstate in _FOR_GOOD and name != DEFAULT:  # it is there unasked
            mend = (
                "Run `fencepost migrate --gateway-role` for the role in the database URL"
                if error.sqlstate == "42501"
                else error.hint or ""
            )
            raise StartupError(f"FENCEPOST_QUEUES: {name}: {error}. {mend}") from error
        emit(SourceTrouble(name, f"it is not registered yet: {error}"))
    except StorageError as error:
        emit(SourceTrouble(name, f"it is not registered yet: {error}"))


# How queues stand: what their consumers noted in the database, what their logs say now.

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


async def look_at(
    database: Database, logs: Mapping[str, Log], within: float, also: str | None = None
) -> list[QueueStatus]:
    """Look at all queues that were ever registered, and ask the logs of those that are configured here. `within`:
    seconds that each log is waited for; after that what was recorded has to do. `also`: a queue to be looked at even if
    it was not registered. Raises StorageError.
    """
    async with database.spare() as connection:
        known = await records.known(connection)
        now = await records.now(connection)
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
