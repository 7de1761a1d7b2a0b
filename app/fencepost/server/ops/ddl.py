"""The DDL of `protect` and `unprotect`: of tables whose rows have marks of their own, of tables with a scope, and of
those that go from one to the other or have lost their marks.
"""

import shlex
from collections.abc import Sequence
from typing import Final

from fencepost.server.fence.resource import Scope, parse_scope
from fencepost.server.fence.token import BUILTIN, EXTERNAL, MAX_TOKEN, Ceiling, Rule
from fencepost.server.ops.checks import KEY_TYPES, PREFIX_OF, KeyColumn, ProtectError, Registration, TableScope, Target
from fencepost.server.ops.functions import (
    SETTING_GIVEN,
    Functions,
    drop_functions,
    give_functions,
    move_marks,
    relation,
    remember,
    take_name,
)
from fencepost.server.postgres.queues import is_queue
from fencepost.server.postgres.row_sql import dollar, encode_name, literal, resource_sql
from fencepost.server.postgres.tables import MARK_CHECK, MARK_COLUMN, quote

PREFIX: Final = "zzz_fencepost_"
"""Of the triggers' names: after all others, so that they judge what is really written."""
ROW_PARTS: Final = ("upd", "ins", "insmark", "del")
HIGHEST_MARK: Final = 2**62
"""Above it, too little would be left for the tokens that must come after a mark."""
MADE_UP: Final = "No lock service counts that far: it is made up."
TOO_HIGH: Final = "54000"
"""The SQLSTATE (program_limit_exceeded) of a ProtectPlan that meets a mark above HIGHEST_MARK, or above the ceiling."""
MISMATCH: Final = "55000"
"""The SQLSTATE (object_not_in_prerequisite_state) of a ProtectPlan whose table, or scope, is not what was looked at."""


class TableDdl:
    """Writes the statements for one table; how its marks are kept is for those who inherit."""

    def __init__(
        self,
        target: Target,
        rule: Rule,
        source: str,
        *,
        requires_key: bool = False,
        verify: bool = False,
        ceiling: Ceiling | None = None,
        sealed: bool = False,
    ) -> None:
        self.target = target
        self.rule = rule
        self.source = source
        self.requires_key = requires_key
        self.verify = verify
        self.sealed = sealed
        self.before = target.registered.source if target.registered is not None else None
        """The source that it had."""
        self.functions = Functions(target, rule, source, ceiling)
        self.ceiling = self.functions.ceiling
        self.table = self.functions.table
        self.name = self.functions.name
        self.relation = f"{literal(self.table)}::regclass"

    def begin(self, *columns: KeyColumn) -> list[str]:
        """Lock the table, and look again: until now its owner could have put something of his own in its place, and
        what follows runs in the name of the role that protects it. `columns` are read besides the key's.
        """
        read = {column.name: column for column in (*self.target.key, *columns)}
        named = ", ".join(literal(c.name) for c in read.values())
        types = ", ".join(literal(c.type) for c in read.values())
        builtin = ", ".join(str(c.base_name in KEY_TYPES).lower() for c in read.values())
        return [
            f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE",
            f"SELECT fencepost.require_unchanged({self.relation}, ARRAY[{named}]::name[], ARRAY[{types}]::regtype[],"
            f" ARRAY[{builtin}])",
        ]

    def trigger(self, part: str, event: str, function: str, condition: str = "") -> str:
        """Make one of the table's triggers for each row; `function` is the part of its functions' names."""
        return (
            f"CREATE OR REPLACE TRIGGER {PREFIX}{part} {event} ON {self.table} FOR EACH ROW{condition}"
            f" EXECUTE FUNCTION {self.functions.function_name(function)}()"
        )

    def truncate_triggers(self) -> list[str]:
        """Make the triggers that no partition has by inheritance. Anew each time: one that is older than the
        partition's other triggers says that the partition has been away (fencepost.partitions_unknown).
        """
        return [
            statement
            for table in self.target.partitions or (self.table,)
            for statement in (
                *drop_triggers(table, ("trunc",)),
                f"CREATE TRIGGER {PREFIX}trunc BEFORE TRUNCATE ON {table}"
                f" FOR EACH STATEMENT EXECUTE FUNCTION fencepost.no_truncate()",
            )
        ]

    def register(self, scope: str | None = None) -> list[str]:
        """Enter the table in fencepost.protected, with its scope's template if it has one."""
        key = ", ".join(literal(k.name) for k in self.target.key)
        return [
            f"UPDATE fencepost.floors SET relation = NULL WHERE relation = {self.relation}::oid",
            # A table of this name that was dropped without unprotect.
            f"DELETE FROM fencepost.protected p WHERE p.name = {self.name} AND p.relation <> {self.relation}"
            f" AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)",
            f"INSERT INTO fencepost.protected (relation, name, rule, source, key_columns, functions, requires_key,"
            f" verify, max_token, max_jump, scope, partitions, sealed)"
            f" VALUES ({self.relation}, {self.name}, {literal(self.rule)}, {literal(self.source)},"
            f" ARRAY[{key}], {literal(self.functions.stem)}, {str(self.requires_key).lower()},"
            f" {str(self.verify).lower()}, {self.ceiling_sql()},"
            f" {'NULL' if scope is None else literal(scope)}, fencepost.partitions_of({self.relation}),"
            f" {str(self.sealed).lower()})"
            f" ON CONFLICT (relation) DO UPDATE SET name = excluded.name, rule = excluded.rule,"
            f" source = excluded.source, key_columns = excluded.key_columns, functions = excluded.functions,"
            f" requires_key = excluded.requires_key, verify = excluded.verify, max_token = excluded.max_token,"
            f" max_jump = excluded.max_jump, scope = excluded.scope, partitions = excluded.partitions,"
            f" sealed = excluded.sealed",
        ]

    def ceiling_sql(self) -> str:
        if self.ceiling is None:
            return "NULL::int8, NULL::int8"
        jump = "NULL" if self.ceiling.max_jump is None else f"'{self.ceiling.max_jump}'"
        return f"'{self.ceiling.max_token}'::int8, {jump}::int8"


