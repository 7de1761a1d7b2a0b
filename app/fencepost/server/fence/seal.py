"""Sealed tokens: a number with a proof of who gave it out, and for what. docs/sealed-tokens.md has the form for others.

    34.2026-07.eyJzIjoiYnVpbHRpbiIs….q83v…
    number . key id . payload . HMAC-SHA256 over all that stands before it

The payload says what the seal is bound to: source, lease, resources, and when the seal ends. A gateway keeps nothing of
a seal: it makes the HMAC anew with the key of that id, and looks at nothing in the payload before the two are equal.

A seal says that the number is one that was given out, and for which resources. Who may write there is decided by the
fence, by the number: a seal of a holder that has lost its lock is as good as before. Its end is for changing keys.
"""

import binascii
import hashlib
import hmac
import json
import re
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from fencepost.server.fence.token import MalformedTokenError, Token, parse_token

LONGEST_SEALED: Final = 8192
"""Bytes of a sealed token: what proxies let pass in one header."""
LEAST_KEY: Final = 32
"""Bytes of a key: as many as SHA-256 has."""
MOST_KEYS: Final = 16
NAMES_IN_FULL: Final = 512
"""Bytes that the names of resources may have together; of more the payload has digests."""
DIGEST: Final = 16
"""Bytes of a name's digest: nobody finds another name with the same 128 bits."""

_DOMAIN: Final = b"fencepost seal 1\n"
"""Before what is authenticated: a key that is used for something else as well proves nothing here."""
_KEY_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,32}", re.ASCII)
_SEAL: Final = re.compile(rb"[A-Za-z0-9_-]{1,32}\.[A-Za-z0-9_-]{2,}\.[A-Za-z0-9_-]{43}\Z")

Fault = Literal["unknown-key", "wrong-seal", "ended", "other-source", "other-resource"]
"""Why a seal is refused."""


@dataclass(frozen=True, slots=True)
class SealedToken:
    """A token with its seal, as it was presented: nothing of it is proven. `queued`: it waited with its write in a
    queue, where its seal was good when it came in, and may have ended since.
    """

    number: Token
    text: str
    queued: bool = False


Presented = Token | SealedToken
"""What a request presents."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What the tokens of a lease may be used for: the resources of these names, and those that begin so."""

    source: str
    lease: str
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    digests: frozenset[bytes] = frozenset()
    """Of names, where all names together are too long."""

    def covers(self, resource: str) -> bool:
        """Whether a resource is among them. `resource` is its one name, as PostgreSQL renders it."""
        return (
            resource in self.names
            or resource.startswith(self.prefixes)
            or (bool(self.digests) and _digest(resource) in self.digests)
        )

    def covers_all(self, start: str) -> bool:
        """Whether all resources are among them whose names begin so."""
        return any(start.startswith(prefix) for prefix in self.prefixes)


class SealKeysError(ValueError):
    """The keys cannot be read. The message names the line and what is wrong there, and shows no key."""


def parse_presented(raw: bytes) -> Presented:
    """Read a token from a header's bytes, sealed or not; MalformedTokenError. Nothing is proven by that."""
    number, dot, seal = raw.partition(b".")
    token = parse_token(number)
    if not dot:
        return token
    if len(raw) > LONGEST_SEALED:
        raise MalformedTokenError(f"a sealed token has at most {LONGEST_SEALED} bytes")
    if not _SEAL.match(seal):
        raise MalformedTokenError(
            "a token is a whole number; a sealed one is number.key.payload.seal, as the gateway gave it: send it whole"
            " and unchanged"
        )
    return SealedToken(token, raw.decode("ascii"))


def quotable(raw: bytes) -> bytes:
    """Give what may be shown of what was presented: a fraction is, and no part of a seal."""
    number, dot, rest = raw.partition(b".")
    return number + b"..." if rest.strip(b"0123456789") else number + dot + rest


def number_of(presented: Presented | None) -> Token | None:
    """Give the number."""
    return presented.number if isinstance(presented, SealedToken) else presented


