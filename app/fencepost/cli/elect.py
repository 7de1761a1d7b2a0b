"""`fencepost elect`: run a command as long as we lead."""

import click

from fencepost.cli.locking.options import (
    EXIT_CODES,
    OptionsAroundName,
    ending_options,
    grace_for,
    wait_for,
    waiting_options,
)
from fencepost.cli.locking.run import Job, run_and_exit

_EPILOG = f"""{EXIT_CODES}
\b
The command's environment:
  FENCEPOST_TERM          the term: a later leader's is larger
  FENCEPOST_ELECTION      NAME
  FENCE_TOKEN             the term again, as a token: for one write of each resource
  FENCE_LOCK              election/NAME, the lock that the leader holds
  FENCEPOST_URL           the gateway
  FENCEPOST_LEASE         the lease's id
  FENCEPOST_LEASE_SECRET  what `fencepost mint` draws more tokens with
"""


@click.command(
    cls=OptionsAroundName,
    context_settings={"allow_interspersed_args": False},
    epilog=_EPILOG,
)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@waiting_options
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
    ttl: float,
    wait: float | None,
    no_wait: bool,
    again: bool,
    source: str | None,
    owner: str | None,
    grace: float | None,
    conflict_exit_code: int,
    lost_exit_code: int,
    verbose: bool,
) -> None:
    """Wait to be elected leader of NAME, run COMMAND, and end it when leadership is lost.

    The leader is the holder of the lock election/NAME. When COMMAND ends by itself, this command resigns and exits with
    its code; start it again to stay a candidate. Signals are passed on to COMMAND.
    """
    if not name:
        raise click.UsageError("NAME: an election has a name")
    job = Job(
        url=url,
        names=(f"election/{name}",),
        claims=(),
        owner=owner,
        source=source,
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
