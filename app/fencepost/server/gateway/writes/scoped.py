"""Entering scopes (R8), and what refuses it."""

from collections.abc import Collection, Sequence
from typing import NoReturn

from fencepost.server.fence.problems import Problem, problem_of
from fencepost.server.fence.resource import Scope
from fencepost.server.fence.token import Token, refusal
from fencepost.server.postgres import scopes as scope_marks
from fencepost.server.postgres.connection import Connection
from fencepost.server.postgres.errors import map_errors
from fencepost.server.postgres.query import QueryError
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import ProtectedTable, Table


async def enter(
    connection: Connection, table: ProtectedTable, scope: Scope, scopes: Sequence[str], token: Token
) -> list[Entered]:
    """Enter scopes; those that refused, or nothing."""
    with map_errors(writing=True):
        outcome = await scope_marks.enter(connection, table, scope, scopes, token)
    return [each for each in outcome if each.refused_by is not None]


def refused_scope(table: ProtectedTable, by: Entered, token: Token) -> Problem:
    """Give the answer when a scope was not entered."""
    rule = table.fence.rule
    # Or the rule has changed since the catalog was read.
    verdict = refusal(rule, by.scope, by.refused_by or 0, token) or refusal(
        "strict", by.scope, by.refused_by or 0, token
    )
    if verdict is None:
        raise RuntimeError(f"{by} refused the token {token}")
    return problem_of(verdict, rule)


def require_columns_of(scope: Scope, table: Table, given: Collection[str]) -> None:
    """Refuse rows whose scope cannot be known (QueryError): the request does not name all of its columns."""
    if missing := [column for column in scope.columns if column not in given]:
        raise QueryError(_without(table, scope, missing))


def no_scope(scope: Scope, table: Table) -> NoReturn:
    """Refuse rows that have no value for a column of their scope (QueryError)."""
    raise QueryError(_without(table, scope, scope.columns))


def _without(table: Table, scope: Scope, columns: Sequence[str]) -> str:
    return (
        f"body: a row of {table.name} belongs to a scope, {scope.template}:"
        f" every object gives {', '.join(columns)} a value"
    )
