"""What every use case stands on: the database, the catalog, and the way from a table's name to an outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fencepost.election.watching import Watches
from fencepost.fencing.problem_types import (
    DATABASE_UNAVAILABLE,
    OUTCOME_UNKNOWN,
    ROW_NOT_FOUND,
    SOURCE_FAILED,
    SOURCE_QUARANTINED,
    SOURCE_UNAVAILABLE,
    TOKEN_REQUIRED,
    UNISSUED_TOKEN,
    UNKNOWN_TABLE,
    UNPROTECTED_TABLE,
)
from fencepost.fencing.problems import Problem, bad_request
from fencepost.fencing.token import BUILTIN, Token
from fencepost.gateway.refusals import SUPPRESSED, problem_of_refused
from fencepost.gateway.superseded import naming_the_holder
from fencepost.gateway.writes.blockers import naming_the_blocker
from fencepost.gateway.writes.turns import Turns
from fencepost.locks.builtin.leases import PostgresLocks
from fencepost.locks.leases import Leases
from fencepost.locks.source import SourceError, SourceFrozenError, SourceUnavailableError
from fencepost.locks.source_leases.leases import SourceLocks
from fencepost.observe.events import Accepted, Emit, Refused, Verb
from fencepost.storage.batches.group_commit import GroupCommit
from fencepost.storage.connections.engine import Database
from fencepost.storage.errors import OutcomeUnknownError, QuarantinedError, RefusedError, UnavailableError
from fencepost.storage.statements.query import QueryError, UnknownColumnError
from fencepost.storage.tables.cache import CatalogCache
from fencepost.storage.tables.catalog import MARK_COLUMN, Catalog, ProtectedTable, Table

RETRY_AFTER = 1
"""Seconds that a caller is asked to wait when the database could not be asked."""
QUARANTINED_RETRY_AFTER = 10
"""The same, when somebody has to decide first."""


@dataclass(slots=True)
class Done:
    """What a use case has to say: rows as JSON texts, and the mark of a single protected row."""

    rows: Sequence[str]
    mark: int | None = None
    created: bool = False
    total: int | None = None
    """How many rows match in all, when it was asked for (`Prefer: count=exact`)."""
    resource: str = ""
    """The full name of the one resource that was claimed or made."""
    scope: str = ""
    """The name of the one scope that was written to or claimed (R8)."""
    response: object = None
    """What it is answered with, if that was rendered already."""


Outcome = Done | Problem

MOST_DOUBTS = 3
"""How often a request that met DDL is run again. Each time it may wait for the table, while others change it again."""

Doubt = Literal["catalog", "session"] | None
"""Why a request may have failed for nothing: the picture of the database is outdated, or a session's plans are."""


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


def table_named(catalog: Catalog, name: str) -> Table | None:
    """Find the table of this name."""
    return catalog.find(name)


async def on_table(
    gateway: Gateway,
    name: str,
    verb: Verb,
    use: Callable[[Table], Awaitable[Outcome]],
    find: Callable[[Catalog, str], Table | None] = table_named,
) -> Outcome:
    """Run `use` on the table of this name; again on a fresh catalog while the picture proves outdated, and in a fresh
    session when that one's plans do. `find` says which table is meant.

    Errors of storage become problems here, and nowhere else; and here a refusal learns who is behind it (R18).
    """
    table = find(gateway.catalog.current, name)
    outcome, doubt = await _attempt(table, name, use)
    try:
        for _ in range(MOST_DOUBTS):
            if doubt is None:
                break
            # The picture must be from after the attempt: that waited for a lock, maybe, while the table changed.
            failed = asyncio.get_running_loop().time()
            if await gateway.catalog.has_changed(name, table):
                table = find(await gateway.catalog.loaded_after(failed), name)
            elif doubt == "catalog":
                break
            # Where a session was in doubt, all are new by now.
            outcome, doubt = await _attempt(table, name, use)
        if (
            isinstance(outcome, Problem)
            and outcome.type is UNISSUED_TOKEN
            and await _source_has_issued(gateway, table, outcome)
        ):
            outcome, _ = await _attempt(table, name, use)
    except UnavailableError as error:
        outcome = unavailable(error)
    except RefusedError as error:
        outcome = problem_of_refused(error)
    except SourceError as error:
        outcome = source_problem(error, table.fence.source if table is not None and table.fence is not None else "")
    if isinstance(outcome, Problem):
        outcome = await naming_the_holder(gateway.database, gateway.emit, table, outcome)
        outcome = await naming_the_blocker(gateway.database, table, outcome)
    # Names that no table has would make as many series of metrics as callers can invent.
    _report(gateway.emit, table.name if table is not None else "", verb, outcome)
    return outcome


async def _source_has_issued(gateway: Gateway, table: Table | None, refused: Problem) -> bool:
    """Whether the table's source says that it has issued the token after all (`protect --verify`)."""
    fence = table.fence if table is not None else None
    if fence is None or not fence.verify or refused.presented_token is None:
        return False
    locks = gateway.sources.get(fence.source)
    return locks is not None and await locks.verify(refused.presented_token)


