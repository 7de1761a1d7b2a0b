"""`fencepost status` and `fencepost doctor`: what is there, and what is wrong with it."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import asyncpg
import click

from fencepost.cli.queue import look_at_queues, queue_as_json
from fencepost.cli.shared import database_url, on_database, one_line, print_table, settings_options
from fencepost.server.fence.token import HIGHEST_TOKEN
from fencepost.server.locks.source import Source, SourceError
from fencepost.server.ops import doctor as inspection
from fencepost.server.ops import doctor_tables
from fencepost.server.ops.doctor import BreakGlassUse, Finding, Protected
from fencepost.server.parts import (
    ConfiguredQueue,
    ConfiguredSource,
    names_of_queues,
    read_queues,
    read_seal_keys,
    read_sources,
)
from fencepost.server.postgres import leases, sources, upkeep
from fencepost.server.postgres import queues as queue_records
from fencepost.server.postgres.leases import LockRow
from fencepost.server.postgres.queues import KnownQueue
from fencepost.server.postgres.sources import KnownSource
from fencepost.server.postgres.upkeep import WHERE_TO_LOOK, CallersRefusals, Size
from fencepost.server.queues.log import LogError
from fencepost.server.queues.registry import DEFAULT
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError

if TYPE_CHECKING:
    from fencepost.server.health import QueueStatus


async def examine_queues(configured: Sequence[ConfiguredQueue]) -> list[Finding]:
    """Ask each log for its dead letters and its advice; one that cannot be asked is an error."""
    findings = []
    for queue in configured:
        subject = f"queue {queue.name}"
        try:
            await queue.log.open()
            findings += [Finding("warning", subject, text) for text in await queue.log.advice()]
            findings += _dead(queue.name, await queue.log.dead.count())
        except LogError as error:
            findings.append(Finding("error", subject, f"{error}"))
        finally:
            await queue.log.close()
    return findings


def _dead(queue: str, letters: Mapping[int, int]) -> list[Finding]:
    count = sum(letters.values())
    text = f"dead letters: {count}, writes that were acknowledged and are not applied. `fencepost dead list {queue}`"
    return [Finding("warning", f"queue {queue}", text)] if count else []


_SEALED: Final = "SELECT p.name FROM fencepost.protected p WHERE p.sealed ORDER BY p.name"
"""It reads what each role may read, and takes no lock on a table of the user's."""


async def examine_seals(connection: asyncpg.Connection, settings: Settings) -> list[Finding]:
    """Look at the keys, and at the tables that take sealed tokens only."""
    sealed = [row["name"] for row in await connection.fetch(_SEALED)]
    named = ", ".join(sealed)
    try:
        keys = read_seal_keys(settings)
    except StartupError as error:
        return [Finding("error", "seals", str(error))]
    if keys is None:
        if not sealed:
            return []
        text = (
            f"{named} takes sealed tokens only, and FENCEPOST_SEAL_KEYS_FILE names no keys here: a gateway without"
            " them refuses each write to it"
        )
        return [Finding("error", "seals", text)]
    of_keys = f"{keys.first} seals, {', '.join(keys.keys)} verify"
    return [Finding("ok", "seals", f"{of_keys}; sealed: {named or 'no table'}")]


async def examine_sources(
    connection: asyncpg.Connection, configured: Sequence[ConfiguredSource], queues: Collection[str]
) -> list[Finding]:
    """Find sources that are in quarantine or missing. Ask each configured service about its settings, and whether its
    numbers have reached its tokens. `queues`: the names of those that are configured.
    """
    here = {each.name: each for each in configured}
    findings, asked = [], []
    for known in await sources.list_known(connection):
        subject = f"source {known.name}"
        if known.quarantined is not None:
            mend = f"fencepost source raise {known.name} --reason …"
            findings.append(Finding("error", subject, f"{known.describe()}. When it can be vouched for: {mend}"))
        elif known.name in here:
            asked += (found := await _ask(here.pop(known.name), known))
            if all(each.level != "error" for each in found):
                findings.append(Finding("ok", subject, known.describe()))
        elif known.name == DEFAULT and known.unused:
            continue
        elif known.of_a_queue:
            findings.append(_of_queue(subject, known, queues))
        elif known.tables:
            needed = ", ".join(known.tables)
            findings.append(Finding("warning", subject, f"{needed} needs it, and FENCEPOST_SOURCES here has it not"))
    for each in here.values():
        asked += await _ask(each, None)
    return findings + asked


