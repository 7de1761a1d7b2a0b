"""What `lock(…)` was called with, checked and filled in."""

import getpass
import os
import secrets
import socket
from collections.abc import Sequence
from typing import Final, TypeAlias

from fencepost.client.leases.acquiring import AcquireRequest

Names: TypeAlias = str | Sequence[str]
"""A lock's name, or several that are taken together: all or none."""

Claims: TypeAlias = bool | str | Sequence[str]
"""True: what the locks are named after. Or resources, `table/key`."""

Writes: TypeAlias = str | Sequence[str]
"""What sealed tokens may be used for beside what the locks are named after and what is claimed: resources, or how their
names begin, with * at the end: `orders/*`."""

FIRST_TOKENS: Final = 8
SECRET_BYTES: Final = 32
LONGEST_OWNER: Final = 256


def make_acquire_request(
    name: Names,
    *,
    ttl: float,
    wait: float | None,
    claim: Claims,
    owner: str,
    tokens: int,
    source: str | None = None,
    writes: Writes = (),
) -> AcquireRequest:
    """Check the arguments of `lock`, and choose the lease's secret. ValueError names what makes no sense."""
    locks = several(name)
    if not locks:
        raise ValueError("lock: at least one name")
    if wait is not None and not 0 <= wait < float("inf"):
        raise ValueError(f"wait={wait!r}: 0 or more seconds, or None to wait for ever")
    if tokens < 1:
        raise ValueError(f"tokens={tokens!r}: a grant draws at least 1 token")
    return AcquireRequest(
        locks=locks,
        claims=_claims(claim, locks),
        owner=owner,
        ttl=ttl,
        wait=wait,
        tokens=tokens,
        source=source,
        writes=several(writes),
        secret=secrets.token_urlsafe(SECRET_BYTES),
    )


def default_owner() -> str:
    """Return user@host:pid: who to look for when a lock is held."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name, or one of Windows
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()}:{os.getpid()}"[:LONGEST_OWNER]


def _claims(claim: Claims, locks: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(claim, bool):
        return locks if claim else ()
    return several(claim)


def several(names: Names) -> tuple[str, ...]:
    """Give the names, also where it is one."""
    return (names,) if isinstance(names, str) else tuple(names)
