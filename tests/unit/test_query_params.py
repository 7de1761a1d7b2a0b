"""The grammar of query strings, as tables of examples and of refusals."""

import pytest

from fencepost.http.requests.query import MAX_DEPTH, MAX_TERMS, parse_query
from fencepost.storage.statements.query import (
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


def condition(column: str, operator: Operator, value: str | tuple[str, ...], *, negated: bool = False) -> Condition:
    return Condition(Field(column), operator, value, negated)


A1 = condition("a", "eq", "1")
B2 = condition("b", "lt", "2")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("a=eq.1", A1),
        ("a=not.eq.1", condition("a", "eq", "1", negated=True)),
        ("a=neq.", condition("a", "neq", "")),
        ("v=eq.1.2.3", condition("v", "eq", "1.2.3")),
        ("v=eq.a,b)%22", condition("v", "eq", 'a,b)"')),
        ("v=eq.%22a%22", condition("v", "eq", '"a"')),
        ("v=eq.a+b%2Bc%26d%3De", condition("v", "eq", "a b+c&d=e")),
        ("v=eq.x=y", condition("v", "eq", "x=y")),
        ("v=like.*a*", condition("v", "like", "*a*")),
        ("v=not.ilike.b_", condition("v", "ilike", "b_", negated=True)),
        ("a=in.(1,2)", condition("a", "in", ("1", "2"))),
        ("a=in.( 1, 2 )", condition("a", "in", ("1", " 2 "))),
        ('a=in.(a,"b,c","say \\"hi\\"","\\\\")', condition("a", "in", ("a", "b,c", 'say "hi"', "\\"))),
        ('a=in.("a"b,c"d")', condition("a", "in", ('"a"b', 'c"d"'))),
        ("a=in.()", condition("a", "in", ())),
        ('a=in.("")', condition("a", "in", ("",))),
        ("a=in.(,)", condition("a", "in", ("", ""))),
        ("a=not.in.(1)", condition("a", "in", ("1",), negated=True)),
        ("a=is.NULL", condition("a", "is", "null")),
        ("a=not.is.Not_Null", condition("a", "is", "not_null", negated=True)),
        ("a=is.unknown", condition("a", "is", "unknown")),
        ("Unit%20Price=lt.2", condition("Unit Price", "lt", "2")),
        ("nic-hdl=lt.2", condition("nic-hdl", "lt", "2")),
        ("%D9%85%D9%88=lt.2", condition("مو", "lt", "2")),
        ('"weird,name.x"=lt.2', condition("weird,name.x", "lt", "2")),
        ('"select"=lt.2', condition("select", "lt", "2")),
        ('"a \\"b\\""=lt.2', condition('a "b"', "lt", "2")),
        (
            "data->a->0->>b=eq.x",
            Condition(Field("data", (JsonStep("a", False), JsonStep(0, False), JsonStep("b", True))), "eq", "x"),
        ),
        ("data->-2=eq.x", Condition(Field("data", (JsonStep(-2, False),)), "eq", "x")),
        ('data->"0"=eq.x', Condition(Field("data", (JsonStep("0", False),)), "eq", "x")),
        ("data->1x=eq.x", Condition(Field("data", (JsonStep("1x", False),)), "eq", "x")),
        ('data->>"a.b"=eq.x', Condition(Field("data", (JsonStep("a.b", True),)), "eq", "x")),
        ("or=(a.eq.1,b.lt.2)", Group("or", (A1, B2))),
        ("not.and=(a.eq.1)", Group("and", (A1,), negated=True)),
        ("not.or=( a.eq.1)", Group("or", (A1,), negated=True)),
        (
            "or=(a.eq.1,and(b.lt.2,not.c.is.null),not.or(a.not.eq.1))",
            Group(
                "or",
                (
                    A1,
                    Group("and", (B2, condition("c", "is", "null", negated=True))),
                    Group("or", (condition("a", "eq", "1", negated=True),), negated=True),
                ),
            ),
        ),
        ("and=(not.a.not.eq.1)", Group("and", (A1,))),
        ("and=(not.eq.1)", Group("and", (condition("not", "eq", "1"),))),
        ("and=(not.not.eq.1)", Group("and", (condition("not", "eq", "1", negated=True),))),
        (
            "and=(and.eq.1,or.in.(1,2))",
            Group("and", (condition("and", "eq", "1"), condition("or", "in", ("1", "2")))),
        ),
        ('and=(a.eq."x,)\\"",b.lt.2)', Group("and", (condition("a", "eq", 'x,)"'), B2))),
        ("and=(a.eq.{1,2},b.lt.2)", Group("and", (condition("a", "eq", "{1,2}"), B2))),
        ("and=(a.eq.,b.lt.2)", Group("and", (condition("a", "eq", ""), B2))),
        ('and=("x.y".eq.1)', Group("and", (condition("x.y", "eq", "1"),))),
        (
            "and=(d->0.is.true , d->>k.eq.1)",
            Group(
                "and",
                (
                    Condition(Field("d", (JsonStep(0, False),)), "is", "true"),
                    Condition(Field("d", (JsonStep("k", True),)), "eq", "1"),
                ),
            ),
        ),
    ],
)
def test_a_filter_is_read(raw: str, expected: Filter) -> None:
    assert parse_query(raw.encode()) == Query(filters=(expected,))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("", Query()),
        ("&&", Query()),
        ("select=", Query()),
        ("select=*", Query(select=("*",))),
        ("select=a, b ,*", Query(select=(Selected(Field("a")), Selected(Field("b")), "*"))),
        ("select=x:a", Query(select=(Selected(Field("a"), "x"),))),
        ("select=a::text", Query(select=(Selected(Field("a"), None, "text"),))),
        (
            "select=x:a::numeric(10,2),b::public.mood[],c::timestamp(3) with time zone",
            Query(
                select=(
                    Selected(Field("a"), "x", "numeric(10,2)"),
                    Selected(Field("b"), None, "public.mood[]"),
                    Selected(Field("c"), None, "timestamp(3) with time zone"),
                )
            ),
        ),
        (
            'select="x:y":"a,b"->c->>1::int',
            Query(select=(Selected(Field("a,b", (JsonStep("c", False), JsonStep(1, True))), "x:y", "int"),)),
        ),
        (
            "order=a.desc.nullslast, b,c.nullsfirst,d.asc",
            Query(
                order=(
                    OrderTerm(Field("a"), descending=True, nulls="last"),
                    OrderTerm(Field("b")),
                    OrderTerm(Field("c"), nulls="first"),
                    OrderTerm(Field("d")),
                )
            ),
        ),
        (
            'order=data->>k.desc,"a.b"',
            Query(
                order=(
                    OrderTerm(Field("data", (JsonStep("k", True),)), descending=True),
                    OrderTerm(Field("a.b")),
                )
            ),
        ),
        ("limit=0&offset=9223372036854775807", Query(limit=0, offset=2**63 - 1)),
        ('columns=a, "b,c"', Query(columns=("a", "b,c"))),
        ("a=eq.1&b=lt.2&a=eq.1", Query(filters=(A1, B2, A1))),
    ],
)
def test_a_query_is_read(raw: str, expected: Query) -> None:
    assert parse_query(raw.encode()) == expected


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("status=foo.bar", "status=foo.bar: unknown operator foo; known are eq, neq, gt, gte, lt, lte, like"),
        ("tags=cs.{a}", "tags=cs.{a}: operator cs is not supported; supported are eq, neq"),
        ("t=fts(english).x", "operator fts is not supported"),
        ("t=eq(any).{1}", "t=eq(any).{1}: eq(any) and eq(all) are not supported"),
        ("a=1", "a=1: a filter is written operator.value"),
        ("a", "a=: a filter is written operator.value"),
        ("a=eq", "a filter is written operator.value"),
        ("a=EQ.1", "unknown operator EQ"),
        ("a=not.1", "a filter is written operator.value"),
        ("=eq.1", "expected a column's name"),
        ("a=in.1,2", "expected ( before the values of in at character 4, found '1'"),
        ("a=in.(1,2", "expected ) after the values of in at character 8, found the end"),
        ("a=in.(1)x", "expected the end at character 7, found 'x'"),
        ("a=is.nul", "a=is.nul: is takes null, not_null, true, false, unknown"),
        ("a=is.null.", "expected the end"),
        ("rel.a=eq.1", "embedded resources are not supported; quote a column's name that has a dot"),
        ("rel.order=a", "embedded resources are not supported"),
        ("a(b=eq.1", 'quote unusual ones: "a,b"'),
        ('"a=eq.1', "expected a name, closed by"),
        ('""=eq.1', "expected a name, closed by"),
        ("a->=eq.1", "expected a JSON key"),
        ("a->-7x=eq.1", "expected a JSON key"),
        ('a->"b=eq.1', "expected a JSON key, closed by"),
        ("a->>b->c=eq.1", "->> gives text"),
        ("a->2147483648=eq.1", "2147483648 is out of range"),
        ("a->" + "9" * 5000 + "=eq.1", "out of range"),
        ("a" + "->b" * 33 + "=eq.1", "a JSON path of more than 32 steps"),
        ("or=", "or=: expected ( before the conditions"),
        ("or=()", "expected a column's name"),
        ("or=(a.eq.1", "expected , or ) at character 8, found the end"),
        ("or=(a.eq.1)x", "expected the end"),
        ("or=(a)", "expected .operator.value after the column"),
        ("or=(a.foo.1)", "unknown operator foo"),
        ("or=(a.in.(1)x)", "expected , or )"),
        ("or=(xor(a.eq.1))", "expected .operator.value"),
        ("select=rel(*)", "select=rel(*): embedded resources and aggregates are not supported"),
        ("select=...rel(*)", "embedded resources"),
        ("select=rel!inner(*)", "embedded resources"),
        ("select=x:rel(*)", "embedded resources"),
        ("select=count()", "aggregates are not supported"),
        ("select=a.sum()", "aggregates are not supported"),
        ("select=a::int.sum()", "'int.sum()' is no type's name"),
        ("select=a::", "'' is no type's name"),
        ("select=a::int);drop table x", "expected a comma, ::type or the end"),
        ("select=a::int;drop table x", "no type's name"),
        ("select=a::int--", "no type's name"),
        ('select=a::"char"', "no type's name"),
        ("select=x:*", "* cannot have an alias"),
        ("select=a,", "expected a column's name"),
        ("select=a b,*c", "expected a comma, ::type or the end"),
        ("order=", "expected a column's name"),
        ("order=a.ascending", "expected a comma, or .asc or .desc"),
        ("order=a.nullslast.desc", "expected a comma, or .asc or .desc"),
        ("order=rel(a)", "embedded resources"),
        ("columns=", "expected a column's name"),
        ("columns=a->b", "expected a comma or the end"),
        ("limit=-1", "limit=-1: must be a whole number from 0"),
        ("limit=", "must be a whole number"),
        ("limit=1.0", "must be a whole number"),
        ("offset=9223372036854775808", "offset=9223372036854775808: must be a whole number"),
        ("offset=%D9%A1", "must be a whole number"),
        ("limit=1&limit=1", "limit: given twice"),
        ("select=a&select=b", "select: given twice"),
        ("on_conflict=a", "on_conflict: not supported"),
        ("a=eq.%2", "must be followed by two hexadecimal digits"),
        ("a=eq.%ff", "is not UTF-8"),
        ("a=eq.%ED%A0%80", "is not UTF-8"),
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
