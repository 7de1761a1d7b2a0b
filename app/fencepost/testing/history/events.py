"""The events of a history. Times are nanoseconds of one monotonic clock, which all processes of a machine share.

docs/checker.md describes each field for people who write histories with another program.
"""

import enum
from dataclasses import dataclass
from typing import Final, Literal

Op = Literal["write", "delete", "read", "claim", "acquire", "release", "add", "read_set"]
"""write also creates; claim raises the mark and changes no data; acquire and release are of a lock; add and read_set
are of a set."""
Rule = Literal["strict", "epoch"]
"""strict: a token is accepted once, above the mark. epoch: at the mark or above it."""
Outcome = Literal["ok", "refused", "unknown"]
"""refused: certainly without effect. unknown: it may have happened, or may yet happen."""
Reason = Literal["stale", "spent", "missing", "unissued", "held", "other"]
"""stale: the token is below the mark. spent: it equals the mark. Of `other` reasons nothing is checked."""


class NotRead(enum.Enum):
    """The type of NOT_READ."""

    NOT_READ = "not read"


NOT_READ: Final = NotRead.NOT_READ
"""An answer that shows no value. None is another thing: the answer shows that there is no row."""


@dataclass(frozen=True, slots=True)
class Invoke:
    """An operation begins: the request is about to be sent."""

    time: int
    id: int
    process: str
    op: Op
    resource: str
    """What one mark fences (`orders/7`, `account/42`), or `lock/NAME`."""
    token: int | None = None
    """Of an acquire: that of a grant under which one more token is drawn."""
    value: str | None = None
    """What is written or added: another one for each write of a resource."""
    rule: Rule = "strict"
    key: str | None = None
    """The Idempotency-Key. A repeated request is another operation with the same key."""


@dataclass(frozen=True, slots=True)
class End:
    """An operation's answer, or the news that there will be none."""

    time: int
    id: int
    event: Outcome
    value: str | NotRead | None = NOT_READ
    """What a read (or a claim) saw; None: no row."""
    token: int | None = None
    """Of an acquire: the token that was granted. Of a read: the mark that it saw."""
    values: tuple[str, ...] | None = None
    """What a read_set saw."""
    expires: int | None = None
    """Of an acquire: until when (same clock) the holder believes that it holds the lock. None: until it releases it."""
    replayed: bool = False
    """Whether the answer is the stored one of an earlier operation with the same key."""
    reason: Reason | None = None
    mark: int | None = None
    """The mark that a refusal names."""
    why: str | None = None
    """Of unknown outcomes: what happened, for people."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault begins."""

    time: int
    id: int
    kind: str
    """`paused`, `killed`, `partitioned`, …"""
    target: str
    """A process of this history (`w3`), or a server's name."""


@dataclass(frozen=True, slots=True)
class Healed:
    """The fault with this id is over."""

    time: int
    id: int


@dataclass(frozen=True, slots=True)
class Note:
    """A remark for people."""

    time: int
    text: str


Event = Invoke | End | Fault | Healed | Note
