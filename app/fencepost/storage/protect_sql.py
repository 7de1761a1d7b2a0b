"""The DDL of `protect` and `unprotect`, as text: what `--sql` prints is what runs.

Each table gets trigger functions of its own, with its key columns written out: to_jsonb(NEW) would cost more than the
UPDATE that it guards. The comparisons themselves are in the schema fencepost (migrations/sql).

Order of the triggers: `zzz_` puts them after everybody else's, so that they judge what is really written.
"""

import hashlib
from typing import Final

from fencepost.fencing.token import Rule
from fencepost.storage.catalog import MARK_COLUMN, quote
from fencepost.storage.protect_check import CONSTRAINT, Target
from fencepost.storage.row_sql import comparison, encode_name, literal, resource_sql

PREFIX: Final = "zzz_fencepost_"
# SQL that runs inside other people's sessions names its operators in full, against their search_path.
_EQ: Final = "OPERATOR(pg_catalog.=)"
_PINNED: Final = "SET search_path = pg_catalog, pg_temp"


def function_stem(target: Target) -> str:
    """The common start of the table's function names: readable, unique, and short of PostgreSQL's 63 bytes."""
    digest = hashlib.sha256(f"{target.schema}\0{target.relation}".encode()).hexdigest()[:10]
    readable = target.relation.encode()[:36].decode("utf-8", "ignore")
    return f"{readable}_{digest}"


def dollar(body: str) -> str:
    """Quote a function's body with a tag that the body does not contain: a table may be called anything."""
    tag = "$fn$"
    while tag in body:
        tag = f"{tag[:-1]}_$"
    return f"{tag}{body} {tag}"


