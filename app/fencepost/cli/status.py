"""`fencepost status` and `fencepost doctor`, each a table that one loop walks: what is there, and what is wrong."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import asyncpg
import click

from fencepost.cli.queue import look_at_queues, queue_as_json
from fencepost.cli.shared import database_url, on_database, one_line, print_table, settings_options
from fencepost.server.fence.token import HIGHEST_TOKEN
from fencepost.server.locks.source import SourceError
from fencepost.server.ops.doctor import (
    FAILOVER,
    LOCK_TIMEOUT,
    LOCKED,
    NOW,
    SCHEMA,
    SERVER,
    Check,
    Finding,
    Row,
    examine,
    merged,
    open_session,
    read,
)
from fencepost.server.ops.doctor_tables import FENCES
from fencepost.server.parts import ConfiguredSource, names_of_queues, read_queues, read_seal_keys, read_sources
from fencepost.server.postgres import leases, sources, upkeep
from fencepost.server.postgres import queues as queue_records
from fencepost.server.postgres.leases import LockRow
from fencepost.server.postgres.queues import KnownQueue
from fencepost.server.postgres.sources import KnownSource
from fencepost.server.postgres.upkeep import Size
from fencepost.server.queues.log import LogError
from fencepost.server.queues.registry import DEFAULT, ConfiguredQueue, QueueStatus, as_noted
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError

# `doctor`: the checks of what is configured where the command runs. Those of the database are in server/ops.


@dataclass(frozen=True, slots=True)
class Setup:
    """The database, and what is configured here. `queues`: the names of all, `logs`: those besides the database's."""

    connection: asyncpg.Connection
    settings: Settings
    sources: Sequence[ConfiguredSource]
    queues: Sequence[str]
    logs: Sequence[ConfiguredQueue]


async def _session(setup: Setup) -> list[Row]:
    return [await open_session(database_url(setup.settings))]


# What one gateway may open, and what PostgreSQL lets this role have. A superuser may take what is reserved, and has no
# limits.
_ROOM: Final = """
SELECT 'connections' AS subject, $1::int AS workers, $2::int AS wanted, room, $2 > room AS short FROM (
  SELECT least(current_setting('max_connections')::int
               - CASE WHEN r.rolsuper THEN 0 ELSE current_setting('superuser_reserved_connections')::int
                      + coalesce(current_setting('reserved_connections', true)::int, 0) END,
             CASE WHEN r.rolconnlimit >= 0 AND NOT r.rolsuper THEN r.rolconnlimit END,
             CASE WHEN d.datconnlimit >= 0 AND NOT r.rolsuper THEN d.datconnlimit END) AS room
    FROM pg_roles r, pg_database d WHERE r.rolname = session_user AND d.datname = current_database()) has"""
_WANTED: Final = "a gateway of {workers} workers may open {wanted} connections (the three pool sizes + 1 each)"


async def _room(setup: Setup) -> list[Row]:
    workers = setup.settings.workers
    wanted = workers * (sum(setup.settings.pool_sizes) + 1)
    return [*await read(setup.connection, _ROOM, workers, wanted)]


async def _sources(setup: Setup) -> list[Row]:
    """Compare the sources that the database knows with those that are configured, and ask each of these."""
    here = {each.name: each for each in setup.sources}
    rows, asked = list[Row](), list[Row]()
    for known in await sources.list_known(setup.connection):
        row = {**_source(known.name), "state": known.describe(), "tables": list(known.tables)}
        if known.quarantined is not None:
            rows.append({**row, "quarantined": True})
        elif known.name in here:
            asked += (found := await _ask(here.pop(known.name), known))
            rows.append({**row, "fine": not any(each.get("trouble") or each.get("number") for each in found)})
        elif known.of_a_queue:
            needed = known.name not in setup.queues and known.tables
            rows.append(
                {**row, "queue_needed": needed, "fine": not needed and not (known.name == DEFAULT and known.unused)}
            )
        else:
            rows.append({**row, "needed": known.tables})
    for each in here.values():
        asked += await _ask(each, None)
    return rows + asked


def _source(name: str) -> dict[str, Any]:
    return {"subject": f"source {name}", "name": name}