def mend_reset(resource: str, *, registered: bool) -> str:
    """Return how a mark or a floor that is too high is mended: a text for format(). `resource`: %L, or a name."""
    first = f" first protect the table as it is (--source external --max-token {MAX_TOKEN}), then"
    return (
        f"{MADE_UP} Lower it, and run this again:{'' if registered else first} fencepost fence reset {resource} --to N"
        " --reason …, N being the newest token that the lock service has given out."
    )


def refuse_above(max_token: int, marks: str) -> str:
    """Write, for a body that has declared `high record`, what refuses to go on where one of `marks`, a query as for
    issue_beyond_sql, is above a ceiling: it would refuse everybody, and some of what `protect` does carries it on to
    other rows.
    """
    return f"""
  SELECT k.* INTO high FROM ({marks}) AS k WHERE k.mark > {max_token} ORDER BY k.mark DESC LIMIT 1;
  IF high.mark IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = '{TOO_HIGH}',
      MESSAGE = format('%s has the mark %s, above {max_token}, the highest token that the table is to take.',
                       high.resource, high.mark),
      HINT = format(high.mend, high.resource);
  END IF;"""


def refuse_above_sql(max_token: int, marks: str) -> list[str]:
    """The same as a statement."""
    return [_look_at_marks(refuse_above(max_token, marks))]


def _look_at_marks(look: str, then: str = "") -> str:
    """Make a statement of `look`, which finds `high` among marks of rows, and `then`, which goes on with it."""
    body = f"""
DECLARE
  row_security text := current_setting('row_security');
  high record;
BEGIN
  -- A policy that hides rows from their owner must fail here, and not hide their marks.
  PERFORM set_config('row_security', 'off', true);{look}
  PERFORM set_config('row_security', row_security, true);{then}
END"""
    return "DO " + dollar(body)


def is_lowered(now: Ceiling | None, before: Ceiling | None) -> bool:
    """Whether marks that were below the ceiling may be above it now."""
    return now is not None and (before is None or now.max_token < before.max_token)


def scope_marks_sql(prefix: str, *, registered: bool) -> str:
    """Query the highest mark of a prefix's scopes and its floor, with what mends them. `registered`: a table has the
    scope now.
    """
    name = literal(prefix)
    mend_floor = literal(mend_reset(prefix.replace("%", "%%"), registered=True))
    return f"""
    (SELECT m.resource, m.last_fence_token AS mark, {literal(mend_reset("%L", registered=registered))} AS mend
       FROM fencepost.marks AS m
      WHERE starts_with(m.resource, {literal(encode_name(prefix) + "/")})
      ORDER BY m.last_fence_token DESC LIMIT 1)
    UNION ALL
    SELECT {literal(f"The floor of {prefix}")}, f.floor, {mend_floor} FROM fencepost.floors AS f
     WHERE f.name = {name}"""


