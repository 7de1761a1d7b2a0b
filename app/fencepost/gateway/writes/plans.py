"""What is known of a keyed write before PostgreSQL is asked: checked, and its statements written, once per table, verb,
columns and select, and kept with the table's picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fencepost.fencing.problems import Problem
from fencepost.fencing.token import Token
from fencepost.gateway.preconditions import require_columns, require_key, require_once, require_protected, require_token
from fencepost.gateway.writes.batched import WriteQueue, write_queue
from fencepost.gateway.writes.idempotency import IdempotentRequest
from fencepost.gateway.writes.rounds import Steps
from fencepost.gateway.writes.verbs import steps_of
from fencepost.storage.statements.keyed import Change
from fencepost.storage.statements.parameters import Bound, Key
from fencepost.storage.statements.query import QueryError, Select
from fencepost.storage.statements.query_sql import render_select
from fencepost.storage.tables.catalog import ProtectedTable, Table

KeyedVerb = Literal["patch", "put", "delete"]


# What every request makes is not frozen: that would cost more than the rest of its making.
@dataclass(slots=True)
class Body:
    """A JSON object (or array of objects) as it came, and the keys that it sets."""

    text: str
    columns: tuple[str, ...]
    values: Mapping[str, object]
    """An object's values by their keys."""

    def says(self, column: str, value: str) -> bool:
        """Whether it gives a column this value, as can be seen at a glance: a string, or an integer."""
        given = self.values.get(column)
        if isinstance(given, str):
            return given == value
        return isinstance(given, int) and not isinstance(given, bool) and str(given) == value


NO_BODY = Body("{}", (), {})


@dataclass(slots=True)
class KeyedWrite:
    """A write to the row that the path names. `token` None is what R13 refuses."""

    table: str
    key: Key
    token: Token | None
    select: Select = None
    body: Body | None = None
    once: IdempotentRequest | None = None
    shown: bool = True
    """Whether the answer has the row; else no column is read but key and mark."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all writes of one verb that name the same columns: checked and written once."""

    table: ProtectedTable
    change: Change
    alone: Steps
    """Its statements for a write that is decided alone."""
    queue: WriteQueue | None
    """Its batches; None: it is never in one."""
    names_key: bool
    """Whether the body gives key columns, too."""


def ready_for(table: Table, request: KeyedWrite, verb: KeyedVerb) -> tuple[Plan, Token] | Problem:
    """Check all that needs no database."""
    columns = request.body.columns if request.body is not None else ()
    name = (verb, columns, request.select, request.shown, request.once is not None)
    plan: Plan | None = table.plans.get(name)
    if plan is None:
        made = _plan(table, request, verb, columns)
        if isinstance(made, Problem):
            return made
        plan = table.kept(name, lambda: made)
    require_key(table, request.key)
    if (keyless := require_once(plan.table.fence, request.once)) is not None:
        return keyless
    token = require_token(table, request.token)
    return token if isinstance(token, Problem) else (plan, token)


def ready_to_write(
    table: Table, token: Token | None, columns: tuple[str, ...], once: IdempotentRequest | None
) -> tuple[ProtectedTable, Token] | Problem:
    """Check what every write to a collection needs: a fence, columns that there are, a token."""
    protected = require_protected(table)
    if isinstance(protected, Problem):
        return protected
    require_columns(table, columns)
    if (keyless := require_once(protected.fence, once)) is not None:
        return keyless
    checked = require_token(table, token)
    return checked if isinstance(checked, Problem) else (protected, checked)


def _plan(table: Table, request: KeyedWrite, verb: KeyedVerb, columns: tuple[str, ...]) -> Plan | Problem:
    protected = require_protected(table)
    if isinstance(protected, Problem):
        return protected
    require_key(table, request.key)
    require_columns(table, columns)
    # An unknown column is 400, and that comes before 428.
    target = target_of(table, request.select, shown=request.shown)
    given = tuple(c for c in columns if c not in table.key)
    change = Change(given, target, _replaceable(table, given) if verb == "put" else ())
    batches = write_queue(protected, verb, change, keyed=request.once is not None)
    return Plan(protected, change, steps_of(protected, verb, change, "block"), batches, len(given) < len(columns))


def target_of(table: Table, select: Select, *, shown: bool) -> str:
    """Render the answer's columns, none if no row is shown; QueryError for an unknown one in any case."""
    # Plans are kept, and so may have no values of a request: only a JSON path in `select` has any.
    bound = Bound()
    target = render_select(table, select, bound)
    if bound.values:
        raise QueryError("select: a JSON path can be selected in GET only, not in the answer of a write")
    return target if shown else ""


def _replaceable(table: Table, given: tuple[str, ...]) -> tuple[str, ...]:
    """Columns that PUT sets to their defaults."""
    return tuple(
        name
        for name in table.visible
        if name not in given
        and name not in table.key
        and not table.columns[name].generated
        and table.columns[name].identity != "always"
    )
