"""What the requests of several verbs have in common."""

from collections.abc import Mapping
from dataclasses import dataclass

from fencepost.fencing.seal import Presented
from fencepost.gateway.writes.idempotency import IdempotentRequest
from fencepost.storage.statements.query import Select


# What every request makes is not frozen: that would cost more than the rest of its making.
@dataclass(slots=True)
class Body:
    """A JSON object (or array of objects) as it came, and the keys that it sets."""

    text: str
    columns: tuple[str, ...]
    values: Mapping[str, object]
    """An object's values by their keys."""

    def gives(self, column: str, value: str) -> bool:
        """Whether the body gives a column this value, for a string or an integer; False for other types of JSON."""
        given = self.values.get(column)
        if isinstance(given, str):
            return given == value
        return isinstance(given, int) and not isinstance(given, bool) and str(given) == value


NO_BODY = Body("{}", (), {})


@dataclass(frozen=True, slots=True)
class ArrayWrite:
    """A write of the objects of an array: `body.text` is a JSON array of `count` of them."""

    table: str
    token: Presented | None
    body: Body
    count: int
    select: Select = None
    exactly_one: bool = False
    """PostgREST's single-object form: anything but one row is refused, and nothing is written."""
    once: IdempotentRequest | None = None
    most: int | None = None
    """How many rows the request may write at most, as its caller wants it."""
    shown: bool = True
    """Whether the answer has the rows; else no column is read but key and mark."""
