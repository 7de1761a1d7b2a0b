"""Five real Redis servers that know nothing of each other."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.redis_bench import RedisBench, running_several

NODE_TIMEOUT_MS = 200
"""More than in production: five servers and the tests share two cores."""
LONGEST_MS = 1000
"""The longest that a node can be waited for, and so for the tests that are not about how long."""


def redlock_url(ports: Sequence[int], node_timeout_ms: int = NODE_TIMEOUT_MS) -> str:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"redlock://{hosts}/0?node_timeout_ms={node_timeout_ms}"


@contextmanager
def running(directory: Path) -> Iterator[RedisBench]:
    with running_several(directory, 5) as (servers, ports):
        yield RedisBench("redlock", redlock_url(ports), servers, ports, "fencepost:redlock:")
