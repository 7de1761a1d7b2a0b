"""What `fencepost doctor` looks at of protected tables' triggers: that each is there, fires, and calls what it should,
on the table and on each of its partitions, of which every one has copies of its own.
"""

from typing import Final

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.ops.protecting.table import PREFIX
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection

# Trigger, the function it calls, when it fires (pg_trigger.tgtype: 1 ROW, 2 BEFORE, 4 INSERT, 8 DELETE, 16 UPDATE), and
# whether it has a condition.
_ROWS: Final = (("upd", "upd", 19, False), ("ins", "ins", 7, True), ("insmark", "insmark", 5, False),
                ("del", "del", 9, False))  # fmt: skip
_SCOPED: Final = (("scope", "scope", 31, False), ("scope_ins", "scope", 5, False), ("scope_upd", "scope", 17, True))
_TRUNCATE: Final = 34
"""STATEMENT BEFORE TRUNCATE"""

_GAPS: Final = """
WITH wanted(scoped, trigger, function, kind, conditional) AS (
  SELECT * FROM unnest($1::bool[], $2::text[], $3::text[], $4::int[], $5::bool[])
), part AS (
  SELECT p.relation::oid AS root, p.relation::oid AS oid FROM fencepost.protected p
  UNION SELECT p.relation, t.relid FROM fencepost.protected p CROSS JOIN pg_partition_tree(p.relation) t
), gap AS (
  SELECT p.relation::oid AS root, part.oid, w.trigger FROM fencepost.protected p JOIN part ON part.root = p.relation
    JOIN wanted w ON w.scoped = (p.scope IS NOT NULL)
   WHERE NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid
                      WHERE t.tgrelid = part.oid AND t.tgname = $6 || w.trigger AND t.tgenabled IN ('O', 'A')
                        AND f.pronamespace = 'fencepost'::regnamespace AND f.proname = p.functions || '_' || w.function
                        AND t.tgtype = w.kind AND (t.tgqual IS NOT NULL) = w.conditional AND t.tgattr = '')
     -- A trigger of the table itself that is missing or disabled is reported with the rest of the table.
     AND (part.oid <> p.relation OR EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = part.oid
                                               AND t.tgname = $6 || w.trigger AND t.tgenabled IN ('O', 'A')))
  UNION ALL
  SELECT part.root, part.oid, 'trunc' FROM part
   WHERE EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = part.oid AND t.tgname = $6 || 'trunc'
                    AND t.tgenabled IN ('O', 'A')
                    AND (t.tgfoid <> 'fencepost.no_truncate()'::regprocedure OR t.tgtype <> $7
                         OR t.tgqual IS NOT NULL))
)
SELECT p.name, n.nspname::text AS schema, c.relname::text AS relation, g.oid <> g.root AS of_partition,
       g.oid::regclass::text AS shown, array_agg($6 || g.trigger ORDER BY g.trigger) AS triggers
  FROM gap g JOIN fencepost.protected p ON p.relation = g.root JOIN pg_class c ON c.oid = g.root
  JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_class of ON of.oid = g.oid
 GROUP BY p.name, n.nspname, c.relname, g.oid, g.root ORDER BY p.name, g.oid <> g.root, shown"""


async def examine_triggers(connection: Connection) -> list[Finding]:
    """Look for triggers that were replaced, and for partitions where one is missing or does not fire."""
    wanted = [(scoped, *each) for scoped, triggers in ((False, _ROWS), (True, _SCOPED)) for each in triggers]
    rows = await connection.fetch(_GAPS, *(list(column) for column in zip(*wanted, strict=True)), PREFIX, _TRUNCATE)
    findings = []
    for row in rows:
        what = (
            f"on its partition {row['shown']} triggers are missing, disabled or not the fence's"
            if row["of_partition"]
            else "triggers have the fence's names and are others"
        )
        mend = f"run `fencepost protect {api_name(row['schema'], row['relation'])}`"
        findings.append(Finding("error", row["name"], f"{what} ({', '.join(row['triggers'])}): {mend}"))
    return findings
