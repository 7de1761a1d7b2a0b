"""What the URLs of sources that live in Redis may have (source_url.py)."""

import re
from typing import Final

from fencepost.server.locks.source_url import Form, Option, text, whole

PREFIX: Final = Option("prefix", text("[!-~]{1,64}", "1 to 64 ASCII characters without spaces"), "fencepost:")
"""What all keys begin with."""
CA: Final[Option[str | None]] = Option("ca", text(), None, only="rediss://")
"""A file of certificates to trust instead of the system's."""
REPLICAS: Final = Option("replicas", whole(0, 99), 0)
WAIT_MS: Final = Option("wait_ms", whole(1, 2000), 500)
NODE_TIMEOUT_MS: Final = Option("node_timeout_ms", whole(1, 1000), 50)

LEAST_NODES: Final = 3
PORT: Final = 6379
DATABASE: Final = re.compile("/?|/[0-9]{1,4}")
"""The path: the number of a database."""

REDIS: Final = Form(
    "redis://[user:password@]host[:port][/database][?option=value&…], or rediss:// with TLS",
    (CA, PREFIX, REPLICAS, WAIT_MS),
    DATABASE,
    PORT,
)
REDLOCK: Final = Form(
    "redlock://[user:password@]host[:port],host[:port],host[:port][,…][/database][?option=value&…]",
    (NODE_TIMEOUT_MS, PREFIX),
    DATABASE,
    PORT,
    least=LEAST_NODES,
    most=99,
)
