"""The DDL of `protect` and `unprotect`, as text: what `--sql` prints is what runs.

Order of the triggers: `zzz_` puts them after everybody else's, so that they judge what is really written.
"""

from typing import Final

from fencepost.fencing.token import Rule
from fencepost.storage.catalog import BUILTIN, MARK_COLUMN, quote
from fencepost.storage.protect_check import CONSTRAINT, Target
from fencepost.storage.protect_functions import Functions, dollar, drop_functions
from fencepost.storage.row_sql import encode_name, literal

PREFIX: Final = "zzz_fencepost_"
HIGHEST_MARK: Final = 2**62
"""Above it, too little would be left for the tokens that must come after a mark."""
TOO_HIGH: Final = "54000"
"""The SQLSTATE (program_limit_exceeded) of a plan that meets a mark above HIGHEST_MARK."""


class Ddl:
    """Writes the statements for one table."""

    def __init__(self, target: Target, rule: Rule, source: str, *, requires_key: bool = False) -> None:
        self.target = target
        self.rule = rule
        self.source = source
        self.requires_key = requires_key
        self.functions = Functions(target, rule, source)
        self.table = self.functions.table
        self.name = self.functions.name

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
            *self.functions.create(),
            *self._triggers(),
            *self._move_marks(),
            *self._register(),
            *self._issue_beyond_marks(),
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
        keys whose rows went are known to be without. So do the rows of partitions that were attached since: those lack
        the TRUNCATE trigger, which is no partition's by inheritance.
        """
        prefix = literal(encode_name(self.target.name) + "/")
        body = f"""
BEGIN
  IF EXISTS (SELECT FROM fencepost.marks WHERE starts_with(resource, {prefix}))
     AND (NOT EXISTS (SELECT FROM fencepost.protected WHERE relation = {literal(self.table)}::regclass)
          OR EXISTS (SELECT FROM pg_partition_tree({literal(self.table)}) AS p WHERE p.isleaf AND NOT EXISTS (
                     SELECT FROM pg_trigger t WHERE t.tgrelid = p.relid AND t.tgname = '{PREFIX}trunc'))) THEN
    UPDATE {self.table} AS r SET {MARK_COLUMN} = m.last_fence_token FROM fencepost.marks AS m
     WHERE m.resource = {self.functions.resource("r")} AND r.{MARK_COLUMN} < m.last_fence_token;
    UPDATE fencepost.marks AS m SET row_absent = true WHERE starts_with(m.resource, {prefix}) AND NOT m.row_absent
       AND NOT EXISTS (SELECT FROM {self.table} AS r WHERE {self.functions.resource("r")} = m.resource);
  END IF;