async def _ask(configured: ConfiguredSource, known: KnownSource | None) -> list[Row]:
    """Ask a service about its settings, and whether it has come as far as the tokens of `known`."""
    row, source, rows = _source(configured.name), configured.source, list[Row]()
    await source.open()
    try:
        rows += [{**row, "advice": text} for text in await source.advice()]
        if known is not None and known.number > 0 and source.capabilities.verifies:
            behind = not await source.issued(known.number)
            rows += [{**row, "number": known.number, "state": known.describe()}] if behind else []
    except SourceError as error:
        rows.append({**row, "trouble": str(error)})
    finally:
        await source.close()
    return rows


async def _dead(setup: Setup) -> list[Row]:
    letters = await queue_records.count_dead(setup.connection)
    return [{"subject": f"queue {DEFAULT}", "name": DEFAULT, "dead": sum(letters.values())}]


async def _logs(setup: Setup) -> list[Row]:
    """Ask each log for its advice and its dead letters."""
    rows: list[Row] = []
    for queue in setup.logs:
        row = {"subject": f"queue {queue.name}", "name": queue.name}
        try:
            await queue.log.open()
            rows += [{**row, "advice": text} for text in await queue.log.advice()]
            rows.append({**row, "dead": sum((await queue.log.dead.count()).values())})
        except LogError as error:
            rows.append({**row, "trouble": str(error)})
        finally:
            await queue.log.close()
    return rows


async def _seals(setup: Setup) -> list[Row]:
    """Read the keys, and which tables take sealed tokens only, which each role may read."""
    found = await setup.connection.fetch("SELECT p.name FROM fencepost.protected p WHERE p.sealed ORDER BY p.name")
    sealed = [row["name"] for row in found]
    try:
        keys = read_seal_keys(setup.settings)
    except StartupError as error:
        return [{"subject": "seals", "trouble": str(error)}]
    if keys is None:
        return [{"subject": "seals", "without_keys": sealed}]
    return [{"subject": "seals", "first": keys.first, "keys": list(keys.keys), "sealed": sealed or "no table"}]


_VOUCH: Final = ". When it can be vouched for: fencepost source raise {name} --reason …"
_LETTERS: Final = "dead letters: {dead}, writes that were acknowledged and are not applied"
_LIST: Final = ". `fencepost dead list {name}`"

LOGS: Final = (
    Check("queue-settings", _logs, "warning", "{advice}", when="advice"),
    Check("dead-letters", _logs, "warning", _LETTERS, _LIST, when="dead"),
    Check("queue-trouble", _logs, "error", "{trouble}", when="trouble"),
)
CONFIGURED: Final = (
    Check("session-unusable", _session, "error", "{trouble}", when="trouble"),
    Check("session", _session, "ok", "a session of the gateway has {transaction_isolation}, synchronous_commit ="
        " {synchronous_commit}, DateStyle = {DateStyle}, TimeZone = {TimeZone}{pooler}"),
    Check("connections-short", _room, "warning",
        _WANTED + ", and PostgreSQL has {room} for this role (max_connections, CONNECTION LIMIT): requests wait for"
        " those that can be had", when="short"),
    Check("connections", _room, "ok", _WANTED + ", of {room}"),
    Check("source-quarantined", _sources, "error", "{state}", _VOUCH, when="quarantined"),
    Check("source", _sources, "ok", "{state}", when="fine"),
    Check("queue-not-configured", _sources, "warning",
        "{tables} takes its writes by it, and FENCEPOST_QUEUES here has it not", when="queue_needed"),
    Check("source-not-configured", _sources, "warning",
        "{tables} needs it, and FENCEPOST_SOURCES here has it not", when="needed"),
    Check("source-settings", _sources, "warning", "{advice}", when="advice"),
    Check("source-behind", _sources, "error",
        "it has not come as far as {number}, which is known to have been handed out ({state}): its data was lost or"
        " restored from a backup. Its next grant quarantines it, unless it counts past that number first, and then"
        " tokens repeat", _VOUCH, when="number"),
    Check("source-trouble", _sources, "error", "{trouble}", when="trouble"),
    Check("dead-letters-here", _dead, "warning", _LETTERS, _LIST, when="dead"),
    *LOGS,
    Check("seal-keys-unreadable", _seals, "error", "{trouble}", when="trouble"),
    Check("seal-keys-missing", _seals, "error",
        "{without_keys} takes sealed tokens only, and FENCEPOST_SEAL_KEYS_FILE names no keys here: a gateway without"
        " them refuses each write to it", when="without_keys"),
    Check("seals", _seals, "ok", "{first} seals, {keys} verify; sealed: {sealed}", when="keys"),
)  # fmt: skip

