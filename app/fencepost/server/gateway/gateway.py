"""The parts that use cases share: the database, the picture of its tables, locks, group commit."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from fencepost.server.election.watching import Watches
from fencepost.server.fence.caller import ANYBODY, EVERYBODY, Caller
from fencepost.server.fence.problem_types import OF_CALLERS, SEAL_REFUSED
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.token import BUILTIN
from fencepost.server.gateway.batches import Batches, Share
from fencepost.server.gateway.gathered_reads import GatheredReads
from fencepost.server.gateway.kept import KeptAnswers
from fencepost.server.gateway.results import Results
from fencepost.server.gateway.seals import Seals
from fencepost.server.gateway.shares import CallerShares, Reads
from fencepost.server.gateway.together import Together
from fencepost.server.gateway.turns import Turns
from fencepost.server.locks.builtin import PostgresLocks
from fencepost.server.locks.leases import Leases
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.observe.events import CallerRefused, Emit
from fencepost.server.postgres.catalog_cache import CatalogCache
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import AllowedRoles, Database, run_write
from fencepost.server.postgres.group_commit import GroupCommit
from fencepost.server.postgres.queues import LetterBound
from fencepost.server.postgres.tables import KnownPrivileges, Table
from fencepost.server.queues.log import Log
from fencepost.server.quota import ASKING, Quota
from fencepost.server.times import TIMES, Times

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
    reads: Reads
    gathered: GatheredReads
    shares: CallerShares
    max_answer_bytes: int
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

    def connection(self, table: Table) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection for questions about a user's table. Raises what Database.connection does."""
        if self.together is not None:
            return self.together.part(self.caller, runs_code=table.runs_code)
        counted = self.share is None
        return self._of_share(self.database.connection(caller=self.caller, counted=counted, runs_code=table.runs_code))

    def own_connection(self) -> AbstractAsyncContextManager[Connection]:
        """Lend one for a question of the gateway's own, for whoever asks. Raises what Database.connection does."""
        if self.together is not None and self.caller.role is None:
            return nullcontext(self.together.connection)
        return self._of_share(self.database.connection(counted=self.share is None))

    async def run_write(self, work: Callable[[Connection], Awaitable[T]], *, runs_code: bool) -> T:
        """Do a write to users' tables as the caller (database.py). `runs_code`: see Database.connection."""
        lend = partial(self.database.for_writing, caller=self.caller, counted=self.share is None, runs_code=runs_code)
        if self.share is not None:
            return await run_write(lambda: self._of_share(lend()), work)
        async with self.shares.place(ASKING.get()):
            return await run_write(lend, work)

    def _of_share(self, connection: AbstractAsyncContextManager[Connection]) -> AbstractAsyncContextManager[Connection]:
        """Have a connection lent as one of the batch's share, if a batch's line asks."""
        return connection if self.share is None else self.share.connection(connection)

    def look(self) -> AbstractAsyncContextManager[None]:
        """Let a look at whether a table has changed begin: those of a million lines are not to be at once."""
        return nullcontext() if self.share is None else self.share.looks

    def place(self) -> AbstractAsyncContextManager[None]:
        """Let something begin that takes neither a connection nor a turn: of batches' lines so many at a time."""
        return nullcontext() if self.share is None else self.share.places

    def for_batch(self) -> "Gateway":
        """Give the same parts to the lines of a batch of this caller."""
        share = Share(self.batches)
        return replace(self, share=share, turns=share.turns)

    def read_connection(self, whose: str, *, runs_code: bool) -> AbstractAsyncContextManager[Connection]:
        """Lend one for a read of rows; it takes a place of `whose`. Raises UnavailableError, RoleError. `runs_code`:
        see Database.connection.
        """
        return self.reads.connection(self.database, self.caller, whose, runs_code=runs_code)

    def report_if_forbidden(self, refused: Problem) -> None:
        """Have a refusal counted that is for who the caller is. Where there is no authentication nobody is refused for
        that, but a seal that is not good is counted all the same: it may be stolen.
        """
        if refused.type in OF_CALLERS and (self.caller.name or refused.type is SEAL_REFUSED):
            self.emit(CallerRefused(self.caller.name or ANYBODY, refused.name, refused.detail))

    def locks_of(self, source: str) -> Leases | None:
        """Find whose leases those of a source are; None: it is not configured here."""
        return self.locks if source == BUILTIN else self.sources.get(source)
