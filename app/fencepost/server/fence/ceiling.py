"""How high a token of a table may be whose source is external (R12).

Of a source that Fencepost knows, the highest issued token is known, and a token above it is refused. Of an external one
it is not: its tables have a ceiling instead, because one made-up token would lock out all holders after it.
"""

from dataclasses import dataclass
from typing import Final

HIGHEST_TOKEN: Final = 2**62 - 1
"""What a table of an external source takes at most if nothing else is set: as many numbers again are left above."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`max_token`: the highest token that the table takes. `max_jump`: how far one may be above the mark that it would
    raise, or above the table's floor where that is higher; None: any distance.
    """

    max_token: int = HIGHEST_TOKEN
    max_jump: int | None = None

    def may_refuse(self, token: int) -> bool:
        """Whether there is a mark (0, for one) that this token must not raise."""
        return token > self.max_token or (self.max_jump is not None and token > self.max_jump)