def _of_queue(subject: str, known: sources.KnownSource, queues: Collection[str]) -> Finding:
    if known.name in queues or not known.tables:
        return Finding("ok", subject, known.describe())
    needed = ", ".join(known.tables)
    return Finding("warning", subject, f"{needed} takes its writes by it, and FENCEPOST_QUEUES here has it not")


async def _ask(configured: ConfiguredSource, known: sources.KnownSource | None) -> list[Finding]:
    """Ask a service; `known` is what its tokens are compared with."""
    subject = f"source {configured.name}"
    source, findings = configured.source, list[Finding]()
    await source.open()
    try:
        findings += [Finding("warning", subject, text) for text in await source.advice()]
        if known is not None and known.number > 0 and source.capabilities.verifies:
            findings += await _behind(subject, source, known)
    except SourceError as error:
        findings.append(Finding("error", subject, f"{error}"))
    finally:
        await source.close()
    return findings


async def _behind(subject: str, source: Source, known: sources.KnownSource) -> list[Finding]:
    if await source.issued(known.number):
        return []
    text = (
        f"it has not come as far as {known.number}, which is known to have been handed out ({known.describe()}):"
        " its data was lost or restored from a backup. Its next grant quarantines it, unless it counts past"
        " that number first, and then tokens repeat. When it can be vouched for: fencepost source raise"
        f" {known.name} --reason …"
    )
    return [Finding("error", subject, text)]


_TABLES = ("TABLE", "RULE", "SOURCE", "KEY", "ROWS", "MARKS", "SINCE")
_LOCKS = ("LOCK", "HOLDER", "LEASE", "TOKEN", "SECONDS LEFT", "WAITING")
_USES = ("WHEN", "WHO", "VERB", "FIRST RESOURCE", "REASON")
_REFUSALS = ("DAY", "CALLER", "CODE", "TIMES", "LAST")
_MOST_LOCKS = 1000
_MOST_USES = 5
_KILO = 1024
_KEPT = {"marks": "marks", "idempotency": "idempotency records"}
_EXAMINED = (
    doctor_tables.examine_tables,
    doctor_tables.examine_triggers,
    doctor_tables.examine_partitions,
    doctor_tables.examine_functions,
    inspection.examine_tokens,
    doctor_tables.examine_labels,
    doctor_tables.examine_marks,
    inspection.examine_origin,
    inspection.examine_privileges,
)
_LOCKED = (
    f"a protected table has been locked for {inspection.LOCK_TIMEOUT}, so that not all could be looked at (see"
    f" {WHERE_TO_LOOK}); run this again"
)
_SIGNS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


@dataclass(frozen=True, slots=True)
class _Snapshot:
    protected: list[Protected]
    unprotected: list[str]
    locks: list[LockRow]
    sizes: list[Size]
    floors: list[tuple[str, int]]
    broken_glass: list[BreakGlassUse]
    refusals: list[CallersRefusals]
    sources: list[KnownSource]
    queues: list[KnownQueue]


async def _look(connection: asyncpg.Connection) -> _Snapshot:
    return _Snapshot(
        await inspection.protected_tables(connection),
        await inspection.unprotected_tables(connection),
        await leases.lock_states(connection, None, None, _MOST_LOCKS),
        await upkeep.count_marks(connection),
        await upkeep.raised_floors(connection),
        await inspection.newest_uses(connection, _MOST_USES),
        await upkeep.newest(connection, _MOST_USES),
        await sources.list_known(connection),
        await queue_records.known(connection),
    )


