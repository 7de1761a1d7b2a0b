"""What is written at the marks: one operation in a few words, and in one sentence."""

from typing import Final, assert_never

from fencepost.testing.history import End, Outcome
from fencepost.testing.torture.report.markup import visible
from fencepost.testing.torture.report.operation import Operation

SHORT: Final = 16
"""Characters of a value at a mark."""
LONG: Final = 60
_NANO: Final = 1e-9
_MICROSECOND: Final = 1e-6
_MILLISECOND: Final = 1e-3


def label(operation: Operation) -> str:
    """Give the words at the mark: `write b`, `read b`, `refused: stale`."""
    end = operation.end
    if operation.outcome == "refused" and end is not None:
        return f"{operation.op}: {end.reason or 'refused'}"
    value = _seen(end) if end is not None and end.event == "ok" else None
    value = operation.begin.value if value is None else value
    asked = operation.op if value is None else f"{operation.op} {visible(value, SHORT)}"
    return f"{asked}?" if operation.outcome == "unknown" else asked


def sentence(operation: Operation, origin: int) -> str:
    """Say in one sentence what was asked, when, and what it came to. Times are seconds since `origin`."""
    begin = operation.begin
    asked = [f"{visible(begin.process, LONG)}: {begin.op}"]
    if begin.value is not None:
        asked.append(visible(begin.value, LONG))
    if begin.token is not None:
        asked.append(f"under token {begin.token}")
    if begin.key is not None:
        asked.append(f"with key {visible(begin.key, LONG)}")
    return f"{' '.join(asked)}, at {seconds(begin.time - origin)}; {answer(operation)}"


def answer(operation: Operation) -> str:
    """Say what an operation came to, and after how long."""
    end = operation.end
    if end is None:
        return "no answer: it may have happened or not"
    after = f"after {duration(end.time - operation.invoked)}"
    outcome: Outcome = end.event
    if outcome == "ok":
        return f"{_accepted(end)} {after}"
    if outcome == "refused":
        mark = "" if end.mark is None else f", the mark is {end.mark}"
        return f"refused as {end.reason or 'other'} {after}{mark}"
    if outcome == "unknown":
        why = "" if end.why is None else f" ({visible(end.why, LONG)})"
        return f"unknown {after}{why}: it may have happened or not"
    assert_never(outcome)


def _accepted(end: End) -> str:
    parts = ["answered from the record" if end.replayed else "ok"]
    if (seen := _seen(end)) is not None:
        parts.append(f"saw {visible(seen, LONG)}")
    if end.token is not None:
        parts.append(f"token {end.token}")
    return ", ".join(parts)


def _seen(end: End) -> str | None:
    if end.values is not None:
        return "{" + ", ".join(end.values[:LONG]) + "}"
    if isinstance(end.value, str):
        return end.value
    return "no row" if end.value is None else None


def seconds(nanoseconds: int) -> str:
    """Write a moment: `12.345678 s`."""
    return f"{nanoseconds * _NANO:,.6f} s"


def duration(nanoseconds: int) -> str:
    """Write a duration in the unit that suits it: `3.2 ms`."""
    value = nanoseconds * _NANO
    if value >= 60:  # noqa: PLR2004 - seconds of a minute
        minutes, rest = divmod(round(value), 60)
        return f"{minutes:,} min {rest} s"
    for unit, name in ((1.0, "s"), (_MILLISECOND, "ms"), (_MICROSECOND, "µs")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{nanoseconds} ns"
