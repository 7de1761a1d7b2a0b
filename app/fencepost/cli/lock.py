"""`fencepost lock`: run a command under a lock, with a fence behind it."""

import asyncio
import os
import signal

import click

from . import exit_codes
from .holding import Job, margin_for, run_under_lock

DEFAULT_URL = "http://127.0.0.1:8080"
LONGEST_DEFAULT_GRACE = 5.0  # seconds
LEAST_TTL = 0.1  # seconds: below, starting the command takes longer

_EXIT_CODES = f"""\b
Exit codes, when they are not the command's own:
  {exit_codes.REFUSED:>3}    bad usage, or the gateway refuses what is asked for
  {exit_codes.UNREACHABLE:>3}    the gateway, or its database, cannot be reached
  {exit_codes.HELD:>3}    somebody else holds the lock (-E)
  {exit_codes.LOST:>3}    the lock was lost and the command ended (--lost-exit-code)
  {exit_codes.NOT_EXECUTABLE:>3}    the command cannot be executed
  {exit_codes.NOT_FOUND:>3}    there is no such command
  128+n  signal n ended the command, or us while we waited

\b
The command's environment:
  FENCE_TOKEN             a fresh token: for one write of each resource
  FENCE_LOCK              NAME
  FENCEPOST_URL           the gateway
  FENCEPOST_LEASE         the lease's id
  FENCEPOST_LEASE_SECRET  what `fencepost mint` draws more tokens with
"""


class OptionsAroundName(click.Command):
    """Takes options before NAME and after it, up to `--` or the command's first word. The rest is the command's."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return ["NAME", "[OPTIONS]", "[--]", "COMMAND", "[ARGS]..."]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, rest = self._split(ctx, args)
        if rest and before[-1:] != ["--"]:
            name, *after = rest
            options, command = self._split(ctx, after)
            if options[-1:] == ["--"]:
                options.pop()
            args = [*before, *options, "--", name, *command]
        return super().parse_args(ctx, args)

    def _split(self, ctx: click.Context, args: list[str]) -> tuple[list[str], list[str]]:
        """Split into options, with a `--` that ends them, and the words that follow."""
        found, _, _ = self.make_parser(ctx).parse_args(list(args))
        words = [found[word] for word in ("name",) if isinstance(found.get(word), str)]
        words += found["command"] if isinstance(found.get("command"), tuple) else ()
        return args[: len(args) - len(words)], words


@click.command(
    cls=OptionsAroundName,
    context_settings={"allow_interspersed_args": False},
    epilog=_EXIT_CODES,
)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--url", envvar="FENCEPOST_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="The gateway."
)
@click.option(
    "--ttl",
    type=click.FloatRange(min=LEAST_TTL),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the lock outlives us if we are killed. It is renewed at a third of that.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Give up waiting for the lock after so long. Without it: wait for ever, first come first served.",
)
@click.option("-n", "--no-wait", is_flag=True, help="Do not wait: the same as --wait 0.")
@click.option(
    "--also", multiple=True, metavar="NAME", help="A further lock: all are taken together, or none. Repeatable."
)
@click.option("--claim", is_flag=True, help="Fence off older holders from what the locks are named after (TABLE/KEY).")
@click.option("--claim-resource", multiple=True, metavar="RESOURCE", help="Fence them off from this. Repeatable.")
@click.option("--source", metavar="NAME", help="The lock service to take it from.  [default: builtin]")
@click.option("--owner", metavar="TEXT", help="What others are told about us.  [default: user@host:pid]")
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="When the lock is lost: from TERM to KILL.  [default: 5, or a sixth of the TTL if that is less]",
)
@click.option(
    "-E",
    "--conflict-exit-code",
    type=click.IntRange(0, 255),
    default=exit_codes.HELD,
    show_default=True,
    metavar="N",
    help="When somebody else holds the lock. With 0 nothing is said about it, either.",
)
@click.option(
    "--lost-exit-code",
    type=click.IntRange(0, 255),
    default=exit_codes.LOST,
    show_default=True,
    metavar="N",
    help="When the lock was lost.",
)
@click.option("-v", "--verbose", is_flag=True, help="Say who holds the lock while we wait, and what we acquired.")
def lock(  # noqa: PLR0913 - one for each option
    *,
    name: str,
    command: tuple[str, ...],
    url: str,
    ttl: float,
    wait: float | None,
    no_wait: bool,
    also: tuple[str, ...],
    claim: bool,
    claim_resource: tuple[str, ...],
    source: str | None,
    owner: str | None,
    grace: float | None,
    conflict_exit_code: int,
    lost_exit_code: int,
    verbose: bool,
) -> None:
    """Run COMMAND while holding the lock NAME, and end it when the lock is lost.

    The lock is a lease of the gateway's, renewed as long as the command runs, and released when it ends. When it cannot
    be renewed in time, the command and all of its process group get TERM, after --grace KILL, all before the lease
    expires. Signals are passed on to the command.
    """
    if no_wait and wait:
        raise click.UsageError("--wait and --no-wait contradict each other")
    if grace is None:
        grace = min(LONGEST_DEFAULT_GRACE, ttl / 6)
    try:
        margin_for(ttl, grace)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    names = (name, *also)
    job = Job(
        url=url,
        names=names,
        claims=(*names, *claim_resource) if claim else claim_resource,
        owner=owner,
        source=source,
        ttl=ttl,
        wait=0.0 if no_wait else wait,
        grace=grace,
        command=command,
        held_code=conflict_exit_code,
        lost_code=lost_exit_code,
        verbose=verbose,
    )
    outcome = asyncio.run(run_under_lock(job))
    if outcome.interrupted:  # a script that runs us in a terminal stops at Ctrl-C only if that has killed us too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(outcome.code)
