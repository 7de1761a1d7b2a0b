"""What the names of resources mean: the rows and scopes that claims raise the marks of, and that tokens are sealed for.

A claim raises a mark without writing data, so that no older holder can write from now on (R7). A new holder claims
first, and reads the row from the claim's own answer: RETURNING of the claiming UPDATE is the row that no older holder
can change any more. A key without a row is claimed too: no older holder can create it. That goes

1. UPDATE … SET mark, RETURNING: a row came back, done;
2. R5's question: a mark refuses, done; a row is there after all, back to 1;
3. in one transaction, raise the mark of the absent key (which waits for an INSERT or DELETE of it that is under way),
   then look again in a new statement: a row that came into being meanwhile takes the claim instead. Roll back, go to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import PERMISSION_DENIED, ROW_NOT_FOUND, UNKNOWN_TABLE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import (
    MalformedResourceError,
    Resource,
    Scope,
    decode_key,
    decode_segment,
    parse_resource,
)
from fencepost.server.fence.seal import Binding, Presented
from fencepost.server.gateway.alone import Evidence, Operation, decide_alone, perform, row_evidence
from fencepost.server.gateway.attempt import Batched, claim_queues, claim_row, in_a_batch
from fencepost.server.gateway.gateway import Gateway, elsewhere
from fencepost.server.gateway.group_commit import Alone, Broken
from fencepost.server.gateway.idempotency import keeping, once_of
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.plan import not_with_queue, require_key, require_once, require_protected, require_token
from fencepost.server.gateway.write import IdempotencyKey, name_of_key
from fencepost.server.postgres import scopes
from fencepost.server.postgres.connection import Key, RowWrite, Session
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import encode_name
from fencepost.server.postgres.scopes import scopes_typed
from fencepost.server.postgres.tables import Catalog, ProtectedTable, Table

# What a resource's name means: a row of a table, or a scope (R8).


def scope_named(table: ProtectedTable, resource: Resource) -> Scope | Problem | None:
    """Give the scope that a resource names; None: it names a row. A Problem when it has another number of values."""
    scope = table.fence.scope
    if scope is None or scope.prefix != resource.table:
        return None
    if len(resource.key) != len(scope.columns):
        return bad_request(
            f"resource: the scope {scope.template} has {len(scope.columns)} value(s), not {len(resource.key)}"
        )
    return scope


def claimable(table: ProtectedTable, resource: Resource) -> Scope | Problem | None:
    """Give the scope that a claim names; None: a row with a mark of its own. QueryError: the key does not fit."""
    named = scope_named(table, resource)
    if named is not None:
        return named
    require_key(table, resource.key)
    scope = table.fence.scope
    if scope is None:
        return None
    return bad_request(
        f"resource: {table.name}/{','.join(resource.key)} has no mark of its own: claim its scope, {scope.template}",
        f"The fence of {table.name} covers all rows of a scope together.",
    )


async def require_storable(connection: Session, tables: Sequence[Table], values: Key) -> None:
    """Refuse the claim of a scope that no row can have (QueryError): none of its tables stores the values as they are.
    The claim would fence no holder.
    """
    sharing = [
        (table, scope)
        for table in tables  # without a column of the scope none of its rows is in one
        if table.fence is not None and (scope := table.fence.scope) and table.columns.keys() >= {*scope.columns}
    ]
    if any(not scopes.may_change(table, scope, values) for table, scope in sharing):
        return
    for table, scope in sharing:
        if await scopes.stores(connection, table, scope, values):
            return
    if sharing:
        named = f"{sharing[0][1].prefix}/{','.join(values)}"
        where = ", ".join(table.name for table, _ in sharing)
        raise QueryError(f"resource: the scope {named} would be changed, or refused, when stored in {where}")


async def refuse_scope(
    connection: Session, caller: Caller, scope: Scope, tables: Sequence[Table], name: str, *, writing: bool
) -> Problem | None:
    """Refuse a caller whose role may not see the scope of this name, or (writing) claim it: no row stands for it, which
    PostgreSQL would judge. It needs the privilege for one of the scope's tables; where row security rules them, also
    one row of the scope that the policies let it see, or change. `connection` acts as the caller.
    """
    if caller.role is None:
        return None
    open_tables = await scopes.tables_open(connection, scope, writing=writing)
    if not open_tables:
        verb = "claim" if writing else "see"
        detail = f"permission denied for scope {scope.prefix}: {caller.role} may {verb} none of its tables"
        return Problem(PERMISSION_DENIED, detail, code="42501", status=403)
    if not all(open_tables.values()):
        return None
    for table in tables:
        if open_tables.get(table.oid) and await scopes.has_row(connection, table, name, writing=writing):
            return None
    return Problem(ROW_NOT_FOUND, f"There is no row of the scope {name}.")


# The claim of a row, of a key without one, or of a scope, as a request of its own; with a grant: gateway/leases.py.


@dataclass(frozen=True, slots=True)
class Claim:
    """POST /v1/claims."""

    resource: Resource
    token: Presented | None
    idempotency_key: IdempotencyKey | None = None


async def write(gateway: Gateway, request: Claim, found: Table) -> Outcome:
    """Decide a claim."""
    once = once_of(gateway, request.idempotency_key, None, found)
    table, key = require_protected(found), request.resource.key
    if isinstance(table, Problem):
        return table
    scope = claimable(table, request.resource) if table.fence.queue is None else not_with_queue(table.fence, "a claim")
    if isinstance(scope, Problem):
        return scope
    if (keyless := require_once(table.fence, once)) is not None:
        return keyless
    checked = require_token(table, request.token, gateway.seals)
    if isinstance(checked, Problem):
        return checked
    token, binding = checked
    if scope is None:
        if binding is not None:
            name = await name_of_key(gateway, table, key)
            if (refused := elsewhere(binding, token, (name,))) is not None:
                return refused
        row, most_bytes = Batched.of(key, token, b"{}", gateway.caller, once), gateway.max_answer_bytes
        queues = table.kept(claim_queues, most_bytes, keeping(once))
        answer = await in_a_batch(gateway, queues, row)
        if not isinstance(answer, Alone | Broken):
            return answer
        claim = ClaimOfRow(table=table, row=row.row, once=once, binding=binding, most_bytes=most_bytes)
        return await decide_alone(gateway, claim, queues, row, answer)
    sharing = gateway.catalog.current.scopes.get(scope.prefix, ())
    claim_of_scope = ClaimOfScope(
        table=table,
        row=RowWrite((), token),
        once=once,
        binding=binding,
        scope=scope,
        values=key,
        sharing=sharing,
        caller=gateway.caller,
    )
    return await perform(gateway, claim_of_scope)


@dataclass(slots=True, kw_only=True)
class ClaimOfRow(Operation):
    """The claim of a row, or of a key without one."""

    most_bytes: int
    """How many bytes the row may have, which is the answer."""

    async def write(self, connection: Session) -> Outcome:
        return await claim_row(connection, self.table, self.row, self.most_bytes)

    async def evidence(self, connection: Session) -> Evidence:
        return await row_evidence(connection, self.table, self.row.key, self.row.token)


@dataclass(slots=True, kw_only=True)
class ClaimOfScope(Operation):
    """The claim of a scope, by the values of its columns. `sharing`: the tables of the scope."""

    scope: Scope
    values: Key
    sharing: Sequence[Table]
    caller: Caller

    @property
    def runs_code(self) -> bool:
        """Values are stored nowhere, but all tables are asked whether one could store them."""
        return any(table.runs_code for table in self.sharing)

    async def scopes(self, connection: Session, scope: Scope) -> list[str]:
        names = await scopes_typed(connection, self.table, scope, [self.values])
        await require_storable(connection, self.sharing, self.values)
        return names

    async def write(self, connection: Session) -> Outcome:
        """Nothing is written: no older holder can write to the rows of the scope from now on."""
        name = self.row.scope
        refused = await refuse_scope(connection, self.caller, self.scope, self.sharing, name, writing=True)
        return refused or Done([], self.row.token, resource=name, scope=name)


# What the tokens of a lease are sealed for: the resources that its locks are named after, that it claims, and that the
# request for it listed in `writes`.
#
# A resource has one name, in which PostgreSQL renders it: 07 and 7 are one key of an integer. Claims are bound by that
# name, however they were written; and so is what stands in `writes`, which is kept with the lease in that form. A
# lock's name is bound as it is, and as it is spelled where no more characters are encoded than must be. What it means
# as values of a key is not asked: the lock orders/07 is not for the row orders/7, whose lock another client may have.

MOST_BYTES: Final = 1024
"""Of the names of `writes` of one lease."""
ANY: Final = "*"
"""At the end of an entry of `writes`: all resources whose names begin so."""


async def names_of_writes(gateway: Gateway, writes: Sequence[str]) -> tuple[str, ...] | Problem:
    """Read `writes` of a request for a lease, and give each as it is kept. Raises StorageError, QueryError."""
    if writes and gateway.seals.keys is None:
        return bad_request(
            "body: writes: this gateway seals no tokens, and so they can be used for any resource",
            "An operator gives it keys: FENCEPOST_SEAL_KEYS_FILE. Until then, leave writes out.",
        )
    kept: set[str] = set()
    for text in writes:
        name = await (_prefix if text.endswith(ANY) else _resource)(gateway, text)
        if isinstance(name, Problem):
            return name
        kept.add(name)
    if sum(len(name.encode()) for name in kept) > MOST_BYTES:  # 1e100000 is a short text, and a long name
        return bad_request(f"body: writes: the names have more than {MOST_BYTES} bytes as the database spells them")
    return tuple(sorted(kept, key=str.encode))


async def binding_of(
    gateway: Gateway, source: str, locks: Sequence[str], claims: Sequence[str], writes: Sequence[str], lease: str = ""
) -> Binding:
    """Give what the tokens of a lease are bound to. `lease` is empty before it is granted. Raises StorageError."""
    names = {*locks, *map(_spelled, locks), *(each for each in writes if not each.endswith(ANY))}
    for claim in claims:
        names.add(await _name_of_claim(gateway, claim))
    prefixes = tuple(each.removesuffix(ANY) for each in writes if each.endswith(ANY))
    return Binding(source, lease, frozenset(names), prefixes)


def _spelled(lock: str) -> str:
    """Spell a lock's name as names of resources are: clients may encode more characters than need be."""
    try:
        resource = parse_resource(lock)
    except MalformedResourceError:
        return lock
    return f"{encode_name(resource.table)}/{_encoded(resource.key)}"


