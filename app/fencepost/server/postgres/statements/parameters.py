"""Statements and their parameters. A parameter is an object with a name and a type: the text that is composed contains
it as `{TOKEN}`, and `compiled` numbers what the text contains, as `$2::bigint`. No placeholder is counted by hand.

Statements are text, for people to read and to run, and not SQLAlchemy Core: docs/decisions/0029 has why.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar

import asyncpg

from fencepost.server.fence.token import Token
from fencepost.server.postgres.connections.connection import Connection

Key = tuple[str, ...]
"""A row's key as texts, in the order of the primary key's columns."""
S = TypeVar("S")
"""What the values of a statement are read from."""

_PARAMETER: Final = re.compile("\0([^\0]*)\0")
"""A parameter in a text. Nothing else in SQL has the character NUL: no identifier, literal or value."""


@dataclass(frozen=True, slots=True)
class Parameter(Generic[S]):
    """A value of a statement: `read` takes it from what the statement is run for."""

    name: str
    type: str
    read: Callable[[S], object]

    def __str__(self) -> str:
        return f"\0{self.name}\0"


@dataclass(frozen=True, slots=True)
class Statement(Generic[S]):
    """A statement's text, and how its values are read, in the order of the placeholders."""

    sql: str
    reads: tuple[Callable[[S], object], ...]

    def arguments(self, source: S) -> list[object]:
        """Read the values of one run."""
        return [read(source) for read in self.reads]

    async def fetch(self, connection: Connection, source: S) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await connection.fetch(self.sql, *self.arguments(source))
        return rows

    async def value(self, connection: Connection, source: S) -> Any:
        """Run it once, and return the first column of its first row; None without a row."""
        return await connection.fetchval(self.sql, *self.arguments(source))


def compiled(text: str, parameters: Iterable[Parameter[S]]) -> Statement[S]:
    """Number the parameters that the text contains, in the order in which they are given here."""
    used = set(_PARAMETER.findall(text))
    numbered = [each for each in parameters if each.name in used]
    if unknown := used - {each.name for each in numbered}:
        raise ValueError(f"the statement has no parameter {', '.join(sorted(unknown))}: {text}")
    placeholders = {each.name: f"${n}::{each.type}" for n, each in enumerate(numbered, 1)}
    sql = _PARAMETER.sub(lambda found: placeholders[found[1]], text)
    return Statement(sql, tuple(each.read for each in numbered))


MOST_KEY_COLUMNS: Final = 32
"""PostgreSQL's own limit."""

# Writes


@dataclass(slots=True)
class RowWrite:
    """A write of one request: of the row `key`, or, where that is empty, of the rows in the body, a JSON array."""

    key: Key
    token: Token
    raw: bytes = b"{}"
    """The body's JSON. It becomes a text, which may take four times as much, when it is sent."""
    idempotency_key: str = ""
    """Its Idempotency-Key, and the hash of what that stands for (batch_prelude.py)."""
    payload_hash: bytes = b""
    scope: str = ""
    """The scope that was entered for it, or is known to be needed."""
    scopes: Sequence[str] = ()
    """The scopes that were entered for it, where it may write to rows of several."""
    number: int = 0
    """Its place in the batch that carries it."""

    @property
    def body(self) -> str:
        """The body's JSON."""
        return self.raw.decode()


@cache
def key_part(position: int) -> Parameter[RowWrite]:
    """Give the parameter for a column of the key, counted from 0: its text."""
    return Parameter(f"key {position}", "text", lambda write: write.key[position])


TOKEN: Final[Parameter[RowWrite]] = Parameter("token", "bigint", attrgetter("token"))
SCOPE: Final[Parameter[RowWrite]] = Parameter("scope", "text", attrgetter("scope"))
SCOPES: Final[Parameter[RowWrite]] = Parameter("scopes", "text[]", attrgetter("scopes"))
BODY: Final[Parameter[RowWrite]] = Parameter("body", "json", attrgetter("body"))
OF_KEY: Final[tuple[Parameter[Key], ...]] = tuple(
    Parameter(f"key {n}", "text", itemgetter(n)) for n in range(MOST_KEY_COLUMNS)
)
"""The same parameters for a statement that is run for a key only."""
NUMBER: Final[Parameter[RowWrite]] = Parameter("number", "int", attrgetter("number"))

OF_WRITES: Final = (*(key_part(n) for n in range(MOST_KEY_COLUMNS)), TOKEN, SCOPE, SCOPES, BODY, NUMBER)
"""All that a write's statement may contain, beside the values of its filters."""


@dataclass(slots=True)
class Bound:
    """Values that belong to a statement itself, those of a query string: each becomes a parameter where it stands."""

    values: list[object] = field(default_factory=list)
    parameters: list[Parameter[Any]] = field(default_factory=list)

    def add(self, value: object, type_: str = "text") -> str:
        """Take a value, and return what stands for it in the text."""
        parameter: Parameter[Any] = Parameter(f"value {len(self.values)}", type_, lambda _: value)
        self.values.append(value)
        self.parameters.append(parameter)
        return str(parameter)
