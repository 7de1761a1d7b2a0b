"""When a link cuts a connection: at a commit, or after a number of bytes."""

import re
import threading
from dataclasses import dataclass, field
from typing import Final, Literal

from fencepost.testing.faults.conversation import Piece
from fencepost.testing.servers.waiting import PATIENCE

When = Literal["before-commit", "after-commit", "after-bytes"]
_WRITE: Final = re.compile(r"\b(INSERT|UPDATE|DELETE|MERGE|POST|PUT|PATCH)\b", re.IGNORECASE)


@dataclass(eq=False)
class Cutter:
    """One armed `cut`. `left`: how many connections it will still cut. `matching`: of commits of what it cuts.

    `bytes_left`, with after-bytes: how many bytes pass to the server before the cut. `half_open`: the server's side of
    the connection stays open, as in networks that fail without a word.
    """

    when: When
    left: int = 1
    matching: str | None = None
    bytes_left: int = 0
    half_open: bool = False
    times: int = 0
    """How many connections it has cut."""
    _happened: threading.Condition = field(default_factory=threading.Condition)

    def wants(self, when: When, piece: Piece) -> bool:
        """Whether it cuts at such a commit of what a piece commits."""
        if when != self.when or not self.left:
            return False
        if self.matching is not None:
            return any(self.matching in text for text in piece.commits)
        return not piece.reads and any(_WRITE.search(text) for text in piece.commits)

    def count(self) -> None:
        """Note that it has cut a connection."""
        with self._happened:
            self.left -= 1
            self.times += 1
            self._happened.notify_all()

    def wait(self, seconds: float = PATIENCE) -> None:
        """Return once it has cut a connection; TimeoutError after so many seconds."""
        with self._happened:
            if not self._happened.wait_for(lambda: self.times, seconds):
                raise TimeoutError(f"no connection was cut {self.when} within {seconds} s")
