"""The parts that use cases share: the database, the picture of its tables, locks, group commit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fencepost.election.watching import Watches
from fencepost.fencing.token import BUILTIN
from fencepost.gateway.turns import Turns
from fencepost.locks.builtin.leases import PostgresLocks
from fencepost.locks.leases import Leases
from fencepost.locks.source_leases.leases import SourceLocks
from fencepost.observe.events import Emit
from fencepost.storage.batches.group_commit import GroupCommit
from fencepost.storage.connections.engine import Database
from fencepost.storage.tables.cache import CatalogCache


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
    sources: Mapping[str, SourceLocks] = field(default_factory=dict)
    """The lock services that are configured, by name."""
    watches: Watches = field(default_factory=Watches)
    """Who watches elections here."""

    def locks_of(self, source: str) -> Leases | None:
        """Find whose leases those of a source are; None: it is not configured here."""
        return self.locks if source == BUILTIN else self.sources.get(source)
