"""The recorder: takes the time of each event, and writes it to a file or keeps it in memory.

Threads, and tasks of asyncio, may share one: the time is taken and the line is written under one lock, so that times
never fall in the file. Nothing waits for the disk: a line is one write to the file, in the order of the events.
"""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fencepost.testing.history.events import (
    NOT_READ,
    End,
    Event,
    FaultEvent,
    Healed,
    Invoke,
    Note,
    NotRead,
    Op,
    Reason,
    Rule,
    event_line,
    header_line,
    judge_fields,
)
from fencepost.testing.history.history import History


class Operation:
    """An operation that was begun. Exactly one of `ok`, `refused` and `unknown` ends it; with none it is unknown."""

    def __init__(self, recorder: "Recorder", identity: int) -> None:
        self.id = identity
        self._recorder = recorder
        self._ended = False

    def ok(
        self,
        *,
        value: str | NotRead | None = NOT_READ,
        token: int | None = None,
        values: tuple[str, ...] | None = None,
        expires: int | None = None,
        replayed: bool = False,
    ) -> None:
        """It was done. The arguments are what the answer showed: see `End`."""
        self._end(
            lambda now: End(
                now, self.id, "ok", value=value, token=token, values=values, expires=expires, replayed=replayed
            )
        )

    def refused(self, reason: Reason, *, mark: int | None = None, replayed: bool = False) -> None:
        """It was certainly not done."""
        self._end(lambda now: End(now, self.id, "refused", reason=reason, mark=mark, replayed=replayed))

    def unknown(self, why: str) -> None:
        """It may have been done, or may yet be done: there was no answer."""
        self._end(lambda now: End(now, self.id, "unknown", why=why))

    def _end(self, end: Callable[[int], End]) -> None:
        if self._ended:
            raise ValueError(f"operation {self.id} has ended already: it has one outcome")
        self._recorder.add(end)
        self._ended = True


class RecordedFault:
    """A fault that was begun."""

    def __init__(self, recorder: "Recorder", identity: int) -> None:
        self.id = identity
        self._recorder = recorder

    def healed(self) -> None:
        self._recorder.add(lambda now: Healed(now, self.id))


class Recorder:
    """Records a history; `path` None keeps it in memory. Keywords go into the header, for the report.

    In memory as in a file, an event with a field that cannot be is refused where it is recorded: BadHistoryError names
    the field and its value. Raises FileExistsError when there is a file at `path`: a recording is never written over.
    """

    def __init__(self, path: str | Path | None = None, **header: Any) -> None:
        self.path = None if path is None else Path(path)
        self.header: Mapping[str, Any] = header
        self._lock = threading.Lock()
        self._ids = 0
        self._events: list[Event] = []
        self._file = None if self.path is None else self.path.open("xb", buffering=0)
        if self._file is not None:
            self._write(header_line(header))

    def invoke(
        self,
        *,
        process: str,
        op: Op,
        resource: str,
        token: int | None = None,
        value: str | None = None,
        rule: Rule = "strict",
        key: str | None = None,
    ) -> Operation:
        """Record that an operation begins; call it before the request is sent."""
        identity = self._identity()
        self.add(lambda now: Invoke(now, identity, process, op, resource, token=token, value=value, rule=rule, key=key))
        return Operation(self, identity)

    def fault(self, kind: str, target: str) -> RecordedFault:
        identity = self._identity()
        self.add(lambda now: FaultEvent(now, identity, kind, target))
        return RecordedFault(self, identity)

    def note(self, text: str) -> None:
        self.add(lambda now: Note(now, text))

    def add(self, event: Callable[[int], Event]) -> None:
        """Record the event that `event` makes of the time, in nanoseconds. BadHistoryError when a field is wrong."""
        with self._lock:
            made = event(time.monotonic_ns())
            judge_fields(made)
            if self._file is None:
                self._events.append(made)
            else:
                self._write(event_line(made))

    @property
    def history(self) -> History:
        """What was recorded in memory until now. Raises ValueError when it went to a file: `read` that."""
        if self.path is not None:
            raise ValueError(f"this history is in {self.path}: read(path) opens it")
        with self._lock:
            events = tuple(self._events)
        return History(self.header, lambda: events)

    def close(self) -> None:
        """Close the file. Nothing can be recorded after that."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: bytes) -> None:
        """Write a whole line. Raises OSError when the disk is full: `read` calls such a history cut off."""
        assert self._file is not None  # noqa: S101 - for the type
        rest = memoryview(line)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _identity(self) -> int:
        with self._lock:
            self._ids += 1
            return self._ids
