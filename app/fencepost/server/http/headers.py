"""What requests have in their heads: path, token, preferences, keys, and which headers a route takes."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from fencepost.server.fence.problem_types import NOT_ACCEPTABLE, UNSUPPORTED_MEDIA_TYPE
from fencepost.server.fence.problems import Problem, bad_request
from fencepost.server.fence.resource import MalformedResourceError, decode_segment
from fencepost.server.fence.token import MAX_TOKEN
from fencepost.server.gateway.write import NO_PREFERENCES, Preferences
from fencepost.server.http.problems import RequestError

# Headers that would change what a request does, or what it is answered, if they were heeded. They are not: so they are
# refused by name, before anything is done. Which are harmless, and why: docs/reading.md.


@dataclass(frozen=True, slots=True)
class Rule:
    """Why a header is refused, and what to do. `on_reads`: on GET and HEAD as well."""

    reason: str
    hint: str
    on_reads: bool = True
    harmless: frozenset[bytes] = frozenset()
    """Values, in lower case, that ask for what is done anyway."""
    refuse: Callable[[str, str], Problem] = bad_request


def _unsupported(detail: str, hint: str) -> Problem:
    return Problem(UNSUPPORTED_MEDIA_TYPE, detail, hint=hint)


_CONDITION: Final = Rule(
    "this precondition is not judged here, and a write that ignored it could overwrite what it was to protect.",
    "If-Match with the row's ETag is judged on PATCH, PUT and DELETE of /v1/data/{table}/{key}; on the"
    " collection a filter can be one, ?order_id=eq.1&version=eq.7: Prefer: count=exact says how many rows it met.",
)
_OVERRIDE: Final = Rule("the method is the one of the request line.", "Send the request with the method that is meant.")

REFUSED: Final[dict[bytes, Rule]] = {
    b"range": Rule("rows are not chosen by it, on any method.", "?limit=20&offset=40 on a GET."),
    b"content-range": Rule(
        "a part of a row is not replaced by its place.", "PATCH changes single columns.", on_reads=False
    ),
    b"if-match": _CONDITION,
    b"if-unmodified-since": _CONDITION,
    b"if-none-match": Rule(
        _CONDITION.reason, "POST creates a row, and is 409 where there is one already.", on_reads=False
    ),
    b"content-encoding": Rule(
        "bodies are read as they come.", "Send the body as plain JSON.", False, frozenset({b"identity"}), _unsupported
    ),
    b"expect": Rule(
        "100-continue is all that can be expected.", "Leave the header out.", True, frozenset({b"100-continue"})
    ),
    b"x-http-method-override": _OVERRIDE,
    b"x-http-method": _OVERRIDE,
    b"x-method-override": _OVERRIDE,
}

JUDGED: Final = frozenset(REFUSED)
"""The names to look for: a request with none of them has nothing to be judged."""


def refuse_headers(headers: Mapping[bytes, bytes], *, writing: bool, takes: bytes = b"") -> None:
    """Refuse the first header, in the order above, that asks for what is not done. `takes`: the one that is."""
    for name, rule in REFUSED.items():
        value = headers.get(name)
        if value is None or name == takes or not (writing or rule.on_reads) or value.strip().lower() in rule.harmless:
            continue
        spelled = name.decode("ascii").title()
        shown = value[:60].decode("latin-1")
        raise RequestError(rule.refuse(f"{spelled}: {shown}: {rule.reason}", rule.hint))


# `Prefer` (RFC 7240): the one place that reads it, and knows what each route does about each preference.
#
# A preference is honoured; or harmless, because what it asks for is done anyway; or refused by name, 400. RFC 7240 has
# servers ignore what they do not know. Here the unknown one may be `max-affected` misspelt, and a DELETE without it is
# wider than was asked (docs/decisions/0028).

Route = Literal[
    "list", "row", "look", "post", "patch", "put", "delete", "patch-rows", "delete-rows", "claim", "lease"
]  # fmt: skip
"""GET of a collection, of a row, and of system routes; POST; PATCH, PUT and DELETE of a row; PATCH and DELETE of a
collection; /v1/claims, and the routes that write leases."""

READS: Final[frozenset[Route]] = frozenset({"list", "row", "look"})
_BY_KEY: Final[frozenset[Route]] = frozenset({"patch", "put", "delete"})
_OF_ROWS: Final[frozenset[Route]] = frozenset({"post", "patch-rows", "delete-rows"})


@dataclass(frozen=True, slots=True)
class Preference:
    """All that there is to know about a preference; the reader, its refusals and the OpenAPI document ask here."""

    name: str
    routes: frozenset[Route]
    """Where it has an effect. Others refuse it, unless it is harmless there."""
    effect: str
    """What it does: a sentence of the OpenAPI document."""
    values: tuple[str, ...] = ("",)
    """The values that have an effect; "": it takes none."""
    number: bool = False
    """Whether any whole number from 1 stands for `values`."""
    harmless_on_reads: bool = False
    """A read has one answer, the rows, affects none, and is not put off."""
    hint: str | None = None
    """Where it has no effect: what to do instead."""
    in_sql: bool = False
    """Whether it changes the statements of a write: then it is in `Preferences.in_sql`."""

    def honours(self, value: str) -> bool:
        """Whether this value is one that has an effect somewhere."""
        return bool(_NUMBER.fullmatch(value)) if self.number else value in self.values

    def takes(self) -> str:
        """List its values, for whom gave another."""
        if self.number:
            return "a whole number from 1 to 999999999"
        harmless = [each.partition("=")[2] for each in sorted(HARMLESS) if each.startswith(f"{self.name}=")]
        return ", ".join((*self.values, *harmless)) or "no value"


_RETURN: Final = ("minimal", "representation", "headers-only")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")

PREFERENCES: Final = (
    Preference(
        "return",
        _BY_KEY | _OF_ROWS,
        "`return`: whether the answer carries the rows that were written.",
        _RETURN,
        harmless_on_reads=True,
        hint="This route has one form of answer.",
    ),
    Preference(
        "count",
        _OF_ROWS | {"list"},
        "`count`: all rows that match, or were written, are counted; `Content-Range` has the number.",
        ("exact", "planned", "estimated"),
        hint="On routes of a collection: /v1/data/{table}.",
    ),
    Preference(
        "max-affected",
        _BY_KEY | _OF_ROWS,
        "`max-affected`, from 1 to 999999999: a request that would write more rows is refused, and writes none.",
        ("1",),
        number=True,
        harmless_on_reads=True,
        hint="On writes of tables: /v1/data/{table}.",
    ),
    Preference(
        "missing",
        _BY_KEY | _OF_ROWS,
        "`missing=default`: an object that lacks a key of `columns` is refused.",
        ("default",),
        hint="Leave the key out of every object, or give all objects a value for it.",
    ),
    Preference(
        "respond-async",
        _BY_KEY | {"post"},
        "`respond-async`: the write is queued, and answered 202; `Location` has what became of it.",
        harmless_on_reads=True,
        hint="PATCH, PUT and DELETE of /v1/data/{table}/{key} can be queued, and POST of one object.",
    ),
    Preference(
        "handling",
        _BY_KEY | _OF_ROWS | READS | {"claim", "lease"},
        "`handling=strict`: an unknown preference is refused, which is always so.",
        ("strict",),
    ),
)
"""Those that have an effect."""

HARMLESS: Final = frozenset({"handling=lenient", "tx=commit", "missing=null", "timezone=UTC"})
"""What is done anyway, on every route."""
HARMLESS_NAMES: Final = frozenset({"wait", "safe"})
"""Of RFC 7240 and RFC 8674: the answer comes as soon as it can, and has nothing that is unsafe to show."""
_DONE_ANYWAY: Final = {"claim": "return=representation", "lease": "return=representation"}

_BY_NAME: Final = {each.name: each for each in PREFERENCES}
_KNOWN: Final = f"Known are {', '.join([*_BY_NAME][:-1])} and {[*_BY_NAME][-1]}."
_NOT_DONE: Final = {
    "resolution": "PUT /v1/data/{table}/{key} creates a row or replaces it; POST creates, and a duplicate is 409.",
    "tx": "Every request is committed before it is answered.",
    "timezone": "Times come in UTC, with their offset.",
}
"""What PostgREST has and Fencepost has not, and what to do instead."""

_ASYNC: Final = "respond-async"

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_WELL_FORMED: Final = re.compile(rf'(?:[^"]|{_QUOTED})*')
_ITEM: Final = re.compile(rf'(?:[^,"]|{_QUOTED})+')
_PART: Final = re.compile(rf'(?:[^;"]|{_QUOTED})+')
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def read_preferences(prefer: bytes | None, route: Route) -> Preferences:
    """Read the Prefer headers of a request, joined by commas; RequestError for what this route does not do."""
    return NO_PREFERENCES if prefer is None else _read(prefer, route)


def spellings(route: Route) -> tuple[str, ...]:
    """Spell all that a route honours; for a number the least one stands."""
    return tuple(_spell(each.name, value) for each in PREFERENCES if route in each.routes for value in each.values)


@lru_cache(maxsize=256)  # clients send the same few with every request
def _read(prefer: bytes, route: Route) -> Preferences:
    wanted: dict[str, str] = {}
    for name, value in _split_items(prefer.decode("latin-1")):
        _require_known(name, value, route)
        if wanted.setdefault(name, value) != value:
            raise _bad(f"{_spell(name, wanted[name])} and {_spell(name, value)} contradict each other.")
    wanted = {name: value for name, value in wanted.items() if _has_effect(name, value, route)}
    applied = [_spell(name, value) for name, value in wanted.items() if name != _ASYNC]
    return Preferences(
        answer=next((each for each in _RETURN if each == wanted.get("return")), None),
        count="count" in wanted,
        most=int(wanted["max-affected"]) if "max-affected" in wanted else None,
        complete="missing" in wanted,
        applied=", ".join(applied).encode("latin-1"),
        queued=_ASYNC in wanted,
        in_sql=frozenset(_spell(name, value) for name, value in wanted.items() if _BY_NAME[name].in_sql),
    )


def _spell(name: str, value: str) -> str:
    return f"{name}={value}" if value else name


def _has_effect(name: str, value: str, route: Route) -> bool:
    return name in _BY_NAME and _BY_NAME[name].honours(value) and route in _BY_NAME[name].routes


def _split_items(text: str) -> list[tuple[str, str]]:
    """Split into names, in lower case, and values without quotes; empty where there is none."""
    if not _WELL_FORMED.fullmatch(text):
        raise _bad(f"{text[:100]!r}: a quotation mark is not closed.")
    return [_parse_item(item.strip(" \t")) for item in _ITEM.findall(text) if item.strip(" \t")]


def _parse_item(item: str) -> tuple[str, str]:
    first, *parameters = [part.strip(" \t") for part in _PART.findall(item)]
    if any(parameters):
        raise _bad(f"{item[:100]}: {first} takes no parameter after a semicolon; preferences are joined by commas.")
    name, _, value = (part.strip(" \t") for part in first.partition("="))
    if not _NAME.fullmatch(name):
        raise _bad(f"{item[:100]!r}: a preference is written name=value, like return=minimal.")
    if value.startswith('"'):
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    lower = name.lower()
    # The names of time zones are case-sensitive in PostgREST; nothing else is.
    return lower, value if lower == "timezone" else value.lower()


def _require_known(name: str, value: str, route: Route) -> None:
    """Refuse by name what is neither honoured on this route nor harmless there."""
    spelled = _spell(name, value)
    if name in HARMLESS_NAMES or spelled in HARMLESS or spelled == _DONE_ANYWAY.get(route):
        return
    known = _BY_NAME.get(name)
    if known is None:
        listed = "" if name in _NOT_DONE else f" {_KNOWN}"
        raise _bad(f"{spelled} is not supported, and nothing is ignored in silence.{listed}", _NOT_DONE.get(name))
    if not known.honours(value):
        raise _bad(f"{spelled}: {name} takes {known.takes()}.")
    if route not in known.routes and not (known.harmless_on_reads and route in READS):
        raise _bad(f"{spelled} means nothing on this route.", known.hint)


def _bad(detail: str, hint: str | None = None) -> RequestError:
    return RequestError(bad_request(f"Prefer: {detail}", hint))


# Reads a request's headers: token, key, media types and schema. What cannot be read raises RequestError.

TOKEN_HEADER = b"x-fence-token"
KEY_HEADER = b"idempotency-key"
IF_MATCH = b"if-match"
IF_NONE_MATCH = b"if-none-match"
SINGULAR = "application/vnd.pgrst.object+json"
_JSON = frozenset({"", "application/json", "application/*", "*/*", SINGULAR, "application/vnd.pgrst.array+json"})

RawHeaders = Sequence[tuple[bytes, bytes]]
"""A request's headers as they came: names in lower case."""
Headers = Mapping[bytes, bytes]
"""The same by their names. Lists are joined (RFC 9110 §5.3); of several others the first counts, where any may."""
PROFILES: Final = frozenset({b"accept-profile", b"content-profile"})
_LISTS = frozenset({b"accept", b"prefer", b"content-encoding", b"expect", IF_MATCH, IF_NONE_MATCH})
_ONCE = PROFILES | {b"content-type"}


