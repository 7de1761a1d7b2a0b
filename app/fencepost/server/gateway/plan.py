"""What is known of a write before the database is asked: whether it may be done, and by which statements.

A write is checked in one order, whatever it writes:

1. the table is protected, and its fence holds (403);
2. the request fits the table: how large its numbers are (413), its key, filters, columns, its condition and what it
   wants to see (400), and how many rows it has;
3. it has an Idempotency-Key, where the table wants one (400);
4. it has a token (428), whose seal holds, where it has one or the table wants one (403).

What depends on the table and the shape of a request alone is a Plan: made once, and kept with the table's picture.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fencepost.server.fence.problem_types import BODY_TOO_LARGE, NOT_ACCEPTABLE, TOKEN_REQUIRED, UNPROTECTED_TABLE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.seal import Binding, Presented, SealedToken
from fencepost.server.fence.token import Token
from fencepost.server.gateway.attempt import Statements, WriteQueues, queues_of, statements_of
from fencepost.server.gateway.gateway import Seals, no_keys, refused
from fencepost.server.gateway.idempotency import IdempotentRequest, Keeping, keeping
from fencepost.server.gateway.write import Body, Listed, Matching, OneRow, Verb, Write
from fencepost.server.postgres.answers import Shown, nothing
from fencepost.server.postgres.answers import shown as read_shown
from fencepost.server.postgres.connection import Bound
from fencepost.server.postgres.keyed import Change
from fencepost.server.postgres.query import OtherKeyError, QueryError, Select, UnknownColumnError, render_filters
from fencepost.server.postgres.reading import check_filters
from fencepost.server.postgres.row_sql import encode_name
from fencepost.server.postgres.tables import MARK_COLUMN, Catalog, Fence, ProtectedTable, Table


class PlanKey(NamedTuple):
    """All of a write that shapes its SQL: a plan is made of it and the table alone, and kept under it."""

    verb: Verb
    by_key: bool
    """Whether it is of the row whose key the path has."""
    single: bool
    """Whether it is of one row."""
    columns: tuple[str, ...]
    select: Select
    shown: bool
    preferences: frozenset[str]
    """Those that change statements."""
    keeping: Keeping
    named: bool
    """Whether the answer names the rows that were written, as they were stored: a seal is compared with them."""
    conditional: bool
    """Whether the row's mark must be one of those that the request names (If-Match)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is the same for all writes of one PlanKey."""

    table: ProtectedTable
    change: Change
    statements: Statements | None
    """Of a row by its key, for a write that is decided alone; None: it is of no such row."""
    queues: WriteQueues | None
    """Its batches; None: it is never in one."""
    names_key: bool
    """Whether the body gives key columns, too."""
    creates: bool
    """Whether it makes the row that the path names, where there is none."""
    has_scope: bool
    queued: bool
    """Whether the table takes its writes by a queue only."""


def plan_of(found: Table, write: Write, once: IdempotentRequest | None, max_rows: int, most: int) -> Plan | Problem:
    """Check a write but for its token, and give its plan. `max_rows`: how many rows a request may write; `most`: how
    many bytes an answer may have. Raises QueryError.
    """
    table, target = require_protected(found), write.target
    if isinstance(table, Problem):
        return table
    if (too_large := refuse_expansion(table, write.body, most)) is not None:
        return too_large
    if isinstance(target, OneRow):
        if len(target.key) != len(table.key):
            require_key(table, target.key)
    elif isinstance(target, Matching):
        render_filters(table, target.filters, Bound())
        check_filters(table, target.filters)
        if key := [column for column in write.body.columns if column in table.key]:
            raise QueryError(f"body: {', '.join(key)} is the primary key, which a write cannot change")
    if write.if_match is not None:
        _require_versions(table.fence, write)
    plan: Plan = table.kept(_plan, _key_of(table, write, once), most)
    if isinstance(target, Listed):
        if target.count and write.verb == "patch":
            _require_key_columns(table, write.body.columns)
        if (unfit := _unfit_count(write, target.count, max_rows)) is not None:
            return unfit
    return require_once(table.fence, write.idempotency_key if once is None else once) or plan


