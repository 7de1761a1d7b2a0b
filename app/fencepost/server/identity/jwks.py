"""A set of public keys (JWKS) that its owner changes: fetched from an https URL, or read from a file, again and again.

Nothing that the other side does may hold up the gateway: a fetch has a deadline and a bound in bytes, and follows no
redirect. The last good set is kept for an hour (`jwks_kept_for`). After that nothing is verified by it: a key that was
withdrawn must not stay good for as long as its thief can keep the gateway from fetching.
"""

import asyncio
import codecs
import functools
import ipaddress
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from fencepost.server.identity.keys import KeysError, KeySet, read_key_set, same
from fencepost.server.identity.strict_json import read_object
from fencepost.server.observe.events import Emit, KeysFetched, KeysNotFetched
from fencepost.server.setting_files import SettingFileError, read_setting_file
from fencepost.server.times import TIMES, Times

LARGEST: Final = 262_144
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
            return read_setting_file(self.path, LARGEST).encode()
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
    if len(raw) > LARGEST:
        raise KeysError(f"the JWKS has more than {LARGEST} bytes")
