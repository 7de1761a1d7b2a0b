"""Puts the parts together: the one place beside the command line that reads settings."""

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI

from fencepost.server import background, wire
from fencepost.server.consumer_wiring import consumers_here, consuming
from fencepost.server.gateway.gateway import Gateway
from fencepost.server.gateway_wiring import Configured, open_gateway
from fencepost.server.health import Health
from fencepost.server.http.app import Admin, Application, Parts
from fencepost.server.http.edge import RateLimits, read_rate, read_sites
from fencepost.server.http.guard import ADMIN_GUARD, GUARD, KEPT_ANSWERS, Bounds, Guard
from fencepost.server.http.system import Health as HealthParts
from fencepost.server.identity.api_keys import Announcements
from fencepost.server.identity_wiring import Authentication, read_authentication
from fencepost.server.observe import logs
from fencepost.server.observe.events import Emit, Event
from fencepost.server.observe.metrics import CallerRefusals, Metrics
from fencepost.server.queue_wiring import ConfiguredQueue, read_queues
from fencepost.server.seal_wiring import read_seal_keys
from fencepost.server.settings import Settings
from fencepost.server.source_wiring import read_sources
from fencepost.server.startup import StartupError
from fencepost.server.times import TIMES, Times

GC_THRESHOLD: Final = 20_000
"""How many more objects may be there before Python looks for garbage; a busy gateway has thousands in use."""
GC_THRESHOLD_OF_CONSUMERS: Final = 100_000
"""The same where queues are consumed: a thousand messages in hand are some 60,000 objects, none of them garbage."""


@dataclass
class Runtime:
    """What exists between the lifespan's two ends."""

    gateway: Gateway | None = None
    health: Health | None = None

    def require(self) -> Gateway:
        """Return the gateway; it is there whenever a request is."""
        if self.gateway is None:
            raise RuntimeError("the application's lifespan has not begun")
        return self.gateway

    async def ready(self) -> wire.Readiness:
        """Look whether requests can be served."""
        return await self._require_health().ready()

    async def measure(self) -> None:
        """Measure what is measured when metrics are asked for."""
        await self._require_health().measure()

    def _require_health(self) -> Health:
        if self.health is None:
            raise RuntimeError("the application's lifespan has not begun")
        return self.health


class _Observers:
    """All that is told what happens."""

    def __init__(self) -> None:
        self.metrics, self.log, self.refusals = Metrics(), logs.EventLog(), CallerRefusals()

    def emit(self, event: Event) -> None:
        self.log.on_event(event)
        self.metrics.on_event(event)
        self.refusals.on_event(event)


