"""Running a command under a lock: acquire, run, watch, end it when the lock is lost, release.

The command must be dead before another client can get the lock. So trust ends early: by the grace that the command has
between TERM and KILL, and the client's own margin for clocks of different speeds on top (`margin_for`). If this process
was stopped or starved and sees the loss late, the command gets only what is left of the grace; at 0, KILL at once.
"""

import asyncio
import logging
import math
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

import click

from fencepost.cli.api_token import environment_for_command
from fencepost.cli.locking import exit_codes
from fencepost.cli.locking.child import Child, members
from fencepost.cli.locking.job import Job, margin_for
from fencepost.cli.locking.messages import LOGGER, client_log, describe_error, show_holder
from fencepost.cli.locking.relay import Relay
from fencepost.client import (
    ApiError,
    Client,
    FenceToken,
    Lease,
    LeaseLost,
    Lock,
    Retry,
    SystemClock,
    Term,
)
from fencepost.client.lease import ANSWER_SECONDS

_LOOK_AGAIN: Final = 1.0  # seconds: how far a suspended machine can make us oversleep
_CLOCK: Final = SystemClock()
_PATIENT: Final = Retry(patience=math.inf)
"""For a candidate that stays one: a gateway that is away comes back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended. `interrupted`: by Ctrl-C at a terminal, which the parent process should see. `lost`: the lock
    was lost, and no process of the command is left.
    """

    code: int
    interrupted: bool = False
    lost: bool = False


def run_and_exit(job: Job) -> None:
    """Do the job, and exit as it ended."""
    outcome = asyncio.run(run_under_lock(job))
    if outcome.interrupted:  # a script that runs us in a terminal stops at Ctrl-C only if that has killed us too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(outcome.code)


async def run_under_lock(job: Job) -> Outcome:
    """Do the job, in the main thread. UsageError if the client finds an argument senseless."""
    relay = Relay()
    with relay.handle_signals(), client_log(job):
        try:
            if job.again and job.election is not None:  # before we are patient: is there a gateway, and the source?
                async with Client(job.url, token=job.token, timeout=ANSWER_SECONDS) as client:
                    await client.leader(job.election, source=job.source)
            while (outcome := await _hold(job, relay)).lost and job.again and relay.command_ended():
                job.print_line(f"campaigning again for {job.election}")
        except asyncio.CancelledError:
            if relay.stopped_by is None:
                raise
            return Outcome(exit_codes.of_signal(relay.stopped_by))
        except ApiError as error:
            code = exit_codes.of_error(error, held=job.held_code, lost=job.lost_code)
            if code != 0 or job.verbose:
                job.print_line(describe_error(error, job))
            return Outcome(code)
        else:
            return outcome


async def _hold(job: Job, relay: Relay) -> Outcome:
    LOGGER.setLevel(logging.INFO if job.verbose else logging.WARNING)
    try:
        retry = _PATIENT if job.again else Retry()
        client = Client(job.url, token=job.token, owner=job.owner, retry=retry, timeout=ANSWER_SECONDS)
        lock = _lock(client, job)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    async with client:
        showing = asyncio.create_task(show_holder(client, job))
        try:
            async with lock as lease:
                showing.cancel()
                return await _run(job, lease, relay)
        except LeaseLost as lost:  # before the command was started
            if not job.again:
                raise
            job.print_line(describe_error(lost, job))
            return Outcome(job.lost_code, lost=True)
        finally:
            showing.cancel()


def _lock(client: Client, job: Job) -> Lock:
    margin = margin_for(job.ttl, job.grace)
    if job.election is not None:
        return client.elect(
            job.election,
            ttl=job.ttl,
            wait=job.wait,
            claim=job.claims,
            also=job.names[1:],
            margin=margin,
            source=job.source,
            writes=job.writes,
        )
    return client.lock(
        job.names,
        ttl=job.ttl,
        wait=job.wait,
        claim=job.claims,
        tokens=1,
        margin=margin,
        source=job.source,
        writes=job.writes,
    )


async def _run(job: Job, lease: Lease, relay: Relay) -> Outcome:
    token = await lease.next_token()
    if job.verbose:
        job.print_line(f"acquired {job.shown}: lease {lease.id}, token {token}")
        lease.check()  # printing may have taken long
    try:
        child = relay.start(job.command, _environment(job, lease, token), may_go_on=lambda: lease.trusted)
    except OSError as error:
        job.print_line(f"cannot run {job.command[0]}: {error.strerror}")
        return Outcome(exit_codes.NOT_FOUND if isinstance(error, FileNotFoundError) else exit_codes.NOT_EXECUTABLE)
    await _wait_for_end_or_loss(_all_ended(job, child, relay), lease)
    try:
        lease.check()
    except LeaseLost as lost:
        # From the end of trust if that has passed, else (the gateway answered that the lease is gone) from now.
        left = await child.terminate(_CLOCK, min(_CLOCK.now(), lease.trust.until) + job.grace)
        relay.take_back_terminal()
        # Releasing it will probably fail too, and its error adds nothing to this one.
        LOGGER.setLevel(logging.ERROR)
        could_not = f"; could not end process {', '.join(map(str, left))}" if left else ""
        job.print_line(f"lost {job.shown}, the command was ended: {describe_error(lost, job)}{could_not}")
        if not left:
            child.exit_code()  # reaps the child; our exit code is lost_code
        return Outcome(job.lost_code, lost=not left)
    code = child.exit_code()
    relay.take_back_terminal()
    return Outcome(code, interrupted=child.interrupted and relay.has_terminal)


async def _all_ended(job: Job, child: Child, relay: Relay) -> None:
    """Return when the command has ended, and all that it has started in its group."""
    await child.ended.wait()
    relay.take_back_terminal()
    if job.verbose and (left := members(child.group)):
        job.print_line(f"the command has ended; waiting for process {', '.join(map(str, left))}")
    await child.all_ended(_CLOCK, job.grace)


async def _wait_for_end_or_loss(end: Coroutine[Any, Any, None], lease: Lease) -> None:
    """Return when the end has come or the lease cannot be trusted any more.

    The client's watchdog reports a loss. The clock is read as well: the watchdog may be stuck in a renewal.
    """
    ended = asyncio.ensure_future(end)
    lost = asyncio.ensure_future(lease.lost)
    try:
        while lease.trusted and not ended.done():
            timeout = min(lease.remaining, _LOOK_AGAIN)
            await asyncio.wait({ended, lost}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended.cancel()
        lost.cancel()
        await asyncio.gather(ended, return_exceptions=True)
    if not ended.cancelled():
        ended.result()


def _environment(job: Job, lease: Lease, token: FenceToken) -> dict[str, str]:
    term = {"FENCEPOST_ELECTION": lease.election, "FENCEPOST_TERM": str(lease.term)} if isinstance(lease, Term) else {}
    sealed = {} if token.sealed is None else {"FENCE_SEALED_TOKEN": token.sealed}
    # Another lock's, if this command runs under `fencepost lock` itself.
    ours = environment_for_command(job.token_file)
    inherited = {name: value for name, value in ours.items() if name != "FENCE_SEALED_TOKEN"}
    return {
        **inherited,
        **sealed,
        "FENCE_TOKEN": str(token),
        "FENCE_LOCK": job.names[0],
        "FENCEPOST_URL": job.url,
        "FENCEPOST_LEASE": lease.id,
        "FENCEPOST_LEASE_SECRET": lease.secret,
        **term,
    }
