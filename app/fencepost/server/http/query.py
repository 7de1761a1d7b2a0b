"""PostgREST's query strings, read: `?status=eq.new&or=(a.gt.1,b.is.null)&select=a,b::text&order=a.desc`.

One function per parameter. Where PostgREST would ignore a parameter that it does not understand, this raises:
a filter that is overlooked makes a DELETE delete more than was asked. Embedded resources, aggregates, full
text search and the operators on arrays and ranges are not supported.
"""

import re
from typing import Literal, get_args

from fencepost.server.fence.resource import MalformedResourceError, decode_segment
from fencepost.server.postgres.query import (
    CAST_TYPE,
    NO_QUERY,
    PATTERNS,
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

# The words of PostgREST's query language: names, JSON paths and values, read off a text from left to right.
#
# What may stand where follows PostgREST's own parser (src/PostgREST/ApiRequest/QueryParams.hs). One difference:
# it ignores what follows a complete term (`id=in.(1)2`); here that is an error.
#
# Blanks are spaces and tabs. In a value each counts, also beside the comma or bracket that ends it; around names,
# commas and brackets they do not count.

_SHOWN = 120
_MAX_INDEX = 2**31 - 1
_MAX_STEPS = 32

_SPACES = re.compile(r"[ \t]*")
_NAME = re.compile(r"[\w $]+(?:-(?!>)[\w $]+)*")
_KEY = re.compile(r"[^(\-:.,>)]+(?:-(?!>)[^(\-:.,>)]+)*")
_INDEX = re.compile(r"-?[0-9]+(?=->|::|[.,]|\Z)")
_QUOTED = re.compile(r'"([^\\"]*(?:\\.[^\\"]*)*)"', re.DOTALL)
_QUOTED_VALUE = re.compile(_QUOTED.pattern + r"(?=[,)]|\Z)", re.DOTALL)
_BEGUN_QUOTE = re.compile(r"[ \t]*\"")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_BARE_VALUE = re.compile(r"[^,)]*")
_ARRAY_VALUE = re.compile(r"\{[^{}]*\}")


class Cursor:
    """A place in one parameter's value. `where` is how a QueryError names the parameter."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where if len(where) <= _SHOWN else where[:_SHOWN] + "…"
        self.position = 0

    def error(self, what: str) -> QueryError:
        return QueryError(f"{self.where}: {what}")

    def unexpected(self, wanted: str) -> QueryError:
        """Make an error that names what stands here instead of `wanted`."""
        found = repr(self.text[self.position]) if self.position < len(self.text) else "the end"
        return self.error(f"expected {wanted} at character {self.position + 1}, found {found}")

    def sees(self, literal: str) -> bool:
        """Whether `literal` comes next."""
        return self.text.startswith(literal, self.position)

    def accept(self, literal: str) -> bool:
        """Step over `literal` if it comes next."""
        if not self.sees(literal):
            return False
        self.position += len(literal)
        return True

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Step over what `pattern` matches here."""
        if match := pattern.match(self.text, self.position):
            self.position = match.end()
        return match

    def skip_spaces(self) -> None:
        """Step over spaces and tabs."""
        self.match(_SPACES)

    def accept_spaced(self, literal: str, *, before_value: bool = False) -> bool:
        """Step over `literal` with blanks around it; without it, stay. Before a value the blanks behind it remain."""
        start = self.position
        self.skip_spaces()
        if self.accept(literal):
            if not before_value:
                self.skip_spaces()
            return True
        self.position = start
        return False

    def expect_end(self, wanted: str) -> None:
        """Raise unless everything has been read."""
        if self.position < len(self.text):
            raise self.unexpected(wanted)

    def name(self) -> str:
        """Read a column's name: letters of any language, digits, `_ $`, spaces, single dashes; or quoted."""
        if self.sees('"'):
            name = self._quoted(_QUOTED)
            if not name:
                raise self.unexpected('a name, closed by "')
            return name
        start = self.position
        match = self.match(_NAME)
        name = match[0].strip() if match else ""
        if not name:
            self.position = start
            raise self.unexpected('a column\'s name (quote unusual ones: "a,b")')
        return name

    def field(self) -> Field:
        """Read a column and, if there is one, the path into it: `data->a->0->>b`."""
        self.skip_spaces()
        column = self.name()
        path: list[JsonStep] = []
        while self.accept("->"):
            if path and path[-1].as_text:
                raise self.error("->> gives text, so that nothing can be taken from it; use -> before the last step")
            if len(path) == _MAX_STEPS:
                raise self.error(f"a JSON path of more than {_MAX_STEPS} steps")
            as_text = self.accept(">")
            path.append(JsonStep(self._json_key(), as_text))
        self.skip_spaces()
        return Field(column, tuple(path))

    def _json_key(self) -> str | int:
        if index := self.match(_INDEX):
            if len(index[0]) > len(str(-_MAX_INDEX)) or abs(int(index[0])) > _MAX_INDEX:
                raise self.error(f"the JSON array index {index[0][:20]} is out of range")
            return int(index[0])
        if self.sees('"'):
            key = self._quoted(_QUOTED)
            if key is None:
                raise self.unexpected('a JSON key, closed by "')
            return key
        match = self.match(_KEY)
        if match is None or not match[0].strip():
            raise self.unexpected("a JSON key or array index")
        return match[0].strip()

    def element(self) -> str:
        """Read one value of a list; quoted, it may hold what would end it, and a backslash escapes."""
        quoted = self._quoted(_QUOTED_VALUE)
        return self._bare() if quoted is None else quoted

    def nested_value(self) -> str:
        """Read a value inside and(…), or(…): quoted, an array like `{1,2}`, or up to a comma or bracket."""
        quoted = self._quoted(_QUOTED_VALUE)
        if quoted is not None:
            return quoted
        array = self.match(_ARRAY_VALUE)
        return array[0] if array else self._bare()

    def rest(self) -> str:
        """Read everything that is left."""
        start, self.position = self.position, len(self.text)
        return self.text[start:]

    def _quoted(self, pattern: re.Pattern[str]) -> str | None:
        match = self.match(pattern)
        return _ESCAPED.sub(r"\1", match[1]) if match else None

    def _bare(self) -> str:
        if _BEGUN_QUOTE.match(self.text, self.position):
            raise self.error('a value begins with " and does not end with one before , or ): "a,b", "say \\"hi\\""')
        match = self.match(_BARE_VALUE)
        return match[0] if match else ""


MAX_DEPTH = 32
MAX_TERMS = 1000
MAX_SELECTED = 250
"""Columns and expressions of `select`: each may name the same large column."""
MAX_PATTERNS = 20
"""Filters by PATTERNS: each looks through a whole value, and no time limit ends a statement within a row."""

_SINGLE = frozenset({"select", "order", "limit", "offset", "columns"})
_OPERATORS: dict[str, Operator] = {name: name for name in get_args(Operator)}
_SUPPORTED = ", ".join(_OPERATORS)
_FOREIGN_OPERATORS = frozenset(
    {"cs", "cd", "ov", "sl", "sr", "nxr", "nxl", "adj", "match", "imatch"} | {"fts", "plfts", "phfts", "wfts"}
)
_IS_VALUES = ("null", "not_null", "true", "false", "unknown")
_MAX_BIGINT = 2**63 - 1

_DIGITS = re.compile(r"[0-9]{1,19}")
_WORD = re.compile(r"[^.(,)]*")
_LETTERS = re.compile(r"[A-Za-z_]*")
_GROUP = re.compile(r"(not\.)?(and|or)(?=[ \t]*\()")
# `not.eq.5` is a column called "not"; `not.total.eq.5` negates.
_NOT_A_COLUMN = re.compile(rf"not\.(?!(?:not|{'|'.join(_OPERATORS)})\.)")
_ALIAS = re.compile(r":(?!:)")
_CAST = re.compile(r"::([^,()]*(?:\([^()]*\))?[^,()]*)")
_ORDER = re.compile(r"(?:\.(asc|desc))?(?:\.nulls(first|last))?(?=[ \t]*(?:,|\Z))")

_EMBEDDING = "embedded resources and aggregates are not supported, only columns of this table"


def parse_query(raw: bytes) -> Query:
    """Read a raw query string; raise QueryError, saying where and why, when any of it is not understood."""
    if not raw:
        return NO_QUERY
    single: dict[str, str] = {}
    filters: list[Filter] = []
    for given, value in query_pairs(raw):
        name = given.strip(" \t")
        if name in _SINGLE:
            if name in single:
                raise QueryError(f"{name}: given twice")
            single[name] = value
        elif name in {"and", "or", "not.and", "not.or"}:
            filters.append(_logic(name, value))
        elif name == "on_conflict":
            raise QueryError("on_conflict: not supported; PUT a row to create or replace it")
        else:
            filters.append(_column_filter(name, value))
    query = Query(
        select=parse_select(single["select"]) if "select" in single else None,
        filters=tuple(filters),
        order=parse_order(single["order"]) if "order" in single else (),
        limit=_bounded("limit", single["limit"]) if "limit" in single else None,
        offset=_bounded("offset", single["offset"]) if "offset" in single else 0,
        columns=parse_columns(single["columns"]) if "columns" in single else None,
    )
    _refuse_oversize(query)
    return query


def parse_select(text: str) -> tuple[Selected | Literal["*"], ...] | None:
    """Read `a,alias:b,c->>d,e::text,*`; an empty text is every column (None), as in PostgREST."""
    if not text.strip():
        return None
    cursor = Cursor(text, f"select={text}")
    items = [_select_item(cursor)]
    while cursor.accept_spaced(","):
        items.append(_select_item(cursor))
    cursor.expect_end("a comma, ::type or the end")
    return tuple(items)


def parse_order(text: str) -> tuple[OrderTerm, ...]:
    """Read `a.desc.nullslast,b,data->>c.asc`."""
    cursor = Cursor(text, f"order={text}")
    terms = [_order_term(cursor)]
    while cursor.accept_spaced(","):
        terms.append(_order_term(cursor))
    cursor.expect_end("a comma or the end")
    return tuple(terms)


def parse_columns(text: str) -> tuple[str, ...]:
    """Read `columns=a,"b,c"`: the keys of the body that count."""
    cursor = Cursor(text, f"columns={text}")
    cursor.skip_spaces()
    names = [cursor.name()]
    while cursor.accept_spaced(","):
        names.append(cursor.name())
    cursor.expect_end("a comma or the end")
    return tuple(names)


def query_pairs(raw: bytes) -> list[tuple[str, str]]:
    """Split at `&`, then decode: an escaped `&` is part of a value."""
    pairs: list[tuple[str, str]] = []
    for part in raw.split(b"&"):
        name, _, value = part.replace(b"+", b" ").partition(b"=")
        if part:
            try:
                pairs.append((decode_segment(name), decode_segment(value)))
            except MalformedResourceError as error:
                raise QueryError(str(error)) from error
    return pairs


def _bounded(name: str, text: str) -> int:
    if not _DIGITS.fullmatch(text) or int(text) > _MAX_BIGINT:
        raise QueryError(f"{name}={text[:40]}: must be a whole number from 0 to {_MAX_BIGINT}")
    return int(text)


def _refuse_oversize(query: Query) -> None:
    terms = sum(_size(member) for member in query.filters)
    terms += len(query.select or ()) + len(query.order) + len(query.columns or ())
    if (selected := len(query.select or ())) > MAX_SELECTED:
        raise QueryError(f"select: {selected} columns; at most {MAX_SELECTED}")
    if (patterns := sum(_patterns(member) for member in query.filters)) > MAX_PATTERNS:
        names = " and ".join(sorted(PATTERNS, reverse=True))
        raise QueryError(f"the query has {patterns} filters by {names}; at most {MAX_PATTERNS}")
    if terms > MAX_TERMS:
        raise QueryError(f"the query has {terms} filters, selected, ordered and listed columns; at most {MAX_TERMS}")


def _size(filter_: Filter) -> int:
    return 1 if isinstance(filter_, Condition) else 1 + sum(_size(member) for member in filter_.members)


def _patterns(filter_: Filter) -> int:
    if isinstance(filter_, Condition):
        return int(filter_.operator in PATTERNS)
    return sum(_patterns(member) for member in filter_.members)


def _select_item(cursor: Cursor) -> Selected | Literal["*"]:
    cursor.skip_spaces()
    if cursor.sees("..."):
        raise cursor.error(_EMBEDDING)
    if cursor.accept("*"):
        return "*"
    start, alias = cursor.position, cursor.name()
    aliased = cursor.match(_ALIAS) is not None
    if aliased and cursor.sees("*"):
        raise cursor.error("* cannot have an alias")
    if not aliased:
        cursor.position = start
    field = cursor.field()
    cast = _cast(cursor)
    if cursor.position < len(cursor.text) and cursor.text[cursor.position] in "(!.":
        raise cursor.error(_EMBEDDING)
    return Selected(field, alias if aliased else None, cast)


def _cast(cursor: Cursor) -> str | None:
    match = cursor.match(_CAST)
    if match is None:
        return None
    cast = match[1].strip()
    if not CAST_TYPE.fullmatch(cast):
        raise cursor.error(
            f"{cast[:80]!r} is no type's name, like text or numeric(10,2) (aggregates are not supported)"
        )
    return cast


def _order_term(cursor: Cursor) -> OrderTerm:
    field = cursor.field()
    if cursor.sees("("):
        raise cursor.error(_EMBEDDING)
    match = cursor.match(_ORDER)
    if match is None:
        raise cursor.unexpected("a comma, or .asc or .desc, then .nullsfirst or .nullslast,")
    nulls: Literal["first", "last"] | None = None
    if match[2]:
        nulls = "first" if match[2] == "first" else "last"
    return OrderTerm(field, descending=match[1] == "desc", nulls=nulls)


def _column_filter(name: str, value: str) -> Condition:
    """Read `column=operator.value`. The value is all that follows, quotes and commas included."""
    key = Cursor(name, f"{name}={value}")
    field = key.field()
    if key.sees("."):
        raise key.error('embedded resources are not supported; quote a column\'s name that has a dot in it: "a.b"')
    key.expect_end('the end of the column\'s name (quote unusual ones: "a,b")')
    cursor = Cursor(value, key.where)
    condition = _operation(cursor, field, nested=False)
    cursor.expect_end("the end")
    return condition


def _logic(name: str, value: str) -> Group:
    """Read `or=(…)`, `not.and=(…)` and their like."""
    cursor = Cursor(value, f"{name}={value}")
    group = _group(cursor, "or" if name.endswith("or") else "and", negated=name.startswith("not."), depth=1)
    cursor.expect_end("the end")
    return group


def _group(cursor: Cursor, operator: Literal["and", "or"], *, negated: bool, depth: int) -> Group:
    if depth > MAX_DEPTH:
        raise cursor.error(f"and(…) and or(…) are nested more than {MAX_DEPTH} deep")
    if not cursor.accept_spaced("("):
        raise cursor.unexpected("( before the conditions")
    members = [_member(cursor, depth)]
    while cursor.accept_spaced(","):
        members.append(_member(cursor, depth))
    if not cursor.accept_spaced(")"):
        raise cursor.unexpected(", or )")
    return Group(operator, tuple(members), negated)


def _member(cursor: Cursor, depth: int) -> Filter:
    if group := cursor.match(_GROUP):
        operator: Literal["and", "or"] = "or" if group[2] == "or" else "and"
        return _group(cursor, operator, negated=group[1] is not None, depth=depth + 1)
    negated = cursor.match(_NOT_A_COLUMN) is not None
    field = cursor.field()
    if not cursor.accept("."):
        raise cursor.unexpected(".operator.value after the column (or and(…), or(…), not.and(…), not.or(…))")
    condition = _operation(cursor, field, nested=True)
    return Condition(condition.field, condition.operator, condition.value, negated=condition.negated is not negated)


def _operation(cursor: Cursor, field: Field, *, nested: bool) -> Condition:
    """Read `operator.value` or `not.operator.value`; nested, a value ends at a comma or bracket."""
    negated = cursor.accept("not.")
    operator = _operator(cursor)
    if operator == "in":
        return Condition(field, operator, _list(cursor), negated)
    if operator == "is":
        return Condition(field, operator, _is_value(cursor), negated)
    return Condition(field, operator, cursor.nested_value() if nested else cursor.rest(), negated)


def _operator(cursor: Cursor) -> Operator:
    match = cursor.match(_WORD)
    word = match[0] if match else ""
    operator = _OPERATORS.get(word)
    if operator is not None and cursor.accept("."):
        return operator
    if operator is not None and cursor.sees("("):
        raise cursor.error(f"{word}(any) and {word}(all) are not supported; use in.(…), or=(…) or and=(…)")
    if word in _FOREIGN_OPERATORS:
        raise cursor.error(f"operator {word} is not supported; supported are {_SUPPORTED}")
    if operator is None and cursor.sees("."):
        raise cursor.error(f"unknown operator {word[:40]}; known are {_SUPPORTED}")
    raise cursor.error(f"a filter is written operator.value, like eq.1; known operators are {_SUPPORTED}")


def _list(cursor: Cursor) -> tuple[str, ...]:
    """Read `(a,"b,c")`. `()` is empty, `("")` holds one empty text (to PostgREST both are empty)."""
    if not cursor.accept_spaced("(", before_value=True):
        raise cursor.unexpected("( before the values of in")
    if cursor.accept(")"):
        return ()
    values = [cursor.element()]
    while cursor.accept(","):
        values.append(cursor.element())
    if not cursor.accept_spaced(")"):
        raise cursor.unexpected(") after the values of in")
    return tuple(values)


def _is_value(cursor: Cursor) -> str:
    match = cursor.match(_LETTERS)
    value = match[0].lower() if match else ""
    if value not in _IS_VALUES:
        raise cursor.error(f"is takes {', '.join(_IS_VALUES)}")
    return value


def only(query: Query, *allowed: str) -> Query:
    """Refuse parameters that mean nothing here: a filter on a keyed route would be ignored silently."""
    if query is NO_QUERY:
        return query
    present = {
        "select": query.select is not None,
        "columns": query.columns is not None,
        "filters": bool(query.filters),
        "order": bool(query.order),
        "limit": query.limit is not None,
        "offset": query.offset > 0,
    }
    if unwanted := [name for name, there in present.items() if there and name not in allowed]:
        raise QueryError(f"query: {', '.join(unwanted)} cannot be used on this route; it takes {', '.join(allowed)}")
    return query
