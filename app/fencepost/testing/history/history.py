"""A history: its header, and its events from a file (again and again, never more than one line in memory) or a list."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from fencepost.testing.history.errors import BadHistoryError, CutOffError
from fencepost.testing.history.events import Event, Invoke
from fencepost.testing.history.lines import read_event, read_header
from fencepost.testing.history.order import Order


class History:
    """Header and events. Each iteration begins with the first event; it raises BadHistoryError where one is wrong."""

    def __init__(self, header: Mapping[str, Any], events: Callable[[], Iterable[Event]]) -> None:
        self.header = header
        self._events = events

    def __iter__(self) -> Iterator[Event]:
        order = Order(self.place)
        for number, event in enumerate(self._events(), start=1):
            try:
                order.judge(event)
            except BadHistoryError as error:
                raise BadHistoryError(f"{self.title}, {self.place(number)}: {error}") from None
            yield event

    @property
    def title(self) -> str:
        """What errors call it."""
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
            header = _in_file(path, 1, lambda: read_header(_whole(path, file, file.readline())))
        super().__init__(header, lambda: iter(self))

    def __iter__(self) -> Iterator[Event]:
        order = Order(self.place)
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
        """Say which line it is."""
        return f"line {number + _FIRST - 1}"


def read(path: str | Path, *, cut_off_last_line: bool = False) -> History:
    """Open a history. Raises BadHistoryError for a wrong header; for a wrong event when it is reached.

    A last line without its end raises CutOffError; with `cut_off_last_line` it is left out, and what had not ended is
    unknown.
    """
    return _File(Path(path), cut_off_last_line=cut_off_last_line)


def _in_file(path: Path, number: int, step: Callable[[], Any]) -> Any:
    try:
        return step()
    except CutOffError:
        raise
    except BadHistoryError as error:
        raise BadHistoryError(f"{path}, line {number}: {error}") from None


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