@click.command()
@settings_options("database_url", "data_dir", "queues")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object. Tokens in it are strings.")
def status(settings: Settings, as_json: bool) -> None:
    """Show what is protected, and how; who holds locks, for how long still, and who waits.

    ROWS is the planner's estimate: ? until autovacuum, or ANALYZE, has looked at the table. MARKS counts keys that
    have a mark and no row (deleted, or claimed before they existed), or the marks of its scopes. The marks below the
    table are all that are kept, of live rows too. TOKEN is the newest of the lease; WAITING names who waits, first come
    first. The logs of queues in FENCEPOST_QUEUES are asked, too. The last uses of break-glass are shown if there were
    any.
    """
    seen = on_database(settings, _look)
    queues, trouble = _look_at_queues(settings, seen)
    if as_json:
        described = {**_as_json(seen), "queues": [queue_as_json(each) for each in queues], "queue_trouble": trouble}
        click.echo(json.dumps(described, indent=2, ensure_ascii=False))
        return
    _print_tables(seen)
    # The database's own queue is always there: what nobody has used is no news.
    for source in (each for each in seen.sources if each.name != DEFAULT or not each.unused):
        click.echo(f"source {source.name}: {source.describe()}")
    for queue in (each for each in queues if each.known.name != DEFAULT or not each.unused):
        click.echo(f"queue {queue.known.name}: {queue.describe()}")
    if seen.locks:
        click.echo()
        print_table(_LOCKS, [_lock(state) for state in seen.locks])
        if len(seen.locks) == _MOST_LOCKS:
            click.echo(f"the first {_MOST_LOCKS} by name; GET /v1/locks?after=… lists more")
    if seen.refusals:
        click.echo("\nrefused for who the caller is (fencepost.refusals has all):")
        print_table(_REFUSALS, [(r.day, r.caller, r.code, str(r.count), r.detail) for r in seen.refusals])
    for text in trouble:
        click.echo(text, err=True)
    if seen.broken_glass:
        click.echo("\ndone in the place of a holder, without its token (fencepost.break_glass_log has all):")
        print_table(_USES, [_use(each) for each in seen.broken_glass])


def _look_at_queues(settings: Settings, seen: _Snapshot) -> tuple[list["QueueStatus"], list[str]]:
    """Ask the logs, too, if there are queues, and what that needs is there; where logs are in trouble, a line each."""
    from fencepost.server.health import as_noted  # noqa: PLC0415 - heavy

    if not seen.queues:
        return [], []
    trouble: list[str] = []
    for asked in (settings, settings.model_copy(update={"queues": None, "default_queue": DEFAULT})):
        try:
            queues, more = look_at_queues(asked)
        except click.ClickException as error:
            trouble = trouble or [f"the logs of queues were not asked: {error.message}"]
        else:
            return queues, trouble + more
    return [as_noted(each) for each in seen.queues], trouble


def _print_tables(seen: _Snapshot) -> None:
    if seen.protected:
        print_table(_TABLES, [_described(each) for each in seen.protected])
    else:
        click.echo("no table is protected: fencepost protect TABLE")
    if seen.unprotected:
        click.echo(f"not protected: {', '.join(seen.unprotected)}")
    for size in seen.sizes:
        click.echo(f"{_KEPT.get(size.what, size.what)}: {size.records}, {_human(size.bytes)} on disk")
    if seen.floors:
        floors = ", ".join(f"{name} {floor}" for name, floor in seen.floors)
        click.echo(f"floors, up to which marks were pruned: {floors}")


def _described(table: Protected) -> tuple[str, ...]:
    rows = "?" if table.rows is None else str(table.rows)
    return table.name, table.rule, _source(table), ",".join(table.key), rows, str(table.marks), table.since