class Ddl:
    """Writes the statements for one table."""

    def __init__(self, target: Target, rule: Rule, source: str) -> None:
        self.target = target
        self.rule = rule
        self.source = source
        self.table = f"{quote(target.schema)}.{quote(target.relation)}"
        self.stem = function_stem(target)
        self.name = literal(target.name)

    def function(self, part: str) -> str:
        """Name one of the table's functions."""
        return f"fencepost.{quote(f'{self.stem}_{part}')}"

    def resource(self, record: str) -> str:
        """Render the resource name of NEW, OLD or r."""
        return resource_sql(self.target.name, [(k.base_name, f"{record}.{quote(k.name)}") for k in self.target.key])

    def protect(self) -> list[str]:
        """List what makes the table protected, in order. Every statement can be repeated."""
        return [
            f"ALTER TABLE {self.table} ADD COLUMN IF NOT EXISTS {MARK_COLUMN} bigint NOT NULL DEFAULT 0",
            # NOT VALID: no scan under the table's strongest lock. It is validated afterwards.
            "DO "
            + dollar(
                f"BEGIN ALTER TABLE {self.table} ADD CONSTRAINT {CONSTRAINT} CHECK ({MARK_COLUMN} >= 0) NOT VALID;"
                f" EXCEPTION WHEN duplicate_object THEN NULL; END"
            ),
            self._column_comment(),
            f"INSERT INTO fencepost.floors (name) VALUES ({self.name}) ON CONFLICT DO NOTHING",
            *self._take_up_marks(),
            *self._functions(),
            *self._triggers(),
            *self._move_marks(),
            *self._register(),
            "NOTIFY fencepost, 'reload'",
        ]

    def validate(self) -> str:
        """Check old rows too, under a lock that lets writers pass. Runs after the rest has committed."""
        return f"ALTER TABLE {self.table} VALIDATE CONSTRAINT {CONSTRAINT}"

    def _column_comment(self) -> str:
        text = literal(
            "The highest fencing token that this row has accepted (Fencepost); 0: never written through a fence."
        )
        return f"COMMENT ON COLUMN {self.table}.{MARK_COLUMN} IS {text}"

    def _take_up_marks(self) -> list[str]:
        """Protected once before? Rows that came back while nobody watched take up the marks that their keys had, and
        keys whose rows went are known to be without.
        """
        prefix = literal(encode_name(self.target.name) + "/")
        body = f"""
BEGIN
  IF EXISTS (SELECT FROM fencepost.marks WHERE starts_with(resource, {prefix}))
     AND NOT EXISTS (SELECT FROM fencepost.protected WHERE relation = {literal(self.table)}::regclass) THEN
    UPDATE {self.table} AS r SET {MARK_COLUMN} = m.last_fence_token FROM fencepost.marks AS m
     WHERE m.resource = {self.resource("r")} AND r.{MARK_COLUMN} < m.last_fence_token;
    UPDATE fencepost.marks AS m SET row_absent = true WHERE starts_with(m.resource, {prefix}) AND NOT m.row_absent
       AND NOT EXISTS (SELECT FROM {self.table} AS r WHERE {self.resource("r")} = m.resource);
  END IF;
END"""
        # The table's own triggers may fire here: they find their names as always.
        return ["SET LOCAL search_path TO DEFAULT", "DO " + dollar(body), "SET LOCAL search_path = pg_catalog"]

    def _functions(self) -> list[str]:
        op = f"OPERATOR(pg_catalog.{comparison(self.rule)})"
        same_key = " AND ".join(f"NEW.{quote(k.name)} {_EQ} OLD.{quote(k.name)}" for k in self.target.key)
        rule = literal(self.rule)
        name = self.function("name")
        # The plain case first, and no SET clause or WHEN: both would cost more than the comparison.
        update = f"""
BEGIN
  IF NEW.{MARK_COLUMN} OPERATOR(pg_catalog.>) OLD.{MARK_COLUMN} AND {same_key} THEN RETURN NEW; END IF;
  NEW.{MARK_COLUMN} := fencepost.judge_update({self.name}, {name}(OLD), {rule},
    OLD.{MARK_COLUMN}, NEW.{MARK_COLUMN}, ({same_key}) IS NOT TRUE, OLD.xmin);
  RETURN NEW;
END"""
        # Before: find the token and touch no mark, for ON CONFLICT DO NOTHING comes through here as well.
        insert = f"""
BEGIN
  NEW.{MARK_COLUMN} := CASE WHEN NEW.{MARK_COLUMN} <> 0 THEN abs(NEW.{MARK_COLUMN})
                            ELSE fencepost.given({self.name}) END;
  IF NEW.{MARK_COLUMN} IS NULL THEN PERFORM fencepost.refuse({name}(NEW), NULL, NULL); END IF;
  RETURN NEW;
END"""
        inserted = f"""
BEGIN
  PERFORM fencepost.judge_insert({self.name}, {self.resource("NEW")}, NEW.{MARK_COLUMN}, {rule});
  RETURN NULL;
END"""
        deleted = f"""
BEGIN
  PERFORM fencepost.judge_delete({self.name}, {self.resource("OLD")}, OLD.{MARK_COLUMN}, {rule}, OLD.xmin);
  RETURN NULL;
END"""
        return [
            # One text whatever the caller's search_path: used where an error names the resource.
            f"CREATE OR REPLACE FUNCTION {self.function('name')}(r {self.table}) RETURNS text"
            f" LANGUAGE plpgsql IMMUTABLE {_PINNED} AS " + dollar(f"BEGIN RETURN {self.resource('r')}; END"),
            self._trigger_function("upd", update, ""),
            self._trigger_function("ins", insert, _PINNED),
            self._trigger_function("insmark", inserted, f"SECURITY DEFINER {_PINNED}"),
            self._trigger_function("del", deleted, f"SECURITY DEFINER {_PINNED}"),
            *self._delete_function(op),
            # Triggers fire without this privilege; with it anybody could hang a marking function on a table of theirs.
            "REVOKE EXECUTE ON FUNCTION "
            + ", ".join(f"{self.function(part)}()" for part in ("upd", "ins", "insmark", "del"))
            + " FROM PUBLIC",
        ]

    def _trigger_function(self, part: str, body: str, options: str) -> str:
        return (
            f"CREATE OR REPLACE FUNCTION {self.function(part)}() RETURNS trigger LANGUAGE plpgsql"
            f" {options} AS {dollar(body)}"
        )

    def _delete_function(self, op: str) -> list[str]:
        """The gateway's DELETE in one round trip: the token is bound to this table, and is taken back at its end."""
        arguments = ", ".join(f"k{n} {k.type}" for n, k in enumerate(self.target.key, 1))
        match = " AND ".join(f"r.{quote(k.name)} {_EQ} k{n}" for n, k in enumerate(self.target.key, 1))
        body = f"""
#variable_conflict use_variable
DECLARE
  before text := pg_catalog.current_setting('fencepost.token', true);
BEGIN
  IF NOT EXISTS (SELECT FROM fencepost.protected p
                  WHERE p.relation {_EQ} {literal(self.table)}::pg_catalog.regclass) THEN
    PERFORM fencepost.outdated({self.name});
  END IF;
  PERFORM pg_catalog.set_config('fencepost.token', pg_catalog.concat({self.name}, '=', token), true);
  FOR round IN 1..10 LOOP
    RETURN QUERY DELETE FROM {self.table} AS r WHERE {match} AND r.{MARK_COLUMN} {op} token RETURNING r.*;
    EXIT WHEN FOUND;
    -- Not there, or refused by its mark: that is for the caller to ask. There, and it would pass or a trigger has just
    -- written it: made anew meanwhile, so again; or kept from being deleted, and then nothing may remain of it.
    PERFORM FROM {self.table} AS r WHERE {match} AND (r.{MARK_COLUMN} {op} token OR fencepost.ours(r.xmin));
    EXIT WHEN NOT FOUND;
    IF round {_EQ} 10 THEN PERFORM fencepost.suppressed({self.name}); END IF;
  END LOOP;
  PERFORM pg_catalog.set_config('fencepost.token', coalesce(before, ''), true);
END"""
        return [
            f"DROP FUNCTION IF EXISTS {self.function('delete')}",
            f"CREATE FUNCTION {self.function('delete')}({arguments}, token bigint) RETURNS SETOF {self.table}"
            f" LANGUAGE plpgsql AS {dollar(body)}",
        ]

    def _triggers(self) -> list[str]:
        def trigger(part: str, event: str, condition: str = "") -> str:
            return (
                f"CREATE OR REPLACE TRIGGER {PREFIX}{part} {event} ON {self.table} FOR EACH ROW{condition}"
                f" EXECUTE FUNCTION {self.function(part)}()"
            )

        absent = f" WHEN (NEW.{MARK_COLUMN} IS NULL OR NEW.{MARK_COLUMN} OPERATOR(pg_catalog.<=) 0)"
        return [
            trigger("upd", "BEFORE UPDATE"),
            trigger("ins", "BEFORE INSERT", absent),
            trigger("insmark", "AFTER INSERT"),
            trigger("del", "AFTER DELETE"),
            *(
                f"CREATE OR REPLACE TRIGGER {PREFIX}trunc BEFORE TRUNCATE ON {table}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION fencepost.no_truncate()"
                for table in self.target.partitions or (self.table,)
            ),
        ]

    def _register(self) -> list[str]:
        key = ", ".join(literal(k.name) for k in self.target.key)
        relation = f"{literal(self.table)}::regclass"
        return [
            # A table of this name that was dropped without unprotect.
            f"DELETE FROM fencepost.protected p WHERE p.name = {self.name} AND p.relation <> {relation}"
            f" AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)",
            f"INSERT INTO fencepost.protected (relation, name, rule, source, key_columns, functions)"
            f" VALUES ({relation}, {self.name}, {literal(self.rule)}, {literal(self.source)}, ARRAY[{key}],"
            f" {literal(self.stem)})"
            f" ON CONFLICT (relation) DO UPDATE SET name = excluded.name, rule = excluded.rule,"
            f" source = excluded.source, key_columns = excluded.key_columns, functions = excluded.functions",
        ]

    def _move_marks(self) -> list[str]:
        """Renamed since it was protected: marks and floor move to the new name, in the same transaction."""
        old = self.target.registered
        if old is None or old.name == self.target.name:
            return []
        before, after = literal(encode_name(old.name) + "/"), literal(encode_name(self.target.name) + "/")
        return [
            f"WITH moved AS (DELETE FROM fencepost.marks WHERE starts_with(resource, {before}) RETURNING *)"
            f" INSERT INTO fencepost.marks AS k SELECT {after} || substr(resource, length({before}) + 1),"
            f" last_fence_token, xid, row_absent, changed_at FROM moved"
            f" ON CONFLICT (resource) DO UPDATE SET"
            f" last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token),"
            f" row_absent = excluded.row_absent",
            f"UPDATE fencepost.floors SET floor = greatest(floor, (SELECT f.floor FROM fencepost.floors f"
            f" WHERE f.name = {literal(old.name)})) WHERE name = {self.name}",
            *drop_functions(old.functions),
        ]


