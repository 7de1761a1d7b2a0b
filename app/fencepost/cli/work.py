"""`fencepost work`: run a command for each row of a table, under a lease of the row."""

import asyncio
import logging
import signal
import tempfile
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, Unpack

import click

from fencepost.cli import gateway
from fencepost.cli.gateway import DEFAULT_URL, api_token_option, read_api_token
from fencepost.cli.lock import (
    LEAST_TTL,
    LOGGER,
    OptionsAroundName,
    client_log,
    grace_for,
    lease_environment,
    margin_for,
    wait_for_end_or_loss,
)
from fencepost.cli.running import Child
from fencepost.client import ApiError, Client, Job, LeaseLost, SystemClock, Token, Work
from fencepost.client.http import dumps
from fencepost.client.lease import ANSWER_SECONDS
from fencepost.client.work import jobs_logger

# A command for each row: started with the row, watched, and what its exit code means is written under its lease.
#
# As of `fencepost lock`, a command whose lease is lost is dead before another worker can get its row: trust ends by the
# grace and the client's margin early (`margin_for`).
#
# The lease begins with one token, which the command gets. What we write afterwards carries a token that is minted then:
# it is newer than those that the command may have minted for itself.

_CLOCK: Final = SystemClock()
_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PROGRAM: Final = "fencepost work"
_SAID: Final = {"lost": "the lease was lost, the command was ended", "ended": "the command was ended"}


class _CommandFailedError(Exception):
    """The command's row stays as it is, and is next again after the pause. It has been printed."""


@dataclass(kw_only=True)
class _Worker:
    """What is run for which rows. Times in seconds."""

    url: str
    token: Token | None
    token_file: str | None
    command: tuple[str, ...]
    done: Mapping[str, str]
    failed: Mapping[str, str]
    grace: float
    quiet: bool
    work: Work = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    children: set[Child] = field(default_factory=set)
    handled: list[signal.Signals] = field(default_factory=list)
    stopping: bool = False
    code: int = 0
    """Our exit code."""

    def print_line(self, text: str) -> None:
        """Print a line to stderr; a closed stderr is no error."""
        with suppress(OSError):
            click.echo(f"{_PROGRAM}: {text}", err=True)

    def look(self) -> None:
        """Some child has ended, or was stopped."""
        for child in list(self.children):
            child.look()

    async def do(self, job: Job) -> None:
        """Run the command for a row, and write what its exit code means."""
        began, clock = _CLOCK.now(), _CLOCK
        told = f"{job.name}, attempt {job.attempt}"
        try:
            code = await self._run(job)
        except asyncio.CancelledError:
            outcome = "ended" if job.lease.trusted else "lost"
            self._ended(outcome, f"{told}: {_SAID[outcome]} after {clock.now() - began:.1f} s")
            raise
        changes = self.done if code == 0 else self.failed
        said = "done" if code == 0 else f"exit code {code}"
        try:
            if changes:
                await job.patch(changes)
        except LeaseLost:
            self._ended("lost", f"{told}: {said}, and the lease was lost before that could be written")
            raise
        except ApiError as error:
            self._ended("failed", f"{told}: {said}, and that could not be written: {error}")
            raise _CommandFailedError from error
        again = "" if code == 0 or changes else ": it is next again"
        self._ended("done" if code == 0 else "failed", f"{told}: {said} after {clock.now() - began:.1f} s{again}")
        if again:
            raise _CommandFailedError

    async def _run(self, job: Job) -> int:
        """Run the command to its end, and all that it has started; return its exit code. One that is cancelled, as its
        lease is lost, is dead when this raises.
        """
        token = await job.lease.next_token()
        environment = lease_environment(self.url, self.token_file, job.lease, token)
        environment |= {"FENCE_LOCK": job.name, "FENCEPOST_ATTEMPT": str(job.attempt)}
        with tempfile.TemporaryFile() as row:
            row.write(dumps(job.row) + b"\n")
            row.seek(0)
            try:
                child = Child.start(
                    self.command, environment, handled=self.handled, on_stop=lambda _number: None, stdin=row
                )
            except OSError as error:
                self._ended("failed", f"{job.name}: cannot run {self.command[0]}: {error.strerror}")
                if isinstance(error, FileNotFoundError | PermissionError) and not self.code:  # so will be the next one
                    missing = isinstance(error, FileNotFoundError)
                    self.code = gateway.NOT_FOUND if missing else gateway.NOT_EXECUTABLE
                    self.work.stop()
                raise _CommandFailedError from error
        self.children.add(child)
        try:
            child.look()  # it may have ended already
            await wait_for_end_or_loss(child.all_ended(_CLOCK, self.grace), job.lease)
            job.lease.check()
        except (asyncio.CancelledError, LeaseLost):
            deadline = min(_CLOCK.now(), job.lease.trust.until) + self.grace
            left = await _to_end(child.terminate(_CLOCK, deadline))
            if left:
                self.print_line(f"{job.name}: could not end process {', '.join(map(str, left))}")
            else:
                child.exit_code()  # reaps it
            raise asyncio.CancelledError from None
        finally:
            self.children.discard(child)
        return child.exit_code()

    def on_signal(self, number: signal.Signals) -> None:
        """Take no more rows; the second time, end the commands."""
        if not self.stopping:
            self.print_line(f"{number.name}: no more rows are taken; commands that run: {len(self.children)}")
        self.stopping = True
        self.work.on_signal()

    def _ended(self, outcome: str, text: str) -> None:
        self.counts[outcome] += 1
        if not self.quiet:
            self.print_line(text)


