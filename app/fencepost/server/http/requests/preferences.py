"""`Prefer` (RFC 7240): the one place that reads it, and knows what each route does about each preference.

A preference is honoured; or harmless, because what it asks for is done anyway; or refused by name, 400. RFC 7240 has
servers ignore what they do not know. Here the unknown one may be `max-affected` misspelt, and a DELETE without it is
wider than was asked (docs/decisions/0028).
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from fencepost.server.fence.problems import bad_request
from fencepost.server.gateway.writes.write import NO_PREFERENCES, Preferences
from fencepost.server.http.problems.response import RequestError

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
