"""What `protect` looks at before it touches a table, and its messages when something is in the way."""

from typing import Final

import asyncpg

from fencepost.server.ops.protecting.target import KEY_TYPES, Target, read_rows, to_target
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import MARK_COLUMN, quote


class ProtectError(Exception):
    """The table cannot be protected (or unprotected) as it is. `reasons` are sentences for its owner."""

    def __init__(self, table: str, reasons: list[str]) -> None:
        super().__init__(f"{table}: " + " ".join(reasons))
        self.table = table
        self.reasons = reasons


_FIND: Final = """
SELECT c.oid::int8 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'pg_toast'
   AND ($1 = n.nspname || '.' || c.relname OR n.nspname = 'public' AND $1 = c.relname)"""

_NAME_TAKEN: Final = """
SELECT p.relation::text FROM fencepost.protected p
 WHERE p.name = $1 AND p.relation <> $2::int8::oid AND EXISTS (SELECT FROM pg_class c WHERE c.oid = p.relation)"""


_FORMERLY: Final = """
SELECT o.name FROM fencepost.floors o
 WHERE o.relation = $1::int8::oid AND o.name <> $2
   AND NOT EXISTS (SELECT FROM fencepost.protected p WHERE p.name = o.name OR p.relation = o.relation)
 ORDER BY o.name"""


async def find(connection: Connection, name: str) -> int:
    """Find a table by the catalog's spelling, with or without schema; ProtectError when there is none, or two."""
    oids = await connection.fetch(_FIND, name)
    if not oids:
        raise ProtectError(
            name, ["there is no such table: names are spelled as in the catalog, schema.table or table."]
        )
    if len(oids) > 1:
        raise ProtectError(name, ["two tables have this name (one has a dot in its name): rename one of them."])
    oid: int = oids[0]["oid"]
    return oid


async def examine(connection: Connection, name: str, scope: str | None = None) -> Target:
    """Check everything first; ProtectError lists all that is in the way at once.

    `scope`: as in plan_protect. A table whose rows have no marks of their own may have keys that others may not.
    """
    oid = await find(connection, name)
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        row, key = await read_rows(connection, oid)
        if row is None:
            raise ProtectError(name, ["the table was dropped meanwhile."])
        api = api_name(row["schema"], row["relation"])
        taken = await connection.fetchval(_NAME_TAKEN, api, oid)
    reasons = _kind_reasons(row) or [*_table_reasons(row), *_key_reasons(key)]
    of_rows = not (row["registered_scope"] if scope is None else scope)
    if of_rows:
        reasons += _generated_reasons(key)
    if row["owned"] and row["ruled"] and (of_rows or row["column"] is not None):
        reasons.append(ruled_reason(row))
    if taken:
        reasons.append(
            f"the name {api} belongs to the protected table {taken}, renamed since: unprotect that one first."
        )
    if reasons:
        raise ProtectError(api, reasons)
    formerly = await connection.fetch(_FORMERLY, oid, api)
    return to_target(row, key, tuple(each["name"] for each in formerly))


def _kind_reasons(row: asyncpg.Record) -> list[str]:
    """Return why the relation is not a table that can have a fence at all."""
    if row["schema"] in ("pg_catalog", "information_schema", "fencepost"):
        return ["system tables cannot be protected."]
    if row["kind"] in ("v", "m"):
        return ["it is a view: protect the table below it; views are read only in Fencepost."]
    if row["kind"] == "f":
        return ["it is a foreign table: its rows live in another database, and that is where the fence belongs."]
    if row["is_partition"]:
        return ["it is a partition: protect its parent, the fence covers all partitions."]
    return []


def renamed_column_reason(schema: str, relation: str, called: str) -> str:
    """Return what to do about a column of marks that was renamed: its check stands on it still."""
    rename = f"ALTER TABLE {quote(schema)}.{quote(relation)} RENAME COLUMN {quote(called)} TO {MARK_COLUMN}"
    return f"its column {MARK_COLUMN}, which holds the marks of its rows, is called {called} now: {rename}."


def ruled_reason(row: asyncpg.Record) -> str:
    """Return what to do where policies rule the owner too. `row`: schema, relation, owner, me."""
    alter = f"ALTER TABLE {quote(row['schema'])}.{quote(row['relation'])}"
    return (
        f"row security rules {row['me']} there (FORCE ROW LEVEL SECURITY), and rows that a policy hides have marks,"
        f" too: run this as a role with BYPASSRLS that is a member of {row['owner']}; or {alter} NO FORCE ROW LEVEL"
        f" SECURITY, run this, and FORCE it again."
    )


