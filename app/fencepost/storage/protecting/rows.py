"""The DDL of `protect` and `unprotect` of rows that have marks of their own: what `--sql` prints is what runs."""

from fencepost.storage.protecting.functions import SETTING_GIVEN, drop_functions
from fencepost.storage.protecting.names import move_marks, relation, remember, take_name
from fencepost.storage.protecting.table import (
    MADE,
    PREFIX,
    ROW_PARTS,
    TableDdl,
    column_sql,
    drop_triggers,
    drop_truncate_triggers,
    is_lowered,
    issue_beyond_sql,
    mend_reset,
    refuse_above_sql,
    write_rows_sql,
)
from fencepost.storage.protecting.target import CONSTRAINT
from fencepost.storage.statements.row_sql import dollar, encode_name, literal
from fencepost.storage.tables.catalog import MARK_COLUMN, quote


class RowDdl(TableDdl):
    """Writes the statements for a table whose rows have marks of their own."""

    def protect(self) -> list[str]:
        """List what makes the table protected, in order. Every statement can be repeated."""
        return [
            column_sql(self.table),
            # NOT VALID: no scan under the table's strongest lock. It is validated afterwards.
            "DO "
            + dollar(
                f"BEGIN ALTER TABLE {self.table} ADD CONSTRAINT {CONSTRAINT} CHECK ({MARK_COLUMN} >= 0) NOT VALID;"
                f" EXCEPTION WHEN duplicate_object THEN NULL; END"
            ),
            self._column_comment(),
            f"INSERT INTO fencepost.floors (name) VALUES ({self.name}) ON CONFLICT DO NOTHING",
            *self.functions.create(),
            *self._move_marks(),
            self._require_key(),
            self._take_up_marks(),
            *self._triggers(),
            *self._drop_old_functions(),
            *self.register(),
            *self.meet_marks(),
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

    def _take_up_marks(self) -> str:
        """Protected once before? Rows that came back while the table was unprotected take up the marks that their keys
        had, and keys whose rows went are known to be without. So do the rows of partitions that were attached since,
        without an event trigger that would have seen to it; and these take up the floor, too. Without the trigger that
        judges an UPDATE, which would take the marks for tokens; it is made anew in the same transaction.
        """
        prefix = literal(encode_name(self.target.name) + "/")
        named = self.functions.resource("r.*")
        write = write_rows_sql(
            f"UPDATE {self.table} AS r SET {MARK_COLUMN} = m.last_fence_token FROM fencepost.marks AS m"
            f" WHERE m.resource OPERATOR(pg_catalog.=) {named}"
            f" AND r.{MARK_COLUMN} OPERATOR(pg_catalog.<) m.last_fence_token;"
        )
        lift = write_rows_sql(
            f"UPDATE {self.table} AS r SET {MARK_COLUMN} = lowest WHERE r.tableoid OPERATOR(pg_catalog.=) ANY (came)"
            f" AND r.{MARK_COLUMN} OPERATOR(pg_catalog.<) lowest;"
        )
        body = f"""
#variable_conflict use_variable
DECLARE
  known boolean := EXISTS (SELECT FROM fencepost.protected WHERE relation = {self.relation}::oid);
  came oid[] := fencepost.partitions_unknown({self.relation});
  lowest bigint := (SELECT f.floor FROM fencepost.floors f WHERE f.name = {self.name});
BEGIN
  IF known AND cardinality(came) > 0 THEN DROP TRIGGER IF EXISTS {PREFIX}upd ON {self.table}; END IF;
  IF known AND cardinality(came) > 0 AND lowest > 0 THEN{lift}
  END IF;
  IF EXISTS (SELECT FROM fencepost.marks WHERE starts_with(resource, {prefix}))
     AND (NOT known OR cardinality(came) > 0) THEN{write}
    SET LOCAL row_security = off;
    UPDATE fencepost.marks AS m SET row_absent = true WHERE starts_with(m.resource, {prefix}) AND NOT m.row_absent
       AND NOT EXISTS (SELECT FROM {self.table} AS r WHERE {named} = m.resource);
    SET LOCAL row_security TO DEFAULT;
  END IF;
END"""
        return "DO " + dollar(body)

    def _lift_rows(self) -> str:
        """Raise rows to the floor that may have been made while nothing protected the table: their keys had no row, and
        a key without a row is fenced by the floor. Of the other rows `unprotect` has written down the marks. The floor
        that another table has left, which lives on under another name, is not for this one's rows.
        """
        written_down = (
            f"EXISTS (SELECT FROM fencepost.marks AS m WHERE NOT m.row_absent"
            f" AND m.resource OPERATOR(pg_catalog.=) {self.functions.resource('r.*')})"
        )
        write = write_rows_sql(
            f"UPDATE {self.table} AS r SET {MARK_COLUMN} = lowest WHERE r.{MARK_COLUMN} OPERATOR(pg_catalog.<) lowest"
            f" AND NOT (remembered AND {written_down});"
        )
        body = f"""
#variable_conflict use_variable
DECLARE
  lowest bigint := (SELECT f.floor FROM fencepost.floors f WHERE f.name = {self.name});
  -- Whether it is the table that was unprotected, and not one in its place, of whose rows nothing is written down.
  remembered boolean := EXISTS (SELECT FROM fencepost.floors f WHERE f.relation = {relation(self.table)});
  another_s boolean := EXISTS (SELECT FROM fencepost.floors f WHERE f.name = {self.name}
    AND f.relation <> {relation(self.table)} AND fencepost.name_of(f.relation) IS NOT NULL);
  {self._guarded()}
BEGIN
  IF lowest > 0 AND NOT guarded AND (remembered OR NOT another_s) AND fencepost.same_key(
       (SELECT f.key FROM fencepost.floors f WHERE f.name = {self.name}), fencepost.key_of({relation(self.table)})) THEN
    {write}
  END IF;
END"""
        return "DO " + dollar(body)

    def _guarded(self) -> str:
        """Declare whether the table's rows have been guarded until now."""
        return (
            f"guarded boolean := EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = {relation(self.table)}"
            f" AND t.tgname = '{PREFIX}upd');"
        )

    def _require_key(self) -> str:
        """Are the names of the marks those of the primary key? It was of other types maybe, or in another order, while
        nothing protected the table: then it is not known which mark is whose, and the floor rises to the highest one.

        So do rows whose marks are not there: deleted and made again meanwhile, they have lost theirs. Those that were
        guarded all the time, or of which every mark that was written down by `unprotect` is there, keep their own.
        """
        prefix = literal(encode_name(self.target.name) + "/")
        write = write_rows_sql(
            f"UPDATE {self.table} AS r SET {MARK_COLUMN} = highest"
            f" WHERE r.{MARK_COLUMN} OPERATOR(pg_catalog.<) highest;"
        )
        body = f"""
#variable_conflict use_variable
DECLARE
  this_key jsonb := fencepost.key_of({relation(self.table)});
  lowest bigint := (SELECT f.floor FROM fencepost.floors f WHERE f.name = {self.name});
  {self._guarded()}
  highest bigint;
  missing boolean;
BEGIN
  IF NOT fencepost.same_key((SELECT f.key FROM fencepost.floors f WHERE f.name = {self.name}), this_key) THEN
    SELECT max(m.last_fence_token) INTO highest FROM fencepost.marks m
     WHERE starts_with(m.resource, {prefix}) AND (m.row_absent OR NOT guarded);
    IF lowest > 0 AND NOT guarded THEN highest := greatest(highest, lowest); END IF;
  END IF;
  IF highest IS NOT NULL THEN
    SET LOCAL row_security = off;
    {self._marks_missing(prefix)}
    SET LOCAL row_security TO DEFAULT;
    IF missing THEN{write}
    END IF;
    UPDATE fencepost.floors f SET floor = greatest(f.floor, highest) WHERE f.name = {self.name};
  END IF;
  UPDATE fencepost.floors f SET key = this_key WHERE f.name = {self.name};
END"""
        return "DO " + dollar(body)

    def _marks_missing(self, prefix: str) -> str:
        """Find out whether rows have lost marks that `unprotect` wrote down."""
        return f"""\
missing := NOT guarded AND EXISTS (
      SELECT FROM (SELECT m.last_fence_token AS mark, count(*) AS n FROM fencepost.marks m
                    WHERE starts_with(m.resource, {prefix}) AND NOT m.row_absent GROUP BY 1) AS was
        LEFT JOIN (SELECT r.{MARK_COLUMN} AS mark, count(*) AS n FROM {self.table} AS r
                    WHERE r.{MARK_COLUMN} > 0 GROUP BY 1) AS there ON there.mark = was.mark
       WHERE coalesce(there.n, 0) < was.n);
    -- A row that was not there then may have the key of one that had been deleted before.
    missing := missing OR NOT guarded AND (lowest > 0
        OR EXISTS (SELECT FROM fencepost.marks m WHERE starts_with(m.resource, {prefix}) AND m.row_absent))
      AND (SELECT count(*) FROM {self.table}) > (SELECT count(*) FROM fencepost.marks m
                                                  WHERE starts_with(m.resource, {prefix}) AND NOT m.row_absent);"""

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
            self._lift_rows(),
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
        _write_marks_down(table, name, stem, of_rows=keep_marks),
        *([move_marks(table, name, now_called), take_name(table, now_called)] if name != now_called else []),
        remember(table, now_called),
        *drop_functions(stem),
        f"DELETE FROM fencepost.protected WHERE name = {literal(name)}",
        "NOTIFY fencepost, 'reload'",
    ]


