"""`Prefer` (RFC 7240): the one place that reads it, and knows what each route does about each preference.

A preference is honoured; or harmless, because what it asks for is done anyway; or refused by name, 400. RFC 7240 has
servers ignore what they do not know. Here the unknown one may be `max-affected` misspelt, and a DELETE without it is
wider than was asked (docs/decisions/0028).
"""

import re
from functools import lru_cache
from typing import Final, Literal

from fencepost.fencing.problems import bad_request
from fencepost.gateway.writes.write import NO_PREFERENCES, Preferences
from fencepost.http.problems.response import RequestError

Route = Literal["list", "row", "insert", "many", "one", "look", "claim", "lease"]
"""GET of a collection, of a row; POST; PATCH or DELETE of a collection; PATCH, PUT or DELETE of a row; and of the
system routes: those that read, /v1/claims, and those that write leases."""


READS: Final[frozenset[Route]] = frozenset({"list", "row", "look"})
_RETURN: Final = ("minimal", "representation", "headers-only")
_COUNT: Final = ("exact", "planned", "estimated")

HONOURED: Final[dict[str, frozenset[Route]]] = {
    "return": frozenset({"insert", "many", "one"}),
    "count": frozenset({"list", "insert", "many"}),
    "max-affected": frozenset({"insert", "many", "one"}),
    "missing=default": frozenset({"insert", "many", "one"}),
    "respond-async": frozenset({"insert", "one"}),
    "handling=strict": frozenset({"list", "row", "insert", "many", "one", "look", "claim", "lease"}),
}
"""On which routes a preference does something; others refuse it, unless it is harmless there. The OpenAPI document and
the messages of refusals are made from this table."""

_NAMES: Final = tuple(dict.fromkeys(each.partition("=")[0] for each in HONOURED))
_KNOWN: Final = f"Known are {', '.join(_NAMES[:-1])} and {_NAMES[-1]}."

HARMLESS: Final = frozenset({"handling=lenient", "tx=commit", "missing=null", "timezone=UTC"})
"""What is done anyway, on every route."""
HARMLESS_NAMES: Final = frozenset({"wait", "safe"})
"""Of RFC 7240 and RFC 8674: the answer comes as soon as it can, and has nothing that is unsafe to show."""
HARMLESS_ON_READS: Final = frozenset({"return", "max-affected", "respond-async"})
"""A read has one answer, the rows, affects none, and is not put off."""
_DONE_ANYWAY: Final = {"claim": "return=representation", "lease": "return=representation"}

_HINTS: Final = {
    "resolution": "PUT /v1/data/{table}/{key} creates a row or replaces it; POST creates, and a duplicate is 409.",
    "tx": "Every request is committed before it is answered.",
    "timezone": "Times come in UTC, with their offset.",
    "missing": "Leave the key out of every object, or give all objects a value for it.",
    "count": "On routes of a collection: /v1/data/{table}.",
    "max-affected": "On writes of tables: /v1/data/{table}.",
    "return": "This route has one form of answer.",
    "respond-async": "PATCH, PUT and DELETE of /v1/data/{table}/{key} can be queued, and POST of one object.",
}

_ASYNC: Final = "respond-async"

_QUOTED: Final = r'"(?:[^"\\]|\\.)*"'
_WELL_FORMED: Final = re.compile(rf'(?:[^"]|{_QUOTED})*')
_ITEM: Final = re.compile(rf'(?:[^,"]|{_QUOTED})+')
_PART: Final = re.compile(rf'(?:[^;"]|{_QUOTED})+')
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")


def read_preferences(prefer: bytes | None, route: Route) -> Preferences:
    """Read the Prefer headers of a request, joined by commas; RequestError for what this route does not do."""
    return NO_PREFERENCES if prefer is None else _read(prefer, route)


def spellings(route: Route) -> tuple[str, ...]:
    """Spell all that a route honours; for a number the least one stands."""
    values = {"return": _RETURN, "count": _COUNT, "max-affected": ("1",)}
    honoured = [name for name, routes in HONOURED.items() if route in routes]
    return tuple(f"{name}={value}" if value else name for name in honoured for value in values.get(name, ("",)))


@lru_cache(maxsize=256)  # clients send the same few with every request
def _read(prefer: bytes, route: Route) -> Preferences:
    wanted: dict[str, str] = {}
    for name, value in _split_items(prefer.decode("latin-1")):
        _require_known(name, value, route)
        if wanted.setdefault(name, value) != value:
            raise _bad(f"{name}={wanted[name]} and {name}={value} contradict each other.")
    applied = [
        f"{name}={value}"
        for name, value in wanted.items()
        if name != _ASYNC and (route in HONOURED.get(name, ()) or route in HONOURED.get(f"{name}={value}", ()))
    ]
    return Preferences(
        answer=None if route in READS else next((each for each in _RETURN if wanted.get("return") == each), None),
        count="count" in wanted,
        most=int(wanted["max-affected"]) if "max-affected" in wanted else None,
        complete=wanted.get("missing") == "default",
        applied=", ".join(applied).encode("latin-1"),
        queued=_ASYNC in wanted and route not in READS,
    )


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
    spelled = f"{name}={value}" if value else name
    if name in HARMLESS_NAMES or spelled in HARMLESS or spelled == _DONE_ANYWAY.get(route):
        return
    _require_value(name, value, spelled)
    if route in HONOURED.get(name, ()) or route in HONOURED.get(spelled, ()):
        return
    if name in HARMLESS_ON_READS and route in READS:
        return
    if name in HONOURED:
        raise _bad(f"{spelled} means nothing on this route.", _HINTS.get(name))
    known = "" if name in _HINTS else f" {_KNOWN}"
    raise _bad(f"{spelled} is not supported, and nothing is ignored in silence.{known}", _HINTS.get(name))


def _require_value(name: str, value: str, spelled: str) -> None:
    if name in ("return", "count"):
        values = _RETURN if name == "return" else _COUNT
        if value not in values:
            raise _bad(f"{spelled}: {name} takes {', '.join(values)}.")
    if name == _ASYNC and value:
        raise _bad(f"{spelled}: respond-async takes no value.")
    if name == "max-affected" and not _NUMBER.fullmatch(value):
        raise _bad(f"{spelled}: max-affected takes a whole number from 1 to 999999999.")


def _bad(detail: str, hint: str | None = None) -> RequestError:
    return RequestError(bad_request(f"Prefer: {detail}", hint))
