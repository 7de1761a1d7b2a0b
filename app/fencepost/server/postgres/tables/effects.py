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

# What depends on the role alone (current_user) needs no look: a batch has one role. Keys and indexes take IMMUTABLE
# functions only.
#   part    the table and its partitions
#   thing   what a write to it may look at or run, by pg_depend: views and policies, what these read, types and what
#           they are made of, domains' checks; `reading`: a read may, too
#   tree    expressions of these. The functions that they call are read from there: pg_depend does not name functions of
#           PostgreSQL's own
CALLS: Final = r"""
(WITH RECURSIVE part(oid) AS (
   SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid),
 thing(class, oid, reading) AS (
   SELECT 'pg_class'::regclass, part.oid, true FROM part
   UNION
   SELECT x.class, x.oid, thing.reading AND x.reading FROM thing CROSS JOIN LATERAL (
     SELECT 'pg_attrdef'::regclass, d.oid, false FROM part JOIN pg_attrdef d ON d.adrelid = part.oid
      WHERE part.oid = thing.oid AND thing.class = 'pg_class'::regclass
     UNION ALL SELECT 'pg_constraint'::regclass, k.oid, false FROM part
                 JOIN pg_constraint k ON k.conrelid = part.oid AND k.conbin IS NOT NULL
                WHERE part.oid = thing.oid AND thing.class = 'pg_class'::regclass
     UNION ALL SELECT 'pg_trigger'::regclass, t.oid, false FROM part
                 JOIN pg_trigger t ON t.tgrelid = part.oid AND NOT starts_with(t.tgname, 'zzz_fencepost_')
                WHERE part.oid = thing.oid AND thing.class = 'pg_class'::regclass AND t.tgqual IS NOT NULL
     UNION ALL SELECT 'pg_rewrite'::regclass, w.oid, true FROM pg_rewrite w
                WHERE w.ev_class = thing.oid AND thing.class = 'pg_class'::regclass AND w.ev_type = '1'
     UNION ALL SELECT 'pg_policy'::regclass, y.oid, true FROM pg_policy y JOIN pg_class r ON r.oid = y.polrelid
                WHERE y.polrelid = thing.oid AND thing.class = 'pg_class'::regclass AND r.relrowsecurity
     UNION ALL SELECT 'pg_type'::regclass, a.atttypid, true FROM pg_attribute a
                WHERE a.attrelid = thing.oid AND thing.class = 'pg_class'::regclass AND a.attnum > 0
                  AND NOT a.attisdropped
     UNION ALL SELECT 'pg_type'::regclass, of.oid, true FROM pg_type t CROSS JOIN LATERAL (
                 VALUES (t.typbasetype), (t.typelem)
                 UNION ALL SELECT a.atttypid FROM pg_attribute a
                            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
                 UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)) AS of(oid)
                WHERE t.oid = thing.oid AND thing.class = 'pg_type'::regclass
     UNION ALL SELECT 'pg_constraint'::regclass, k.oid, true FROM pg_constraint k
                WHERE k.contypid = thing.oid AND thing.class = 'pg_type'::regclass
     UNION ALL SELECT d.refclassid::regclass, d.refobjid, true FROM pg_depend d
                WHERE d.classid = thing.class AND d.objid = thing.oid
                  AND d.refclassid IN ('pg_class'::regclass, 'pg_type'::regclass)
                  AND thing.class IN ('pg_attrdef'::regclass, 'pg_constraint'::regclass, 'pg_trigger'::regclass,
                                      'pg_rewrite'::regclass, 'pg_policy'::regclass)) AS x(class, oid, reading)
    WHERE x.oid <> 0),
 tree(text, reading) AS (
   SELECT d.adbin::text, reading FROM thing JOIN pg_attrdef d ON (class, thing.oid) = ('pg_attrdef'::regclass, d.oid)
   UNION ALL SELECT k.conbin::text, reading FROM thing
               JOIN pg_constraint k ON (class, thing.oid) = ('pg_constraint'::regclass, k.oid)
   UNION ALL SELECT t.tgqual::text, reading FROM thing
               JOIN pg_trigger t ON (class, thing.oid) = ('pg_trigger'::regclass, t.oid)
   UNION ALL SELECT w.ev_action::text, reading FROM thing
               JOIN pg_rewrite w ON (class, thing.oid) = ('pg_rewrite'::regclass, w.oid)
   UNION ALL SELECT concat(y.polqual, y.polwithcheck), reading FROM thing
               JOIN pg_policy y ON (class, thing.oid) = ('pg_policy'::regclass, y.oid)
   UNION ALL SELECT t.typdefaultbin::text, false FROM thing
               JOIN pg_type t ON (class, thing.oid) = ('pg_type'::regclass, t.oid)),
 called(oid, reading) AS (
   SELECT found[1]::oid, tree.reading
     FROM tree
    CROSS JOIN LATERAL regexp_matches(tree.text, ':(?:(?:op)?funcid|aggfnoid|winfnoid) (\d+)', 'g') AS found
   UNION ALL
   SELECT k.castfunc, true FROM thing
     JOIN pg_cast k ON thing.oid IN (k.castsource, k.casttarget) AND k.castfunc <> 0
    WHERE thing.class = 'pg_type'::regclass)
 SELECT coalesce(bool_or(f.provolatile <> 'i' AND CASE WHEN f.oid < 16384
          THEN f.proname = 'current_setting' OR x.is_code
          ELSE NOT EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                            WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e'
                              AND d.refclassid = 'pg_extension'::regclass
                              AND e.extname IN ('uuid-ossp', 'pgcrypto')) END), false) AS shows_caller,
        coalesce(bool_or(x.is_code), false) AS runs_functions,
        coalesce(bool_or(x.is_code AND called.reading), false) AS reads_run_functions
   FROM called JOIN pg_proc f ON f.oid = called.oid JOIN pg_language l ON l.oid = f.prolang
  CROSS JOIN LATERAL (SELECT CASE WHEN f.oid < 16384
     THEN f.proname IN ('set_config', 'ts_rewrite', 'ts_stat') OR f.proname LIKE '%to\_xml%'
       OR f.proname LIKE 'pg\_%advisory\_lock%' OR f.proname LIKE 'pg\_replication\_origin\_%'
     ELSE f.prokind = 'a' OR f.provolatile <> 'i' AND l.lanname NOT IN ('c', 'internal') END AS is_code) AS x)
"""
"""Asks what the functions may do that a table's expressions call.

shows_caller         one reads settings of the session. Of PostgreSQL's own few do, or run SQL. Of others only IMMUTABLE
                     ones cannot, and those of two extensions that make values by chance
runs_functions       one may change the session: code that somebody wrote in SQL or another language, and that is not
                     IMMUTABLE; set_config, what runs SQL, and what takes locks for a session
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
REACHED: Final = f"""
(WITH RECURSIVE reached(oid) AS (
   SELECT c.oid
   UNION SELECT {_ROOT_OF_REFERRING} FROM reached r JOIN pg_constraint k ON {_ROOT_OF_REFERRED} = r.oid
    WHERE k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd')))
 SELECT array_agg(p.relation::oid::int8 ORDER BY p.relation::oid) FROM reached r
   JOIN fencepost.protected p ON p.relation = r.oid AND r.oid <> c.oid)
"""
"""The protected tables, other than the table c, whose rows a foreign key's action may delete or change."""
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