def _write_marks_down(table: str, name: str, stem: str, *, of_rows: bool) -> str:
    """Note which keys have no row, and the marks of rows if `of_rows`."""
    # The table's owner may have given the column a type of his own; the key's are looked at by our function.
    same = (
        f"IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = {literal(table)}::regclass"
        f" AND a.attname = {literal(MARK_COLUMN)} AND a.atttypid = 'bigint'::regtype) THEN"
        f" PERFORM fencepost.outdated({literal(name)}); END IF;"
    )
    kept = (
        f"INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)"
        f" SELECT fencepost.{quote(f'{stem}_name')}(r.*), r.{MARK_COLUMN}, pg_current_xact_id(), false"
        f" FROM {table} AS r WHERE r.{MARK_COLUMN} > 0"
        f" ON CONFLICT (resource) DO UPDATE SET row_absent = false,"
        f" last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token)"
    )
    absent = (
        f"UPDATE fencepost.marks AS k SET row_absent = true WHERE NOT k.row_absent"
        f" AND starts_with(k.resource, {literal(encode_name(name) + '/')})"
    )
    if of_rows:  # its row was deleted in a scope, for example, where rows have no marks
        absent += (
            f" AND NOT EXISTS (SELECT FROM {table} AS r WHERE r.{MARK_COLUMN} > 0"
            f" AND fencepost.{quote(f'{stem}_name')}(r.*) = k.resource)"
        )
    written = [f"{same} SET LOCAL row_security = off; {kept};"] if of_rows else []
    return "DO " + dollar(" ".join(["BEGIN", *written, f"{absent}; END"]))
