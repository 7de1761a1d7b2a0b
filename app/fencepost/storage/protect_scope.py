"""`protect --scope` (R8): what it looks at, and its DDL. One mark per scope stands in fencepost.marks instead of one a
row in the table, so the table needs no column; one BEFORE trigger enters the scope for whoever has not yet.

Nothing stale gets in by changing sides. A table that enters a scope brings its rows' marks with it, and those of its
deleted keys as the floor of the prefix; one that leaves takes the prefix's highest mark as its own floor, which its
next protection by rows writes into the rows.
"""

from dataclasses import dataclass
from typing import Final

from fencepost.fencing.scope import MalformedScopeError, Scope, parse_scope
from fencepost.fencing.token import Rule
from fencepost.storage.catalog import BUILTIN, MARK_COLUMN, quote
from fencepost.storage.catalog_load import api_name
from fencepost.storage.engine import Connection
from fencepost.storage.protect_check import KEY_TYPES, KeyColumn, ProtectError, Target
from fencepost.storage.protect_functions import Functions, dollar, drop_functions, give_functions
from fencepost.storage.protect_sql import HIGHEST_MARK, PREFIX, TOO_HIGH
from fencepost.storage.row_sql import encode_name, literal, resource_sql

MISMATCH: Final = "55000"
"""The SQLSTATE (object_not_in_prerequisite_state) of a plan whose scope has another rule or source meanwhile."""
ROW_PARTS: Final = ("upd", "ins", "insmark", "del")
SCOPE_PARTS: Final = ("scope", "scope_ins", "scope_upd")
_FAMILIES: Final = {"int2": "integer", "int4": "integer", "int8": "integer", "varchar": "text"}
"""Types whose values have the same texts, so that tables may differ in them."""

PREFIX_OF: Final = "left(p.scope, strpos(p.scope, '/{') - 1)"

_COLUMNS: Final = """
WITH RECURSIVE base(oid, below) AS (
  SELECT t.oid, t.oid FROM pg_type t
  UNION ALL
  SELECT b.oid, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.below WHERE t.typtype = 'd'
)
SELECT a.attname::text AS name, format_type(a.atttypid, -1) AS type, bt.typname::text AS base_name,
       bt.typtype = 'e' AS is_enum, bt.oid <> a.atttypid AS is_domain, bn.nspname = 'pg_catalog' AS builtin,
       a.attnotnull AS not_null, a.attgenerated <> '' AS generated,
       coalesce((SELECT l.collisdeterministic FROM pg_collation l WHERE l.oid = a.attcollation), true) AS deterministic
  FROM pg_attribute a JOIN base ON base.oid = a.atttypid
  JOIN pg_type bt ON bt.oid = base.below AND bt.typtype <> 'd'
  JOIN pg_namespace bn ON bn.oid = bt.typnamespace
 WHERE a.attrelid = $1::int8::oid AND a.attname = ANY ($2) AND a.attnum > 0 AND NOT a.attisdropped"""

_SIBLINGS: Final = f"""
SELECT p.name, p.rule, p.source, p.scope, p.relation::oid::int8 AS oid FROM fencepost.protected p
  JOIN pg_class c ON c.oid = p.relation
 WHERE {PREFIX_OF} = $1 AND p.relation <> $2::int8::oid ORDER BY p.name"""

_TABLES: Final = """
SELECT n.nspname::text AS schema, c.relname::text AS relation
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
   AND $1::text IN (c.relname::text, n.nspname || '.' || c.relname)"""


@dataclass(frozen=True, slots=True)
class Scoped:
    """A scope that fits its table: `columns` are the template's, with their types."""

    scope: Scope
    columns: tuple[KeyColumn, ...]


def read_template(table: str, template: str) -> Scope:
    """Read a template; ProtectError when it is none."""
    try:
        return parse_scope(template)
    except MalformedScopeError as error:
        raise ProtectError(table, [f"scope {error}."]) from error


async def examine_name(connection: Connection, target: Target) -> None:
    """Refuse a table that is called like a scope: one resource name would mean two things."""
    of_scope = await connection.fetchval(
        f"SELECT p.name FROM fencepost.protected p WHERE {PREFIX_OF} = $1 LIMIT 1", target.name
    )
    if of_scope is not None:
        raise ProtectError(
            target.name, [f"its name is that of a scope, {target.name}/…, of the table {of_scope}: rename one of them."]
        )


