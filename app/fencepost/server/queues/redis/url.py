"""What the URL of a queue in Redis may have (locks/source_url.py), and the names of the queue's keys."""

import re
from typing import Final

from fencepost.server.locks.source import SourceConfigError
from fencepost.server.locks.source_url import Form, Option, SourceUrl, read, text, whole
from fencepost.server.queues.log import LogConfigError

CA: Final[Option[str | None]] = Option("ca", text(), None, only="rediss://")
"""A file of certificates to trust instead of the system's."""
DB: Final = Option("db", whole(0, 9999), 0)
"""The number of the database: the path is the queue's name."""
FSYNC: Final = Option("fsync", whole(0, 1), 0)
"""1: a message counts as appended once the server's journal has it on disk (WAITAOF)."""
PARTITIONS: Final[Option[int | None]] = Option("partitions", whole(1, 1000), None)
"""How many partitions the queue is made with; must be what it has, where it is there already."""
PREFIX: Final = Option(
    "prefix", text("[!-z|~]{1,64}", "1 to 64 ASCII characters without spaces and braces"), "fencepost:"
)
"""What all keys begin with."""
REPLICAS: Final = Option("replicas", whole(0, 99), 0)
"""A message counts as appended once so many replicas have it (WAIT)."""
WAIT_MS: Final = Option("wait_ms", whole(1, 2000), 500)

DEFAULT_PARTITIONS: Final = 8
PORT: Final = 6379
STREAM: Final = re.compile(r"/[A-Za-z0-9._-]{1,48}", re.ASCII)

FORM: Final = Form(
    "redis://[user:password@]host[:port][,host…]/stream[?option=value&…], or rediss:// with TLS",
    (CA, DB, FSYNC, PARTITIONS, PREFIX, REPLICAS, WAIT_MS),
    STREAM,
    PORT,
    most=99,
    of="queue",
)


def read_url(url: str) -> SourceUrl:
    """Read the URL of a queue in Redis. Raises LogConfigError, without what may be a password."""
    try:
        where = read(url, "redis", FORM)
        if WAIT_MS in where and not where[REPLICAS] and not where[FSYNC]:
            raise where.wrong("has the option wait_ms, which needs replicas= or fsync=1")
    except SourceConfigError as error:
        raise LogConfigError(str(error)) from None
    return where


class QueueKeys:
    """The names of a queue's keys. The part in braces alone chooses the slot of a cluster: so all are in one."""

    def __init__(self, prefix: str, stream: str) -> None:
        self.queue = f"{prefix}{{{stream}}}"
        self.members = f"{self.queue}:members"
        self.done = f"{self.queue}:done"
        self.dead = f"{self.queue}:dead"
        self.dead_order = f"{self.queue}:dead:order"
        self.dead_counts = f"{self.queue}:dead:counts"

    def stream(self, partition: int) -> str:
        return f"{self.queue}:{partition}"

    def owner(self, partition: int) -> str:
        return f"{self.queue}:{partition}:owner"