def _source(table: Protected) -> str:
    """Name the source, with the ceiling of an external table where one was set, and whether tokens are sealed."""
    bounds = [f"to {table.max_token}"] if table.max_token not in (None, str(HIGHEST_TOKEN)) else []
    bounds += [f"jumps to {table.max_jump}"] if table.max_jump is not None else []
    bounds += ["sealed"] if table.sealed else []
    return table.source + (f" ({', '.join(bounds)})" if bounds else "")


def _as_json(seen: _Snapshot) -> dict[str, object]:
    return {
        "protected": [asdict(each) for each in seen.protected],
        "unprotected": seen.unprotected,
        "kept": [asdict(each) for each in seen.sizes],
        "floors": {name: str(floor) for name, floor in seen.floors},
        "locks": [
            {
                "lock": state.name,
                "holder": state.owner,
                "lease_id": None if state.lease_id is None else str(state.lease_id),
                "token": None if state.last_token is None else str(state.last_token),
                "remaining_ms": state.remaining_ms,
                "waiting": [waiter["owner"] for waiter in json.loads(state.waiters)],
            }
            for state in seen.locks
        ],
        "sources": [{**asdict(each), "issued": str(each.issued)} for each in seen.sources],
        "broken_glass": [asdict(each) for each in seen.broken_glass],
        "refusals": [asdict(each) for each in seen.refusals],
    }


def _use(use: BreakGlassUse) -> tuple[str, ...]:
    # What people wrote is one line here, whatever they wrote.
    who = use.login if use.role == use.login else f"{use.login} as {use.role}"
    resource = use.resource if use.new_mark is None else f"{use.resource}: {use.old_mark} to {use.new_mark}"
    return tuple(" ".join(each.split()) for each in (use.at, who, use.verb, resource, use.reason))


def _human(size: int) -> str:
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < _KILO:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= _KILO
    return f"{amount:.1f} TB"


def _lock(state: LockRow) -> tuple[str, ...]:
    waiting = ", ".join(waiter["owner"] for waiter in json.loads(state.waiters))
    if state.remaining_ms is None:
        return (state.name, "(free)", "", "", "", waiting)
    left = f"{state.remaining_ms / 1000:.1f}"
    return (state.name, state.owner or "", str(state.lease_id), str(state.last_token), left, waiting)


@click.command()
@settings_options(
    "database_url",
    "data_dir",
    "sources",
    "queues",
    "workers",
    "pool_size",
    "batch_pool_size",
    "lease_pool_size",
    "seal_keys_file",
)
def doctor(settings: Settings) -> None:
    """Find faults: server, schema, every protected table, the lock services and queues that are configured. Exit code
    1 when there is an error.
    """
    with one_line(StartupError):
        configured, queues, logs = read_sources(settings), names_of_queues(settings), read_queues(settings)

    async def look(connection: asyncpg.Connection) -> list[Finding]:
        findings = await inspection.examine_server(connection)
        if all(finding.subject != "schema" or finding.level != "error" for finding in findings):
            # First: what it finds may keep the others from looking.
            findings += await inspection.examine_prepared(connection)
            await connection.execute(f"SET lock_timeout = '{inspection.LOCK_TIMEOUT}'")
            try:
                for examine in _EXAMINED:
                    findings += await examine(connection)
            except asyncpg.LockNotAvailableError:
                findings.append(Finding("error", "locks", _LOCKED))
            findings.append(await inspection.examine_session(database_url(settings)))
            findings.append(await inspection.examine_room(connection, settings.workers, settings.pool_sizes))
            findings += await examine_sources(connection, configured, queues)
            findings += _dead(DEFAULT, await queue_records.count_dead(connection))
            findings += await examine_queues(logs)
            findings += await examine_seals(connection, settings)
        return findings

    findings = on_database(settings, look, migrated=False)
    for finding in inspection.merged(findings):
        click.echo(f"{_SIGNS[finding.level]}  {finding.subject}: {finding.text}")
    if any(finding.level == "error" for finding in findings):
        raise SystemExit(1)
