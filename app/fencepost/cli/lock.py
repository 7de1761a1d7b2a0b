"""`fencepost lock` and `fencepost elect`: run a command under a lease, and end it when the lease is lost."""

import asyncio
import contextlib
import logging
import math
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypedDict, TypeVar, Unpack

import click

from fencepost.cli import gateway
from fencepost.cli.gateway import (
    DEFAULT_URL,
    api_token_option,
    environment_for_command,
    lost_exit_code_option,
    read_api_token,
)
from fencepost.cli.running import Child, Relay, members
from fencepost.client import (
    ApiError,
    Client,
    FenceToken,
    Lease,
    LeaseLost,
    Lock,
    LockHeld,
    Retry,
    SystemClock,
    Term,
    Token,
)
from fencepost.client.lease import ANSWER_SECONDS, Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedRun:
    """What is to be run under which locks. Times in seconds; `wait` None waits for ever.

    token: what the client takes; token_file: its file, if --api-token-file names one.
    election: what to be elected for, with the first of `names`. again: campaign anew when leadership was lost.
    """

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
    token: Token | None = None
    token_file: str | None = None
    election: str | None = None
    again: bool = False
    writes: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return ", ".join(self.names)

    @property
    def program(self) -> str:
        return "fencepost lock" if self.election is None else "fencepost elect"

    def print_line(self, text: str) -> None:
        """Print a line to stderr; a closed stderr is no error."""
        with contextlib.suppress(OSError):
            click.echo(f"{self.program}: {text}", err=True)


def margin_for(ttl: float, grace: float) -> float:
    """Return how long before its expiry a lease must not be trusted any more. ValueError if they make no sense."""
    reserve = Timings.of(ttl).margin
    if not 0 <= grace <= ttl / 2 - reserve:
        raise ValueError(
            f"--grace {grace:g} does not fit into --ttl {ttl:g}: the command must be dead before the lease expires, "
            f"and renewals need half of the TTL. The grace can be {ttl / 2 - reserve:g} s at most"
        )
    return grace + reserve


Command = TypeVar("Command", bound=Callable[..., object])

LONGEST_DEFAULT_GRACE: Final = 5.0  # seconds
LEAST_TTL: Final = 0.1  # seconds: below, starting the command takes longer

EXIT_CODES: Final = f"""\b
Exit codes, when they are not the command's own:
  {gateway.REFUSED:>3}    bad usage, or the gateway refuses what is asked for
  {gateway.UNREACHABLE:>3}    the gateway, or its database, cannot be reached
  {gateway.HELD:>3}    another client holds the lock (-E)
  {gateway.LOST:>3}    the lock was lost and the command ended (--lost-exit-code)
  {gateway.NOT_EXECUTABLE:>3}    the command cannot be executed
  {gateway.NOT_FOUND:>3}    there is no such command
  128+n  signal n ended the command, or us while we waited
"""


def _options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


asking_options: Final = _options(
    click.argument("name"),
    click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED),
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
    click.option(
        "--also", multiple=True, metavar="NAME", help="A further lock: all are taken together, or none. Repeatable."
    ),
    click.option(
        "--claim", is_flag=True, help="Fence off older holders from what NAME and --also are the names of (TABLE/KEY)."
    ),
    click.option("--claim-resource", multiple=True, metavar="RESOURCE", help="Fence them off from this. Repeatable."),
)
"""NAME and COMMAND, and what is about the gateway, the wait, and what is taken and claimed together."""
ending_options: Final = _options(
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
        default=gateway.HELD,
        show_default=True,
        metavar="N",
        help="When another client holds the lock. With 0 no message is printed, either.",
    ),
    lost_exit_code_option,
    click.option("-v", "--verbose", is_flag=True, help="Show who holds the lock while we wait, and what we acquired."),
)
"""Who we are, and how it may end."""


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


def read_job(name: str, command: tuple[str, ...], given: JobOptions, lock: str | None = None) -> LockedRun:
    """Read what is to be done. `lock`: what the lock is called where that is not NAME. Raises UsageError."""
    return LockedRun(
        url=given["url"],
        token=read_api_token(given["api_token_file"]),
        token_file=given["api_token_file"],
        names=(lock or name, *given["also"]),
        claims=(name, *given["also"], *given["claim_resource"]) if given["claim"] else given["claim_resource"],
        owner=given["owner"],
        source=given["source"],
        writes=given["writes"],
        ttl=given["ttl"],
        wait=_wait_for(given["wait"], no_wait=given["no_wait"]),
        grace=grace_for(given["ttl"], given["grace"]),
        command=command,
        held_code=given["conflict_exit_code"],
        lost_code=given["lost_exit_code"],
        verbose=given["verbose"],
    )


def grace_for(ttl: float, grace: float | None) -> float:
    """Check the grace, or choose one. UsageError if it does not fit into the TTL."""
    if grace is None:
        grace = min(LONGEST_DEFAULT_GRACE, ttl / 6)
    try:
        margin_for(ttl, grace)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return grace


def _wait_for(wait: float | None, *, no_wait: bool) -> float | None:
    """Read --wait and --no-wait: seconds, None waits for ever."""
    if no_wait and wait:
        raise click.UsageError("--wait and --no-wait contradict each other")
    return 0.0 if no_wait else wait


