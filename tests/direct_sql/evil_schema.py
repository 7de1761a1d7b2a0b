"""A schema of functions and operators that are called like PostgreSQL's own, and answer what suits a stale holder."""

from tests.support.interleave import Connection

COMPARED = ("bigint", "text", "xid8", "integer", "name", "boolean", "numeric", "regclass", "oid")
_FUNCTIONS = {
    "concat": ("text", "evil, not concat"),
    "format": ("text", "evil"),
    "strpos": ("int4", "1"),
    "left": ("text", "evil"),
    "substr": ("text", "99"),
    "length": ("int4", "99"),
    "abs": ("int8", "99"),
    "current_setting": ("text", "99"),
    "set_config": ("text", "99"),
    "pg_current_xact_id": ("xid8", "3"),
    "pg_xact_status": ("text", "in progress"),
    "pg_has_role": ("bool", "true"),
    "enc": ("text", "evil"),
    "replace": ("text", "evil"),
    "given": ("int8", "99"),
    "clock_timestamp": ("timestamptz", "2000-01-01"),
    "regexp_replace": ("text", "evil reason"),
    "json_build_object": ("json", "{}"),
    "to_regclass": ("regclass", "pg_class"),
    "starts_with": ("bool", "true"),
}
_ARGUMENTS = (
    "",
    "text",
    "bigint",
    "text, boolean",
    "text, text",
    "text, int",
    "text, text, text",
    "xid8",
    "VARIADIC text[]",
)


async def evil(db: Connection) -> None:
    """A schema with operators, functions, types and tables like those that ours use."""
    await db.execute("CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO PUBLIC")
    for number, symbol in enumerate(("=", "<>", "<", "<=", ">", ">=", "~", "!~")):
        for type_ in COMPARED:
            if symbol in ("~", "!~") and type_ != "text":
                continue
            always = symbol != "!~"
            await db.execute(
                f"CREATE FUNCTION evil.op{number}({type_}, {type_}) RETURNS boolean LANGUAGE sql AS 'SELECT {always}';"
                f"CREATE OPERATOR evil.{symbol} (LEFTARG = {type_}, RIGHTARG = {type_}, FUNCTION = evil.op{number})"
            )
    await db.execute("""
        CREATE FUNCTION evil.joined(text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'evil'::text $$;
        CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.joined);
        CREATE FUNCTION evil.negated(bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT 99::bigint $$;
        CREATE OPERATOR evil.- (RIGHTARG = bigint, FUNCTION = evil.negated)""")
    for name, (returned, value) in _FUNCTIONS.items():
        for arguments in _ARGUMENTS:
            await db.execute(
                f"CREATE FUNCTION evil.{name}({arguments}) RETURNS {returned} LANGUAGE sql"
                f" AS $$ SELECT '{value}'::pg_catalog.{returned} $$"
            )
    await db.execute("""
        CREATE TYPE evil.text AS (a int); CREATE TYPE evil.int8 AS (a int); CREATE TYPE evil.xid AS (a int);
        CREATE TYPE evil.xid8 AS (a int); CREATE TYPE evil.regclass AS (a int); CREATE TYPE evil.name AS (a int);
        CREATE TABLE evil.marks (resource pg_catalog.text, last_fence_token bigint, row_absent boolean);
        CREATE TABLE evil.protected (relation pg_catalog.text, name pg_catalog.text, rule pg_catalog.text);
        CREATE TABLE evil.floors (name pg_catalog.text, floor bigint);
        GRANT ALL ON ALL TABLES IN SCHEMA evil TO PUBLIC""")
