"""An operation of the history: its beginning and, once it is known, its end."""

from dataclasses import dataclass
from typing import Final

from fencepost.testing.history import End, Invoke, Outcome

READS: Final = frozenset({"read", "read_set"})


@dataclass(slots=True)
class Operation:
    """What a process asked for, and what it came to."""

    begin: Invoke
    end: End | None = None

    @property
    def id(self) -> int:
        """The number that beginning and end share."""
        return self.begin.id

    @property
    def process(self) -> str:
        return self.begin.process

    @property
    def op(self) -> str:
        """What it asked for: `write`, say."""
        return self.begin.op

    @property
    def invoked(self) -> int:
        """When it was asked for, in nanoseconds."""
        return self.begin.time

    @property
    def ended(self) -> int | None:
        """When its answer came; None when the history has no end of it."""
        return None if self.end is None else self.end.time

    @property
    def outcome(self) -> Outcome:
        """What is known of it. An operation without an end may have happened or not."""
        return "unknown" if self.end is None else self.end.event

    @property
    def token(self) -> int | None:
        """The token under which it was asked for, or the one that an `acquire` got."""
        if self.op == "acquire" and self.end is not None and self.end.token is not None:
            return self.end.token
        return self.begin.token
