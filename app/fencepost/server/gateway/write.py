"""A write as a value: what a request, a line of a batch and the message of a queue ask for alike. It says what is to be
written to which rows, and how that is to be answered; it knows no table and no connection. Then what is found out about
one before it runs: its key, its scope, and its resource's name.
"""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn, get_args

from fencepost.server.fence.problems import Problem, problem_of
from fencepost.server.fence.resource import Scope, parse_resource
from fencepost.server.fence.seal import Presented
from fencepost.server.fence.token import Token, refusal
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.postgres import marks
from fencepost.server.postgres import scopes as scope_statements
from fencepost.server.postgres.connection import Key, RowWrite, Session
from fencepost.server.postgres.database import savepoint
from fencepost.server.postgres.errors import RefusedError
from fencepost.server.postgres.marks import converts_key, converts_text, converts_value
from fencepost.server.postgres.query import (
    CAST,
    NO_QUERY,
    Condition,
    Filter,
    OtherKeyError,
    Query,
    QueryError,
    Select,
    Selected,
    cast_type,
)
from fencepost.server.postgres.row_sql import encode_name
from fencepost.server.postgres.scopes import Entered
from fencepost.server.postgres.tables import ProtectedTable, Table, is_canonical

Verb = Literal["patch", "put", "post", "delete"]


@dataclass(frozen=True, slots=True)
class OneRow:
    """The row that has this key."""

    key: Key


@dataclass(frozen=True, slots=True)
class Matching:
    """All rows that match these filters, of which there is at least one."""

    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """The rows of the objects in the body, which is an array: those that they name by their keys, or (POST) make."""

    count: int
    """How many objects there are."""


Target = OneRow | Matching | Listed


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object (or array of objects) as it came, and the keys that it sets. A body may wait for long: in bytes it
    takes a tenth of what it takes as objects of Python.
    """

    raw: bytes
    columns: tuple[str, ...]
    values: Mapping[str, object]
    """The values of an object, or of the array's first one, by their keys. Other values than short texts, numbers,
    booleans and null are UNREAD.
    """

    @property
    def text(self) -> str:
        return self.raw.decode()

    def gives(self, column: str, value: str) -> bool:
        """Whether the body gives a column this value, for a string or an integer; False for other types of JSON."""
        given = self.values.get(column)
        if isinstance(given, str):
            return given == value
        return isinstance(given, int) and not isinstance(given, bool) and str(given) == value


NO_BODY: Final = Body(b"{}", (), {})
UNREAD: Final = object()
"""Stands for a value that no key of a row is likely to have."""


_Returned = Literal["minimal", "representation", "headers-only"]


@dataclass(frozen=True, slots=True)
class Preferences:
    """What a request prefers (RFC 7240), as far as its route does something about it."""

    answer: _Returned | None = None
    count: bool = False
    most: int | None = None
    """`max-affected`: more rows than these refuse the request."""
    complete: bool = False
    """`missing=default`: no object may lack a column that counts. It would get null, and not its default."""
    applied: bytes = b""
    """What Preference-Applied names, once the write is done."""
    queued: bool = False
    """`respond-async`: the write is to be queued."""
    in_sql: frozenset[str] = frozenset()
    """Those that change the statements of the write, as they are spelled: plans are kept under them."""

    def without_rows(self) -> bytes:
        """Give `applied` as if no rows had been preferred."""
        others = [each for each in self.applied.split(b", ") if each and not each.startswith(b"return=")]
        return b", ".join([b"return=minimal", *others])

    @classmethod
    def of_answer(cls, applied: bytes) -> "Preferences":
        """Give what an answer with this Preference-Applied is made by."""
        each = applied.split(b", ")
        answer: _Returned | None = next(
            (kind for kind in get_args(_Returned) if b"return=" + kind.encode() in each), None
        )
        return cls(answer=answer, count=b"count=" in applied, applied=applied)


NO_PREFERENCES: Final = Preferences()


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A request's Idempotency-Key, and the hash of what it may stand for: everything but token and preferences, so that
    the lock's next holder may repeat a write.
    """

    text: str
    payload_hash: bytes


