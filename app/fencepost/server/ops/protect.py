"""Protect and unprotect a table: check everything, then change everything in one short transaction.

Adding the column changes the catalog only (a constant default is not written into old rows), so the table's strongest
lock is held for milliseconds. It is asked for with a short lock_timeout, again and again: a lock request that waits
would make every later reader of the table wait behind it.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack

import asyncpg

from fencepost.server.fence.resource import parse_scope
from fencepost.server.fence.token import BUILTIN, EXTERNAL, MAX_TOKEN, Ceiling, Rule
from fencepost.server.ops.checks import (
    ProtectError,
    Target,
    examine,
    examine_name,
    examine_scope,
    find,
    read_template,
    ruled_reason,
)
from fencepost.server.ops.ddl import (
    MISMATCH,
    TOO_HIGH,
    RowDdl,
    ScopeDdl,
    leave_for,
    raise_rows_sql,
    register_sql,
    require_marks,
    restore_sql,
    unprotect_scope_sql,
    unprotect_sql,
)
from fencepost.server.postgres import sources, upkeep
from fencepost.server.postgres.catalog_cache import api_name
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.queues import is_queue

LOCK_TIMEOUT_MS: Final = 500
"""Half of PostgreSQL's deadlock_timeout (1 s by default). A grant that has drawn a token and waits for the table, while
`protect` has the table and waits for the sequence of tokens, is a deadlock: `protect` gives way before PostgreSQL looks
for it and perhaps ends the grant."""
PAUSE: Final = 0.5
"""Seconds between two tries for the table's lock, in which its other users get through."""

_STANDING: Final = """
SELECT p.name, p.functions, p.scope,
       NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
                      AND a.attname = 'last_fence_token' AND a.atttypid <> 'bigint'::regtype)
         AND EXISTS (SELECT FROM pg_proc o WHERE o.pronamespace = f.oid AND o.proname = p.functions || '_name')
         AS readable,
       format('%I.%I', n.nspname, c.relname) AS sql_name, n.nspname::text AS schema,
       c.relname::text AS relation,
       pg_has_role(c.relowner, 'USAGE') AS owned, pg_get_userbyid(c.relowner)::text AS owner,
       current_user::text AS me, row_security_active(c.oid) AS ruled, pg_get_userbyid(f.nspowner)::text AS keeper,
       has_table_privilege('fencepost.protected', 'DELETE') AND NOT EXISTS (
         SELECT FROM pg_proc o WHERE o.pronamespace = f.oid AND starts_with(o.proname, p.functions || '_')
            AND NOT pg_has_role(o.proowner, 'USAGE')) AS may_drop,
       (SELECT array_agg(format('%I.%I', pn.nspname, pc.relname)) FROM pg_partition_tree(c.oid) pt
          JOIN pg_class pc ON pc.oid = pt.relid
          JOIN pg_namespace pn ON pn.oid = pc.relnamespace) AS partitions
  FROM fencepost.protected p JOIN pg_class c ON c.oid = p.relation
  JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_namespace f ON f.nspname = 'fencepost'
 WHERE p.relation = $1::int8::oid"""
"""How a table is protected, whether its marks can be read, and who may undo it."""


@dataclass(frozen=True, slots=True)
class ProtectPlan:
    """What will run: `statements` in one transaction, then `afterwards` by itself."""

    name: str
    statements: list[str]
    afterwards: list[str]

    def script(self) -> str:
        lines = [
            "BEGIN;",
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;",
            "SET LOCAL search_path = pg_catalog, pg_temp;",
            *(f"{s};" for s in self.statements),
            "COMMIT;",
        ]
        return "\n".join([*lines, *(f"{s};" for s in self.afterwards)]) + "\n"


class ProtectOptions(TypedDict, total=False):
    """What can be asked for of a table's protection (plan_protect)."""

    rule: Rule | None
    source: str | None
    requires_key: bool | None
    scope: str | None
    verify: bool | None
    above: int | None
    max_token: int | None
    max_jump: int | None
    queue: str | None
    sealed: bool | None


