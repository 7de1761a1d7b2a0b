"""Looks at the database for `fencepost status` and `fencepost doctor`: what is protected, and what is wrong."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from fencepost.server.ops.schema import versions
from fencepost.server.ops.schema.owner import RELATIONS
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection

OLDEST_SERVER: Final = 140000


@dataclass(frozen=True, slots=True)
class Protected:
    """One protected table, for people."""

    name: str
    rule: str
    source: str
    key: tuple[str, ...]
    rows: int
    marks: int
    since: str
    max_token: str | None
    max_jump: str | None
    sealed: bool = False


LOCK_TIMEOUT: Final = "5s"
"""How long `doctor`, and `protect` after its work, wait for tables that are locked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that doctor looked at."""

    level: Literal["ok", "warning", "error"]
    subject: str
    text: str


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
    text = _COMMAND.sub(lambda _: commands, group[0].text)
    return replace(group[0], subject=", ".join(dict.fromkeys(each.subject for each in group)), text=text)


async def protected_tables(connection: Connection) -> list[Protected]:
    """List the protected tables. `rows` is the planner's estimate, `marks` counts keys that have no row, or the marks
    of its scopes, which it shares. `max_token` and `max_jump` are an external table's, as texts.
    """
    rows = await connection.fetch(
        """SELECT p.name, p.rule, p.source, p.key_columns, p.scope, p.max_token::text, p.max_jump::text, p.sealed,
                  to_char(p.protected_at, 'YYYY-MM-DD HH24:MI') AS since,
                  (SELECT greatest(sum(c.reltuples), 0)::int8 FROM pg_partition_tree(p.relation) t
                     JOIN pg_class c ON c.oid = t.relid WHERE t.isleaf) AS rows,
                  (SELECT count(*) FROM fencepost.marks m
                    WHERE starts_with(m.resource, fencepost.enc(
                            coalesce(left(p.scope, strpos(p.scope, '/{') - 1), p.name)) || '/')
                      AND m.row_absent) AS marks
             FROM fencepost.protected p ORDER BY p.name"""
    )
    return [
        Protected(
            r["name"],
            r["rule"],
            r["source"],
            (r["scope"],) if r["scope"] else tuple(r["key_columns"]),
            r["rows"] or 0,
            r["marks"],
            r["since"],
            r["max_token"],
            r["max_jump"],
            r["sealed"],
        )
        for r in rows
    ]


async def unprotected_tables(connection: Connection) -> list[str]:
    """List the tables that could have a fence and have none."""
    rows = await connection.fetch(
        """SELECT n.nspname::text AS schema, c.relname::text AS relation
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
              AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')
              AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.relation = c.oid)
            ORDER BY 1, 2"""
    )
    return [api_name(row["schema"], row["relation"]) for row in rows]


async def examine_server(connection: Connection) -> list[Finding]:
    """Look at what every fence stands on: version, schema, durability."""
    schema = await versions.fit(connection)
    if not schema.works:
        return [Finding("error", "schema", schema.describe())]
    findings = [Finding("ok" if schema.verdict == "same" else "warning", "schema", schema.describe())]
    row = await connection.fetchrow(
        """SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS shown,
                  current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
                  current_setting('session_replication_role') AS replication_role, pg_is_in_recovery() AS standby"""
    )
    if row is None:
        raise RuntimeError("a SELECT without FROM gave no row")
    if row["version"] < OLDEST_SERVER:
        findings.append(Finding("error", "server", f"PostgreSQL {row['shown']} is older than 14"))
    else:
        findings.append(Finding("ok", "server", f"PostgreSQL {row['shown']}"))
    findings += [
        Finding("error", name, f"{name} = off: a crash may forget writes and marks that were answered for")
        for name in ("fsync", "full_page_writes")
        if row[name] == "off"
    ]
    if row["replication_role"] != "origin":
        findings.append(Finding("error", "session", "session_replication_role is not origin: no trigger would fire"))
    findings += await _examine_strays(connection)
    if row["standby"]:
        findings.append(Finding("error", "server", "this is a standby: nothing can be written here"))
    return findings


async def _examine_strays(connection: Connection) -> list[Finding]:
    strays = await connection.fetchval(
        """SELECT string_agg(c.relname, ', ') FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace
           AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
           AND c.relname <> ALL ($1::text[])""",
        list(RELATIONS),
    )
    if not strays:
        return []
    return [
        Finding(
            "warning",
            "schema",
            f"the schema fencepost holds tables that are not its own ({strays}); the gateway does not serve them. A"
            ' role named fencepost creates tables here, since its search_path begins with "$user"',
        )
    ]


_PRIVILEGES: Final = """
SELECT p.name, current_user::text AS role,
       array_remove(ARRAY[
         CASE WHEN NOT has_table_privilege(p.relation, 'SELECT') THEN 'SELECT' END,
         CASE WHEN NOT has_table_privilege(p.relation, 'INSERT') THEN 'INSERT' END,
         CASE WHEN NOT has_any_column_privilege(p.relation, 'UPDATE') THEN 'UPDATE' END,
         CASE WHEN NOT has_table_privilege(p.relation, 'DELETE') THEN 'DELETE' END], NULL) AS missing
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation ORDER BY p.name"""


async def examine_privileges(connection: Connection) -> list[Finding]:
    """Look at what the role of this connection may do, for it is the gateway's."""
    findings = [
        Finding("warning", row["name"], f"the role {row['role']} lacks {', '.join(row['missing'])} on the table")
        for row in await connection.fetch(_PRIVILEGES)
        if row["missing"]
    ]
    allowed = await connection.fetchval(
        "SELECT has_function_privilege('fencepost.raise_mark(text, bigint, text, boolean)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.meet_ceiling(text, text, bigint, bigint, bigint)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.mark_without_row(text, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.mark_record(text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.enter(text, text[], bigint, oid, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.enter_each(text, text[], bigint[], oid, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.idem_begin(text, text, bytea)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.idem_begin_each(text, text[], bytea[])', 'EXECUTE')"
        " AND has_function_privilege('fencepost.idem_record(text, text, bytea, integer, text[], bytea)', 'EXECUTE')"
        " AND has_function_privilege("
        "'fencepost.idem_record_each(text[], text[], bytea[], integer[], text[], bytea[])', 'EXECUTE')"
        " AND has_function_privilege('fencepost.lock_counts()', 'EXECUTE')"
        " AND has_function_privilege('fencepost.issued_to(bigint)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.origin(bigint, uuid)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.source_state(text, text)', 'EXECUTE')"
        " AND has_function_privilege('fencepost.prune_marks(bigint, xid8, double precision, text, integer)', 'EXECUTE')"
    )
    if not allowed:
        role = await connection.fetchval("SELECT current_user::text")
        findings.append(
            Finding(
                "error",
                "privileges",
                f"the role {role} lacks functions of our schema: run `fencepost migrate --gateway-role {role}`",
            )
        )
    return findings
