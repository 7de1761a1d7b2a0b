"""One connection through a link: two streams, each with its delay, its gate, and the places where it is cut."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fencepost.testing.faults.conversation import Conversation, Piece
from fencepost.testing.faults.cutter import Cutter

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK = 65536  # bytes
_UNDER_WAY = 1024  # chunks that a delay may keep back; then the sender has to wait

_Queue: TypeAlias = "asyncio.Queue[tuple[float, bytes | None]]"
"""What is under way: when it arrives, by the loop's clock, and the bytes: empty at the end, None where it broke off."""


class Direction:
    """One direction of all connections of a link. While `open` is not set, nothing passes.

    It is open again when `reopen` was called as often as `close`: partitions may overlap. So may delays.
    """

    def __init__(self) -> None:
        self._delays: list[float] = []
        self.open = asyncio.Event()
        self.open.set()
        self._closed = 0

    @property
    def delay(self) -> float:
        """By how many seconds what passes arrives later: the sum of the delays."""
        return sum(self._delays)

    def slow_down(self, seconds: float) -> None:
        """Add a delay. In the link's loop."""
        self._delays.append(seconds)

    def speed_up(self, seconds: float) -> None:
        """Take such a delay back. In the link's loop."""
        with contextlib.suppress(ValueError):  # it was interrupted before it began
            self._delays.remove(seconds)

    def close(self) -> None:
        """Let nothing pass from now on. In the link's loop."""
        self._closed += 1
        self.open.clear()

    def reopen(self) -> None:
        """Take one `close` back. In the link's loop."""
        self._closed = max(0, self._closed - 1)
        if not self._closed:
            self.open.set()


class Ways(Protocol):
    """What a connection needs of its link."""

    to_server: Direction
    to_client: Direction
    cutters: "list[Cutter]"


class Connection:
    """A client's side (near) and the server's (far)."""

    def __init__(
        self, ways: Ways, near: asyncio.StreamWriter, far: asyncio.StreamWriter, conversation: Conversation
    ) -> None:
        self._ways, self._near, self._far, self._conversation = ways, near, far, conversation
        self._asked = Piece(b"")  # the commit that was sent last
        self._was_cut = False
        self._hung_up = asyncio.Event()

    async def carry(self, from_client: asyncio.StreamReader, from_server: asyncio.StreamReader) -> None:
        """Carry both streams until both have ended."""
        to_server: _Queue = asyncio.Queue(_UNDER_WAY)
        to_client: _Queue = asyncio.Queue(_UNDER_WAY)
        takers = [
            asyncio.create_task(self._take(from_client, to_server, self._ways.to_server)),
            asyncio.create_task(self._take(from_server, to_client, self._ways.to_client)),
        ]
        try:
            await asyncio.gather(
                self._give(to_server, self._far, self._ways.to_server, to_the_server=True),
                self._give(to_client, self._near, self._ways.to_client, to_the_server=False),
            )
        finally:
            for task in takers:
                task.cancel()
            self.cut()

    @property
    def problem(self) -> str | None:
        """Why what passes cannot be read; None where it can."""
        return self._conversation.problem

    def cut(self, *, half_open: bool = False) -> None:
        """Reset the client's side, and the server's unless `half_open`."""
        self._was_cut = True
        self._near.transport.abort()
        if not half_open:
            self._far.transport.abort()
            self._hung_up.set()

    @staticmethod
    async def _take(reader: asyncio.StreamReader, queue: _Queue, direction: Direction) -> None:
        loop = asyncio.get_running_loop()
        data: bytes | None = b"-"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = None
            await queue.put((loop.time() + direction.delay, data))

    async def _give(
        self, queue: _Queue, writer: asyncio.StreamWriter, direction: Direction, *, to_the_server: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        read = self._conversation.from_client if to_the_server else self._conversation.from_server
        send = self._to_server if to_the_server else self._to_client
        with contextlib.suppress(OSError):  # this side has hung up; what the other still sends is thrown away
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await direction.open.wait()
                if not data and self._was_cut and to_the_server:
                    await self._hung_up.wait()  # a half-open connection: the server learns nothing of the cut
                    return
                if data is None:
                    writer.transport.abort()
                    return
                if not data:
                    writer.write_eof()
                    return
                for piece in read(data):
                    if self._was_cut:
                        continue
                    writer.write(send(piece))
                await writer.drain()

    def _to_server(self, piece: Piece) -> bytes:
        if piece.commits:
            if self._cut_at(cutter for cutter in self._cutters if cutter.wants("before-commit", piece)):
                return b""
            self._asked = piece
        for cutter in self._cutters:
            if cutter.when == "after-bytes" and cutter.left:
                whole = len(piece.data)
                if whole >= cutter.bytes_left:
                    passed = piece.data[: cutter.bytes_left]
                    self._far.write(passed)
                    self._cut_at(iter([cutter]))
                    return b""
                cutter.bytes_left -= whole
        return piece.data

    def _to_client(self, piece: Piece) -> bytes:
        if piece.concludes and self._cut_at(c for c in self._cutters if c.wants("after-commit", self._asked)):
            return b""
        return piece.data

    @property
    def _cutters(self) -> "Sequence[Cutter]":
        return self._ways.cutters

    def _cut_at(self, wanting: Iterator[Cutter]) -> bool:
        cutter = next(wanting, None)
        if cutter is None:
            return False
        self.cut(half_open=cutter.half_open)
        cutter.count()
        return True
