"""Running a command under a lock: acquire, run, watch, end it when the lock is lost, release.

The command must be dead before anybody else can get the lock. So trust ends early: by the grace that the command has
between TERM and KILL, and the client's own margin for clocks of different speeds on top (`margin_for`). Told late,
because we were stopped or starved ourselves, it gets only what is left of that; when nothing is left, KILL at once.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import click

from fencepost.client import ApiError, Client, Lease, LeaseLost, LockHeld, SystemClock
from fencepost.client.trust import Timings

from . import exit_codes
from .child import Child
from .relay import Relay

_LOOK_AGAIN: Final = 1.0  # seconds: how far a suspended machine can make us oversleep
_TELL_AFTER: Final = 0.5  # seconds of waiting
_LOGGER: Final = logging.getLogger("fencepost.client")
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run under which locks. Times in seconds; `wait` None waits for ever."""

    url: str
    names: tuple[str, ...]
    claims: tuple[str, ...]
    owner: str | None
    source: str | None
    ttl: float
    wait: float | None
    grace: float
    command: tuple[str, ...]
    held_code: int
    lost_code: int
    verbose: bool

    @property
    def shown(self) -> str:
        """Name the locks."""
        return ", ".join(self.names)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `interrupted`: by Ctrl-C at a terminal, which whoever started us should learn of."""

    code: int
    interrupted: bool = False


def margin_for(ttl: float, grace: float) -> float:
    """Return how long before its expiry a lease must not be trusted any more. ValueError if they make no sense."""
    reserve = Timings.of(ttl).margin
    if not 0 <= grace <= ttl / 2 - reserve:
        raise ValueError(
            f"--grace {grace:g} does not fit into --ttl {ttl:g}: the command must be dead before the lease expires, "
            f"and renewals need half of the TTL. The grace can be {ttl / 2 - reserve:g} s at most"
        )
    return grace + reserve


async def run_under_lock(job: Job) -> Outcome:
    """Do the job, in the main thread. UsageError if the client finds an argument senseless."""
    relay = Relay()
    with relay.listening(), _client_log(job):
        try:
            return await _hold(job, relay)
        except asyncio.CancelledError:
            if relay.stopped_by is None:
                raise
            return Outcome(exit_codes.of_signal(relay.stopped_by))
        except ApiError as error:
            code = exit_codes.of_error(error, held=job.held_code, lost=job.lost_code)
            if code != 0 or job.verbose:
                say(_told(error, job))
            return Outcome(code)


async def _hold(job: Job, relay: Relay) -> Outcome:
    margin = margin_for(job.ttl, job.grace)
    try:
        client = Client(job.url, owner=job.owner)
        lock = client.lock(
            job.names, ttl=job.ttl, wait=job.wait, claim=job.claims, tokens=1, margin=margin, source=job.source
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    async with client:
        telling = asyncio.create_task(_tell_who_holds(client, job))
        try:
            async with lock as lease:
                telling.cancel()
                return await _run(job, lease, relay)
        finally:
            telling.cancel()


async def _run(job: Job, lease: Lease, relay: Relay) -> Outcome:
    token = await lease.next_token()
    if job.verbose:
        say(f"acquired {job.shown}: lease {lease.id}, token {token}")
        lease.check()  # whoever reads our stderr may be slow
    try:
        child = relay.start(job.command, _environment(job, lease, token), may_go_on=lambda: lease.trusted)
    except OSError as error:
        say(f"cannot run {job.command[0]}: {error.strerror}")
        return Outcome(exit_codes.NOT_FOUND if isinstance(error, FileNotFoundError) else exit_codes.NOT_EXECUTABLE)
    await _ended_or_lost(child, lease)
    try:
        lease.check()
    except LeaseLost as lost:
        # From the end of trust if that has passed, else (the gateway says that the lease is gone) from now.
        left = await child.terminate(_CLOCK, min(_CLOCK.now(), lease.trust.until) + job.grace)
        relay.take_back_terminal()
        # Releasing it will probably fail too, and adds nothing to what we have to say.
        _LOGGER.setLevel(logging.ERROR)
        could_not = f"; could not end process {', '.join(map(str, left))}" if left else ""
        say(f"lost {job.shown}, the command was ended: {_told(lost, job)}{could_not}")
        return Outcome(job.lost_code)
    code = child.exit_code()
    relay.take_back_terminal()
    return Outcome(code, interrupted=child.interrupted and relay.has_terminal)


async def _ended_or_lost(child: Child, lease: Lease) -> None:
    """Return when the command has ended or the lease cannot be trusted any more.

    The client's watchdog tells of a loss. The clock is asked as well: the watchdog may be stuck in a renewal.
    """
    ended = asyncio.ensure_future(child.ended.wait())
    lost = asyncio.ensure_future(lease.lost)
    try:
        while lease.trusted and not ended.done():
            timeout = min(lease.remaining, _LOOK_AGAIN)
            await asyncio.wait({ended, lost}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.cancel()
        lost.cancel()


def _environment(job: Job, lease: Lease, token: int) -> dict[str, str]:
    return {
        **os.environ,
        "FENCE_TOKEN": str(token),
        "FENCE_LOCK": job.names[0],
        "FENCEPOST_URL": job.url,
        "FENCEPOST_LEASE": lease.id,
        "FENCEPOST_LEASE_SECRET": lease.secret,
    }


async def _tell_who_holds(client: Client, job: Job) -> None:
    if not job.verbose:
        return
    await asyncio.sleep(_TELL_AFTER)
    try:
        for name in job.names:
            for state in await client.locks(name):
                held = f"held by {state.owner} since {_time(state.granted_at)}" if state.held else "free"
                say(f"waiting for {name}: {held}, {len(state.waiters)} waiting")
    except ApiError as error:
        say(f"waiting for {job.shown}: {error}")


def _told(error: ApiError, job: Job) -> str:
    match error:
        case LockHeld(holder=str(holder)):
            until = _time(error.held_until)
            return f"{error.lock} is held by {holder} since {_time(error.held_since)}, until {until} unless renewed"
        case LockHeld():
            return f"{error.lock or job.shown} is free, and others wait for it"
        case LeaseLost(superseded_by=by) if by is not None and by.holder and by.holder not in str(error):
            return f"{error}; now {by.holder} has it, with token {by.token}"
        case LeaseLost():
            return str(error)
        case _ if exit_codes.of_error(error) == exit_codes.UNREACHABLE:
            return f"cannot ask {job.url}: {error}"
        case _:
            return f"{job.url} refused: {error}"


def _time(at: datetime | None) -> str:
    return "?" if at is None else at.isoformat(" ", "seconds")


@contextlib.contextmanager
def _client_log(job: Job) -> Iterator[None]:
    """Show what the client logs: a release that failed; when verbose, renewals that failed too."""
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter("fencepost lock: %(message)s"))
    _LOGGER.addHandler(shown)
    _LOGGER.setLevel(logging.INFO if job.verbose else logging.WARNING)
    try:
        yield
    finally:
        _LOGGER.removeHandler(shown)


def say(text: str) -> None:
    """Tell the user. Whoever closed our stderr does not want to know."""
    with contextlib.suppress(OSError):
        click.echo(f"fencepost lock: {text}", err=True)
