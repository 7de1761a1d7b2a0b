"""`fencepost fence reset`: an operator lowers a mark that a made-up token left, and that refuses every holder since.

A mark that falls lets tokens pass that were refused before, so where it may fall to is not free:

- of the built-in source or a named one: to what the source has issued by now. No token that is outstanding is above it.
- of an external source: to a number that the operator gives, the newest token that the lock service has given out. At
  least the next lower mark of the table (or the scope's prefix) and its floor: a token that was accepted for another of
  its resources does not pass here. Marks that are as high or higher do not count: they may be of the same making.

Terms and order, in one transaction: the glass is broken, with the reason; the row is locked, then its mark, as by
everybody, so a write under way is waited for, and later ones meet the new mark; the fall is recorded, with the old and
the new mark; it happens. The row's own trigger lets it pass because of the record (`fencepost.is_reset`).

`fencepost.reset_mark`, which records and lowers, refuses the same by itself, but for the marks in the table's rows:
only this module compares those. So a role that may break the glass gets past no other mark and no floor by calling it.
"""

from dataclasses import dataclass
from typing import Final

import asyncpg

from fencepost.server.fence.resource import MalformedResourceError, Resource, decode_segment, parse_resource
from fencepost.server.fence.token import EXTERNAL
from fencepost.server.postgres.connections.connection import Connection
from fencepost.server.postgres.statements.asking import exists
from fencepost.server.postgres.statements.parameters import OF_KEY, Bound, Key, compiled
from fencepost.server.postgres.statements.row_sql import MARK, issued_by, key_match, parameter_resource
from fencepost.server.postgres.statements.scope_names import scopes_typed
from fencepost.server.postgres.tables.catalog import EVERYTHING, MARK_COLUMN, Catalog, Fence, Table
from fencepost.server.postgres.tables.load import load

LOCK_TIMEOUT: Final = "30s"
"""How long a reset waits for writes that are under way."""
_ROUNDS: Final = 10
_SETTINGS: Final = """
SELECT pg_catalog.set_config('fencepost.break_glass', $1, true), pg_catalog.set_config('lock_timeout', $2, true),
       pg_catalog.set_config('synchronous_commit', 'on', true), pg_catalog.set_config('row_security', 'off', true)"""
"""A policy that hides rows must fail, and not hide their marks."""


class ResetError(Exception):
    """The mark is not lowered; the message gives the reason and what to do."""


class _Appeared(Exception):  # noqa: N818 - it is not an error; it rolls a transaction back
    """The key has a row after all."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What was lowered. `resource` is the name of a row, a scope or a floor."""

    resource: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class _Marked:
    """What has a mark. `name`: the table, or the scope's prefix. `table`: where rows have marks of their own."""

    name: str
    resource: str
    fence: Fence | None
    table: Table | None = None
    key: Key | None = None
    """Of a row or a key without one; None: it is a scope, or a floor."""

    @property
    def is_floor(self) -> bool:
        return self.resource == self.name


async def reset(connection: Connection, resource: str, to: int | None, reason: str) -> Reset:
    """Lower the mark of a row, of a key without a row, or of a scope; or, by the name of a table or scope, its floor.

    `to`: the new mark; None where the table's source gives it. Raises ResetError, and asyncpg.PostgresError: 42501 for
    a role that may not break the glass, FP400 for a reason that is none, 55P03 when writes under way do not end in
    time.
    """
    catalog = await load(connection, EVERYTHING, 0)
    for _ in range(_ROUNDS):
        try:
            async with connection.transaction(isolation="read_committed"):
                await connection.execute(_SETTINGS, reason, LOCK_TIMEOUT)
                return await _lower(connection, await _find(connection, catalog, resource), to)
        except _Appeared:
            continue
    raise ResetError(f"{resource}: the row comes and goes faster than it can be met; nothing was changed.")


