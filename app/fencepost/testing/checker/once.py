"""Idempotency-Keys: operations with one key have one effect, and the answers of all are that of the one.

An answer that is not marked as repeated stands for an effect of its own; two of them with one key are two effects. An
answer that is marked as repeated was read from the record of the operation that had the effect: of another one with its
key that may have happened before it, or of this one itself, when the connection to the database broke after its commit
and the gateway looked it up. It shows what that one's answer shows. It also proves that this operation happened, even
when its own answer was lost: the register is checked with that knowledge (`Effects`).

When several operations with one key may be the one, at most one of them had an effect. Where they are the same in
all, the one that began first stands for them: it can have happened at any time at which another one can. Where a
repetition had another token (its holder had acquired the lock again), each token stays possible: `frontier.py` gives a
moment to one of them at most.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fencepost.testing.checker.calls import NEVER, Call, in_time
from fencepost.testing.checker.store import Store
from fencepost.testing.checker.verdict import Violation
from fencepost.testing.checker.words import Words
from fencepost.testing.history import NOT_READ


@dataclass(frozen=True, slots=True)
class Twice:
    """What is wrong with the operations of one key."""

    problem: str
    calls: list[Call]


@dataclass(frozen=True, slots=True)
class Effects:
    """Which operations of one key change something, by their positions."""

    none: list[int]
    """These do not: they only show what another one did."""
    happened: tuple[int, int] | None = None
    """This one happened, at the latest when that other one was answered."""
    one_of: tuple[int, ...] = ()
    """At most one of these did; if one that certainly happened is among them, one did."""
    perhaps: tuple[int, ...] = ()
    """These were answered with what was stored, and need not be the one that had the effect."""


def settle(store: Store) -> None:
    """Note in the store which operations with a key changed something, and by when they happened."""
    nothing: list[int] = []
    happened: list[tuple[int, int, int]] = []
    perhaps: list[int] = []
    groups: list[tuple[list[int], int]] = []
    for _, rows in store.by_key():
        found = effects([call for _, call in rows])
        if found.one_of:
            groups.append(([rows[at][0] for at in found.one_of], max(rows[at][1].token for at in found.one_of)))
        nothing += [rows[at][0] for at in found.none]
        perhaps += [rows[at][0] for at in found.perhaps]
        if found.happened is not None:
            (rowid, _), (proof, again) = rows[found.happened[0]], rows[found.happened[1]]
            happened.append((rowid, again.ended, proof))
    for rowid in nothing:
        store.settle(rowid)
    for rowid, time, proof in happened:
        store.settle(rowid, happened_by=time, proof=proof)
    for rowid in perhaps:
        store.settle(rowid, happened_by=NEVER)
    for rowids, highest in groups:
        store.group(rowids, highest)


def violations(store: Store, words: Words) -> Iterator[Violation]:
    """Give what is wrong with the operations of each key."""
    for key, rows in store.by_key():
        if (wrong := contradiction(key, [call for _, call in rows])) is not None:
            resource = wrong.calls[0].invoke.resource
            yield Violation("once", resource, words.listed(f"{wrong.problem}.", wrong.calls), in_time(wrong.calls))


def contradiction(key: str, calls: list[Call]) -> Twice | None:
    """Find what is wrong with the operations of one key, which are in the order of their begins."""
    done = [call for call in calls if _ok(call) and not _replayed(call)]
    if len(done) > 1:
        return Twice(f"Two operations with the Idempotency-Key {key!r} were both done", done[:2])
    repeated = [call for call in calls if _ok(call) and _replayed(call)]
    if done and repeated and done[0].invoke.time > min(again.ended for again in repeated):
        return Twice(
            f"An answer was repeated for the Idempotency-Key {key!r}, and the operation that was done with this key"
            " began later",
            [min(repeated, key=lambda again: again.ended), done[0]],
        )
    original = (done or repeated or calls)[0]
    for again in repeated:
        if not _same_request(original, again):
            return Twice(
                f"The Idempotency-Key {key!r} was answered with what another request had been answered",
                [original, again],
            )
        if not _same_answer(original, again):
            return Twice(f"The repeated answer for the Idempotency-Key {key!r} is another one", [original, again])
    return None


def effects(calls: list[Call]) -> Effects:
    """Give which operations of one key changed something. `contradiction` checks that at most one did."""
    none = [at for at, call in enumerate(calls) if _replayed(call)]
    unknown = [at for at, call in enumerate(calls) if _unanswered(call)]
    repeated = min((at for at in none if _ok(calls[at])), key=lambda at: calls[at].ended, default=None)
    done = next((at for at, call in enumerate(calls) if _ok(call) and not _replayed(call)), None)
    if done is not None:
        sooner = repeated is not None and calls[done].invoke.time <= calls[repeated].ended < calls[done].ended
        return Effects(none + unknown, (done, repeated) if sooner and repeated is not None else None)
    if repeated is None:
        first = {(*_request(calls[at]), calls[at].token): at for at in reversed(unknown)}
        possible = sorted(first.values())
        others = [at for at in unknown if at not in possible]
        return Effects(none + others, one_of=tuple(possible) if len(possible) > 1 else ())
    return _original(calls, repeated, [*none, *unknown])


def _original(calls: list[Call], repeated: int, others: list[int]) -> Effects:
    """Give which of these may be what was answered again first, and maybe only there: the first of each token."""
    again = calls[repeated]
    first = {
        calls[at].token: at
        for at in sorted(others, reverse=True)
        if not calls[at].refused and calls[at].invoke.time <= again.ended and _same_request(calls[at], again)
    }
    possible = sorted(first.values())
    return Effects(
        [at for at in others if at not in possible],
        None if possible[0] == repeated else (possible[0], repeated),
        tuple(possible) if len(possible) > 1 else (),
        tuple(at for at in possible[1:] if _replayed(calls[at])),
    )


def _ok(call: Call) -> bool:
    return call.end is not None and call.end.event == "ok"


def _unanswered(call: Call) -> bool:
    return call.end is None or call.end.event == "unknown"


def _replayed(call: Call) -> bool:
    return call.end is not None and call.end.replayed


def _same_request(one: Call, other: Call) -> bool:
    return _request(one) == _request(other)


def _request(call: Call) -> tuple[str, str, str | None]:
    return call.invoke.op, call.invoke.resource, call.invoke.value


def _same_answer(one: Call, other: Call) -> bool:
    if one.end is None or other.end is None:
        return True
    same_value = NOT_READ in {one.end.value, other.end.value} or one.end.value == other.end.value
    return same_value and (None in {one.end.token, other.end.token} or one.end.token == other.end.token)
