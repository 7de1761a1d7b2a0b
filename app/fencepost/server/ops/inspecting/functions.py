"""What `fencepost doctor` looks at of the functions: whose they are, who may execute them, and whether those of a table
are what this version makes.
"""

from typing import Final

import asyncpg

from fencepost.server.ops.inspecting.overview import Finding
from fencepost.server.ops.protecting.functions import Functions
from fencepost.server.ops.protecting.scope import ScopeDdl
from fencepost.server.ops.protecting.scope_check import read_scope
from fencepost.server.ops.protecting.target import Target, read_target
from fencepost.server.ops.schema.owner import RELATIONS
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.tables import quote

FOR_ALL: Final = frozenset(
    {
        *("mark_behind_glass", "record_break_glass", "require_reach", "require_reach_of_row"),
        *("altered", "altered_marks", "leave_marks", "partitions_known", "require_no_default"),
        *("held_floor", "held_mark", "highest_below", "is_reset", "reset_mark", "force_release"),
        *("gateway_mark_without_row", "gateway_mark_record", "gateway_floor_of", "gateway_raise_mark"),
        *("gateway_meet_ceiling", "gateway_enter", "gateway_enter_each", "gateway_idem_begin"),
        *("gateway_idem_begin_each", "gateway_idem_record", "gateway_idem_record_each"),
    }
)
"""SECURITY DEFINER functions that the triggers of any role, operators, or callers of the gateway call in their own
name; each checks which role calls it, or logged in, or which table is being changed, or only raises."""
NOT_FOR_ALL: Final = frozenset({"current_timeline", "location", "issue_beyond", "prune", "raise_generation", "wake"})
"""Others that only some may execute."""
FOR_TRIGGERS_ONLY: Final = frozenset({"judge_delete", "judge_insert", "judge_scope", "meet_mark"})
"""SECURITY DEFINER functions that only triggers call: another role that may, can shut others out."""

_MOST: Final = 6
"""Names that one finding shows."""

_FUNCTIONS: Final = """
SELECT f.oid::regprocedure::text AS called, f.proname::text AS name, f.prosrc AS body, f.prosecdef AS definer,
       pg_get_userbyid(f.proowner)::text AS owner, f.proowner <> n.nspowner AS strays,
       pg_get_userbyid(n.nspowner)::text AS keeper, f.prorettype = 'trigger'::regtype AS of_trigger,
       coalesce(f.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false) AS pinned,
       EXISTS (SELECT FROM aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) g
                WHERE g.grantee = 0 AND g.privilege_type = 'EXECUTE') AS for_all,
       ARRAY(SELECT DISTINCT pg_get_userbyid(g.grantee)::text FROM aclexplode(f.proacl) g
              WHERE g.grantee NOT IN (0, f.proowner) AND g.privilege_type = 'EXECUTE' ORDER BY 1) AS given_to
  FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace WHERE n.nspname = 'fencepost' ORDER BY 1"""

_STRAYS: Final = """
SELECT c.relname::text AS name, pg_get_userbyid(c.relowner)::text AS owner, pg_get_userbyid(n.nspowner)::text AS keeper
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'fencepost' AND c.relname = ANY ($1::text[]) AND c.relowner <> n.nspowner ORDER BY 1"""

_KEEPER: Final = """
SELECT pg_get_userbyid(n.nspowner)::text AS keeper,
       (SELECT string_agg(p.name, ', ' ORDER BY p.name) FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
         WHERE pg_has_role(c.relowner, n.nspowner, 'MEMBER')) AS tables
  FROM pg_namespace n WHERE n.nspname = 'fencepost'"""

_PROTECTED: Final = """
SELECT p.relation::oid::int8 AS oid, p.name, p.functions FROM fencepost.protected p
  JOIN pg_class c ON c.oid = p.relation ORDER BY p.name"""


async def examine_functions(connection: Connection) -> list[Finding]:
    """Look at owners, privileges, and versions."""
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")  # names are shown in full
        functions = await connection.fetch(_FUNCTIONS)
        findings = _owners(functions, await connection.fetch(_STRAYS, list(RELATIONS))) or await _keeper(connection)
        findings += [*_privileges(functions), *_grantees(functions)]
        bodies = {function["name"]: function["body"] for function in functions}
        for table in await connection.fetch(_PROTECTED):
            made = await _expected_functions(connection, table["oid"], table["functions"])
            # What is gone altogether is reported with the table.
            old = [
                part
                for part, body in made.items()
                if (found := bodies.get(f"{table['functions']}_{part}")) is not None and found.strip() != body.strip()
            ]
            if old:
                findings.append(
                    Finding(
                        "warning",
                        table["name"],
                        f"its functions ({', '.join(old)}) were made by an older version, or changed by hand: run"
                        f" `fencepost protect {table['name']}` again",
                    )
                )
    return findings


