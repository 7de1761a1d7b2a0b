"""SQL for what else a write to a table (pg_class c) may do, or be kept from: triggers, rules, functions, keys."""

from typing import Final

# Not pg_class.relhasrules, which stays when the last rule is dropped. A view's own rule is one on SELECT (1).
HAS_RULES: Final = """
EXISTS (SELECT FROM pg_rewrite w WHERE w.ev_class = c.oid AND w.ev_type <> '1' AND w.ev_enabled <> 'D')"""

# The first two bits of tgtype are ROW and BEFORE, the fifth is UPDATE. A partition may have triggers of its own.
SUPPRESSES: Final = f"""
{HAS_RULES} AND c.relkind IN ('r', 'p') OR EXISTS (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
   WHERE NOT t.tgisinternal AND t.tgtype & 19 = 19 AND t.tgenabled <> 'D'
     AND NOT starts_with(t.tgname, 'zzz_fencepost_'))
"""

# The functions that expressions call are read from their trees: pg_depend does not name functions of PostgreSQL's own.
# What depends on the role alone (current_user) needs no look: a batch has one role. Keys and indexes take IMMUTABLE
# functions only.
#   made_of    the types of a table's columns, and those that these are made of
#   relation   the table, its partitions, and what views read
#   tree       expressions; `reading`: a read runs them, too. A write runs all
CALLS: Final = r"""
(WITH RECURSIVE part(oid) AS (
   SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid),
 made_of(oid) AS (
   SELECT a.atttypid FROM part JOIN pg_attribute a ON a.attrelid = part.oid WHERE a.attnum > 0 AND NOT a.attisdropped
   UNION
   SELECT x.oid FROM made_of JOIN pg_type t ON t.oid = made_of.oid CROSS JOIN LATERAL (
     VALUES (t.typbasetype), (t.typelem)
     UNION ALL SELECT a.atttypid FROM pg_attribute a
                WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
     UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)) AS x(oid)
    WHERE x.oid <> 0),
 relation(oid) AS (
   SELECT part.oid FROM part
   UNION
   SELECT d.refobjid FROM relation JOIN pg_class v ON v.oid = relation.oid AND v.relkind = 'v'
     JOIN pg_rewrite w ON w.ev_class = v.oid
     JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
      AND d.refclassid = 'pg_class'::regclass),
 tree(text, reading) AS (
   SELECT d.adbin::text, false FROM part JOIN pg_attrdef d ON d.adrelid = part.oid
   UNION ALL SELECT k.conbin::text, false FROM part JOIN pg_constraint k ON k.conrelid = part.oid
   UNION ALL SELECT k.conbin::text, false FROM made_of JOIN pg_constraint k ON k.contypid = made_of.oid
   UNION ALL SELECT t.typdefaultbin::text, false FROM made_of JOIN pg_type t ON t.oid = made_of.oid
   UNION ALL SELECT t.tgqual::text, false FROM part
               JOIN pg_trigger t ON t.tgrelid = part.oid AND NOT starts_with(t.tgname, 'zzz_fencepost_')
   UNION ALL SELECT w.ev_action::text, true FROM relation JOIN pg_class v ON v.oid = relation.oid AND v.relkind = 'v'
               JOIN pg_rewrite w ON w.ev_class = v.oid
   UNION ALL SELECT x.text, true FROM relation JOIN pg_class r ON r.oid = relation.oid AND r.relrowsecurity
               JOIN pg_policy y ON y.polrelid = r.oid
              CROSS JOIN LATERAL (VALUES (y.polqual::text), (y.polwithcheck::text)) AS x(text)),
 called(oid, reading) AS (
   SELECT found[1]::oid, tree.reading
     FROM tree
    CROSS JOIN LATERAL regexp_matches(tree.text, ':(?:(?:op)?funcid|aggfnoid|winfnoid) (\d+)', 'g') AS found
   UNION ALL
   SELECT k.castfunc, true FROM made_of
     JOIN pg_cast k ON made_of.oid IN (k.castsource, k.casttarget) AND k.castfunc <> 0)
 SELECT coalesce(bool_or(f.provolatile <> 'i' AND CASE WHEN f.oid < 16384
          THEN f.proname IN ('current_setting', 'set_config', 'ts_rewrite') OR f.proname LIKE '%to\_xml%'
          ELSE NOT EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                            WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e'
                              AND d.refclassid = 'pg_extension'::regclass
                              AND e.extname IN ('uuid-ossp', 'pgcrypto')) END), false) AS shows_caller,
        coalesce(bool_or(x.is_code), false) AS runs_functions,
        coalesce(bool_or(x.is_code AND called.reading), false) AS reads_run_functions
   FROM called JOIN pg_proc f ON f.oid = called.oid JOIN pg_language l ON l.oid = f.prolang
  CROSS JOIN LATERAL (SELECT CASE WHEN f.oid < 16384
     THEN f.proname IN ('set_config', 'ts_rewrite') OR f.proname LIKE '%to\_xml%'
     ELSE f.prokind = 'a' OR f.provolatile <> 'i' AND l.lanname NOT IN ('c', 'internal') END AS is_code) AS x)
"""
"""Asks what the functions may do that a table's expressions call.

shows_caller         one reads settings of the session. Of PostgreSQL's own few do, or run SQL. Of others only IMMUTABLE
                     ones cannot, and those of two extensions that make values by chance
runs_functions       one may change the session: code that somebody wrote in SQL or another language, and that is not
                     IMMUTABLE; set_config, and what runs SQL
reads_run_functions  the same of those that a read calls
"""

