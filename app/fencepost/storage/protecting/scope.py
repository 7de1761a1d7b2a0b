"""The DDL of `protect --scope` (R8). One mark per scope stands in fencepost.marks instead of one a row in the table, so
the table needs no column; one BEFORE trigger enters the scope for a transaction that has not yet.

Nothing stale gets in by changing sides. A table that enters a scope brings its rows' marks with it, and those of its
deleted keys as the floor of the prefix; one that leaves takes the prefix's highest mark as its own floor, which its
next protection by rows writes into the rows.
"""

from collections.abc import Sequence
from typing import Final

from fencepost.fencing.ceiling import Ceiling
from fencepost.fencing.scope import Scope, parse_scope
from fencepost.fencing.token import Rule
from fencepost.storage.protecting.check import Registration, Target
from fencepost.storage.protecting.functions import dollar, drop_functions, give_functions
from fencepost.storage.protecting.names import floors_condition, relation, take_name
from fencepost.storage.protecting.scope_check import PREFIX_OF, TableScope
from fencepost.storage.protecting.table import (
    MISMATCH,
    PREFIX,
    ROW_PARTS,
    TOO_HIGH,
    TableDdl,
    column_sql,
    drop_scope_functions,
    drop_triggers,
    drop_truncate_triggers,
    issue_beyond_sql,
    mend_reset,
    refuse_above,
    refuse_above_sql,
    scope_marks_sql,
    write_rows_sql,
)
from fencepost.storage.statements.row_sql import encode_name, literal, resource_sql
from fencepost.storage.tables.catalog import MARK_COLUMN, quote

SCOPE_PARTS: Final = ("scope", "scope_ins", "scope_upd")


def lock_prefix(prefix: str) -> str:
    """Keep everybody out of a prefix's scopes until the end of the transaction."""
    return f"SELECT pg_advisory_xact_lock(hashtextextended({literal('fencepost.scope/' + prefix)}, 0))"


def leave_sql(
    table: str, name: str, now_called: str, stem: str, scope: Scope, ceiling: Ceiling | None = None
) -> list[str]:
    """List what takes a table out of its scope: its floor becomes the highest mark that its rows may have had. If it
    was renamed, that of the name that it has now: the next protection is of that one. A mark above the ceiling is
    refused, before it becomes the mark of every row.
    """
    prefix, now = literal(scope.prefix), literal(now_called)
    return [
        f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE",
        lock_prefix(scope.prefix),
        *(
            []
            if ceiling is None
            else refuse_above_sql(ceiling.max_token, scope_marks_sql(scope.prefix, registered=True))
        ),
        *([take_name(table, now_called)] if name != now_called else []),
        f"INSERT INTO fencepost.floors AS f (name, relation, floor, covers_rows)"
        f" SELECT {now}, {relation(table)}, greatest((SELECT max(m.last_fence_token) FROM fencepost.marks m"
        f" WHERE starts_with(m.resource, {literal(encode_name(scope.prefix) + '/')})),"
        f" (SELECT max(p.floor) FROM fencepost.floors p WHERE p.name IN ({prefix}, {literal(name)})), 0), true"
        f" ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor), covers_rows = true,"
        f" relation = excluded.relation",
        f"UPDATE fencepost.protected SET scope = NULL WHERE name = {literal(name)}",
        *drop_triggers(table, SCOPE_PARTS),
        *drop_scope_functions(stem),
    ]


