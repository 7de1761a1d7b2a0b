"""The DDL of `protect --scope` (R8). One mark per scope stands in fencepost.marks instead of one a row in the table, so
the table needs no column; one BEFORE trigger enters the scope for whoever has not yet.

Nothing stale gets in by changing sides. A table that enters a scope brings its rows' marks with it, and those of its
deleted keys as the floor of the prefix; one that leaves takes the prefix's highest mark as its own floor, which its
next protection by rows writes into the rows.
"""

from typing import Final

from fencepost.fencing.scope import Scope, parse_scope
from fencepost.fencing.token import EXTERNAL, Rule
from fencepost.storage.catalog import MARK_COLUMN, quote
from fencepost.storage.protect_check import Target
from fencepost.storage.protect_functions import dollar, drop_functions, give_functions
from fencepost.storage.protect_scope_check import PREFIX_OF, Scoped
from fencepost.storage.protect_table import (
    MISMATCH,
    ROW_PARTS,
    TableDdl,
    drop_scope_functions,
    drop_triggers,
    drop_truncate_triggers,
    issue_beyond_sql,
    write_rows_sql,
)
from fencepost.storage.row_sql import encode_name, literal, resource_sql

SCOPE_PARTS: Final = ("scope", "scope_ins", "scope_upd")


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
        f"INSERT INTO fencepost.floors AS f (name, relation, floor, covers_rows)"
        f" SELECT n.name, {literal(table)}::regclass::oid,"
        f" greatest((SELECT max(m.last_fence_token) FROM fencepost.marks m"
        f" WHERE starts_with(m.resource, {literal(encode_name(scope.prefix) + '/')})),"
        f" (SELECT p.floor FROM fencepost.floors p WHERE p.name = {prefix}), 0), true FROM (VALUES {names}) AS n(name)"
        f" ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor), covers_rows = true,"
        f" relation = excluded.relation",
        f"UPDATE fencepost.protected SET scope = NULL WHERE name = {literal(name)}",
        *drop_triggers(table, SCOPE_PARTS),
        *drop_scope_functions(stem),
    ]


def covering(relation: str, name: str) -> str:
    """The floors f that hold for a table's rows: it has left a scope, and may have been renamed since. `relation` and
    `name` are SQL.
    """
    return (
        f"f.covers_rows AND (f.relation = {relation}::oid OR f.name = {name}"
        f" AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = f.relation AND c.oid <> {relation}))"
    )


def raise_rows_sql(target: Target) -> list[str]:
    """List what precedes a protection by rows: rows that were in a scope take the table's floor as their mark. What
    their column holds is of no account, nobody has guarded it.
    """
    table, name = f"{quote(target.schema)}.{quote(target.relation)}", literal(target.name)
    floors = covering(f"{literal(table)}::regclass", name)
    write = f"UPDATE {table} AS r SET {MARK_COLUMN} = lowest WHERE r.{MARK_COLUMN} OPERATOR(pg_catalog.<>) lowest;"
    body = f"""
DECLARE
  lowest bigint;
BEGIN
  SELECT max(f.floor) INTO lowest FROM fencepost.floors f WHERE {floors};
  IF lowest IS NULL THEN RETURN; END IF;
  ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {MARK_COLUMN} bigint NOT NULL DEFAULT 0;{write_rows_sql(write)}
  INSERT INTO fencepost.floors AS f (name, floor) VALUES ({name}, lowest)
  ON CONFLICT ON CONSTRAINT floors_pkey DO UPDATE SET floor = greatest(f.floor, excluded.floor);
  UPDATE fencepost.floors f SET covers_rows = false WHERE {floors};
END"""
    return ["DO " + dollar(body)]