async def _attempt(  # noqa: PLR0911 - one way out for each thing that storage can say
    table: Table | None, name: str, use: Callable[[Table], Awaitable[Outcome]]
) -> tuple[Outcome, Doubt]:
    """Run once, and say what may be why it failed."""
    if table is None:
        return Problem(UNKNOWN_TABLE, f"There is no table {name}."), "catalog"
    try:
        outcome = await use(table)
    except QueryError as error:
        return bad_request(f"{error}"), "catalog" if isinstance(error, UnknownColumnError) else None
    except RefusedError as error:
        if error.sqlstate == SUPPRESSED and table.row_security:
            return Problem(ROW_NOT_FOUND, f"Row security keeps {table.name} from being written there."), None
        return problem_of_refused(error, table), _doubt_of(error)
    except OutcomeUnknownError as error:
        detail = f"It is not known whether the write landed: {error}"
        return Problem(OUTCOME_UNKNOWN, detail, retry_after=RETRY_AFTER), None
    except UnavailableError as error:
        return unavailable(error), None
    return outcome, "catalog" if isinstance(outcome, Problem) and outcome.type is UNPROTECTED_TABLE else None


def _doubt_of(error: RefusedError) -> Doubt:
    if error.of_an_old_plan:
        return "session"
    return "catalog" if error.may_be_outdated else None


def unavailable(error: UnavailableError) -> Problem:
    """Tell why nothing was done."""
    if isinstance(error, QuarantinedError):
        return Problem(
            SOURCE_QUARANTINED,
            f"{error}.",
            hint="When no other primary is alive: `fencepost generation raise --reason …` on the database to use, with"
            " --above if the detail says so.",
            retry_after=QUARANTINED_RETRY_AFTER,
            extra=dict(error.members),
        )
    return Problem(DATABASE_UNAVAILABLE, f"{error}", retry_after=RETRY_AFTER)


def no_such_source(gateway: Gateway, source: str, where: str) -> Problem:
    """Refuse a source that is not configured here."""
    known = ", ".join([BUILTIN, *sorted(gateway.sources)])
    return bad_request(
        f"{where}: source: there is no source {source[:40]} at this gateway: {known}",
        "fencepost serve --sources NAME=URL configures one (FENCEPOST_SOURCES).",
    )


def source_problem(error: SourceError, source: str) -> Problem:
    """Tell why a lock service gave nothing."""
    detail = f"{error}" if f"{error}".endswith(".") else f"{error}."
    match error:
        case SourceFrozenError():
            hint = f"When it counts on from a number that is vouched for: `fencepost source bump {source} --reason …`."
            return Problem(SOURCE_QUARANTINED, detail, hint=hint, retry_after=QUARANTINED_RETRY_AFTER)
        case SourceUnavailableError():
            return Problem(SOURCE_UNAVAILABLE, detail, retry_after=RETRY_AFTER, extra={"source": source})
        case _:
            return Problem(SOURCE_FAILED, detail, extra={"source": source})


def _report(emit: Emit, table: str, verb: Verb, outcome: Outcome) -> None:
    if isinstance(outcome, Problem):
        emit(
            Refused(
                table,
                verb,
                outcome.name,
                outcome.detail,
                outcome.resource,
                outcome.presented_token,
                outcome.current_token,
            )
        )
    elif verb != "read":
        emit(Accepted(table, verb, len(outcome.rows)))


def require_protected(table: Table) -> ProtectedTable | Problem:
    """Refuse a write to what is not protected (R13), or whose protection is broken."""
    if isinstance(table, ProtectedTable):
        return table
    if table.fence is None:
        what = "is not protected" if table.kind in ("table", "partitioned table") else f"is a {table.kind}"
        return Problem(
            UNPROTECTED_TABLE,
            f"{table.name} {what}: Fencepost reads it, and writes only where a fence checks.",
            hint=f"fencepost protect {table.name}" if table.key else None,
        )
    return Problem(
        UNPROTECTED_TABLE,
        f"{table.name} is registered as protected, but its name, triggers, column or key have changed.",
        hint=f"`fencepost doctor` says what is missing; `fencepost protect {table.name}` mends it.",
    )


def require_token(table: Table, token: Token | None) -> Token | Problem:
    """Refuse a write without token (R13): whether or not its row exists."""
    if token is None:
        return Problem(
            TOKEN_REQUIRED,
            f"{table.name} is protected: the write carries no X-Fence-Token.",
            hint="Send the token that your lock service gave with the grant.",
        )
    return token


def require_columns(table: Table, columns: Sequence[str]) -> None:
    """Refuse body keys that are no columns, and the mark, which only the gateway writes."""
    for name in columns:
        if name == MARK_COLUMN:
            raise QueryError(f"body: {MARK_COLUMN} is the mark and not data: the token travels in X-Fence-Token")
        if name not in table.columns:
            raise UnknownColumnError(f"body: {name}", table.name)


def require_key(table: Table, key: Sequence[str]) -> None:
    """Refuse a path whose key does not fit the table's."""
    if not table.key:
        raise QueryError(f"{table.name} has no primary key: name rows by filters, ?column=eq.value")
    if len(key) != len(table.key):
        raise QueryError(
            f"the key of {table.name} has {len(table.key)} value(s), {','.join(table.key)}; the path has {len(key)}"
            " (a comma inside a value is written %2C)"
        )
