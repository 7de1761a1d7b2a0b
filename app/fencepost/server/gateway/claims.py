"""Claims: raising a mark without writing data, so that no older holder can write from now on (R7).

A new holder claims first, and reads the row from the claim's own answer: RETURNING of the claiming UPDATE is the row
that no older holder can change any more. A key without a row is claimed too: no older holder can create it. That goes

1. UPDATE … SET mark, RETURNING: a row came back, done;
2. R5's question: a mark refuses, done; a row is there after all, back to 1;
3. in one transaction, raise the mark of the absent key (which waits for an INSERT or DELETE of it that is under way),
   then look again in a new statement: a row that came into being meanwhile takes the claim instead. Roll back, go to 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import (
    PERMISSION_DENIED,
    ROW_NOT_FOUND,
    SPENT_TOKEN,
    STALE_TOKEN,
    UNKNOWN_TABLE,
    WRONG_TOKEN_SOURCE,
)
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Resource, Scope, parse_resource
from fencepost.server.fence.seal import Presented
from fencepost.server.fence.token import BUILTIN, EXTERNAL, Token, shown_mark
from fencepost.server.gateway.alone import Evidence, Operation, perform, row_evidence
from fencepost.server.gateway.attempt import Statements, attempt_alone, claiming
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.idempotency import once_of
from fencepost.server.gateway.outcomes import Done, Outcome
from fencepost.server.gateway.plan import (
    not_with_queue,
    require_key,
    require_once,
    require_protected,
    require_token,
    target_of,
)
from fencepost.server.gateway.write import IdempotencyKey, enter, refused_scope
from fencepost.server.locks.leases import Overtaken
from fencepost.server.postgres import reading, scopes
from fencepost.server.postgres.connection import Key, RowWrite, Session
from fencepost.server.postgres.database import as_caller, users_code
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.marks import in_key_order, read_resource
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import issued_by
from fencepost.server.postgres.scopes import marks as scope_marks
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
    sharing = [(table, table.fence.scope) for table in tables if table.fence is not None and table.fence.scope]
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


# The claim of a row, of a key without one, or of a scope: as a request, or as a part of a grant.

_MAKE_THE_ROW: Final = (
    "Row security applies to this table: a key is claimed only while you see its row. Fence a new key with its row:"
    " PUT it under the token."
)


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
        claim = ClaimOfRow(
            table=table,
            row=RowWrite(key, token),
            once=once,
            binding=binding,
            most_bytes=gateway.max_answer_bytes,
        )
        return await perform(gateway, claim)
    sharing = gateway.catalog.current.scopes.get(scope.prefix, ())
    row = RowWrite((), token)
    claim_of_scope = ClaimOfScope(
        table=table,
        row=row,
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


async def claim_row(connection: Session, table: ProtectedTable, row: RowWrite, most_bytes: int) -> Outcome:
    """Claim on a connection, which may be in a transaction: a grant claims in its own."""
    outcome = await attempt_alone(connection, table.kept(_statements, most_bytes), row)
    if table.row_security and isinstance(outcome, Problem) and outcome.type is ROW_NOT_FOUND:
        return replace(outcome, hint=_MAKE_THE_ROW)
    return outcome


def _statements(table: ProtectedTable, most_bytes: int) -> Statements:
    target = target_of(table, None, most_bytes, shown=True)
    return claiming(table, Change((), target, frozenset(), named=True))


# The claims of a lease, made in the transaction that grants it (R7, R9): all of them, or the lease is not granted.


@dataclass(frozen=True, slots=True)
class ClaimTarget:
    """What a lease is to claim: the row with a key, or the scope with these values."""

    table: ProtectedTable
    key: Key
    scope: Scope | None = None
    sharing: Sequence[Table] = ()
    """The tables of the scope."""


class RefusedClaim(Exception):  # noqa: N818 - it is not an error; it rolls a grant back
    """A claim was refused for good, and with it the lease."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def resolve(catalog: Catalog, claims: Sequence[str], source: str = BUILTIN) -> list[ClaimTarget] | Problem:
    """Find the tables of all claims, which take tokens of this source, or of any."""
    claimed = []
    for text in claims:
        resource = parse_resource(text)
        found = catalog.find_or_scope(resource.table)
        if found is None:
            return Problem(UNKNOWN_TABLE, f"claim: {text}: there is no table {resource.table}.")
        table = require_protected(found)
        if isinstance(table, Problem):
            return table
        fence = table.fence
        if fence.source not in (EXTERNAL, source):
            return Problem(
                WRONG_TOKEN_SOURCE,
                f"claim: {text}: {table.name} takes tokens of {fence.source}, and this lease is one of {source}.",
                hint=f'Acquire with "source": "{fence.source}".'
                if fence.queue is None
                else "The order of its writes is that of the queue: they need no lease.",
                resource=text,
            )
        try:
            scope = claimable(table, resource)
        except QueryError as error:
            return bad_request(f"claim: {text}: {error}")
        if isinstance(scope, Problem):
            return scope
        claimed.append(
            ClaimTarget(table, resource.key, scope, catalog.scopes[scope.prefix] if scope is not None else ())
        )
    return claimed


async def claim_all(
    connection: Session,
    gateway: Gateway,
    claimed: Sequence[ClaimTarget],
    token: Token,
    *,
    repeated: bool,
    source: str = BUILTIN,
) -> list[Done]:
    """Claim by table and typed key, as everybody takes rows (R20), each resource once; answer in the order asked for.
    The token is one of `source`. What is read and raised on users' tables, is as the caller, in the grant's
    transaction, whose other statements are the gateway's.
    """
    async with as_caller(connection, gateway.caller):
        return await _claim_all(connection, gateway, claimed, token, source, repeated=repeated)


