"""Five real Redis servers that know nothing of each other."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.redis_bench import RedisBench, running_several

# More than in production: five servers and the tests share two cores.
NODE_TIMEOUT_MS = 200


def redlock_url(ports: list[int]) -> str:
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"redlock://{hosts}/0?node_timeout_ms={NODE_TIMEOUT_MS}"


@contextmanager
def running(directory: Path) -> Iterator[RedisBench]:
    with running_several(directory, 5) as (servers, ports):
        yield RedisBench("redlock", redlock_url(ports), servers, ports, "fencepost:redlock:")
