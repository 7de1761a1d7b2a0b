"""The parts that use cases share: the database, the picture of its tables, locks, group commit."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final, TypeVar

from fencepost.server.fence.caller import ANYBODY, ASKING, EVERYBODY, Caller
from fencepost.server.fence.problem_types import NO_SEAL_KEYS, SEAL_REFUSED
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.seal import Binding, Fault, SealedToken, SealKeys, SealKeysError, parse_keys
from fencepost.server.fence.token import Token
from fencepost.server.gateway.election import Watches
from fencepost.server.gateway.group_commit import GroupCommit
from fencepost.server.gateway.outcomes import NOTHING, KeptAnswers, Together, Turns
from fencepost.server.gateway.results import Results
from fencepost.server.gateway.takers import NextRows
from fencepost.server.identity.keys import looks_like
from fencepost.server.locks.builtin import PostgresLocks
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.observe.events import CallerRefused, Emit, SealKeysRead, SealKeysUnreadable
from fencepost.server.postgres.catalog_cache import CatalogCache
from fencepost.server.postgres.connection import Session
from fencepost.server.postgres.database import AllowedRoles, Database, run_write
from fencepost.server.postgres.errors import UnavailableError
from fencepost.server.postgres.pool import Limiter, Quota, most_of
from fencepost.server.postgres.queues import LetterBound
from fencepost.server.postgres.tables import KnownPrivileges, Table
from fencepost.server.queues.log import Log
from fencepost.server.setting_files import SettingFileError, read_setting_file
from fencepost.server.times import TIMES, Times

# Seals of tokens at this gateway: its keys as they are now, and what is answered where a seal does not hold.

_MINT: Final = "Mint new tokens under the lease: POST /v1/leases/{lease_id}/tokens."
_WHOLE: Final = "Send sealed_token whole and unchanged, as the gateway gave it."


def _now() -> float:
    return time.time()  # noqa: TID251 - gateways compare the ends of seals with each other's clocks; no write is decided by it


@dataclass(slots=True)
class Seals:
    """Makes and verifies seals. `keys` None: there are none here. `lifetime`: seconds from making a seal to its end."""

    keys: SealKeys | None = None
    lifetime: float = 86_400.0
    now: Callable[[], float] = field(default=_now)

    def seal(self, tokens: Sequence[Token], binding: Binding) -> list[str]:
        """Seal tokens of one lease; nothing where there are no keys."""
        if self.keys is None:
            return []
        return self.keys.seal(tokens, binding, int(self.now() + self.lifetime))

    def verify(self, presented: SealedToken) -> Binding | Problem:
        """Verify a token's seal, and give what it is bound to. Without keys each key is an unknown one."""
        found: Binding | Fault = "unknown-key" if self.keys is None else self.keys.open(presented, self.now())
        if isinstance(found, Binding):
            return found
        return refused(presented.number, found, *_said(found, presented))


def no_keys(table: str) -> Problem:
    """Refuse a write of a table that takes sealed tokens only, where there are no keys."""
    return Problem(
        NO_SEAL_KEYS,
        f"{table} takes sealed tokens only, and this gateway has no keys by which to verify one.",
    )


def refused(number: Token, fault: Fault, detail: str, hint: str, resource: str | None = None) -> Problem:
    """Refuse a seal."""
    return Problem(
        SEAL_REFUSED,
        f"The seal of token {number} {detail}",
        hint=hint,
        resource=resource,
        presented_token=number,
        extra={"reason": fault},
    )


def _said(fault: Fault, presented: SealedToken) -> tuple[str, str]:
    match fault:
        case "unknown-key":
            key = presented.text.split(".")[1]
            return f"was made with the key {key}, which this gateway has not, or no more.", _MINT
        case "ended":
            return "has ended.", _MINT
        case _:
            return "is not one that this gateway, or another one with its keys, has made for it.", _WHOLE


def elsewhere(binding: Binding, number: Token, resources: Sequence[str]) -> Problem | None:
    """Refuse a write of resources that the seal is not bound to; None: it is bound to all of them."""
    for resource in resources:
        if not binding.covers(resource):
            return refused(
                number,
                "other-resource",
                f"is not for {resource}: lease {binding.lease} is bound to other resources.",
                'Acquire a lock of that name, or claim it, or name it in "writes": ["table/*"], with the lease.',
                resource,
            )
    return None


# Reads the keys of seals from their file, and again when it changes: so keys are changed without a restart.

LARGEST_KEYS_FILE: Final = 65_536
"""Bytes of the file."""

_Signature = tuple[int, int, int, int]
"""By which a file is known to be another one, or changed: device, inode, time of its last change, size."""


