"""Parts that settings name, put together: identity, seals, token sources, queues, the consumer."""

import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Final

import orjson
from pydantic import SecretStr

from fencepost.server.consuming.applying import Applier, Ledger
from fencepost.server.consuming.consumer import ConsumerLimits, QueueConsumer
from fencepost.server.consuming.deciding import Decider, Reports
from fencepost.server.fence.caller import ANONYMOUS, Access, Caller
from fencepost.server.fence.seal import SealKeys, SealKeysError
from fencepost.server.gateway.gateway import Gateway, read_keys, reason_of
from fencepost.server.http.edge import RateLimits, read_rate
from fencepost.server.identity.api_keys import Announcements, ApiKeys
from fencepost.server.identity.authenticator import Authenticator
from fencepost.server.identity.jwt import (
    LONGEST_ROLE,
    ChangingKeys,
    Expected,
    FixedKeys,
    FromFile,
    JwtVerifier,
    read_jwks,
    read_place,
    read_role_path,
)
from fencepost.server.identity.keys import KeysError, read_secret
from fencepost.server.locks.source import Source, SourceConfigError, SourceContext, kind_of, make
from fencepost.server.locks.source_leases import SourceLocks
from fencepost.server.observe.events import (
    Emit,
    SourceQuarantined,
    SourceTrouble,
)
from fencepost.server.postgres import sources
from fencepost.server.postgres.database import Database
from fencepost.server.postgres.errors import RefusedError, StorageError
from fencepost.server.postgres.sources import KnownSource
from fencepost.server.queues import registry
from fencepost.server.queues.log import LogConfigError
from fencepost.server.queues.registry import DEFAULT, ConfiguredQueue
from fencepost.server.setting_files import SettingFileError
from fencepost.server.settings import Settings
from fencepost.server.startup import StartupError, Stopping
from fencepost.server.times import TIMES, Times

# Puts the authenticator together, as the settings say.

_ANONYMOUS: frozenset[Access] = frozenset({"read", "write"})
"""What requests without a credential may ask for, if any: a lock is for one that can be told from others."""