def _owners(functions: list[asyncpg.Record], strays: list[asyncpg.Record]) -> list[Finding]:
    foreign = {f"{stray['name']} of {stray['owner']}": stray["keeper"] for stray in strays}
    foreign |= {f"{each['called']} of {each['owner']}": each["keeper"] for each in functions if each["strays"]}
    if not foreign:
        return []
    keeper = next(iter(foreign.values()))
    shown = [*list(foreign)[:_MOST], *(["…"] if len(foreign) > _MOST else [])]
    text = (
        f"the schema fencepost belongs to {keeper}, and not all that is in it ({', '.join(shown)}): `fencepost migrate"
        f" --owner {keeper}`, run as a superuser or a member of these roles, gives it to {keeper}"
    )
    return [Finding("error", "owner", text)]


async def _keeper(connection: Connection) -> list[Finding]:
    """Name who owns the marks, and which tables' owners could change them: no fault, but good to know."""
    row = await connection.fetchrow(_KEEPER)
    if row is None:
        return []
    text = f"the schema fencepost and all in it belongs to {row['keeper']}"
    if row["tables"]:
        text += f", as whom the owners of these tables may act too: {row['tables']} (`migrate --owner` parts them)"
    return [Finding("ok", "owner", text)]


def _privileges(functions: list[asyncpg.Record]) -> list[Finding]:
    """Name the functions that every role may execute and must not, and those that a search_path could lead astray."""
    open_to_all = [each["called"] for each in functions if each["for_all"] and _is_for_some(each)]
    findings = [
        Finding(
            "error",
            "privileges",
            f"everybody may execute {called}: REVOKE EXECUTE ON FUNCTION {called} FROM PUBLIC",
        )
        for called in open_to_all
    ]
    if unpinned := [each["called"] for each in functions if each["definer"] and not each["pinned"]]:
        text = f"functions run in their owner's name and under the caller's search_path: {', '.join(unpinned)}"
        findings.append(Finding("error", "privileges", text))
    return findings


def _grantees(functions: list[asyncpg.Record]) -> list[Finding]:
    """Name the roles that may execute what no role should, by default privileges maybe; and who may break the glass."""
    inner: dict[str, list[str]] = {}
    for function in functions:
        if function["definer"] and (function["name"] in FOR_TRIGGERS_ONLY or function["of_trigger"]):
            for role in function["given_to"]:
                inner.setdefault(role, []).append(function["called"])
    findings = [
        Finding(
            "error",
            "privileges",
            f"{role} may execute what only triggers should: REVOKE EXECUTE ON FUNCTION {', '.join(called)} FROM"
            f" {quote(role)}",
        )
        for role, called in sorted(inner.items())
    ]
    glass = [role for each in functions if each["name"] == "may_break_glass" for role in each["given_to"]]
    if glass:
        text = f"besides the schema's owner and superusers these may break the glass: {', '.join(glass)}"
        findings.append(Finding("ok", "break-glass", text))
    return findings


def _is_for_some(function: asyncpg.Record) -> bool:
    if function["of_trigger"]:
        # A table's own: hung on another table, they would write this one's marks. no_truncate and its like only raise.
        return bool(function["name"].endswith(("_upd", "_ins", "_insmark", "_del", "_scope")))
    return (function["definer"] and function["name"] not in FOR_ALL) or function["name"] in NOT_FOR_ALL


async def _expected_functions(connection: Connection, oid: int, stem: str) -> dict[str, str]:
    """Write what this version's `protect` would make, as the table stands; nothing when it has changed too much for
    that, which is reported with the table.
    """
    target: Target | None = await read_target(connection, oid)
    if target is None or target.registered is None or target.registered.name != target.name:
        return {}
    now = target.registered
    if now.scope is None:
        functions = Functions(target, now.rule, now.source, now.ceiling)
        return functions.bodies() if functions.stem == stem else {}
    scoped = await read_scope(connection, target, now.scope)
    if scoped is None:
        return {}
    ddl = ScopeDdl(target, scoped, now.rule, now.source, requires_key=now.requires_key)
    return ddl.bodies() if ddl.functions.stem == stem else {}