def by_name(raw_headers: RawHeaders) -> Headers:
    """Read headers by their names."""
    headers = dict(raw_headers)
    if len(headers) == len(raw_headers):
        return headers
    first = dict(reversed(raw_headers))
    for name in _ONCE & headers.keys():
        if first[name] != headers[name]:
            raise RequestError(bad_request(f"{name.decode('ascii').title()}: two headers with different values."))
    for name in _LISTS & headers.keys():
        first[name] = b", ".join(value for each, value in raw_headers if each == name)
    return first


# The ETag of a row is its mark: under the rule strict each write gives the row another one (RFC 9110 §8.8.3, §13.1).


_MARK_TAG: Final = re.compile(r'"(0|[1-9][0-9]{0,18})"')


def read_if_match(value: bytes) -> tuple[int, ...]:
    """Read If-Match: the marks of which the row must have one; none of them for `*`: it must be there."""
    tags = [tag for each in value.decode("latin-1").split(",") if (tag := each.strip(" \t"))]
    if set(tags) == {"*"}:
        return ()
    if not tags:
        raise RequestError(bad_request("If-Match: it names no ETag.", 'Send the ETag of the row, "34"; or *.'))
    marks = []
    for tag in tags:
        read = _MARK_TAG.fullmatch(tag)
        if read is None or int(read[1]) > MAX_TOKEN:
            raise RequestError(
                bad_request(
                    f"If-Match: {tag[:60]}: the ETag of a row is its mark in quotes, a whole number.",
                    'Send the ETag of GET /v1/data/{table}/{key} as it came: "34". Or *. A weak one, W/"34", comes from'
                    " a proxy that changes answers: it is good for reads only.",
                )
            )
        marks.append(int(read[1]))
    return tuple(marks)


