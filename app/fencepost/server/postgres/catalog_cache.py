"""Keeps the newest Catalog: reloaded when notified (NOTIFY, SIGHUP) and when a request finds it outdated.

A request that meets an unknown column, table or changed type has the gateway look whether the table has changed (one
small query), and asks for a picture begun after it arrived if so. At most one load runs at a time, and all that wait
share it. A change that no request stumbles over (a new column) is seen by the load that runs now and then.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import Final

import asyncpg

from fencepost.server.fence.resource import Scope, parse_scope
from fencepost.server.fence.token import Ceiling, Rule
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import LOCK_NOT_AVAILABLE, RefusedError
from fencepost.server.postgres.tables import (
    CALLS,
    CHANGES,
    COLUMNS,
    DEFAULTS,
    EVERYTHING,
    HAS_RULES,
    MARK_COLUMN,
    REACHED,
    REACHES,
    REACHES_ITSELF,
    REFERS,
    RUNS_OTHER_CODE,
    SHADOWED,
    SHARES,
    SUPPRESSES,
    TRIGGERS,
    Catalog,
    Column,
    Fence,
    ProtectedTable,
    Served,
    Table,
    TableKind,
    column_of,
    quote,
)
from fencepost.server.postgres.trigger_reader import (
    NAMES,
    TableOfTriggers,
    Trigger,
    only_sets_columns,
    sees_own_row_only,
)

# Read a Catalog from pg_catalog: five statements in one snapshot.

_KINDS: Final[dict[str, TableKind]] = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}
FIRST_OF_USERS: Final = 16384
"""The first oid that is not PostgreSQL's own."""
_RULES: Final[dict[str, Rule]] = {"strict": "strict", "epoch": "epoch"}

PROTECTED: Final = (
    "p.name, p.rule, p.source, p.functions, p.key_columns, p.requires_key, p.scope, p.verify, p.max_token, p.max_jump,"
    " p.sealed, p.triggers_see_own_row, p.work, p.max_attempts, p.on_exhausted"
)
"""What counts of a row of fencepost.protected p: it is read, and a change of it is noticed."""

_SILENT_PARTS: Final = """
ARRAY(WITH RECURSIVE part(oid) AS (
         SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = p.relation
         UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
       SELECT DISTINCT part.oid::regclass::text
         FROM part JOIN pg_trigger t ON t.tgrelid = part.oid AND starts_with(t.tgname, 'zzz_fencepost_')
        WHERE t.tgname !~ '_(trunc|work)$' AND t.tgenabled NOT IN ('O', 'A') ORDER BY 1)"""
"""The partitions of fencepost.protected p on which a trigger of the fence is disabled."""
_HEIRS: Final = """
ARRAY(SELECT h.oid::regclass::text FROM pg_inherits i JOIN pg_class h ON h.oid = i.inhrelid AND NOT h.relispartition
       WHERE i.inhparent = p.relation ORDER BY 1)"""
"""The tables that inherit from it. Their rows are its rows, and have no fence."""

# Everything that statements depend on: columns, key, triggers, how it is protected. No function here takes the table's
# lock: one locked table must not stop requests to the others.
_FINGERPRINT: Final = f"""
md5(concat_ws('|', c.oid, c.relkind, c.relrowsecurity, {HAS_RULES},
  (SELECT string_agg(concat_ws(':', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated,
                               a.attidentity, a.attcollation), ',' ORDER BY a.attnum)
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT string_agg(concat_ws(':', i.indexrelid, i.indexrelid::regclass, i.indkey, i.indisprimary), ','
                     ORDER BY i.indexrelid)
     FROM pg_index i WHERE i.indrelid = c.oid AND i.indisunique),
  (SELECT string_agg(concat_ws(':', t.tgname, t.tgtype, t.tgenabled), ',' ORDER BY t.tgname)
     FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal),
  (SELECT concat_ws(':', {_SILENT_PARTS}, {_HEIRS}) FROM (SELECT c.oid AS relation) AS p),
  (SELECT concat_ws(':', {PROTECTED})
     FROM fencepost.protected p WHERE p.relation = c.oid)))"""