def _key_of(table: ProtectedTable, write: Write, once: IdempotentRequest | None) -> PlanKey:
    by_key, single = write.by_key, write.single
    # Under a seal a PUT answers which row it has made, for a trigger may have given it another key; writes of several
    # rows answer which they have met. A scope is known anyway. What a POST has made is always answered.
    named = isinstance(write.token, SealedToken) and (
        write.verb == "put" if by_key else write.verb != "post" and table.fence.scope is None
    )
    # How the answer is kept differs in batches only.
    kept: Keeping = keeping(once) if once is not None and single and table.shares_transactions else ""
    body, preferences = write.body, write.preferences.in_sql
    conditional = write.if_match is not None
    return PlanKey(
        write.verb, by_key, single, body.columns, write.select, write.shown, preferences, kept, named, conditional
    )


def _plan(table: ProtectedTable, key: PlanKey, most_bytes: int) -> Plan:
    require_columns(table, key.columns)
    target = target_of(table, key.select, most_bytes, shown=key.shown)
    given, verb = key.columns, key.verb
    if verb != "post":
        given = tuple(column for column in given if column not in table.key)
    defaults = replaceable(table, given) if verb == "put" else ()
    change = Change(given, target, key.preferences, defaults, key.named, verb == "delete", key.conditional)
    statements = statements_of(table, verb, change, "block") if key.by_key else None
    queues = queues_of(table, verb, change, key.keeping) if key.single else None
    return Plan(
        table,
        change,
        statements,
        queues,
        names_key=len(given) < len(key.columns),
        creates=statements is not None and statements.creates,
        has_scope=table.fence.scope is not None,
        queued=table.fence.queue is not None,
    )


def _require_versions(fence: Fence, write: Write) -> None:
    """Refuse If-Match where a mark does not tell one version of a row from another, or the write waits in a queue."""
    if fence.queue is not None or write.preferences.queued:
        raise QueryError("If-Match: a queued write is applied later, to the row as it is then")
    if fence.scope is not None:
        raise QueryError(f"If-Match: rows of {fence.name} share the mark of their scope, {fence.scope.template}")
    if not fence.has_versions:
        raise QueryError(
            f"If-Match: {fence.name} is under the rule epoch: one token writes a row several times, and its mark stays"
            " the same"
        )


def replaceable(table: Table, given: tuple[str, ...]) -> tuple[str, ...]:
    """Columns that PUT sets to their defaults."""
    return tuple(
        name
        for name in table.visible
        if name not in given
        and name not in table.key
        and not table.columns[name].generated
        and table.columns[name].identity != "always"
    )


def _require_key_columns(table: ProtectedTable, columns: tuple[str, ...]) -> None:
    """Refuse an array whose objects do not name their rows."""
    if lacking := [column for column in table.key if column not in columns]:
        raise QueryError(
            f"body: without {', '.join(lacking)}: every object names its row of {table.name} by the key,"
            f" {', '.join(table.key)}"
        )


# How many rows a request may write: what the gateway allows, and what the request itself wants.


def _unfit_count(write: Write, count: int, max_rows: int) -> Problem | None:
    """Refuse a body of `count` rows that the gateway, or the request itself, does not want."""
    most = write.preferences.most
    what = f"the body has {count} rows"
    if count > max_rows:
        return too_many(max_rows, what)
    if write.exactly_one and count != 1:
        return not_one(count)
    return more_than_wanted(most, what) if most is not None and count > most else None


def not_one(count: int | None) -> Problem:
    """Refuse what was to concern exactly one row; None: more than one. Nothing was written."""
    there = "there are more" if count is None else f"there are {count}"
    return Problem(NOT_ACCEPTABLE, f"The Accept header wants exactly one row, and {there}. Nothing was written.")


def more_than_wanted(most: int, what: str) -> Problem:
    """Refuse what would write more rows than its caller wants to."""
    return bad_request(
        f"Prefer: max-affected={most}: {what}. Nothing was written.",
        "Narrow the request, or allow it more rows.",
    )


def too_many(limit: int, what: str) -> Problem:
    """Refuse what would write more rows than one request may."""
    return Problem(
        BODY_TOO_LARGE,
        f"One request writes at most {limit} rows, and {what}. Nothing was written.",
        hint="Write in smaller parts, or raise FENCEPOST_MAX_ROWS.",
    )


# What a request must have before PostgreSQL is asked: a protected table, a token, columns, a key.


def require_served(catalog: Catalog, table: Table) -> Problem | None:
    """Refuse to read what is not protected, unless the gateway serves that, too."""
    if catalog.reads(table):
        return None
    return Problem(
        UNPROTECTED_TABLE,
        f"{table.name} is not protected, and this gateway serves what is protected only.",
        hint=f"fencepost protect {table.name}, or FENCEPOST_SERVE_UNPROTECTED=1 at the gateway: it is read then.",
    )


