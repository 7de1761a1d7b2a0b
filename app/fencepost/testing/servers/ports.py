"""Ports of loopback."""

import random
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

_LOWEST: Final = 10_000
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_chance: Final = random.SystemRandom()  # a run's seed must not give all of its workers the same ports


def free_port() -> int:
    """Find a port on loopback on which no process listens, and which no outgoing connection is given.

    So a server that is killed gets its port again when it is started again.
    """
    below = min(int(_OUTGOING.read_text().split()[0]), 65536) if _OUTGOING.exists() else 32768
    for _ in range(1000):
        port = _chance.randrange(_LOWEST, below) if below > _LOWEST + 1000 else 0
        with suppress(OSError), socket.create_server(("127.0.0.1", port)) as probe:
            found: int = probe.getsockname()[1]
            return found
    raise OSError(f"no free port of loopback from {_LOWEST} to {below}")


def listens(port: int) -> bool:
    """Whether a process accepts connections on this port of loopback."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
