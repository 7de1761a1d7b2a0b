"""Which row a connection writes next, with which token. Both load generators walk the same way.

Rows are dealt out to connections like cards, so no two ever meet on one, and each connection counts its own tokens
upwards. It walks its rows in a scattered order that visits all before any comes again.
"""

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


def row_key(
    connection: int, step: int, connections: int, *, first_key: int = FIRST_KEY, rows: int = ROWS, stride: int = STRIDE
) -> int:
    """Return the number in the key order-NUMBER. `load.c` and `pgbench.py` say the same in their languages."""
    return first_key + connection + connections * (step * stride % (rows // connections))
