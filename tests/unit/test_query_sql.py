"""What SQL a query becomes: quoted identifiers from the catalog, and no value in its text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.fencing.token import Token
from fencepost.http.requests.query import parse_query
from fencepost.storage.statements.parameters import BODY, TOKEN, Bound, RowWrite, compiled
from fencepost.storage.statements.query import (
    Condition,
    Field,
    Filter,
    Group,
    JsonStep,
    QueryError,
    Selected,
    UnknownColumnError,
)
from fencepost.storage.statements.query_sql import render_filters, render_order, render_select
from fencepost.storage.tables.catalog import MARK_COLUMN, Column, Table, quote

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
        ("n=eq.1", 'r."n" {=} CAST($1::text AS integer)', ["1"]),
        ("n=not.gte.1", 'NOT (r."n" {>=} CAST($1::text AS integer))', ["1"]),
        (
            "n=neq.1&t=lt.b",
            'r."n" {<>} CAST($1::text AS integer) AND r."t" {<} CAST($2::text AS text)',
            ["1", "b"],
        ),
        ("t=like.*a%25_", 'r."t" {~~} $1::text', ["%a%_"]),
        ("n=ilike.*", 'r."n" {~~*} $1::text', ["%"]),
        ("n=in.(1,2)", 'r."n" {=} ANY (CAST($1::text[] AS integer[]))', [["1", "2"]]),
        ("n=in.()", 'r."n" {=} ANY (CAST($1::text[] AS integer[]))', [[]]),
        (
            'a=in.("{1,2}")',
            'r."a" {=} ANY (SELECT CAST(v AS integer[]) FROM pg_catalog.unnest($1::text[]) AS v)',
            [["{1,2}"]],
        ),
        ("m=gt.sad", 'CAST(r."m" AS public.mood) {>} CAST($1::text AS public.mood)', ["sad"]),
        ("n=is.null", 'r."n" IS NULL', []),
        ("n=not.is.not_null", 'NOT (r."n" IS NOT NULL)', []),
        ("n=is.true", 'r."n" IS TRUE', []),
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
            "j->-1=eq.2",
            '(r."j" {->} CAST($1::text AS integer)) {=} CAST($2::text AS jsonb)',
            ["-1", "2"],
        ),
        (
            "a->0=eq.2",
            '(pg_catalog.to_jsonb(r."a") {->} CAST($1::text AS integer)) {=} CAST($2::text AS jsonb)',
            ["0", "2"],
        ),
        (
            '"a\\"); DROP TABLE x; --"=eq.1',
            f"r.{quote(HOSTILE_NAME)} {{=}} CAST($1::text AS text)",
            ["1"],
        ),
    ],
)
def test_a_filter_becomes_sql_with_bound_values(raw: str, sql: str, values: list[str | list[str]]) -> None:
    bound = Bound()
    text = render_filters(TABLE, parse_query(raw.encode()).filters, bound)
    statement = compiled(text, bound.parameters)
    assert statement.sql == in_full(sql)
    assert statement.arguments(None) == values


@pytest.mark.parametrize(
    ("raw", "sql"),
    [
        ("", ""),
        ("order=n", 'r."n"'),
        ("order=n.desc.nullslast,t.nullsfirst", 'r."n" DESC NULLS LAST, r."t" NULLS FIRST'),
        ("order=j->>k.desc", '(r."j" {->>} $1::text) DESC'),
    ],
)
def test_an_order_becomes_sql(raw: str, sql: str) -> None:
    bound = Bound()
    text = render_order(TABLE, parse_query(raw.encode()).order, bound)
    assert compiled(text, bound.parameters).sql == in_full(sql)


ALL = f'r."n", r."t", r."a", r."j", r."m", r.{quote(HOSTILE_NAME)}'


@pytest.mark.parametrize(
    ("raw", "sql"),
    [
        ("", ALL),
        ("select=*", ALL),
        ("select=*,last_fence_token", f'{ALL}, r."last_fence_token"::text AS "last_fence_token"'),
        ("select=mark:last_fence_token", 'r."last_fence_token"::text AS "mark"'),
        ("select=n,n", 'r."n" AS "n", r."n" AS "n"'),
        ('select="x\\"y":n::text', 'CAST(r."n" AS text) AS "x""y"'),
        (
            "select=j->a->0",
            '(r."j" {->} $1::text {->} CAST($2::text AS integer)) AS "a"',
        ),
        ("select=j->0", '(r."j" {->} CAST($1::text AS integer)) AS "j"'),
        ("select=j->>k::numeric(4,1)", 'CAST((r."j" {->>} $1::text) AS numeric(4,1)) AS "k"'),
    ],
)
def test_a_select_becomes_a_target_list(raw: str, sql: str) -> None:
    bound = Bound()
    text = render_select(TABLE, parse_query(raw.encode()).select, bound)
    assert compiled(text, bound.parameters).sql == in_full(sql)


def test_parameters_are_numbered_in_the_order_in_which_they_are_given() -> None:
    bound = Bound()
    where = render_filters(TABLE, parse_query(b"n=eq.1&t=eq.x").filters, bound, alias="o")
    statement = compiled(f"{where} AND o.mark < {TOKEN} AND {TOKEN} > 0", (TOKEN, BODY, *bound.parameters))
    assert statement.sql == in_full(
        'o."n" {=} CAST($2::text AS integer) AND o."t" {=} CAST($3::text AS text)'
        " AND o.mark < $1::bigint AND $1::bigint > 0"
    )
    assert statement.arguments(RowWrite((), Token(7))) == [7, "1", "x"]


def test_a_parameter_that_nothing_gives_is_an_error() -> None:
    with pytest.raises(ValueError, match="no parameter token"):
        compiled(f"SELECT {TOKEN}", (BODY,))


@pytest.mark.parametrize("raw", ["x=eq.1", "or=(x.eq.1)", "x->a=is.null", "order=x", "select=x", "select=n,y:x::int"])
def test_an_unknown_column_is_named_with_its_table(raw: str) -> None:
    query = parse_query(raw.encode())

    def render() -> str:
        where = render_filters(TABLE, query.filters, Bound())
        order = render_order(TABLE, query.order, Bound())
        return where + order + render_select(TABLE, query.select, Bound())

    with pytest.raises(UnknownColumnError, match="x: no such column in things") as caught:
        render()
    assert (caught.value.column, caught.value.table) == ("x", "things")


@pytest.mark.parametrize(
    "item",
    [
        Selected(Field("n"), cast="int) FROM x --"),
        Selected(Field("n"), cast="text\n"),
        Selected(Field("n"), cast='"int"'),
        Selected(Field("n"), cast="int int"),
        Selected(Field("n"), cast="nothing"),
        Selected(Field("n"), alias=""),
        Selected(Field("n"), alias="é" * 32),
        Selected(Field("j", (JsonStep("", as_text=False),))),
    ],
)
def test_a_selected_column_that_sql_cannot_express_is_refused(item: Selected) -> None:
    with pytest.raises(QueryError, match=r"^select: "):
        render_select(TABLE, (item,), Bound())


def test_a_select_of_more_columns_than_postgresql_returns_is_refused() -> None:
    with pytest.raises(QueryError, match="at most 1600"):
        render_select(TABLE, ("*",) * 300, Bound())


@pytest.mark.parametrize(
    "wrong",
    [
        Condition(Field("n"), "eq", ("1",)),
        Condition(Field("n"), "in", "1"),
        Condition(Field("n"), "is", "NULL; --"),
    ],
)
def test_a_condition_that_no_query_string_makes_is_refused(wrong: Condition) -> None:
    with pytest.raises(QueryError):
        render_filters(TABLE, (wrong,), Bound())


def conditions(values: st.SearchStrategy[str]) -> st.SearchStrategy[Filter]:
    steps = st.lists(st.builds(JsonStep, values, st.just(value=False)), max_size=2).map(tuple)
    fields = st.builds(Field, st.sampled_from([each.name for each in COLUMNS]), steps)
    return st.one_of(
        st.builds(Condition, fields, st.sampled_from(["eq", "lt", "like", "ilike"]), values, st.booleans()),
        st.builds(Condition, fields, st.just("in"), st.lists(values, max_size=3).map(tuple), st.booleans()),
    )


def blank(filter_: Filter) -> Filter:
    """Return the filter with every value in it replaced by x."""
    if isinstance(filter_, Group):
        return Group(filter_.operator, tuple(blank(member) for member in filter_.members), filter_.negated)
    field = Field(filter_.field.column, tuple(JsonStep("x", step.as_text) for step in filter_.field.path))
    value = "x" if isinstance(filter_.value, str) else ("x",)
    return Condition(field, filter_.operator, value, filter_.negated)


@given(st.lists(conditions(st.text()), max_size=4))
def test_the_sql_is_the_same_whatever_the_values(filters: list[Filter]) -> None:
    given_, blanked = Bound(), Bound()
    sql = render_filters(TABLE, filters, given_)
    assert sql == render_filters(TABLE, [blank(each) for each in filters], blanked)
    assert len(given_.values) == len(blanked.values)
