"""A history, written down in a test: who asked for what, from when to when (seconds), and the answer."""

from typing import Any

from fencepost.testing.checker import Verdict, check
from fencepost.testing.checker.store import MODELS, Model
from fencepost.testing.history import End, Event, FaultEvent, History, Invoke, Op

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