def is_known(none_match: bytes, etag: bytes) -> bool:
    """Whether If-None-Match says that the client has the row with this ETag."""
    tags = [each.strip().removeprefix(b"W/") for each in none_match.split(b",")]
    return etag in tags or tags == [b"*"]


def wants_one(headers: Headers) -> bool:
    """Check Accept; True when PostgREST's single-object form is asked for."""
    accept = headers.get(b"accept")
    if accept is None or accept == b"*/*":
        return False
    text = accept.decode("latin-1")
    types = media_ranges(text)
    if SINGULAR in types:
        return True
    if not any(kind in _JSON for kind in types):
        raise RequestError(Problem(NOT_ACCEPTABLE, f"Accept: {text[:100]}: answers are application/json."))
    return False


def media_ranges(accept: str) -> "list[str | None]":
    """Read Accept: its media ranges, without parameters; None for one that is excluded by q=0. Raises RequestError."""
    return [_media_range(part, accept) for part in accept.split(",")]


def _media_range(part: str, accept: str) -> str | None:
    kind, *parameters = [each.strip().lower() for each in part.split(";")]
    for parameter in parameters:
        name, _, value = (each.strip() for each in parameter.partition("="))
        if name == "nulls":
            raise RequestError(
                bad_request(
                    f"Accept: {accept[:100]}: nulls={value} is not supported: answers have every column, null or not.",
                    "?select= names the columns to return.",
                )
            )
        if name == "q" and not value.strip("0."):
            return None
    return kind