class OptionsAroundName(click.Command):
    """Takes options before NAME and after it, up to `--` or the command's first word. The rest is the command's."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
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


LOGGER: Final = logging.getLogger("fencepost.client")
_SHOW_HOLDER_AFTER: Final = 0.5  # seconds of waiting


async def show_holder(client: Client, job: LockedRun) -> None:
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


def describe_error(error: ApiError, job: LockedRun) -> str:
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
        case _ if gateway.of_error(error) == gateway.UNREACHABLE:
            return f"cannot ask {job.url}: {error}"
        case _:
            return f"{job.url} refused: {error}"


def _time(at: datetime | None) -> str:
    return "?" if at is None else at.isoformat(" ", "seconds")


@contextlib.contextmanager
def client_log(program: str) -> Iterator[None]:
    """Show what the client logs: a release that failed; when verbose, renewals that failed too."""
    shown = logging.StreamHandler()
    shown.setFormatter(logging.Formatter(f"{program}: %(message)s"))
    LOGGER.addHandler(shown)
    try:
        yield
    finally:
        LOGGER.removeHandler(shown)


# Running a command under a lock: acquire, run, watch, end it when the lock is lost, release.
#
# The command must be dead before another client can get the lock. So trust ends early: by the grace that the command
# has between TERM and KILL, and the client's own margin for clocks of different speeds on top (`margin_for`). If this
# process was stopped or starved and sees the loss late, the command gets only what is left of the grace; at 0, KILL at
# once.

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


def run_and_exit(job: LockedRun) -> None:
    """Do the job, and exit as it ended."""
    outcome = asyncio.run(run_under_lock(job))
    if outcome.interrupted:  # a script that runs us in a terminal stops at Ctrl-C only if that has killed us too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(outcome.code)


async def run_under_lock(job: LockedRun) -> Outcome:
    """Do the job, in the main thread. UsageError if the client finds an argument senseless."""
    relay = Relay()
    with relay.handle_signals(), client_log(job.program):
        try:
            if job.again and job.election is not None:  # before we are patient: is there a gateway, and the source?
                async with Client(job.url, token=job.token, timeout=ANSWER_SECONDS) as client:
                    await client.leader(job.election, source=job.source)
            while (outcome := await _hold(job, relay)).lost and job.again and relay.command_ended():
                job.print_line(f"campaigning again for {job.election}")
        except asyncio.CancelledError:
            if relay.stopped_by is None:
                raise
            return Outcome(gateway.of_signal(relay.stopped_by))
        except ApiError as error:
            code = gateway.of_error(error, held=job.held_code, lost=job.lost_code)
            if code != 0 or job.verbose:
                job.print_line(describe_error(error, job))
            return Outcome(code)
        else:
            return outcome


async def _hold(job: LockedRun, relay: Relay) -> Outcome:
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


def _lock(client: Client, job: LockedRun) -> Lock:
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


async def _run(job: LockedRun, lease: Lease, relay: Relay) -> Outcome:
    token = await lease.next_token()
    if job.verbose:
        job.print_line(f"acquired {job.shown}: lease {lease.id}, token {token}")
        lease.check()  # printing may have taken long
    try:
        environment = lease_environment(job.url, job.token_file, lease, token) | {"FENCE_LOCK": job.names[0]}
        child = relay.start(job.command, environment, may_go_on=lambda: lease.trusted)
    except OSError as error:
        job.print_line(f"cannot run {job.command[0]}: {error.strerror}")
        return Outcome(gateway.NOT_FOUND if isinstance(error, FileNotFoundError) else gateway.NOT_EXECUTABLE)
    await wait_for_end_or_loss(_all_ended(job, child, relay), lease)
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


async def _all_ended(job: LockedRun, child: Child, relay: Relay) -> None:
    """Return when the command has ended, and all that it has started in its group."""
    await child.ended.wait()
    relay.take_back_terminal()
    if job.verbose and (left := members(child.group)):
        job.print_line(f"the command has ended; waiting for process {', '.join(map(str, left))}")
    await child.all_ended(_CLOCK, job.grace)


async def wait_for_end_or_loss(end: Coroutine[Any, Any, None], lease: Lease) -> None:
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


def lease_environment(url: str, token_file: str | None, lease: Lease, token: FenceToken) -> dict[str, str]:
    """Give the environment of a command that runs under a lease, but for FENCE_LOCK."""
    term = {"FENCEPOST_ELECTION": lease.election, "FENCEPOST_TERM": str(lease.term)} if isinstance(lease, Term) else {}
    sealed = {} if token.sealed is None else {"FENCE_SEALED_TOKEN": token.sealed}
    # Another lock's, if this command runs under `fencepost lock` itself.
    ours = environment_for_command(token_file)
    inherited = {name: value for name, value in ours.items() if name != "FENCE_SEALED_TOKEN"}
    return {
        **inherited,
        **sealed,
        "FENCE_TOKEN": str(token),
        "FENCEPOST_URL": url,
        "FENCEPOST_LEASE": lease.id,
        "FENCEPOST_LEASE_SECRET": lease.secret,
        **term,
    }


_LOCK_EPILOG = f"""{EXIT_CODES}
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


@click.command(cls=OptionsAroundName, context_settings={"allow_interspersed_args": False}, epilog=_LOCK_EPILOG)
@asking_options
@ending_options
def lock(*, name: str, command: tuple[str, ...], **given: Unpack[JobOptions]) -> None:
    """Run COMMAND while holding the lock NAME, and end it when the lock is lost.

    The lock is a lease of the gateway's, renewed as long as the command or a process of its group runs, and then
    released. When it cannot be renewed in time, the whole group gets TERM, after --grace KILL, all before the lease
    expires. Signals are passed on to the group.
    """
    run_and_exit(read_job(name, command, given))


_ELECT_EPILOG = f"""{EXIT_CODES}
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


@click.command(cls=OptionsAroundName, context_settings={"allow_interspersed_args": False}, epilog=_ELECT_EPILOG)
@asking_options
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
