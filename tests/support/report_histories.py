"""Histories for reports, written line by line: small stories with exact times, and large ones made by a seed."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

MILLISECOND = 1_000_000


class Script:
    """Writes a history. Times are milliseconds; lines are put in their order at the end."""

    def __init__(self, **header: Any) -> None:
        self._header = {"history": "fencepost/1", **header}
        self._events: list[tuple[int, int, dict[str, Any]]] = []
        self._ids = 0

    def did(self, start: float, end: float | None, process: str, op: str, resource: str, **asked: Any) -> int:
        """Add an operation; keys that begin with `answer_` are of its end, which is `ok` unless `event` is given."""
        self._ids += 1
        event = asked.pop("event", "ok")
        answer = {key.removeprefix("answer_"): asked.pop(key) for key in list(asked) if key.startswith("answer_")}
        begin = {"event": "invoke", "id": self._ids, "process": process, "op": op, "resource": resource, **asked}
        self._add(start, begin)
        if end is not None:
            self._add(end, {"event": event, "id": self._ids, **answer})
        return self._ids

    def fault(self, start: float, end: float | None, kind: str, target: str) -> None:
        self._ids += 1
        self._add(start, {"event": "fault", "id": self._ids, "kind": kind, "target": target})
        if end is not None:
            self._add(end, {"event": "healed", "id": self._ids})

    def note(self, at: float, text: str) -> None:
        self._add(at, {"event": "note", "text": text})

    def write(self, path: Path) -> Path:
        ordered = sorted(self._events, key=lambda event: event[:2])
        lines = [orjson.dumps(self._header), *(orjson.dumps({"time": time, **rest}) for time, _, rest in ordered)]
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path

    def _add(self, at: float, event: dict[str, Any]) -> None:
        self._events.append((round(at * MILLISECOND), len(self._events), event))


def paused_holder(*, fenced: bool = True) -> Script:
    """Give the story that the README begins with: w1 pauses with the lock, w2 writes, w1 wakes up and writes."""
    story = Script(seed=7, workload="register", source="builtin", started="2026-11-22T18:00:00Z")
    row, lock = "orders/7", "lock/orders/7"
    story.did(10, 12, "w1", "acquire", lock, answer_token=33)
    story.did(13, 15, "w1", "read", row, answer_value=None)
    story.did(16, 19, "w1", "write", row, token=33, value="new")
    story.fault(25, 5200, "paused", "w1")
    story.did(30, 5022, "w2", "acquire", lock, answer_token=34)
    story.did(5023, 5025, "w2", "read", row, answer_value="new")
    story.did(5028, 5031, "w2", "write", row, token=34, value="shipped")
    story.did(5040, None, "w3", "read", row)
    end = {} if not fenced else {"event": "refused", "answer_reason": "stale", "answer_mark": 34}
    story.did(5204, 5207, "w1", "write", row, token=33, value="cancelled", **end)
    story.did(5210, 5212, "w2", "read", row, answer_value="shipped" if fenced else "cancelled")
    story.did(5215, 5217, "w2", "release", lock, token=34)
    story.note(5220, "the lock's TTL is 5 s")
    return story


def large(path: Path, operations: int, *, resources: int, planted: int = 0, seed: int = 7) -> Path:
    """Write a history of a fenced register. `planted` stale writes are accepted: violations."""
    with path.open("wb") as file:
        file.write(
            orjson.dumps({"history": "fencepost/1", "seed": seed, "workload": "register", "source": "builtin"}) + b"\n"
        )
        for event in _events(operations, resources, planted, random.Random(seed)):
            file.write(orjson.dumps(event) + b"\n")
    return path


def _events(operations: int, resources: int, planted: int, dice: random.Random) -> Iterator[dict[str, Any]]:
    marks = [0] * resources
    time, bad = 1_000_000_000, {operations * (i + 1) // (planted + 1) for i in range(planted)}
    for i in range(operations):
        time += dice.randrange(MILLISECOND)
        number = dice.randrange(resources)
        resource, process = f"orders/{number}", f"w{dice.randrange(8)}"
        if i % 10_000 == 5_000:
            kind = ("paused", "killed", "partitioned", "delayed")[i // 10_000 % 4]
            yield {"time": time, "event": "fault", "id": operations + i, "kind": kind, "target": process}
        stale = marks[number] > 1 and (dice.random() < 0.1 or i in bad)
        token = marks[number] - 1 if stale else marks[number] + 1
        yield {"time": time, "event": "invoke", "id": i, "process": process, "op": "write", "resource": resource,
               "token": token, "value": f"{process}-{i}"}  # fmt: skip
        time += dice.randrange(MILLISECOND)
        if stale and i not in bad:
            yield {"time": time, "event": "refused", "id": i, "reason": "stale", "mark": marks[number]}
        elif dice.random() < 0.02:
            yield {"time": time, "event": "unknown", "id": i, "why": "timeout"}
        else:
            yield {"time": time, "event": "ok", "id": i}
        if not stale:
            marks[number] = token
        if i % 10_000 == 9_999:
            yield {"time": time, "event": "healed", "id": operations + i - 4_999}
