"""The oracle of the query tests: filters and orders evaluated in Python, over eight fixed rows.

It shares nothing with the code under test: it has its own trees, its own way of writing them as text, and
three-valued logic of its own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

THINGS = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE DOMAIN moods AS mood;
CREATE TABLE things (id int PRIMARY KEY, n int, q numeric(6,2), t text COLLATE "C", c char(4) COLLATE "C",
                     b boolean, m mood, dm moods, j jsonb, last_fence_token bigint);
INSERT INTO things VALUES
  (1, 5, 1.50, 'apple', 'ab', true, 'ok', 'happy', '{"k": "x", "list": [1, {"z": null}], "5": "five"}',
   9007199254740993),
  (2, -3, 0, 'Apple', 'AB', false, 'happy', 'sad', '{"k": "y", "n": 7}', 0),
  (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0),
  (4, 5, 99.99, '', '', NULL, 'sad', 'ok', '[10, 20, 30]', 0),
  (5, 0, 1.5, 'a,b "c" (d)', 'a', false, NULL, 'ok', '"text"', 0),
  (6, 2147483647, -7.25, '50%_*', 'ab c', true, 'happy', NULL, '{"k": null}', 0),
  (7, NULL, 2, 'é', NULL, true, 'sad', 'sad', '{"k": "x"}', 0),
  (8, -3, NULL, 'b', 'b', NULL, 'ok', 'happy', '{}', 0);
"""

MOODS = ["sad", "ok", "happy"]
ROWS: list[dict[str, Any]] = [
    dict(zip(("id", "n", "q", "t", "c", "b", "m", "dm"), row, strict=True))
    for row in (
        (1, 5, Decimal("1.50"), "apple", "ab", True, 1, 2), (2, -3, Decimal(0), "Apple", "AB", False, 2, 0),
        (3, None, None, None, None, None, None, None), (4, 5, Decimal("99.99"), "", "", None, 0, 1),
        (5, 0, Decimal("1.5"), 'a,b "c" (d)', "a", False, None, 1),
        (6, 2147483647, Decimal("-7.25"), "50%_*", "ab c", True, 2, None),
        (7, None, Decimal(2), "é", None, True, 0, 0), (8, -3, None, "b", "b", None, 1, 2),
    )
]  # fmt: skip

# How the text of a value compares with a row's value, by column.
READ: dict[str, Callable[[str], Any]] = {
    "id": int, "n": int, "q": Decimal, "t": lambda text: text.encode(), "c": lambda text: text.rstrip(" ").encode(),
    "b": lambda text: text == "true", "m": MOODS.index, "dm": MOODS.index,
}  # fmt: skip
TEXTS = ["apple", "Apple", "", "a", "ab", "AB ", 'a,b "c" (d)', "50%_*", "é", "b", "\\", "zebra", "null"]
VALUES: dict[str, list[str]] = {
    "id": ["1", "4", "8", "99"], "n": ["5", "-3", "0", " 2147483647", "17"],
    "q": ["1.5", "1.500", "0", "-7.25", "1e2", "2"], "t": TEXTS, "c": TEXTS, "b": ["true", "false"], "m": MOODS,
    "dm": MOODS,
}  # fmt: skip
PATTERNS = ["*", "%", "a*", "*a*", "A%", "_", "ab_*", "50\\%*", "*\\_*", "*,*", "Apple", "apple ", "", "*(*)"]