def _encoded(key: Sequence[str]) -> str:
    return ",".join(encode_name(value) for value in key)


async def _prefix(gateway: Gateway, text: str) -> str | Problem:
    """Read `table/*` or `table/start*`."""
    table, slash, start = text.removesuffix(ANY).partition("/")
    if not slash or not table:
        return bad_request(
            f"body: writes: {text}: a table (or a scope) and a slash stand before the {ANY}: orders/{ANY}"
        )
    try:
        found = _table_of(gateway.catalog.current, decode_segment(table.encode()), text)
        begin = _encoded(decode_key(start.encode()))
    except MalformedResourceError as error:
        return bad_request(f"body: writes: {error}")
    return found if isinstance(found, Problem) else f"{encode_name(found.prefix)}/{begin}{ANY}"


async def _resource(gateway: Gateway, text: str) -> str | Problem:
    try:
        resource = parse_resource(text)
    except MalformedResourceError as error:
        return bad_request(f"body: writes: {error}")
    found = _table_of(gateway.catalog.current, resource.table, text)
    if isinstance(found, Problem):
        return found
    try:
        return await _name(gateway, found.table, resource)
    except QueryError as error:
        return bad_request(f"body: writes: {text}: {error}")


@dataclass(frozen=True, slots=True)
class _Found:
    """A protected table, and what stands before the slash in the names of its resources."""

    table: ProtectedTable
    prefix: str


