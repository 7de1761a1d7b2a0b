"""`fencepost doctor`: what a check is, the loop that runs them, and the checks of the server and of failover (R19)."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Literal

import asyncpg

from fencepost.server.ops import schema as versions
from fencepost.server.ops.schema import RELATIONS
from fencepost.server.postgres import upkeep
from fencepost.server.postgres.connection import NO_TRIGGERS, OPEN_WITHIN, Connection, Limits, session_settings, settle
from fencepost.server.postgres.errors import SessionError
from fencepost.server.postgres.row_sql import literal
from fencepost.server.postgres.upkeep import WHERE_TO_LOOK

NOW: Final = """
CASE WHEN n.nspname = 'public' AND strpos(c.relname, '.') = 0 THEN c.relname::text ELSE n.nspname || '.' || c.relname
END AS table"""
"""The name of a table c of a schema n as the API has it (`api_name`), as SQL."""

Level = Literal["ok", "warning", "error"]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that doctor can find, in each of the `rows` whose column `when` is neither empty nor false; without
    `when` in each row.

    `rows`: a query, or a function of the connection (or of the `setup` that `examine` is given). A row has at least a
    `subject`. `says` and `mend`, what is wrong and what to do, are filled in from the row; printed, they are one text.
    Checks of the same rows stand together. Of these the level ok is for a row in which the checks before found nothing.
    `docs/checks.md` is made from the checks: `make format`.
    """

    name: str
    rows: str | Callable[[Any], Awaitable[Sequence[Row]]]
    level: Level
    says: str
    mend: str = ""
    when: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found."""

    check: str
    level: Level
    subject: str
    says: str
    mend: str = ""

    @property
    def text(self) -> str:
        return self.says + self.mend

    def as_json(self) -> dict[str, str | None]:
        what_to_do = self.mend.lstrip(":;. ") or None
        about = {"check": self.check, "level": self.level, "subject": self.subject}
        return {**about, "text": self.says, "what_to_do": what_to_do}


LOCK_TIMEOUT: Final = "5s"
"""How long `doctor`, and `protect` after its work, wait for tables that are locked."""


async def _none(_: object) -> list[Row]:
    return []


LOCKED: Final = Check("locked", _none, "error",  # it is `examine` that finds it
    f"a protected table has been locked for {LOCK_TIMEOUT}, so that not all could be looked at (see {WHERE_TO_LOOK})",
    "; run this again")  # fmt: skip


async def examine(checks: Iterable[Check], connection: Connection, setup: object = None) -> list[Finding]:
    """Run checks, one after the other. With LOCKED among them a lock that is not had in time is a finding, and ends it;
    else it raises what PostgreSQL says.
    """
    found, checks = list[Finding](), list(checks)
    for rows, together in groupby(checks, key=lambda each: each.rows):
        of_rows = list(together)
        try:
            for row in await (read(connection, rows) if isinstance(rows, str) else rows(setup or connection)):
                found += _look(of_rows, row)
        except asyncpg.LockNotAvailableError:
            if LOCKED not in checks:
                raise
            return [*found, *_look([LOCKED], {"subject": "locks"})]
    return found


async def read(connection: Connection, query: str, *values: object) -> list[dict[str, Any]]:
    """Fetch rows, whose columns can be added to."""
    return [dict(row) for row in await connection.fetch(query, *values)]


def _look(checks: Iterable[Check], row: Row) -> list[Finding]:
    shown = {name: ", ".join(value) if isinstance(value, list) else value for name, value in row.items()}
    found: list[Finding] = []
    for check in checks:
        if (check.when is None or row.get(check.when)) and not (found and check.level == "ok"):
            says, mend = check.says.format_map(shown), check.mend.format_map(shown)
            found.append(Finding(check.name, check.level, shown["subject"], says, mend))
    return found


_COMMAND: Final = re.compile("`fencepost protect [^`]+`")
"""What mends a table, and names it."""


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Make one finding of those that say the same of several subjects: with all names, and what mends each."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for each in findings:
        groups.setdefault((each.level, _COMMAND.sub("", each.text)), []).append(each)
    return [_merge(group) for group in groups.values()]


def _merge(group: Sequence[Finding]) -> Finding:
    commands = ", ".join(dict.fromkeys(found[0] for each in group if (found := _COMMAND.search(each.text))))
    first, subject = group[0], ", ".join(dict.fromkeys(each.subject for each in group))
    mend = _COMMAND.sub(lambda _: commands, first.mend)
    return replace(first, subject=subject, mend=mend)


# The schema comes first: where this version cannot work on it, nothing else can be looked at.


async def _fit(connection: Connection) -> list[Row]:
    fit = await versions.fit(connection)
    revision, colon, what_to_do = fit.describe().partition(": ")
    told = {"subject": "schema", "revision": revision, "migrate_or_upgrade": colon + what_to_do}
    return [{**told, "unfit": not fit.works, "newer": fit.verdict == "newer"}]


SCHEMA: Final = (
    Check("schema-unfit", _fit, "error", "{revision}", "{migrate_or_upgrade}", when="unfit"),
    Check("schema-newer", _fit, "warning", "{revision}", "{migrate_or_upgrade}", when="newer"),
    Check("schema", _fit, "ok", "{revision}"),
)

# What every fence stands on: the server, its durability, and prepared transactions, which may keep other checks from
# looking.

_VERSION: Final = """
SELECT 'server' AS subject, current_setting('server_version') AS version,
       current_setting('server_version_num')::int < 140000 AS old"""

_NOT_DURABLE: Final = """
SELECT s.name AS subject FROM pg_settings s
 WHERE s.name IN ('fsync', 'full_page_writes') AND s.setting = 'off' ORDER BY s.name"""

_STRAYS: Final = f"""
SELECT 'schema' AS subject, string_agg(c.relname, ', ') AS tables FROM pg_class c
 WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND c.relname NOT IN ({", ".join(literal(name) for name in RELATIONS)})"""

OLD: Final = 300.0
"""Seconds after which no transaction manager is expected to come back to its prepared transaction."""


async def _prepared(connection: Connection) -> list[Row]:
    rows: list[Row] = []
    for each in await upkeep.all_prepared(connection):
        named = {"subject": "prepared", "transaction": each.describe(), "commit_or_roll_it_back": each.mend()}
        locks = f"holds locks on {', '.join(each.locked)}, and " if each.locked else ""
        old = not each.protected and each.age >= OLD
        rows.append({**named, "fenced": list(each.protected), "old": old, "locks": locks})
    return rows


SERVER: Final = (
    Check("server-too-old", _VERSION, "error", "PostgreSQL {version} is older than 14", when="old"),
    Check("server", _VERSION, "ok", "PostgreSQL {version}"),
    Check("not-durable", _NOT_DURABLE, "error",
        "{subject} = off: a crash may forget writes and marks that were answered for"),
    Check("triggers-off", "SELECT 'session' AS subject WHERE current_setting('session_replication_role') <> 'origin'",
        "error", "session_replication_role is not origin: no trigger would fire"),
    Check("foreign-tables", _STRAYS, "warning",
        "the schema fencepost holds tables that are not its own ({tables}); the gateway does not serve them. A role"
        ' named fencepost creates tables here, since its search_path begins with "$user"', when="tables"),
    Check("standby", "SELECT 'server' AS subject WHERE pg_is_in_recovery()", "error",
        "this is a standby: nothing can be written here"),
    Check("prepared-holds-fenced", _prepared, "warning",
        "{transaction}, holds locks on {fenced}: writes to its rows, and whatever needs the whole table, wait for it"
        " and fail", ": {commit_or_roll_it_back}", when="fenced"),
    Check("prepared-old", _prepared, "warning",
        "{transaction}, {locks}keeps VACUUM, and the pruning of marks, from removing what is newer than it",
        ": {commit_or_roll_it_back}", when="old"),
)  # fmt: skip

# Failover (R19): which database this is, and whether its standbys would know everything that was acknowledged.

_VOID: Final = "a promoted standby forgets acknowledged writes and marks: promotion voids the fences"

# Where the tokens of this generation begin, and the sequence.
_BEGINNING: Final = """
SELECT 'origin' AS subject, s.seqmin, s.seqmin - 1 AS refused, g.first, s.seqmin > g.first AS late,
       s.seqmin < g.first AS early
  FROM pg_sequence s CROSS JOIN (SELECT greatest(max(generation)::int8 << 48, 1) AS first
                                   FROM fencepost.generations HAVING count(*) > 0) g
 WHERE s.seqrelid = to_regclass('fencepost.tokens')"""


async def _origin(connection: Connection) -> list[Row]:
    """Compare the database with what is stored in it; what this role may not look at is found with the privileges."""
    if not await connection.fetchval("SELECT has_function_privilege('fencepost.origin(bigint, uuid)', 'EXECUTE')"):
        return []
    origin = await upkeep.origin(connection)
    if origin.in_recovery:
        return []  # found with the server
    found = f"generation {origin.generation}: {origin.found.describe()}"
    return [{"subject": "origin", "refused_because": origin.problem(), "generation_and_place": found}]


async def _beginning(connection: Connection) -> list[Row]:
    if not await connection.fetchval("SELECT has_table_privilege('fencepost.generations', 'SELECT')"):
        return []
    return [*await read(connection, _BEGINNING)]


async def _lagging(connection: Connection) -> list[Row]:
    return [{"subject": name} for name in await upkeep.lagging_tables(connection)]


# A role that may not see other roles' connections sees standbys without their state.
_REPLICATION: Final = """
SELECT 'replication' AS subject, names, streaming,
       CASE WHEN names = '' AND attached = 1 THEN '1 standby is'
            WHEN names = '' AND attached > 1 THEN attached || ' standbys are' END AS attached
  FROM (SELECT btrim(current_setting('synchronous_standby_names'), E' \\t\\n') AS names,
               count(*) FILTER (WHERE r.state IS DISTINCT FROM 'backup') AS attached,
               count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')) AS streaming FROM pg_stat_replication r) s"""

_ASYNCHRONOUS: Final = """
SELECT 'replication' AS subject, coalesce('database ' || quote_ident(d.datname), '')
       || CASE WHEN d.oid IS NOT NULL AND r.oid IS NOT NULL THEN ', ' ELSE '' END
       || coalesce('role ' || quote_ident(r.rolname), '') AS place, setting
  FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS setting
  LEFT JOIN pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_roles r ON r.oid = s.setrole
 WHERE setting IN ('synchronous_commit=off', 'synchronous_commit=local')
   AND (s.setdatabase = 0 OR d.datname = current_database())
UNION ALL
SELECT 'replication', 'the server', 'synchronous_commit=' || g.reset_val
  FROM pg_settings g, pg_database d, pg_roles r
 WHERE d.datname = current_database() AND r.rolname = session_user
   AND g.name = 'synchronous_commit' AND g.reset_val IN ('off', 'local')
   AND NOT EXISTS (SELECT FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS setting
                    WHERE setting LIKE 'synchronous_commit=%'
                      AND s.setdatabase IN (0, d.oid) AND s.setrole IN (0, r.oid))
 ORDER BY 2"""

# What the role of this connection may do, for it is the gateway's.

_TABLE_PRIVILEGES: Final = """
SELECT p.name AS subject, current_user::text AS role,
       array_remove(ARRAY[
         CASE WHEN NOT has_table_privilege(p.relation, 'SELECT') THEN 'SELECT' END,
         CASE WHEN NOT has_table_privilege(p.relation, 'INSERT') THEN 'INSERT' END,
         CASE WHEN NOT has_any_column_privilege(p.relation, 'UPDATE') THEN 'UPDATE' END,
         CASE WHEN NOT has_table_privilege(p.relation, 'DELETE') THEN 'DELETE' END], NULL) AS privileges
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation ORDER BY p.name"""

_FUNCTION_PRIVILEGES: Final = """
SELECT 'privileges' AS subject, current_user::text AS role
 WHERE NOT (SELECT bool_and(has_function_privilege('fencepost.' || f, 'EXECUTE')) FROM unnest(ARRAY[
   'raise_mark(text, bigint, text, boolean)', 'meet_ceiling(text, text, bigint, bigint, bigint)',
   'mark_without_row(text, text)', 'mark_record(text)', 'enter(text, text[], bigint, oid, text)',
   'enter_each(text, text[], bigint[], oid, text)', 'idem_begin(text, text, bytea)',
   'idem_begin_each(text, text[], bytea[])', 'idem_record(text, text, bytea, json, text, text)',
   'idem_record_each(text[], text[], bytea[], json[], text[], text[])', 'lock_counts()', 'issued_to(bigint)',
   'origin(bigint, uuid)', 'source_state(text, text)',
   'prune_marks(bigint, xid8, double precision, text, integer)']) f)"""

_RAISE: Final = ": fencepost generation raise --reason …, which begins a new one"

FAILOVER: Final = (
    Check("origin-unknown", _origin, "error", "{refused_because}; gateways do not write to it",
        ". When no other primary is alive: fencepost generation raise --reason …", when="refused_because"),
    Check("origin", _origin, "ok", "{generation_and_place}"),
    Check("tokens-begin-late", _beginning, "error",
        "tokens up to {refused} are refused as of an earlier generation, and it began at {first} (MINVALUE of"
        " fencepost.tokens)", _RAISE, when="late"),
    Check("tokens-begin-early", _beginning, "error",
        "tokens of earlier generations are taken from {seqmin} on, and this one began at {first} (MINVALUE of"
        " fencepost.tokens)", _RAISE, when="early"),
    Check("functions-without-generations", _lagging, "error",
        "its functions were made by an older version, and take tokens of earlier generations",
        ": run `fencepost protect {subject}`"),
    Check("synchronous", _REPLICATION, "ok",
        "synchronous_standby_names is {names}, {streaming} of them streaming now", when="names"),
    Check("standby-not-synchronous", _REPLICATION, "warning",
        f"synchronous_standby_names is empty, and {{attached}} attached: {_VOID}", when="attached"),
    Check("no-synchronous-standby", _REPLICATION, "ok", f"no synchronous standby; without one {_VOID}"),
    Check("commits-not-waited-for", _ASYNCHRONOUS, "warning",
        "{place} sets {setting}: direct SQL there is answered before its commit is safe"),
    Check("table-privileges", _TABLE_PRIVILEGES, "warning",
        "the role {role} lacks {privileges} on the table", when="privileges"),
    Check("function-privileges", _FUNCTION_PRIVILEGES, "error",
        "the role {role} lacks functions of our schema", ": run `fencepost migrate --gateway-role {role}`"),
)  # fmt: skip


async def open_session(dsn: str) -> Row:
    """Open a session as the gateway's pools do, and read what is in force there."""
    connection = await asyncpg.connect(dsn, timeout=OPEN_WITHIN)
    try:
        found = await settle(connection, session_settings(Limits()))
        # A pooler gives its clients a process id that it made up.
        direct = connection.get_server_pid() == await connection.fetchval("SELECT pg_backend_pid()")
    except SessionError as error:
        return {"subject": "session", "trouble": str(error)}
    finally:
        connection.terminate()
    pooler = "" if direct else ", through a connection pooler in session mode"
    trouble = NO_TRIGGERS if found["session_replication_role"] == "replica" else ""
    return {"subject": "session", "trouble": trouble, "pooler": pooler, **found}
