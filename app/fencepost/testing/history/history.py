"""A history: its header, and its events from a file (again and again, never more than one line in memory) or a list;
and the recorder that makes one.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, assert_never

import orjson

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
    Reason,
    Rule,
    event_line,
    header_line,
    judge_end,
    judge_fields,
    judge_invoke,
    read_event,
    read_header,
)

# What the events of a history must be to each other: a clock that does not go backwards, and an invoke before its end.
#
# It remembers the operations that are open, and nothing of those that are over. Faults are few: it remembers all.


class EventOrder:
    """Judges the events of one history, in their order. `place` says where the event with a number is, from 1 on."""

    def __init__(self, place: Callable[[int], str]) -> None:
        self._place = place
        self._number = 0
        self._now = 0
        self._open: dict[int, tuple[Invoke, int]] = {}
        self._faults: dict[int, int] = {}
        self._not_healed: set[int] = set()

    def judge(self, event: Event) -> None:
        """Take the next event. Raises BadHistoryError."""
        if event.time < self._now:
            raise BadHistoryError(
                f"the clock goes backwards, from {self._now} to {event.time}: times must come from one monotonic clock"
                " (time.monotonic_ns), and lines must be in their order"
            )
        self._now = event.time
        self._number += 1
        match event:
            case Invoke():
                self._begins(event)
            case End():
                self._ends(event)
            case FaultEvent():
                self._fault_begins(event)
            case Healed():
                if event.id not in self._not_healed:
                    raise BadHistoryError(f"fault {event.id} is healed, and did not begin before")
                self._not_healed.remove(event.id)
            case Note():
                pass
            case _:
                assert_never(event)

    def _begins(self, invoke: Invoke) -> None:
        if invoke.id in self._open:
            first = self._place(self._open[invoke.id][1])
            raise BadHistoryError(
                f"operation {invoke.id} begins a second time before it ended: ids must be unique. It began in {first}"
            )
        judge_invoke(invoke)
        self._open[invoke.id] = invoke, self._number

    def _ends(self, end: End) -> None:
        invoke, _ = self._open.pop(end.id, (None, 0))
        if invoke is None:
            raise BadHistoryError(
                f"operation {end.id} ends, and did not begin before: a broken clock has put the two in the wrong order,"
                " or a line is missing"
            )
        judge_end(invoke, end)

    def _fault_begins(self, fault: FaultEvent) -> None:
        if fault.id in self._faults:
            first = self._place(self._faults[fault.id])
            raise BadHistoryError(f"fault {fault.id} begins a second time: ids must be unique. It began in {first}")
        self._faults[fault.id] = self._number
        self._not_healed.add(fault.id)


class History:
    """Header and events. Each iteration begins with the first event; it raises BadHistoryError where one is wrong."""

    def __init__(self, header: Mapping[str, Any], events: Callable[[], Iterable[Event]]) -> None:
        self.header = header
        self._events = events

    def __iter__(self) -> Iterator[Event]:
        order = EventOrder(self.place)
        for number, event in enumerate(self._events(), start=1):
            try:
                order.judge(event)
            except BadHistoryError as error:
                raise BadHistoryError(f"{self.title}, {self.place(number)}: {error}") from None
            yield event

    @property
    def title(self) -> str:
        return "the history"

    def place(self, number: int) -> str:
        """Say where the event with this number is; the first one has 1."""
        return f"event {number}"

    def require_unique(self, identity: int) -> None:
        """Raise BadHistoryError, which names the places, when two operations have this id."""
        places = [
            self.place(number)
            for number, event in enumerate(self, start=1)
            if isinstance(event, Invoke) and event.id == identity
        ]
        if len(places) > 1:
            raise BadHistoryError(
                f"{self.title}, {places[1]}: the id {identity} belongs to two operations, and ids must be unique. The"
                f" other one began in {places[0]}"
            )


_FIRST: Final = 2
"""The line of the first event: the one before it is the header."""


class _File(History):
    """Reads the file at each iteration. Errors name it and the line."""

    def __init__(self, path: Path, *, cut_off_last_line: bool) -> None:
        self.path = path
        self._cut_off = cut_off_last_line
        if path.exists() and not path.is_file():
            raise BadHistoryError(
                f"{path} is no regular file. A history is read more than once, and a pipe gives its events only once:"
                " write it to a file first"
            )
        with path.open("rb") as file:
            try:
                header = read_header(_whole(path, file, file.readline()))
            except CutOffError:
                raise
            except BadHistoryError as error:
                raise BadHistoryError(f"{path}, line 1: {error}") from None
        super().__init__(header, lambda: iter(self))

    def __iter__(self) -> Iterator[Event]:
        order = EventOrder(self.place)
        with self.path.open("rb") as file:
            file.readline()
            blank: int | None = None
            for number, line in enumerate(file, start=_FIRST):
                if not line.strip():  # at the end it is no harm: editors leave such lines
                    blank = blank or number
                    continue
                if blank is not None:
                    raise BadHistoryError(f"{self.path}, line {blank}: this line is empty, and events follow")
                if not line.endswith(b"\n"):
                    if self._cut_off:
                        return
                    raise _cut_off(self.path, number)
                try:
                    event = read_event(line)
                    order.judge(event)
                except BadHistoryError as error:
                    raise BadHistoryError(f"{self.path}, line {number}: {error}") from None
                yield event

    @property
    def title(self) -> str:
        return str(self.path)

    def place(self, number: int) -> str:
        return f"line {number + _FIRST - 1}"


def read(path: str | Path, *, cut_off_last_line: bool = False) -> History:
    """Open a history. Raises BadHistoryError for a wrong header; for a wrong event when it is reached.

    A last line without its end raises CutOffError; with `cut_off_last_line` it is left out, and what had not ended is
    unknown.
    """
    return _File(Path(path), cut_off_last_line=cut_off_last_line)


def _whole(path: Path, file: BinaryIO, line: bytes) -> bytes:
    if not line:
        raise BadHistoryError("the file is empty")
    if not line.endswith(b"\n") and not file.read(1) and line.lstrip().startswith(b"{"):
        raise _cut_off(path, 1)
    return line


def _cut_off(path: Path, number: int) -> CutOffError:
    return CutOffError(
        f"{path}, line {number}: the file ends in the middle of this line. The program that recorded it was killed, or"
        " the disk was full. To check the events before it, run with --cut-off-last-line: operations that had not ended"
        " there count as unknown"
    )


# The recorder: takes the time of each event, and writes it to a file or keeps it in memory.
#
# Threads, and tasks of asyncio, may share one: the time is taken and the line is written under one lock, so that times
# never fall in the file. Nothing waits for the disk: a line is one write to the file, in the order of the events.


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


class Recorder(AbstractContextManager["Recorder"]):
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
        since: int | None = None,
    ) -> Operation:
        """Record that an operation begins; call it before the request is sent.

        `since` (`time.monotonic_ns`): when it began, where only the answer names the resource. The recording is not in
        the order of time then: `fencepost torture` puts its parts in order before it reads them.
        """
        identity = self._identity()
        self.add(
            lambda now: Invoke(
                since or now, identity, process, op, resource, token=token, value=value, rule=rule, key=key
            )
        )
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
        if self._file is not None:
            self._file.close()

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


# Histories in the form of Porcupine, the linearizability checker in Go (github.com/anishathalye/porcupine).
#
# One operation a line, with the fields of porcupine.Operation: ClientId, Input, Call, Output, Return. Input and Output
# are objects with the fields of `Invoke` and `End`. An operation whose outcome is unknown returns at the end of time.
# tests/porcupine has a program that reads this, and the models.

AT_THE_END: Final = 2**63 - 1


def export(history: History, destination: str | Path) -> None:
    """Write a history for Porcupine. The file is complete, or is not there. Raises BadHistoryError."""
    target = Path(destination)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        try:
            for operation in _operations(history):
                file.write(orjson.dumps(operation) + b"\n")
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            Path(file.name).replace(target)
        except BaseException:
            Path(file.name).unlink()
            raise


def _operations(history: History) -> Iterator[dict[str, Any]]:
    clients: dict[str, int] = {}
    pending: dict[int, Invoke] = {}
    for event in history:
        if isinstance(event, Invoke):
            pending[event.id] = event
        elif isinstance(event, End):
            invoke = pending.pop(event.id)
            yield _operation(invoke, event, clients.setdefault(invoke.process, len(clients)))
    for invoke in pending.values():
        yield _operation(invoke, None, clients.setdefault(invoke.process, len(clients)))


def _operation(invoke: Invoke, end: End | None, client: int) -> dict[str, Any]:
    answered = end is not None and end.event != "unknown"
    asked = {name: getattr(invoke, name) for name in ("op", "resource", "token", "value", "rule", "key")}
    output: dict[str, Any] = {"event": "unknown"}
    if end is not None and answered:
        output = {name: getattr(end, name) for name in ("event", "token", "values", "replayed", "reason", "mark")}
        output |= {"read": end.value is not NOT_READ, "value": None if end.value is NOT_READ else end.value}
    return {
        "ClientId": client,
        "Input": asked,
        "Call": invoke.time,
        "Output": output,
        "Return": end.time if end is not None and answered else AT_THE_END,
    }