def _table_of(catalog: Catalog, name: str, text: str) -> _Found | Problem:
    found = catalog.find_or_scope(name)
    if found is None:
        return Problem(UNKNOWN_TABLE, f"body: writes: {text}: there is no table {name}.")
    table = require_protected(found)
    if isinstance(table, Problem):
        return table
    scope = table.fence.scope
    if scope is None:
        return _Found(table, table.fence.name)
    if scope.prefix == name:
        return _Found(table, name)
    return bad_request(
        f"body: writes: {text}: rows of {table.name} are fenced by their scope: name it instead, {scope.template}",
        f'"writes": ["{encode_name(scope.prefix)}/{ANY}"]',
    )


async def _name_of_claim(gateway: Gateway, text: str) -> str:
    """Give the one name of a claim; as it is, where it names nothing (any more)."""
    resource = parse_resource(text)
    found = _table_of(gateway.catalog.current, resource.table, text)
    if isinstance(found, Problem):
        return text
    try:
        name = await _name(gateway, found.table, resource)
    except QueryError:
        return text
    return text if isinstance(name, Problem) else name


async def _name(gateway: Gateway, table: ProtectedTable, resource: Resource) -> str | Problem:
    """Give the one name of a row, or of a scope. Raises QueryError, StorageError."""
    scope = claimable(table, resource)
    if isinstance(scope, Problem):
        return scope
    if scope is None:
        return await name_of_key(gateway, table, resource.key)
    async with gateway.connection(table) as connection:
        return (await scopes_typed(connection, table, scope, [resource.key]))[0]