def raise_rows_sql(target: Target, ceiling: Ceiling | None = None) -> list[str]:
    """List what precedes a protection by rows: rows that have no marks of their own take the table's floor as theirs.

    What the column of a table that has left a scope holds is of no account, nothing has guarded it. The rows of a table
    in its place may have been copied with their marks, and none of these falls. Rows that are guarded are left alone.
    A floor above the ceiling is refused, before it becomes the mark of every row.
    """
    table, name = f"{quote(target.schema)}.{quote(target.relation)}", literal(target.name)
    floors = floors_condition(table, target.name)
    write = (
        f"UPDATE {table} AS r SET {MARK_COLUMN} = lowest WHERE r.{MARK_COLUMN} OPERATOR(pg_catalog.<) lowest"
        f" OR unguarded AND r.{MARK_COLUMN} OPERATOR(pg_catalog.>) lowest;"
    )
    refused = ""
    if ceiling is not None:
        mend = literal(mend_reset("%s", registered=True))
        refused = f"""
  IF lowest > {ceiling.max_token} THEN
    SELECT f.name INTO of_floor FROM fencepost.floors f WHERE {floors} ORDER BY f.floor DESC LIMIT 1;
    RAISE EXCEPTION USING ERRCODE = '{TOO_HIGH}',
      MESSAGE = format('The floor of %s is %s, above {ceiling.max_token}, the highest token that the table is to take.',
                       of_floor, lowest),
      HINT = format({mend}, of_floor);
  END IF;"""
    body = f"""
#variable_conflict use_variable
DECLARE
  lowest bigint;
  unguarded boolean;
  of_floor text;
BEGIN
  SELECT max(f.floor), bool_or(f.relation IS NOT DISTINCT FROM {relation(table)}) INTO lowest, unguarded
    FROM fencepost.floors f WHERE {floors};
  IF lowest IS NULL OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = {relation(table)}
                                  AND t.tgname = '{PREFIX}upd') THEN
    RETURN;
  END IF;{refused}
  {column_sql(table)};{write_rows_sql(write)}
  INSERT INTO fencepost.floors AS f (name, floor) VALUES ({name}, lowest)
  ON CONFLICT ON CONSTRAINT floors_pkey DO UPDATE SET floor = greatest(f.floor, excluded.floor);
  UPDATE fencepost.floors f SET covers_rows = false WHERE {floors};
END"""
    return ["DO " + dollar(body)]


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
    ) -> None:
        super().__init__(target, rule, source, requires_key=requires_key, verify=verify, ceiling=ceiling)
        self.scope = scoped.scope
        self.columns = scoped.columns
        self.prefix = literal(self.scope.prefix)

    def protect(self, restore: str) -> list[str]:
        """List what makes the table protected, in order. Every statement can be repeated. `restore`: what follows the
        table's lock.
        """
        now = self.target.registered
        before = parse_scope(now.scope) if now is not None and now.scope is not None else None
        leaving = (
            leave_sql(self.table, now.name, self.target.name, now.functions, before, self.ceiling)
            if now is not None and before is not None and before != self.scope
            else []
        )
        return [
            *self.begin(*self.columns),
            restore,
            *leaving,
            lock_prefix(self.scope.prefix),
            # Tables that were dropped without unprotect would have a say in the rule.
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
        """Drop those of the name that the table had."""
        now = self.target.registered
        if now is None or now.functions == self.functions.stem:
            return []
        return drop_scope_functions(now.functions)

    def expression(self, record: str) -> str:
        """Render the scope of NEW, OLD or r."""
        return resource_sql(self.scope.prefix, [(c.base_name, f"{record}.{quote(c.name)}") for c in self.columns])

    def _require_one_rule(self) -> str:
        """Look again once no other session can protect a table of this scope: two may have been looking at once."""
        body = f"""
BEGIN
  IF EXISTS (SELECT FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
              WHERE {PREFIX_OF} = {self.prefix} AND p.relation <> {self.relation}
                AND (p.rule, p.source, p.max_token, p.max_jump)
                    IS DISTINCT FROM ({literal(self.rule)}, {literal(self.source)}, {self.ceiling_sql()})) THEN
    RAISE EXCEPTION USING ERRCODE = '{MISMATCH}', MESSAGE = 'a table was protected with this scope and another rule,'
      ' source or ceiling at the same moment.';
  END IF;
  IF EXISTS (SELECT FROM fencepost.protected p WHERE p.name = {self.prefix}) THEN
    RAISE EXCEPTION USING ERRCODE = '{MISMATCH}', MESSAGE = 'a table with the name of this scope was protected at the'
      ' same moment.';
  END IF;
END"""
        return "DO " + dollar(body)

    def _bring_marks(self) -> list[str]:
        """The rows' marks become their scope's, those of keys without a row the floor of the prefix. None above the
        ceiling, which would refuse everybody in the whole scope, or under the whole prefix.
        """
        now = self.target.registered
        if now is not None and now.scope == self.scope.template and now.name == self.target.name:
            return []
        called = {self.target.name, *self.target.formerly, *([now.name] if now is not None else [])}
        # While rows are watched their columns are their marks; else rows may have gone, and their marks do not say so.
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
     AND NOT EXISTS (SELECT FROM fencepost.floors f WHERE {floors_condition(self.table, self.target.name)}) THEN
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
            # Triggers fire without this privilege; with it anybody could hang it on a table of theirs.
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
        raised = f"""
BEGIN
  IF current_setting('fencepost.bound') <> '' AND current_setting('fencepost.bound') <> {bound} THEN
    UPDATE fencepost.floors f SET floor = greatest(f.floor, (SELECT max(m.last_fence_token) FROM fencepost.marks m
       WHERE starts_with(m.resource, {literal(encode_name(self.scope.prefix) + "/")}))) WHERE f.name = {self.prefix};
  END IF;
END"""
        return [
            f"SELECT set_config('fencepost.bound', coalesce({bound}, ''), true)",
            self.functions.bind("of", self.expression("r")),
            "DO " + dollar(raised),
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