_SERVED: Final = """c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'fencepost')
   AND (cardinality($1::text[]) = 0 OR n.nspname = ANY($1))"""

# Partitions are reached through their parent only.
RELATIONS: Final = f"""
SELECT c.oid::int8 AS oid, n.nspname AS schema, c.relname AS relation, c.relkind::text AS kind,
       obj_description(c.oid, 'pg_class') AS comment, c.relrowsecurity AS row_security,
       (SELECT array_agg(a.attname::text ORDER BY k.position)
          FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY k(attnum, position)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
         WHERE i.indrelid = c.oid AND i.indisprimary AND k.position <= i.indnkeyatts) AS key,
       (SELECT array_agg(DISTINCT a.attname::text)
          FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
         WHERE i.indrelid = c.oid AND i.indisunique) AS unique_columns,
       (SELECT x.relname::text FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid
         WHERE i.indrelid = c.oid AND i.indisprimary) AS key_constraint,
       (SELECT i.indexrelid::int8 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS key_index,
       {SUPPRESSES} AS may_suppress, {SHARES} AS shares, calls.shows_caller,
       {RUNS_OTHER_CODE} AS runs_other_code, {TRIGGERS} AS triggers,
       calls.reads_run_functions AS reads_run_code,
       {REACHES} AS reaches, {CHANGES} AS changes, {REFERS} AS refers,
       {REACHED} AS reached,
       {_FINGERPRINT} AS fingerprint
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL {CALLS} AS calls
 WHERE {_SERVED}
 ORDER BY n.nspname, c.relname"""

BOUND: Final = """ARRAY(
         SELECT a.attname::text FROM pg_proc f JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
           JOIN pg_attribute a ON a.attrelid = p.relation AND a.attnum = d.refobjsubid
          WHERE f.pronamespace = 'fencepost'::regnamespace
            AND f.proname = p.functions || CASE WHEN p.scope IS NULL THEN '_name' ELSE '_of' END
            AND d.refclassid = 'pg_class'::regclass AND d.refobjid = p.relation ORDER BY 1)"""
"""The columns by which the function of fencepost.protected p names a row's resource or scope, as they are called now.
"""

# What protect made, and whether it is all still there: the row triggers (enabled, on partitions too), and the column
# with the check that another one of its name does not have.
FENCES: Final = f"""
SELECT p.relation::oid::int8 AS oid, {PROTECTED},
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = p.relation AND a.attnotnull
                AND a.attnum > 0 AND NOT a.attisdropped) AS not_null,
       {BOUND} AS bound, fencepost.key_of(p.relation)::text AS key_is, {REACHES_ITSELF} AS reaches_itself,
       ARRAY(SELECT t.tgname::text FROM pg_trigger t WHERE t.tgrelid = p.relation
                AND starts_with(t.tgname, 'zzz_fencepost_') AND t.tgenabled IN ('O', 'A')) AS triggers,
       {_SILENT_PARTS} AS silent_parts, {_HEIRS} AS heirs,
       EXISTS (SELECT FROM pg_attribute a JOIN pg_constraint k ON k.conrelid = a.attrelid AND k.contype = 'c'
                  AND k.conname = 'fencepost_mark' AND k.conkey = ARRAY[a.attnum]
                WHERE a.attrelid = p.relation AND a.attname = '{MARK_COLUMN}' AND NOT a.attisdropped) AS marked
  FROM fencepost.protected p"""

ROW_TRIGGERS: Final = frozenset(f"zzz_fencepost_{part}" for part in ("upd", "ins", "insmark", "del"))
SCOPE_TRIGGERS: Final = frozenset(f"zzz_fencepost_{part}" for part in ("scope", "scope_ins", "scope_upd"))
TRUNCATE_TRIGGER: Final = "zzz_fencepost_trunc"
WORK_TRIGGER: Final = "zzz_fencepost_work"
"""The triggers of a protected table: those of its rows' marks, or of their scope; the one against TRUNCATE; and the one
that tells workers of rows, without which the fence holds."""