END"""
        # The table's own triggers may fire here: they find their names as always.
        return ["SET LOCAL search_path TO DEFAULT", "DO " + dollar(body), "SET LOCAL search_path = pg_catalog"]

    def _triggers(self) -> list[str]:
        def trigger(part: str, event: str, condition: str = "") -> str:
            return (
                f"CREATE OR REPLACE TRIGGER {PREFIX}{part} {event} ON {self.table} FOR EACH ROW{condition}"
                f" EXECUTE FUNCTION {self.functions.called(part)}()"
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
            f"INSERT INTO fencepost.protected (relation, name, rule, source, key_columns, functions, requires_key)"
            f" VALUES ({relation}, {self.name}, {literal(self.rule)}, {literal(self.source)}, ARRAY[{key}],"
            f" {literal(self.functions.stem)}, {str(self.requires_key).lower()})"
            f" ON CONFLICT (relation) DO UPDATE SET name = excluded.name, rule = excluded.rule,"
            f" source = excluded.source, key_columns = excluded.key_columns, functions = excluded.functions,"
            f" requires_key = excluded.requires_key",
        ]

    def _move_marks(self) -> list[str]:
        """Renamed since it was protected: marks and floor move to the new name, in the same transaction."""
        old = self.target.registered
        if old is None or old.name == self.target.name:
            return []
        return [*move_marks(old.name, self.target.name), *drop_functions(old.functions)]

    def _issue_beyond_marks(self) -> list[str]:
        """Becoming a table of the built-in source: its tokens go on from above all marks that are there.

        Exact, because the table's lock keeps every mark from rising meanwhile. So is the sequence: nobody draws from it
        until this commits (`fencepost.issue_beyond`), and a lease that is granted afterwards has a token that passes.
        A claim of a key without a row takes the table's lock last; it looks at the source after that (marks.py). Under
        the built-in source no mark rises above the sequence, so repeating `protect` looks at no row (a new name may
        have marks of a table that was called so before).
        """
        before = self.target.registered
        stays = before is not None and (before.source, before.name) == (BUILTIN, self.target.name)
        if self.source != BUILTIN or stays:
            return []
        prefix = literal(encode_name(self.target.name) + "/")
        relation = f"{literal(self.table)}::regclass"
        name = self.target.name.replace("%", "%%")  # for format()
        mend = (
            f"No lock service counts that far: somebody made it up. While nobody writes, take the protection away"
            f" (fencepost unprotect {name}), set {MARK_COLUMN} of that row to 0, DELETE FROM fencepost.marks"
            f" WHERE resource = %L, and protect the table again."
        )
        mend_floor = f"Nobody may insert below it. UPDATE fencepost.floors lowers it, where name is {name}."
        body = f"""
DECLARE
  row_security text := current_setting('row_security');
  high record;
BEGIN
  -- A policy that hides rows from their owner must fail here, and not hide their marks.
  PERFORM set_config('row_security', 'off', true);
  SELECT k.* INTO high FROM (
    (SELECT {self.functions.called("name")}(r) AS resource, r.{MARK_COLUMN} AS mark, {literal(mend)} AS mend
       FROM {self.table} AS r
      -- A column that this transaction has added holds no mark: no need to read a large table for that.
      WHERE NOT (SELECT fencepost.ours(a.xmin) FROM pg_attribute AS a
                  WHERE a.attrelid = {relation} AND a.attname = {literal(MARK_COLUMN)})
      ORDER BY r.{MARK_COLUMN} DESC LIMIT 1)
    UNION ALL
    (SELECT m.resource, m.last_fence_token, {literal(mend)} FROM fencepost.marks AS m
      WHERE starts_with(m.resource, {prefix}) ORDER BY m.last_fence_token DESC LIMIT 1)
    UNION ALL
    SELECT {literal(f"The floor of {self.target.name}")}, f.floor, {literal(mend_floor)} FROM fencepost.floors AS f
     WHERE f.name = {self.name}) AS k ORDER BY k.mark DESC LIMIT 1;
  PERFORM set_config('row_security', row_security, true);
  IF high.mark > {HIGHEST_MARK} THEN
    RAISE EXCEPTION USING ERRCODE = '{TOO_HIGH}',
      MESSAGE = format('%s has the mark %s, above 2^62: the built-in tokens would have to go on from there, and too few'
                       ' are left.', high.resource, high.mark),
      HINT = format(high.mend, high.resource);
  END IF;
  PERFORM fencepost.issue_beyond(high.mark);
END"""
        return ["DO " + dollar(body)]


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


def unprotect_sql(
    table: str, name: str, now_called: str, stem: str, partitions: tuple[str, ...], *, keep_marks: bool
) -> list[str]:
    """List what undoes `protect`. The column, its check, the marks and the floor stay: a later protect goes on from
    them, since a mark never falls. If the table was renamed since, that will be under the name it has now.

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
        *(move_marks(name, now_called) if name != now_called else []),
        *drop_functions(stem),
        f"DELETE FROM fencepost.protected WHERE name = {literal(name)}",
        "NOTIFY fencepost, 'reload'",
    ]
