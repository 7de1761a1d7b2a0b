"""Histories in the form of Porcupine, the linearizability checker in Go (github.com/anishathalye/porcupine).

One operation a line, with the fields of porcupine.Operation: ClientId, Input, Call, Output, Return. Input and Output
are objects with the fields of `Invoke` and `End`. An operation whose outcome is unknown returns at the end of time.
tests/porcupine has a program that reads this, and the models.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

from fencepost.testing.history.events import NOT_READ, End, Invoke
from fencepost.testing.history.history import History

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
