"""What the DDL of `protect` has in common, whether a table's rows have marks of their own or its scopes have."""

from collections.abc import Sequence
from typing import Final

from fencepost.server.fence.token import BUILTIN, EXTERNAL, MAX_TOKEN, Ceiling, Rule
from fencepost.server.ops.protecting.functions import Functions
from fencepost.server.ops.protecting.target import KEY_TYPES, KeyColumn, Target
from fencepost.server.postgres.queues import is_queue
from fencepost.server.postgres.row_sql import dollar, encode_name, literal
from fencepost.server.postgres.tables import quote

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
        """Write the values of max_token and max_jump."""
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
