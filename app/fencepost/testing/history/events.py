"""The events of a history, and the lines that they are written as."""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import orjson

# What is wrong with a history as such, before any model looks at it.
#
# BadHistoryError           a line that is no event, an impossible order of events, a clock that goes backwards
# └── CutOffError           the last line has no end: the program that recorded it was killed


class BadHistoryError(Exception):
    """This is not a history that can be checked. The message names the file and the line."""


class CutOffError(BadHistoryError):
    """The file ends in the middle of a line. What stands before that line can be checked, if the caller wants that."""


# The events of a history. Times are nanoseconds of one monotonic clock, which all processes of a machine share.
#
# docs/checker.md describes each field for people who write histories with another program.

Op = Literal["write", "delete", "read", "claim", "acquire", "release", "add", "read_set"]
"""write also creates; claim raises the mark and changes no data; acquire and release are of a lock; add and read_set
are of a set."""
Rule = Literal["strict", "epoch"]
"""strict: a token is accepted once, above the mark. epoch: at the mark or above it."""
Outcome = Literal["ok", "refused", "unknown"]
"""refused: certainly without effect. unknown: it may have happened, or may yet happen."""
Reason = Literal["stale", "spent", "missing", "unissued", "held", "other"]
"""stale: the token is below the mark. spent: it equals the mark. Of `other` reasons nothing is checked."""


class NotRead(enum.Enum):
    """The type of NOT_READ."""

    NOT_READ = "not read"


NOT_READ: Final = NotRead.NOT_READ
"""An answer that shows no value. None is another thing: the answer shows that there is no row."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """An operation begins: the request is about to be sent."""

    time: int
    id: int
    process: str
    op: Op
    resource: str
    """What one mark fences (`orders/7`, `account/42`), or `lock/NAME`."""
    token: int | None = None
    """Of an acquire: that of a grant under which one more token is drawn."""
    value: str | None = None
    """What is written or added: another one for each write of a resource."""
    rule: Rule = "strict"
    key: str | None = None
    """The Idempotency-Key. A repeated request is another operation with the same key."""


@dataclass(frozen=True, slots=True)
class End:
    """An operation's answer, or the news that there will be none."""

    time: int
    id: int
    event: Outcome
    value: str | NotRead | None = NOT_READ
    """What a read (or a claim) saw; None: no row."""
    token: int | None = None
    """Of an acquire: the token that was granted. Of a read: the mark that it saw."""
    values: tuple[str, ...] | None = None
    """What a read_set saw."""
    expires: int | None = None
    """Of an acquire: until when (same clock) the holder believes that it holds the lock. None: until it releases it."""
    replayed: bool = False
    """Whether the answer is the stored one of an earlier operation with the same key."""
    reason: Reason | None = None
    mark: int | None = None
    """The mark that a refusal names."""
    why: str | None = None
    """Of unknown outcomes: what happened, for people."""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault begins."""

    time: int
    id: int
    kind: str
    """`paused`, `killed`, `partitioned`, …"""
    target: str
    """A process of this history (`w3`), or a server's name."""


@dataclass(frozen=True, slots=True)
class Healed:
    """The fault with this id is over."""

    time: int
    id: int


@dataclass(frozen=True, slots=True)
class Note:
    """A remark for people."""

    time: int
    text: str


Event = Invoke | End | FaultEvent | Healed | Note


# Which fields an operation and its answer have: what they need, and what would have no meaning.
#
# A field without a meaning is refused, because what it was to say would not be checked: the value that a write has
# shown, or the token of a read.

