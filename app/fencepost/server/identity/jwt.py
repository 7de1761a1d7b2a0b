"""JSON Web Tokens (RFC 7519), signed by a key of the gateway's."""

import asyncio
import codecs
import functools
import ipaddress
import json
import math
import operator
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from joserfc.util import urlsafe_b64decode

from fencepost.server.fence.caller import EVERY_ACCESS, Access, Caller
from fencepost.server.fence.problem_types import INVALID_CREDENTIAL, VERIFICATION_UNAVAILABLE
from fencepost.server.fence.problems import Problem
from fencepost.server.identity.keys import KeysError, KeySet, read_key_set, read_object, same
from fencepost.server.observe.events import Emit, KeysFetched, KeysNotFetched
from fencepost.server.setting_files import SettingFileError, read_setting_file
from fencepost.server.startup import StartupError
from fencepost.server.times import TIMES, Times

# Patterns of locks, as a JWT's claim or an API key names those that its caller may see and take.

MOST_PATTERNS: Final = 100
"""Patterns of one caller."""
LONGEST_PATTERN: Final = 512
"""Characters of one."""


def read_patterns(given: object) -> tuple[str, ...]:
    """Read a list of patterns: names, each of which may end with `*` (`orders/*`). Raises ValueError, which says what
    is wrong.
    """
    if not isinstance(given, list):
        raise ValueError('it is no list of patterns, as ["orders/*"]')  # noqa: TRY004 - a value of a claim
    if len(given) > MOST_PATTERNS:
        raise ValueError(f"it has more than {MOST_PATTERNS} patterns")
    for pattern in given:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= LONGEST_PATTERN or not pattern.isprintable():
            raise ValueError(
                f"{str(pattern)[:60]!r} is no pattern: a text of 1 to {LONGEST_PATTERN} printable characters is"
            )
        if "*" in pattern[:-1]:
            raise ValueError(f"{pattern[:60]!r}: a * may stand at the end of a pattern only")
    return tuple(given)


# A verified JWT's claims, and the Caller that they make.

SKEW: Final = 30.0
"""Seconds that the clocks of the issuer and the gateway may differ."""
LONGEST_NAME: Final = 512
"""Characters of `sub`, and of `iss`."""
LONGEST_ROLE: Final = 63
"""Bytes of a role's name in PostgreSQL."""
_STEP: Final = re.compile(
    r'\.(?P<name>[\w@$-]+)|\."(?P<quoted>[^"]+)"|\[(?P<index>\d{1,4})\]'
    r'|\[\?\(@ *(?P<how>==\^?|!=|\^==|\*==) *"(?P<text>[^"]*)"\)\]'
)
_COMPARED: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "^==": str.startswith,
    "==^": str.endswith,
    "*==": operator.contains,
}


class ClaimError(Exception):
    """A JWT is not accepted because of its claims. The message says which, and quotes little."""


class RolePathError(StartupError):
    """The setting cannot be read. The message is one line."""