def require_protected(table: Table) -> ProtectedTable | Problem:
    """Refuse a write to what is not protected (R13), or whose protection is broken."""
    if isinstance(table, ProtectedTable):
        return table
    if table.fence is None:
        what = "is not protected" if table.kind in ("table", "partitioned table") else f"is a {table.kind}"
        return Problem(
            UNPROTECTED_TABLE,
            f"{table.name} {what}: Fencepost reads it, and writes only where a fence checks.",
            hint=f"fencepost protect {table.name}" if table.key else None,
        )
    return Problem(
        UNPROTECTED_TABLE,
        f"{table.name} is registered as protected, and its fence does not hold: {table.fence.broken}.",
        hint=f"`fencepost doctor` shows what is missing; `fencepost protect {table.name}` mends it.",
    )


Authority = tuple[Token, Binding | None]
"""The number of a token, and what its seal is bound to; None: it has no seal, and needs none."""


def require_token(table: ProtectedTable, presented: Presented | None, seals: Seals) -> Authority | Problem:
    """Refuse a write without token (R13), whether or not its row exists; and without a seal where the table wants one.
    A seal that is there is verified in any case. Whether it is for what is written, the caller has to see to.
    """
    if presented is None:
        return Problem(
            TOKEN_REQUIRED,
            f"{table.name} is protected: the write carries no X-Fence-Token.",
            hint=_SEND_SEALED if table.fence.sealed else "Send the token that your lock service gave with the grant.",
        )
    if table.fence.sealed and seals.keys is None:
        return no_keys(table.name)
    if isinstance(presented, SealedToken):
        return _require_seal(table, presented, seals)
    if table.fence.sealed:
        return Problem(
            TOKEN_REQUIRED,
            f"{table.name} takes sealed tokens only, and token {presented} has no seal.",
            hint=_SEND_SEALED,
            presented_token=presented,
        )
    return presented, None


def _require_seal(table: ProtectedTable, presented: SealedToken, seals: Seals) -> Authority | Problem:
    binding = seals.verify(presented)
    if isinstance(binding, Problem):
        return binding
    if table.fence.pinned and binding.source != table.fence.source:
        return refused(
            presented.number,
            "other-source",
            f"is of the source {binding.source}, and {table.name} takes tokens of {table.fence.source}.",
            f'Acquire with "source": "{table.fence.source}".',
        )
    return presented.number, binding


def require_reach(table: ProtectedTable, authority: Authority) -> Problem | None:
    """Refuse a DELETE under a seal that is not for all of the table, where foreign keys may take other rows of it with
    the one that is named (ON DELETE CASCADE from a row to its children). It is for rows that have marks of their own:
    a scope's own trigger sees to it.
    """
    number, binding = authority
    fence = table.fence
    if binding is None or not fence.deletes_own_rows:
        return None
    if binding.covers_all(f"{encode_name(fence.name)}/"):
        return None
    return refused(
        number,
        "other-resource",
        f"is not for all rows of {table.name}, and a foreign key takes others of them with a row that is deleted.",
        f'Acquire with "writes": ["{encode_name(fence.name)}/*"].',
    )


_SEND_SEALED: Final = "Send `sealed_token` whole, as the gateway gave it with the lease: a number alone can be made up."


def require_columns(table: Table, columns: Sequence[str]) -> None:
    """Refuse body keys that are no columns, and the mark, which only the gateway writes."""
    for name in columns:
        if name == MARK_COLUMN:
            raise QueryError(f"body: {MARK_COLUMN} is the mark and not data: the token travels in X-Fence-Token")
        if name not in table.columns:
            raise UnknownColumnError(f"body: {name}", table.name)


def require_key(table: Table, key: Sequence[str]) -> None:
    """Refuse a path whose key does not fit the table's (OtherKeyError)."""
    if not table.key:
        raise OtherKeyError(f"{table.name} has no primary key: name rows by filters, ?column=eq.value")
    if len(key) != len(table.key):
        raise OtherKeyError(
            f"the key of {table.name} has {len(table.key)} value(s), {','.join(table.key)}; the path has {len(key)}"
            " (a comma inside a value is written %2C)"
        )


def require_once(fence: Fence, once: object | None) -> Problem | None:
    """Refuse a write without a key where the table wants one."""
    if once is not None or not fence.requires_key:
        return None
    return bad_request(
        f"Idempotency-Key: writes to {fence.name} need one.",
        "Choose a new one for every write, for example a UUID, and send it again when you repeat the write.",
    )