def drop_functions(stem: str) -> list[str]:
    """Drop a table's functions. Their triggers must be gone, or point at others."""
    return [
        f"DROP FUNCTION IF EXISTS fencepost.{quote(f'{stem}_{part}')}"
        for part in ("upd", "ins", "insmark", "del", "delete", "name")
    ]


def unprotect_sql(table: str, name: str, stem: str, partitions: tuple[str, ...], *, keep_marks: bool) -> list[str]:
    """List what undoes `protect`. The column, its check, the marks and the floor stay: a later protect goes on from
    them, since a mark never falls.

    `keep_marks`: write live rows' marks down too, for their rows may go while nobody watches. Not possible when the key
    or the column has changed since.
    """
    drops = [f"DROP TRIGGER IF EXISTS {PREFIX}{part} ON {table}" for part in ("upd", "ins", "insmark", "del")]
    drops += [f"DROP TRIGGER IF EXISTS {PREFIX}trunc ON {part}" for part in partitions or (table,)]
    kept = (
        f"INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)"
        f" SELECT fencepost.{quote(f'{stem}_name')}(r), r.{MARK_COLUMN}, pg_current_xact_id(), false"
        f" FROM {table} AS r WHERE r.{MARK_COLUMN} > 0"
        f" ON CONFLICT (resource) DO UPDATE SET row_absent = false,"
        f" last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token)"
    )
    return [
        *drops,
        *([kept] if keep_marks else []),
        *drop_functions(stem),
        f"DELETE FROM fencepost.protected WHERE name = {literal(name)}",
        "NOTIFY fencepost, 'reload'",
    ]
