"""What `fencepost doctor` reports of protected tables' partitions: whether they are followed, and what was missed."""

from typing import Final

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.ops.protecting import partitions
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection

_PARTITIONED: Final = """
SELECT p.name, p.scope IS NULL AS by_rows, n.nspname::text AS schema, c.relname::text AS relation,
       fencepost.partitions_unknown(c.oid)::text[] AS came,
       ARRAY(SELECT g.part::text FROM unnest(p.partitions) AS g(part)
              WHERE NOT g.part = ANY (fencepost.partitions_of(c.oid)) ORDER BY g.part::oid) AS went
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation AND c.relkind = 'p'
  JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY p.name"""


async def examine_partitions(connection: Connection) -> list[Finding]:
    """Look whether event triggers follow the partitions, where a protected table has any, and what they missed."""
    tables = await connection.fetch(_PARTITIONED)
    findings = []
    if tables and await partitions.lacks_event_triggers(connection):
        findings.append(Finding("warning", "partitions", partitions.MISSING))
    for table in tables:
        mend = f"run `fencepost protect {api_name(table['schema'], table['relation'])}`"
        if table["by_rows"] and table["came"]:
            text = (
                f"partitions were attached and not looked at ({', '.join(table['came'])}): their rows may be below the"
                f" marks of their keys: {mend}"
            )
            findings.append(Finding("warning", table["name"], text))
        if table["by_rows"] and table["went"]:
            text = (
                f"partitions were detached or dropped and not looked at ({', '.join(table['went'])}): the marks of"
                f" their rows are not known any more, and a stale holder can make these keys anew. Where no token up to"
                f" N is in use, `SELECT fencepost.prune('{table['name']}', N)` refuses all up to it; then {mend}"
            )
            findings.append(Finding("warning", table["name"], text))
    return findings