async def _claim_all(
    connection: Session,
    gateway: Gateway,
    claimed: Sequence[ClaimTarget],
    token: Token,
    source: str,
    *,
    repeated: bool,
) -> list[Done]:
    one, left = (_reread if repeated else _claim), gateway.max_answer_bytes
    of_scopes = any(table.runs_code for each in claimed for table in each.sharing)
    async with users_code(connection, gateway.caller, runs=of_scopes, local=True):
        done = await _claim_scopes(connection, gateway.caller, claimed, token, source, repeated=repeated)
    by_table: dict[str, list[int]] = {}
    for number, each in enumerate(claimed):
        if number in done:
            continue
        by_table.setdefault(each.table.name, []).append(number)
    for name in sorted(by_table):
        numbers = by_table[name]
        table = claimed[numbers[0]].table
        if len(numbers) == 1:
            order = [(0, "")]
        else:
            order = await in_key_order(connection, table, [claimed[number].key for number in numbers])
        known_as: dict[str, Done] = {}
        for position, resource in order:
            if resource not in known_as:
                key = claimed[numbers[position]].key
                async with users_code(connection, gateway.caller, runs=table.runs_code, local=True):
                    known_as[resource] = await one(connection, table, key, token, source, gateway.max_answer_bytes)
            done[numbers[position]] = known_as[resource]
            left -= sum(len(row.encode()) for row in known_as[resource].rows)
            if left < 0:
                raise RefusedClaim(_too_large(gateway.max_answer_bytes))
    return [done[number] for number in range(len(claimed))]


async def _claim_scopes(
    connection: Session,
    caller: Caller,
    claimed: Sequence[ClaimTarget],
    token: Token,
    source: str,
    *,
    repeated: bool,
) -> dict[int, Done]:
    """Claim what are scopes among the claims, before all rows and sorted (R20); by their place among the claims."""
    done: dict[int, Done] = {}
    named: list[tuple[str, int, Scope]] = []
    for number, each in enumerate(claimed):
        if each.scope is not None:
            names = await scopes_typed(connection, each.table, each.scope, [each.key])
            if not repeated:
                await require_storable(connection, each.sharing, each.key)
            named.append((names[0], number, each.scope))
    for name, number, scope in sorted(named, key=lambda each: each[0].encode()):
        table = claimed[number].table
        if repeated:
            found = await scope_marks(connection, scope, [name])
            known = max(found[0].mark, token)
            mark = known if shown_mark(claimed[number].table.fence.rule, known) is not None else token
            done[number] = Done([], mark, resource=name, scope=name)
        elif refused := await enter(connection, table, scope, [name], token):
            problem = refused_scope(table, refused[0], token)
            await _roll_back(connection, problem, table, token, source)
        else:
            done[number] = Done([], token, resource=name, scope=name)
        sharing = claimed[number].sharing
        if hidden := await refuse_scope(connection, caller, scope, sharing, name, writing=True):
            raise RefusedClaim(hidden)
    return done


async def _claim(
    connection: Session, table: ProtectedTable, key: tuple[str, ...], token: Token, source: str, most_bytes: int
) -> Done:
    outcome = await claim_row(connection, table, RowWrite(key, token), most_bytes)
    if isinstance(outcome, Done):
        return outcome
    return await _roll_back(connection, outcome, table, token, source)


async def _roll_back(
    connection: Session, outcome: Problem, table: ProtectedTable, token: Token, source: str
) -> NoReturn:
    """Roll the grant back: a younger token was there first, or the claim is refused for good."""
    if outcome.type not in (STALE_TOKEN, SPENT_TOKEN):
        raise RefusedClaim(outcome)
    issued: int = await connection.fetchval(f"SELECT {issued_by(source)}")
    if outcome.current_token is not None and outcome.current_token <= issued:
        raise Overtaken
    name = table.fence.name
    has = f"the mark {outcome.current_token}" if outcome.shows_mark else "a mark"
    raise RefusedClaim(
        Problem(
            WRONG_TOKEN_SOURCE,
            f"{outcome.resource} has {has}, and token {token} was only drawn this moment: "
            f"another source hands out tokens for {name}.",
            hint=f"`fencepost protect {name} --source {source}` pins the table to these leases.",
            resource=outcome.resource,
            presented_token=token,
            current_token=outcome.current_token,
            shows_mark=outcome.shows_mark,
        )
    )


async def _reread(
    connection: Session, table: ProtectedTable, key: tuple[str, ...], token: Token, _source: str, most_bytes: int
) -> Done:
    """Answer a repeated request: its claims hold already, so what is read now follows the fence."""
    found = await read_resource(connection, table, key)
    try:
        row = await reading.row(connection, table, key, None, most_bytes)
    except reading.TooManyBytesError as error:
        raise RefusedClaim(_too_large(most_bytes)) from error
    known = max(found.live or 0, found.recorded or 0, token)
    mark = known if shown_mark(table.fence.rule, known) is not None else token
    return Done([row.json] if row else [], mark, resource=found.resource)


def _too_large(most_bytes: int) -> Problem:
    return bad_request(
        f"claim: The rows have more than {most_bytes} bytes.",
        "Claim fewer rows with a lease; FENCEPOST_MAX_ANSWER_BYTES.",
    )