@dataclass(frozen=True, slots=True)
class Authentication:
    """The authenticator, and what runs beside it."""

    authenticator: Authenticator
    jwks: ChangingKeys | None
    api_keys: ApiKeys | None
    names_roles: bool = False
    """Whether what a JWT says, or that there is none, makes a request that of a role."""
    announcements: Announcements | None = None
    """Who hears that API keys change; None: the gateway takes none."""

    @property
    def has_keys(self) -> Callable[[], bool] | None:
        """Says whether there are keys by which JWTs are verified; None: none are fetched."""
        jwks = self.jwks
        return None if jwks is None else lambda: jwks.current() is not None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep keys fresh, as long as the block runs."""
        async with nullcontext() if self.jwks is None else self.jwks.refreshed():
            yield


def read_authentication(
    settings: Settings, emit: Emit, database: Callable[[], Database] | None = None, times: Times = TIMES
) -> Authentication | None:
    """Read the settings; None: there is no authentication. `database`: where API keys are, once requests are there.
    Raises StartupError.
    """
    expected = _expected(settings)
    if settings.jwt_secret is not None and settings.jwt_jwks:
        raise StartupError("a JWT secret and a JWT JWKS are given: give one of them")
    fixed = _fixed(settings)
    jwks = _changing(settings.jwt_jwks, emit, times) if settings.jwt_jwks else None
    api_keys = ApiKeys(database or _no_database, times) if settings.api_keys else None
    keys = jwks or fixed
    if keys is None and (expected.audience or expected.issuer):
        raise StartupError("JWT audience and JWT issuer are about JWTs: give --jwt-secret or --jwt-jwks, too")
    if keys is None and api_keys is None:
        if expected.anonymous_role:
            raise StartupError(
                "the anonymous role is for requests without a credential: give --jwt-secret, --jwt-jwks or --api-keys,"
                " too"
            )
        return None
    verifiers = [each for each in (api_keys, JwtVerifier(keys, expected) if keys else None) if each is not None]
    authenticator = Authenticator(verifiers, _anonymous(expected.anonymous_role), times)
    if jwks is not None:
        jwks.changed = authenticator.forget
    names_roles = bool(expected.anonymous_role or (keys is not None and expected.role_path))
    announcements = None if api_keys is None else Announcements(authenticator.forget, times)
    return Authentication(authenticator, jwks, api_keys, names_roles, announcements)


def _fixed(settings: Settings) -> FixedKeys | None:
    if settings.jwt_secret is None:
        return None
    try:
        return FixedKeys(read_secret(settings.jwt_secret.get_secret_value()))
    except KeysError as error:
        raise StartupError(f"the JWT secret cannot be used: {error}") from error


def _no_database() -> Database:
    raise RuntimeError("only settings are looked at")


def check_authentication(settings: Settings) -> bool:
    """Say whether there is authentication. Raises StartupError where it cannot be as it is set, or is needed."""
    found = read_authentication(settings, lambda _: None) is not None
    if settings.allow_remote and not found:
        raise StartupError(
            "--allow-remote (FENCEPOST_ALLOW_REMOTE) needs authentication, or each machine on the network could write:"
            " give --api-keys, --jwt-secret-file or --jwt-jwks (docs/authentication.md)"
        )
    return found


def read_rate_limits(settings: Settings, *, authenticated: bool) -> RateLimits:
    """Read how often callers may ask. Raises StartupError."""
    per_caller = read_rate("rate limit", settings.rate_limit)
    if per_caller is not None and not authenticated:
        raise StartupError(
            "the rate limit is of callers, which are known by authentication: FENCEPOST_JWT_SECRET, for example"
        )
    return RateLimits(per_caller, read_rate("failed rate limit", settings.failed_rate_limit))


def _expected(settings: Settings) -> Expected:
    role = settings.anon_role
    if role and (not role.isprintable() or len(role.encode()) > LONGEST_ROLE):
        raise StartupError(f"anonymous role: {role[:60]!r} is no name of a role")
    path = read_role_path(settings.jwt_role_claim_key)
    return Expected(settings.jwt_aud, settings.jwt_issuer, path, role or None)


def _anonymous(role: str | None) -> Caller | None:
    if role is None:
        return None
    claims = orjson.dumps({"role": role}).decode()
    return Caller(ANONYMOUS, role, claims, _ANONYMOUS)


def _changing(where: str, emit: Emit, times: Times) -> ChangingKeys:
    load = read_place(where, times.identity.jwks_within)
    if isinstance(load, FromFile):  # a URL may be away for a while; a file without keys is a mistake
        raw = load.read()
        try:
            read_jwks(raw, secrets=True)
        except KeysError as error:
            raise KeysError(f"JWT JWKS: {where!r}: {error}") from error
    return ChangingKeys(load, emit, secrets=isinstance(load, FromFile), times=times)


# The keys that seal tokens.


def read_seal_keys(settings: Settings) -> SealKeys | None:
    """Read FENCEPOST_SEAL_KEYS_FILE; None: it is not set. Raises StartupError, which shows no key."""
    if settings.seal_keys_file is None:
        return None
    try:
        return read_keys(settings.seal_keys_file)[0]
    except (OSError, SealKeysError, SettingFileError) as error:
        raise StartupError(f"FENCEPOST_SEAL_KEYS_FILE: {settings.seal_keys_file}: {reason_of(error)}") from error


# Reads which lock services are configured, and puts them behind the gateway.

_NAME: Final = re.compile("[a-z][a-z0-9_]{0,31}")
_RESERVED: Final = frozenset({"builtin", "external"})
_NO_PRIVILEGE: Final = "42501"


@dataclass(frozen=True, slots=True)
class ConfiguredSource:
    """A source with its name, not opened yet."""

    name: str
    kind: str
    source: Source


def read_sources(settings: Settings) -> list[ConfiguredSource]:
    """Read FENCEPOST_SOURCES. Raises StartupError, which quotes no URL: there may be a password in it."""
    found: dict[str, ConfiguredSource] = {}
    dsn = settings.database_url.get_secret_value() if settings.database_url is not None else ""
    for part in (settings.sources.get_secret_value() if settings.sources is not None else "").split():
        each = read_source(part, dsn)
        if each.name in found:
            raise StartupError(f"FENCEPOST_SOURCES: {each.name} stands there twice")
        found[each.name] = each
    return list(found.values())


def check_sources(settings: Settings) -> None:
    """Refuse a malformed FENCEPOST_SOURCES before anything is opened. Raises StartupError."""
    if settings.database_url is None:  # the embedded server's URL is not known before it runs, and it will have one
        settings = settings.model_copy(update={"database_url": SecretStr("postgresql://127.0.0.1/fencepost")})
    read_sources(settings)


def read_source(text: str, dsn: str) -> ConfiguredSource:
    """Read one NAME=URL. Raises StartupError."""
    name, equals, url = text.partition("=")
    if not equals or not _NAME.fullmatch(name) or name in _RESERVED:
        # Nothing of it is repeated: without its name, or with a `=` in its password, any part may be a secret.
        raise StartupError(
            "FENCEPOST_SOURCES: an item is no NAME=URL with a name of a-z, 0-9 and _ (not builtin, nor external)"
        )
    try:
        return ConfiguredSource(name, kind_of(url), make(url, SourceContext(name, dsn)))
    except SourceConfigError as error:
        raise StartupError(f"FENCEPOST_SOURCES: {name}: {error}") from error


@asynccontextmanager
async def sources_opened(
    configured: Sequence[ConfiguredSource], gateway: Gateway, stopping: Stopping
) -> AsyncIterator[dict[str, SourceLocks]]:
    """Open the sources, and close them in the end, all at once. The services need not be there; their names must be
    free.
    """
    opened: dict[str, SourceLocks] = {}

    async def close() -> None:
        left = stopping.left()
        await asyncio.gather(*(locks.close(left) for locks in opened.values()))

    async with AsyncExitStack() as stack:
        stack.push_async_callback(close)
        for each in configured:
            locks = _locks(each, gateway)
            try:
                await locks.open()
            except RefusedError as error:
                raise StartupError(f"FENCEPOST_SOURCES: {each.name}: {error}. {_mend(error)}") from error
            opened[each.name] = locks
        yield opened


def _mend(error: RefusedError) -> str:
    if error.sqlstate == _NO_PRIVILEGE:
        return "Run `fencepost migrate --gateway-role` for the role in the database URL"
    return error.hint or ""


def _locks(configured: ConfiguredSource, gateway: Gateway) -> SourceLocks:
    name = configured.name
    return SourceLocks(
        name,
        configured.kind,
        configured.source,
        gateway.database,
        limits=gateway.locks.limits,
        failed=lambda reason: gateway.emit(SourceTrouble(name, reason)),
        quarantined=lambda reason: gateway.emit(SourceQuarantined(name, reason)),
        times=gateway.times,
    )


async def list_sources(gateway: Gateway) -> list[KnownSource]:
    """List the sources as the database knows them; none when it cannot be asked."""
    with suppress(StorageError):
        async with gateway.database.spare() as connection:
            return await sources.list_known(connection)
    return []


async def describe_sources(gateway: Gateway) -> dict[str, str]:
    """Return the state of each lock service, for /readyz. A quarantined one does not make the gateway unready: writes
    go on. Queues are shown by themselves.
    """
    return {
        each.name: each.describe() + ("" if each.name in gateway.sources else "; not configured at this gateway")
        for each in await list_sources(gateway)
        if not each.of_a_queue
    }


# Reads which queues are configured, opens their logs, and makes their token sources known (R12).


def read_queues(settings: Settings) -> list[ConfiguredQueue]:
    """Read FENCEPOST_QUEUES, without the queue of the database itself. Raises StartupError, which quotes no URL: there
    may be a password in it.
    """
    names = names_of_queues(settings)
    if settings.default_queue not in names:
        raise StartupError(
            f"FENCEPOST_DEFAULT_QUEUE: there is no queue {settings.default_queue}; there are {', '.join(names)}"
        )
    try:
        return [ConfiguredQueue(registry.name_of(url), registry.make(url)) for url in _urls(settings)]
    except LogConfigError as error:
        raise StartupError(f"FENCEPOST_QUEUES: {error}") from error


def names_of_queues(settings: Settings) -> list[str]:
    """Name the queues that there are, that of the database first. Raises StartupError."""
    names = [registry.DEFAULT]
    for url in _urls(settings):
        try:
            name = registry.name_of(url)
        except LogConfigError as error:
            raise StartupError(f"FENCEPOST_QUEUES: {error}") from error
        if name in names:
            raise StartupError(f"FENCEPOST_QUEUES: {name} stands there twice")
        names.append(name)
    return names


def _urls(settings: Settings) -> list[str]:
    return settings.queues.get_secret_value().split() if settings.queues is not None else []


# Runs what applies the messages of queues: in a gateway's process, or in one of its own (`fencepost consume`).

MOST_IN_HAND: Final = 1000
SHARE: Final = 0.5
"""Which part of the writes that may wait in a process those of a consumer may be."""


def _wall_clock() -> float:
    return time.time()  # noqa: TID251 - when something became a dead letter, for people


def own_member() -> str:
    """Name this process among the members."""
    return f"{socket.gethostname()}-{os.getpid()}"


def consumer_of(gateway: Gateway, name: str, settings: Settings, member: str) -> QueueConsumer:
    """Make a consumer of a queue that is open."""
    log = gateway.queues[name]
    ledger = Ledger(gateway.database, name)
    applier = Applier(gateway, name, settings.max_body_bytes, settings.idempotency_retention)
    decider = Decider(
        *(name, applier.apply, ledger, log.dead),
        now=_wall_clock,
        kept_for=settings.idempotency_retention,
        stop_resources=settings.stop_resources,
        prove=applier.prove,
    )
    limits = ConsumerLimits(
        messages=max(min(MOST_IN_HAND, int(settings.max_waiting * SHARE)), 1), drain=_drain(settings)
    )
    return QueueConsumer(log, member, ledger, decider, Reports(name, gateway.emit), limits, gateway.times.consuming)


def consumers_here(gateway: Gateway, settings: Settings) -> dict[str, QueueConsumer]:
    """Make those that run in a gateway's process."""
    return {DEFAULT: consumer_of(gateway, DEFAULT, settings, own_member())} if settings.consume_here else {}


