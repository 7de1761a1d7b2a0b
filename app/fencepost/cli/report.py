"""`fencepost report`: a recorded history, checked and drawn."""

from pathlib import Path

import click

from fencepost.testing.checker import NothingToCheckError, UndecidedError, check
from fencepost.testing.history import BadHistoryError, read
from fencepost.testing.torture.report import write_report


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
        verdict = check(read(history, cut_off_last_line=cut_off_last_line))
        words = write_report(history, verdict, destination, cut_off_last_line=cut_off_last_line)
    except (BadHistoryError, NothingToCheckError, UndecidedError) as error:
        raise _CannotReportError(str(error)) from error
    except OSError as error:
        raise _CannotReportError(f"the report could not be written to {destination}: {error}") from error
    click.echo(words)
    click.echo(f"\nThe report: {destination}")
    if not verdict.valid:
        raise SystemExit(1)
