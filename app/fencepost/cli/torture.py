"""`fencepost torture`: a workload against a gateway, with faults; a history, a verdict, and a report."""

import contextlib
import os
import secrets
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from fencepost.cli.gateway import api_token_option, environment_for_command, read_api_token

if TYPE_CHECKING:
    from fencepost.testing.torture.assignment import Counts

VALID: Final = 0
VIOLATION: Final = 1
NOT_RUN: Final = 2
_STEPS: Final = 1000
WITHOUT_KEYS: Final = frozenset({"idempotent"})
"""Those of WORKLOADS that are not `keyed`: to import them costs half a second."""


class _NotRunError(click.ClickException):
    """There was no run."""

    exit_code = NOT_RUN


@click.command()
@click.option("--url", help="A gateway that runs already: http://HOST:PORT. Without it gateways are started.")
@api_token_option
@click.option(
    "--database-url",
    metavar="URL",
    help="Of PostgreSQL, migrated. With --url: that gateway's database. Without both: a PostgreSQL is started.",
)
@click.option("--workload", default="register", show_default=True, metavar="NAME", help="What holders do.")
@click.option(
    "--source", default="builtin", show_default=True, metavar="NAME", help="Where locks and tokens come from."
)
@click.option(
    "--faults",
    default="all",
    show_default=True,
    metavar="NAMES",
    help="With commas between; or all that are possible, or none.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Makes the same choices again. Default: by chance.")
@click.option("--minutes", type=float, default=1.0, show_default=True, help="When to end.")
@click.option(
    "--ops",
    "operations",
    type=int,
    help="End once so many operations have ended, if earlier; where --faults names faults, not before one of them is"
    " over. What is under way is still done.",
)
@click.option("--gateways", type=click.IntRange(1, 4), default=2, show_default=True, help="How many are started.")
@click.option("--tasks", type=click.IntRange(1, 200), default=12, show_default=True, help="Holders per worker process.")
@click.option("--resources", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Keys per table.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Directory for history.jsonl and report.html; one that has them is refused. Default: torture-SEED.",
)
@click.option(
    "--list",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda context, _option, asked: _list(context) if asked else None,
    help="List workloads, faults and sources, and end.",
)
@click.pass_context
def torture(
    context: click.Context, /, seed: int | None, out: Path | None, api_token_file: str | None, **given: Any
) -> None:
    """Try to make a gateway accept a stale write, or lose one that it has acknowledged.

    Runs a workload with faults, records every request and its answer, and judges that by rules that share no code with
    the gateway. The tables are made for it, under names of their own; no others are touched.

    Exit code: 0 nothing wrong was found, 1 a promise was broken, 2 there was no run. Ctrl-C ends the run early and
    reports what ran.
    """
    _require_used(context)
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    out = out or Path(f"torture-{seed}")
    try:
        with _api_token(given["url"], api_token_file):
            valid = _run({"seed": seed, "out": out, **given})
    except KeyboardInterrupt:
        raise _NotRunError("stopped by a second Ctrl-C, or before anything ran: there is no report") from None
    click.echo(f"\nSeed {seed}. Written: {out}")
    raise SystemExit(VALID if valid else VIOLATION)


@contextlib.contextmanager
def _api_token(url: str | None, file: str | None) -> Iterator[None]:
    """Put the name of the token's file into the environment, as long as the block runs: worker processes share it."""
    if url is None:
        yield
        return
    read_api_token(file)
    before = os.environ.copy()
    os.environ.update(environment_for_command(file))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _require_used(context: click.Context) -> None:
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if {"url", "gateways"} <= given:
        raise click.UsageError("--gateways does nothing with --url: that gateway runs already. Leave one of them out.")
    if "api_token_file" in given and "url" not in given:
        raise click.UsageError("--api-token-file is for the gateway of --url: without --url gateways are started.")
    if "resources" in given and context.params["workload"] in WITHOUT_KEYS:
        raise click.UsageError(
            f"--resources does nothing for the workload {context.params['workload']}, whose holders share no rows."
            " Leave it out."
        )


def _run(given: Mapping[str, Any]) -> bool:
    """Run with these fields of a Config; whether nothing wrong was found."""
    try:
        # They are much to import, and `fencepost --help` needs none of it.
        from fencepost.testing.torture.assignment import BadInputError, RunFailedError  # noqa: PLC0415
        from fencepost.testing.torture.config import Config  # noqa: PLC0415
        from fencepost.testing.torture.running import first_step, run_in_words  # noqa: PLC0415
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed: pip install '.[testing]', in the clone of Fencepost"
        raise _NotRunError(missing) from error
    try:
        config = Config(**given)
        with contextlib.closing(_Bar(first_step(config))) as bar:
            verdict, words = run_in_words(config, bar.show)
    except (BadInputError, RunFailedError) as error:
        raise _NotRunError(str(error)) from error
    except Exception as error:
        # Python's own exit code for this is 1, which would say that the gateway broke a promise.
        traceback.print_exc()
        raise _NotRunError(
            f"the run itself failed, and nothing was written: {type(error).__name__}: {error}"
        ) from error
    click.echo(words)
    return verdict.valid


def _list(context: click.Context) -> None:
    from fencepost.testing.torture.running import listing  # noqa: PLC0415 - as above

    click.echo(listing())
    context.exit()


class _Bar:
    """click's progress bar, fed by shares of the run."""

    def __init__(self, label: str) -> None:
        bar = click.progressbar(length=_STEPS, label=label, file=sys.stderr)
        self._stack = contextlib.ExitStack()
        self._bar = self._stack.enter_context(bar)

    def show(self, what: str, share: float, counts: "Counts | None") -> None:
        if counts is None or not sys.stderr.isatty():  # a file gets a line whenever the label changes
            self._bar.label = what
        else:
            self._bar.label = f"{what}, {counts.operations} operations"
        self._bar.update(max(0, int(min(share, 1.0) * _STEPS) - self._bar.pos))

    def close(self) -> None:
        self._stack.close()
