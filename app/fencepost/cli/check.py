"""`fencepost check` and `fencepost report`: the verdict on a history, in a line and as a page."""

from pathlib import Path

import click

from fencepost.testing.checker import MODELS, NothingToCheckError, UndecidedError, Verdict
from fencepost.testing.checker import check as check_history
from fencepost.testing.checker.store import ALL_MODELS, Model
from fencepost.testing.history import BadHistoryError, read
from fencepost.testing.history.history import export
from fencepost.testing.torture.report import write_report

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("history", type=_FILE)
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(ALL_MODELS),
    help=f"What to check; may be repeated. Default: {', '.join(MODELS)}.",
)
@click.option(
    "--cut-off-last-line",
    is_flag=True,
    help="Leave out a last line that has no end; operations that had not ended there are unknown.",
)
@click.option(
    "--porcupine",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the history to this file as well, in the form of Porcupine.",
)
def check(history: Path, models: tuple[Model, ...], *, cut_off_last_line: bool, porcupine: Path | None) -> None:
    """Check HISTORY: whether a stale write was accepted, a write was lost or done twice, a lock's tokens fell.

    Ends with 0 when all promises were kept, with 1 when one was broken, with 2 when HISTORY cannot be checked, or
    has nothing to check.
    """
    if porcupine is not None and porcupine.exists() and porcupine.samefile(history):
        raise click.UsageError(f"{porcupine} is the history itself: name another file with --porcupine")
    try:
        found = read(history, cut_off_last_line=cut_off_last_line)
        verdict = check_history(found, models or MODELS)
    except (BadHistoryError, NothingToCheckError, UndecidedError, OSError) as error:
        raise _stop(str(error)) from None
    if porcupine is not None:
        try:
            export(found, porcupine)
        except OSError as error:
            raise _stop(f"the history could not be written to {porcupine}, the file of --porcupine: {error}") from None
    _report(verdict)
    if not verdict.valid:
        raise click.exceptions.Exit(1)


def _stop(reason: str) -> click.exceptions.Exit:
    click.echo(f"fencepost check: {reason}", err=True)
    return click.exceptions.Exit(2)


def _report(verdict: Verdict) -> None:
    for violation in verdict.violations:
        click.echo(f"[{violation.model}] {violation.words}\n")
    click.echo(
        f"{'valid' if verdict.valid else 'VIOLATED'}: {verdict.operations} operations on {verdict.resources} resources,"
        f" {verdict.accepted} accepted, {verdict.refused} refused, {verdict.unknown} unknown;"
        f" {len(verdict.violations)} violations"
    )


class _CannotReportError(click.ClickException):
    """Nothing was written."""

    exit_code = 2


@click.command()
@click.argument("history", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The report; one that is there is replaced.  [default: HISTORY with the ending .html]",
)
@click.option(
    "--cut-off-last-line",
    is_flag=True,
    help="Leave out a last line that was not written to its end: the recorder was killed.",
)
def report(history: Path, output: Path | None, cut_off_last_line: bool) -> None:
    """Check HISTORY, print the verdict, and write it with timelines as one HTML file, which needs no network.

    HISTORY is a file of JSON lines as `fencepost torture` and `fencepost.testing` record it. The report is written to
    another name and renamed, so that it is never half there.

    Exit codes: 0 the history is valid, 1 it has violations, 2 bad usage, or HISTORY is no history, has nothing to
    check, or cannot be judged: then nothing is written.
    """
    destination = history.with_suffix(".html") if output is None else output
    if destination.exists() and destination.samefile(history):
        raise click.UsageError(f"{destination} is the history itself: name another file with -o")
    try:
        verdict = check_history(read(history, cut_off_last_line=cut_off_last_line))
        words = write_report(history, verdict, destination, cut_off_last_line=cut_off_last_line)
    except (BadHistoryError, NothingToCheckError, UndecidedError) as error:
        raise _CannotReportError(str(error)) from error
    except OSError as error:
        raise _CannotReportError(f"the report could not be written to {destination}: {error}") from error
    click.echo(words)
    click.echo(f"\nThe report: {destination}")
    if not verdict.valid:
        raise SystemExit(1)
