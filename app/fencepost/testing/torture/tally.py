"""How many operations have ended, and how: counted by worker processes in a file that all map into memory."""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

_SLOT: Final = struct.Struct("4q")
_SLOTS: Final = 512
"""Workers that one run can have, with those that replace killed ones."""

How = Literal["accepted", "refused", "unknown", "unsent"]
_PLACES: Final[dict[How, int]] = {"accepted": 0, "refused": 1, "unknown": 2, "unsent": 3}


@dataclass(frozen=True, slots=True)
class Counts:
    """Operations that have ended so far. `unsent`: no gateway could be reached; they count for nothing."""

    accepted: int
    refused: int
    unknown: int
    unsent: int

    @property
    def operations(self) -> int:
        return self.accepted + self.refused + self.unknown


class Tally:
    """The counts of one run, in the file at `path`. A worker counts in its own slot, so no lock is needed."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @classmethod
    def create(cls, path: Path) -> "Tally":
        """Make the file, with zeros."""
        path.write_bytes(bytes(_SLOT.size * _SLOTS))
        return cls(path)

    def count(self, slot: int, how: How) -> None:
        """Count one operation of the worker with this index."""
        at = (slot % _SLOTS) * _SLOT.size + _PLACES[how] * 8
        (before,) = struct.unpack_from("q", self._memory, at)
        struct.pack_into("q", self._memory, at, before + 1)

    def total(self) -> Counts:
        """Add up what all workers have counted."""
        slots = _SLOT.iter_unpack(self._memory[:])
        return Counts(*(sum(column) for column in zip(*slots, strict=True)))

    def close(self) -> None:
        """Unmap the file."""
        self._memory.close()
