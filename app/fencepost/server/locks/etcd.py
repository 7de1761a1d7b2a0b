"""The token source etcd: the queue of its own recipe, and the revisions of its transactions as tokens.

Terms. Each hold, and each place in the queue, is one key `<prefix><lock>/<lease id in hex>`, attached to a lease of its
own: `etcdctl lock` and clientv3's Mutex do the same, so that they queue with us. The lock's owner is whose key was
created first. It stays that until its key is deleted, for a key that comes later has a higher create revision.

1. Grant a lease, create the key. If no key of the lock is older, that very transaction is the grant, and its revision
   the first token. Otherwise wait: watch the key just before ours be deleted, look, and again.
2. **A waiter's create revision is no token**: the owner before it has minted since. Once first, it mints.
3. A mint is a transaction that puts the key again, on condition that it is still the one that was created. Its revision
   is the token: no two transactions share one, over all locks. The put has `ignore_lease` and `ignore_value`. A plain
   one would detach the key from its lease, and it would never expire.

**Repeats.** A request may be done twice, or land late. A lease's id is chosen here, so granting it twice
is one lease. A key is created only where it does not exist, and only under its lease: once that is revoked, nothing
that lands late can bring the key back. A mint done twice leaves a gap. So giving back whatever a cancelled or failed
acquire may have got is one request: revoke the lease.

**The watch is for speed.** A waiter keeps its lease alive every third of its TTL, and looks again when it does.
"""

import asyncio
import re
import secrets
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, cast

import httpx
import orjson

from fencepost.server.locks.leases import ServiceReleases
from fencepost.server.locks.source import (
    REQUEST_TIMEOUT,
    Capabilities,
    Form,
    Grant,
    Holder,
    Option,
    Source,
    SourceConfigError,
    SourceContext,
    SourceError,
    SourceUnavailableError,
    read,
    text,
)

# The URL of an etcd source: etcds://user:password@h1:2379,h2:2379?prefix=locks/&ca=/etc/ca.pem for example.

_TLS: Final = "etcds://"
PREFIX: Final = Option("prefix", text(), "fencepost/")
"""What all keys begin with."""
CA: Final[Option[str | None]] = Option("ca", text(), None, only=_TLS)
CERT: Final[Option[str | None]] = Option("cert", text(), None, only=_TLS)
KEY: Final[Option[str | None]] = Option("key", text(), None, only=_TLS)

_FORM: Final = Form(
    "etcd://[user:password@]host[:port][,host…][?prefix=…], or etcds://…[?ca=…&cert=…&key=…] with TLS",
    (PREFIX, CA, CERT, KEY),
    re.compile("/?"),
    port=2379,
    most=99,
    credentials="both",
)


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """The parts of a source's URL. `endpoints` are base URLs without a path."""

    name: str
    endpoints: tuple[str, ...]
    prefix: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return f"etcd source {self.name} ({', '.join(self.endpoints)})"


def parse(url: str, name: str) -> EtcdUrl:
    """Read the URL of the source of this name. Raises SourceConfigError."""
    found = read(url, name, _FORM)
    if (CERT in found) != (KEY in found):
        raise found.wrong("needs cert= and key= together")
    web = "https" if found.scheme == "etcds" else "http"
    return EtcdUrl(
        name,
        tuple(f"{web}://{host}" for host in found.hosts),
        found[PREFIX],
        found.user,
        found.password,
        found[CA],
        found[CERT],
        found[KEY],
    )


# etcd's JSON gateway, and how it is asked.
#
# Several endpoints are one service. A request goes to the one that answered last, and on to the next when the
# connection breaks, no answer comes, or the node reports that it is not ready (no leader, for example). **So every
# request may be done twice, or land after its caller gave up**: callers ask only what may be repeated (see
# "Repeats" above).
#
# All of it, sign-in and other endpoints included, takes REQUEST_TIMEOUT at most. The watch is a stream and has no such
# end: the caller of watch gives the time, and relies on it for speed only.