@dataclass(frozen=True, slots=True)
class Search:
    """The last step of a path: the first text of a list of which this is true. `how`: a key of _COMPARED."""

    how: str
    text: str

    def first(self, found: Any) -> str | None:
        texts = [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
        return next((each for each in texts if _COMPARED[self.how](each, self.text)), None)


Step = str | int | Search
"""A member's name, a place in a list, or a search in one."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What JWTs must have. `audience`, `issuer`: empty, none is set. `role_path`: where the role is; empty, JWTs
    name no role. `anonymous_role`: the role of JWTs without one.
    """

    audience: str = ""
    issuer: str = ""
    role_path: tuple[Step, ...] = ("role",)
    anonymous_role: str | None = None


def read_role_path(text: str) -> tuple[Step, ...]:
    """Read a path as PostgREST writes it: `.role`, `.realm_access.roles[0]`, `."https://shop.example/role"`,
    `.roles[?(@ ^== "app_")]`. Raises RolePathError.
    """
    steps: list[Step] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None or (steps and isinstance(steps[-1], Search)):
            break
        position = found.end()
        steps.append(_step(found))
    if position < len(text) or (steps and not isinstance(steps[0], str)):
        raise RolePathError(
            f'JWT role claim key: {text!r} is no path of claims: .role, .realm.roles[0], ."https://a.example/b",'
            ' .roles[?(@ == "web")]'
        )
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    if found["how"] is not None:
        return Search(found["how"], found["text"])
    return int(found["index"]) if found["index"] is not None else found["name"] or found["quoted"]


def caller_of(
    claims: Mapping[str, Any], text: str, expected: Expected, now: float, monotonic: Callable[[], float]
) -> Caller:
    """Make the caller. `text`: the claims as they were signed; `now`: seconds since 1970. Raises ClaimError."""
    _check_text(claims, text)
    expires = _check_times(claims, now)
    _check_parties(claims, expected)
    role = _role(claims, expected)
    return Caller(
        _name(claims, role),
        role,
        text,
        _access(claims),
        _locks(claims),
        monotonic() + (expires + SKEW - now),
    )


def _check_text(claims: Mapping[str, Any], text: str) -> None:
    """Policies read the claims as jsonb, which holds neither."""
    try:
        json.dumps(claims, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ClaimError("a claim has half of a surrogate pair") from None
    if "\\u0000" in text:
        raise ClaimError("a claim has U+0000")


def _check_times(claims: Mapping[str, Any], now: float) -> float:
    """Check exp, nbf and iat. Returns when the JWT ends."""
    expires, begins, issued = (_number(claims, name) for name in ("exp", "nbf", "iat"))
    if expires is None:
        raise ClaimError("it has no claim exp, so that it would never end")
    if now >= expires + SKEW:
        raise ClaimError("it has expired")
    if begins is not None and now < begins - SKEW:
        raise ClaimError("it is not valid yet (nbf)")
    if issued is not None and now < issued - SKEW:
        raise ClaimError("it was issued in the future (iat)")
    return expires


def _check_parties(claims: Mapping[str, Any], expected: Expected) -> None:
    audiences = claims.get("aud", [])
    audiences = [audiences] if isinstance(audiences, str) else audiences
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise ClaimError("its aud is neither a text nor a list of texts")
    if expected.audience:
        if expected.audience not in audiences:
            raise ClaimError("it is for another audience (aud)")
    elif "aud" in claims:
        raise ClaimError("it is for an audience (aud), and the gateway has none: --jwt-aud sets it")
    if expected.issuer and _text(claims, "iss") != expected.issuer:
        raise ClaimError("it is from another issuer (iss)")


def _role(claims: Mapping[str, Any], expected: Expected) -> str | None:
    """Find the role of the database; None: JWTs name none."""
    if not expected.role_path:
        return None
    found: Any = claims
    for step in expected.role_path:
        found = _member(found, step)
    if found is None:
        if expected.anonymous_role is None:
            raise ClaimError("it names no role, and there is no anonymous one: --jwt-role-claim-key says where")
        return expected.anonymous_role
    if not isinstance(found, str) or not found.isprintable() or not 0 < len(found.encode()) <= LONGEST_ROLE:
        raise ClaimError("its role is no name of a role")
    return found


def _member(value: Any, step: Step) -> Any:
    if isinstance(step, Search):
        return step.first(value)
    if isinstance(step, int):
        return value[step] if isinstance(value, list) and step < len(value) else None
    return value.get(step) if isinstance(value, dict) else None


def _name(claims: Mapping[str, Any], role: str | None) -> str:
    """Name the identity: by issuer and subject; where JWTs have no subject, by the role, which they share then."""
    issuer, subject = _text(claims, "iss") or "", _text(claims, "sub")
    issuer = issuer.replace("%", "%25").replace("|", "%7C")  # `a|b` and `c` is another identity than `a` and `b|c`
    if subject is not None:
        return f"jwt:{issuer}|{subject}"
    if role is None:
        raise ClaimError("it has no claim sub, so that it belongs to no identity")
    return f"jwt-role:{issuer}|{role}"


def _access(claims: Mapping[str, Any]) -> frozenset[Access]:
    """Read the claim scope: what of ours is in it narrows. Scopes of other services are theirs."""
    if "scope" not in claims:
        return EVERY_ACCESS
    scope = claims["scope"]
    if not isinstance(scope, str):
        raise ClaimError("its scope is no text of names with blanks between them")
    found = EVERY_ACCESS.intersection(cast("list[Access]", scope.split(" ")))
    return EVERY_ACCESS if found == EVERY_ACCESS else found


def _locks(claims: Mapping[str, Any]) -> tuple[str, ...] | None:
    if "locks" not in claims:
        return None
    try:
        return read_patterns(claims["locks"])
    except ValueError as error:
        raise ClaimError(f"its claim locks: {error}") from None


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClaimError(f"its {name} is no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ClaimError(f"its {name} is no time")
    return number


def _text(claims: Mapping[str, Any], name: str) -> str | None:
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= LONGEST_NAME:
        raise ClaimError(f"its {name} is no text of 1 to {LONGEST_NAME} printable characters")
    return value


# A set of public keys (JWKS) that its owner changes: fetched from an https URL, or read from a file, again and again.
#
# Nothing that the other side does may hold up the gateway: a fetch has a deadline and a bound in bytes, and follows no
# redirect. The last good set is kept for an hour (`jwks_kept_for`). After that nothing is verified by it: a key that
# was withdrawn must not stay good for as long as its thief can keep the gateway from fetching.

LARGEST_JWKS: Final = 262_144
"""Bytes of a JWKS."""
_OK: Final = 200

Load = Callable[[], Awaitable[bytes]]
"""Gives the bytes of a JWKS. Raises KeysError."""


class ChangingKeys:
    """Keys for JwtVerifier. `secrets`: HS256 keys may be in the set. `changed` is called when they are others than
    before.
    """

    changed: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        load: Load,
        emit: Emit,
        *,
        secrets: bool,
        times: Times = TIMES,
    ) -> None:
        self._load, self._emit, self._secrets = load, emit, secrets
        self._times, self._clock = times.identity, times.clock
        self._keys: KeySet | None = None
        self._fetched = self._asked = -float("inf")
        self._fetching: asyncio.Task[None] | None = None

    def current(self) -> KeySet | None:
        """Give the keys; None: there are none yet, or they are too old."""
        return self._keys if self._clock.monotonic() - self._fetched <= self._times.jwks_kept_for else None

    async def renewed(self) -> None:
        """Wait for a newer set: the one that is being fetched, or one more, if none was asked for a moment ago."""
        if self._fetching is None and self._clock.monotonic() - self._asked < self._times.jwks_asked_every:
            return
        self._asked = self._clock.monotonic()
        await self.fetch()

    async def fetch(self) -> None:
        """Fetch the set; those who ask meanwhile wait for the same fetch. A failure is an event; the old set stays."""
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch())
        await asyncio.shield(self._fetching)

    @asynccontextmanager
    async def refreshed(self) -> AsyncIterator[None]:
        """Fetch in the background, as long as the block runs."""
        refreshing = asyncio.create_task(self._refresh())
        try:
            yield
        finally:
            for task in filter(None, (refreshing, self._fetching)):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _refresh(self) -> None:
        while True:
            before = self._fetched
            await self.fetch()
            await self._clock.sleep(self._times.jwks_every if self._fetched > before else self._times.jwks_again)

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._times.jwks_within):
                raw = await self._load()
            keys = read_jwks(raw, secrets=self._secrets)
        except KeysError as error:
            self._emit(KeysNotFetched(str(error)))
        except TimeoutError:
            self._emit(KeysNotFetched(f"the JWKS did not come within {self._times.jwks_within:g} s"))
        else:
            self._take(keys)
        finally:
            self._fetching = None

    def _take(self, keys: KeySet) -> None:
        before, self._keys, self._fetched = self._keys, keys, self._clock.monotonic()
        if before is None or not same(before.keys, keys.keys):
            self._emit(KeysFetched(len(keys.keys), keys.skipped))
            self.changed()