async def _to_end(work: Coroutine[Any, Any, list[int]]) -> list[int]:
    """Do the work to its end, although we are cancelled meanwhile, too."""
    task = asyncio.create_task(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task})
    return task.result()


async def _run_worker(worker: _Worker, taking: "_Taking", *, concurrency: int, drain: float) -> int:
    """Work until there is nothing, or until a signal; return the exit code. UsageError for what makes no sense."""
    try:
        client = Client(worker.url, token=worker.token, timeout=ANSWER_SECONDS)
        margin = margin_for(taking["ttl"], worker.grace)
        worker.work = client.work(**taking, margin=margin, tokens=1, stop_on=())
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCHLD, worker.look)
    for number in _STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(number, worker.on_signal, number)
            worker.handled.append(number)
    try:
        async with client:
            await worker.work.run(worker.do, concurrency=concurrency, drain=drain)
    except ApiError as error:
        worker.code = gateway.of_error(error)
        refused = "cannot ask" if worker.code == gateway.UNREACHABLE else "refused by"
        worker.print_line(f"{refused} {worker.url}: {error}")
    finally:
        for number in (*worker.handled, signal.SIGCHLD):
            loop.remove_signal_handler(number)
    worker.print_line(", ".join(f"{worker.counts[outcome]} {outcome}" for outcome in ("done", "failed", *_SAID)))
    return worker.code


class _Taking(TypedDict):
    """Which rows are taken, and how, as `Client.work` takes it."""

    table: str
    where: str
    order: str | None
    ttl: float
    wait: float | None
    owner: str | None
    pause: float
    writes: tuple[str, ...]


