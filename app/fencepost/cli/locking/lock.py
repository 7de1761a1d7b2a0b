"""`fencepost lock`: run a command under a lock, with a fence behind it."""

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
def lock(  # noqa: PLR0913 - one for each option
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
    writes: tuple[str, ...],
    source: str | None,
    owner: str | None,
    grace: float | None,
    conflict_exit_code: int,
    lost_exit_code: int,
    verbose: bool,
) -> None:
    """Run COMMAND while holding the lock NAME, and end it when the lock is lost.

    The lock is a lease of the gateway's, renewed as long as the command or a process of its group runs, and then
    released. When it cannot be renewed in time, the whole group gets TERM, after --grace KILL, all before the lease
    expires. Signals are passed on to the group.
    """
    names = (name, *also)
    job = Job(
        url=url,
        token=read_api_token(api_token_file),
        token_file=api_token_file,
        names=names,
        claims=claims_for(names, claim_resource, claim=claim),
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
    )
    run_and_exit(job)