def api_name(schema: str, relation: str) -> str:
    """Name a table as the API does. A dot in a public table's name would read like a schema, so it is qualified."""
    return relation if schema == "public" and "." not in relation else f"{schema}.{relation}"


def _fence(row: asyncpg.Record, name: str, key: tuple[str, ...]) -> Fence:
    scope = parse_scope(row["scope"]) if row["scope"] is not None else None
    # Under another name than it was protected under, its DELETE function would reach for whatever has that name now.
    return Fence(
        name=row["name"],
        rule=_RULES[row["rule"]],
        source=row["source"],
        delete_function=f"fencepost.{quote(row['functions'] + '_delete')}",
        broken=_why_broken(row, name, key, scope),
        requires_key=row["requires_key"],
        verify=row["verify"],
        scope=scope,
        key=row["key_is"] or "",
        sealed=row["sealed"],
        work=row["work"],
        max_attempts=row["max_attempts"],
        on_exhausted=row["on_exhausted"] or "",
        deletes_own_rows=row["reaches_itself"],
        ceiling=None if row["max_token"] is None else Ceiling(row["max_token"], row["max_jump"]),
    )


def _why_broken(row: asyncpg.Record, name: str, key: tuple[str, ...], scope: Scope | None) -> str:
    """Say why a fence does not hold any more, in a phrase; empty: it does."""
    wanted = (ROW_TRIGGERS if scope is None else SCOPE_TRIGGERS) | {TRUNCATE_TRIGGER}
    missing = sorted(wanted - set(row["triggers"]))
    silent, heirs = ", ".join(row["silent_parts"]), ", ".join(row["heirs"])
    bound, nullable = (key, ()) if scope is None else (scope.columns, set(scope.columns) - set(row["not_null"]))
    reasons = (
        (missing, f"triggers are missing or disabled ({', '.join(missing)})"),
        (silent, f"triggers are disabled on its partitions ({silent})"),
        (heirs, f"tables inherit from it ({heirs}), and their rows have no fence"),
        (row["name"] != name, f"it was protected as {row['name']}"),
        (scope is None and not row["marked"], f"the column {MARK_COLUMN} or its check is gone, or another one"),
        (nullable, f"columns of its scope are gone, or can be null ({', '.join(sorted(nullable))})"),
        (tuple(row["key_columns"]) != key, "its primary key is another one"),
        (set(row["bound"]) != set(bound), "columns of its key, or of its scope, have other names"),
    )
    return next((text for wrong, text in reasons if wrong), "")


def _fingerprint_of(row: asyncpg.Record, *, with_functions: bool) -> str:
    """Give what changes with the table, and where it shares transactions with the functions of its triggers: nothing
    else depends on them, and a request that they refuse must not run again.
    """
    return f"{row['fingerprint']}{row['triggers'] if with_functions else ''}"


def _triggers(text: str | None) -> list[Trigger]:
    """Read the JSON of TRIGGERS. A function that has just gone has no definition: it is not understood."""
    return [
        Trigger(function, definition or "", digest or "", tuple(arguments[:-1]), *facts)
        for function, definition, digest, arguments, *facts in json.loads(text or "[]")
    ]


def _followed(row: asyncpg.Record, columns: Mapping[str, Column]) -> frozenset[str]:
    """Name the columns that an ON UPDATE follows; all of the table, if one of them is made of others."""
    followed = frozenset(row["changes"] or ())
    return frozenset(columns) if any(columns[each].generated for each in followed) else followed


def _for_triggers(row: asyncpg.Record, columns: Mapping[str, Column], fence: Fence | None) -> TableOfTriggers:
    """Say which columns a trigger may set, and which have types of PostgreSQL's own, or enums (no domains)."""
    ours = {MARK_COLUMN, *(fence.scope.columns if fence is not None and fence.scope is not None else ())}
    made = {column.name for column in columns.values() if column.generated or column.identity}
    plain = {
        column.name
        for column in columns.values()
        if column.type_oid < FIRST_OF_USERS
        or (column.enum_labels and not column.is_array and column.type == column.base_type)
    }
    bound = ours.union(made, row["key"] or (), row["unique_columns"] or (), _followed(row, columns))
    return TableOfTriggers(frozenset(bound), frozenset(plain), frozenset(columns))


