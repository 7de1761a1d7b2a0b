"""Makes one history of the parts that the processes of a run have written: in the order of time, with new ids."""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from fencepost.testing.history.lines import header_line

_BEGINS: Final = frozenset({"invoke", "fault"})
_NAMELESS: Final = "note"


@dataclass(frozen=True, slots=True)
class Merged:
    """What is in a history, counted: accepted operations by `op`, refused ones by `op` and reason."""

    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count(self, op: str, end: Mapping[str, Any]) -> None:
        if end["event"] == "ok":
            self.accepted[op] += 1
        elif end["event"] == "refused":
            self.refused[op, end["reason"]] += 1


@dataclass(frozen=True, slots=True)
class Voided:
    """What a failover has done to tokens: those `below` are void. `since`: when it began, on the history's clock."""

    since: int
    below: int

    def refuses(self, token: int | None, at: int) -> bool:
        """Whether this token may have been refused at this time because it is void."""
        return token is not None and token < self.below and self.since < at


def merge(parts: Sequence[Path], destination: Path, header: Mapping[str, Any], voided: Sequence[Voided] = ()) -> Merged:
    """Write a history to `destination`. A last line without its end, of a process that was killed, is left out.

    `voided`: by the failovers of the run. No operation of the history has raised the mark that refuses such a token.
    Where the rule is epoch the answer does not show this mark (else outcomes.py knows it by that): so its refusal as
    stale becomes one for another reason here.

    It uses as much memory as there are operations open at one time.
    """
    numbers = itertools.count(1)
    open_ids: dict[tuple[int, int], tuple[int, str | None, int | None]] = {}
    merged = Merged()
    with destination.open("xb") as file:
        file.write(header_line(header))
        for _, part, event in heapq.merge(*(_events(n, path) for n, path in enumerate(parts)), key=itemgetter(0)):
            kind = event["event"]
            if kind != _NAMELESS:
                was = (part, event["id"])
                if kind in _BEGINS:
                    event["id"] = next(numbers)
                    open_ids[was] = event["id"], event.get("op"), event.get("token")
                else:
                    event["id"], op, token = open_ids.pop(was)
                    if _shows_no_mark(event) and any(each.refuses(token, event["time"]) for each in voided):
                        event["reason"] = "other"
                    if op is not None:
                        merged.count(op, event)
            _write(file, event)
    return merged


def _shows_no_mark(end: Mapping[str, Any]) -> bool:
    """Whether it is a refusal as stale that does not say what the mark is."""
    return end.get("reason") == "stale" and end.get("mark") is None


def _write(file: BinaryIO, event: Mapping[str, Any]) -> None:
    file.write(orjson.dumps(event) + b"\n")


def _events(part: int, path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    with path.open("rb") as file:
        file.readline()  # the header
        for line in file:
            if line.endswith(b"\n"):
                event = orjson.loads(line)
                yield event["time"], part, event
