"""All that PostgreSQL's catalog has of the schema fencepost, as lines of text that two databases can be compared by.

Run by hand: `python -m tests.support.catalog_dump URL` prints one database; `diff` shows what a change changed.
"""

import asyncio
import sys

import asyncpg
from tests.support.interleave import Connection

# The owner's name is written OWNER, and grants are sorted: both differ between databases that are alike.
_ACL = """
(SELECT coalesce(string_agg(concat(CASE g.grantee WHEN 0 THEN 'PUBLIC' WHEN {owner} THEN 'OWNER'
                                    ELSE pg_get_userbyid(g.grantee) END, ' ', g.privilege_type), ', '
                            ORDER BY g.grantee <> 0, pg_get_userbyid(g.grantee), g.privilege_type), 'none')
   FROM aclexplode(coalesce({acl}, acldefault({kind}, {owner}))) g)"""


def _acl(kind: str, acl: str, owner: str) -> str:
    return _ACL.format(kind=kind, acl=acl, owner=owner)


_RELATION = """CAST(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END AS "char")"""
_OWNER = "CASE WHEN {0} = n.nspowner THEN 'OWNER' ELSE pg_get_userbyid({0}) END"
_OURS = "n.nspname = 'fencepost'"
_NOTE = "coalesce(' -- ' || obj_description({oid}, '{catalog}'), '')"

# Each gives (what, text): `what` names the object and orders the dump.
_PARTS = {
    "schema": f"""
SELECT n.nspname,
       'acl ' || {_acl("'n'", "n.nspacl", "n.nspowner")} || {_NOTE.format(oid="n.oid", catalog="pg_namespace")}
  FROM pg_namespace n WHERE {_OURS}""",
    "relation": f"""
SELECT c.relname, concat_ws('; ', 'kind ' || c.relkind::text, 'owner ' || {_OWNER.format("c.relowner")},
         'options ' || c.reloptions::text, 'persistence ' || c.relpersistence::text,
         CASE WHEN c.relrowsecurity THEN 'row security' END,
         'acl ' || {_acl(_RELATION, "c.relacl", "c.relowner")}) || {_NOTE.format(oid="c.oid", catalog="pg_class")}
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS} AND c.relkind NOT IN ('i', 'c')""",
    "column": f"""
SELECT concat(c.relname, ' ', lpad(a.attnum::text, 2, '0')),
       concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
         'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), 'identity ' || nullif(a.attidentity::text, ''),
         'COLLATE ' || nullif(a.attcollation, 0)::regcollation::text, 'storage ' || a.attstorage::text,
         'acl ' || a.attacl::text)
         || coalesce(' -- ' || col_description(c.oid, a.attnum), '')
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE {_OURS} AND c.relkind NOT IN ('i', 'S') AND a.attnum > 0""",
    "constraint": f"""
SELECT concat(k.conrelid::regclass, ' ', k.conname), pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_namespace n ON n.oid = k.connamespace WHERE {_OURS}""",
    "index": f"""
SELECT c.relname, pg_get_indexdef(c.oid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS} AND c.relkind = 'i'""",
    "sequence": f"""
SELECT c.relname, concat_ws(' ', format_type(q.seqtypid, NULL), q.seqstart, q.seqincrement, q.seqmin, q.seqmax,
         q.seqcache, q.seqcycle, 'owned by ' || d.refobjid::regclass || '.' || d.refobjsubid)
  FROM pg_sequence q JOIN pg_class c ON c.oid = q.seqrelid JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.refobjsubid > 0 WHERE {_OURS}""",
    "view": f"""
SELECT c.relname, pg_get_viewdef(c.oid)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS} AND c.relkind IN ('v', 'm')""",
    "type": f"""
SELECT t.typname, concat_ws('; ', 'type ' || t.typtype::text, 'owner ' || {_OWNER.format("t.typowner")},
         'acl ' || {_acl("'T'", "t.typacl", "t.typowner")}) || {_NOTE.format(oid="t.oid", catalog="pg_type")}
  FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_class c ON c.oid = t.typrelid
 WHERE {_OURS} AND t.typelem = 0 AND (c.oid IS NULL OR c.relkind = 'c')""",
    "function": f"""
SELECT f.oid::regprocedure::text, concat_ws('; ', 'owner ' || {_OWNER.format("f.proowner")},
         'acl ' || {_acl("'f'", "f.proacl", "f.proowner")}) || {_NOTE.format(oid="f.oid", catalog="pg_proc")}
         || E'\\n' || pg_get_functiondef(f.oid)
  FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace WHERE {_OURS} AND f.prokind <> 'a'""",
    "trigger": f"""
SELECT concat(t.tgrelid::regclass, ' ', t.tgname), concat(pg_get_triggerdef(t.oid), ' ', t.tgenabled)
  FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE {_OURS} AND NOT t.tgisinternal""",
    "policy": f"""
SELECT concat(p.polrelid::regclass, ' ', p.polname), pg_get_expr(p.polqual, p.polrelid)
  FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {_OURS}""",
    "event trigger": f"""
SELECT e.evtname, concat_ws(' ', e.evtevent, e.evttags::text, f.oid::regprocedure, e.evtenabled)
  FROM pg_event_trigger e JOIN pg_proc f ON f.oid = e.evtfoid JOIN pg_namespace n ON n.oid = f.pronamespace
 WHERE {_OURS}""",
}

_FILLED = """
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'fencepost'::regnamespace AND c.relkind = 'r' ORDER BY 1"""


async def dump(connection: Connection) -> str:
    """Write the schema fencepost down: equal texts are equal schemas, but for OIDs and the order of their making."""
    lines = []
    async with connection.transaction(readonly=True):
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")  # names in full
        for part, query in _PARTS.items():
            rows = await connection.fetch(f'SELECT what, t FROM ({query}) AS x(what, t) ORDER BY what COLLATE "C"')
            lines += [f"{part} {row['what']}: {row['t']}" for row in rows]
        for (table,) in await connection.fetch(_FILLED):
            lines.append(f"rows {table}: {await connection.fetchval(f'SELECT count(*) FROM fencepost.{table}')}")
    return "\n".join(lines) + "\n"


async def _print(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        sys.stdout.write(await dump(connection))
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(_print(sys.argv[1]))