@asynccontextmanager
async def consuming(
    gateway: Gateway, consumers: Mapping[str, QueueConsumer], settings: Settings
) -> AsyncIterator[None]:
    """Run consumers, by the names of their queues, until the block ends. Their end takes half of the shutdown timeout
    at most: what is not decided by then comes to others.
    """
    tasks = [asyncio.create_task(_run_for_ever(gateway, name, each)) for name, each in consumers.items()]
    try:
        yield
    finally:
        for each in consumers.values():
            each.stop()
        await _end(tasks, _drain(settings), gateway.times.consuming.give_up_within)


async def _end(tasks: Sequence[asyncio.Task[None]], within: float, step: float) -> None:
    """Wait for consumers that were stopped. Where the database or the log does not answer, each of the two steps of
    their end, deciding and leaving, is given up.
    """
    left: set[asyncio.Task[None]] = set(tasks)
    for seconds in (within, step, step):
        if left:
            _, left = await asyncio.wait(left, timeout=seconds)
        for task in left:
            task.cancel()


def _drain(settings: Settings) -> float:
    return settings.shutdown_timeout / 2


async def _run_for_ever(gateway: Gateway, name: str, consumer: QueueConsumer) -> None:
    """Run a consumer until it is stopped; after a fault of the gateway it is started again."""
    while True:
        try:
            await consumer.run()
        except Exception as error:  # noqa: BLE001 - requests must not suffer from it
            Reports(name, gateway.emit).fault(error)
        if await consumer.stopped(gateway.times.consuming.start_again_after):
            return