_ALL: Final[frozenset[Op]] = frozenset(get_args(Op))
_READINGS: Final[frozenset[Op]] = frozenset({"read", "read_set"})
_REGISTER: Final[frozenset[Op]] = frozenset({"write", "delete", "claim", "read"})
_ASKED: Final[Mapping[str, frozenset[Op]]] = {
    "token": _ALL - _READINGS,
    "value": frozenset({"write", "add"}),
    "rule": _REGISTER - _READINGS,
    "key": _ALL - _READINGS,
}
"""Which operations have these fields in their invoke."""
_SHOWN: Final[Mapping[str, frozenset[Op]]] = {
    "value": frozenset({"read", "claim"}),
    "token": frozenset({"read", "acquire"}),
    "values": frozenset({"read_set"}),
    "expires": frozenset({"acquire"}),
}
"""Which operations have these fields when they are ok."""
_ANSWERED: Final[Mapping[Outcome, frozenset[str]]] = {
    "ok": frozenset({*_SHOWN, "replayed"}),
    "refused": frozenset({"reason", "mark", "replayed"}),
    "unknown": frozenset({"why"}),
}
"""Which fields each outcome has."""
_INVOKES: Final = {
    op: [(field.name, field.default) for field in dataclasses.fields(Invoke) if op not in _ASKED.get(field.name, _ALL)]
    for op in _ALL
}
"""Which fields an invoke of this operation does not have, with their defaults."""
_ENDS: Final = {
    (outcome, op): [
        (field.name, field.default)
        for field in dataclasses.fields(End)
        if field.default is not dataclasses.MISSING
        and (field.name not in answered or op not in _SHOWN.get(field.name, _ALL))
    ]
    for outcome, answered in _ANSWERED.items()
    for op in _ALL
}
"""Which fields this outcome of this operation does not have, with their defaults."""
_COMPARED: Final = frozenset({"stale", "spent"})


def judge_invoke(invoke: Invoke) -> None:
    """Judge the fields of an invoke. Raises BadHistoryError."""
    if invoke.op in _ASKED["value"] and invoke.value is None:
        raise BadHistoryError(f"an operation {invoke.op} needs a value")
    for name, default in _INVOKES[invoke.op]:
        if getattr(invoke, name) != default:
            raise BadHistoryError(f"an operation {invoke.op} has no {name!r}: only {_listed(_ASKED[name])} have one")


def judge_end(invoke: Invoke, end: End) -> None:
    """Judge the fields of an answer to this operation. Raises BadHistoryError."""
    for name, default in _ENDS[end.event, invoke.op]:
        if getattr(end, name) != default:
            raise _meaningless(invoke, end, name)
    if end.replayed and invoke.key is None:
        raise BadHistoryError(f"the answer to operation {end.id} is replayed, and the operation has no key")
    if end.event == "refused":
        _judge_refusal(invoke, end)
    if end.event == "ok" and invoke.op == "read" and end.value is NOT_READ:
        raise BadHistoryError("a read that is ok needs the value that it saw; null means that there was no row")
    if end.event == "ok" and invoke.op == "read_set" and end.values is None:
        raise BadHistoryError("a read_set that is ok needs the values that it saw")


def _judge_refusal(invoke: Invoke, end: End) -> None:
    if end.reason is None:
        raise BadHistoryError("a refusal needs a reason")
    if end.reason in _COMPARED and invoke.op in _REGISTER and invoke.token is None:
        raise BadHistoryError(
            f"operation {end.id} is refused as {end.reason}, which compares its token with the mark, and it has no"
            " token: record the token, or the reason 'other'"
        )


def _meaningless(invoke: Invoke, end: End, name: str) -> BadHistoryError:
    if name in _ANSWERED[end.event]:
        return BadHistoryError(
            f"the answer to a {invoke.op} has no {name!r}: only answers to {_listed(_SHOWN[name])} have one"
        )
    return BadHistoryError(f"an event of kind {end.event!r} has no {name!r}: it would not be checked")


def _listed(ops: frozenset[Op]) -> str:
    return ", ".join(op for op in get_args(Op) if op in ops)


# One event, one line of JSON; and back. Whatever is not exactly an event is refused, with the reason.
#
# A key that is not known is refused too: a history that says `tokn` would otherwise be checked as one without tokens.

FORMAT: Final = "fencepost/1"

_LARGEST: Final = 2**63 - 1
_OUTCOMES: Final = get_args(Outcome)
_NAMES: Final[Mapping[type, str]] = {Invoke: "invoke", FaultEvent: "fault", Healed: "healed", Note: "note"}


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
    **{outcome: (End, _END, {"time", "id"}) for outcome in _OUTCOMES},
    "fault": (FaultEvent, {**_EVENT, "id": _WHOLE, "kind": _NAME, "target": _TEXT}, {"time", "id", "kind", "target"}),
    "healed": (Healed, {**_EVENT, "id": _WHOLE}, {"time", "id"}),
    "note": (Note, {**_EVENT, "text": _TEXT}, {"time", "text"}),
}