async def _find(connection: Connection, catalog: Catalog, text: str) -> _Marked:
    """Read a resource's name as it was typed, and give it the name that PostgreSQL renders."""
    if "/" not in text:
        return await _floor(connection, catalog, text)
    try:
        named = parse_resource(text)
    except MalformedResourceError as error:
        raise ResetError(f"{error}") from error
    scoped = catalog.scopes.get(named.table)
    if scoped:
        return await _scope(connection, scoped[0], named)
    table = catalog.find(named.table)
    if table is None:
        raise ResetError(f"{text}: there is no table or scope {named.table}.")
    fence = _intact(table)
    if fence.scope is not None:
        raise ResetError(
            f"{text}: {table.name} has the scope {fence.scope.template}, whose mark it is: name the scope."
        )
    if len(named.key) != len(table.key):
        raise ResetError(
            f"{text}: the key of {table.name} has {len(table.key)} value(s), {','.join(table.key)}, not"
            f" {len(named.key)}."
        )
    try:
        async with connection.transaction():
            text = f"SELECT {parameter_resource(table, fence.name)}"
            name: str = await compiled(text, OF_KEY).value(connection, named.key)
    except asyncpg.DataError as error:
        raise ResetError(f"{text}: {error}.") from error
    return _Marked(fence.name, name, fence, table, named.key)


async def _scope(connection: Connection, table: Table, named: Resource) -> _Marked:
    fence = _intact(table)
    scope = fence.scope
    if scope is None or len(named.key) != len(scope.columns):
        raise ResetError(f"{named.table}: a scope of {table.name} is named like {scope.template if scope else '?'}.")
    try:
        async with connection.transaction():
            names = await scopes_typed(connection, table, scope, [named.key])
    except asyncpg.DataError as error:
        raise ResetError(f"{named.table}/{','.join(named.key)}: {error}.") from error
    return _Marked(scope.prefix, names[0], fence)


async def _floor(connection: Connection, catalog: Catalog, text: str) -> _Marked:
    try:
        name = decode_segment(text.encode())
    except (MalformedResourceError, UnicodeEncodeError) as error:
        raise ResetError(f"{error}") from error
    scoped = catalog.scopes.get(name)
    table = catalog.find(name)
    fence = _intact(scoped[0]) if scoped else table.fence if table is not None else None
    if await connection.fetchval("SELECT fencepost.held_floor($1)", name) is None:
        raise ResetError(
            f"{text}: there is no floor of this name. A row is named TABLE/KEY, a scope PREFIX/VALUES; `fencepost"
            " status` lists the floors."
        )
    rows = table if table is not None and fence is not None and fence.scope is None else None
    return _Marked(name, name, fence, rows)


def _intact(table: Table) -> Fence:
    if table.fence is None:
        raise ResetError(
            f"{table.name} is not protected: its marks refuse no write. `fencepost protect {table.name} --max-token"
            f" {2**63 - 1}` first, if they are to be lowered before it is protected again."
        )
    if not table.fence.intact:
        raise ResetError(f"{table.name}: its protection is broken; `fencepost doctor` says how. Mend that first.")
    return table.fence