# Not frozen: that would cost more than the rest of its making.
@dataclass(slots=True)
class Write:
    """A write to a table."""

    verb: Verb
    table: str
    """As the request names it, with its schema unless that is public."""
    target: Target
    token: Presented | None
    """None is what R13 refuses, except where a queue gives the token (R12)."""
    body: Body = NO_BODY
    """A DELETE has none."""
    select: Select = None
    preferences: Preferences = NO_PREFERENCES
    exactly_one: bool = False
    """PostgREST's single-object form: of a collection, anything but one row is refused, and nothing is written."""
    idempotency_key: IdempotencyKey | None = None
    if_match: tuple[int, ...] | None = None
    """Marks of which the row must have one (If-Match); none of them: whatever its mark is, the row must be there. None:
    the write has no such condition."""

    by_key: bool = field(init=False)
    """Whether it is of the row whose key the path has."""
    single: bool = field(init=False)
    """Whether it is of one row: that of the path, or a POST of one object."""
    shown: bool = field(init=False)
    """Whether the answer has the rows; else no column is read but key and mark."""

    def __post_init__(self) -> None:
        self.by_key = isinstance(self.target, OneRow)
        self.single = self.by_key or (self.verb == "post" and self.target == Listed(1))
        answer = self.preferences.answer
        by_default = self.verb == "post" or (self.verb != "delete" and self.by_key)
        self.shown = answer == "representation" or (answer is None and by_default)


# Whether a key can be taken as it was written: only PostgreSQL knows which texts are one value, and what is stored.


def may_need_fitting(table: Table) -> bool:
    """Whether storing could change some key's values."""
    return table.lossy_key or any(table.columns[name].max_length is not None for name in table.key)


def needs_fitting(table: Table, key: Key) -> bool:
    """Whether storing could change the key's values: rounded numbers, texts cut to length (of spaces, silently)."""
    lengths = (table.columns[name].max_length for name in table.key)
    too_long = any(most is not None and len(value) > most for most, value in zip(lengths, key, strict=True))
    return table.lossy_key or too_long


async def require_fitting(connection: Session, table: Table, key: Key, where: str) -> None:
    """Refuse a key that would be another one when stored: it would be created, or claimed, in vain."""
    fits = await marks.fits(connection, table, key)
    if not fits:
        raise OtherKeyError(f"{where}: the key {','.join(key)} would be changed when stored in {table.name}")


def doubtful_columns(table: Table, key: Key, body: Body) -> tuple[str, ...]:
    """Name the key columns in the body whose text differs from the path's: for an integer, 7 and 07 are one key."""
    return tuple(
        name for name, value in zip(table.key, key, strict=True) if name in body.columns and not body.gives(name, value)
    )


async def require_same_key(connection: Session, table: Table, key: Key, doubtful: tuple[str, ...], body: str) -> None:
    """Refuse a body that contradicts the path's key in one of these columns (OtherKeyError)."""
    same = await marks.same_key(connection, table, key, doubtful, body)
    if not same:
        raise OtherKeyError(
            f"body: {', '.join(doubtful)} contradicts the path's key {','.join(key)}; a row's key cannot change"
        )


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """What precedes a write that is decided alone. `doubtful`: see doubtful_columns; `to_fit`: storing may change the
    key.
    """

    table: Table
    row: RowWrite
    doubtful: tuple[str, ...]
    to_fit: bool

    async def run(self, connection: Session) -> None:
        """Refuse a key that the body contradicts, or that would be another one when stored (OtherKeyError)."""
        if self.doubtful:
            await require_same_key(connection, self.table, self.row.key, self.doubtful, self.row.body)
        if self.to_fit:
            await require_fitting(connection, self.table, self.row.key, "path")


# Entering scopes (R8), and what refuses it.


async def enter(
    connection: Session, table: ProtectedTable, scope: Scope, scopes: Sequence[str], token: Token
) -> list[Entered]:
    """Enter scopes; those that refused, or nothing."""
    outcome = await scope_statements.enter(connection, table, scope, scopes, token)
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


# Names the column whose value PostgreSQL could not take: its message has the value and the type, not the column.
#
# Asked only after a refusal: each value is converted alone, and the one that fails is it. Some extensions' types
# (hstore, PostGIS's) call a text that they cannot read an internal error: with a culprit it is none.