CHECKS: Final[Mapping[str, tuple[Check, ...]]] = {
    "The schema": SCHEMA,
    "The server": SERVER,
    "Protected tables": FENCES,
    "Failover, and privileges of this role": FAILOVER,
    "A table that stays locked": (LOCKED,),
    "What is configured here": CONFIGURED,
}
"""All that doctor looks at, in its order; docs/checks.md is made of it."""

_SIGNS: Final = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


async def _examine(setup: Setup) -> list[Finding]:
    connection = setup.connection
    findings = await examine(SCHEMA, connection)
    if any(each.level == "error" for each in findings):  # nothing else can be looked at
        return findings
    findings += await examine(SERVER, connection)
    await connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
    findings += await examine((*FENCES, *FAILOVER, LOCKED), connection)
    return findings + await examine(CONFIGURED, connection, setup)


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: a finding for each check and subject.")
def doctor(settings: Settings, as_json: bool) -> None:
    """Find faults: server, schema, every protected table, the lock services and queues that are configured. Exit code
    1 when there is an error.
    """
    with one_line(StartupError):
        configured, queues, logs = read_sources(settings), names_of_queues(settings), read_queues(settings)

    async def look(connection: asyncpg.Connection) -> list[Finding]:
        return await _examine(Setup(connection, settings, configured, queues, logs))

    findings = on_database(settings, look, migrated=False)
    if as_json:
        click.echo(json.dumps({"findings": [each.as_json() for each in findings]}, indent=2, ensure_ascii=False))
    else:
        for finding in merged(findings):
            click.echo(f"{_SIGNS[finding.level]}  {finding.subject}: {finding.text}")
    if any(finding.level == "error" for finding in findings):
        raise SystemExit(1)


# `status`: a table of things, which one loop reads and prints.

_MOST_LOCKS: Final = 1000
_MOST_USES: Final = 5
_KILO: Final = 1024
_KEPT: Final = {"marks": "marks", "idempotency": "idempotency records"}

# `rows` is the planner's estimate, null where it has none yet of the table or of one of its partitions: the tree of a
# table that has no partitions, and is none, is empty. `marks` counts keys that have no row, or the marks of the table's
# scopes, which it shares.
_PROTECTED: Final = """
SELECT p.name, p.rule, p.source, CASE WHEN p.scope IS NULL THEN p.key_columns ELSE ARRAY[p.scope] END AS key,
       (SELECT CASE WHEN bool_or(c.reltuples < 0) THEN NULL ELSE coalesce(sum(c.reltuples), 0)::int8 END
          FROM pg_class c
         WHERE c.relkind <> 'p'
           AND (c.oid = p.relation OR c.oid IN (SELECT t.relid FROM pg_partition_tree(p.relation) t))) AS rows,
       (SELECT count(*) FROM fencepost.marks m
         WHERE starts_with(m.resource, fencepost.enc(coalesce(fencepost.scope_prefix(p.scope), p.name)) || '/')
           AND m.row_absent) AS marks,
       to_char(p.protected_at, 'YYYY-MM-DD HH24:MI') AS since, p.max_token::text, p.max_jump::text, p.sealed,
       p.triggers_see_own_row, p.work, p.max_attempts
  FROM fencepost.protected p ORDER BY p.name"""

_UNPROTECTED: Final = f"""
SELECT {NOW} FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')
   AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = c.oid)
 ORDER BY n.nspname::text, c.relname::text"""

