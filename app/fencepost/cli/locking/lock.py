"""`fencepost lock`: run a command under a lock, with a fence behind it."""

from typing import Unpack

import click

from fencepost.cli.locking.options import (
    EXIT_CODES,
    JobOptions,
    OptionsAroundName,
    ending_options,
    read_job,
    taking_options,
    waiting_options,
)
from fencepost.cli.locking.run import run_and_exit

_EPILOG = f"""{EXIT_CODES}
\b
The command's environment:
  FENCE_TOKEN             a fresh token: for one write of each resource
  FENCE_SEALED_TOKEN      the same with its seal, where the gateway seals tokens
  FENCE_LOCK              NAME
  FENCEPOST_URL           the gateway
  FENCEPOST_LEASE         the lease's id
  FENCEPOST_LEASE_SECRET  what `fencepost mint` draws more tokens with
  FENCEPOST_API_TOKEN_FILE  as we have it, or --api-token-file; FENCEPOST_API_TOKEN is taken away
"""


@click.command(
    cls=OptionsAroundName,
    context_settings={"allow_interspersed_args": False},
    epilog=_EPILOG,
)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@waiting_options
@taking_options
@ending_options
def lock(*, name: str, command: tuple[str, ...], **given: Unpack[JobOptions]) -> None:
    """Run COMMAND while holding the lock NAME, and end it when the lock is lost.

    The lock is a lease of the gateway's, renewed as long as the command or a process of its group runs, and then
    released. When it cannot be renewed in time, the whole group gets TERM, after --grace KILL, all before the lease
    expires. Signals are passed on to the group.
    """
    run_and_exit(read_job(name, command, given))
