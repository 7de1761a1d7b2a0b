"""What `fencepost lock` and `fencepost elect` have in common: options, and how the arguments are read."""

from collections.abc import Callable, Sequence
from typing import Final, TypedDict, TypeVar

import click

from fencepost.cli.api_token import api_token_option, read_api_token
from fencepost.cli.locking import exit_codes
from fencepost.cli.locking.job import Job, margin_for

Command = TypeVar("Command", bound=Callable[..., object])

DEFAULT_URL: Final = "http://127.0.0.1:8080"
LONGEST_DEFAULT_GRACE: Final = 5.0  # seconds
LEAST_TTL: Final = 0.1  # seconds: below, starting the command takes longer

EXIT_CODES: Final = f"""\b
Exit codes, when they are not the command's own:
  {exit_codes.REFUSED:>3}    bad usage, or the gateway refuses what is asked for
  {exit_codes.UNREACHABLE:>3}    the gateway, or its database, cannot be reached
  {exit_codes.HELD:>3}    another client holds the lock (-E)
  {exit_codes.LOST:>3}    the lock was lost and the command ended (--lost-exit-code)
  {exit_codes.NOT_EXECUTABLE:>3}    the command cannot be executed
  {exit_codes.NOT_FOUND:>3}    there is no such command
  128+n  signal n ended the command, or us while we waited
"""

_WAITING: Final = (
    click.option(
        "--url", envvar="FENCEPOST_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="The gateway."
    ),
    api_token_option,
    click.option(
        "--ttl",
        type=click.FloatRange(min=LEAST_TTL),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="How long the lock outlives us if we are killed. It is renewed at a third of that.",
    ),
    click.option(
        "--wait",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Give up waiting for the lock after so long. Without it: wait for ever, first come first served.",
    ),
    click.option("-n", "--no-wait", is_flag=True, help="Do not wait: the same as --wait 0."),
)
_TAKING: Final = (
    click.option(
        "--also", multiple=True, metavar="NAME", help="A further lock: all are taken together, or none. Repeatable."
    ),
    click.option(
        "--claim", is_flag=True, help="Fence off older holders from what NAME and --also are the names of (TABLE/KEY)."
    ),
    click.option("--claim-resource", multiple=True, metavar="RESOURCE", help="Fence them off from this. Repeatable."),
)
lost_exit_code_option: Final = click.option(
    "--lost-exit-code",
    type=click.IntRange(0, 255),
    default=exit_codes.LOST,
    show_default=True,
    metavar="N",
    help="When the lock was lost.",
)
"""The option that `fencepost mint` has, too."""
_ENDING: Final = (
    click.option(
        "--writes",
        multiple=True,
        metavar="RESOURCE",
        help="What the tokens may be used for where the gateway seals them: TABLE/KEY, or TABLE/*. Repeatable.",
    ),
    click.option("--source", metavar="NAME", help="The lock service to take it from.  [default: builtin]"),
    click.option("--owner", metavar="TEXT", help="The holder's name, as others see it.  [default: user@host:pid]"),
    click.option(
        "--grace",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="From TERM to KILL, when the lock is lost, and for what INT and QUIT leave of the command."
        "  [default: 5, or a sixth of the TTL if that is less]",
    ),
    click.option(
        "-E",
        "--conflict-exit-code",
        type=click.IntRange(0, 255),
        default=exit_codes.HELD,
        show_default=True,
        metavar="N",
        help="When another client holds the lock. With 0 no message is printed, either.",
    ),
    lost_exit_code_option,
    click.option("-v", "--verbose", is_flag=True, help="Show who holds the lock while we wait, and what we acquired."),
)


def waiting_options(command: Command) -> Command:
    """Add the options about the gateway and the wait."""
    return _with(_WAITING, command)


def taking_options(command: Command) -> Command:
    """Add the options about what is taken and claimed together."""
    return _with(_TAKING, command)


def ending_options(command: Command) -> Command:
    """Add the options about who we are, and how it may end."""
    return _with(_ENDING, command)


class JobOptions(TypedDict):
    """The values of all of these options, as click gives them."""

    url: str
    api_token_file: str | None
    ttl: float
    wait: float | None
    no_wait: bool
    also: tuple[str, ...]
    claim: bool
    claim_resource: tuple[str, ...]
    writes: tuple[str, ...]
    source: str | None
    owner: str | None
    grace: float | None
    conflict_exit_code: int
    lost_exit_code: int
    verbose: bool


def read_job(name: str, command: tuple[str, ...], given: JobOptions, lock: str | None = None) -> Job:
    """Read what is to be done. `lock`: what the lock is called where that is not NAME. Raises UsageError."""
    return Job(
        url=given["url"],
        token=read_api_token(given["api_token_file"]),
        token_file=given["api_token_file"],
        names=(lock or name, *given["also"]),
        claims=_claims_for((name, *given["also"]), given["claim_resource"], claim=given["claim"]),
        owner=given["owner"],
        source=given["source"],
        writes=given["writes"],
        ttl=given["ttl"],
        wait=_wait_for(given["wait"], no_wait=given["no_wait"]),
        grace=_grace_for(given["ttl"], given["grace"]),
        command=command,
        held_code=given["conflict_exit_code"],
        lost_code=given["lost_exit_code"],
        verbose=given["verbose"],
    )


def _grace_for(ttl: float, grace: float | None) -> float:
    """Check the grace, or choose one. UsageError if it does not fit into the TTL."""
    if grace is None:
        grace = min(LONGEST_DEFAULT_GRACE, ttl / 6)
    try:
        margin_for(ttl, grace)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return grace


def _claims_for(named: tuple[str, ...], resources: tuple[str, ...], *, claim: bool) -> tuple[str, ...]:
    """Read --claim, which claims what is `named`, and --claim-resource."""
    return (*named, *resources) if claim else resources


def _wait_for(wait: float | None, *, no_wait: bool) -> float | None:
    """Read --wait and --no-wait: seconds, None waits for ever."""
    if no_wait and wait:
        raise click.UsageError("--wait and --no-wait contradict each other")
    return 0.0 if no_wait else wait


def _with(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


class OptionsAroundName(click.Command):
    """Takes options before NAME and after it, up to `--` or the command's first word. The rest is the command's."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Show the words in the order in which they are given."""
        return ["NAME", "[OPTIONS]", "[--]", "COMMAND", "[ARGS]..."]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move options that stand after NAME before it."""
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
