"""Ports of loopback."""

import functools
import itertools
import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOWEST: Final = 10_000
_RANGES: Final = 16
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


def range_of(worker: str, below: int) -> range:
    """Give the ports of a worker of xdist ("gw0" …), all below those of outgoing connections.

    Without workers it is the last range, also for a pytest that a test runs. Where too few are below it is 0, which the
    system replaces.
    """
    width = (min(below, 65536) - _LOWEST) // _RANGES
    if width < 50:  # noqa: PLR2004 - servers that a test may have at one time
        return range(1)
    number = int(worker.removeprefix("gw")) % (_RANGES - 1) if worker else _RANGES - 1
    return range(_LOWEST + width * number, _LOWEST + width * (number + 1))


@functools.cache
def _one_after_another() -> Iterator[int]:
    below = int(_OUTGOING.read_text().split()[0]) if _OUTGOING.exists() else 32768
    ports = range_of(os.environ.get("PYTEST_XDIST_WORKER", ""), below)
    # Not from its first: a process of an earlier run may be left. A run's seed is not to decide it.
    begin = random.SystemRandom().randrange(len(ports))
    return itertools.cycle([*ports[begin:], *ports[:begin]])


def free_port() -> int:
    """Find a port on loopback on which no process listens, and which is given neither to an outgoing connection nor to
    another worker of xdist. The next call gives another one.

    So a server that is killed gets its port again when it is started again.
    """
    for port in itertools.islice(_one_after_another(), 1000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as probe:
            found: int = probe.getsockname()[1]
            return found
    raise OSError("no free port of loopback")


def listens(port: int) -> bool:
    """Whether a process accepts connections on this port of loopback."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
