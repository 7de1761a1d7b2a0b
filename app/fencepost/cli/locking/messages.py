"""What a job prints about the lock: who holds it, why it was not had or was lost, what the client logs."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from fencepost.cli.locking import exit_codes
from fencepost.cli.locking.job import Job
from fencepost.client import ApiError, Client, LeaseLost, LockHeld

LOGGER: Final = logging.getLogger("fencepost.client")
_SHOW_HOLDER_AFTER: Final = 0.5  # seconds of waiting


async def show_holder(client: Client, job: Job) -> None:
    """Print who holds the locks, once we have waited for them for a moment; only when verbose."""
    if not job.verbose:
        return
    await asyncio.sleep(_SHOW_HOLDER_AFTER)
    try:
        for name in job.names:
            for state in await client.locks(name, source=job.source):
                held = f"held by {state.owner} since {_time(state.granted_at)}" if state.held else "free"
                job.print_line(f"waiting for {name}: {held}, {len(state.waiters)} waiting")
    except ApiError as error:
        job.print_line(f"waiting for {job.shown}: {error}")


def describe_error(error: ApiError, job: Job) -> str:
    """Say why a lock was not had, or was lost."""
    match error:
        case LockHeld(holder=str(holder)):
            until = _time(error.held_until)
            return f"{error.lock} is held by {holder} since {_time(error.held_since)}, until {until} unless renewed"
        case LockHeld():
            return f"{error.lock or job.shown} is free, and others wait for it"
        case LeaseLost(superseded_by=by) if by is not None and by.holder and by.holder not in str(error):
            return f"{error}; now {by.holder} has it, since {_time(by.granted_at)}"
        case LeaseLost():
            return str(error)
        case _ if exit_codes.of_error(error) == exit_codes.UNREACHABLE:
            return f"cannot ask {job.url}: {error}"
        case _:
            return f"{job.url} refused: {error}"


def _time(at: datetime | None) -> str:
    return "?" if at is None else at.isoformat(" ", "seconds")


@contextlib.contextmanager
def client_log(job: Job) -> Iterator[None]:
    """Show what the client logs: a release that failed; when verbose, renewals that failed too."""
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter(f"{job.program}: %(message)s"))
    LOGGER.addHandler(shown)
    try:
        yield
    finally:
        LOGGER.removeHandler(shown)