class SealKeysFile:
    """Keeps a gateway's seals at the keys that the file has. Of a file that cannot be read the last good keys stay."""

    def __init__(self, path: Path, seals: Seals, emit: Emit) -> None:
        self._path, self._seals, self._emit = path, seals, emit
        self._known: _Signature | None = None
        self._failed = ""

    def look(self) -> None:
        """Read the file if it is another one than when it was read."""
        try:
            if _signature(os.stat(self._path)) == self._known:  # noqa: PTH116 - nothing else of it is wanted
                return
        except OSError as error:
            self._fail(error)
            return
        self.read()

    def read(self) -> None:
        try:
            keys, self._known = read_keys(self._path)
        except (OSError, SealKeysError, SettingFileError) as error:
            self._fail(error)
            return
        self._failed = ""
        if self._seals.keys != keys:
            self._seals.keys = keys
            self._emit(SealKeysRead(tuple(keys.keys)))

    def _fail(self, error: OSError | ValueError) -> None:
        self._known = None
        reason = f"{self._path}: {reason_of(error)}"
        if reason != self._failed:
            self._failed = reason
            self._emit(SealKeysUnreadable(reason))


def read_keys(path: Path) -> tuple[SealKeys, _Signature]:
    """Read the keys, and by what the file is known. Raises OSError, SealKeysError, SettingFileError."""
    signature = _signature(os.stat(path))  # noqa: PTH116 - before: a file that is replaced meanwhile is read again
    keys = parse_keys(read_setting_file(path, LARGEST_KEYS_FILE))
    for name, key in keys.keys.items():
        if found := looks_like(key):
            raise SealKeysError(f"the key {name} looks like {found}: others may know it")
    return keys, signature


def _signature(of: os.stat_result) -> _Signature:
    return of.st_dev, of.st_ino, of.st_mtime_ns, of.st_size


def reason_of(error: OSError | ValueError) -> str:
    """Say why the file cannot be read, without anything of a key."""
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)


# What batches (POST /v1/batch) have of this process: places for their lines, and a share of the connections.
#
# Who sends a million lines at once is not to keep others from writing, nor who sends a few to rows that are locked. So
# lines that share transactions are decided some at a time, whichever batch they are of. Of half of the pool's
# connections one half is for lines that go alone, no batch having all of these, and one for batches that land as a
# whole. Who waits for a lock has no place meanwhile. Lines are never refused for want of a place or of a connection,
# and take none of FENCEPOST_MAX_WAITING.

BATCHES_AT_ONCE: Final = 4
"""So many batches decide all lines that they may have in hand; the lines of more of them wait for places. A batch whose
table is locked keeps its places for as long, and leaves those of three others."""


