"""The fewest operations of a resource that no order explains.

Operations are left out as long as what remains is still impossible: in halves first, then in smaller parts, one by
one in the end (delta debugging: Zeller, Hildebrandt 2002). What is left is minimal: without any one of its operations
the rest can be explained.

Leaving out is not always harmless. Without the write whose value a read saw, that read is impossible for another
reason than in the whole history. So a write goes only together with the reads that name its value or its token. And
each operation that was left out is put back by itself in the end: if that explains what remains, it belongs to the
answer, and the search begins again with it.
"""

from collections.abc import Callable, Iterable

from fencepost.testing.checker.calls import Call

Impossible = Callable[[list[Call]], bool]


def shortest(
    calls: list[Call], others: Callable[[list[Call]], Iterable[Call]], impossible: Impossible
) -> list[Call] | None:
    """Give the fewest of these calls that are impossible together, in the order of their begins.

    `calls` are impossible; `others` gives all calls that could explain some of them. None: with the others they are
    possible, and were impossible only because those were missing.
    """
    kept: set[int] = set()
    while True:
        least = _least(calls, kept, impossible)
        explains = _explanation(least, others(least), impossible)
        if explains is None:
            break
        kept.add(explains.id)
        calls = _in_order({call.id: call for call in (*calls, explains)}.values())
        if not impossible(calls):
            return None
    for call in [call for call in least if call.id in kept]:  # it may have been needed for something that is left out
        rest = _without(least, {call.id})
        if impossible(rest) and _explanation(rest, others(rest), impossible) is None:
            least = rest
    return least


def _explanation(calls: list[Call], others: Iterable[Call], impossible: Impossible) -> Call | None:
    """Give another call with which these are possible."""
    have = {call.id for call in calls}
    return next((call for call in others if call.id not in have and not impossible(_in_order([*calls, call]))), None)


def _without(calls: list[Call], out: set[int]) -> list[Call]:
    """Leave calls out, with the reads that name their values or tokens."""
    gone = [call.invoke for call in calls if call.id in out and not call.refused]
    values = {invoke.value for invoke in gone} - {None}
    tokens = {invoke.token for invoke in gone} - {None}
    return [call for call in calls if call.id not in out and not _names(call, values, tokens)]


def _names(call: Call, values: set[str | None], tokens: set[int | None]) -> bool:
    end = call.end
    return end is not None and (end.value in values or end.token in tokens or end.mark in tokens)


def _least(calls: list[Call], kept: set[int], impossible: Impossible) -> list[Call]:
    parts = 2
    while True:
        free = [call for call in calls if call.id not in kept]
        size = max(1, len(free) // parts)
        for at in range(0, len(free), size):
            rest = _without(calls, {call.id for call in free[at : at + size]})
            if impossible(rest):
                calls = rest
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                return calls
            parts *= 2


def _in_order(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: (call.invoke.time, call.id))