_USES: Final = f"""
SELECT to_json(date_trunc('second', l.at)) #>> '{{}}' AS at, l.login, l.role, l.name AS table, l.verb, l.resource,
       l.reason, l.old_mark::text, l.new_mark::text
  FROM fencepost.break_glass_log l ORDER BY l.at DESC, l.xid DESC, l.name, l.verb LIMIT {_MOST_USES}"""


async def _uses(connection: asyncpg.Connection) -> list[Row]:
    """Read who broke the glass; nothing where this role may not read that (their queries may hold secrets)."""
    if not await connection.fetchval("SELECT has_table_privilege('fencepost.break_glass_log', 'SELECT')"):
        return []
    return [*await read(connection, _USES)]


async def _trouble(_: asyncpg.Connection) -> list[str]:
    return []  # the logs of queues are asked later


def _table(table: Row) -> tuple[str, ...]:
    """Give the columns; the source with the ceiling where one was set, whether tokens are sealed, whether the owner
    vouches for triggers, and whether workers take rows.
    """
    bounds = [f"to {table['max_token']}"] if table["max_token"] not in (None, str(HIGHEST_TOKEN)) else []
    bounds += [f"jumps to {table['max_jump']}"] if table["max_jump"] is not None else []
    bounds += ["sealed"] if table["sealed"] else []
    bounds += ["triggers see own row"] if table["triggers_see_own_row"] else []
    bounds += ["work"] if table["work"] else []
    bounds += [f"put aside after {table['max_attempts']}"] if table["max_attempts"] is not None else []
    source = table["source"] + (f" ({', '.join(bounds)})" if bounds else "")
    rows = "?" if table["rows"] is None else str(table["rows"])
    return table["name"], table["rule"], source, ",".join(table["key"]), rows, str(table["marks"]), table["since"]


def _size(size: Size) -> str:
    amount, units = float(size.bytes), ["bytes", "kB", "MB", "GB", "TB"]
    while amount >= _KILO and len(units) > 1:
        amount, units = amount / _KILO, units[1:]
    shown = f"{amount:.0f}" if units[0] == "bytes" else f"{amount:.1f}"
    return f"{_KEPT.get(size.what, size.what)}: {size.records}, {shown} {units[0]} on disk"


def _waiting(state: LockRow) -> list[str]:
    return [waiter["owner"] for waiter in json.loads(state.waiters)]


def _lock(state: LockRow) -> tuple[str, ...]:
    waiting = ", ".join(_waiting(state))
    if state.remaining_ms is None:
        return (state.name, "(free)", "", "", "", waiting)
    left = f"{state.remaining_ms / 1000:.1f}"
    return (state.name, state.owner or "", str(state.lease_id), str(state.last_token), left, waiting)


def _lock_as_json(state: LockRow) -> dict[str, object]:
    return {
        "lock": state.name,
        "holder": state.owner,
        "lease_id": None if state.lease_id is None else str(state.lease_id),
        "token": None if state.last_token is None else str(state.last_token),
        "remaining_ms": state.remaining_ms,
        "waiting": _waiting(state),
    }


def _use(use: Row) -> tuple[str, ...]:
    # What people wrote is one line here, whatever they wrote.
    who = use["login"] if use["role"] == use["login"] else f"{use['login']} as {use['role']}"
    resource = use["resource"] + ("" if use["new_mark"] is None else f": {use['old_mark']} to {use['new_mark']}")
    return tuple(" ".join(each.split()) for each in (use["at"], who, use["verb"], resource, use["reason"]))


@dataclass(frozen=True, slots=True)
class Listing:
    """One thing that `status` shows: the member `key` of the JSON object, a list of what `rows` gives, each `as_json`;
    and for each a line, or nothing; below a `title`, or below `header` in columns, or joined in one line.
    """

    key: str
    rows: str | Callable[[asyncpg.Connection], Awaitable[Sequence[Any]]]
    as_json: Callable[[Any], object]
    line: Callable[[Any], Any]
    header: tuple[str, ...] = ()
    title: str | None = None
    joined: str = ""

    def print(self, items: Sequence[Any]) -> None:
        lines = [line for each in items if (line := self.line(each))]
        if self.title is not None and lines:
            click.echo(self.title)
        if self.header and lines:
            print_table(self.header, lines)
        elif self.joined and lines:
            click.echo(self.joined + ", ".join(lines))
        else:
            for line in lines:
                click.echo(line, err=self.key == "queue_trouble")
        if self.key == "locks" and len(items) == _MOST_LOCKS:
            click.echo(f"the first {_MOST_LOCKS} by name; GET /v1/locks?after=… lists more")