async def plan_protect(  # noqa: PLR0913, PLR0917 - the parts of a table's protection
    connection: Connection,
    table: str,
    rule: Rule | None = None,
    source: str | None = None,
    requires_key: bool | None = None,
    scope: str | None = None,
    verify: bool | None = None,
    above: int | None = None,
    max_token: int | None = None,
    max_jump: int | None = None,
    queue: str | None = None,
    sealed: bool | None = None,
) -> ProtectPlan:
    """Check the table and write the DDL. None keeps what is, or takes strict, external, no key required and no scope.

    `scope` is a template (R8), or empty: each row has a mark of its own. `above`: where the marks of an external source
    are lost, a token up to which none may write. `max_token`, `max_jump`: see Ceiling; a max_jump of 0 is none.
    `queue`: the queue that the table takes all its writes by. `sealed`: the gateway takes sealed tokens only.
    """
    target = await examine(connection, table, scope)
    await examine_name(connection, target)
    require_marks(target, above)
    now = target.registered
    rule = rule or (now.rule if now else "strict")
    given = {"--verify": verify or None, "--above": above, "--max-token": max_token, "--max-jump": max_jump}
    source = choose_source(target, source, queue, scope, [name for name, value in given.items() if value is not None])
    verifies = verify if verify is not None else now is not None and now.verify and now.source == source
    await require_source(connection, target, source, verify=verifies)
    how: _How = {
        "rule": rule,
        "source": source,
        "requires_key": requires_key if requires_key is not None else now is not None and now.requires_key,
        "verify": verifies,
        "ceiling": choose_ceiling(target, source, max_token, max_jump, above),
        "sealed": choose_seal(target, source, sealed),
    }
    if template := scope if scope is not None else now.scope if now else None:
        return await _plan_scope(connection, target, template, how, above)
    return _plan_rows(target, how, above)


class _How(TypedDict):
    """How a table is protected from now on."""

    rule: Rule
    source: str
    requires_key: bool
    verify: bool
    ceiling: Ceiling | None
    sealed: bool


async def _plan_scope(
    connection: Connection, target: Target, template: str, how: _How, above: int | None
) -> ProtectPlan:
    read, sealed = read_template(target.name, template), how["sealed"]
    scoped = await examine_scope(connection, target, read, how["rule"], how["source"], how["ceiling"], sealed=sealed)
    ddl = ScopeDdl(target, scoped, **how)
    return ProtectPlan(target.name, ddl.protect(restore_sql(ddl.table, target.name, above)), [])


def _plan_rows(target: Target, how: _How, above: int | None) -> ProtectPlan:
    ddl = RowDdl(target, **how)
    statements = [
        *register_sql(how["source"]),
        *ddl.begin(),
        restore_sql(ddl.table, target.name, above),
        *leave_for(target, None, ddl.ceiling),
        *raise_rows_sql(target, ddl.ceiling),
        *ddl.protect(),
    ]
    return ProtectPlan(target.name, statements, [ddl.validate()])


_QUEUE: Final = re.compile(r"postgres:default|(?:kafka|redis):[A-Za-z0-9._-]{1,48}")


def choose_source(target: Target, source: str | None, queue: str | None, scope: str | None, others: list[str]) -> str:
    """Find the table's source (R12): what was given, what is there, or external. Raises ProtectError.

    `scope`: as in plan_protect. `others`: the options that are given and that a queue's table cannot have.
    """
    now = target.registered
    if source is not None and is_queue(source):
        raise ProtectError(target.name, [f"--source {source}: a queue orders writes and is no lock: --queue {source}."])
    if queue is None:
        chosen = source or (now.source if now else EXTERNAL)
        if is_queue(chosen) and scope:
            raise ProtectError(target.name, [_NO_SCOPE])
        return chosen
    if source is not None:
        others = ["--source", *others]
    if scope:
        others = ["--scope", *others]
    if others:
        raise ProtectError(
            target.name, [f"--queue and {', '.join(others)} exclude each other: its tokens are the queue's positions."]
        )
    if not _QUEUE.fullmatch(queue):
        raise ProtectError(target.name, [f"--queue {queue}: a queue is postgres:default, kafka:TOPIC or redis:STREAM."])
    if scope is None and now is not None and now.scope is not None:
        raise ProtectError(target.name, [_NO_SCOPE, "--no-scope gives each row a mark of its own again."])
    return queue


def choose_seal(target: Target, source: str, sealed: bool | None) -> bool:
    """Find whether the table wants sealed tokens: what was given, or what is there. Raises ProtectError where the
    tokens are a queue's positions, which no client presents.
    """
    now = target.registered
    chosen = sealed if sealed is not None else now is not None and now.sealed
    if chosen and is_queue(source):
        raise ProtectError(
            target.name,
            [
                f"--sealed and {source} exclude each other: the tokens are the queue's positions, and no client"
                " presents any. --no-sealed takes a seal away."
            ],
        )
    return chosen


_NO_SCOPE: Final = "a queue orders the writes of one row, and not those of a scope: their positions cannot be compared."


async def require_source(connection: Connection, target: Target, source: str, *, verify: bool) -> None:
    """Refuse a source that is not known, and --verify where there is nothing to ask. Raises ProtectError."""
    if is_queue(source):  # it becomes known with the table
        if verify:
            raise ProtectError(target.name, [f"--verify: {source} is a queue, and gives no tokens to others."])
        return
    services = {each.name: each for each in await sources.list_known(connection)}
    known = [BUILTIN, EXTERNAL, *(name for name in services if not is_queue(name))]
    if source not in known:
        raise ProtectError(
            target.name,
            [
                f"there is no source {source}; known are {', '.join(known)}.",
                "A gateway that has it in FENCEPOST_SOURCES makes it known, or `fencepost source add NAME=URL`.",
            ],
        )
    if verify and source in services and not services[source].verifies:
        raise ProtectError(
            target.name, [f"--verify: {services[source].kind} does not know which numbers it has issued."]
        )
    if verify and source in (BUILTIN, EXTERNAL):
        raise ProtectError(target.name, [f"--verify asks a lock service, and the source {source} is none."])


