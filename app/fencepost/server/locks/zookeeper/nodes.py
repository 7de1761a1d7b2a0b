"""The nodes of a lock in ZooKeeper: their names, their order, and what is kept of one's own.

    /fencepost                                              persistent
    /fencepost/orders%2Forder-123                           one lock: a container, which ZooKeeper removes when empty
    /fencepost/orders%2Forder-123/<guid>__lock__0000000007  the holder or a waiter: ephemeral, sequential

That is the layout of kazoo's recipes Lock, WriteLock (`__lock__`) and ReadLock (`__rlock__`), so programs that use
these recipes on the same path take part in the same queue.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import quote
from uuid import uuid4

from fencepost.server.locks.source import MOST_NATIVE, SourceError

_MARK: Final = "__lock__"
_PLACE: Final = re.compile(r".*__r?lock__(-?\d{9,10})", re.DOTALL)
_ALL: Final = 2**32
_HALF: Final = 2**31


def parent_of(root: str, lock: str) -> str:
    """Name the node of a lock. Different locks have different nodes, and each is one step below the root."""
    name = quote(lock, safe="")
    return f"{root}/{name if name.strip('.') else name.replace('.', '%2E')}"


def new_guid() -> str:
    """Make a name for one try to take a lock: by it the node is found again where the answer to its create got lost."""
    return uuid4().hex


def prefix_of(guid: str) -> str:
    """Give the node's name without the number that ZooKeeper appends."""
    return guid + _MARK


def in_order(lock: str, children: Iterable[str]) -> list[str]:
    """Sort who has the lock and who waits, first come first.

    The number at the end of a name is the parent's counter, signed and of 32 bits: after 2147483647 comes -2147483648.
    So it is compared as serial numbers are, by distance, which is right as long as the first and the last of a queue
    are less than 2^31 places apart. (kazoo's own recipe compares texts, and is wrong there.) It never is a token.

    Raises SourceError where something is among them that has no place in a queue: it could be another program's lock.
    """
    numbers: dict[str, int] = {}
    for child in children:
        if (found := _PLACE.fullmatch(child)) is None:
            raise SourceError(
                f"the node of lock {lock!r} in ZooKeeper has a child {child!r} that is no place in a queue: "
                "if another program locks there, give Fencepost a chroot of its own, otherwise delete it"
            )
        numbers[child] = int(found[1])
    if not numbers:
        return []
    some = next(iter(numbers.values()))
    return sorted(numbers, key=lambda child: (numbers[child] - some + _HALF) % _ALL)


@dataclass(frozen=True, slots=True)
class QueueNode:
    """An owner's node. `czxid`: the transaction that created it. `session`: the session that it lives by."""

    node: str
    czxid: int
    session: int
    owner: str

    @property
    def guid(self) -> str:
        """The try that made it."""
        return self.node.partition(_MARK)[0]

    @property
    def handle(self) -> str:
        """All that another process needs."""
        return json.dumps({**asdict(self), "session": f"{self.session % 2**64:x}"})

    @classmethod
    def from_handle(cls, lock: str, handle: str) -> "QueueNode":
        """Read a handle. Raises SourceError."""
        try:
            fields = json.loads(handle)
            session = int(fields["session"], 16)
            place = cls(fields["node"], int(fields["czxid"]), session - (session >> 63) * 2**64, fields["owner"])
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"the stored handle of lock {lock!r} was not made by a ZooKeeper source") from error
        if "/" in place.node or _PLACE.fullmatch(place.node) is None:
            raise SourceError(f"the stored handle of lock {lock!r} names no node of a queue")
        return place


def token(lock: str, zxid: int) -> int:
    """Take a transaction's number as a token. Its upper half is the epoch, which rises with each election."""
    if zxid > MOST_NATIVE:
        raise SourceError(
            f"ZooKeeper's transaction number {zxid:#x} is too large for a token of lock {lock!r}: its epoch is above "
            "65535; move the locks to a new ensemble and raise the source's generation"
        )
    return zxid
