"""Seals of tokens at this gateway: its keys as they are now, and what is answered where a seal does not hold."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fencepost.server.fence.problem_types import NO_SEAL_KEYS, SEAL_REFUSED
from fencepost.server.fence.problems import Problem
from fencepost.server.fence.seal import Binding, Fault, SealedToken, SealKeys
from fencepost.server.fence.token import Token

RETRY_AFTER: Final = 10
"""Seconds that a caller is asked to wait for an operator, or for another gateway."""
_MINT: Final = "Mint new tokens under the lease: POST /v1/leases/{lease_id}/tokens."
_WHOLE: Final = "Send sealed_token whole and unchanged, as the gateway gave it."


def _now() -> float:
    return time.time()  # noqa: TID251 - gateways compare the ends of seals with each other's clocks; no write is decided by it


@dataclass(slots=True)
class Seals:
    """Makes and verifies seals. `keys` None: there are none here. `lifetime`: seconds from making a seal to its end."""

    keys: SealKeys | None = None
    lifetime: float = 86_400.0
    now: Callable[[], float] = field(default=_now)

    def seal(self, tokens: Sequence[Token], binding: Binding) -> list[str]:
        """Seal tokens of one lease; nothing where there are no keys."""
        if self.keys is None:
            return []
        return self.keys.seal(tokens, binding, int(self.now() + self.lifetime))

    def verify(self, presented: SealedToken) -> Binding | Problem:
        """Verify a token's seal, and give what it is bound to. Without keys each key is an unknown one."""
        found: Binding | Fault = "unknown-key" if self.keys is None else self.keys.open(presented, self.now())
        if isinstance(found, Binding):
            return found
        return refused(presented.number, found, *_said(found, presented))


def no_keys(table: str) -> Problem:
    """Refuse a write of a table that takes sealed tokens only, where there are no keys."""
    return Problem(
        NO_SEAL_KEYS,
        f"{table} takes sealed tokens only, and this gateway has no keys by which to verify one.",
        hint="FENCEPOST_SEAL_KEYS_FILE names the file with them; all gateways of a database have the same.",
        retry_after=RETRY_AFTER,
    )


def refused(number: Token, fault: Fault, detail: str, hint: str, resource: str | None = None) -> Problem:
    """Refuse a seal."""
    return Problem(
        SEAL_REFUSED,
        f"The seal of token {number} {detail}",
        hint=hint,
        resource=resource,
        presented_token=number,
        extra={"reason": fault},
    )


def _said(fault: Fault, presented: SealedToken) -> tuple[str, str]:
    match fault:
        case "unknown-key":
            key = presented.text.split(".")[1]
            return f"was made with the key {key}, which this gateway has not, or no more.", _MINT
        case "ended":
            return "has ended.", _MINT
        case _:
            return "is not one that this gateway, or another one with its keys, has made for it.", _WHOLE


def elsewhere(binding: Binding, number: Token, resources: Sequence[str]) -> Problem | None:
    """Refuse a write of resources that the seal is not bound to; None: it is bound to all of them."""
    for resource in resources:
        if not binding.covers(resource):
            return refused(
                number,
                "other-resource",
                f"is not for {resource}: lease {binding.lease} is bound to other resources.",
                'Acquire a lock of that name, or claim it, or name it in "writes": ["table/*"], with the lease.',
                resource,
            )
    return None
