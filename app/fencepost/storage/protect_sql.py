"""The DDL of `protect` and `unprotect` of rows that have marks of their own: what `--sql` prints is what runs."""

from fencepost.fencing.token import EXTERNAL
from fencepost.storage.catalog import MARK_COLUMN, quote
from fencepost.storage.protect_check import CONSTRAINT
from fencepost.storage.protect_functions import SAID_IN_SETTING, dollar, drop_functions
from fencepost.storage.protect_table import (
    PREFIX,
    ROW_PARTS,
    TableDdl,
    drop_triggers,
    drop_truncate_triggers,
    issue_beyond_sql,
    write_rows_sql,
)
from fencepost.storage.row_sql import encode_name, literal


class RowDdl(TableDdl):
    """Writes the statements for a table whose rows have marks of their own."""

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
            *self.functions.create(),
            *self._move_marks(),
            self._take_up_marks(),
            *self._triggers(),
            *self._drop_old_functions(),
            *self.register(),
            *self.issue_beyond_marks(),
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
        """Protected once before? Rows that came back while nobody watched take up the marks that their keys had, and
        keys whose rows went are known to be without. So do the rows of partitions that were attached since: those lack
        the TRUNCATE trigger, which is no partition's by inheritance.
        """
        prefix = literal(encode_name(self.target.name) + "/")
        named = f"{self.functions.called('name')}(r)"
        write = write_rows_sql(
            f"UPDATE {self.table} AS r SET {MARK_COLUMN} = m.last_fence_token FROM fencepost.marks AS m"
            f" WHERE m.resource OPERATOR(pg_catalog.=) {named}"
            f" AND r.{MARK_COLUMN} OPERATOR(pg_catalog.<) m.last_fence_token;"
        )
        body = f"""
BEGIN
  IF EXISTS (SELECT FROM fencepost.marks WHERE starts_with(resource, {prefix}))
     AND (NOT EXISTS (SELECT FROM fencepost.protected WHERE relation = {self.relation}::oid)
          OR EXISTS (SELECT FROM pg_partition_tree({self.relation}) AS p WHERE p.isleaf AND NOT EXISTS (
                     SELECT FROM pg_trigger t WHERE t.tgrelid = p.relid AND t.tgname = '{PREFIX}trunc'))) THEN{write}
    SET LOCAL row_security = off;
    UPDATE fencepost.marks AS m SET row_absent = true WHERE starts_with(m.resource, {prefix}) AND NOT m.row_absent
       AND NOT EXISTS (SELECT FROM {self.table} AS r WHERE {named} = m.resource);
    SET LOCAL row_security TO DEFAULT;
  END IF;
END"""
        return "DO " + dollar(body)

    def _triggers(self) -> list[str]:
        given = f" WHEN ({SAID_IN_SETTING} OR NEW.{MARK_COLUMN} IS NULL OR NEW.{MARK_COLUMN} OPERATOR(pg_catalog.<=) 0)"
        return [
            self.trigger("upd", "BEFORE UPDATE", "upd"),
            self.trigger("ins", "BEFORE INSERT", "ins", given),
            self.trigger("insmark", "AFTER INSERT", "insmark"),
            self.trigger("del", "AFTER DELETE", "del"),
            *self.truncate_triggers(),
        ]

    def _move_marks(self) -> list[str]:
        """Renamed since it was protected: marks and floor move to the new name, in the same transaction."""
        now = self.target.registered
        old = [*self.target.formerly, *([now.name] if now is not None and now.name != self.target.name else [])]
        return [statement for each in old for statement in move_marks(each, self.target.name)]

    def _drop_old_functions(self) -> list[str]:
        now = self.target.registered
        return [] if now is None or now.functions == self.functions.stem else drop_functions(now.functions)

    def issue_beyond_marks(self) -> list[str]:
        """Becoming a table of a source: its tokens go on from above all marks that are there.

        Exact, because the table's lock keeps every mark from rising meanwhile. So is the sequence: nobody draws from it
        until this commits (`fencepost.issue_beyond`), and a lease that is granted afterwards has a token that passes.
        A claim of a key without a row takes the table's lock last; it looks at the source after that (marks.py). Under
        such a source no mark rises above what was issued, so repeating `protect` looks at no row (a new name may
        have marks of a table that was called so before).
        """
        before = self.target.registered
        stays = before is not None and (before.source, before.name) == (self.source, self.target.name)
        if self.source == EXTERNAL or stays:
            return []
        prefix = literal(encode_name(self.target.name) + "/")
        name = self.target.name.replace("%", "%%")  # for format()
        mend = (
            f"No lock service counts that far: somebody made it up. While nobody writes, take the protection away"
            f" (fencepost unprotect {name}), set {MARK_COLUMN} of that row to 0, DELETE FROM fencepost.marks"
            f" WHERE resource = %L, and protect the table again."
        )
        mend_floor = f"Nobody may insert below it. UPDATE fencepost.floors lowers it, where name is {name}."
        return issue_beyond_sql(
            self.source,
            self.before,
            f"""
    (SELECT {self.functions.called("name")}(r) AS resource, r.{MARK_COLUMN} AS mark, {literal(mend)} AS mend
       FROM {self.table} AS r
      -- A column that this transaction has added holds no mark: no need to read a large table for that.
      WHERE NOT (SELECT fencepost.ours(a.xmin) FROM pg_attribute AS a
                  WHERE a.attrelid = {self.relation} AND a.attname = {literal(MARK_COLUMN)})
      ORDER BY r.{MARK_COLUMN} DESC LIMIT 1)
    UNION ALL
    (SELECT m.resource, m.last_fence_token, {literal(mend)} FROM fencepost.marks AS m
      WHERE starts_with(m.resource, {prefix}) ORDER BY m.last_fence_token DESC LIMIT 1)
    UNION ALL
    SELECT {literal(f"The floor of {self.target.name}")}, f.floor, {literal(mend_floor)} FROM fencepost.floors AS f
     WHERE f.name = {self.name}""",
        )