@dataclass(frozen=True, slots=True)
class _Serving:
    """What was read of the settings before the first request, and how it runs until after the last."""

    settings: Settings
    dsn: str
    configured: Configured
    observers: _Observers
    runtime: Runtime
    authentication: Authentication | None
    times: Times

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have a gateway in the runtime, and all that runs beside its requests, as long as the block runs."""
        settings, times, authentication, runtime = self.settings, self.times, self.authentication, self.runtime
        emit, metrics = self.observers.emit, self.observers.metrics
        roles_named = authentication is not None and authentication.names_roles
        async with open_gateway(
            settings, self.dsn, emit, self.configured, self._keys(), times, roles_named=roles_named
        ) as gateway:
            consumers = consumers_here(gateway, settings)
            jwks = None if authentication is None else authentication.jwks
            has_keys = None if jwks is None else lambda: jwks.current() is not None
            runtime.gateway, runtime.health = gateway, Health(gateway, metrics, consumers, has_keys)
            _rest_from_garbage()
            try:
                async with (
                    authentication.running() if authentication else nullcontext(),
                    consuming(gateway, consumers, settings),
                    background.recording(gateway.database, self.observers.refusals, emit, times),
                    _publish(runtime.health, metrics, self.observers.log, times),
                ):
                    yield
            finally:
                await runtime.health.close()
                runtime.gateway = runtime.health = None

    def _keys(self) -> background.Keys | None:
        of = self.authentication
        if of is None or of.api_keys is None:
            return None
        return background.Keys(of.api_keys, Announcements(of.authenticator.forget, self.times))


def create_app(settings: Settings | None = None, times: Times = TIMES) -> FastAPI:
    """Build the application. Without settings it reads FENCEPOST_* from the environment, as a worker process does."""
    settings = settings or Settings()
    if settings.database_url is None:
        raise StartupError(
            "FENCEPOST_DATABASE_URL is not set; `fencepost serve` runs an embedded PostgreSQL without it"
        )
    configured = Configured(read_sources(settings), read_queues(settings), read_seal_keys(settings))
    dsn = settings.database_url.get_secret_value()
    logs.configure(settings.log_level, settings.log_format)
    runtime, observers = Runtime(), _Observers()
    authentication = read_authentication(settings, observers.emit, lambda: runtime.require().database, times)
    serving = _Serving(settings, dsn, configured, observers, runtime, authentication, times)
    guards = _guards(settings, observers.emit, times)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[Mapping[str, object]]:
        async with serving.running():
            yield guards

    return Application(
        Parts(
            runtime.require,
            HealthParts(runtime.ready, observers.metrics, runtime.measure),
            observers.metrics.request_done,
            lifespan,
            settings.max_body_bytes,
            settings.access_log,
            read_sites(settings.host, settings.allowed_hosts, settings.cors_origins),
            observers.emit,
            authentication.authenticator if authentication else None,
            _rate_limits(settings, authenticated=authentication is not None),
            _admin(settings),
            settings.demo,
            settings.try_writes,
        )
    )


def _guards(settings: Settings, emit: Emit, times: Times) -> dict[str, object]:
    """Give what the server finds in the lifespan's state: the bounds within which requests arrive, for each port."""
    bounds = Bounds(
        settings.max_connections,
        settings.max_connections_per_address,
        settings.max_head_bytes,
        settings.head_timeout,
        settings.body_timeout,
        settings.least_rate,
        KEPT_ANSWERS * max(settings.max_answer_bytes, 8 << 20),
    )
    sites = read_sites(settings.host, settings.allowed_hosts, settings.cors_origins)
    guards: dict[str, object] = {GUARD: Guard(bounds, emit, times.edge, sites.for_page)}
    if settings.admin_port is not None:
        guards[ADMIN_GUARD] = settings.admin_port, Guard(bounds.of_admin_port, emit, times.edge)
    return guards


def _admin(settings: Settings) -> Admin | None:
    if settings.admin_port is None:
        return None
    return Admin(settings.admin_port, read_sites(settings.admin_host, settings.allowed_hosts, "", addresses=True))


def _rate_limits(settings: Settings, *, authenticated: bool) -> RateLimits:
    per_caller = read_rate("rate limit", settings.rate_limit)
    if per_caller is not None and not authenticated:
        raise StartupError(
            "the rate limit is of callers, which are known by authentication: FENCEPOST_JWT_SECRET, for example"
        )
    return RateLimits(per_caller, read_rate("failed rate limit", settings.failed_rate_limit))


def _rest_from_garbage(threshold: int = GC_THRESHOLD) -> None:
    """What is there now stays, and is not looked through again and again. What requests make goes with them: Python's
    700 objects at once are no reason to look for more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(threshold)


@asynccontextmanager
async def consumer_gateway(
    settings: Settings, queues: Sequence[ConfiguredQueue], times: Times = TIMES
) -> AsyncIterator[Gateway]:
    """Open what a process needs that applies queued writes and answers no requests. Raises StartupError."""
    if settings.database_url is None:
        raise StartupError("FENCEPOST_DATABASE_URL is not set")
    logs.configure(settings.log_level, settings.log_format)
    log = logs.EventLog()
    dsn = settings.database_url.get_secret_value()
    configured = Configured(read_sources(settings), queues, read_seal_keys(settings))
    async with open_gateway(settings, dsn, log.on_event, configured, times=times) as gateway:
        _rest_from_garbage(GC_THRESHOLD_OF_CONSUMERS)
        yield gateway


@asynccontextmanager
async def _publish(health: Health, metrics: Metrics, log: logs.EventLog, times: Times) -> AsyncIterator[None]:
    """Publish again and again what another worker may be asked for, and what was not logged."""

    async def publish() -> None:
        while True:
            health.publish()
            log.log_withheld()
            await times.clock.sleep(times.upkeep.publish_every)

    publishing = asyncio.create_task(publish())
    try:
        yield
    finally:
        publishing.cancel()
        metrics.count()
        log.log_withheld()