def issue_beyond_sql(source: str, before: str | None, marks: str) -> list[str]:
    """Let a source's tokens go on from above the highest of `marks`, a query that gives resource, mark and mend: what
    an operator does about one that is too high, a text for format() in which %L is the resource.

    The built-in source's are moved there. A lock service's cannot be moved: those marks count as issued by it, and if
    they were not, its next grant shows that it counts from elsewhere. `before` is the source that they were of: when it
    is known to be another one, a service that has given no token begins in a generation above them.
    """
    beyond = "fencepost.issue_beyond(high.mark)"
    if source != BUILTIN:
        # No mark but its own is a position of a queue.
        of_another = before != source if is_queue(source) else before not in (None, EXTERNAL, source)
        beyond = f"fencepost.source_beyond({literal(source)}, high.mark, {str(of_another).lower()})"
    look = f"""
  SELECT k.* INTO high FROM (
{marks}) AS k WHERE k.mark IS NOT NULL ORDER BY k.mark DESC LIMIT 1;"""
    then = f"""
  IF high.mark > {HIGHEST_MARK} THEN
    RAISE EXCEPTION USING ERRCODE = '{TOO_HIGH}',
      MESSAGE = format('%s has the mark %s, above 2^62: tokens would have to go on from there, and too few'
                       ' are left.', high.resource, high.mark),
      HINT = format(high.mend, high.resource);
  END IF;
  PERFORM {beyond};"""
    return [_look_at_marks(look, then)]


MADE: Final = "coalesce(current_setting('fencepost.made', true), '') = 'true'"
"""Whether the last column_sql of this transaction has made the column."""


def column_sql(table: str) -> str:
    """Make the column of the marks where there is none, in a statement that can be repeated."""
    return f"SELECT fencepost.add_mark_column({literal(table)}::regclass)"


def drop_triggers(table: str, parts: Sequence[str]) -> list[str]:
    """Drop some of a table's triggers."""
    return [f"DROP TRIGGER IF EXISTS {PREFIX}{part} ON {table}" for part in parts]


def drop_truncate_triggers(table: str, partitions: Sequence[str]) -> list[str]:
    """Drop the triggers of a table and its partitions that keep them from TRUNCATE."""
    return [statement for each in partitions or (table,) for statement in drop_triggers(each, ("trunc",))]


def drop_scope_functions(stem: str) -> list[str]:
    """Drop the functions that judge and name a table's scope."""
    return [f"DROP FUNCTION IF EXISTS fencepost.{quote(f'{stem}_{part}')}" for part in ("scope", "of")]


