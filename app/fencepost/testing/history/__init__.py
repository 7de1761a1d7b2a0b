"""Histories: what was asked, what was answered and which faults there were, each with its time (docs/checker.md)."""

from fencepost.testing.history.events import (
    NOT_READ,
    BadHistoryError,
    CutOffError,
    End,
    Event,
    FaultEvent,
    Healed,
    Invoke,
    Note,
    NotRead,
    Op,
    Outcome,
    Reason,
    Rule,
)
from fencepost.testing.history.history import History, Operation, RecordedFault, Recorder, read

__all__ = [
    "NOT_READ",
    "BadHistoryError",
    "CutOffError",
    "End",
    "Event",
    "FaultEvent",
    "Healed",
    "History",
    "Invoke",
    "NotRead",
    "Note",
    "Op",
    "Operation",
    "Outcome",
    "Reason",
    "RecordedFault",
    "Recorder",
    "Rule",
    "read",
]
