"""The DDL of `protect --scope` (R8). One mark per scope stands in fencepost.marks instead of one a row in the table, so
the table needs no column; one BEFORE trigger enters the scope for a transaction that has not yet.

Nothing stale gets in by changing sides. A table that enters a scope brings its rows' marks with it, and those of its
deleted keys as the floor of the prefix; for one that leaves see left_scope.py.
"""

from collections.abc import Sequence

from fencepost.server.fence.token import Ceiling, Rule
from fencepost.server.ops.protecting.functions import drop_functions, give_functions
from fencepost.server.ops.protecting.left_scope import leave_for, lock_prefix
from fencepost.server.ops.protecting.names import take_name
from fencepost.server.ops.protecting.scope_check import PREFIX_OF, TableScope
from fencepost.server.ops.protecting.table import (
    ROW_PARTS,
    TableDdl,
    drop_scope_functions,
    drop_triggers,
    issue_beyond_sql,
    mend_reset,
    refuse_above,
    refuse_above_sql,
    scope_marks_sql,
)
from fencepost.server.ops.protecting.target import Registration, Target
from fencepost.server.postgres.row_sql import dollar, encode_name, literal, resource_sql
from fencepost.server.postgres.tables import MARK_COLUMN, quote


class ScopeDdl(TableDdl):
    """Writes the statements for one table with a scope."""

    def __init__(
        self,
        target: Target,
        scoped: TableScope,
        rule: Rule,
        source: str,
        *,
        requires_key: bool,
        verify: bool = False,
        ceiling: Ceiling | None = None,
        sealed: bool = False,
    ) -> None:
        super().__init__(target, rule, source, requires_key=requires_key, verify=verify, ceiling=ceiling, sealed=sealed)
        self.scope = scoped.scope
        self.columns = scoped.columns
        self.prefix = literal(self.scope.prefix)

    def protect(self, restore: str) -> list[str]:
        """List what makes the table protected, in order. Every statement can be repeated. `restore`: what follows the
        table's lock.
        """
        now = self.target.registered
        return [
            *self.begin(*self.columns),
            restore,
            *leave_for(self.target, self.scope, self.ceiling),
            lock_prefix(self.scope.prefix),
            # Tables that were dropped without unprotect would count for the rule.
            f"DELETE FROM fencepost.protected p WHERE {PREFIX_OF} = {self.prefix}"
            f" AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)",
            self._require_one_rule(),
            f"INSERT INTO fencepost.floors (name) VALUES ({self.name}), ({self.prefix}) ON CONFLICT DO NOTHING",
            take_name(self.table, self.target.name),
            *self._bring_marks(),
            *drop_triggers(self.table, ROW_PARTS),
            *(drop_functions(now.functions) if now is not None else []),
            *self._functions(),
            *self._triggers(),
            *self._drop_old_functions(),
            *self.register(self.scope.template),
            *self.meet_marks(),
            "NOTIFY fencepost, 'reload'",
        ]  # fmt: skip

    def _drop_old_functions(self) -> list[str]:
        now = self.target.registered
        if now is None or now.functions == self.functions.stem:
            return []
        return drop_scope_functions(now.functions)

    def expression(self, record: str) -> str:
        """Render the scope of NEW, OLD or r."""
        return resource_sql(self.scope.prefix, [(c.base_name, f"{record}.{quote(c.name)}") for c in self.columns])

    def _require_one_rule(self) -> str:
        """Look again once no other session can protect a table of this scope: two may have been looking at once."""
        return (
            f"SELECT fencepost.require_one_rule({self.relation}, {self.prefix}, {literal(self.rule)},"
            f" {literal(self.source)}, {str(self.sealed).lower()}, {self.ceiling_sql()})"
        )

    def _bring_marks(self) -> list[str]:
        """The rows' marks become their scope's, those of keys without a row the floor of the prefix. None above the
        ceiling, which would refuse every write in the whole scope, or under the whole prefix.
        """
        now = self.target.registered
        if now is not None and now.scope == self.scope.template and now.name == self.target.name:
            return []
        called = {self.target.name, *self.target.formerly, *([now.name] if now is not None else [])}
        # While rows are watched their columns are their marks; else rows may have gone, and their marks do not show it.
        absent = " AND m.row_absent" if now is not None and now.scope is None else ""
        theirs = " OR ".join(f"starts_with(m.resource, {literal(encode_name(each) + '/')})" for each in sorted(called))
        names = ", ".join(literal(each) for each in sorted(called))
        of_rows, of_keys = self._refuse_brought(now, sorted(called), theirs)
        # Rows that have left a scope have no marks: the column, if there is one, is of no account.
        body = f"""
DECLARE
  high record;
BEGIN
  IF EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = {self.relation} AND a.attname = {literal(MARK_COLUMN)}
                AND NOT a.attisdropped)
     AND NOT EXISTS (SELECT FROM fencepost.floors_of_rows({self.relation}, {self.name})) THEN
    SET LOCAL row_security = off;{of_rows}
    INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)
    SELECT s.scope, s.mark, '0', true
      FROM (SELECT {self.expression("r")} AS scope, max(r.{MARK_COLUMN}) AS mark FROM {self.table} AS r
             WHERE r.{MARK_COLUMN} > 0 GROUP BY 1) AS s ORDER BY s.scope COLLATE "C"
    ON CONFLICT (resource) DO UPDATE
       SET last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token), row_absent = true;
    SET LOCAL row_security TO DEFAULT;
  END IF;{of_keys}
  UPDATE fencepost.floors f SET floor = greatest(f.floor,
      (SELECT max(m.last_fence_token) FROM fencepost.marks m WHERE ({theirs}){absent}),
      (SELECT max(t.floor) FROM fencepost.floors t WHERE t.name IN ({names}) OR t.relation = {self.relation}::oid))
   WHERE f.name = {self.prefix};
END"""
        return ["DO " + dollar(body)]

    def _refuse_brought(self, now: Registration | None, called: Sequence[str], theirs: str) -> tuple[str, str]:
        """Write what refuses marks of rows, and of keys without one, that are above the ceiling."""
        if self.ceiling is None:
            return "", ""
        mend = literal(mend_reset("%L", registered=now is not None))
        key = [(k.base_name, f"r.{quote(k.name)}") for k in self.target.key]
        of_row = resource_sql(now.name if now is not None else self.target.name, key)
        names = ", ".join(literal(each) for each in called)
        of_floor = literal(mend_reset("%s", registered=True))
        rows = f"""
      SELECT {of_row} AS resource, r.{MARK_COLUMN} AS mark, {mend} AS mend FROM {self.table} AS r
       ORDER BY r.{MARK_COLUMN} DESC LIMIT 1"""
        keys = f"""
    (SELECT m.resource, m.last_fence_token AS mark, {mend} AS mend FROM fencepost.marks AS m
      WHERE {theirs} ORDER BY m.last_fence_token DESC LIMIT 1)
    UNION ALL
    SELECT f.name, f.floor, {of_floor} FROM fencepost.floors AS f
     WHERE f.name IN ({names}) OR f.relation = {self.relation}::oid"""
        return refuse_above(self.ceiling.max_token, rows), refuse_above(self.ceiling.max_token, keys)

    def _functions(self) -> list[str]:
        bodies = self.bodies()
        pinned = "SET search_path = pg_catalog, pg_temp"
        of = self.functions.function_name("of")
        return [
            *self._bind(of),
            f"CREATE OR REPLACE FUNCTION {self.functions.function_name('scope')}() RETURNS trigger LANGUAGE plpgsql"
            f" SECURITY DEFINER {pinned} AS {dollar(bodies['scope'])}",
            # Triggers fire without this privilege; with it any role could attach it to its own table.
            f"REVOKE EXECUTE ON FUNCTION {self.functions.function_name('scope')}() FROM PUBLIC",
            f"GRANT EXECUTE ON FUNCTION {of} TO PUBLIC",
            give_functions([*(self.functions.function_name(part) for part in bodies), of]),
        ]

    def _bind(self, of: str) -> list[str]:
        """Make the function that names a row's scope.

        Renamed since, the template's names may mean other columns now: then every scope of the prefix is fenced up to
        its highest mark, for none of the marks may be where it belongs.
        """
        bound = f"(SELECT pg_get_function_sqlbody(to_regprocedure({literal(f'{of}({self.table})')})))"
        return [
            f"SELECT set_config('fencepost.bound', coalesce({bound}, ''), true)",
            self.functions.bind("of", self.expression("r")),
            f"SELECT fencepost.fence_prefix({self.prefix}, {bound})",
        ]

    def bodies(self) -> dict[str, str]:
        """Write what each of the table's functions does, by its part of their names."""
        of, template = self.functions.function_name("of"), literal(self.scope.template)
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
        return {"scope": judging}

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

    def meet_marks(self) -> list[str]:
        """Look whether the marks that are there fit: they are below the ceiling of an external source, and another
        source's tokens go on from above them. Exact, because no transaction enters the scope until this commits.
        """
        now = self.target.registered
        marks = scope_marks_sql(self.scope.prefix, registered=now is not None and now.scope == self.scope.template)
        if self.ceiling is not None:
            return refuse_above_sql(self.ceiling.max_token, marks)
        return issue_beyond_sql(self.source, self.before, marks)
