"""A write as a value: what a request, a line of a batch and the message of a queue ask for alike. It says what is to be
written to which rows, and how that is to be answered; it knows no table and no connection.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from fencepost.server.fence.seal import Presented
from fencepost.server.postgres.query import Filter, Select
from fencepost.server.postgres.row_sql import Key

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


@dataclass(frozen=True, slots=True)
class Preferences:
    """What a request prefers (RFC 7240), as far as its route does something about it."""

    answer: Literal["minimal", "representation", "headers-only"] | None = None
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

    def shows(self, *, by_default: bool) -> bool:
        """Whether the answer of a write has the rows; `by_default` where nothing was preferred."""
        return self.answer == "representation" or (self.answer is None and by_default)

    def without_rows(self) -> "Preferences":
        others = [each for each in self.applied.split(b", ") if each and not each.startswith(b"return=")]
        return replace(self, answer="minimal", applied=b", ".join([b"return=minimal", *others]))


NO_PREFERENCES: Final = Preferences()


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A request's Idempotency-Key, and the hash of what it may stand for: everything but token and preferences, so that
    the lock's next holder may repeat a write.
    """

    text: str
    payload_hash: bytes


@dataclass(frozen=True, slots=True)
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

    @property
    def shown(self) -> bool:
        """Whether the answer has the rows; else no column is read but key and mark."""
        by_default = self.verb == "post" or (self.verb != "delete" and isinstance(self.target, OneRow))
        return self.preferences.shows(by_default=by_default)

    @property
    def single(self) -> bool:
        """Whether it is of one row: that of the path, or a POST of one object."""
        return isinstance(self.target, OneRow) or (self.verb == "post" and self.target == Listed(1))
