"""The counter that tokens are drawn from, as it stands."""

import re
from typing import Final

from fencepost.server.locks.redis.node import RedisNode
from fencepost.server.locks.source import MOST_NATIVE, SourceError

_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
"""What INCRBY takes for a number; Python's int() takes more."""


async def last_drawn(node: RedisNode, counter: str) -> int:
    """Return the last number that was drawn; 0: none yet. Raises SourceError, also where the key has no number."""
    about = f"the counter {counter}"
    content = await node.command("GET", counter, about=about)
    if content is None:
        return 0
    if _NUMBER.fullmatch(content) is None:
        raise SourceError(f"{node.name} has something else than a number as {about}")
    return int(content)


async def require_a_next(node: RedisNode, counter: str) -> None:
    """Raise SourceError where no token can be drawn, and so no lock be granted."""
    last = await last_drawn(node, counter)
    if 0 <= last < MOST_NATIVE:
        return
    mend = (
        "SET it to the highest number that was given out"
        if last < 0
        else "run `fencepost source raise`, and SET it to 0 afterwards"
    )
    raise SourceError(
        f"{node.name} has {last} as the counter {counter}, and tokens are numbers from 1 to {MOST_NATIVE}, so that no"
        f" lock is granted: {mend}"
    )
