"""SQL for what else a write to a table (pg_class c) may do, or be kept from: triggers, rules, functions, keys."""

from typing import Final

# The first two bits of tgtype are ROW and BEFORE, the fifth is UPDATE. A partition may have triggers of its own.
SUPPRESSES: Final = """
c.relhasrules AND c.relkind IN ('r', 'p') OR EXISTS (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL SELECT i.inhrelid FROM part JOIN pg_inherits i ON i.inhparent = part.oid)
  SELECT FROM part JOIN pg_trigger t ON t.tgrelid = part.oid
   WHERE NOT t.tgisinternal AND t.tgtype & 19 = 19 AND t.tgenabled <> 'D'
     AND NOT starts_with(t.tgname, 'zzz_fencepost_'))
"""

# Row security runs policies; it also hides rows, which a batch would take for skipped ones. ON CONFLICT DO NOTHING
# takes no deferrable constraint, and keeps what a function in a DEFAULT has written; those in C write nothing.
SHARES: Final = """
NOT c.relrowsecurity AND NOT c.relhasrules AND c.relkind IN ('r', 'p')
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

# CASCADE, SET NULL, SET DEFAULT
REACHES: Final = """
EXISTS (SELECT FROM pg_constraint k WHERE k.confrelid = c.oid AND k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd'))
"""
CHANGES: Final = """
(SELECT array_agg(DISTINCT a.attname::text) FROM pg_constraint k
   JOIN pg_attribute a ON a.attrelid = k.confrelid AND a.attnum = ANY(k.confkey)
  WHERE k.confrelid = c.oid AND k.contype = 'f' AND k.confupdtype IN ('c', 'n', 'd'))
"""