# Read word by word: comments, texts, and the columns of NEW and OLD are taken out, and of what is left each word must
# be known. No statement but an assignment, IF and RETURN can be made of these words, and no call of a function that
# somebody could put in another's place.
_HARMLESS_WORDS: Final = (
    "begin|end|if|then|elsif|else|return|new|old|null|true|false|and|or|not|is|distinct|from|row|coalesce|nullif"
    "|greatest|least|now|clock_timestamp|statement_timestamp|transaction_timestamp|current_timestamp|localtimestamp"
    "|current_date|current_user|session_user|gen_random_uuid"
)
_HARMLESS: Final = rf"""
(l.lanname = 'plpgsql' AND f.proconfig IS NULL AND NOT f.prosecdef AND (
  SELECT rest.words !~ '--|/\*|[$"\\]' AND rest.words !~* '\y(?!(?:{_HARMLESS_WORDS})\y)[[:alpha:]_]'
    FROM regexp_replace(f.prosrc, '--[^''\n]*(\n|$)', ' ', 'g') AS code(words),
         regexp_replace(code.words, '''[^'']*''', ' 0 ', 'g') AS plain(words),
         regexp_replace(plain.words, '\y(new|old)\.("[^"]*"|\w+)(?!\s*[.(])', ' 0 ', 'gi') AS rest(words)))
"""
"""Whether the trigger function f does no more than set columns of the row, as one that keeps `updated_at` does."""

# A partition may have triggers of its own.
_TRIGGERS: Final = """
EXISTS (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
    JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_language l ON l.oid = f.prolang
   WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND NOT starts_with(t.tgname, 'zzz_fencepost_') AND {})
"""
RUNS_CODE: Final = f"""
(calls.runs_functions OR c.relkind NOT IN ('r', 'p') OR {HAS_RULES}
 OR {_TRIGGERS.format(f"l.lanname NOT IN ('c', 'internal') AND NOT {_HARMLESS}")})
"""
"""Whether a write to the table c runs code of its owner's, which may change the session. `calls` are its CALLS."""

# Row security hides rows, which a batch would take for skipped ones. ON CONFLICT DO NOTHING takes no deferrable
# constraint, and keeps what a function in a DEFAULT has written.
SHARES: Final = f"""
NOT c.relrowsecurity AND NOT {RUNS_CODE} AND NOT {_TRIGGERS.format(True)}
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND NOT i.indimmediate)
"""

# A foreign key may lead to a partition, or from one.
_REFERRED: Final = """
(k.confrelid = c.oid OR c.relkind = 'p' AND k.confrelid IN (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT part.oid FROM part))
"""
# CASCADE, SET NULL, SET DEFAULT
REACHES: Final = f"""
EXISTS (SELECT FROM pg_constraint k WHERE {_REFERRED} AND k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd'))
"""
_ROOT_OF_REFERRING: Final = "coalesce(pg_partition_root(k.conrelid)::oid, k.conrelid)"
_ROOT_OF_REFERRED: Final = "coalesce(pg_partition_root(k.confrelid)::oid, k.confrelid)"
REACHES_ITSELF: Final = f"""
p.relation::oid IN (
  WITH RECURSIVE reached(oid) AS (
    SELECT {_ROOT_OF_REFERRING} FROM pg_constraint k
     WHERE {_ROOT_OF_REFERRED} = p.relation::oid AND k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd')
    UNION SELECT {_ROOT_OF_REFERRING} FROM reached r JOIN pg_constraint k ON {_ROOT_OF_REFERRED} = r.oid
     WHERE k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')))
  SELECT r.oid FROM reached r)
"""
"""Whether foreign keys of the protected table p lead from a row that is deleted to other rows of p, over other tables
maybe: these are deleted or changed under the same token. A partition counts as the table that it is of.
"""
REFERS: Final = f"""
(SELECT array_agg(DISTINCT {_ROOT_OF_REFERRED}::int8) FROM pg_constraint k
  WHERE k.contype = 'f' AND {_ROOT_OF_REFERRING} = c.oid)
"""
"""The tables that foreign keys of the table c lead to. A partition counts as the table that it is of."""
CHANGES: Final = f"""
(SELECT array_agg(DISTINCT a.attname::text) FROM pg_constraint k
   JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = ANY(k.confkey)
  WHERE {_REFERRED} AND k.contype = 'f' AND k.confupdtype IN ('c', 'n', 'd'))
"""
