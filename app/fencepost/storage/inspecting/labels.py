"""What `fencepost doctor` looks at of enums in keys: marks are kept under the labels' texts, and
`ALTER TYPE … RENAME VALUE` changes those of all rows at once. No trigger sees that.
"""

from typing import Final

from fencepost.storage.connections.connection import Connection
from fencepost.storage.inspecting.overview import Finding

# The n-th value of a name, which is `name/value,value`, as it is encoded there. No domain over an enum is in a key, and
# no enum in a scope.
_UNKNOWN: Final = """
WITH part AS (
  SELECT p.name AS tab, fencepost.enc(p.name) || '/' AS prefix, k.n::int, t.oid AS type
    FROM fencepost.protected p CROSS JOIN LATERAL unnest(p.key_columns) WITH ORDINALITY AS k(name, n)
    JOIN pg_attribute a ON a.attrelid = p.relation AND a.attname = k.name AND NOT a.attisdropped
    JOIN pg_type t ON t.oid = a.atttypid AND t.typtype = 'e'
   WHERE p.scope IS NULL
)
SELECT part.tab, part.type::regtype::text AS type, min(named.value) AS value, count(*) AS marks
  FROM part JOIN fencepost.marks k ON starts_with(k.resource, part.prefix)
 CROSS JOIN LATERAL split_part(substr(k.resource, length(part.prefix) + 1), ',', part.n) AS named(value)
 WHERE named.value NOT IN (SELECT fencepost.enc(e.enumlabel::text) FROM pg_enum e WHERE e.enumtypid = part.type)
 GROUP BY part.tab, part.type ORDER BY part.tab"""


async def examine_labels(connection: Connection) -> list[Finding]:
    """Look for marks under a label that its enum does not have. They do not count for the label's new name."""
    return [
        Finding(
            "error",
            row["tab"],
            f"{row['marks']} marks are kept under {row['value']!r}, which is no label of the enum {row['type']}: it was"
            " renamed, and what was deleted under it can be created again with an old token. Name the label as it was:"
            f" ALTER TYPE {row['type']} RENAME VALUE … TO '{row['value']}'",
        )
        for row in await connection.fetch(_UNKNOWN)
    ]