def table_name(headers: Headers, name: str, *, writing: bool) -> str:
    """Apply PostgREST's profile, the schema of a table: Accept-Profile of reads, Content-Profile of writes. The other
    of the two is taken where both have the same schema.
    """
    reads, writes = headers.get(b"accept-profile"), headers.get(b"content-profile")
    if reads is None and writes is None:
        return name
    counts, other = ("Content-Profile", "Accept-Profile") if writing else ("Accept-Profile", "Content-Profile")
    stated, also = (writes, reads) if writing else (reads, writes)
    schema = _schema(counts, stated)
    if also is not None and _schema(other, also) != schema:
        raise RequestError(
            bad_request(
                f"{other}: {also[:60].decode('latin-1')}: the schema of a {'write' if writing else 'read'} is named by"
                f" {counts}, which names {schema if stated is not None else 'no schema: that is public'}.",
                f"Send {counts}.",
            )
        )
    return name if schema == "public" else f"{schema}.{name}"


def refuse_profile(headers: Headers) -> None:
    """Refuse a profile where resources are named: a resource's name has its schema."""
    for name in ("Accept-Profile", "Content-Profile"):
        value = headers.get(name.lower().encode("ascii"))
        if value is not None and (schema := _schema(name, value)) != "public":
            raise RequestError(
                bad_request(f"{name}: {schema}: a resource names its schema itself.", f'"{schema}.table/key"')
            )