def move_marks(old: str, new: str) -> list[str]:
    """List what moves the marks and the floor of a table that was renamed to its new name."""
    before, after = literal(encode_name(old) + "/"), literal(encode_name(new) + "/")
    return [
        f"WITH moved AS (DELETE FROM fencepost.marks WHERE starts_with(resource, {before}) RETURNING *)"
        f" INSERT INTO fencepost.marks AS k SELECT {after} || substr(resource, length({before}) + 1),"
        f" last_fence_token, xid, row_absent, changed_at FROM moved"
        f" ON CONFLICT (resource) DO UPDATE SET"
        f" last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token),"
        f" row_absent = excluded.row_absent",
        f"INSERT INTO fencepost.floors AS f (name, floor) SELECT {literal(new)}, o.floor FROM fencepost.floors o"
        f" WHERE o.name = {literal(old)} ON CONFLICT (name) DO UPDATE SET floor = greatest(f.floor, excluded.floor)",
    ]


def remember_sql(table: str, name: str) -> str:
    """Remember whose floor and marks these are: the table may be renamed before it is protected again."""
    return f"UPDATE fencepost.floors SET relation = {literal(table)}::regclass::oid WHERE name = {literal(name)}"


def unprotect_sql(
    table: str, name: str, now_called: str, stem: str, partitions: tuple[str, ...], *, keep_marks: bool
) -> list[str]:
    """List what undoes `protect`. The column, its check, the marks and the floor stay: a later protect goes on from
    them, since a mark never falls. If the table was renamed since, that will be under the name it has now.

    `keep_marks`: write live rows' marks down too, for their rows may go while nobody watches. Not possible when the key
    or the column has changed since.
    """
    # The table's owner may have given the column a type of his own; the key's are looked at by our function.
    same = (
        f"IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = {literal(table)}::regclass"
        f" AND a.attname = {literal(MARK_COLUMN)} AND a.atttypid = 'bigint'::regtype) THEN"
        f" PERFORM fencepost.outdated({literal(name)}); END IF;"
    )
    kept = (
        f"INSERT INTO fencepost.marks AS k (resource, last_fence_token, xid, row_absent)"
        f" SELECT fencepost.{quote(f'{stem}_name')}(r), r.{MARK_COLUMN}, pg_current_xact_id(), false"
        f" FROM {table} AS r WHERE r.{MARK_COLUMN} > 0"
        f" ON CONFLICT (resource) DO UPDATE SET row_absent = false,"
        f" last_fence_token = greatest(k.last_fence_token, excluded.last_fence_token)"
    )
    return [
        *drop_triggers(table, ROW_PARTS),
        *drop_truncate_triggers(table, partitions),
        *(["DO " + dollar(f"BEGIN {same} SET LOCAL row_security = off; {kept}; END")] if keep_marks else []),
        *(move_marks(name, now_called) if name != now_called else []),
        remember_sql(table, now_called),
        *drop_functions(stem),
        f"DELETE FROM fencepost.protected WHERE name = {literal(name)}",
        "NOTIFY fencepost, 'reload'",
    ]