def _unused(name: str, of: KnownSource | QueueStatus) -> bool:
    """Whether it is the database's own queue, which is always there, and nobody has used it: that is no news."""
    return name == DEFAULT and of.unused


LISTINGS: Final = (
    Listing("protected", _PROTECTED, dict, _table, ("TABLE", "RULE", "SOURCE", "KEY", "ROWS", "MARKS", "SINCE")),
    Listing("unprotected", _UNPROTECTED, lambda row: row["table"], lambda row: row["table"], joined="not protected: "),
    Listing("kept", upkeep.count_marks, asdict, _size),
    Listing("floors", upkeep.raised_floors, lambda floor: (floor[0], str(floor[1])),
        lambda floor: f"{floor[0]} {floor[1]}", joined="floors, up to which marks were pruned: "),
    Listing("sources", sources.list_known, lambda source: {**asdict(source), "issued": str(source.issued)},
        lambda source: None if _unused(source.name, source) else f"source {source.name}: {source.describe()}"),
    Listing("queues", queue_records.known, queue_as_json,
        lambda queue: None if _unused(queue.known.name, queue) else f"queue {queue.known.name}: {queue.describe()}"),
    Listing("locks", lambda connection: leases.lock_states(connection, None, None, _MOST_LOCKS), _lock_as_json, _lock,
        ("LOCK", "HOLDER", "LEASE", "TOKEN", "SECONDS LEFT", "WAITING"), title=""),
    Listing("refusals", lambda connection: upkeep.newest(connection, _MOST_USES), asdict,
        lambda each: (each.day, each.caller, each.code, str(each.count), each.detail),
        ("DAY", "CALLER", "CODE", "TIMES", "LAST"), "\nrefused for who the caller is (fencepost.refusals has all):"),
    Listing("queue_trouble", _trouble, str, str),
    Listing("broken_glass", _uses, dict, _use, ("WHEN", "WHO", "VERB", "FIRST RESOURCE", "REASON"),
        "\ndone in the place of a holder, without its token (fencepost.break_glass_log has all):"),
)  # fmt: skip


_FIRST_IN_JSON: Final = ("protected", "unprotected", "kept", "floors", "locks", "sources", "broken_glass", "refusals")


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

    async def look(connection: asyncpg.Connection) -> dict[str, Sequence[Any]]:
        return {
            each.key: await (read(connection, each.rows) if isinstance(each.rows, str) else each.rows(connection))
            for each in LISTINGS
        }

    seen = on_database(settings, look)
    seen["queues"], seen["queue_trouble"] = _look_at_queues(settings, seen["queues"])
    if as_json:
        described: dict[str, Any] = dict.fromkeys(_FIRST_IN_JSON)
        described |= {each.key: [each.as_json(item) for item in seen[each.key]] for each in LISTINGS}
        described["floors"] = dict(described["floors"])
        click.echo(json.dumps(described, indent=2, ensure_ascii=False))
        return
    if not seen["protected"]:
        click.echo("no table is protected: fencepost protect TABLE")
    for each in LISTINGS:
        each.print(seen[each.key])


def _look_at_queues(settings: Settings, known: Sequence[KnownQueue]) -> tuple[list[QueueStatus], list[str]]:
    """Ask the logs, too, if there are queues, and what that needs is there; where logs are in trouble, a line each."""
    if not known:
        return [], []
    trouble: list[str] = []
    for asked in (settings, settings.model_copy(update={"queues": None, "default_queue": DEFAULT})):
        try:
            queues, more = look_at_queues(asked)
        except click.ClickException as error:
            trouble = trouble or [f"the logs of queues were not asked: {error.message}"]
        else:
            return queues, trouble + more
    return [as_noted(each) for each in known], trouble