def _table_reasons(row: asyncpg.Record) -> list[str]:
    reasons = []
    if row["persistence"] != "p":
        reasons.append("it is unlogged or temporary: a crash would empty it and leave its marks behind.")
    if row["inherits"]:
        reasons.append("it takes part in table inheritance, where a primary key covers one table only.")
    reasons += _role_reasons(row)
    if not row["has_key"]:
        reasons.append("it has no primary key, and the key is what a fence is named after.")
    elif not row["immediate"]:
        reasons.append("its primary key is DEFERRABLE: two rows may share a key inside a transaction.")
    column = row["column"]
    if column is None and row["mark_called"]:
        reasons.append(renamed_column_reason(row["schema"], row["relation"], row["mark_called"]))
    reasons += _new_column_reasons(row)
    ours = row["has_check"] or row["registered_name"]
    if column is not None and not (column == "bigint NOT NULL" and ours):
        reasons.append(f"it has a column {MARK_COLUMN} ({column}) that Fencepost did not make: rename it.")
    return reasons


def _role_reasons(row: asyncpg.Record) -> list[str]:
    """Return what keeps this role from changing the table and the schema fencepost."""
    reasons = []
    if not row["owned"]:
        reasons.append(
            f"it belongs to {row['owner']}; {row['me']} is not a member of that role, and only an owner may."
        )
    if not row["may_create"]:
        reasons.append(
            f"the schema fencepost belongs to {row['keeper']}, and {row['me']} may not act as that role: run this as a"
            " member of it."
        )
    elif row["functions_of"]:
        reasons.append(
            f"its functions belong to {row['functions_of']}: `fencepost migrate --owner {row['keeper']}`, run as a"
            " superuser or a member of both roles, gives them to the schema's owner."
        )
    return reasons


def _new_column_reasons(row: asyncpg.Record) -> list[str]:
    """Report that a guarded table's column of marks is not the one of the last `protect`: the check stands on the old
    one, or went with it, and so did the trigger whose condition names it.
    """
    if row["column"] is None or not row["registered_name"] or row["registered_scope"]:
        return []
    drop = f"ALTER TABLE {quote(row['schema'])}.{quote(row['relation'])} DROP COLUMN {MARK_COLUMN} CASCADE"
    if row["mark_called"]:
        return [
            f"its column {MARK_COLUMN} is a new one: {drop}. "
            + renamed_column_reason(row["schema"], row["relation"], row["mark_called"])
        ]
    if not row["has_check"] and row["no_ins"]:
        return [
            f"its column {MARK_COLUMN} was dropped and made anew, and the marks of its rows are lost: {drop}, and run"
            " this again; for an external source with --above N."
        ]
    return []


def _generated_reasons(key: list[asyncpg.Record]) -> list[str]:
    """PostgreSQL computes such a column after the BEFORE triggers, where a row's mark is judged under its key."""
    return [
        f"its key column {column['name']} is generated from other columns, and not known when a row is judged: rows"
        " could be inserted and deleted, and never changed or claimed. Make it an ordinary column that a trigger or a"
        " CHECK keeps right, or give the table a scope (--scope), whose mark is not named after the key."
        for column in key
        if column["generated"]
    ]


def _key_reasons(key: list[asyncpg.Record]) -> list[str]:
    reasons = []
    for column in key:
        if not (column["is_enum"] or (column["builtin"] and column["base_name"] in KEY_TYPES)):
            reasons.append(
                f"its key column {column['name']} is of type {column['type']}, whose equal values have several texts; "
                f"a key can be of {', '.join(KEY_TYPES)}, a domain over one of these, or an enum."
            )
        elif column["is_enum"] and column["is_domain"]:
            reasons.append(
                f"its key column {column['name']} is of type {column['type']}, a domain over an enum, for which "
                "PostgreSQL has no operator =; use the enum itself."
            )
        elif column["is_enum"] and column["base_name"] in KEY_TYPES:
            reasons.append(
                f"its key column {column['name']} is of an enum that is called {column['base_name']}, like one of"
                " PostgreSQL's own types: rename it."
            )
        elif not column["deterministic"]:
            reasons.append(
                f"its key column {column['name']} has a nondeterministic collation: equal keys would have two marks."
            )
    return reasons
