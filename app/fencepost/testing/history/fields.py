"""Which fields an operation and its answer have: what they need, and what would have no meaning.

A field without a meaning is refused, because what it was to say would not be checked: the value that a write has shown,
or the token of a read.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final, get_args

from fencepost.testing.history.errors import BadHistoryError
from fencepost.testing.history.events import NOT_READ, End, Invoke, Op, Outcome

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