class RowDdl(TableDdl):
    """Writes the statements for a table whose rows have marks of their own: what `--sql` prints is what runs."""

    @property
    def named_by(self) -> str:
        return literal(f"{self.functions.stem}_name")

    def protect(self) -> list[str]:
        """List what makes the table protected, in order. Every statement can be repeated."""
        return [
            column_sql(self.table),
            # NOT VALID: no scan under the table's strongest lock. It is validated afterwards.
            f"SELECT fencepost.add_mark_check({self.relation})",
            self._column_comment(),
            f"INSERT INTO fencepost.floors (name) VALUES ({self.name}) ON CONFLICT DO NOTHING",
            *self.functions.create(),
            *self._move_marks(),
            f"SELECT fencepost.require_key({self.relation}, {self.name})",
            f"SELECT fencepost.take_up_marks({self.relation}, {self.name}, {self.named_by})",
            *self._triggers(),
            *self._drop_old_functions(),
            *self.register(),
            *self.meet_marks(),
            "NOTIFY fencepost, 'reload'",
        ]

    def validate(self) -> str:
        """Check old rows too, under a lock that lets writers pass. Runs after the rest has committed."""
        return f"ALTER TABLE {self.table} VALIDATE CONSTRAINT {MARK_CHECK}"

    def _column_comment(self) -> str:
        text = literal(
            "The highest fencing token that this row has accepted (Fencepost); 0: never written through a fence."
        )
        return f"COMMENT ON COLUMN {self.table}.{MARK_COLUMN} IS {text}"

    def _triggers(self) -> list[str]:
        given = f" WHEN ({SETTING_GIVEN} OR NEW.{MARK_COLUMN} IS NULL OR NEW.{MARK_COLUMN} OPERATOR(pg_catalog.<=) 0)"
        return [
            self.trigger("upd", "BEFORE UPDATE", "upd"),
            self.trigger("ins", "BEFORE INSERT", "ins", given),
            self.trigger("insmark", "AFTER INSERT", "insmark"),
            self.trigger("del", "AFTER DELETE", "del"),
            *self.truncate_triggers(),
        ]

    def _move_marks(self) -> list[str]:
        """Renamed since it was protected: marks and floor move to the new name, in the same transaction. What another
        table has left under this name goes on to the name that it has now.
        """
        now = self.target.registered
        old = [*self.target.formerly, *([now.name] if now is not None and now.name != self.target.name else [])]
        return [
            *(move_marks(self.table, each, self.target.name) for each in old),
            f"SELECT fencepost.lift_rows({self.relation}, {self.name}, {self.named_by})",
            take_name(self.table, self.target.name),
        ]

    def _drop_old_functions(self) -> list[str]:
        now = self.target.registered
        return [] if now is None or now.functions == self.functions.stem else drop_functions(now.functions)

    def meet_marks(self) -> list[str]:
        """Look whether the marks that are there fit: they are below the ceiling of an external table, and a source's
        tokens go on from above them.

        Exact, because the table's lock keeps every mark from rising meanwhile. So is the sequence: no session draws
        from it until this commits (`fencepost.issue_beyond`), and a lease that is granted afterwards has a token that
        passes. A claim of a key without a row takes the table's lock last; it looks at the source after that
        (`claim_absent`). Under such a source no mark rises above what was issued, so repeating `protect` looks at no
        row (a new name may have marks of a table that was called so before).
        """
        before = self.target.registered
        stays = before is not None and (before.source, before.name) == (self.source, self.target.name)
        if stays and not is_lowered(self.ceiling, before.ceiling if before is not None else None):
            return []
        prefix = literal(encode_name(self.target.name) + "/")
        name = self.target.name.replace("%", "%%")  # for format()
        mend = mend_reset("%L", registered=before is not None)
        mend_floor = mend_reset(name, registered=True)
        marks = f"""
    (SELECT {self.functions.resource("r.*")} AS resource, r.{MARK_COLUMN} AS mark, {literal(mend)} AS mend
       FROM {self.table} AS r
      -- A column that this transaction has added holds no mark: no need to read a large table for that.
      WHERE NOT ({MADE})
      ORDER BY r.{MARK_COLUMN} DESC LIMIT 1)
    UNION ALL
    (SELECT m.resource, m.last_fence_token, {literal(mend)} FROM fencepost.marks AS m
      WHERE starts_with(m.resource, {prefix}) ORDER BY m.last_fence_token DESC LIMIT 1)
    UNION ALL
    SELECT {literal(f"The floor of {self.target.name}")}, f.floor, {literal(mend_floor)} FROM fencepost.floors AS f
     WHERE f.name = {self.name}"""
        if self.ceiling is not None:
            return refuse_above_sql(self.ceiling.max_token, marks)
        return issue_beyond_sql(self.source, self.before, marks)


def unprotect_sql(
    table: str, name: str, now_called: str, stem: str, partitions: tuple[str, ...], *, keep_marks: bool
) -> list[str]:
    """List what undoes `protect`. The column, its check, the marks and the floor stay: a later protect goes on from
    them, since a mark never falls. If the table was renamed since, that will be under the name it has now.

    `keep_marks`: write live rows' marks down too, for their rows may be deleted while the table is unprotected. Not
    possible when the key or the column has changed since. What is not written down here is the mark of a key without a
    row.
    """
    return [
        *drop_triggers(table, ROW_PARTS),
        *drop_truncate_triggers(table, partitions),
        f"SELECT fencepost.write_marks_down({literal(table)}::regclass, {literal(name)}, {literal(f'{stem}_name')},"
        f" {str(keep_marks).lower()})",
        *([move_marks(table, name, now_called), take_name(table, now_called)] if name != now_called else []),
        remember(table, now_called),
        *drop_functions(stem),
        f"DELETE FROM fencepost.protected WHERE name = {literal(name)}",
        "NOTIFY fencepost, 'reload'",
    ]