def _table(
    row: asyncpg.Record,
    fences: Mapping[int, asyncpg.Record],
    columns: dict[str, Column],
    lossy: set[str],
    shadowed: Collection[str],
) -> Table:
    fenced = fences.get(row["oid"])
    key, name = tuple(row["key"] or ()), api_name(row["schema"], row["relation"])
    fence = _fence(fenced, name, key) if fenced is not None else None
    triggers = _triggers(row["triggers"])
    of_triggers = _for_triggers(row, columns, fence)
    own_row_only = [sees_own_row_only(each, of_triggers, shadowed) for each in triggers]
    vouched = not all(own_row_only) and fenced is not None and fenced["triggers_see_own_row"]
    shares = row["shares"] and (all(own_row_only) or (vouched and all(each.may_be_vouched_for for each in triggers)))
    read = shares and not vouched
    sets_columns = all(
        own or only_sets_columns(each, shadowed) for own, each in zip(own_row_only, triggers, strict=True)
    )
    made: Callable[..., Table] = partial(Table, fence=fence)
    if fence is not None and fence.intact:
        made = partial(ProtectedTable, fence=fence)
    return made(
        oid=row["oid"],
        schema=row["schema"],
        relation=row["relation"],
        name=name,
        kind=_KINDS[row["kind"]],
        comment=row["comment"],
        row_security=row["row_security"],
        columns=columns,
        key=key,
        expanding=frozenset(column.name for column in columns.values() if column.expands),
        lossy_key=not lossy.isdisjoint(key),
        unique_columns=frozenset(row["unique_columns"] or ()),
        key_constraint=row["key_constraint"],
        key_index=row["key_index"],
        may_suppress=row["may_suppress"],
        shares_transactions=shares,
        trigger_functions=tuple({each.function: each.digest for each in triggers}.items()) if read else (),
        triggers_are_vouched_for=shares and vouched,
        shows_caller=row["shows_caller"],
        runs_code=row["runs_other_code"] or not sets_columns or row["reaches"] or bool(row["changes"]),
        reads_run_code=row["reads_run_code"],
        deletes_reach_further=row["reaches"],
        updates_reach_further=_followed(row, columns),
        refers=frozenset(row["refers"] or ()),
        reached=tuple(
            (oid, fences[oid]["name"], fences[oid]["scope"] is not None)
            for oid in row["reached"] or ()
            if oid in fences
        ),
        fingerprint=_fingerprint_of(row, with_functions=read and bool(triggers)),
    )


async def load(connection: Connection, served: Served, version: int) -> Catalog:
    """Read the picture in one snapshot. Types are spelled with their schema, so that they mean the same anywhere."""
    begun = asyncio.get_running_loop().time()
    wanted = list(served.schemas)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        relations = await connection.fetch(RELATIONS, wanted)
        columns = await connection.fetch(COLUMNS, wanted)
        fences = {row["oid"]: row for row in await connection.fetch(FENCES)}
        shadowed = {row["name"] for row in await connection.fetch(SHADOWED, list(NAMES))}
        defaults = await _defaults(connection)
    by_table: defaultdict[int, dict[str, Column]] = defaultdict(dict)
    lossy: defaultdict[int, set[str]] = defaultdict(set)
    for row in columns:
        by_table[row["oid"]][row["name"]] = column_of(row, defaults.get((row["oid"], row["name"])))
        if row["lossy"]:
            lossy[row["oid"]].add(row["name"])
    tables: dict[str, Table] = {}
    for row in relations:
        oid = row["oid"]
        table = _table(row, fences, by_table[oid], lossy[oid], shadowed)
        # Two names with dots may render alike ("a.b"."c" and "a"."b.c"): the first one is served, protect refuses both.
        if served.has(table.name):
            tables.setdefault(table.name, table)
    return Catalog(version, tables, begun, served.unprotected)


