"""The DDL of `protect` and `unprotect` of rows that have marks of their own: what `--sql` prints is what runs."""

from fencepost.server.ops.protecting.functions import SETTING_GIVEN, drop_functions
from fencepost.server.ops.protecting.names import move_marks, remember, take_name
from fencepost.server.ops.protecting.table import (
    MADE,
    ROW_PARTS,
    TableDdl,
    column_sql,
    drop_triggers,
    drop_truncate_triggers,
    is_lowered,
    issue_beyond_sql,
    mend_reset,
    refuse_above_sql,
)
from fencepost.server.postgres.row_sql import encode_name, literal
from fencepost.server.postgres.tables import MARK_CHECK, MARK_COLUMN


class RowDdl(TableDdl):
    """Writes the statements for a table whose rows have marks of their own."""

    @property
    def named_by(self) -> str:
        """The name of the function that names a row, a literal."""
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
        (marks.py). Under such a source no mark rises above what was issued, so repeating `protect` looks at no row (a
        new name may have marks of a table that was called so before).
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