@dataclass(frozen=True, slots=True)
class FromFile:
    """Reads a file."""

    path: Path

    async def __call__(self) -> bytes:
        return self.read()

    def read(self) -> bytes:
        """Read it. Raises KeysError."""
        try:
            return read_setting_file(self.path, LARGEST_JWKS).encode()
        except SettingFileError as error:
            raise KeysError(f"JWT JWKS: {str(self.path)!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class FromUrl:
    """Fetches a URL. Proxies and other settings of the environment are not looked at."""

    url: str
    within: float = TIMES.identity.jwks_within

    async def __call__(self) -> bytes:
        import httpx  # noqa: PLC0415 - heavy, and few gateways fetch

        headers = {"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"}
        raw = bytearray()
        try:
            async with (
                httpx.AsyncClient(verify=_tls(), trust_env=False, timeout=self.within) as client,
                client.stream("GET", self.url, headers=headers) as answer,
            ):
                if answer.status_code != _OK:
                    raise KeysError(f"{self.url} answered {answer.status_code}")
                if answer.headers.get("Content-Encoding", "identity") != "identity":
                    raise KeysError(f"{self.url} answered in an encoding that was not asked for")
                async for piece in answer.aiter_raw():
                    raw += piece
                    _check_size(raw)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise KeysError(f"{self.url} cannot be fetched: {str(error) or type(error).__name__}") from error
        return bytes(raw)


def read_jwks(raw: bytes, *, secrets: bool) -> KeySet:
    """Read the bytes of a JWKS, as `read_key_set` does. A byte order mark before it is left out. Raises KeysError."""
    try:
        document = read_object(raw.removeprefix(codecs.BOM_UTF8))
    except ValueError as error:
        raise KeysError(f"the JWKS cannot be read: {error}") from error
    return read_key_set(document, secrets=secrets)


def read_place(text: str, within: float = TIMES.identity.jwks_within) -> FromUrl | FromFile:
    """Read where a JWKS is: a URL, or the path of a file. Raises KeysError."""
    if "://" not in text:
        return FromFile(Path(text).absolute())
    try:
        parts = urlsplit(text)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise KeysError(f"JWT JWKS: the URL cannot be read: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise KeysError("JWT JWKS: a URL with a password in it would stand in the log")
    if not host or parts.fragment or parts.scheme not in ("https", "http"):
        raise KeysError(f"JWT JWKS: {text!r} is neither an https URL nor the path of a file")
    if parts.scheme == "http" and not _is_loopback(host):
        raise KeysError(f"JWT JWKS: {text!r}: over http the keys could be changed on the way; use https")
    return FromUrl(text, within)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Trust whom the system trusts (SSL_CERT_FILE can name others). Made once: it takes a tenth of a second."""
    return ssl.create_default_context()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_size(raw: bytes | bytearray) -> None:
    if len(raw) > LARGEST_JWKS:
        raise KeysError(f"the JWKS has more than {LARGEST_JWKS} bytes")


# Verifying a JWT, by a key of a setting or of a set that changes.

_REFUSED: Final = ("crit", "jku", "jwk", "x5u", "x5c", "b64")
"""Members of the header that would change how a JWT is verified, or bring the key along."""
_LONGEST_KID: Final = 256


class VerifyingKeys(Protocol):
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
        keys: VerifyingKeys,
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
                detail = "The set of keys that verifies JWTs (JWKS) was not fetched for too long."
                return Problem(VERIFICATION_UNAVAILABLE, detail)
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
