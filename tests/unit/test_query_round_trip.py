"""Queries written as text and read back: every value, however hostile, survives.

What is quoted follows PostgREST's documentation, not the parser.
"""

from contextlib import suppress
from typing import Literal, get_args
from urllib.parse import quote_from_bytes

from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.server.http.query import parse_query
from fencepost.server.postgres.query import (
    Condition,
    Field,
    Filter,
    Group,
    JsonStep,
    Operator,
    OrderTerm,
    Query,
    QueryError,
    Selected,
)

HOSTILE = st.text(
    st.one_of(
        st.sampled_from("\",.()\\%&+=:*>-{}' \t_;é→a1!#/?"),
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
    )
)
NAMES = HOSTILE.filter(bool)
SINGLE_VALUED: list[Operator] = [each for each in get_args(Operator) if each not in {"in", "is"}]
CASTS = st.sampled_from(["text", "int", "double precision", "numeric(10,2)", "public.mood", "text[]"])


@st.composite
def fields(draw: st.DrawFn) -> Field:
    keys = draw(st.lists(st.one_of(HOSTILE, st.integers(-(2**31) + 1, 2**31 - 1)), max_size=3))
    last = draw(st.booleans())
    return Field(draw(NAMES), tuple(JsonStep(key, as_text=last and n == len(keys) - 1) for n, key in enumerate(keys)))


CONDITIONS = st.one_of(
    st.builds(Condition, fields(), st.sampled_from(SINGLE_VALUED), HOSTILE, st.booleans()),
    st.builds(Condition, fields(), st.just("in"), st.lists(HOSTILE, max_size=4).map(tuple), st.booleans()),
    st.builds(
        Condition,
        fields(),
        st.just("is"),
        st.sampled_from(["null", "not_null", "true", "false", "unknown"]),
        st.booleans(),
    ),
)


def groups(members: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    return st.builds(
        Group, st.sampled_from(["and", "or"]), st.lists(members, min_size=1, max_size=3).map(tuple), st.booleans()
    )


ITEMS: st.SearchStrategy[Selected | Literal["*"]] = st.one_of(
    st.just("*"), st.builds(Selected, fields(), st.none() | NAMES, st.none() | CASTS)
)
QUERIES = st.builds(
    Query,
    select=st.none() | st.lists(ITEMS, min_size=1, max_size=4).map(tuple),
    filters=st.lists(st.recursive(CONDITIONS, groups, max_leaves=8), max_size=4).map(tuple),
    order=st.lists(
        st.builds(OrderTerm, fields(), st.booleans(), st.sampled_from([None, "first", "last"])), max_size=3
    ).map(tuple),
    limit=st.none() | st.integers(0, 2**63 - 1),
    offset=st.integers(0, 2**63 - 1),
    columns=st.none() | st.lists(NAMES, min_size=1, max_size=3).map(tuple),
)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def field_text(field: Field) -> str:
    steps = (
        ("->>" if step.as_text else "->") + (quoted(step.key) if isinstance(step.key, str) else str(step.key))
        for step in field.path
    )
    return quoted(field.column) + "".join(steps)


def operation_text(each: Condition, *, nested: bool) -> str:
    value = each.value
    if isinstance(value, tuple):
        value = "(" + ",".join(quoted(element) for element in value) + ")"
    elif nested and each.operator != "is":
        value = quoted(value)
    return ("not." if each.negated else "") + f"{each.operator}.{value}"


def filter_text(each: Filter) -> str:
    if isinstance(each, Condition):
        return f"{field_text(each.field)}.{operation_text(each, nested=True)}"
    return ("not." if each.negated else "") + each.operator + group_text(each)


def group_text(group: Group) -> str:
    return "(" + ",".join(filter_text(member) for member in group.members) + ")"


def selected_text(item: Selected | Literal["*"]) -> str:
    if item == "*":
        return item
    assert isinstance(item, Selected)
    alias = "" if item.alias is None else quoted(item.alias) + ":"
    return alias + field_text(item.field) + ("" if item.cast is None else f"::{item.cast}")


def order_text(term: OrderTerm) -> str:
    return field_text(term.field) + (".desc" if term.descending else "") + (f".nulls{term.nulls}" if term.nulls else "")


def query_text(query: Query) -> bytes:
    pairs: list[tuple[str, str]] = [("offset", str(query.offset))]
    for each in query.filters:
        if isinstance(each, Condition):
            pairs.append((field_text(each.field), operation_text(each, nested=False)))
        else:
            pairs.append((("not." if each.negated else "") + each.operator, group_text(each)))
    if query.select is not None:
        pairs.append(("select", ",".join(selected_text(item) for item in query.select)))
    if query.order:
        pairs.append(("order", ",".join(order_text(term) for term in query.order)))
    if query.limit is not None:
        pairs.append(("limit", str(query.limit)))
    if query.columns is not None:
        pairs.append(("columns", ",".join(quoted(name) for name in query.columns)))
    return "&".join(
        quote_from_bytes(name.encode(), safe="") + "=" + quote_from_bytes(value.encode(), safe="")
        for name, value in pairs
    ).encode()


@given(QUERIES)
def test_a_query_written_as_text_is_read_back_the_same(query: Query) -> None:
    assert parse_query(query_text(query)) == query


@given(st.one_of(st.binary(), st.text(alphabet='ab.,()"\\%&=:->*eqinots orderselect1{}').map(str.encode)))
@settings(max_examples=500)
def test_random_bytes_raise_nothing_but_query_errors(raw: bytes) -> None:
    with suppress(QueryError):
        parse_query(raw)