def choose_ceiling(
    target: Target, source: str, max_token: int | None, max_jump: int | None, above: int | None
) -> Ceiling | None:
    """Find the table's ceiling: what was given, what is there, or the default. Raises ProtectError where a source knows
    what it has issued, or `above` is above the ceiling.
    """
    if source != EXTERNAL:
        if max_token is not None or max_jump is not None:
            raise ProtectError(
                target.name,
                [
                    f"--max-token and --max-jump are for the source external: {source} knows which tokens it has"
                    " issued, and all others are refused."
                ],
            )
        return None
    if not (max_token is None or 1 <= max_token <= MAX_TOKEN) or not (max_jump is None or 0 <= max_jump <= MAX_TOKEN):
        raise ProtectError(
            target.name, [f"--max-token is a token, 1 to {MAX_TOKEN}, and --max-jump a distance of 0 (any) or more."]
        )
    now = target.registered.ceiling if target.registered is not None else None
    now = now or Ceiling()
    ceiling = Ceiling(
        now.max_token if max_token is None else max_token, now.max_jump if max_jump is None else max_jump or None
    )
    if above is not None and above > ceiling.max_token:
        raise ProtectError(
            target.name, [f"--above {above} is above {ceiling.max_token}, the highest token that the table takes."]
        )
    return ceiling


async def plan_unprotect(connection: Connection, table: str) -> ProtectPlan:
    """Write what undoes `protect`; ProtectError when the table is not protected."""
    oid = await find(connection, table)
    row = await connection.fetchrow(_STANDING, oid)
    if row is None:
        raise ProtectError(table, ["it is not protected."])
    if not (row["owned"] and row["may_drop"]):
        raise ProtectError(
            row["name"],
            [
                f"it belongs to {row['owner']} and the schema fencepost to {row['keeper']}; {row['me']} may not act as"
                " both: run this as a member of both roles."
            ],
        )
    if row["ruled"] and row["scope"] is None:
        raise ProtectError(row["name"], [ruled_reason(row)])
    partitions = tuple(row["partitions"] or ())
    called = api_name(row["schema"], row["relation"])
    if row["scope"] is not None:
        scope = parse_scope(row["scope"])
        statements = unprotect_scope_sql(row["sql_name"], row["name"], called, row["functions"], scope, partitions)
        return ProtectPlan(row["name"], statements, [])
    statements = unprotect_sql(
        row["sql_name"], row["name"], called, row["functions"], partitions, keep_marks=row["readable"]
    )
    return ProtectPlan(
        row["name"],
        [f"LOCK TABLE {row['sql_name']} IN ACCESS EXCLUSIVE MODE", restore_sql(row["sql_name"], called), *statements],
        [],
    )


async def apply(connection: Connection, plan: ProtectPlan, *, wait: float = 30.0) -> None:
    """Run a plan; ProtectError when the table's lock cannot be had within `wait` seconds, or a mark is too high.

    READ COMMITTED: what is read once the table is locked must not be older than the lock.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    while True:
        try:
            async with connection.transaction(isolation="read_committed"):
                await connection.execute(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}")
                await connection.execute("SET LOCAL search_path = pg_catalog, pg_temp")
                for statement in plan.statements:
                    await connection.execute(statement)
            break
        # A deadlock: with a session that has drawn a token and wants the table, while this has the table and wants to
        # move the tokens.
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if loop.time() > deadline:
                message = (
                    f"another transaction has held a lock on it, or on the sequence of tokens, for {wait:g} s (see"
                    f" {upkeep.WHERE_TO_LOOK}); nothing was changed."
                )
                blockers = upkeep.describe_holders(await upkeep.lock_holders(connection))
                raise ProtectError(plan.name, [message, *([blockers] if blockers else [])]) from error
            await asyncio.sleep(PAUSE)
        except asyncpg.PostgresError as error:
            if error.sqlstate not in (TOO_HIGH, MISMATCH):
                raise
            raise ProtectError(plan.name, [each for each in (error.message, error.hint) if each]) from error
    for statement in plan.afterwards:
        await connection.execute(statement)


async def protect(connection: Connection, table: str, *, wait: float = 30.0, **asked: Unpack[ProtectOptions]) -> str:
    """Protect a table, or change how it is protected; returns the name of its resources. Can be repeated."""
    plan = await plan_protect(connection, table, **asked)
    await apply(connection, plan, wait=wait)
    return plan.name


async def unprotect(connection: Connection, table: str, *, wait: float = 30.0) -> str:
    """Take a table's protection away; its column and marks stay for a later `protect`."""
    plan = await plan_unprotect(connection, table)
    await apply(connection, plan, wait=wait)
    return plan.name