def _schema(header: str, value: bytes | None) -> str:
    """Read a schema's name: UTF-8, percent-encoded where need be, as the names in a path."""
    if value is None:
        return "public"
    try:
        schema = decode_segment(value)
    except MalformedResourceError as error:
        raise RequestError(
            bad_request(f"{header}: {error}", "Percent-encode the name as in a path: caf%C3%A9, 100%25.")
        ) from error
    if not schema:
        raise RequestError(bad_request(f"{header}: names no schema.", "Leave the header out, or name one."))
    return schema


# What the system routes have in common: which headers and parameters they take. All others that ask for something are
# refused by name.


LOOKED_AT: Final = JUDGED | PROFILES | {b"prefer", TOKEN_HEADER, KEY_HEADER}
"""The names that `judge_headers` looks for."""


def judge_headers(headers: Headers, route: Route, *, names_resources: bool) -> None:
    """Refuse what the headers of a request to a system route ask for and its kind does not do. `names_resources`: the
    route takes names of resources, to which a profile would have to be applied.
    """
    if not JUDGED.isdisjoint(headers):
        refuse_headers(headers, writing=route not in READS)
    read_preferences(headers.get(b"prefer"), route)
    if route == "lease":
        _refuse_token_and_key(headers)
    if names_resources:
        refuse_profile(headers)


def _refuse_token_and_key(headers: Headers) -> None:
    if TOKEN_HEADER in headers:
        raise RequestError(
            bad_request(
                "X-Fence-Token: a lease is not judged by a token, nor changed under one.",
                "X-Lease-Secret proves whose the lease is.",
            )
        )
    if KEY_HEADER in headers:
        raise RequestError(
            bad_request(
                "Idempotency-Key: this route keeps no answers.",
                "To repeat an acquire safely, send it with an X-Lease-Secret of your own: it gives the same lease.",
            )
        )
