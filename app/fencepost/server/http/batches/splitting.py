"""Splits a body into its lines, as it arrives. Of a line that is too long nothing is kept."""

from collections.abc import Iterator


class Splitter:
    """`longest`: bytes that a line may have, without its end."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._line = bytearray()
        self._too_long = False

    @property
    def begun(self) -> int:
        """Bytes of the line whose end has not come."""
        return len(self._line)

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Take a part of the body, and give the lines that end in it; None for one that is too long."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._keep(data[start:end])
            start = end + 1
            yield self._take()
        self._keep(data[start:])

    def end(self) -> Iterator[bytes | None]:
        """Give the last line, if it has no end of its own."""
        if self._line or self._too_long:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        if self._too_long or len(self._line) + len(part) > self._longest:
            self._line.clear()
            self._too_long = True
        else:
            self._line += part

    def _take(self) -> bytes | None:
        line = None if self._too_long else bytes(self._line)
        self._line.clear()
        self._too_long = False
        return line