def _assignments(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """Read COLUMN=VALUE. UsageError if that is none."""
    parts = [each.partition("=") for each in given]
    for each, (column, equals, _) in zip(given, parts, strict=True):
        if not (column and equals):
            raise click.UsageError(f"{option} {each}: write COLUMN=VALUE")
    return {column: value for column, _, value in parts}


class _OptionsAroundTable(OptionsAroundName):
    """Takes options before TABLE and after it."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["TABLE", *super().collect_usage_pieces(ctx)[1:]]


_EPILOG: Final = f"""\b
Exit codes:
    0    there was nothing left (--once), or we were asked to stop and have stopped
  {gateway.REFUSED:>3}    bad usage, or the gateway refuses what is asked for
  {gateway.UNREACHABLE:>3}    the gateway, or its database, cannot be reached (--once; else we go on asking)
  {gateway.NOT_EXECUTABLE:>3}    the command cannot be executed
  {gateway.NOT_FOUND:>3}    there is no such command
\b
The command has the row as JSON on its standard input, and this environment:
  FENCE_TOKEN             a fresh token: for one write of each resource
  FENCE_SEALED_TOKEN      the same with its seal, where the gateway seals tokens
  FENCE_LOCK              the name of the row: TABLE/KEY
  FENCEPOST_ATTEMPT       how often the row was taken, this time included
  FENCEPOST_URL           the gateway
  FENCEPOST_LEASE         the lease's id
  FENCEPOST_LEASE_SECRET  what `fencepost mint` draws more tokens with
  FENCEPOST_API_TOKEN_FILE  as we have it, or --api-token-file; FENCEPOST_API_TOKEN is taken away
"""


class _Options(TypedDict):
    """The values of all options, as click gives them."""

    url: str
    api_token_file: str | None
    where: tuple[str, ...]
    order: str | None
    done: tuple[str, ...]
    failed: tuple[str, ...]
    concurrency: int
    once: bool
    ttl: float
    pause: float
    drain: float
    grace: float | None
    writes: tuple[str, ...]
    owner: str | None
    quiet: bool


@click.command(cls=_OptionsAroundTable, context_settings={"allow_interspersed_args": False}, epilog=_EPILOG)
@click.argument("name")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--url", envvar="FENCEPOST_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="The gateway."
)
@api_token_option
@click.option(
    "--where",
    multiple=True,
    metavar="FILTER",
    help="Which rows are to be done, as in the query of a GET: status=eq.new. Repeatable: all of them.",
)
@click.option("--order", metavar="COLUMNS", help="Which comes first: priority.desc,created_at.  [default: by the key]")
@click.option(
    "--done",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Written to the row when the command exits with 0. Repeatable.",
)
@click.option(
    "--failed",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Written when it exits with another code. Without it the row stays as it is, and is next again. Repeatable.",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="How many commands run at once.",
)
@click.option("--once", is_flag=True, help="End when there is no row left, instead of waiting for the next one.")
@click.option(
    "--ttl",
    type=click.FloatRange(min=LEAST_TTL),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a row stays taken if we are killed. Leases are renewed at a third of that.",
)
@click.option(
    "--pause",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a row stays taken after its command has failed, before it is next again; doubled with each attempt,"
    " up to 60.",
)
@click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long running commands have when we get TERM, INT or HUP. A second one ends them at once.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="From TERM to KILL, when a command is ended.  [default: 5, or a sixth of the TTL if that is less]",
)
@click.option(
    "--writes",
    multiple=True,
    metavar="RESOURCE",
    help="What the tokens may be used for, beside the row, where the gateway seals them: TABLE/KEY, or TABLE/*.",
)
@click.option("--owner", metavar="TEXT", help="The worker's name, as others see it.  [default: user@host:pid]")
@click.option("-q", "--quiet", is_flag=True, help="Print no line for each row.")
def work(*, name: str, command: tuple[str, ...], **given: Unpack[_Options]) -> None:
    """Run COMMAND for each row of TABLE that is to be done, and write to the row what came of it.

    Each row is taken under a lease, which is renewed while its command runs. When it is lost, the command and all that
    it has started are ended, before another worker can get the row. A line on stderr tells how each command ended.
    """
    worker = _Worker(
        url=given["url"],
        token=read_api_token(given["api_token_file"]),
        token_file=given["api_token_file"],
        command=command,
        done=_assignments("--done", given["done"]),
        failed=_assignments("--failed", given["failed"]),
        grace=grace_for(given["ttl"], given["grace"]),
        quiet=given["quiet"],
    )
    taking = _Taking(
        table=name,
        where="&".join(given["where"]),
        order=given["order"],
        ttl=given["ttl"],
        wait=0.0 if given["once"] else None,
        owner=given["owner"],
        pause=given["pause"],
        writes=given["writes"],
    )
    jobs_logger.addFilter(_is_news)
    LOGGER.setLevel(logging.WARNING)
    with client_log(_PROGRAM):
        working = _run_worker(worker, taking, concurrency=given["concurrency"], drain=given["drain"])
        raise SystemExit(asyncio.run(working))


def _is_news(record: logging.LogRecord) -> bool:
    """Whether the client tells of a job what has not been printed: an error of our own."""
    return record.exc_info is not None and not isinstance(record.exc_info[1], _CommandFailedError | LeaseLost)