class ScopeDdl(TableDdl):
    """Writes the statements for one table with a scope."""

    def __init__(
        self, target: Target, scoped: Scoped, rule: Rule, source: str, *, requires_key: bool, verify: bool = False
    ) -> None:
        super().__init__(target, rule, source, requires_key=requires_key, verify=verify)
        self.scope = scoped.scope
        self.columns = scoped.columns
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
            *self.begin(*self.columns),
            *leaving,
            lock_prefix(self.scope.prefix),
            # Tables that were dropped without unprotect would have a say in the rule.
            f"DELETE FROM fencepost.protected p WHERE {PREFIX_OF} = {self.prefix}"
            f" AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)",
            self._require_one_rule(),
            f"INSERT INTO fencepost.floors (name) VALUES ({self.name}), ({self.prefix}) ON CONFLICT DO NOTHING",
            *self._bring_marks(),
            *drop_triggers(self.table, ROW_PARTS),
            *(drop_functions(now.functions) if now is not None else []),
            *self._functions(),
            *self._triggers(),
            *(drop_scope_functions(now.functions) if now is not None and now.functions != self.functions.stem else []),
            *self.register(self.scope.template),
            *self.issue_beyond_marks(),
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
              WHERE {PREFIX_OF} = {self.prefix} AND p.relation <> {self.relation}
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

    def _bring_marks(self) -> list[str]:
        """The rows' marks become their scope's, those of keys without a row the floor of the prefix."""
        now = self.target.registered
        if now is not None and now.scope == self.scope.template and now.name == self.target.name:
            return []
        called = {self.target.name, *self.target.formerly, *([now.name] if now is not None else [])}
        # While rows are watched their columns are their marks; else rows may have gone, and their marks do not say so.
        absent = " AND m.row_absent" if now is not None and now.scope is None else ""
        theirs = " OR ".join(f"starts_with(m.resource, {literal(encode_name(each) + '/')})" for each in sorted(called))
        names = ", ".join(literal(each) for each in sorted(called))
        # Rows that have left a scope have no marks: the column, if there is one, is of no account.
        body = f"""
BEGIN
  IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = {self.relation} AND a.attname = {literal(MARK_COLUMN)}
                AND NOT a.attisdropped)
     AND NOT EXISTS (SELECT FROM fencepost.floors f WHERE {covering(self.relation, self.name)}) THEN
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
      (SELECT max(t.floor) FROM fencepost.floors t WHERE t.name IN ({names}) OR t.relation = {self.relation}::oid))
   WHERE f.name = {self.prefix};
END"""
        return ["DO " + dollar(body)]

    def _functions(self) -> list[str]:
        bodies = self.bodies()
        pinned = "SET search_path = pg_catalog, pg_temp"
        of = self.functions.called("of")
        return [
            f"CREATE OR REPLACE FUNCTION {self.functions.called('name')}(r {self.table}) RETURNS text"
            f" LANGUAGE plpgsql IMMUTABLE {pinned} AS {dollar(bodies['name'])}",
            *self._bind(of),
            f"CREATE OR REPLACE FUNCTION {self.functions.called('scope')}() RETURNS trigger LANGUAGE plpgsql"
            f" SECURITY DEFINER {pinned} AS {dollar(bodies['scope'])}",
            # Triggers fire without this privilege; with it anybody could hang it on a table of theirs.
            f"REVOKE EXECUTE ON FUNCTION {self.functions.called('scope')}() FROM PUBLIC",
            f"GRANT EXECUTE ON FUNCTION {self.functions.called('name')}, {of} TO PUBLIC",
            give_functions([*(self.functions.called(part) for part in bodies), of]),
        ]

    def _bind(self, of: str) -> list[str]:
        """Make the function that names a row's scope. PostgreSQL keeps its expression parsed: it means the columns
        themselves, whatever they are called later, and keeps them from being dropped or getting another type, with
        other texts for equal values. Nor could another type's owner say what its cast to text does, in our name.

        Renamed since, the template's names may mean other columns now: then every scope of the prefix is fenced up to
        its highest mark, for none of the marks may be where it belongs.
        """
        bound = f"(SELECT pg_get_function_sqlbody(to_regprocedure({literal(f'{of}({self.table})')})))"
        raised = f"""
BEGIN
  IF current_setting('fencepost.bound') <> '' AND current_setting('fencepost.bound') <> {bound} THEN
    UPDATE fencepost.floors f SET floor = greatest(f.floor, (SELECT max(m.last_fence_token) FROM fencepost.marks m
       WHERE starts_with(m.resource, {literal(encode_name(self.scope.prefix) + "/")}))) WHERE f.name = {self.prefix};
  END IF;
END"""
        return [
            f"SELECT set_config('fencepost.bound', coalesce({bound}, ''), true)",
            f"CREATE OR REPLACE FUNCTION {of}(r {self.table}) RETURNS text LANGUAGE sql IMMUTABLE"
            f" RETURN {self.expression('r')}",
            "DO " + dollar(raised),
        ]

    def bodies(self) -> dict[str, str]:
        """Write what each of the table's functions does, by its part of their names."""
        of, template = self.functions.called("of"), literal(self.scope.template)
        judging = f"""
DECLARE
  scope text;
BEGIN
  IF TG_OP = 'DELETE' THEN scope := {of}(OLD); ELSE scope := {of}(NEW); END IF;
  IF TG_OP = 'UPDATE' THEN
    IF scope IS DISTINCT FROM {of}(OLD) THEN PERFORM fencepost.no_scope({self.name}, {template}, true); END IF;
  END IF;
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
        return [
            self.trigger("scope", "BEFORE INSERT OR UPDATE OR DELETE", "scope"),
            self.trigger("scope_ins", "AFTER INSERT", "scope"),
            self.trigger("scope_upd", "AFTER UPDATE", "scope", f" WHEN ({changed})"),
            *self.truncate_triggers(),
        ]

    def issue_beyond_marks(self) -> list[str]:
        """Becoming a scope of a source: its tokens go on from above all marks that are there. Exact, because
        nobody enters the scope until this commits.
        """
        if self.source == EXTERNAL:
            return []
        mend = "No lock service counts that far: somebody made it up. While nobody writes, "
        of_scope = mend + "DELETE FROM fencepost.marks WHERE resource = %L, and protect the table again."
        of_floor = (
            f"{mend}UPDATE fencepost.floors SET floor = 0 WHERE name = {self.prefix}, and protect the table again."
        )
        return issue_beyond_sql(
            self.source,
            self.before,
            f"""
    (SELECT m.resource, m.last_fence_token AS mark, {literal(of_scope)} AS mend FROM fencepost.marks AS m
      WHERE starts_with(m.resource, {literal(encode_name(self.scope.prefix) + "/")})
      ORDER BY m.last_fence_token DESC LIMIT 1)
    UNION ALL
    SELECT {literal(f"The floor of {self.scope.prefix}")}, f.floor, {literal(of_floor)} FROM fencepost.floors AS f
     WHERE f.name = {self.prefix}""",
        )


def unprotect_scope_sql(
    table: str, name: str, now_called: str, stem: str, scope: Scope, partitions: tuple[str, ...]
) -> list[str]:
    """List what undoes `protect --scope`. Marks and floors stay: a later protect goes on from them."""
    return [
        *leave_sql(table, name, now_called, stem, scope),
        *drop_truncate_triggers(table, partitions),
        *drop_functions(stem),
        f"DELETE FROM fencepost.protected WHERE name = {literal(name)}",
        "NOTIFY fencepost, 'reload'",
    ]