def not_with_queue(fence: Fence, what: str) -> Problem:
    """Refuse what a table cannot take whose tokens are positions in a queue (R12)."""
    return bad_request(
        f"{fence.name} takes all its writes by the queue {fence.queue}, one row each: {what} cannot be one of them.",
        "The place of a write in the queue is its token: send PATCH, PUT or DELETE of a row, or POST of one object,"
        " without X-Fence-Token.",
    )


def target_of(table: Table, select: Select, most: int, *, shown: bool) -> Shown:
    """Read what the answer shows, in at most so many bytes; nothing if no row is shown. QueryError for an unknown
    column in any case.
    """
    target = read_shown(table, select, most)
    return target if shown else nothing(most)


# How large a body becomes when its numbers are written out. `1e131071` has eight characters in a body, takes twenty
# bytes in a jsonb, and has 131,072 digits in each answer: a body of 36 kB would have PostgreSQL make half a gigabyte
# for each GET. So PostgreSQL is not given numbers that have more digits in all than an eighth of the
# bytes that the largest answer may have.
#
# Once a value is stored nobody can tell how large its text is without making it.

_SHARE: Final = 8
"""Of the largest answer the numbers of a body may fill the eighth part: a row has several columns."""
_MOST_DIGITS: Final = 131_072
_MOST_FRACTION: Final = 16_383
"""PostgreSQL's own limits of a number: digits before the point, and after it."""
_SHORTEST: Final = 8
"""Characters that a number of so many digits has at least, with what divides it from the next one."""
_OF_SHORT: Final = 20
"""Digits a byte that numbers with exponents of two digits have at most: `1e99,`."""
_SHAPE: Final = bytes.maketrans(b"123456789._E-", b"00000000000e+")
_LONG: Final = (b"0e000", b"0e+000")
"""Exponents of three digits, as _SHAPE leaves them: it takes a twentieth of the time of a regular expression."""
_UNQUOTED: Final = str.maketrans("", "", '"\\\\')
"""Without what may stand anywhere in the text of an array or a composite: `{1\\e131071}`, `(1"e"131071)`."""
_EXPONENT: Final = re.compile(r"[0-9.][eE]([-+]?)([0-9_]+)")


def refuse_expansion(table: Table, body: Body, largest_answer: int) -> Problem | None:
    """Refuse a body whose numbers would have too many digits in the columns that they are for."""
    most = largest_answer // _SHARE
    if len(body.raw) < most // _MOST_DIGITS * _SHORTEST or table.expanding.isdisjoint(body.columns):
        return None
    text = body.text
    # Escapes may hide an exponent from both: `"1\\u0065131071"`.
    if b"\\" not in body.raw:
        shape = body.raw.translate(_SHAPE)
        if len(shape) * _OF_SHORT <= most and not any(each in shape for each in _LONG):
            return None
        if _digits(text) <= most:  # in strings, too
            return None
    try:
        given = json.loads(text, parse_float=_Number, parse_int=_Number)
    except RecursionError:
        given = [dict.fromkeys(body.columns, text)]
    for name in table.expanding.intersection(body.columns):
        strings = table.columns[name].base_name != "jsonb"
        digits = sum(_within(row.get(name), strings=strings) for row in _rows(given))
        if digits > most:
            return Problem(
                BODY_TOO_LARGE,
                f"body: the numbers of {name} have {digits} digits when they are written out, more than {most}.",
                hint="An eighth of FENCEPOST_MAX_ANSWER_BYTES is allowed. A column of type json or text keeps numbers"
                " as they are written.",
            )
    return None


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _rows(given: object) -> Iterator[Mapping[str, object]]:
    for each in given if isinstance(given, list) else [given]:
        if isinstance(each, dict):
            yield each


def _within(value: object, *, strings: bool) -> int:
    """Add up the digits of all numbers in a value; those in strings, too, where the column's type reads strings."""
    digits, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, str) and (strings or isinstance(each, _Number)):
            digits += _digits(each if isinstance(each, _Number) else each.translate(_UNQUOTED))
    return digits


def _digits(text: str) -> int:
    """Add up the digits that exponents stand for. PostgreSQL refuses numbers that are too large."""
    digits = 0
    for sign, written in _EXPONENT.findall(text):
        exponent = written.replace("_", "").lstrip("0")[:7] or "0"
        if sign == "-":
            digits += min(int(exponent), _MOST_FRACTION)
        elif int(exponent) <= _MOST_DIGITS:
            digits += int(exponent)
    return digits
