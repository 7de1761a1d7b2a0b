"""A call: an operation of a history with its end, and what the models may take it for."""

from dataclasses import dataclass
from typing import Final

from fencepost.testing.history import End, Event, Invoke

NEVER: Final = 2**63 - 1
"""The time by which an unknown operation has certainly happened."""

EFFECTS: Final = frozenset({"write", "delete", "claim"})
"""What raises a mark."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation. What has no end yet, or an unknown one, may have an effect at any time from its invoke on."""

    invoke: Invoke
    end: End | None
    ended: int
    """By when it has happened if it has; NEVER when it may still happen."""
    certain: bool
    """Whether it has certainly happened. Of a refused call, that there certainly was this refusal."""
    proof: tuple[Event, ...] = ()
    """Events of other operations that show when this one happened: answers that repeat its own."""
    highest: int | None = None
    """Of an unknown operation that was repeated under another token, with another unknown outcome: the highest of the
    tokens. At most one of these operations, which have the same key, has an effect; if it is certain, one has."""

    @property
    def id(self) -> int:
        """The operation's id."""
        return self.invoke.id

    @property
    def token(self) -> int:
        """The operation's token; 0 for none."""
        return self.invoke.token or 0

    @property
    def refused(self) -> bool:
        """Whether it certainly had no effect."""
        return self.end is not None and self.end.event == "refused"

    @property
    def events(self) -> tuple[Event, ...]:
        """What the history shows of it."""
        return (self.invoke, *(() if self.end is None else (self.end,)), *self.proof)


def in_time(calls: list[Call]) -> tuple[Event, ...]:
    """Give the events of calls in the order of their times, each once."""
    events = {event for call in calls for event in call.events}
    return tuple(sorted(events, key=lambda event: (event.time, isinstance(event, End), getattr(event, "id", 0))))
