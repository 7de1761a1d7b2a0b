"""Which faults a run has, when, and to whom: chosen by its seed alone, so that the same seed makes the same choices."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fencepost.testing.torture.faults import KINDS, Kind

_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault that is to come: `after` seconds without one. `target` from 0 to 1 chooses among those that there are."""

    kind: Kind
    after: float
    lasts: float
    target: float

    def among(self, count: int) -> int:
        """Choose one of `count` targets."""
        return int(self.target * count)


def schedule(seed: int, kinds: Sequence[str]) -> Iterator[Planned]:
    """Give faults without end, none at all if there are no kinds. Each kind comes once before one comes again."""
    dice = random.Random(f"faults/{seed}")  # noqa: S311 - must repeat
    while kinds:
        for name in dice.sample(sorted(kinds), len(kinds)):
            kind = KINDS[name]
            yield Planned(
                kind,
                after=dice.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE),
                lasts=dice.uniform(kind.least, kind.most),
                target=dice.random(),
            )
