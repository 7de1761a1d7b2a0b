"""What SQL a query becomes: quoted identifiers from the catalog, and no value in its text."""

import re

import pytest

from fencepost.http.requests.query import parse_query
from fencepost.storage.statements.parameters import Bound, compiled
from fencepost.storage.statements.query import (
    Field,
    JsonStep,
    QueryError,
    Selected,
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
        (
            "n=neq.1&t=lt.b",
            'r."n" {<>} CAST($1::text AS integer) AND r."t" {<} CAST($2::text AS text)',
            ["1", "b"],
        ),
        ("t=like.*a%25_", 'r."t" {~~} $1::text', ["%a%_"]),
        ("n=in.(1,2)", 'r."n" {=} ANY (CAST($1::text[] AS integer[]))', [["1", "2"]]),
        (
            'a=in.("{1,2}")',
            'r."a" {=} ANY (SELECT CAST(v AS integer[]) FROM pg_catalog.unnest($1::text[]) AS v)',
            [["{1,2}"]],
        ),
        ("m=gt.sad", 'CAST(r."m" AS public.mood) {>} CAST($1::text AS public.mood)', ["sad"]),
        ("n=is.null", 'r."n" IS NULL', []),
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
        ("select=*,last_fence_token", f'{ALL}, r."last_fence_token"::text AS "last_fence_token"'),
        ("select=mark:last_fence_token", 'r."last_fence_token"::text AS "mark"'),
        ('select="x\\"y":n::text', 'CAST(r."n" AS text) AS "x""y"'),
        (
            "select=j->a->0",
            '(r."j" {->} $1::text {->} CAST($2::text AS integer)) AS "a"',
        ),
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