@asynccontextmanager
async def with_column(
    connection: Session, table: Table, body: Body = NO_BODY, key: Key = (), query: Query = NO_QUERY
) -> AsyncIterator[None]:
    """Add the column's name to a data exception (SQLSTATE class 22, a domain's 23514 or 23502) that lacks it."""
    try:
        yield
    except RefusedError as error:
        if _lacks_column(error):
            culprit = await _culprit(connection, table, body, key, query)
            if culprit is None and error.is_internal:
                culprit = _cast_elsewhere(table, query)
            if culprit is not None:
                error.blame(culprit)
        raise


def _lacks_column(error: RefusedError) -> bool:
    # A domain's refusal is a constraint violation without a table; a table's own names its column. 22P05 is a NUL in
    # the body's JSON, over which PostgreSQL stumbles whatever column it is asked for.
    of_a_domain = error.sqlstate in ("23514", "23502") and error.table is None
    of_a_value = error.may_be_of_a_value and error.sqlstate != "22P05"
    return error.column is None and (of_a_value or of_a_domain)


async def _culprit(connection: Session, table: Table, body: Body, key: Key, query: Query) -> str | None:
    for position, name in enumerate(table.key if key else ()):
        if not await converts_key(connection, table, position, key[position]):
            return name
    for name in body.columns:
        if name in table.columns and not await converts_value(connection, table, name, body.text):
            return name
    for each in _conditions(query.filters):
        if not await converts_text(connection, table, each.field.column, each.value):
            return each.field.column
    return None


def _cast_elsewhere(table: Table, query: Query) -> str | None:
    """Find what is cast to a type outside of pg_catalog: how that fails is the type's own matter."""
    for item in query.select or ():
        if isinstance(item, Selected) and item.cast is not None and "." in cast_type(table, item.cast):
            return item.field.column
    return None


def _conditions(filters: Sequence[Filter]) -> Iterator[Condition]:
    """List the conditions whose values are cast to the types of their columns."""
    for each in filters:
        if not isinstance(each, Condition):
            yield from _conditions(each.members)
        elif not each.field.path and each.operator in CAST:
            yield each


# The one name that a resource has, `table/key`: all writes of a resource are in order only if they agree on it.
#
# 7 and 07 are one row. Which text of a value is the canonical one is known here for texts, and for integers and UUIDs
# that are spelled so; for all others PostgreSQL is asked. So most names need no database.


def known_name(table: ProtectedTable, key: Key) -> str | None:
    """Render the name of a key, if that needs no database; None: PostgreSQL has to be asked. `key` has as many values
    as the table's.
    """
    if not is_canonical(table, key):
        return None
    return f"{encode_name(table.fence.name)}/{','.join([encode_name(value) for value in key])}"


def is_spelled_so(value: object) -> bool:
    """Whether PostgreSQL has the same text of a value in a body as Python. It keeps the sign of -0, which is 0 here."""
    return isinstance(value, str | int) and not isinstance(value, bool) and value != 0


async def name_of_key(gateway: Gateway, table: ProtectedTable, key: Key) -> str:
    """Give the name of a key. Raises StorageError, RefusedError where a value is none of its column's type."""
    known = known_name(table, key)
    if known is not None:
        return known
    async with gateway.connection(table) as connection, with_column(connection, table, key=key), savepoint(connection):
        ((_, name),) = await marks.in_key_order(connection, table, [key])
    return name


async def name_of_body(gateway: Gateway, table: ProtectedTable, body: Body) -> str:
    """Give the name of the row that a POST would make; empty: the body does not name its key. `body.text` is an array
    of one object. Raises StorageError, RefusedError where a value is none of its column's type, QueryError where the
    key would be another one when stored: PostgreSQL rounds numbers, and cuts blanks at the end of texts, in silence.
    """
    name = await _name_in_body(gateway, table, body)
    if name and needs_fitting(table, key := parse_resource(name).key):
        async with gateway.connection(table) as connection:
            await require_fitting(connection, table, key, "body")
    return name


async def _name_in_body(gateway: Gateway, table: ProtectedTable, body: Body) -> str:
    values = [body.values.get(column) if column in body.columns else None for column in table.key]
    if not values or None in values:
        return ""
    if all(is_spelled_so(value) for value in values):
        return await name_of_key(gateway, table, tuple(str(value) for value in values))
    # A number with a fraction, for example: Python would spell it otherwise.
    async with gateway.connection(table) as connection, with_column(connection, table, body), savepoint(connection):
        found = await marks.ask_elements(connection, table, body.text)
    return found[0].standing.resource if found else ""