async def scope_as_it_is(connection: Connection, target: Target, template: str) -> Scoped | None:
    """Give a table's scope with its columns' types; None when they no longer fit."""
    scope = parse_scope(template)
    columns = await _template_columns(connection, target, target.oid, scope)
    return None if isinstance(columns, list) else Scoped(scope, columns)


async def examine_scope(connection: Connection, target: Target, scope: Scope, rule: Rule, source: str) -> Scoped:
    """Check a scope against its table and its other tables; ProtectError lists all that is in the way."""
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog")
        columns = await _template_columns(connection, target, target.oid, scope)
        reasons: list[str] = columns if isinstance(columns, list) else []
        tables = await connection.fetch(_TABLES, scope.prefix)
        names = {api_name(row["schema"], row["relation"]) for row in tables}
        taken = await connection.fetchval(
            "SELECT EXISTS (SELECT FROM fencepost.protected WHERE name = $1)", scope.prefix
        )
        if scope.prefix in names or taken:
            reasons.append(
                f"the scope's name {scope.prefix} is that of a table: a resource name would mean two things."
            )
        for row in await connection.fetch(_SIBLINGS, scope.prefix, target.oid):
            if (row["rule"], row["source"]) != (rule, source):
                reasons.append(
                    f"{row['name']} has the same scope with the rule {row['rule']} and the source {row['source']}; one"
                    " mark has one rule and one source: unprotect the others, change this one, and protect them again."
                )
            others = await _template_columns(connection, target, row["oid"], parse_scope(row["scope"]))
            if not isinstance(columns, list) and not isinstance(others, list) and _family(columns) != _family(others):
                reasons.append(
                    f"{row['name']} has the scope {row['scope']}, of other types or another number of columns: equal"
                    " scopes would have two names."
                )
    if isinstance(columns, list) or reasons:
        raise ProtectError(target.name, reasons)
    return Scoped(scope, columns)


def _family(columns: tuple[KeyColumn, ...]) -> tuple[str, ...]:
    return tuple(_FAMILIES.get(column.base_name, column.base_name) for column in columns)


async def _template_columns(
    connection: Connection, target: Target, oid: int, scope: Scope
) -> tuple[KeyColumn, ...] | list[str]:
    found = {row["name"]: row for row in await connection.fetch(_COLUMNS, oid, list(scope.columns))}
    reasons = []
    for name in scope.columns:
        row = found.get(name)
        if row is None:
            reasons.append(f"the scope's column {name} is no column of {target.name}.")
            continue
        if not ((row["is_enum"] and not row["is_domain"]) or (row["builtin"] and row["base_name"] in KEY_TYPES)):
            reasons.append(
                f"the scope's column {name} is of type {row['type']}, whose equal values have several texts; it can"
                f" be of {', '.join(KEY_TYPES)}, a domain over one of these, or an enum."
            )
        elif row["is_enum"] and row["base_name"] in KEY_TYPES:
            reasons.append(
                f"the scope's column {name} is of an enum that is called {row['base_name']}, like one of"
                " PostgreSQL's own types: rename it."
            )
        if not row["deterministic"]:
            reasons.append(
                f"the scope's column {name} has a nondeterministic collation: equal scopes would have two marks."
            )
        if not row["not_null"]:
            reasons.append(f"the scope's column {name} can be null: ALTER TABLE … ALTER COLUMN {name} SET NOT NULL.")
        if row["generated"]:
            reasons.append(f"the scope's column {name} is generated, and not known before a row is written.")
    return reasons or tuple(KeyColumn(n, found[n]["type"], found[n]["base_name"]) for n in scope.columns)


def lock_prefix(prefix: str) -> str:
    """Keep everybody out of a prefix's scopes until the end of the transaction."""
    return f"SELECT pg_advisory_xact_lock(hashtextextended({literal('fencepost.scope/' + prefix)}, 0))"


