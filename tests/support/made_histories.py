"""Histories that right registers, locks and sets have made, and the same with one thing wrong.

A seed decides everything. Operations get their begin, their end and the moment between the two at random, and a
resource that works answers in the order of these moments. Some answers are lost, and some of these operations happen
late.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from fencepost.testing.history import NOT_READ, End, Event, Invoke, Op, Reason, Rule

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