def register_sql(source: str) -> list[str]:
    """Make a queue known, before its table's marks are compared with its positions; nothing for another source."""
    if not is_queue(source):
        return []
    return [f"SELECT fencepost.queue_register({literal(source)}, {literal(source.partition(':')[0])})"]


# A table that leaves its scope (R8) takes the prefix's highest mark as its own floor, and its next protection by
# rows writes it into the rows.

SCOPE_PARTS: Final = ("scope", "scope_ins", "scope_upd")


def lock_prefix(prefix: str) -> str:
    """Keep all writers out of a prefix's scopes until the end of the transaction."""
    return f"SELECT pg_advisory_xact_lock(hashtextextended({literal('fencepost.scope/' + prefix)}, 0))"


def leave_for(target: Target, scope: Scope | None, ceiling: Ceiling | None) -> list[str]:
    """List what takes a table out of the scope that it is in, if that is not the one that it is to have."""
    now = target.registered
    before = parse_scope(now.scope) if now is not None and now.scope is not None else None
    if now is None or before is None or before == scope:
        return []
    table = f"{quote(target.schema)}.{quote(target.relation)}"
    return leave_sql(table, now.name, target.name, now.functions, before, ceiling)


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
    """List what precedes a protection by rows: those that have no marks of their own take the floor as theirs."""
    table, name = f"{quote(target.schema)}.{quote(target.relation)}", literal(target.name)
    mend = literal(mend_reset("%s", registered=True))
    above = "NULL" if ceiling is None else f"'{ceiling.max_token}'"
    return [f"SELECT fencepost.raise_rows({literal(table)}::regclass, {name}, {above}, {mend})"]


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


# The DDL of `protect --scope` (R8). One mark per scope stands in fencepost.marks instead of one a row in the table, so
# the table needs no column; one BEFORE trigger enters the scope for a transaction that has not yet.
#
# Nothing stale gets in by changing sides. A table that enters a scope brings its rows' marks with it, and those of its
# deleted keys as the floor of the prefix; for one that leaves see `leave_sql`.


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


# A table whose rows have lost their marks: the column was dropped, or renamed, while the table was protected.
#
# Nothing is written to such a table, for its functions fail. What the marks were is not known, but what is above them:
# a source that is known has issued every token that was accepted. Of an external one only an operator can say how far
# its tokens have got. All rows take that as their mark, and so does the floor, for the marks of keys that nothing has
# asked for since may be gone as well.

ABOVE: Final = "--above N"
NOT_LOST: Final = (
    f"{ABOVE} is for a table of an external source that is protected and has lost its column {MARK_COLUMN}; this one"
    " has not."
)


def lost_marks_reason(name: str) -> str:
    """Return what is wrong with the table of this name, and which command mends it: `unprotect` refuses it, too."""
    return (
        f"its marks are lost: the column {MARK_COLUMN} is gone. Its tokens are of an external source, so it is not"
        f" known how far they have got. When no token up to N may write to it any more, run `fencepost protect"
        f" {shlex.quote(name)} {ABOVE}` (in Alembic: protect(…, above=N)). All rows, and keys without a row, then take"
        " tokens above N only."
    )


def require_marks(target: Target, above: int | None) -> None:
    """Refuse a table whose marks are lost beyond what is known, and a word that is not needed. Raises ProtectError."""
    now = target.registered
    unknown = target.lost and now is not None and now.source == EXTERNAL
    if unknown and above is None:
        raise ProtectError(target.name, [lost_marks_reason(target.name)])
    if above is not None and not unknown:
        raise ProtectError(target.name, [NOT_LOST])
    if above is not None and not 0 < above <= HIGHEST_MARK:
        raise ProtectError(target.name, [f"--above {above}: a token is a positive number, of at most 2^62 here."])


def restore_sql(table: str, name: str, above: int | None = None) -> str:
    """Make the column anew where it is gone from a table whose rows have marks of their own, once the table is locked.
    `table` is its name in SQL, `name` the one that commands take.
    """
    known = "NULL" if above is None else f"'{above}'"
    return f"SELECT fencepost.restore_marks({literal(table)}::regclass, {known}, {literal(lost_marks_reason(name))})"
