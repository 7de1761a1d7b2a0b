"""What is wrong with a register, in one sentence."""

from dataclasses import dataclass
from typing import Final

from fencepost.testing.checker.calls import EFFECTS, NEVER, Call
from fencepost.testing.checker.words import Words
from fencepost.testing.history import End

_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Calls of one resource that no order explains, in the order of their begins, and the one that has no place."""

    resource: str
    calls: list[Call]
    last: Call
    fenced: bool


def sentence_of(found: Contradiction, words: Words) -> str:
    """Say what is wrong in one sentence."""
    last, resource = found.last, found.resource
    if last.refused and last.end is not None:
        return _refusal(last, last.end)
    effects = [call for call in found.calls if call.invoke.op in EFFECTS and not call.refused]
    if found.fenced and len(found.calls) == len(effects) == _PAIR:
        return _falling(words, *effects)
    reads = [call for call in found.calls if call.invoke.op == "read"]
    if len(reads) == 1 and reads[0].end is not None:
        return _read(reads[0], reads[0].end, found)
    order = "in which tokens rise and " if found.fenced else ""
    return f"The operations of {resource} have no order {order}in which each answer is right at its time."


def _refusal(call: Call, end: End) -> str:
    invoke = call.invoke
    token = "" if invoke.token is None else f" under token {invoke.token}"
    refused = f"{invoke.process}'s {invoke.op} of {invoke.resource}{token} was refused as {end.reason}"
    if end.mark is not None:
        return (
            f"{refused}, the mark being {end.mark}, although {invoke.resource} can not have had a mark that allows this"
            " answer while it was under way."
        )
    above = "equal to" if end.reason == "spent" else "above"
    return f"{refused}, although the mark of {invoke.resource} can not have been {above} it by then."


def _falling(words: Words, one: Call, other: Call) -> str:
    higher, lower = (one, other) if one.token > other.token else (other, one)
    if higher.token == lower.token:
        return (
            f"{lower.invoke.resource} accepted token {lower.token} twice: from {one.invoke.process} and from"
            f" {other.invoke.process}. Under the rule strict a token is accepted once."
        )
    return (
        f"A stale {lower.invoke.op} was accepted: {words.deed(lower)} at {words.time(lower.invoke.time)}, and that was"
        f" accepted{_at(words, lower)}, after {higher.invoke.process}'s {higher.invoke.op} under token {higher.token}"
        f" had been accepted{_at(words, higher)}."
    )


def _at(words: Words, call: Call) -> str:
    return "" if call.ended == NEVER else f" at {words.time(call.ended)}"


def _read(read: Call, end: End, found: Contradiction) -> str:
    saw = "no row" if not isinstance(end.value, str) else repr(end.value)
    mark = "" if end.token is None else f" and the mark {end.token}"
    who = f"{read.invoke.process} read {saw}{mark} in {found.resource}"
    if not isinstance(end.value, str):
        return f"{who}, although a row was there, or the mark was another one, as long as this read took."
    writes = [call for call in found.calls if call.invoke.value == end.value]
    if not writes:
        return f"{who}, which no operation wrote."
    write = writes[0]
    if write.refused:
        return f"{who}, which {write.invoke.process} was to write: that was refused, and had an effect all the same."
    if write.invoke.time > read.ended:
        return f"{who} before {write.invoke.process} began to write it."
    return f"{who} at a time when this was not what {found.resource} held."