PAUSE: Final = 0.1
"""Seconds between two rounds over the endpoints, and before a look where no watch could be had."""

NOT_FOUND: Final = 5
NO_PRECONDITION: Final = 9
UNAUTHENTICATED: Final = 16
# gRPC's Canceled, Unknown, DeadlineExceeded, Internal, Unavailable: of this node, or of this moment.
UNREADY: Final = frozenset({1, 2, 4, 13, 14})
# These have codes that other refusals have too.
TOO_MANY: Final = "too many requests"
SIGN_IN_AGAIN: Final = ("user name is empty", "revision of auth store is old")


class EtcdRefusedError(SourceError):
    """etcd has answered with a refusal. `code` is gRPC's."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _UnreadyError(Exception):
    """This node cannot answer now; another one may."""


class EtcdApi:
    """Asks one etcd cluster. For one event loop."""

    def __init__(self, where: EtcdUrl) -> None:
        self.where = where
        self._current = 0
        self._token = ""
        self._signing_in = asyncio.Lock()
        self._client: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """Read the certificates. Raises SourceConfigError."""
        verify: ssl.SSLContext | bool = True
        if self.where.endpoints[0].startswith("https"):
            try:
                verify = ssl.create_default_context(cafile=self.where.ca)
                if self.where.cert is not None:
                    verify.load_cert_chain(self.where.cert, self.where.key)
            except (OSError, ValueError) as error:
                raise SourceConfigError(f"{self.where}: ca, cert or key cannot be read: {error}") from error
        # Each waiter has a stream of its own: no limit. No proxies: a lock service is never behind one by accident.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._client = httpx.AsyncClient(verify=verify, trust_env=False, timeout=self._patience(), limits=limits)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, path: str, body: dict[str, Any], endpoint: int | None = None) -> dict[str, Any]:
        """Post to /v3/`path`, at any endpoint or only at this one, and return the answer.

        Raises SourceUnavailableError, within REQUEST_TIMEOUT, and EtcdRefusedError where etcd refuses what is asked.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + REQUEST_TIMEOUT
        first, places = self._current, len(self.where.endpoints)
        turn = [(first + n) % places for n in range(places)] if endpoint is None else [endpoint]
        while True:
            answered = False
            why: Exception | None = None
            for n, at in enumerate(turn):
                try:
                    async with asyncio.timeout((ends - loop.time()) / (len(turn) - n)):
                        answer = await self._post(at, path, body)
                except httpx.ConnectError as error:
                    why = error
                except (httpx.HTTPError, OSError, _UnreadyError) as error:  # SSLError and TimeoutError are OSErrors
                    answered, why = True, error
                else:
                    if endpoint is None:
                        self._current = at
                    return answer
            if not answered or ends - loop.time() < 5 * PAUSE:
                raise SourceUnavailableError(
                    f"{self.where} cannot be asked ({str(why) or 'no answer in time'}): are most of its nodes up?"
                ) from why
            await asyncio.sleep(PAUSE)

    async def deleted(self, key: str, revision: int, within: float) -> None:
        """Return once this (encoded) key was deleted at this revision or later, or earlier than that: after `within`
        seconds at the latest, and whenever the watch ends. The caller looks again.
        """
        try:
            async with asyncio.timeout(within):
                if not await self._watch(key, revision):
                    await asyncio.sleep(PAUSE)
        except TimeoutError:
            return

    async def _watch(self, key: str, revision: int) -> bool:
        """Whether the watch saw it; False: it could not be had, or broke off."""
        create = {"key": key, "start_revision": str(revision), "filters": ["NOPUT"]}
        headers = {**self._headers(), "Grpc-Metadata-Hasleader": "true"}  # a node cut off from the others ends it
        at = self._current
        request = self._http().stream(
            "POST",
            f"{self.where.endpoints[at]}/v3/watch",
            content=orjson.dumps({"create_request": create}),
            headers=headers,
            timeout=httpx.Timeout(self._patience(), read=None),
        )
        try:
            async with request as response, aclosing(_lines(response)) as lines:
                async for line in lines:
                    result = orjson.loads(line).get("result", {"canceled": True})
                    if result.get("events"):
                        return True
                    # Also when that revision was compacted: deletions can no longer be replayed, and a read shows it.
                    if result.get("canceled"):
                        return False
        except (httpx.HTTPError, OSError, orjson.JSONDecodeError):
            # The look that comes next reports what is wrong there, with errors of its own.
            self._current = (at + 1) % len(self.where.endpoints)
        return False

    async def _post(self, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if self.where.user is None:
            return await self._exchange(at, path, body)
        used = self._token or await self._sign_in(at, "")
        try:
            return await self._exchange(at, path, body)
        except EtcdRefusedError as error:
            if error.code != UNAUTHENTICATED and not any(words in str(error) for words in SIGN_IN_AGAIN):
                raise
        await self._sign_in(at, used)
        return await self._exchange(at, path, body)

    async def _sign_in(self, at: int, used: str) -> str:
        """Get a token, unless another request has got another than `used` meanwhile: etcd makes each one slowly."""
        async with self._signing_in:
            if self._token == used:
                self._token = ""
                who = {"name": self.where.user, "password": self.where.password}
                try:
                    self._token = (await self._exchange(at, "auth/authenticate", who))["token"]
                except EtcdRefusedError as error:
                    # Signing in is not switched on there. Then none is asked for, as with etcd's own clients.
                    if error.code != NO_PRECONDITION:
                        raise
            return self._token

    async def _exchange(self, at: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = await self._http().post(
            f"{self.where.endpoints[at]}/v3/{path}", content=orjson.dumps(body), headers=self._headers()
        )
        try:
            answer: dict[str, Any] = orjson.loads(response.content.partition(b"\n")[0])  # of a stream, the first
            problem = answer.get("error")
        except (orjson.JSONDecodeError, AttributeError) as error:
            if response.is_server_error:
                raise _UnreadyError(f"HTTP {response.status_code}") from error
            raise EtcdRefusedError(
                f"{self.where} answers /v3/{path} with HTTP {response.status_code}, no JSON: is it etcd 3.4 or newer?",
                0,
            ) from error
        if response.is_success and problem is None:
            return answer
        # A unary call's error is flat, a stream's is nested; releases of the gateway differ in the names.
        shown: dict[str, Any] = problem if isinstance(problem, dict) else answer
        code, message = int(shown.get("grpc_code", shown.get("code", 0))), str(shown.get("message") or problem)
        if code in UNREADY or TOO_MANY in message:
            raise _UnreadyError(message)
        raise EtcdRefusedError(f"{self.where} refused {path}: {message}", code)

    def _patience(self) -> float:
        """Seconds for one step of a request: it ends before `ask` cancels it, which would leave a handshake open."""
        return 0.9 * REQUEST_TIMEOUT / len(self.where.endpoints)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._token} if self._token else {}

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            raise SourceError(f"{self.where} is not open")
        return self._client


def _lines(response: httpx.Response) -> AsyncGenerator[str, None]:
    return cast("AsyncGenerator[str, None]", response.aiter_lines())


# The keys and leases of locks in etcd, and the transactions on them. The protocol stands above.

_FIRST: Final = {"sort_target": "CREATE", "sort_order": "ASCEND", "limit": "1"}
_LAST: Final = {**_FIRST, "sort_order": "DESCEND"}


class PlaceLostError(Exception):
    """Our key is gone before the lock was ours: its lease ended while we were paused, or it was deleted."""


@dataclass(frozen=True, slots=True)
class EtcdKey:
    """A key as etcd shows it. `encoded` is its name as the gateway writes it; `lease` 0 is none."""

    encoded: str
    created: int
    lease: int
    owner: str | None

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> "EtcdKey":
        owner = b64decode(shown.get("value", "")).decode(errors="replace")  # etcdctl lock leaves it empty
        return cls(shown["key"], int(shown["create_revision"]), int(shown.get("lease", 0)), owner or None)

    @property
    def name(self) -> str:
        return b64decode(self.encoded).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class EtcdHold:
    """A key of ours: the lease that its name has, and the revision that created it. Its text is the handle."""

    lease: int
    created: int

    @classmethod
    def of(cls, lock: str, handle: str) -> "EtcdHold":
        """Read a handle. Raises SourceError."""
        lease, _, created = handle.partition(":")
        try:
            return cls(int(lease, 16), int(created))
        except ValueError:
            raise SourceError(f"the handle stored for lock {lock} is not etcd's: another source granted it") from None

    def __str__(self) -> str:
        return f"{self.lease:x}:{self.created}"


class EtcdKeys:
    """Reads and writes them. Every method raises SourceError."""

    def __init__(self, api: EtcdApi) -> None:
        self._api = api

    async def enter(self, lock: str, lease: int, owner: str) -> tuple[EtcdHold, bool]:
        """Create our key: its hold, and whether that made us the owner, so that its revision is a token.

        Raises PlaceLostError.
        """
        key = self._key(lock, lease)
        answer = await self._txn(
            [_created(key, 0)],
            [
                {"request_put": {"key": key, "value": _encode(owner), "lease": str(lease)}},
                {"request_range": {**self._folder(lock), **_FIRST}},
            ],
            [{"request_range": {"key": key}}],
        )
        shown = EtcdKey.of(answer["responses"][-1]["response_range"]["kvs"][0])
        if not answer.get("succeeded"):  # we have asked twice, the first one landed, and others may have come since
            return EtcdHold(lease, shown.created), False
        return EtcdHold(lease, _revision(answer)), shown.encoded == key

    async def touch(self, lock: str, hold: EtcdHold) -> int | None:
        """Put the key again as it is, and return the revision of that; None: it is gone."""
        key = self._key(lock, hold.lease)
        put = {"request_put": {"key": key, "ignore_value": True, "ignore_lease": True}}
        answer = await self._txn([_created(key, hold.created)], [put])
        return _revision(answer) if answer.get("succeeded") else None

    async def attach(self, lock: str, hold: EtcdHold, old: int, new: int) -> bool:
        """Attach the key to another lease; False: it is gone, or not attached to `old`, or `new` has ended."""
        key = self._key(lock, hold.lease)
        attached = {"key": key, "target": "LEASE", "lease": str(old)}
        put = {"request_put": {"key": key, "ignore_value": True, "lease": str(new)}}
        try:
            answer = await self._txn([_created(key, hold.created), attached], [put], [{"request_range": {"key": key}}])
        except PlaceLostError:
            return False
        if answer.get("succeeded"):
            return True
        # Asked twice, and the first one landed? To deny it would make the caller revoke the lease, key and all.
        shown = answer["responses"][-1]["response_range"].get("kvs")
        return bool(shown) and EtcdKey.of(shown[0]).lease == new

    async def delete(self, lock: str, hold: EtcdHold) -> None:
        """Delete the key, if it is still the one that was created."""
        key = self._key(lock, hold.lease)
        await self._txn([_created(key, hold.created)], [{"request_delete_range": {"key": key}}])

    async def look(self, lock: str, before: int | None = None) -> tuple[EtcdKey | None, int]:
        """Read the key of the lock's owner, or the one just before the place created at `before`; and the revision
        at which it was so.
        """
        which = _FIRST if before is None else {**_LAST, "max_create_revision": str(before - 1)}
        answer = await self._api.ask("kv/range", {**self._folder(lock), **which})
        shown = answer.get("kvs")
        return EtcdKey.of(shown[0]) if shown else None, _revision(answer)

    async def read(self, lock: str, hold: EtcdHold) -> tuple[EtcdKey | None, int]:
        """Read the key of a hold, if it is still the one that was created, and the raft term at which it was so."""
        answer = await self._api.ask("kv/range", {"key": self._key(lock, hold.lease)})
        shown = answer.get("kvs")
        key = EtcdKey.of(shown[0]) if shown else None
        return key if key is not None and key.created == hold.created else None, _term(answer)

    async def revision(self) -> int:
        """Read etcd's revision, as most of its nodes know it."""
        nothing = {"key": _encode(self._api.where.prefix), "count_only": True}
        return _revision(await self._api.ask("kv/range", nothing))

    async def grant(self, lease: int, ttl: int) -> None:
        """Make a lease of `ttl` seconds with this id."""
        try:
            await self._api.ask("lease/grant", {"ID": str(lease), "TTL": str(ttl)})
        except EtcdRefusedError as error:
            # It exists: we have asked twice. No other client chooses this one of 2^62 ids.
            if error.code != NO_PRECONDITION:
                raise

    async def keep_alive(self, lease: int) -> tuple[int, int]:
        """Return the seconds that the lease lives from now on (0: it has ended), and the raft term."""
        result = (await self._api.ask("lease/keepalive", {"ID": str(lease)}))["result"]
        return int(result.get("TTL", 0)), _term(result)

    async def left_ms(self, lease: int) -> int | None:
        """How long the lease has left, exact to a second, upwards; None: it has ended."""
        answer = await self._api.ask("lease/timetolive", {"ID": str(lease)})
        left, granted = int(answer.get("TTL", 0)), int(answer.get("grantedTTL", 0))
        return None if left < 0 else min(left + 1, granted) * 1000

    async def revoke(self, lease: int) -> None:
        """End the lease, if it is there, and delete what is attached to it."""
        try:
            await self._api.ask("lease/revoke", {"ID": str(lease)})
        except EtcdRefusedError as error:
            if error.code != NOT_FOUND:
                raise

    def _key(self, lock: str, lease: int) -> str:
        return _encode(f"{self._path(lock)}{lease:x}")

    def _folder(self, lock: str) -> dict[str, str]:
        folder = self._path(lock)
        return {"key": _encode(folder), "range_end": _encode(folder[:-1] + chr(ord("/") + 1))}

    def _path(self, lock: str) -> str:
        """Without a slash in it, no lock's name begins with another lock's folder."""
        return f"{self._api.where.prefix}{lock.replace('%', '%25').replace('/', '%2F')}/"

    async def _txn(
        self, compare: list[dict[str, Any]], then: list[dict[str, Any]], otherwise: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Raise PlaceLostError where the lease of a put has ended."""
        try:
            return await self._api.ask("kv/txn", {"compare": compare, "success": then, "failure": otherwise or []})
        except EtcdRefusedError as error:
            if error.code == NOT_FOUND:
                raise PlaceLostError from error
            raise


def seconds(ttl_ms: int) -> int:
    """Leases have whole seconds."""
    return max(1, -(-ttl_ms // 1000))


def _encode(text: str) -> str:
    return b64encode(text.encode()).decode()


def _created(key: str, revision: int) -> dict[str, str]:
    return {"key": key, "target": "CREATE", "create_revision": str(revision)}


def _revision(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _term(answer: Mapping[str, Any]) -> int:
    return int(answer["header"]["raft_term"])


BEATS: Final = 3
"""How often within its TTL a waiter keeps its lease alive."""
RENEWALS: Final = 5
"""How often a renewal begins anew when the leader, or the key's lease, changes under it."""
FAULTY: Final = ((3, 5, 0), (3, 5, 2))
"""From this release to that one a node that crashed may lack what the others have."""


def from_url(url: str, context: SourceContext) -> Source:
    """Make the source of an etcd:// or etcds:// URL (docs/sources/etcd.md). Raises SourceConfigError."""
    return EtcdSource(EtcdApi(parse(url, context.name)))


class EtcdSource:
    """Locks in etcd."""

    capabilities = Capabilities(order="source", fair=True, verifies=True, least_ttl_ms=1000)

    def __init__(self, api: EtcdApi) -> None:
        self._api, self._keys = api, EtcdKeys(api)
        self._pending = ServiceReleases()

    async def open(self) -> None:
        await self._api.open()

    async def close(self) -> None:
        """Close connections, once cancelled acquires have given back what they had."""
        await self._pending.drain()
        await self._api.close()

    async def acquire(self, lock: str, *, owner: str, ttl_ms: int, tokens: int, wait_s: float) -> Grant | Holder:
        """See Source. Who does not wait, and sees that the lock is held, writes nothing to etcd."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + wait_s
        if wait_s <= 0 and (held := await self._other_holder(lock)) is not None:
            return held
        while True:
            lease = secrets.randbits(62) + 1
            try:
                await self._keys.grant(lease, seconds(ttl_ms))
                outcome = await self._queue(lock, lease, owner, tokens, ends, ttl_ms)
            except PlaceLostError as error:
                await self._leave(lease)
                if loop.time() >= ends:
                    raise SourceUnavailableError(
                        f"lock {lock} was lost while {self._api.where} granted it: try again"
                    ) from error
            except SourceUnavailableError:
                self._leave(lease)  # not awaited: the caller has waited long enough, and the TTL stands behind it
                raise
            except BaseException:
                await self._leave(lease)
                raise
            else:
                if isinstance(outcome, Holder):
                    await self._leave(lease)
                return outcome

    async def renew(self, lock: str, handle: str, ttl_ms: int) -> bool:
        """See Source. A lease's TTL cannot change: for a longer one the key gets another lease; a shorter one is not
        followed, and the hold lives for the longer.
        """
        hold = EtcdHold.of(lock, handle)
        lease = hold.lease
        for _ in range(RENEWALS):
            ttl, term = await self._keys.keep_alive(lease)
            key, term_after = await self._keys.read(lock, hold)
            if key is None:
                return False
            if key.lease not in {lease, 0}:
                lease = key.lease  # an earlier renewal has moved it
            elif key.lease == 0 or 0 < ttl < seconds(ttl_ms):
                if await self._move(lock, hold, key.lease, ttl_ms):
                    return True
            elif ttl == 0:
                return False
            elif term == term_after:
                # A leader that others have deposed answers keepalives as before. The read went through the
                # majority: in the same term, the keepalive was the true leader's.
                return True
        raise SourceUnavailableError(f"lock {lock} was not renewed, {self._api.where} changes its leader: try again")

    async def mint(self, lock: str, handle: str, count: int) -> tuple[int, ...] | None:
        hold = EtcdHold.of(lock, handle)
        drawn = []
        for _ in range(count):
            if (revision := await self._keys.touch(lock, hold)) is None:
                return None
            drawn.append(revision)
        return tuple(drawn)

    async def release(self, lock: str, handle: str) -> None:
        """See Source. The key first, which frees the lock whatever lease it has by now."""
        hold = EtcdHold.of(lock, handle)
        await self._keys.delete(lock, hold)
        await self._keys.revoke(hold.lease)

    async def inspect(self, lock: str) -> Holder | None:
        """See Source. `expires_ms` is exact to a second, upwards."""
        first, _ = await self._keys.look(lock)
        return None if first is None else await self._holder(first)

    async def issued(self, number: int) -> bool:
        """Whether etcd's revision has come so far. Revisions that are no lock's tokens cannot be distinguished."""
        return 0 < number <= await self._keys.revision()

    async def advice(self) -> list[str]:
        found: list[str] = []
        clusters: set[str] = set()
        for number, endpoint in enumerate(self._api.where.endpoints):
            try:
                status = await self._api.ask("maintenance/status", {}, number)
            except SourceUnavailableError:
                found.append(f"{endpoint} cannot be asked: locks survive the loss of less than half of the nodes.")
                continue
            clusters.add(status["header"]["cluster_id"])
            found += [f"{endpoint} reports {error}: see etcdctl alarm list." for error in status.get("errors", ())]
            release = tuple(int(part) for part in status["version"].partition("-")[0].split("."))
            if FAULTY[0] <= release <= FAULTY[1]:
                found.append(f"{endpoint} runs {status['version']}, which may lose writes: install 3.5.3 or newer.")
        if len(clusters) > 1:
            found.append(f"{self._api.where} is {len(clusters)} clusters: a lock could be held in each; name one only.")
        members = (await self._api.ask("cluster/member/list", {})).get("members", ())
        if len(members) == 1:
            found.append(
                f"{self._api.where} has one node: with its disk revisions are lost and tokens repeat; run three."
            )
        return found

    async def _queue(self, lock: str, lease: int, owner: str, tokens: int, ends: float, ttl_ms: int) -> Grant | Holder:
        """Create our key and wait for our turn. Raises PlaceLostError."""
        hold, granted = await self._keys.enter(lock, lease, owner)
        drawn = (hold.created,) if granted else ()
        if not drawn and (held := await self._turn(lock, hold, ends, ttl_ms)) is not None:
            return held
        more = await self.mint(lock, str(hold), max(tokens, 1) - len(drawn))
        if more is None:
            raise PlaceLostError
        return Grant(str(hold), (drawn + more)[:tokens])

    async def _turn(self, lock: str, hold: EtcdHold, ends: float, ttl_ms: int) -> Holder | None:
        """Wait until no older key is before ours: None. After `ends`, return who has the lock."""
        loop = asyncio.get_running_loop()
        while True:
            before, revision = await self._keys.look(lock, before=hold.created)
            if before is None:
                return None
            self._refuse_foreign(lock, before)
            left = ends - loop.time()
            if left <= 0:
                if (held := await self._other_holder(lock, but=hold)) is not None:
                    return held
                continue
            await self._api.deleted(before.encoded, revision + 1, min(left, seconds(ttl_ms) / BEATS))
            if (await self._keys.keep_alive(hold.lease))[0] == 0:
                raise PlaceLostError

    async def _other_holder(self, lock: str, but: EtcdHold | None = None) -> Holder | None:
        """Return who has the lock, unless it is free or held by `but`. Raises SourceError for a foreign key."""
        first, _ = await self._keys.look(lock)
        if first is None or (but is not None and first.created == but.created):
            return None
        self._refuse_foreign(lock, first)
        return await self._holder(first)

    async def _holder(self, key: EtcdKey) -> Holder:
        if key.lease == 0:
            return Holder(key.owner)
        return Holder(key.owner, await self._keys.left_ms(key.lease))

    def _refuse_foreign(self, lock: str, key: EtcdKey) -> None:
        """A key that never expires keeps every client from the lock."""
        if key.lease == 0:
            raise SourceError(
                f"lock {lock} is blocked by the key {key.name!r} of {self._api.where}, which has "
                "no lease and never expires: the one that put it there must delete it (etcdctl del)"
            )

    async def _move(self, lock: str, hold: EtcdHold, old: int, ttl_ms: int) -> bool:
        """Attach the key to a new lease. False: not from the lease `old`, look again.

        If no answer comes the new lease is left alone, for the key may be attached to it.
        """
        lease = secrets.randbits(62) + 1
        await self._keys.grant(lease, seconds(ttl_ms))
        moved = await self._keys.attach(lock, hold, old, lease)
        await self._leave(old if moved else lease)
        return moved

    def _leave(self, lease: int) -> "asyncio.Future[None]":
        return self._pending.give_back(self._keys.revoke(lease))
