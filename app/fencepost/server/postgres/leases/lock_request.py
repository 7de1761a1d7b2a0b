"""A request for locks, as it passes from the route to the statement that grants them."""

import hashlib
from dataclasses import dataclass, field

from fencepost.server.fence.caller import EVERYBODY, Caller
from fencepost.server.fence.token import BUILTIN


def hash_secret(secret: str, caller: Caller = EVERYBODY) -> bytes:
    """Hash a lease's secret for storing. It has 128 random bits or more, so it needs neither salt nor stretching.

    The caller's name is a part of it: for another caller the same secret is another one, which no lease has. Neither
    text has a NUL byte.
    """
    text = f"{caller.name}\0{secret}" if caller.name else secret
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True, slots=True)
class LockRequest:
    """What a client asks for with POST /v1/leases. Durations in milliseconds; no name stands anywhere twice."""

    names: tuple[str, ...]
    """The locks: all of them, or none."""
    secret: str = field(repr=False)
    owner: str
    """Who holds the lock, for people."""
    ttl_ms: int
    tokens: int = 1
    claims: tuple[str, ...] = ()
    """Resources, `table/key`, as the client has written them."""
    wait_ms: int = 0
    keep_place: bool = False
    """Whether the place in the queue stays for a moment when the wait is over."""
    chosen: bool = True
    """Whether the secret is the client's own, who can come back with it."""
    owner_given: bool = True
    """Whether the client has named the owner itself, and so must name the same one when it repeats the request."""
    source: str = BUILTIN
    writes: tuple[str, ...] = ()
    """What sealed tokens may be used for beside what locks and claims name; for a source as the database spells it."""
    caller: Caller = EVERYBODY
    """Whose request it is: the gateway sets it."""

    @property
    def secret_hash(self) -> bytes:
        return hash_secret(self.secret, self.caller)
