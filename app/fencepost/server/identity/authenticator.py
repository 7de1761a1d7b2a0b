"""Finds the caller of a request by its header Authorization, before anything else looks at the request.

Each kind of credential has a Verifier. Callers that were found are kept by the header's bytes: a known token costs one
look into a dict. What is not known is refused.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal, Protocol

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.problem_types import AUTHENTICATION_REQUIRED, INVALID_CREDENTIAL, VERIFICATION_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.times import TIMES, Times, wait_until_set

MOST_KEPT: Final = 4096
"""Callers that are kept."""
LONGEST: Final = 8192
"""Bytes of a credential; a longer one is refused unread."""
_SCHEME: Final = "Bearer"

Known = Literal["good", "over", "over for good", "unknown"]
"""How a credential stands; unknown: that cannot be found out now."""


class Verifier(Protocol):
    """Knows one kind of credential."""

    def takes(self, credential: str) -> bool:
        """Say by its form whether a credential is of this kind."""
        ...

    async def verify(self, credential: str) -> Caller | Problem:
        """Find whose it is. A problem: FP037 it is not accepted, FP039 it cannot be checked now."""
        ...


class Authenticator:
    """`verifiers` are asked in their order: the first that takes a credential decides. `anonymous`: the caller of
    requests without a credential; None: they are refused.
    """

    def __init__(
        self,
        verifiers: Sequence[Verifier],
        anonymous: Caller | None = None,
        times: Times = TIMES,
    ) -> None:
        self.anonymous = anonymous
        self._verifiers = tuple(verifiers)
        self._times, self._clock = times.identity, times.clock
        self._kept: dict[bytes, tuple[float, Caller]] = {}
        self._accepted: dict[bytes, None] = {}
        self._forgotten = 0
        self._forgetting = asyncio.Event()

    def known(self, authorization: bytes | None) -> Caller | None:
        """Give the caller of a header that was verified a moment ago."""
        if authorization is None:
            return self.anonymous
        kept = self._kept.get(authorization)
        if kept is None:
            return None
        if self._clock.monotonic() >= kept[0]:
            self._kept.pop(authorization, None)
            return None
        return kept[1]

    async def identify(self, authorization: bytes | None) -> Caller | Problem:
        """Find the caller, or say why the request is refused."""
        if authorization is None:
            return self.anonymous or Problem(
                AUTHENTICATION_REQUIRED,
                "The request has no header Authorization.",
                hint="Authorization: Bearer …, with a JWT or an API key.",
            )
        credential = _credential(authorization)
        if isinstance(credential, Problem):
            return credential
        verifier = next((each for each in self._verifiers if each.takes(credential)), None)
        if verifier is None:
            return Problem(INVALID_CREDENTIAL, "Authorization: this is no credential of a kind that the gateway knows.")
        forgotten = self._forgotten
        found = await verifier.verify(credential)
        # What was found by keys that have changed meanwhile serves this request, which came before, and no other.
        if isinstance(found, Caller) and forgotten == self._forgotten:
            self._keep(authorization, found)
        return found

    def was_accepted(self, authorization: bytes) -> bool:
        """Say whether a credential was good once. It is verified all the same, and need not be good now."""
        return sha256(authorization).digest() in self._accepted

    def forget(self) -> None:
        """Verify each credential anew from now on: keys have changed."""
        self._forgotten += 1
        self._kept.clear()
        self._forgetting.set()
        self._forgetting = asyncio.Event()

    async def still_knows(self, caller: Caller, authorization: bytes | None) -> Known:
        """Say whether a credential is good still, and its caller may do what it might."""
        found: Caller | Problem | None = self.known(authorization)
        if found is None:
            found = await self.identify(authorization)
        if isinstance(found, Problem):
            if found.type is VERIFICATION_UNAVAILABLE:
                return "unknown"
            return "over for good" if found.for_good else "over"
        return "good" if found is caller or found.may_do_what(caller) else "over"

    async def refuses(self, caller: Caller, authorization: bytes | None) -> Known:
        """Return once it does not know the caller any more. It looks when keys have changed, and now and then."""
        while True:
            change = self._forgetting
            known = await self.still_knows(caller, authorization)
            if known in ("over", "over for good"):
                return known
            await wait_until_set(
                change, self._times.unheard_for if known == "unknown" else self._times.kept_for, self._clock
            )

    def _keep(self, authorization: bytes, caller: Caller) -> None:
        self._accepted[sha256(authorization).digest()] = None
        if len(self._accepted) > MOST_KEPT:
            del self._accepted[next(iter(self._accepted))]
        until = self._clock.monotonic() + self._times.kept_for
        if caller.ends is not None:
            until = min(until, caller.ends)
        self._kept.pop(authorization, None)
        if len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]  # the one that was verified first
        self._kept[authorization] = until, caller


@dataclass(slots=True)
class Standing:
    """How the credential of a request stands, as long as the request is under way. One is made for each request, and a
    frozen one takes three times as long to make.
    """

    authenticator: Authenticator
    caller: Caller
    authorization: bytes | None
    is_over_for_good: bool = False
    """Whether it was revoked, as far as `over` has seen: its caller will never be let in again."""

    async def is_good(self) -> bool:
        """Whether it is known to be good still, and allows what it did."""
        return await self.authenticator.still_knows(self.caller, self.authorization) == "good"

    async def over(self) -> None:
        """Return once it is good no more: it was revoked, its key is gone, or it allows less. A JWT's or stream's
        time is the caller's (`Caller.ends`), and not looked at here.
        """
        known = await self.authenticator.refuses(self.caller, self.authorization)
        self.is_over_for_good = known == "over for good"


def _credential(authorization: bytes) -> str | Problem:
    """Read `Bearer TOKEN`. The scheme's case does not count (RFC 9110 §11.1)."""
    if len(authorization) > LONGEST:
        return Problem(INVALID_CREDENTIAL, f"Authorization: it has more than {LONGEST} bytes.")
    try:
        text = authorization.decode("ascii")
    except UnicodeDecodeError:
        return Problem(INVALID_CREDENTIAL, "Authorization: it has other characters than ASCII.")
    scheme, _, credential = text.partition(" ")
    if scheme.lower() != _SCHEME.lower():
        return Problem(
            AUTHENTICATION_REQUIRED,
            "Authorization: its scheme is not Bearer.",
            hint="Authorization: Bearer …, with a JWT or an API key.",
        )
    credential = credential.strip(" ")
    if not credential or " " in credential or not credential.isprintable():
        return Problem(INVALID_CREDENTIAL, "Authorization: after Bearer comes one credential, without blanks in it.")
    return credential