@dataclass(frozen=True, slots=True)
class SealKeys:
    """Keys by their ids. The first seals, all verify."""

    keys: Mapping[str, bytes]

    @property
    def first(self) -> str:
        """The id of the key that seals."""
        return next(iter(self.keys))

    def seal(self, tokens: Iterable[Token], binding: Binding, ends: int) -> list[str]:
        """Seal tokens of one lease. `ends`: seconds since 1970."""
        payload = encoded(_payload(binding, ends))
        key = self.first
        return [_with_mac(f"{token}.{key}.{payload}", self.keys[key]) for token in tokens]

    def open(self, presented: SealedToken, now: float) -> Binding | Fault:
        """Verify a seal, and give what it is bound to."""
        body, _, _ = presented.text.rpartition(".")
        key = self.keys.get(body.split(".")[1])
        if key is None:
            return "unknown-key"
        if not hmac.compare_digest(_with_mac(body, key), presented.text):
            return "wrong-seal"
        try:
            binding, ends = _read_payload(body.rpartition(".")[2])
        except (KeyError, TypeError, ValueError, OverflowError):
            # A program that has the key, and does not keep to the form.
            return "wrong-seal"
        return "ended" if not presented.queued and now >= ends else binding


def _with_mac(body: str, key: bytes) -> str:
    mac = hmac.digest(key, _DOMAIN + body.encode("ascii"), "sha256")
    return f"{body}.{encoded(mac)}"


def _payload(binding: Binding, ends: int) -> bytes:
    said: dict[str, object] = {"s": binding.source, "l": binding.lease, "e": ends}
    names = sorted(binding.names)
    if sum(len(name.encode()) for name in names) > NAMES_IN_FULL:
        said["d"] = encoded(b"".join(sorted(_digest(name) for name in names)))
    elif names:
        said["n"] = names
    if binding.prefixes:
        said["p"] = list(binding.prefixes)
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def _read_payload(text: str) -> tuple[Binding, int]:
    """Read what was authenticated: it is one of ours, or of another program that has the key and keeps to the form."""
    said = json.loads(decoded(text))
    if not isinstance(said, dict):
        raise TypeError("an object is expected")
    digests = decoded(said.get("d", ""))
    binding = Binding(
        str(said["s"]),
        str(said["l"]),
        frozenset(_texts(said.get("n", []))),
        tuple(_texts(said.get("p", []))),
        frozenset(digests[at : at + DIGEST] for at in range(0, len(digests), DIGEST)),
    )
    return binding, int(said["e"])


def _texts(listed: object) -> list[str]:
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise TypeError("a list of texts is expected")
    return listed


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:DIGEST]


def encoded(raw: bytes) -> str:
    """Write bytes as base64 for URLs, without padding."""
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def decoded(text: str) -> bytes:
    """Read what `encoded` wrote. Raises ValueError."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def parse_keys(text: str) -> SealKeys:
    """Read keys, one a line as `id:base64`; empty lines and those that begin with # are skipped. SealKeysError."""
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()  # noqa: PLW2901 - the line, without what is around it
        if not line or line.startswith("#"):
            continue
        name, key = _read_key(line, number)
        if name in keys:
            raise SealKeysError(f"line {number}: a key with the id {name} stands above already")
        if key in keys.values():
            raise SealKeysError(f"line {number}: the key {name} has another one's bytes")
        keys[name] = key
    if not keys:
        raise SealKeysError("there is no key in it: a line is ID:BASE64")
    if len(keys) > MOST_KEYS:
        raise SealKeysError(f"there are {len(keys)} keys in it, and {MOST_KEYS} are the most")
    return SealKeys(keys)


def _read_key(line: str, number: int) -> tuple[str, bytes]:
    name, colon, encoded = line.partition(":")
    if not colon:
        raise SealKeysError(f"line {number}: it has no colon: a line is ID:BASE64")
    if not _KEY_ID.fullmatch(name):
        raise SealKeysError(f"line {number}: an id has 1 to 32 of A-Z, a-z, 0-9, _ and -")
    plain = encoded.strip().replace("-", "+").replace("_", "/").rstrip("=")
    try:
        key = b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SealKeysError(f"line {number}: the key {name} is no base64") from error
    if len(key) < LEAST_KEY:
        raise SealKeysError(f"line {number}: the key {name} has {len(key)} bytes, and {LEAST_KEY} are the least")
    return name, key
