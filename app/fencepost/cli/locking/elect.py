"""`fencepost elect`: run a command as long as we lead."""

from dataclasses import replace
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
  FENCEPOST_TERM          the term: a later leader's is larger
  FENCEPOST_ELECTION      NAME
  FENCE_TOKEN             a token: for one write of each resource
  FENCE_SEALED_TOKEN      the same with its seal, where the gateway seals tokens
  FENCE_LOCK              election/NAME, the lock that the leader holds
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
@click.option(
    "--again",
    is_flag=True,
    help="When leadership is lost, campaign again instead of exiting, however long the gateway is away.",
)
@ending_options
def elect(*, name: str, command: tuple[str, ...], again: bool, **given: Unpack[JobOptions]) -> None:
    """Wait to be elected leader of NAME, run COMMAND, and end it when leadership is lost.

    The leader is the holder of the lock election/NAME, and of those that --also names; --claim claims NAME.
    When COMMAND ends by itself, and all of its process group, this command resigns and exits with COMMAND's code; start
    it again to stay a candidate.
    Signals are passed on to COMMAND.
    """
    if not name:
        raise click.UsageError("NAME: an election has a name")
    job = read_job(name, command, given, lock=f"election/{name}")
    run_and_exit(replace(job, election=name, again=again))