@dataclass(frozen=True)
class Leaf:
    column: str
    operator: str
    value: str | tuple[str, ...]
    negated: bool

    def holds(self, row: dict[str, Any]) -> bool | None:
        return invert(self._holds(row[self.column])) if self.negated else self._holds(row[self.column])

    def _holds(self, actual: Any) -> bool | None:
        if self.operator == "is":
            expected = {"null": None, "unknown": None, "true": True, "false": False}
            return actual is not None if self.value == "not_null" else actual is expected[str(self.value)]
        if self.operator == "in" and not self.value:
            return False
        if actual is None:
            return True if self.operator == "isdistinct" else None
        if isinstance(self.value, tuple):
            return comparable(actual) in [READ[self.column](value) for value in self.value]
        if self.operator in {"like", "ilike"}:
            return matches(actual, self.value, ignore_case=self.operator == "ilike")
        left, right = comparable(actual), READ[self.column](self.value)
        return bool(
            {
                "eq": left == right, "neq": left != right, "isdistinct": left != right, "gt": left > right,
                "gte": left >= right, "lt": left < right, "lte": left <= right,
            }[self.operator]
        )  # fmt: skip

    def pair(self) -> tuple[str, str]:
        """Write it as a parameter of its own, whose value is not quoted."""
        return self.column, self._operation(lambda value: value)

    def text(self) -> str:
        """Write it as a member of and(…), or(…); of the two ways to negate, each column takes one."""
        operation = self._operation(quoted)
        if self.negated and self.column in {"n", "t"}:
            return f"not.{self.column}.{operation.removeprefix('not.')}"
        return f"{self.column}.{operation}"

    def _operation(self, write: Callable[[str], str]) -> str:
        if isinstance(self.value, tuple):
            value = "(" + ",".join(map(quoted, self.value)) + ")"
        else:
            value = self.value if self.operator == "is" else write(self.value)
        return f"{'not.' if self.negated else ''}{self.operator}.{value}"


@dataclass(frozen=True)
class Tree:
    operator: str
    members: tuple["Leaf | Tree", ...]
    negated: bool

    def holds(self, row: dict[str, Any]) -> bool | None:
        results = [member.holds(row) for member in self.members]
        decisive = self.operator == "or"
        result = decisive if decisive in results else None if None in results else not decisive
        return invert(result) if self.negated else result

    def text(self) -> str:
        members = ",".join(each.text() for each in self.members)
        return f"{'not.' if self.negated else ''}{self.operator}({members})"


def invert(result: bool | None) -> bool | None:
    return None if result is None else not result


def comparable(actual: Any) -> Any:
    return actual.encode() if isinstance(actual, str) else actual


def matches(actual: str, pattern: str, *, ignore_case: bool) -> bool:
    wild = {"%": ".*", "*": ".*", "_": "."}
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    expression = "".join(wild.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(expression, actual, re.DOTALL | (re.IGNORECASE if ignore_case else 0)) is not None


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def leaves() -> st.SearchStrategy[Leaf]:
    def on(column: str) -> st.SearchStrategy[Leaf]:
        values = st.sampled_from(VALUES[column])
        operators: list[st.SearchStrategy[tuple[str, str | tuple[str, ...]]]] = [
            st.tuples(st.sampled_from(["eq", "neq", "isdistinct", "gt", "gte", "lt", "lte"]), values),
            st.tuples(st.just("in"), st.lists(values, max_size=4).map(tuple)),
            st.tuples(st.just("is"), st.sampled_from(["null", "not_null"])),
        ]
        if column == "b":
            operators.append(st.tuples(st.just("is"), st.sampled_from(["true", "false", "unknown"])))
        pairs = st.tuples(st.one_of(operators), st.booleans())
        return pairs.map(lambda pair: Leaf(column, *pair[0], negated=pair[1]))

    patterns = st.builds(
        Leaf, st.just("t"), st.sampled_from(["like", "ilike"]), st.sampled_from(PATTERNS), st.booleans()
    )
    return st.one_of(st.one_of([on(column) for column in VALUES]), on("t"), patterns)


def trees() -> st.SearchStrategy[Leaf | Tree]:
    operators = st.sampled_from(["and", "or"])

    def over(inner: st.SearchStrategy[Leaf | Tree]) -> st.SearchStrategy[Leaf | Tree]:
        return st.builds(Tree, operators, st.lists(inner, min_size=1, max_size=3).map(tuple), st.booleans())

    return st.recursive(leaves(), over, max_leaves=8)


ORDERS = st.lists(
    st.tuples(
        st.sampled_from(list(VALUES)),
        st.sampled_from(["", ".asc", ".desc"]),
        st.sampled_from(["", ".nullsfirst", ".nullslast"]),
    ),
    max_size=3,
)


def ordered(rows: list[dict[str, Any]], order: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Sort by the last term first: Python's sort is stable, in both directions."""
    rows = sorted(rows, key=lambda row: row["id"])
    for column, direction, nulls in reversed(order):
        descending = direction == ".desc"
        present = [row for row in rows if row[column] is not None]
        present.sort(key=lambda row: comparable(row[column]), reverse=descending)
        absent = [row for row in rows if row[column] is None]
        first = nulls == ".nullsfirst" or (not nulls and descending)
        rows = absent + present if first else present + absent
    return rows
