"""JSON Web Tokens (RFC 7519), signed by a key of the gateway's."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from joserfc.util import urlsafe_b64decode

from fencepost.server.fence.caller import Caller
from fencepost.server.fence.identity_problem_types import INVALID_CREDENTIAL, VERIFICATION_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.identity.claims import ClaimError, Expected, caller_of
from fencepost.server.identity.keys import KeySet
from fencepost.server.identity.strict_json import read_object

_REFUSED: Final = ("crit", "jku", "jwk", "x5u", "x5c", "b64")
"""Members of the header that would change how a JWT is verified, or bring the key along."""
_LONGEST_KID: Final = 256


class Keys(Protocol):
    """Where the keys are."""

    def current(self) -> KeySet | None:
        """Give the keys; None: they could not be had for too long."""
        ...

    async def renewed(self) -> None:
        """Look for newer keys, unless that was done a moment ago."""
        ...


@dataclass(frozen=True, slots=True)
class FixedKeys:
    """Keys of a setting."""

    keys: KeySet

    def current(self) -> KeySet:
        return self.keys

    async def renewed(self) -> None:
        """Do nothing: there are no others."""


class JwtVerifier:
    """Verifies JWTs. `now` gives seconds since 1970: the issuer has written times of that clock into the JWT."""

    def __init__(
        self,
        keys: Keys,
        expected: Expected,
        *,
        now: Callable[[], float] = time.time,  # noqa: TID251 - exp is a time of the world's clock
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys, self._expected = keys, expected
        self._now, self._monotonic = now, monotonic

    def takes(self, credential: str) -> bool:
        """Take what has three parts."""
        return credential.count(".") == 2  # noqa: PLR2004

    async def verify(self, credential: str) -> Caller | Problem:
        """Verify a JWT: header, key, signature, claims, in this order."""
        try:
            alg, kid = _read_header(credential)
            keys = await self._keys_for(kid)
            if keys is None:
                return Problem(
                    VERIFICATION_UNAVAILABLE,
                    "The set of keys that verifies JWTs (JWKS) was not fetched for too long.",
                    retry_after=10,
                )
            payload = _payload(keys, credential, kid, alg)
            return caller_of(_read(payload, "claims"), payload.decode(), self._expected, self._now(), self._monotonic)
        except ClaimError as error:
            return Problem(INVALID_CREDENTIAL, f"The JWT is not accepted: {error}.")

    async def _keys_for(self, kid: str | None) -> KeySet | None:
        keys = self._keys.current()
        if keys is None or not keys.has(kid):
            await self._keys.renewed()
            keys = self._keys.current()
        return keys


def _read_header(token: str) -> tuple[str, str | None]:
    """Read which algorithm and which key a JWT says it is of; neither is believed. Raises ClaimError."""
    try:
        raw = urlsafe_b64decode(token.partition(".")[0].encode())
    except ValueError:
        raise ClaimError("its header is no base64url") from None
    header = _read(raw, "header")
    for name in _REFUSED:
        if name in header:
            raise ClaimError(f"its header has {name}, which is not supported")
    alg, kid = header.get("alg"), header.get("kid")
    if not isinstance(alg, str):
        raise ClaimError("its header has no alg")
    if kid is None and "kid" not in header:
        return alg, None
    if not isinstance(kid, str) or not 0 < len(kid) <= _LONGEST_KID:
        raise ClaimError(f"its kid is no text of 1 to {_LONGEST_KID} characters")
    return alg, kid


def _payload(keys: KeySet, token: str, kid: str | None, alg: str) -> bytes:
    """Give what a key of ours has signed. Raises ClaimError."""
    if not keys.has(kid):
        raise ClaimError("no key has the kid in its header")
    candidates = keys.candidates(kid, alg)
    if not candidates:
        raise ClaimError("its alg is not that of the key")
    for key in candidates:
        payload = key.payload(token, alg)
        if payload is not None:
            return payload
    raise ClaimError("its signature is not of a key of the gateway")


def _read(raw: bytes, what: str) -> dict[str, object]:
    try:
        return read_object(raw)
    except ValueError as error:
        raise ClaimError(f"its {what} cannot be read: {error}") from None
