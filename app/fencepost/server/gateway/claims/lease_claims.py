"""The claims of a lease, made in the transaction that grants it (R7, R9): all of them, or the lease is not granted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import SPENT_TOKEN, STALE_TOKEN, UNKNOWN_TABLE, WRONG_TOKEN_SOURCE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import Scope, parse_resource
from fencepost.server.fence.token import BUILTIN, EXTERNAL, Token, shown_mark
from fencepost.server.gateway.claims.claim import claim_row
from fencepost.server.gateway.claims.resources import claimable, refuse_scope, require_storable
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway.outcomes import Done
from fencepost.server.gateway.preconditions import require_protected
from fencepost.server.gateway.writes.scoped import enter, refused_scope
from fencepost.server.locks.leases import Overtaken
from fencepost.server.postgres import reading
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.database import as_caller, users_code
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.marks import in_key_order, read_resource
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.row_sql import Key, RowWrite, issued_by
from fencepost.server.postgres.scopes import marks as scope_marks
from fencepost.server.postgres.scopes import scopes_typed
from fencepost.server.postgres.tables import Catalog, ProtectedTable, Table


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
    connection: Connection,
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
    connection: Connection,
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
            with map_errors(writing=False):
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
    connection: Connection,
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
            with map_errors(writing=False):
                names = await scopes_typed(connection, each.table, each.scope, [each.key])
            if not repeated:
                await require_storable(connection, each.sharing, each.key)
            named.append((names[0], number, each.scope))
    for name, number, scope in sorted(named, key=lambda each: each[0].encode()):
        table = claimed[number].table
        if repeated:
            with map_errors(writing=False):
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
    connection: Connection, table: ProtectedTable, key: tuple[str, ...], token: Token, source: str, most_bytes: int
) -> Done:
    outcome = await claim_row(connection, table, RowWrite(key, token), most_bytes)
    if isinstance(outcome, Done):
        return outcome
    return await _roll_back(connection, outcome, table, token, source)


async def _roll_back(
    connection: Connection, outcome: Problem, table: ProtectedTable, token: Token, source: str
) -> NoReturn:
    """Roll the grant back: a younger token was there first, or the claim is refused for good."""
    if outcome.type not in (STALE_TOKEN, SPENT_TOKEN):
        raise RefusedClaim(outcome)
    with map_errors(writing=False):
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
    connection: Connection, table: ProtectedTable, key: tuple[str, ...], token: Token, _source: str, most_bytes: int
) -> Done:
    """Answer a repeated request: its claims hold already, so what is read now follows the fence."""
    with map_errors(writing=False):
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
