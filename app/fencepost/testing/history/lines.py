"""One event, one line of JSON; and back. Whatever is not exactly an event is refused, with the reason.

A key that is not known is refused too: a history that says `tokn` would otherwise be checked as one without tokens.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

import orjson

from fencepost.testing.history.errors import BadHistoryError
from fencepost.testing.history.events import End, Event, Fault, Healed, Invoke, Note, Op, Outcome, Reason, Rule

FORMAT: Final = "fencepost/1"

_LARGEST: Final = 2**63 - 1
_ENDS: Final = get_args(Outcome)
_NAMES: Final[Mapping[type, str]] = {Invoke: "invoke", Fault: "fault", Healed: "healed", Note: "note"}


def header_line(header: Mapping[str, object]) -> bytes:
    """Spell the first line."""
    return orjson.dumps({"history": FORMAT, **header}) + b"\n"


def read_header(line: bytes) -> dict[str, Any]:
    """Read the first line. Raises BadHistoryError."""
    found = _object(line)
    if found.get("history") != FORMAT:
        raise BadHistoryError(
            f'this is no history of a format that is known here: the first line must begin {{"history": "{FORMAT}", …}}'
        )
    return found


def event_line(event: Event) -> bytes:
    """Spell an event. What has its default is left out."""
    return orjson.dumps(_spelled(event)) + b"\n"


def judge_fields(event: Event) -> None:
    """Judge what the fields of an event are, as in a line of a file. BadHistoryError names field and value."""
    fields = _spelled(event)
    kind = str(fields["event"])
    _judge(kind, fields, _FIELDS[kind][1])


def _spelled(event: Event) -> dict[str, object]:
    fields: dict[str, object] = {"time": event.time, "event": _NAMES.get(type(event)) or getattr(event, "event", None)}
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        if value is not field.default and value != field.default:
            fields[field.name] = list(value) if type(value) is tuple else value
    return fields


def read_event(line: bytes) -> Event:
    """Read one line. Raises BadHistoryError."""
    found = _object(line)
    kind = found.get("event")
    known = _FIELDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise BadHistoryError(f'"event" is {kind!r}, and must be one of {", ".join(_FIELDS)}')
    maker, kinds, needed = known
    if missing := needed - found.keys():
        raise BadHistoryError(f"an event of kind {kind!r} needs {', '.join(sorted(missing))}")
    _judge(str(kind), found, kinds)
    if maker is not End:
        del found["event"]
    if "values" in found:
        found["values"] = tuple(found["values"])
    return maker(**found)


def _judge(kind: str, found: Mapping[str, object], kinds: "_Kinds") -> None:
    for name, value in found.items():
        allowed = kinds.get(name)
        if allowed is None:
            raise BadHistoryError(f"an event of kind {kind!r} has no {name!r}; it may have: {', '.join(kinds)}")
        if not allowed.fits(value):
            raise BadHistoryError(f"{name!r} cannot be {value!r}: it must be {allowed.words}")


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadHistoryError(f"this is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadHistoryError("this is JSON, but no object")
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """What a field may be: as words, and as a test."""

    words: str
    fits: Callable[[object], bool]


def _one_of(alias: object) -> _Kind:
    allowed = get_args(alias)
    return _Kind(f"one of {', '.join(allowed)}", lambda value: isinstance(value, str) and value in allowed)


def _is_text(value: object) -> bool:
    """Whether it is a text that UTF-8 has: half of a surrogate pair is none."""
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


_BELOW: Final = "below 2^63"
_WHOLE: Final = _Kind(
    f"a whole number, not negative and {_BELOW}", lambda value: type(value) is int and 0 <= value <= _LARGEST
)
_TOKEN: Final = _Kind(
    f"a whole number above 0 and {_BELOW}", lambda value: type(value) is int and 0 < value <= _LARGEST
)
_TEXT: Final = _Kind("a text", _is_text)
_NAME: Final = _Kind("a text that is not empty", lambda value: _is_text(value) and value != "")
_TEXT_OR_NULL: Final = _Kind("a text or null", lambda value: value is None or _is_text(value))
_TEXTS: Final = _Kind("a list of texts", lambda value: type(value) is list and all(map(_is_text, value)))
_FLAG: Final = _Kind("true or false", lambda value: type(value) is bool)

_Kinds = dict[str, _Kind]
_EVENT: Final[_Kinds] = {"time": _WHOLE, "event": _TEXT}
_INVOKE: Final[_Kinds] = {
    **_EVENT,
    "id": _WHOLE,
    "process": _NAME,
    "op": _one_of(Op),
    "resource": _NAME,
    "token": _TOKEN,
    "value": _TEXT,
    "rule": _one_of(Rule),
    "key": _NAME,
}
_END: Final[_Kinds] = {
    **_EVENT,
    "id": _WHOLE,
    "value": _TEXT_OR_NULL,
    "token": _WHOLE,
    "values": _TEXTS,
    "expires": _WHOLE,
    "replayed": _FLAG,
    "reason": _one_of(Reason),
    "mark": _WHOLE,
    "why": _TEXT,
}
_FIELDS: Final[dict[str, tuple[Callable[..., Event], _Kinds, set[str]]]] = {
    "invoke": (Invoke, _INVOKE, {"time", "id", "process", "op", "resource"}),
    **{outcome: (End, _END, {"time", "id"}) for outcome in _ENDS},
    "fault": (Fault, {**_EVENT, "id": _WHOLE, "kind": _NAME, "target": _TEXT}, {"time", "id", "kind", "target"}),
    "healed": (Healed, {**_EVENT, "id": _WHOLE}, {"time", "id"}),
    "note": (Note, {**_EVENT, "text": _TEXT}, {"time", "text"}),
}