class Batches:
    """`lines`: a batch has so many in hand at most. `connections` of the pool are for those that go alone, `wait`
    seconds at most for a turn at a locked row. One at a time looks whether a table has changed (`looks`). A batch that
    is to land as a whole waits for `pool_timeout` seconds at most.
    """

    def __init__(self, lines: int, connections: int, wait: float, pool_timeout: float) -> None:
        self.lines, self.wait = lines, wait
        of_whole = max(connections // 2, 1)
        self.of_lines = max(connections - of_whole, 1)
        self.places = asyncio.Semaphore(BATCHES_AT_ONCE * lines)
        self.looks = asyncio.Semaphore(1)
        # All but one are for the lines of one batch.
        self.connections = Limiter(self.of_lines, max(self.of_lines - 1, 1), None, "connection for a line")
        self._whole = Limiter(of_whole, most_of(of_whole), pool_timeout, "turn of a batch that lands as a whole")
        self.stopping = asyncio.Event()
        """The process is asked to stop: batches read no more."""

    @asynccontextmanager
    async def whole(self) -> AsyncIterator[None]:
        """Have a turn for a batch that is to land as a whole: it keeps a connection, as a request does, and they have
        half of those of batches; one caller's have three quarters of these. UnavailableError: the turn did not come in
        time, or the gateway stops.
        """
        caller = ASKING.get()
        try:
            await self._whole.enter(caller)
        except UnavailableError as error:
            raise UnavailableError(NOTHING.format(error)) from error
        try:
            if self.stopping.is_set():
                raise UnavailableError(NOTHING.format("the gateway is stopping"))
            yield
        finally:
            self._whole.leave(caller)


@dataclass(eq=False)
class Share:
    """What one batch has: connections for all lines of it but one's, and turns of its own at locked rows."""

    batches: Batches

    @cached_property
    def turns(self) -> Turns:
        at_once = max(self.batches.of_lines // 2, 1)
        return Turns(at_once=at_once, wait=self.batches.wait, most_waiting=sys.maxsize, of_one_caller=True)

    @asynccontextmanager
    async def connection(self, connection: AbstractAsyncContextManager[Session]) -> AsyncIterator[Session]:
        """Lend it as one of the share, which is waited for as long as it takes."""
        async with self.batches.connections.place(self), connection as lent:
            yield lent


# What every use case is given.

DEFAULT_QUEUE: Final = "postgres:default"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts that use cases share."""

    database: Database
    catalog: CatalogCache
    emit: Emit
    max_rows: int
    locks: PostgresLocks
    group: GroupCommit
    turns: Turns
    reads: GroupCommit
    """Reads of one row by its key, which share statements."""
    max_answer_bytes: int
    next_rows: NextRows
    """Who stands in line for the next row of a table here."""
    kept: KeptAnswers = field(default_factory=lambda: KeptAnswers(1 << 30, 86_400))
    """What is kept of answers under Idempotency-Keys."""
    waiters: Quota = field(default_factory=lambda: Quota(1000, 1000, "FENCEPOST_MAX_WAITERS"))
    """Who waits for locks here."""
    sources: Mapping[str, SourceLocks] = field(default_factory=dict)
    """The lock services that are configured, by name."""
    watches: Watches = field(default_factory=lambda: Watches(Quota(1000, 1000, "FENCEPOST_MAX_WATCHERS")))
    """Who watches elections here."""
    queues: Mapping[str, Log] = field(default_factory=dict)
    """The logs that writes can be submitted to, by the names of their queues."""
    results: Results = field(default_factory=lambda: Results(Quota(1000, 1000, "FENCEPOST_MAX_WATCHERS")))
    """Who waits here for what becomes of queued writes."""
    seals: Seals = field(default_factory=Seals)
    """What makes and verifies the seals of tokens."""
    default_queue: str = DEFAULT_QUEUE
    """Where a write goes that is to be queued, to a table without a queue of its own."""
    roles: AllowedRoles = field(default_factory=AllowedRoles)
    """As whose roles it acts."""
    privileges: KnownPrivileges = field(default_factory=KnownPrivileges)
    """What they may do, where that is asked before a write is queued."""
    letters: LetterBound = field(default_factory=LetterBound)
    """How many dead letters there may be before no more writes are queued."""
    times: Times = TIMES
    batches: Batches = field(default_factory=lambda: Batches(256, 5, 10.0, 5.0))
    """What the lines of batches have of this process."""
    share: Share | None = None
    """That of the batch whose line asks; None: a request asks."""
    together: Together | None = None
    """The transaction that it is one part of what asks; None: it is decided by itself."""
    caller: Caller = EVERYBODY
    """Who asks. What a use case does on users' tables, it does as the caller."""

    def of(self, caller: Caller) -> "Gateway":
        """Give the same parts to the use cases of this caller's request."""
        return self if caller is self.caller else replace(self, caller=caller)

    def connection(self, table: Table) -> AbstractAsyncContextManager[Session]:
        """Lend a connection for questions about a user's table. Raises what Database.connection does."""
        if self.together is not None:
            return self.together.part(self.caller, runs_code=table.runs_code)
        return self._of_share(
            self.database.connection(caller=self.caller, patient=self.share is not None, runs_code=table.runs_code)
        )

    def own_connection(self) -> AbstractAsyncContextManager[Session]:
        """Lend one for a question of the gateway's own, for whoever asks. Raises what Database.connection does."""
        if self.together is not None and self.caller.role is None:
            return nullcontext(self.together.connection)
        return self._of_share(self.database.connection(patient=self.share is not None))

    async def run_write(self, work: Callable[[Session], Awaitable[T]], *, runs_code: bool) -> T:
        """Do a write to users' tables as the caller. `runs_code`: see Database.connection."""
        lend = partial(self.database.for_writing, caller=self.caller, runs_code=runs_code)
        if self.share is None:
            return await run_write(partial(lend, whose=ASKING.get()), work)
        return await run_write(lambda: self._of_share(lend(patient=True)), work)

    def _of_share(self, connection: AbstractAsyncContextManager[Session]) -> AbstractAsyncContextManager[Session]:
        """Have a connection lent as one of the batch's share, if a batch's line asks."""
        return connection if self.share is None else self.share.connection(connection)

    def look(self) -> AbstractAsyncContextManager[None]:
        """Let a look at whether a table has changed begin: those of a million lines are not to be at once."""
        return nullcontext() if self.share is None else self.batches.looks

    def place(self) -> AbstractAsyncContextManager[None]:
        """Let something begin that takes neither a connection nor a turn: of batches' lines so many at a time."""
        return nullcontext() if self.share is None else self.batches.places

    def for_batch(self) -> "Gateway":
        """Give the same parts to the lines of a batch of this caller."""
        return replace(self, share=Share(self.batches))

    def read_connection(self, whose: str, *, runs_code: bool) -> AbstractAsyncContextManager[Session]:
        """Lend one for a read of rows; it takes a place of `whose`. Raises UnavailableError, RoleError. `runs_code`:
        see Database.connection.
        """
        return self.database.for_reads(caller=self.caller, whose=whose, runs_code=runs_code)

    def report_if_forbidden(self, refused: Problem) -> None:
        """Have a refusal counted that is for who the caller is. Where there is no authentication nobody is refused for
        that, but a seal that is not good is counted all the same: it may be stolen.
        """
        if refused.type.of_caller and (self.caller.name or refused.type is SEAL_REFUSED):
            self.emit(CallerRefused(self.caller.name or ANYBODY, refused.name, refused.detail))