def leave_sql(table: str, name: str, now_called: str, stem: str, scope: Scope) -> list[str]:
    """List what takes a table out of its scope: its floor becomes the highest mark that its rows may have had. So does
    that of the name that it has now, if it was renamed: the next protection is of that one.
    """
    prefix = literal(scope.prefix)
    names = ", ".join(f"({literal(each)})" for each in sorted({name, now_called}))
    return [
        f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE",
        lock_prefix(scope.prefix),
        f"INSERT INTO fencepost.floors AS f (name, floor, covers_rows)"
        f" SELECT n.name, greatest((SELECT max(m.last_fence_token) FROM fencepost.marks m"
        f" WHERE starts_with(m.resource, {literal(encode_name(scope.prefix) + '/')})),"
        f" (SELECT p.floor FROM fencepost.floors p WHERE p.name = {prefix}), 0), true FROM (VALUES {names}) AS n(name)"
        f" ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor), covers_rows = true",
        f"UPDATE fencepost.protected SET scope = NULL WHERE name = {literal(name)}",
        *(f"DROP TRIGGER IF EXISTS {PREFIX}{part} ON {table}" for part in SCOPE_PARTS),
        f"DROP FUNCTION IF EXISTS fencepost.{quote(f'{stem}_scope')}",
    ]


def raise_rows_sql(target: Target) -> list[str]:
    """List what precedes a protection by rows: rows that were in a scope take up the table's floor as their mark."""
    table, name = f"{quote(target.schema)}.{quote(target.relation)}", literal(target.name)
    body = f"""
DECLARE
  lowest bigint;
BEGIN
  SELECT f.floor INTO lowest FROM fencepost.floors f WHERE f.name = {name} AND f.covers_rows;
  IF NOT FOUND THEN RETURN; END IF;
  LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;
  ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {MARK_COLUMN} bigint NOT NULL DEFAULT 0;
  SET LOCAL row_security = off;
  UPDATE {table} AS r SET {MARK_COLUMN} = lowest WHERE r.{MARK_COLUMN} < lowest;
  SET LOCAL row_security TO DEFAULT;
  UPDATE fencepost.floors f SET covers_rows = false WHERE f.name = {name};
END"""
    # The table's own triggers may fire here: they find their names as always.
    return ["SET LOCAL search_path TO DEFAULT", "DO " + dollar(body), "SET LOCAL search_path = pg_catalog"]


