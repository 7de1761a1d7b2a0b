"""Which row a connection writes next, with which token. All load generators walk the same way.

Rows are dealt out to connections like cards, so no two ever meet on one, and each connection counts its own tokens
upwards. It walks its rows in a scattered order that visits all before any comes again.
"""

from dataclasses import dataclass
from typing import Final

ROWS: Final = 100_000
FIRST_KEY: Final = 100_000
"""Keys have six digits each: every request is equally long."""

STRIDE: Final = 7919
"""A prime larger than any divisor of a connection's share: its multiples reach every row."""

MARK_AT_FIRST: Final = 10
STALE_TOKEN: Final = 1

TOKENS_PER_CELL: Final = 10_000_000_000
"""How far apart the tokens of two cells are: marks above its first token are a cell's own."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The numbers in the keys order-NUMBER. `load.c` and `pgbench.py` have the same formula in their languages."""

    first_key: int = FIRST_KEY
    rows: int = ROWS
    stride: int = STRIDE

    def key(self, connection: int, step: int, connections: int) -> int:
        """Return the key of a connection's step."""
        return self.first_key + connection + connections * (step * self.stride % (self.rows // connections))


OVER_ROWS: Final = Walk()
"""Over the rows that are there, as often as time allows."""

FRESH: Final = Walk(first_key=1_000_000_000, rows=8_000_000_000, stride=1)
"""Over keys that were not used before: it does not come to its end."""


def each_once(steps: int) -> Walk:
    """Return a walk over rows that are deleted on the way: long enough for this many steps of all connections."""
    return Walk(rows=max(steps, ROWS), first_key=1_000_000)
