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

# Row security runs policies; it also hides rows, which a batch would take for skipped ones. ON CONFLICT DO NOTHING
# takes no deferrable constraint, and keeps what a function in a DEFAULT has written; those in C write nothing.
SHARES: Final = f"""
NOT c.relrowsecurity AND NOT {HAS_RULES} AND c.relkind IN ('r', 'p')
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND NOT i.indimmediate)
  AND NOT EXISTS (
  SELECT FROM pg_depend d JOIN pg_proc f ON f.oid = d.refobjid JOIN pg_language l ON l.oid = f.prolang
   WHERE d.refclassid = 'pg_proc'::regclass AND f.provolatile = 'v' AND l.lanname NOT IN ('c', 'internal')
     AND f.oid >= 16384 AND (
       d.classid = 'pg_attrdef'::regclass AND d.objid IN (SELECT e.oid FROM pg_attrdef e WHERE e.adrelid = c.oid)
       OR d.classid = 'pg_constraint'::regclass
          AND d.objid IN (SELECT k.oid FROM pg_constraint k WHERE k.conrelid = c.oid)))
  AND NOT EXISTS (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
   WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND NOT starts_with(t.tgname, 'zzz_fencepost_'))
"""

# Whether a default, a check or a domain of a table or its partitions reads settings of the session. What they call is
# read from their trees: pg_depend does not name functions of PostgreSQL's own. Of those few read settings, or run SQL.
# Of others only IMMUTABLE ones cannot, and those of two extensions that make values by chance. What depends on the role
# alone (current_user) needs no look: a batch has one role. Keys and indexes take IMMUTABLE functions only.
SHOWS_CALLER: Final = r"""
EXISTS (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid),
  made_of(oid) AS (
    SELECT a.atttypid FROM part JOIN pg_attribute a ON a.attrelid = part.oid WHERE a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT x.oid FROM made_of JOIN pg_type t ON t.oid = made_of.oid CROSS JOIN LATERAL (
      VALUES (t.typbasetype), (t.typelem)
      UNION ALL SELECT a.atttypid FROM pg_attribute a
                 WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
      UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)) AS x(oid)
     WHERE x.oid <> 0)
  SELECT FROM (
           SELECT d.adbin::text FROM part JOIN pg_attrdef d ON d.adrelid = part.oid
           UNION ALL SELECT k.conbin::text FROM part JOIN pg_constraint k ON k.conrelid = part.oid
           UNION ALL SELECT k.conbin::text FROM made_of JOIN pg_constraint k ON k.contypid = made_of.oid
           UNION ALL SELECT t.typdefaultbin::text FROM made_of JOIN pg_type t ON t.oid = made_of.oid
         ) AS tree(text)
   CROSS JOIN LATERAL regexp_matches(tree.text, ':(?:op)?funcid (\d+)', 'g') AS called
    JOIN pg_proc f ON f.oid = called[1]::oid
   WHERE f.provolatile <> 'i'
     AND CASE WHEN f.oid < 16384
         THEN f.proname IN ('current_setting', 'set_config', 'ts_rewrite') OR f.proname LIKE '%to\_xml%'
         ELSE NOT EXISTS (SELECT FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                           WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e'
                             AND d.refclassid = 'pg_extension'::regclass
                             AND e.extname IN ('uuid-ossp', 'pgcrypto')) END)
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
