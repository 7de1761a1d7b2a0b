"""`fencepost elect`: run a command as long as we lead."""

import click

from fencepost.cli.api_token import read_api_token
from fencepost.cli.locking.job import Job
from fencepost.cli.locking.options import (
    EXIT_CODES,
    OptionsAroundName,
    claims_for,
    ending_options,
    grace_for,
    taking_options,
    wait_for,
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
def elect(  # noqa: PLR0913 - one for each option
    *,
    name: str,
    command: tuple[str, ...],
    url: str,
    api_token_file: str | None,
    ttl: float,
    wait: float | None,
    no_wait: bool,
    also: tuple[str, ...],
    claim: bool,
    claim_resource: tuple[str, ...],
    again: bool,
    writes: tuple[str, ...],
    source: str | None,
    owner: str | None,
    grace: float | None,
    conflict_exit_code: int,
    lost_exit_code: int,
    verbose: bool,
) -> None:
    """Wait to be elected leader of NAME, run COMMAND, and end it when leadership is lost.

    The leader is the holder of the lock election/NAME, and of those that --also names; --claim claims NAME.
    When COMMAND ends by itself, and all of its process group, this command resigns and exits with COMMAND's code; start
    it again to stay a candidate.
    Signals are passed on to COMMAND.
    """
    if not name:
        raise click.UsageError("NAME: an election has a name")
    job = Job(
        url=url,
        token=read_api_token(api_token_file),
        token_file=api_token_file,
        names=(f"election/{name}", *also),
        claims=claims_for((name, *also), claim_resource, claim=claim),
        owner=owner,
        source=source,
        writes=writes,
        ttl=ttl,
        wait=wait_for(wait, no_wait=no_wait),
        grace=grace_for(ttl, grace),
        command=command,
        held_code=conflict_exit_code,
        lost_code=lost_exit_code,
        verbose=verbose,
        election=name,
        again=again,
    )
    run_and_exit(job)