async def _defaults(connection: Connection) -> dict[tuple[int, str], str]:
    """Read the defaults' expressions, which only the documentation shows; none of them while a table is locked."""
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '50ms'")
            rows = await connection.fetch(DEFAULTS)
    except (asyncpg.LockNotAvailableError, RefusedError) as error:
        if error.sqlstate != LOCK_NOT_AVAILABLE:
            raise
        return {}
    return {(row["oid"], row["name"]): row["expression"] for row in rows}


_LOOK: Final = f"""
SELECT {_FINGERPRINT} AS fingerprint, {TRIGGERS} AS triggers
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE {_SERVED} AND ($2 = n.nspname || '.' || c.relname OR n.nspname = 'public' AND $2 = c.relname)"""

_SCOPE: Final = f"""
SELECT EXISTS (SELECT FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
                 JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE {_SERVED} AND left(p.scope, strpos(p.scope, '/{{') - 1) = $2)"""


async def is_outdated(connection: Connection, schemas: Iterable[str], name: str, table: Table | None) -> bool:
    """Look whether what the catalog has under a name (nothing, if None) is still so: one small indexed query, and one
    more where a name that means nothing may have become a scope's.

    Asked when a request failed in a way that an outdated catalog would explain, so that bad requests do not each cost
    a load of the whole catalog.
    """
    wanted = name if table is None else f"{table.schema}.{table.relation}"
    with_functions = table is not None and bool(table.trigger_functions)
    async with connection.transaction(readonly=True):
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        rows = await connection.fetch(_LOOK, list(schemas), wanted)
        found = {_fingerprint_of(row, with_functions=with_functions) for row in rows}
        if table is None:
            return bool(found) or bool(await connection.fetchval(_SCOPE, list(schemas), name))
    return found != {table.fingerprint}


class CatalogCache:
    """The gateway's current picture of the database."""

    def __init__(
        self, database: Database, on_load: Callable[[Catalog], None] = lambda _: None, served: Served = EVERYTHING
    ) -> None:
        self._database = database
        self._served = served
        self._on_load = on_load
        self.current = Catalog(0, {})
        """The picture as it was read last."""
        self._loading: asyncio.Task[Catalog] | None = None

    async def reload(self) -> Catalog:
        """Load a picture that was begun after this call: a load under way may be too old."""
        if self._loading is not None and not self._loading.done():
            await asyncio.wait([self._loading])
        return await self._load()

    async def loaded_after(self, moment: float) -> Catalog:
        """Return a picture begun after `moment` (loop time), loading it unless that has just been done."""
        return self.current if self.current.begun > moment else await self.reload()

    async def close(self) -> None:
        """End a load that is under way; its waiters are cancelled with it."""
        if self._loading is not None and not self._loading.done():
            self._loading.cancel()
            await asyncio.wait([self._loading])

    async def has_changed(self, name: str, table: Table | None, lent: AbstractAsyncContextManager[Connection]) -> bool:
        """Look whether the database has something else under this name than the picture with `table` in it. The
        question is asked on a connection of the gateway's own that is `lent` for it.
        """
        if not self._served.has(name):
            return False
        async with lent as connection:
            return await is_outdated(connection, self._served.schemas, name, table)

    def _load(self) -> Awaitable[Catalog]:
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._read())
            # A request that waits gets its failure; if all have gone, none needs it.
            self._loading.add_done_callback(lambda task: task.cancelled() or task.exception())
        # A caller that goes away must not cancel the load that others wait for.
        return asyncio.shield(self._loading)

    async def _read(self) -> Catalog:
        """Load. Where nothing has changed, the tables stay the ones that there were, with all that was made of them.
        Where a table has got code of users' that may change sessions, connections are made anew: it may have run in
        them since, unseen.
        """
        async with self._database.connection(counted=False) as connection:  # one load at a time
            catalog = await load(connection, self._served, self.current.version + 1)
        if catalog.tables == self.current.tables and self.current.version:
            catalog = replace(catalog, version=self.current.version, tables=self.current.tables)
        if catalog.runs_new_code(self.current):
            self._database.expire()
        self.current = catalog
        self._on_load(catalog)
        return catalog
