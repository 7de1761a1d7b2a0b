"""Query strings: what is refused, and what SQL they become: quoted identifiers, and no value in its text."""

import re
from contextlib import suppress
from dataclasses import replace
from typing import Literal, get_args
from urllib.parse import quote_from_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.server.http.query import MAX_DEPTH, MAX_TERMS, parse_query
from fencepost.server.postgres.connection import Bound, compiled
from fencepost.server.postgres.query import (
    CAST,
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
    render_filters,
    render_select,
)
from fencepost.server.postgres.tables import MARK_COLUMN, Column, Table, quote


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            "status=foo.bar",
            "status=foo.bar: unknown operator foo; known are eq, neq, isdistinct, gt, gte, lt, lte, like",
        ),
        ("tags=cs.{a}", "tags=cs.{a}: operator cs is not supported; supported are eq, neq"),
        ("t=eq(any).{1}", "t=eq(any).{1}: eq(any) and eq(all) are not supported"),
        ("a=1", "a=1: a filter is written operator.value"),
        ("a=EQ.1", "unknown operator EQ"),
        ("=eq.1", "expected a column's name"),
        ("a=in.1,2", "expected ( before the values of in at character 4, found '1'"),
        ("a=in.(1,2", "expected ) after the values of in at character 8, found the end"),
        ("a=is.nul", "a=is.nul: is takes null, not_null, true, false, unknown"),
        ("rel.a=eq.1", "embedded resources are not supported; quote a column's name that has a dot"),
        ("a(b=eq.1", 'quote unusual ones: "a,b"'),
        ('""=eq.1', "expected a name, closed by"),
        ('a->"b=eq.1', "expected a JSON key, closed by"),
        ("a->>b->c=eq.1", "->> gives text"),
        ("a->2147483648=eq.1", "2147483648 is out of range"),
        ("a" + "->b" * 33 + "=eq.1", "a JSON path of more than 32 steps"),
        ("or=()", "expected a column's name"),
        ("or=(a)", "expected .operator.value after the column"),
        ("or=a.eq.1", "expected ( before the conditions"),
        ("or=(a.eq.1", "expected , or )"),
        ("or=(a.foo.1)", "unknown operator foo"),
        ("order=rel(a)", "embedded resources and aggregates are not supported"),
        ("select=rel(*)", "select=rel(*): embedded resources and aggregates are not supported"),
        ("select=count()", "aggregates are not supported"),
        ("select=...rel(a)", "embedded resources and aggregates are not supported"),
        ("select=b:*", "* cannot have an alias"),
        ("select=" + ",".join("a" * 251), "select: 251 columns; at most 250"),
        ("select=a->", "expected a JSON key or array index"),
        ("select=a::", "'' is no type's name"),
        ("select=a::int;drop table x", "no type's name"),
        ("select=a b,*c", "expected a comma, ::type or the end"),
        ("order=a.ascending", "expected a comma, or .asc or .desc"),
        ('a=in.("b,c)', 'begins with " and does not end with one before , or )'),
        ('or=(a.eq."b,c.eq.1)', 'begins with " and does not end with one before , or )'),
        ('a=in.("b"c)', 'begins with " and does not end with one before , or )'),
        ('a=in.("b", "c")', 'begins with " and does not end with one before , or )'),
        ("limit=-1", "limit=-1: must be a whole number from 0"),
        ("limit=1.0", "must be a whole number"),
        ("offset=9223372036854775808", "offset=9223372036854775808: must be a whole number"),
        ("limit=1&limit=1", "limit: given twice"),
        ("on_conflict=a", "on_conflict: not supported"),
        ("a=eq.%2", "must be followed by two hexadecimal digits"),
        ("a=eq.%ff", "is not UTF-8"),
        ("a=eq.%00", "has no character NUL"),
    ],
)
def test_what_is_not_understood_is_refused_with_a_reason(raw: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(raw.encode())
    assert message in str(caught.value)


@pytest.mark.parametrize("raw", [b"a=%s", b"a->%s=eq.1", b"select=a::%s!", b"limit=%s", b"or=(a.%s.1)", b"a=eq.1&%s"])
def test_an_error_shows_a_long_parameter_shortened(raw: bytes) -> None:
    with pytest.raises(QueryError) as caught:
        parse_query(raw.replace(b"%s", b"9" * 10_000))
    assert len(str(caught.value)) < 400


def nested(depth: int) -> bytes:
    return b"and=" + b"(and" * (depth - 1) + b"(a.eq.1" + b")" * depth


def test_nesting_is_bounded() -> None:
    assert parse_query(nested(MAX_DEPTH)).filters
    for depth in (MAX_DEPTH + 1, 20_000):
        with pytest.raises(QueryError, match="nested more than 32 deep"):
            parse_query(nested(depth))


def test_the_number_of_terms_is_bounded_but_not_the_length_of_a_list() -> None:
    assert len(parse_query(b"&".join([b"a=eq.1"] * MAX_TERMS)).filters) == MAX_TERMS
    with pytest.raises(QueryError, match="1001 filters"):
        parse_query(b"&".join([b"a=eq.1"] * MAX_TERMS) + b"&order=a")
    (only,) = parse_query(b"a=in.(" + b",".join([b"1"] * 20_000) + b")").filters
    assert isinstance(only, Condition)
    assert len(only.value) == 20_000


def test_blanks_count_in_values_and_nowhere_else() -> None:
    query = parse_query(b"%20status%09=in.(%20lead,%20b)&%20limit=1&or=(%20a.eq.%20b%20,%20c.is.null%20)&a=eq.%20b")
    assert query.limit == 1
    names, either, plain = query.filters
    assert names == Condition(Field("status"), "in", (" lead", " b"))
    assert either == Group("or", (Condition(Field("a"), "eq", " b "), Condition(Field("c"), "is", "null")))
    assert plain == Condition(Field("a"), "eq", " b")
    assert parse_query(b"a=in.(%20)").filters == (Condition(Field("a"), "in", (" ",)),)
    with pytest.raises(QueryError, match="limit: given twice"):
        parse_query(b"limit=1&limit%20=2")


HOSTILE_NAME = 'a"); DROP TABLE x; --'


def column(name: str, base_type: str, base_name: str, type_: str | None = None, labels: tuple[str, ...] = ()) -> Column:
    return Column(
        name=name,
        type=type_ or base_type,
        base_type=base_type,
        base_name=base_name,
        nullable=True,
        default=None,
        generated=False,
        identity="",
        comment=None,
        enum_labels=labels,
    )


COLUMNS = (
    column("n", "integer", "int4"),
    column("t", "text", "text"),
    column("a", "integer[]", "_int4"),
    column("j", "jsonb", "jsonb"),
    column("m", "public.mood", "mood", "public.mood_domain", ("sad", "ok")),
    column(HOSTILE_NAME, "text", "text"),
    column(MARK_COLUMN, "bigint", "int8"),
)
TABLE = Table(
    oid=1,
    schema="public",
    relation="things",
    name="things",
    kind="table",
    comment=None,
    row_security=False,
    columns={each.name: each for each in COLUMNS},
    key=("n",),
)


def in_full(sql: str) -> str:
    """Write `{=}` as PostgreSQL's own operator, whatever the search_path has."""
    return re.sub(r"{([^\w ]+)}", r"OPERATOR(pg_catalog.\1)", sql)


@pytest.mark.parametrize(
    ("raw", "sql", "values"),
    [
        ("", "true", []),
        ("n=neq.1&t=lt.b", 'r."n" {<>} CAST($1::text AS integer) AND r."t" {<} CAST($2::text AS text)', ["1", "b"]),
        ("t=like.*a%25_", 'r."t" {~~} $1::text', ["%a%_"]),
        ("n=in.(1,2)", 'r."n" {=} ANY (CAST($1::text[] AS integer[]))', [["1", "2"]]),
        (
            'a=in.("{1,2}")',
            'r."a" {=} ANY (SELECT CAST(v AS integer[]) FROM pg_catalog.unnest($1::text[]) AS v)',
            [["{1,2}"]],
        ),
        ("m=gt.sad", 'CAST(r."m" AS public.mood) {>} CAST($1::text AS public.mood)', ["sad"]),
        (
            "or=(n.eq.1,not.and(t.eq.2,n.is.null))",
            '(r."n" {=} CAST($1::text AS integer) OR NOT (r."t" {=} CAST($2::text AS text) AND r."n" IS NULL))',
            ["1", "2"],
        ),
        (
            "j->a->0->>b=eq.x",
            '(r."j" {->} $1::text {->} CAST($2::text AS integer) {->>} $3::text) {=} CAST($4::text AS text)',
            ["a", "0", "b", "x"],
        ),
        (
            "a->0=eq.2",
            '(pg_catalog.to_jsonb(r."a") {->} CAST($1::text AS integer)) {=} CAST($2::text AS jsonb)',
            ["0", "2"],
        ),
        ('"a\\"); DROP TABLE x; --"=eq.1', f"r.{quote(HOSTILE_NAME)} {{=}} CAST($1::text AS text)", ["1"]),
    ],
)
def test_a_filter_becomes_sql_with_bound_values(raw: str, sql: str, values: list[str | list[str]]) -> None:
    bound = Bound()
    # Nothing is added to the filters of a foreign table: see render_filters.
    text = render_filters(replace(TABLE, kind="foreign table"), parse_query(raw.encode()).filters, bound)
    statement = compiled(text, bound.parameters)
    assert statement.sql == in_full(sql)
    assert statement.arguments(None) == values


ALL = f'r."n", r."t", r."a", r."j", r."m", r.{quote(HOSTILE_NAME)}'


@pytest.mark.parametrize(
    ("raw", "sql"),
    [
        ("", ALL),
        ("select=*,last_fence_token", f'{ALL}, r."last_fence_token"::text AS "last_fence_token"'),
        ("select=mark:last_fence_token", 'r."last_fence_token"::text AS "mark"'),
        ('select="x\\"y":n::text', 'CAST(r."n" AS text) AS "x""y"'),
        ("select=j->a->0", '(r."j" {->} $1::text {->} CAST($2::text AS integer)) AS "a"'),
        ("select=j->>k::numeric(4,1)", 'CAST((r."j" {->>} $1::text) AS numeric(4,1)) AS "k"'),
    ],
)
def test_a_select_becomes_a_target_list(raw: str, sql: str) -> None:
    bound = Bound()
    text = render_select(TABLE, parse_query(raw.encode()).select, bound)
    assert compiled(text, bound.parameters).sql == in_full(sql)


@pytest.mark.parametrize(
    "item",
    [
        Selected(Field("n"), cast="int) FROM x --"),
        Selected(Field("n"), cast='"int"'),
        Selected(Field("n"), alias="é" * 32),
        Selected(Field("j", (JsonStep("", as_text=False),))),
    ],
)
def test_a_selected_column_that_sql_cannot_express_is_refused(item: Selected) -> None:
    with pytest.raises(QueryError, match=r"^select: "):
        render_select(TABLE, (item,), Bound())


@pytest.mark.parametrize("raw", ["t->>a=is.null", "n->0=eq.1", "m->>a=is.null", "or=(n.eq.1,t->a.is.null)"])
def test_a_path_into_what_has_no_parts_is_refused(raw: str) -> None:
    with pytest.raises(QueryError, match="into which no JSON path leads"):
        render_filters(TABLE, parse_query(raw.encode()).filters, Bound())


@pytest.mark.parametrize("operator", get_args(Operator))
def test_an_operator_is_named_in_full_and_compares_values_of_types_that_are_looked_at(operator: Operator) -> None:
    """The search_path may have other operators first, and a column another type by now."""
    value = ("5",) if operator == "in" else "null" if operator == "is" else "5"
    sql = render_filters(TABLE, (Condition(Field("n"), operator, value),), Bound())
    term = sql.partition(" AND ")[0]
    bare = re.sub(r"OPERATOR\(pg_catalog\.[^)]+\)", "", term)
    assert not re.search(r"[=<>~!]|DISTINCT|LIKE|BETWEEN|NULLIF", bare), "an operator without its schema"
    if operator not in CAST:  # the first compares nothing; of what has patterns PostgreSQL decides
        assert "CAST(" not in term
        assert sql == term
    else:
        assert re.search(r"CAST\([^)]* AS integer", term), "the value is cast to the column's type"
        assert "fencepost.outdated" in sql, "and the column's type is looked at"


# Queries written as text and read back: every value, however hostile, survives.
# What is quoted follows PostgREST's documentation, not the parser.

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


@given(QUERIES)
def test_a_query_written_as_text_is_read_back_the_same(query: Query) -> None:
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
    text = "&".join(
        quote_from_bytes(name.encode(), safe="") + "=" + quote_from_bytes(value.encode(), safe="")
        for name, value in pairs
    )
    assert parse_query(text.encode()) == query


@given(st.one_of(st.binary(), st.text(alphabet='ab.,()"\\%&=:->*eqinots orderselect1{}').map(str.encode)))
@settings(max_examples=500)
def test_random_bytes_raise_nothing_but_query_errors(raw: bytes) -> None:
    with suppress(QueryError):
        parse_query(raw)
