"""Histories of tests: made by hand or at random, with an oracle for the register."""

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from fencepost.testing.checker import Verdict, check
from fencepost.testing.checker.store import MODELS, Model
from fencepost.testing.history import NOT_READ, End, Event, FaultEvent, History, Invoke, Op, Reason, Rule

# A history, written down in a test: who asked for what, from when to when (seconds), and the answer.

SECOND = 10**9


class Story:
    """Its events, in any order."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def call(self, process: str, op: Op, resource: str, since: float, until: float | None, **fields: Any) -> None:
        """Record an operation. Fields of the answer begin with `end_`; `end_event` is "ok" unless given."""
        identity = len(self.events) + 1
        answer = {name.removeprefix("end_"): value for name, value in fields.items() if name.startswith("end_")}
        asked = {name: value for name, value in fields.items() if not name.startswith("end_")}
        self.events.append(Invoke(int(since * SECOND), identity, process, op, resource, **asked))
        if until is not None:
            self.events.append(End(int(until * SECOND), identity, **{"event": "ok", **answer}))

    def killed(self, process: str, at: float) -> None:
        self.events.append(FaultEvent(int(at * SECOND), len(self.events) + 1, "killed", process))

    @property
    def history(self) -> History:
        ordered = sorted(self.events, key=lambda event: event.time)
        return History({}, lambda: ordered)

    def check(self, *models: Model) -> Verdict:
        return check(self.history, models or MODELS)


# The oracle of the register model: tries every order of the operations. For histories of a handful of operations.
#
# It shares nothing with the checker but the events: it is written from the sentences of docs/checker.md.

Pair = tuple[Invoke, End | None]


def has_an_order(events: Iterable[Event]) -> bool:
    """Whether some order of the operations of one resource explains all answers."""
    invokes = {event.id: event for event in events if isinstance(event, Invoke)}
    ends = {event.id: event for event in events if isinstance(event, End)}
    pairs: list[Pair] = [(invoke, ends.get(invoke.id)) for invoke in invokes.values()]
    sure = [pair for pair in pairs if not unknown(pair)]
    maybe = [pair for pair in pairs if unknown(pair) and pair[0].op != "read"]
    return any(
        ordered(0, None, [*sure, *chosen]) for size in range(len(maybe) + 1) for chosen in combinations(maybe, size)
    )


def unknown(pair: Pair) -> bool:
    return pair[1] is None or pair[1].event == "unknown"


def ordered(mark: int, value: str | None, left: list[Pair]) -> bool:
    if not left:
        return True
    for pair in left:
        others = [each for each in left if each is not pair]
        if any(before(each, pair) for each in others):
            continue
        after = step(mark, value, pair)
        if after is not None and ordered(*after, others):
            return True
    return False


def before(one: Pair, other: Pair) -> bool:
    return one[1] is not None and one[1].event != "unknown" and one[1].time < other[0].time


def step(mark: int, value: str | None, pair: Pair) -> tuple[int, str | None] | None:
    """Give mark and value after this operation; None when it cannot have been answered like this."""
    invoke, end = pair
    token = invoke.token or 0
    if end is not None and end.event == "refused":
        right = {"stale": mark > token, "spent": mark == token}.get(end.reason or "", True)
        named = end.mark in {None, mark}
        return (mark, value) if right and named else None
    if invoke.op == "read":
        assert end is not None
        return (mark, value) if end.value == value and end.token in {None, mark} else None
    if invoke.token is not None and not (mark < token or (invoke.rule == "epoch" and mark == token)):
        return None
    after = max(mark, token)
    if invoke.op == "claim":
        seen = NOT_READ if end is None else end.value
        return (after, value) if seen in {NOT_READ, value} else None
    return after, invoke.value if invoke.op == "write" else None


# Histories that right registers, locks and sets have made, and the same with one thing wrong.
#
# A seed decides everything. Operations get their begin, their end and the moment between the two at random, and a
# resource that works answers in the order of these moments. Some answers are lost, and some of these operations happen
# late.

REGISTER: tuple[Op, ...] = ("write", "write", "delete", "claim", "read", "read")


class Planned(NamedTuple):
    """An operation before it is answered."""

    invoke: Invoke
    moment: float
    end: int
    happens: bool
    answered: bool


class Resource:
    """A register, a lock or a set that works."""

    def __init__(self) -> None:
        self.mark = 0
        self.value: str | None = None
        self.elements: list[str] = []
        self.keys: set[str] = set()

    def answer(self, planned: Planned) -> End:
        invoke, now = planned.invoke, planned.end
        match invoke.op:
            case "read":
                return End(now, invoke.id, "ok", self.value, self.mark if invoke.id % 2 and self.mark else None)
            case "acquire":
                if invoke.id % 5 == 0:
                    return End(now, invoke.id, "refused", reason="held")
                self.mark += 1 + invoke.id % 2
                return End(now, invoke.id, "ok", token=self.mark)
            case "add":
                self.elements.append(str(invoke.value))
                return End(now, invoke.id, "ok")
            case "read_set":
                return End(now, invoke.id, "ok", values=tuple(self.elements))
            case _:
                return self._write(invoke, now)

    def _write(self, invoke: Invoke, now: int) -> End:
        if invoke.key in self.keys:
            return End(now, invoke.id, "ok", replayed=True)
        if (token := invoke.token) is not None:
            if self.mark > token:
                return End(now, invoke.id, "refused", reason="stale", mark=self.mark)
            if self.mark == token and invoke.rule == "strict":
                return End(now, invoke.id, "refused", reason="spent", mark=self.mark)
            self.mark = token
        seen = self.value if invoke.op == "claim" and invoke.id % 2 else NOT_READ
        if invoke.op != "claim":
            self.value = invoke.value if invoke.op == "write" else None
        self.keys |= set() if invoke.key is None else {invoke.key}
        looked_up = invoke.key is not None and invoke.id % 4 == 1  # by the gateway, after its connection broke
        return End(now, invoke.id, "ok", seen, replayed=looked_up)


def right(
    seed: int,
    count: int = 7,
    *,
    ops: tuple[Op, ...] = REGISTER,
    rule: Rule = "strict",
    fenced: bool = True,
    keyed: bool = False,
) -> list[Event]:
    """Make the history of about `count` operations on one resource."""
    chance = random.Random(seed)
    resource = Resource()
    planned = _plan(chance, count, ops, rule, fenced=fenced)
    if keyed:
        planned = _repeated(chance, planned)
    events: list[Event] = []
    for each in sorted(planned, key=lambda each: each.moment):
        end = resource.answer(each) if each.happens else None
        events.append(each.invoke)
        if end is not None and each.answered:
            events.append(end)
        elif chance.random() < 0.5:
            events.append(End(each.end, each.invoke.id, "unknown", why="no answer"))
    return sorted(events, key=lambda event: (event.time, isinstance(event, End)))


RIGHT: Final[Mapping[str, Callable[[int], list[Event]]]] = {
    "strict": right,
    "epoch": partial(right, rule="epoch"),
    "without tokens": partial(right, fenced=False, ops=("write", "read", "read")),
    "keys": partial(right, keyed=True, ops=("write", "write", "read")),
    "keys under epoch": partial(right, keyed=True, rule="epoch", ops=("write", "write", "read", "claim")),
    "lock": partial(right, ops=("acquire", "acquire", "release"), fenced=False),
    "set": partial(right, ops=("add", "add", "read_set"), fenced=False),
}


def wrong(seed: int, events: list[Event]) -> list[Event]:
    """Change one answer, or one token. The history may still be right: ask an oracle."""
    chance = random.Random(seed)
    ends = [event for event in events if isinstance(event, End) and event.event != "unknown"]
    if not ends:
        return events
    end = chance.choice(ends)
    invoke = next(event for event in events if isinstance(event, Invoke) and event.id == end.id)
    if invoke.token is not None and chance.random() < 0.3:
        other = dataclasses.replace(invoke, token=chance.randint(1, 2 * len(ends)))
        return [other if event is invoke else event for event in events]
    written = [event.value for event in events if isinstance(event, Invoke) and event.value is not None]
    changed = _changed(chance, invoke, end, written)
    return [changed if event is end else event for event in events]


def _changed(chance: random.Random, invoke: Invoke, end: End, written: list[str]) -> End:
    if end.values is not None:
        values = tuple(value for value in sorted({*end.values, *written}) if chance.random() < 0.7)
        return dataclasses.replace(end, values=values)
    if invoke.op == "acquire" and end.token is not None:
        return dataclasses.replace(end, token=max(1, end.token + chance.choice([-3, -2, -1, 1, 2, 3])))
    if end.value is not NOT_READ:
        return dataclasses.replace(end, value=chance.choice([None, *written]), token=None)
    if invoke.key is not None and end.event == "ok" and chance.random() < 0.5:
        return dataclasses.replace(end, replayed=not end.replayed)
    if end.event == "ok" or invoke.op == "acquire":
        lost = dataclasses.replace(end, event="unknown", replayed=False, reason=None)
        reason: Reason = "stale" if invoke.token else "other"
        return chance.choice([lost, dataclasses.replace(lost, event="refused", reason=reason)])
    return dataclasses.replace(end, event="ok", reason=None, mark=None)


def _plan(chance: random.Random, count: int, ops: tuple[Op, ...], rule: Rule, *, fenced: bool) -> list[Planned]:
    planned: list[Planned] = []
    token = 1
    for number in range(count):
        begin = 1000 * number + chance.randrange(1000)
        end = begin + 2 + chance.randrange(chance.choice([300, 2000, 6000]))
        op = chance.choice(ops)
        token = max(1, token + chance.choice([-1, 0, 1, 1, 1] if rule == "epoch" else [-2, 1, 1, 1, 2]))
        shown = token if fenced and op != "read" else None
        value = f"v{number}" if op in {"write", "add"} else None
        asked: Rule = rule if op in {"write", "delete", "claim"} else "strict"
        invoke = Invoke(begin, number + 1, f"w{number % 4}", op, "orders/7", shown, value, asked)
        lost = chance.random() < 0.15
        late = 3000 if lost and chance.random() < 0.3 else 0
        moment = chance.uniform(begin, end) + late
        planned.append(Planned(invoke, moment, end, happens=not lost or chance.random() < 0.6, answered=not lost))
    return planned


def _repeated(chance: random.Random, planned: list[Planned]) -> list[Planned]:
    """Give all writes keys, and repeat some, above all those whose answers were lost."""
    after: list[Planned] = []
    for each in planned:
        if each.invoke.op != "write":
            after.append(each)
            continue
        invoke = dataclasses.replace(each.invoke, key=f"k{each.invoke.id}")
        after.append(each._replace(invoke=invoke))
        if not each.answered or chance.random() < 0.3:
            begin = each.end + chance.randrange(500)
            end = begin + 2 + chance.randrange(2000)
            token = None if invoke.token is None else invoke.token + chance.choice([0, 0, 0, 1, 2])
            again = dataclasses.replace(invoke, id=invoke.id + 100, time=begin, token=token)
            after.append(Planned(again, chance.uniform(begin, end), end, happens=True, answered=chance.random() < 0.8))
    return after


# Histories for reports, written line by line: small stories with exact times, and large ones made by a seed.

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