async def _lower(connection: Connection, marked: _Marked, to: int | None) -> Reset:
    """Lock, decide, record, lower: see above."""
    table, key = marked.table, marked.key
    if table is not None and await connection.fetchval("SELECT pg_catalog.row_security_active($1)", table.sql_name):
        raise ResetError(
            f"{marked.resource}: row security rules this role in {table.name}, so that it may not see each mark: run"
            f" this as a role with BYPASSRLS; or ALTER TABLE {table.sql_name} NO FORCE ROW LEVEL SECURITY, run this as"
            " its owner, and FORCE it again."
        )
    live = None
    if table is not None and key is not None:
        lock = f"SELECT r.{MARK} FROM {table.sql_name} AS r WHERE {key_match(table)} FOR NO KEY UPDATE OF r"
        live = await compiled(lock, OF_KEY).value(connection, key)
    old: int | None = await connection.fetchval(
        "SELECT fencepost.held_floor($1)" if marked.is_floor else "SELECT fencepost.held_mark($1, $2)",
        *((marked.resource,) if marked.is_floor else (marked.resource, live)),
    )
    if table is not None and key is not None and live is None and await exists(connection, table, key):
        raise _Appeared
    if not old:
        raise ResetError(f"{marked.resource} has no mark: there is nothing to mend.")
    wanted = await _lowest(connection, marked, old, to)
    new: int = await connection.fetchval(
        "SELECT fencepost.reset_mark($1, $2, $3, $4)", marked.name, marked.resource, old, wanted
    )
    if table is not None and key is not None and live is not None:
        await connection.execute("SET LOCAL row_security TO DEFAULT")  # the table's own triggers may fire
        bound = Bound()
        changed = await compiled(
            f"UPDATE {table.sql_name} AS r SET {MARK} = {bound.add(new, 'bigint')} WHERE {key_match(table)}"
            f" RETURNING r.{MARK}",
            (*OF_KEY, *bound.parameters),
        ).fetch(connection, key)
        if [row[MARK_COLUMN] for row in changed] != [new]:
            raise ResetError(f"{marked.resource}: a trigger or rule of {table.name} keeps its mark from being written.")
    return Reset(marked.resource, old, new)


async def _lowest(connection: Connection, marked: _Marked, old: int, to: int | None) -> int:
    """Decide on the new mark, or refuse with what to do. `fencepost.reset_mark` has the last word: it refuses what is
    below other marks, and takes what the source has issued by then.
    """
    fence = marked.fence
    if fence is not None and fence.source != EXTERNAL:
        issued: int = await connection.fetchval(f"SELECT {issued_by(fence.source)}")
        if to is not None and to != issued:
            raise ResetError(
                f"{marked.resource}: the source {fence.source} has issued {issued} by now, and the mark can be set to"
                " that only: leave --to out. A holder of one of its leases acquires anew."
            )
        if issued >= old:
            raise ResetError(
                f"{marked.resource} has the mark {old}, and {fence.source} has issued {issued}: there is nothing to"
                " mend."
            )
        if not issued:
            raise ResetError(f"{marked.resource}: {fence.source} has issued no token yet: acquire a lease of it first.")
        return issued
    if to is None:
        raise ResetError(
            f"{marked.resource}: --to is needed: the newest token that the lock service of {marked.name} has given out."
        )
    if to >= old:
        raise ResetError(f"{marked.resource} has the mark {old}, which is not above {to}: there is nothing to mend.")
    if fence is not None and fence.ceiling is not None and to > fence.ceiling.max_token:
        raise ResetError(
            f"{marked.resource}: {to} is above {fence.ceiling.max_token}, the highest token that the table takes."
        )
    lowest = await _highest_other(connection, marked, old)
    if to < lowest:
        raise ResetError(
            f"{marked.resource}: {to} is below {lowest}, the next lower mark (or floor) of {marked.name}: tokens that"
            " were accepted for its other resources would pass here. Set it to the newest token that the lock service"
            f" has given out, {lowest} or above; a mark that is made up as well is mended first, the lowest first."
        )
    return to


async def _highest_other(connection: Connection, marked: _Marked, old: int) -> int:
    """Find the highest mark below `old` of the other resources of the table or prefix. Reads the whole table."""
    highest: int = await connection.fetchval(
        "SELECT fencepost.highest_below($1, $2, $3)", marked.name, marked.resource, old
    )
    table, key = marked.table, marked.key
    if table is None:
        return highest
    other = f"NOT ({key_match(table)}) AND " if key is not None else ""
    bound = Bound()
    live: int | None = await compiled(
        f"SELECT pg_catalog.max(r.{MARK}) FROM {table.sql_name} AS r"
        f" WHERE {other}r.{MARK} < {bound.add(old, 'bigint')}",
        (*OF_KEY, *bound.parameters),
    ).value(connection, key or ())
    return max(highest, live or 0)