class ScopeDdl:
    """Writes the statements for one table with a scope."""

    def __init__(self, target: Target, scoped: Scoped, rule: Rule, source: str, *, requires_key: bool) -> None:
        self.target = target
        self.scope = scoped.scope
        self.columns = scoped.columns
        self.rule = rule
        self.source = source
        self.requires_key = requires_key
        self.functions = Functions(target, rule, source)
        self.table = self.functions.table
        self.name = self.functions.name
        self.prefix = literal(self.scope.prefix)

    def protect(self) -> list[str]:
        """List what makes the table protected, in order. Every statement can be repeated."""
        now = self.target.registered
        before = parse_scope(now.scope) if now is not None and now.scope is not None else None
        leaving = (
            leave_sql(self.table, now.name, self.target.name, now.functions, before)
            if now is not None and before is not None and before != self.scope
            else []
        )
        return [
            f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE",
            *leaving,
            lock_prefix(self.scope.prefix),
            # Tables that were dropped without unprotect would have a say in the rule.
            f"DELETE FROM fencepost.protected p WHERE {PREFIX_OF} = {self.prefix}"
            f" AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)",
            self._require_one_rule(),
            f"INSERT INTO fencepost.floors (name) VALUES ({self.name}), ({self.prefix}) ON CONFLICT DO NOTHING",
            *self._bring_marks(),
            *(f"DROP TRIGGER IF EXISTS {PREFIX}{part} ON {self.table}" for part in ROW_PARTS),
            *(drop_functions(now.functions) if now is not None else []),
            *self._functions(),
            *self._triggers(),
            *([f"DROP FUNCTION IF EXISTS fencepost.{quote(f'{now.functions}_scope')}"]
              if now is not None and now.functions != self.functions.stem else []),
            *self._register(),
            *self._issue_beyond_marks(),
            "NOTIFY fencepost, 'reload'",
        ]  # fmt: skip

    def expression(self, record: str) -> str:
        """Render the scope of NEW, OLD or r."""
        return resource_sql(self.scope.prefix, [(c.base_name, f"{record}.{quote(c.name)}") for c in self.columns])

    def _require_one_rule(self) -> str:
        """Look again once nobody else can protect a table of this scope: two may have been looking at once."""
        body = f"""
BEGIN
  IF EXISTS (SELECT FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
              WHERE {PREFIX_OF} = {self.prefix} AND p.relation <> {self._relation()}
                AND (p.rule, p.source) IS DISTINCT FROM ({literal(self.rule)}, {literal(self.source)})) THEN
    RAISE EXCEPTION USING ERRCODE = '{MISMATCH}', MESSAGE = 'a table was protected with this scope and another rule or'
      ' source at the same moment.';
  END IF;
  IF EXISTS (SELECT FROM fencepost.protected p WHERE p.name = {self.prefix}) THEN
    RAISE EXCEPTION USING ERRCODE = '{MISMATCH}', MESSAGE = 'a table with the name of this scope was protected at the'
      ' same moment.';
  END IF;
END"""
        return "DO " + dollar(body)

    def _relation(self) -> str:
        return f"{literal(self.table)}::regclass"

    def _bring_marks(self) -> list[str]:
        """The rows' marks become their scope's, those of keys without a row the floor of the prefix."""
        now = self.target.registered
        if now is not None and now.scope == self.scope.template and now.name == self.target.name:
            return []
        of_keys = [
            literal(encode_name(name) + "/") for name in {self.target.name, now.name if now else self.target.name}
        ]
        # While rows are watched their columns are their marks; else rows may have gone, and their marks do not say so.
        absent = " AND m.row_absent" if now is not None and now.scope is None else ""
        theirs = " OR ".join(f"starts_with(m.resource, {key})" for key in of_keys)
        names = ", ".join(literal(name) for name in {self.target.name, now.name if now else self.target.name})
        body = f"""
BEGIN
  IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = {self._relation()} AND a.attname = {literal(MARK_COLUMN)}
                AND NOT a.attisdropped) THEN
    SET LOCAL row_security = off;
    INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
    SELECT s.scope, s.mark, '0', true
      FROM (SELECT {self.expression("r")} AS scope, max(r.{MARK_COLUMN}) AS mark FROM {self.table} AS r
             WHERE r.{MARK_COLUMN} > 0 GROUP BY 1) AS s ORDER BY s.scope COLLATE "C"
    ON CONFLICT (resource) DO UPDATE
       SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token), row_absent = true;
    SET LOCAL row_security TO DEFAULT;
  END IF;
  UPDATE fencepost.floors f SET floor = greatest(f.floor,
      (SELECT max(m.last_fence_token) FROM fencepost.marks m WHERE ({theirs}){absent}),
      (SELECT max(t.floor) FROM fencepost.floors t WHERE t.name IN ({names})))
   WHERE f.name = {self.prefix};
END"""
        return ["DO " + dollar(body)]

    def _functions(self) -> list[str]:
        bodies = self.bodies()
        pinned = "SET search_path = pg_catalog, pg_temp"
        return [
            f"CREATE OR REPLACE FUNCTION {self.functions.called('name')}(r {self.table}) RETURNS text"
            f" LANGUAGE plpgsql IMMUTABLE {pinned} AS {dollar(bodies['name'])}",
            f"CREATE OR REPLACE FUNCTION {self.functions.called('scope')}() RETURNS trigger LANGUAGE plpgsql"
            f" SECURITY DEFINER {pinned} AS {dollar(bodies['scope'])}",
            # Triggers fire without this privilege; with it anybody could hang it on a table of theirs.
            f"REVOKE EXECUTE ON FUNCTION {self.functions.called('scope')}() FROM PUBLIC",
            give_functions([self.functions.called(part) for part in bodies]),
        ]

    def bodies(self) -> dict[str, str]:
        """Write what each of the table's functions does, by its part of their names."""
        changed = " OR ".join(f"NEW.{quote(c.name)} IS DISTINCT FROM OLD.{quote(c.name)}" for c in self.columns)
        template = literal(self.scope.template)
        judging = f"""
DECLARE
  scope text;
BEGIN
  IF TG_OP = 'UPDATE' AND ({changed}) THEN PERFORM fencepost.no_scope({self.name}, {template}, true); END IF;
  IF TG_OP = 'DELETE' THEN scope := {self.expression("OLD")}; ELSE scope := {self.expression("NEW")}; END IF;
  IF scope IS NULL THEN PERFORM fencepost.no_scope({self.name}, {template}, false); END IF;
  PERFORM fencepost.judge_scope({self.name}, {self.prefix}, scope, TG_OP);
  IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
  RETURN NEW;
END"""
        return {"name": self.functions.naming(), "scope": judging}

    def _triggers(self) -> list[str]:
        """Once before and, where the row has a new scope, once after: a trigger that fires after our first may have
        changed it. The condition also keeps the columns from getting another type, with other texts for equal values.
        """
        changed = " OR ".join(f"NEW.{quote(c.name)} IS DISTINCT FROM OLD.{quote(c.name)}" for c in self.columns)

        def trigger(part: str, event: str, condition: str = "") -> str:
            return (
                f"CREATE OR REPLACE TRIGGER {PREFIX}{part} {event} ON {self.table} FOR EACH ROW{condition}"
                f" EXECUTE FUNCTION {self.functions.called('scope')}()"
            )

        return [
            trigger("scope", "BEFORE INSERT OR UPDATE OR DELETE"),
            trigger("scope_ins", "AFTER INSERT"),
            trigger("scope_upd", "AFTER UPDATE", f" WHEN ({changed})"),
            *(
                f"CREATE OR REPLACE TRIGGER {PREFIX}trunc BEFORE TRUNCATE ON {table}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION fencepost.no_truncate()"
                for table in self.target.partitions or (self.table,)
            ),
        ]

    def _register(self) -> list[str]:
        key = ", ".join(literal(k.name) for k in self.target.key)
        return [
            # A table of this name that was dropped without unprotect.
            f"DELETE FROM fencepost.protected p WHERE p.name = {self.name} AND p.relation <> {self._relation()}"
            f" AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)",
            f"INSERT INTO fencepost.protected (relation, name, rule, source, key_columns, functions, requires_key,"
            f" scope) VALUES ({self._relation()}, {self.name}, {literal(self.rule)}, {literal(self.source)},"
            f" ARRAY[{key}], {literal(self.functions.stem)}, {str(self.requires_key).lower()},"
            f" {literal(self.scope.template)})"
            f" ON CONFLICT (relation) DO UPDATE SET name = excluded.name, rule = excluded.rule,"
            f" source = excluded.source, key_columns = excluded.key_columns, functions = excluded.functions,"
            f" requires_key = excluded.requires_key, scope = excluded.scope",
        ]

    def _issue_beyond_marks(self) -> list[str]:
        """Becoming a scope of the built-in source: its tokens go on from above all marks that are there. Exact, because
        nobody enters the scope until this commits.
        """
        if self.source != BUILTIN:
            return []
        body = f"""
DECLARE
  high bigint;
BEGIN
  SELECT greatest((SELECT max(m.last_fence_token) FROM fencepost.marks m
                    WHERE starts_with(m.resource, {literal(encode_name(self.scope.prefix) + "/")})),
                  (SELECT f.floor FROM fencepost.floors f WHERE f.name = {self.prefix})) INTO high;
  IF high > {HIGHEST_MARK} THEN
    RAISE EXCEPTION USING ERRCODE = '{TOO_HIGH}',
      MESSAGE = format('a scope of %s has the mark %s, above 2^62: the built-in tokens would have to go on from there,'
                       ' and too few are left.', {self.prefix}, high);
  END IF;
  PERFORM fencepost.issue_beyond(high);
END"""
        return ["DO " + dollar(body)]


def unprotect_scope_sql(
    table: str, name: str, now_called: str, stem: str, scope: Scope, partitions: tuple[str, ...]
) -> list[str]:
    """List what undoes `protect --scope`. Marks and floors stay: a later protect goes on from them."""
    return [
        *leave_sql(table, name, now_called, stem, scope),
        *(f"DROP TRIGGER IF EXISTS {PREFIX}trunc ON {part}" for part in partitions or (table,)),
        *drop_functions(stem),
        f"DELETE FROM fencepost.protected WHERE name = {literal(name)}",
        "NOTIFY fencepost, 'reload'",
    ]
